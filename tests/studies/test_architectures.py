"""The models of the studies are what their names say, and what `arch` says of runs of its own. Large models are built
without memory (device "meta")."""

from __future__ import annotations

import pytest
import torch
import transformers
from study_runs import STATES, concluded, noise, of, of_seeds, run, settled, snapshot

from decondense import studies
from decondense.stats.verdicts import interval
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
    named = studies.settings.resolved(studies.settings.scale_file("arch")["smoke"])["arms"]
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


def learns(losses):
    """Runs of `arch` with these held-out losses, 3 where none is given; all of them condense."""
    return lambda arm, s: run(spearman=0.8 + noise(arm, s), held_out=losses.get(arm, 3.0))


def test_an_architecture_without_a_loss_or_far_above_the_best_does_not_count():
    first, second, *others = settled("arch")[1]["arms"]
    for losses, left in (({first: None}, 10), ({second: 9.0, first: None}, 9), ({first: 4.0}, 10), ({first: 3.99}, 11)):
        found = of("arch", learns(losses))
        assert found.verdict == "reproduced"
        assert f"Spearman of {left} architectures: {left} above 0, 0 below 0, 0 undecided (by 95 %" in found.sentence
    assert f"left out: {second}." in of("arch", learns({second: 9.0})).sentence
    few = of("arch", learns(dict.fromkeys(others, 9.0)))
    assert few.verdict == "undecided"  # two of eleven say nothing of all


def test_architectures_are_drawn_state_by_state():
    """Every seed of every state; those with rotary positions and a gated MLP are a panel of their own."""
    end = of("arch", lambda arm, s: run(cosine=s / 10, spearman=0.5 + noise(arm, s)))
    gated, others = end.more["curves.png"].args[0]
    assert (len(gated["series"]), len(others["series"])) == (5, 6)
    states, values = gated["series"][arch.LLAMA]
    assert states == list(range(STATES))
    assert values[0] == (0.1, 0.1, 0.1)  # the embedding
    assert values[1:] == [pytest.approx((0.1, 0.2, 0.3))] * (STATES - 1)
    assert "since the first snapshot" not in end.sentence  # two are there, at step 0 and at the end
    shots = [snapshot(step, cosine=level) for step, level in ((0, 0.9), (50, 0.3))]
    later = of("arch", lambda arm, s: run(spearman=0.5, snapshots=[*shots, snapshot(100, cosine=0.4 + s / 100)]))
    fallen = (
        "end minus step 0: 0 above 0, 11 below 0, 0 undecided (by 95 % intervals; at the level divided by their number"
    )
    assert f"{fallen} 11 below 0); since the first snapshot after that: 11 above 0" in later.sentence


def test_architectures_on_either_side_are_counted_at_both_levels_and_the_few_are_named():
    """Below 0 by 95 % and at the level of the criterion, below by 95 % alone, above, and open."""
    names = list(settled("arch")[1]["arms"])
    spread = dict.fromkeys(names, (-0.5, 0.001)) | {
        names[0]: (-0.5, 0.12),
        names[1]: (0.5, 0.001),
        names[2]: (0.0, 0.2),
    }
    mean, step = spread[names[0]]
    highs = [interval([mean - step, mean, mean + step], level)[2] for level in (0.95, 1 - 0.05 / 11)]
    assert highs[0] < 0 < highs[1]
    end = of("arch", lambda arm, s: run(spearman=spread[arm][0] + (s - 2) * spread[arm][1]))
    told = f"1 above 0 ({names[1]}), 9 below 0, 1 undecided ({names[2]}) (by 95 % intervals; at the level divided by"
    assert f"{told} their number 8 below 0)" in end.sentence
    assert end.verdict == "not reproduced"


def test_what_is_not_run_of_the_architectures_is_told_first():
    study, settings = settled("arch")
    runs = [one for one in of_seeds(settings, learns({}), [1]) if one.record.arm.startswith(("GPT2", "OPT"))]
    sentence = concluded(study, settings, runs).sentence
    assert sentence.startswith("4 of 11 architectures are run, 1 of at least 3 training seeds; ")
