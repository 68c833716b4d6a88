"""Kinds of model: small random weights of the real classes of transformers, the loss and the meter on each.

The oracle of both is the same: the hidden states that a plain call of the model returns, or the outputs of the named
layers, read by hooks of the test's own.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from meter import meter_oracle as oracle
from torch import Tensor, nn

import decondense as dc
from decondense import losses
from regularize.models import attachment

SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = SHAPE | {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = TEXT | {"num_key_value_heads": 2}
HEADS = GROUPED | {"head_dim": 8}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
IMAGES = SHAPE | {"image_size": 16, "patch_size": 4}
TOWERS = {"text_config": TEXT, "vision_config": IMAGES}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
T5 = {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4, "vocab_size": 64,
      "decoder_start_token_id": 0, "dropout_rate": 0.0}  # fmt: skip
WHISPER = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "vocab_size": 64,
           "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_mel_bins": 8,
           "dropout": 0.0, "max_source_positions": 10, "max_target_positions": 32, "pad_token_id": 0, "bos_token_id": 1,
           "eos_token_id": 2, "decoder_start_token_id": 1}  # fmt: skip
BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "vocab_size": 64,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
        "dropout": 0.0, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
        "forced_eos_token_id": None}  # fmt: skip
IMAGE_TOKEN = 60
measure = partial(dc.measure, bootstrap=20)


def randomly(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def words(length: int = 12, padding: int = 3) -> dict[str, Tensor]:
    """Two passages, the second of them padded."""
    ids = torch.randint(3, 59, (2, length), generator=randomly())
    mask = torch.ones_like(ids)
    mask[1, length - padding :] = 0
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": torch.where(mask.bool(), ids, -100)}


def whole() -> dict[str, Tensor]:
    """Without padding, for a model whose head keeps the mask from its stack."""
    return words(padding=0)


def translated() -> dict[str, Tensor]:
    """Targets that end elsewhere than the passages."""
    return words() | {"labels": words(padding=7)["labels"]}


def pictures(*shape: int) -> Tensor:
    return torch.randn(2, *(shape or (3, 16, 16)), generator=randomly())


def labelled() -> dict[str, Tensor]:
    return {"pixel_values": pictures(), "labels": torch.tensor([0, 1])}


def of_several_sizes() -> dict[str, Tensor]:
    """Images as patches, the second of them padded."""
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[1, 12:] = 0
    sizes = torch.tensor([[4, 4], [3, 4]])
    return {"pixel_values": pictures(16, 48), "pixel_attention_mask": mask, "spatial_shapes": sizes,
            "labels": torch.tensor([0, 1])}  # fmt: skip


def paired() -> dict[str, Any]:
    return {"input_ids": words()["input_ids"], "pixel_values": pictures(), "return_loss": True}


def sound() -> dict[str, Tensor]:
    return {"input_features": pictures(8, 20), "labels": words()["labels"]}


def both() -> dict[str, Tensor]:
    """A picture of four tokens in a text."""
    batch = words()
    for name in ("input_ids", "labels"):
        batch[name][:, 2:6] = IMAGE_TOKEN
    return batch | {"pixel_values": pictures(1, 3, 16, 16)}


@dataclass
class Kind:
    """`mask` names the argument that says which of the tokens read are no padding; None: all count."""

    model: str
    options: dict[str, Any]
    inputs: Callable[[], dict[str, Any]] = words
    mask: str | None = "attention_mask"
    modules: str | None = None
    norm: bool | None = True  # whether the last state is there before and after a final norm; None: it is not known
    before: bool = False  # the states that the model returns end before the norm


KINDS = {
    "Llama": Kind("LlamaForCausalLM", GROUPED),
    "Qwen2": Kind("Qwen2ForCausalLM", GROUPED),
    "Qwen3": Kind("Qwen3ForCausalLM", HEADS),
    "Gemma 3": Kind("Gemma3ForCausalLM", HEADS),
    "OLMo 3": Kind("Olmo3ForCausalLM", GROUPED),
    "GPT-2": Kind("GPT2LMHeadModel", {
        "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
        "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2}),
    "BLOOM": Kind("BloomForCausalLM", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64}),
    "GPT-NeoX": Kind("GPTNeoXForCausalLM", TEXT),
    "OPT": Kind("OPTForCausalLM", TEXT | {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0}),
    "BERT": Kind("BertForMaskedLM", TEXT | STILL, norm=False),
    "ModernBERT": Kind("ModernBertForMaskedLM", TEXT),
    "DistilBERT": Kind("DistilBertForMaskedLM", {
        "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "vocab_size": 64, "dropout": 0.0,
        "attention_dropout": 0.0}, norm=False),
    "T5, decoder": Kind("T5ForConditionalGeneration", T5, translated, mask="labels"),
    "T5, decoder by name": Kind("T5ForConditionalGeneration", T5, translated, "labels", "decoder.block.*"),
    "T5, encoder": Kind("T5ForConditionalGeneration", T5, translated, modules="encoder.block.*"),
    "BART": Kind("BartForConditionalGeneration", BART, translated, mask="labels", norm=False),
    # Its decoder reads the last label first.
    "mBART": Kind("MBartForConditionalGeneration", BART, translated, mask="labels"),
    "BART without its encoder": Kind("BartForCausalLM", BART | {"encoder_layers": 4}, norm=False),
    "Mixtral": Kind("MixtralForCausalLM", GROUPED | {"num_local_experts": 4}),
    "Qwen3-MoE": Kind("Qwen3MoeForCausalLM", HEADS | MOE | {"num_experts": 4}),
    "gpt-oss": Kind("GptOssForCausalLM", HEADS | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "experts of Mixtral": Kind("MixtralForCausalLM", GROUPED | {"num_local_experts": 4}, modules="model.layers.*.mlp"),
    "Mamba": Kind("MambaForCausalLM", {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64, "state_size": 8}),
    "Mamba 2": Kind("Mamba2ForCausalLM", {
        "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64, "state_size": 8, "num_heads": 8, "head_dim": 8,
        "n_groups": 1, "chunk_size": 8}),
    "RWKV": Kind("RwkvForCausalLM", {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64}, whole),
    "CPM-Ant": Kind("CpmAntForCausalLM", TEXT | {
        "dim_head": 8, "dim_ff": 48, "prompt_length": 4, "prompt_types": 3, "segment_types": 3}, whole, norm=None),
    "Qwen3-Next": Kind("Qwen3NextForCausalLM", HEADS | MOE | {
        "num_experts": 4, "shared_expert_intermediate_size": 16, "linear_num_value_heads": 4,
        "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"]}),
    "LFM2": Kind("Lfm2ForCausalLM", GROUPED | {"layer_types": ["conv", "full_attention"]}),
    "Granite hybrid": Kind("GraniteMoeHybridForCausalLM", GROUPED | {
        "layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1,
        "mamba_d_state": 8, "mamba_chunk_size": 8, "shared_intermediate_size": 16, "num_local_experts": 4,
        "num_experts_per_tok": 2}),
    "ViT": Kind("ViTForImageClassification", IMAGES | STILL, labelled, None, before=True),
    "DINOv2": Kind("Dinov2ForImageClassification", IMAGES | STILL | {"mlp_ratio": 2}, labelled, None, before=True),
    "CLIP, images": Kind("CLIPForImageClassification", TOWERS, labelled, None, norm=None),
    "SigLIP, images": Kind("SiglipForImageClassification", TOWERS, labelled, None, norm=None),
    "SigLIP 2, images": Kind("Siglip2ForImageClassification", {
        "text_config": TEXT, "vision_config": SHAPE | {"num_patches": 16, "patch_size": 4}}, of_several_sizes,
        "pixel_attention_mask", norm=None),
    "SigLIP 2, images by name": Kind("Siglip2ForImageClassification", {
        "text_config": TEXT, "vision_config": SHAPE | {"num_patches": 16, "patch_size": 4}}, of_several_sizes,
        "pixel_attention_mask", "vision_model.encoder.layers.*"),
    "Whisper, decoder": Kind("WhisperForConditionalGeneration", WHISPER, sound, "labels"),
    "Whisper, encoder": Kind("WhisperForConditionalGeneration", WHISPER, sound, None, modules="model.encoder.layers.*"),
    "SmolVLM": Kind("SmolVLMForConditionalGeneration", {
        "vision_config": IMAGES, "text_config": {"model_type": "llama", **GROUPED}, "image_token_id": IMAGE_TOKEN,
        "scale_factor": 2, "pad_token_id": 0}, both),
}  # fmt: skip


def build(kind: Kind) -> Any:
    made = getattr(transformers, kind.model)
    torch.manual_seed(1)
    return made(made.config_class(**kind.options))


def plain_states(model: Any, kind: Kind, inputs: dict[str, Any]) -> tuple[list[Tensor], Tensor]:
    """(states, loss) of a plain call."""
    if kind.modules is None:
        out = model(**inputs, output_hidden_states=True)
        states = list(out.get("decoder_hidden_states") or out.hidden_states)
        if kind.model.startswith(("Mamba", "Rwkv")):  # what each block puts out, the last once more after the norm
            states = [model.get_input_embeddings()(inputs["input_ids"]), *states[:-2], states[-1]]
        return states, out.loss
    states: list[Tensor] = []
    start, end = kind.modules.split("*")
    chosen = [m for name, m in model.named_modules() if name.startswith(start) and name.endswith(end)]
    chosen = [m for m in chosen if name_depth(model, m) == kind.modules.count(".")]
    hooks = [m.register_forward_hook(lambda _m, _a, out: states.append(out[0] if isinstance(out, tuple) else out))
             for m in chosen]  # fmt: skip
    loss = model(**inputs).loss
    for hook in hooks:
        hook.remove()
    return states, loss


def name_depth(model: nn.Module, wanted: nn.Module) -> int:
    return next(name.count(".") for name, module in model.named_modules() if module is wanted)


def kept(kind: Kind, inputs: dict[str, Any], states: list[Tensor]) -> Tensor:
    if kind.mask is None:
        return torch.ones(states[0].shape[:2], dtype=torch.bool)
    return inputs[kind.mask] > 0 if kind.mask.endswith("attention_mask") else inputs[kind.mask] != -100


@pytest.mark.parametrize("name", KINDS)
def test_the_loss(name):
    """The term is in the loss, and its gradient is that of the sum."""
    kind = KINDS[name]
    model, inputs = build(kind).train(), kind.inputs()
    states, loss = plain_states(model, kind, inputs)
    mask = kept(kind, inputs, states)
    blocks = states if kind.modules else states[1:]
    total = loss + 0.5 * torch.stack([losses.dispersion(z, mask, estimator="first_order") for z in blocks]).mean()
    total.backward()
    expected = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    with dc.regularize(model, weight=0.5, modules=kind.modules) as handle:
        out = model(**inputs)
        torch.testing.assert_close(out.loss, total)
        out.loss.backward()
        assert len(handle.reads) == len(blocks)
    for n, p in model.named_parameters():
        assert (p.grad is None) is (n not in expected), n
        if p.grad is not None:
            torch.testing.assert_close(p.grad, expected[n], rtol=1e-4, atol=1e-6, msg=n)


def test_the_layers_of_a_decoder_whose_encoder_is_left_out():
    with dc.regularize(build(KINDS["BART without its encoder"])) as handle:
        assert handle.reads == [f"hidden state {i} of BartDecoder" for i in (1, 2, 3)]
    with pytest.raises(ValueError, match=r"layers must lie in 0 … 3 .*, got 4"):
        dc.regularize(build(KINDS["BART without its encoder"]), layers=[4])


def test_several_streams_from_block_to_block():
    """The model returns all of them at once; what is inside a block has one."""
    options = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64, "num_kv_shared_layers": 0}
    options |= {"layer_types": ["sliding_attention", "full_attention"], "laurel_rank": 4, "intermediate_size": [48, 48]}
    model = build(Kind("Gemma3nForCausalLM", HEADS | options | {"activation_sparsity_pattern": [0.0, 0.0]})).train()
    refused = partial(pytest.raises, TypeError, match=r"got \(4, 2, 12, 32\), several streams .*: name layers")
    with refused(), dc.regularize(model):
        model(**words())
    with refused():
        measure(model, inputs=words())
    with dc.regularize(model, modules="model.layers.*.mlp") as handle:
        model(**words()).loss.backward()
    assert len(handle.last["per_layer"]) == 2
    assert measure(model, inputs=words(), modules="model.layers.*.mlp").record.states[1].name == "model.layers.1.mlp"


def test_autocast_around_a_stack_whose_parts_return_no_tensor():
    """Around the `forward` of the model alone, as accelerate puts it. Without a picture only the text model runs."""
    model, inputs = build(KINDS["SmolVLM"]).train(), words()
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    with attachment(model) as attached:
        model(input_ids=inputs["input_ids"])
        assert [capture.autocast for capture in attached.captures] == [torch.bfloat16]


@pytest.mark.parametrize("name", KINDS)
def test_the_meter(name):
    """Mean cosines of every state, padding left out, by loops over the states of a plain call."""
    kind = KINDS[name]
    model, inputs = build(kind).eval(), kind.inputs()
    with torch.no_grad():
        states, _ = plain_states(model, kind, inputs)
    mask = kept(kind, inputs, states)
    c = measure(model, inputs=inputs, modules=kind.modules)
    for number, z in enumerate(states):
        rows = [oracle.scalars(row[m].double().numpy()) for row, m in zip(z, mask)]
        state = c.record.states[number]
        if number == len(states) - 1 and kind.before:
            state = c.before_norm
        for column in ("mean_cosine", "mean_cosine_without_first", "token_norm"):
            assert getattr(state, column) == pytest.approx(np.mean([r[column] for r in rows]), abs=2e-5), (
                number,
                column,
            )
    assert c.record.text.name == "inputs"
    assert c.record.windows_done == 2
    assert c.record.settings["tokens"] == int(mask.sum(1).max())
    assert c.final_norm is (kind.norm if kind.modules is None else False)


def test_the_tokens_of_a_picture_and_of_its_text_apart():
    kind = KINDS["SmolVLM"]
    model, inputs = build(kind).eval(), kind.inputs()
    states, _ = plain_states(model, kind, inputs)
    shown = inputs["input_ids"] == IMAGE_TOKEN
    parts = {"image": shown, "text": ~shown & inputs["attention_mask"].bool()}
    for name, mask in parts.items():
        c = measure(model, inputs=inputs, mask=lambda b: (b["input_ids"] == IMAGE_TOKEN) == (name == "image"))  # noqa: B023
        for z, value in zip(states, c.mean_cosine):
            rows = [oracle.scalars(row[m].detach().double().numpy())["mean_cosine"] for row, m in zip(z, mask)]
            assert value == pytest.approx(np.mean(rows), abs=2e-5)


@pytest.mark.parametrize("name", ["T5, decoder", "T5, decoder by name", "BART"])
def test_the_monitor_counts_the_targets_that_the_meter_counts(name):
    kind = KINDS[name]
    model, inputs = build(kind).train(), kind.inputs()
    with dc.monitor(model, modules=kind.modules, every=1) as watch:
        model(**inputs)
        model(**inputs | {"labels": inputs["labels"].clamp_min(3)})  # nothing is left of the call before
        told = [reading.table["mean_cosine"] for reading in watch.readings]
    expected = measure(model, inputs=inputs, modules=kind.modules).mean_cosine
    assert told[0] == pytest.approx(expected, abs=2e-5)


def test_a_decoder_that_reads_the_passage_itself():
    """As that of a classifier does, whose labels, one per sequence, are no tokens."""
    model = build(Kind("BartForSequenceClassification", BART | {"attention_dropout": 0.0}))
    passage = words()
    passage["input_ids"][0, -1] = passage["input_ids"][1, 8] = 2  # the end of each, which is classified
    labels, mask = torch.tensor([0, 1]), {"decoder_attention_mask": passage["attention_mask"]}
    inputs = passage | {"labels": labels}
    states = model(**inputs | mask, output_hidden_states=True).decoder_hidden_states
    for z, value in zip(states, measure(model, inputs=inputs).mean_cosine, strict=True):
        rows = [oracle.scalars(row[m].detach().double().numpy())["mean_cosine"]
                for row, m in zip(z, passage["attention_mask"].bool())]  # fmt: skip
        assert value == pytest.approx(np.mean(rows), abs=2e-5)
    expected = torch.stack([losses.dispersion(z, passage["attention_mask"]) for z in states[1:]]).mean()
    with dc.regularize(model.train(), estimator="exact") as handle:
        model(**inputs | mask)  # the loss is told
        torch.testing.assert_close(handle.last["penalty"], expected.detach())


def test_labels_are_left_as_they_are(monkeypatch):
    """Some models write into those from which they make what their decoder reads."""
    model, inputs = build(KINDS["BART"]), translated()
    own = "prepare_decoder_input_ids_from_labels"
    monkeypatch.setattr(model, own, lambda labels: labels.masked_fill_(labels < 0, 0))
    measure(model, inputs=inputs)
    assert torch.equal(inputs["labels"], translated()["labels"])


@pytest.mark.parametrize(("name", "part", "layers"), [
    ("BART", "model.encoder", "layers.*"), ("T5, encoder", "encoder", "block.*"), ("BART", "model.decoder", "layers.*"),
])  # fmt: skip
def test_a_stack_of_an_encoder_decoder_by_itself_has_the_mask_it_is_called_with(name, part, layers):
    model, inputs = build(KINDS[name]).train(), words()
    if "decoder" in part:
        inputs["decoder_attention_mask"] = inputs["attention_mask"]
    with dc.regularize(model, modules=f"{part}.{layers}") as whole:
        model(**inputs)
    inner = model.get_submodule(part)
    with dc.regularize(inner, modules=layers) as alone, dc.monitor(inner, modules=layers) as watch:
        model(**inputs)
        penalty = alone.penalty()
    torch.testing.assert_close(penalty, 0.1 * whole.last["penalty"], check_layout=False)
    assert watch.readings[0].table["mean_cosine"] == pytest.approx(whole.last["mean_cosine"].numpy(), abs=1e-3)


def test_packed_rows_of_a_model_with_images():
    """Its position ids are four: of the text, which say where documents begin, and of time, height and width."""
    text = HEADS | {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}}
    seeing = {"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32}
    tokens = {"image_token_id": 60, "video_token_id": 61, "vision_start_token_id": 62, "vision_end_token_id": 63}
    configs = {"text_config": text, "vision_config": seeing | {"fullatt_block_indexes": [0]}}
    model = build(Kind("Qwen2_5_VLForConditionalGeneration", configs | tokens)).train()
    ids, ends = words(padding=0)["input_ids"], (0, 4, 12)
    positions = torch.cat([torch.arange(b - a) for a, b in itertools.pairwise(ends)]).expand(4, 2, -1)
    call = {"input_ids": ids, "position_ids": positions, "use_cache": False}
    states = model(**call, output_hidden_states=True).hidden_states[1:]
    parts = [z[:, a:b] for z in states for a, b in itertools.pairwise(ends)]
    expected = torch.stack([losses.dispersion(z, estimator="first_order") for z in parts]).mean()
    for segments in ("auto", "position_ids"):
        with dc.regularize(model, segments=segments) as handle, dc.monitor(model) as watch:
            model(**call, labels=ids)
            torch.testing.assert_close(handle.last["penalty"], expected.detach())
        cosines = torch.stack([losses.mean_cosine(z, eps=0.0).mean() for z in parts]).view(2, 2).mean(1)
        assert watch.readings[0].table["mean_cosine"][1:] == pytest.approx(cosines.detach().numpy(), abs=1e-6)


PAIR = Kind("CLIPModel", TOWERS | {"projection_dim": 16}, paired)


def test_the_towers_of_a_pair():
    model = build(PAIR).eval()
    pixels, ids = pictures(), words()["input_ids"]
    seen = measure(model, inputs={"pixel_values": pixels})
    assert seen.record.model.architecture == "CLIPVisionModel"
    assert "the first token is the class token: mean_cosine_without_first leaves it out." in seen.notes
    z = model.vision_model(pixels, output_hidden_states=True).hidden_states[1].detach().double().numpy()
    patches = [oracle.scalars(row[1:])["mean_cosine"] for row in z]
    assert seen.values("mean_cosine_without_first")[1] == pytest.approx(np.mean(patches), abs=2e-5)
    assert measure(model, inputs={"input_ids": ids}).record.model.architecture == "CLIPTextModel"
    with pytest.raises(ValueError, match="two towers, must have either pixel_values or input_ids"):
        measure(model, inputs={"input_ids": ids, "pixel_values": pixels})
    call = PAIR.inputs()
    model.train()
    with dc.regularize(model), pytest.raises(TypeError, match=r"CLIPModel must return .*hidden_states.*modules=\[…\]"):
        model(**call)
    with dc.regularize(model, modules="vision_model.encoder.layers.*") as handle:
        model(**call).loss.backward()
        assert len(handle.last["per_layer"]) == 2
        alone = handle.last["penalty"]
        for length in (12, 17):  # the picture has 17 tokens
            text = words(length)
            model(**call | {"input_ids": text["input_ids"], "attention_mask": text["attention_mask"]})
            torch.testing.assert_close(handle.last["penalty"], alone)
    towers = ["vision_model.encoder.layers.*", "text_model.encoder.layers.*"]
    with dc.regularize(model, modules=towers) as handle:
        text = words()
        model(**call | {"attention_mask": text["attention_mask"]})
        own = handle.last["per_layer"]
    with dc.regularize(model, modules=towers[1]) as handle:
        model(**call | {"attention_mask": text["attention_mask"]})
        torch.testing.assert_close(own[2:], handle.last["per_layer"])
        torch.testing.assert_close(own[:2].mean(), alone)  # CLIP calls the picture's first


BOTH = ["encoder.block.*", "decoder.block.*"]


@pytest.mark.parametrize("masked", [True, False])
def test_both_stacks_at_once(masked):
    """Every layer with the tokens of its own stack: the loss, and the monitor."""
    model, inputs = build(KINDS["T5, decoder"]).train(), words() | {"labels": words(9, 4)["labels"]}
    if not masked:
        del inputs["attention_mask"]
    masks = {"encoder": inputs.get("attention_mask", torch.ones(2, 12)) > 0, "decoder": inputs["labels"] != -100}
    seen: dict[str, Tensor] = {}
    layers = {n: m for n, m in model.named_modules() if re.fullmatch(r"(en|de)coder\.block\.\d+", n)}
    hooks = [
        m.register_forward_hook(lambda _m, _a, out, n=n: seen.update({n: out[0] if isinstance(out, tuple) else out}))
        for n, m in layers.items()
    ]
    loss = model(**inputs).loss
    for hook in hooks:
        hook.remove()
    terms = [losses.dispersion(z, masks[n.split(".")[0]], estimator="first_order") for n, z in seen.items()]
    assert len(terms) == 5
    total = loss + 0.5 * torch.stack(terms).mean()
    total.backward()
    expected = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    with dc.regularize(model, weight=0.5, modules=BOTH), dc.monitor(model, modules=BOTH) as watch:
        out = model(**inputs)
        torch.testing.assert_close(out.loss, total)
        out.loss.backward()
    for n, p in model.named_parameters():
        torch.testing.assert_close(p.grad, expected[n], rtol=1e-4, atol=1e-6, msg=n)
    (reading,) = watch.readings
    for n, value in zip(reading.layers, reading.table["mean_cosine"]):
        rows = zip(seen[n].detach().double().numpy(), masks[n.split(".")[0]].numpy())
        assert value == pytest.approx(np.mean([oracle.scalars(z[m])["mean_cosine"] for z, m in rows]), abs=2e-5)


def test_the_stacks_are_measured_one_after_the_other():
    model = build(KINDS["T5, decoder"])
    with pytest.raises(ValueError, match=r"layers of one stack of T5.*, got both"):
        measure(model, inputs=words(), modules=BOTH)
    sides = [measure(model, inputs=words(), stack=stack).layers for stack in ("encoder", "decoder")]
    assert sides == [2, 3]
    whisper = build(KINDS["Whisper, decoder"])
    with pytest.raises(ValueError, match=r"something to read, got input_features: add decoder_input_ids or labels"):
        measure(whisper, inputs=pictures(8, 20))
    assert measure(whisper, inputs=pictures(8, 20), stack="encoder").layers == 2


class Diffusion(nn.Module):
    """A diffusion transformer in the small: patches of a latent, blocks modulated by the time."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.time = nn.Conv2d(4, 16, 2, 2), nn.Linear(1, 32)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True) for _ in range(3))
        self.head = nn.Linear(16, 16)

    def forward(self, latent: Tensor, t: Tensor) -> Tensor:
        x = self.patches(latent).flatten(2).mT
        scale, shift = self.time(t[:, None]).chunk(2, dim=-1)
        for block in self.blocks:
            x = block(x * (1 + scale[:, None]) + shift[:, None])
        return self.head(x)


def test_a_module_of_no_library():
    model, latent, t = Diffusion().train(), pictures(4, 8, 8), torch.tensor([0.1, 0.9])
    with dc.regularize(model, modules="blocks.*", weight=0.1) as handle:
        model(latent, t).square().mean().add(handle.penalty()).backward()
        assert handle.reads == ["blocks.0", "blocks.1", "blocks.2"]
    c = measure(model, inputs={"latent": latent, "t": t}, modules="blocks.*")
    assert model.training
    assert [state.name for state in c.record.states] == handle.reads
    assert c.record.model.stack == "modules blocks.*"
    assert c.interval("spearman", states="blocks") == c.interval("spearman")
    for refused, words in {
        "head": "at least 2 layers",
        "patches": "at least 2",
        ("patches", "head"): "got .2, 16, 4, 4",
    }.items():
        with pytest.raises((ValueError, TypeError), match=words):
            measure(model, inputs={"latent": latent, "t": t}, modules=refused)
