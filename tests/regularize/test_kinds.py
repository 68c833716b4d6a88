"""Kinds of model: small random weights of the real classes of transformers, the loss and the meter on each.

The oracle of both is the same: the hidden states that a plain call of the model returns, or the outputs of the named
layers, read by hooks of the test's own.
"""

from __future__ import annotations

import itertools
import re
from functools import partial

import numpy as np
import pytest
import torch
from meter import meter_oracle as oracle
from torch import Tensor

import decondense as dc
from decondense import losses
from regularize.kinds import (
    BART,
    HEADS,
    IMAGE_TOKEN,
    KINDS,
    PAIR,
    Diffusion,
    Kind,
    build,
    kept,
    pictures,
    plain_states,
    translated,
    words,
)
from regularize.models import attachment

measure = partial(dc.measure, bootstrap=20)


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
    for refused, sentence in {
        "head": "at least 2 layers",
        "patches": "at least 2",
        ("patches", "head"): "got .2, 16, 4, 4",
    }.items():
        with pytest.raises((ValueError, TypeError), match=sentence):
            measure(model, inputs={"latent": latent, "t": t}, modules=refused)
