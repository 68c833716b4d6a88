"""Models and patches of other packages, the real ones: timm, open_clip and diffusers by the names of their layers,
Liger, cut cross-entropy, 4 bits of bitsandbytes.

Slow, and skipped where a package is missing: none of them is needed to work on decondense. `make slow` installs them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor, nn

import decondense as dc
from regularize.models import assert_same, gradients, llama, tokens

pytestmark = pytest.mark.slow


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def timm():
    """A vision transformer of timm."""
    library = pytest.importorskip("timm")
    options = {"img_size": 32, "depth": 2, "embed_dim": 32, "num_heads": 4, "num_classes": 3}
    model = library.create_model("vit_tiny_patch16_224", **options)
    return model, {"x": drawn(2, 3, 32, 32)}, ["blocks.*"], lambda out: out.square().mean()


def open_clip(tower: str):
    library = pytest.importorskip("open_clip")
    seen = {"layers": 2, "width": 32, "head_width": 16, "patch_size": 8, "image_size": 16}
    read = {"context_length": 8, "vocab_size": 64, "width": 32, "heads": 2, "layers": 2}
    model = library.CLIP(embed_dim=16, vision_cfg=seen, text_cfg=read)
    inputs = {"image": drawn(2, 3, 16, 16), "text": tokens(2, 8)}
    return model, inputs, [tower], lambda out: (out[0] * out[1]).sum(1).mean()


def images():
    """The image tower of open_clip."""
    return open_clip("visual.transformer.resblocks.*")


def texts():
    """The text tower of open_clip."""
    return open_clip("transformer.resblocks.*")


def diffusers():
    """A diffusion transformer of diffusers."""
    library = pytest.importorskip("diffusers")
    model = library.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=4, num_layers=2, sample_size=8,
        patch_size=2, num_embeds_ada_norm=10, norm_num_groups=1, dropout=0.0,
    )  # fmt: skip
    # its labels are dropped at random in training, for guidance
    for module in model.modules():
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0
    inputs = {
        "hidden_states": drawn(2, 4, 8, 8),
        "timestep": torch.tensor([1, 2]),
        "class_labels": torch.tensor([0, 1]),
    }
    return model, inputs, ["transformer_blocks.*"], lambda out: out.sample.square().mean()


@pytest.mark.parametrize("make", [timm, images, texts, diffusers])
def test_models_that_are_no_transformers_classes(make):
    """The loss by the plain sum, and the meter by the cosines of a loop."""
    torch.manual_seed(0)
    model, inputs, modules, task = make()
    model.train()
    with dc.regularize(model, modules=modules, weight=0.5) as handle:
        assert len(handle.reads) == 2
        (task(model(**inputs)) + handle.penalty()).backward()
    found = gradients(model)
    model.zero_grad()
    states: list[Tensor] = []
    hooks = [
        model.get_submodule(name).register_forward_hook(lambda _m, _a, out: states.append(out)) for name in handle.reads
    ]
    loss = task(model(**inputs))
    for hook in hooks:
        hook.remove()
    (loss + 0.5 * torch.stack([dc.losses.dispersion(z, estimator="first_order") for z in states]).mean()).backward()
    assert_same(found, gradients(model), 1e-5)

    measured = dc.measure(model, inputs=inputs, modules=modules)
    for z, value in zip(states, measured.mean_cosine):
        u = nn.functional.normalize(z.detach().double(), dim=2)
        n = z.shape[1]
        assert value == pytest.approx(float(((u @ u.mT).sum((1, 2)) - n).mean() / (n * (n - 1))), abs=1e-4)


def plain_gradients(weight: float) -> dict[str, Tensor]:
    model, ids = llama().train(), tokens()
    out = model(input_ids=ids, labels=ids, output_hidden_states=True)
    terms = [dc.losses.dispersion(z, estimator="first_order") for z in out.hidden_states[1:]]
    (out.loss + weight * torch.stack(terms).mean()).backward()
    return gradients(model)


def patched_gradients(weight: float) -> dict[str, Tensor]:
    """Of a model whose forward computes its loss from the states and has no logits."""
    model, ids = llama().train(), tokens()
    with dc.regularize(model, weight=weight) as handle:
        out = model(input_ids=ids, labels=ids)
        assert out.logits is None
        out.loss.backward()
        assert len(handle.last["per_layer"]) == 3
    return gradients(model)


def test_liger(monkeypatch):
    """Liger's forward with its fused linear cross-entropy: on a GPU, else its own kernels in Triton's interpreter."""
    pytest.importorskip("liger_kernel")
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "kernels")  # which is there already when all tests run
    import kernels.conftest  # noqa: F401  what the interpreter needs

    if not torch.cuda.is_available():
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    from liger_kernel.transformers import apply_liger_kernel_to_llama
    from transformers.models.llama import modeling_llama

    expected = plain_gradients(2.0)
    monkeypatch.setattr(modeling_llama.LlamaForCausalLM, "forward", modeling_llama.LlamaForCausalLM.forward)
    apply_liger_kernel_to_llama(
        rope=False, rms_norm=False, swiglu=False, cross_entropy=False, fused_linear_cross_entropy=True
    )
    assert_same(patched_gradients(2.0), expected, 1e-4)


def test_cut_cross_entropy(monkeypatch):
    """Its loss in the place of the head; on a CPU by its own `torch_compile` implementation. The package on the index
    has no patch for transformers, so this is the patch."""
    cut = pytest.importorskip("cut_cross_entropy")
    from transformers.modeling_outputs import CausalLMOutputWithPast
    from transformers.models.llama import modeling_llama

    expected = plain_gradients(2.0)
    kind = "cce" if torch.cuda.is_available() else "torch_compile"

    def forward(self, input_ids=None, labels=None, **rest):
        states = self.model(input_ids=input_ids, **rest).last_hidden_state
        loss = cut.linear_cross_entropy(states, self.lm_head.weight, labels, shift=True, impl=kind)
        return CausalLMOutputWithPast(loss=loss)

    monkeypatch.setattr(modeling_llama.LlamaForCausalLM, "forward", forward)
    assert_same(patched_gradients(2.0), expected, 1e-4)


def test_qlora(tmp_path):
    """LoRA on a frozen model of 4 bits, on whatever bitsandbytes has kernels for: a CPU too."""
    peft = pytest.importorskip("peft")
    bytes_ = pytest.importorskip("bitsandbytes")
    llama(layers=2).save_pretrained(tmp_path)
    bits = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32)
    options = {"quantization_config": bits, "device_map": "cpu"}
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path, **options)
    assert isinstance(model.model.layers[0].mlp.up_proj, bytes_.nn.Linear4bit)
    model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    adapter = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model, ids = peft.get_peft_model(model, adapter).train(), tokens()
    out = model(input_ids=ids, labels=ids, output_hidden_states=True)
    terms = [dc.losses.dispersion(z, estimator="first_order") for z in out.hidden_states[1:]]
    (out.loss + 3.0 * torch.stack(terms).mean()).backward()
    plain = gradients(model)
    model.zero_grad()
    with dc.regularize(model, weight=3.0):
        model(input_ids=ids, labels=ids).loss.backward()
    assert all("lora" in name for name in plain)
    assert_same(gradients(model), plain, 1e-5)
