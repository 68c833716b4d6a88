"""The models of the studies are what their names say. Large ones are built without memory (device "meta")."""

from __future__ import annotations

import pytest
import torch
import transformers

from decondense import studies
from decondense.studies import arch, settings_of
from decondense.studies.arms import recipe_of


def build(name, scale, arm, device="meta"):
    recipe = recipe_of(settings_of(studies.STUDIES[name], scale), arm, 1)
    torch.manual_seed(0)
    with torch.device(device):
        config = transformers.AutoConfig.for_model(recipe.model.architecture, **recipe.model.config)
        return transformers.AutoModelForCausalLM.from_config(config).eval()


def size(model, embeddings=True):
    outside = () if embeddings else ("emb", "wte", "wpe", "lm_head")
    return sum(p.numel() for n, p in model.named_parameters() if not any(word in n for word in outside))


def test_architectures_are_of_one_size_and_differ_as_named():
    bodies = {}
    for arm in settings_of(studies.STUDIES["arch"], "gpu")["arms"]:
        model = build("arch", "gpu", arm)
        bodies[arm] = size(model, embeddings=False)
        shared = model.get_output_embeddings().weight is model.get_input_embeddings().weight
        assert shared == arm.endswith(", tied"), arm
        norms = {type(m).__name__ for m in model.modules() if "Norm" in type(m).__name__}
        assert all(("RMS" in n) == ("RMSNorm" in arm) for n in norms), (arm, norms)
    assert max(bodies.values()) < 1.01 * min(bodies.values())
    assert {a for _, *pair in arch.CONTRASTS for a in pair} <= set(bodies)


def test_a_rate_of_their_own_is_the_opts_alone():
    sizes = settings_of(studies.STUDIES["arch"], "smoke")  # its `arms` are made; the sizes are those of the file
    named = studies.settings.read_scales("arch")["smoke"]["arms"]
    changed = arch.arms(named | {"opt_rate": 0.5})
    assert {a for a, change in changed.items() if "train" in change} == {arch.OPT_PRE, arch.OPT_POST}
    assert changed[arch.OPT_POST]["train"] == {"learning_rate": 0.5}
    assert changed[arch.LLAMA] == sizes["arms"][arch.LLAMA]


def test_width_family_has_the_published_sizes():
    arms = settings_of(studies.STUDIES["width"], "paper")["arms"]
    assert [round(size(build("width", "paper", arm)) / 1e6) for arm in arms] == [69, 73, 87, 143]


@pytest.mark.parametrize(
    ("arm", "moves"), [(arch.ROPE, True), (arch.NOPE, False), (arch.LLAMA, True), (arch.NEOX, True)]
)
def test_positions_matter_where_there_are_any(arm, moves):
    """The same tokens at stretched positions: rotary encodings see it, a model without positions does not."""
    model = build("arch", "smoke", arm, device="cpu")
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(8 if p.dim() > 1 else 1)  # fresh weights attend almost evenly: make them care
    ids = torch.arange(12)[None] + 5
    near, far = (model(input_ids=ids, position_ids=k * torch.arange(12)[None]).logits for k in (1, 4))
    assert bool((near - far).abs().max() > 1e-4 * near.abs().max()) == moves


def test_norm_before_and_after():
    before, after = (build("arch", "smoke", arm) for arm in (arch.OPT_PRE, arch.OPT_POST))
    assert before.config.do_layer_norm_before
    assert not after.config.do_layer_norm_before
    assert after.model.decoder.final_layer_norm is None
