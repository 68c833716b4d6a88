from __future__ import annotations

import numpy as np
import pytest
import torch
from meter_oracle import scalars
from tiny_models import LLAMA, build
from transformers import LlamaConfig, LlamaModel, ViTConfig, ViTModel

from decondense.meter import states
from decondense.meter.run import measure
from decondense.meter.states import StateReader


def collect(reader, ids):
    seen = {}

    def visit(number, z):
        assert number not in seen
        seen[number] = z.clone()

    reader.read(ids, visit)
    return seen


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_states_are_those_the_model_returns(name):
    """BERT, an encoder, has no final norm: its last state is there twice. Others: regularize/test_kinds.py."""
    model = build(name)
    ids = torch.randint(3, 97, (2, 11))
    reader = StateReader(model)
    assert reader.hooked
    assert reader.final_norm is (name != "bert")
    seen = collect(reader, ids)
    with torch.inference_mode():
        wanted = model(input_ids=ids, output_hidden_states=True).hidden_states
    assert len(wanted) == reader.layers + 1 == 4
    for number, z in enumerate(wanted):
        assert torch.equal(seen[number], z), number
    assert torch.equal(seen[reader.layers], seen[reader.layers + 1]) is (name == "bert")


@pytest.mark.parametrize(("stack", "layers"), [("decoder", 3), ("encoder", 2)])
def test_both_stacks_of_an_encoder_decoder(stack, layers):
    model = build("t5")
    ids = torch.randint(3, 97, (2, 9))
    reader = StateReader(model, stack=stack)
    assert reader.hooked
    assert reader.layers == layers
    seen = collect(reader, ids)
    start = getattr(model.config, "decoder_start_token_id", None)
    shifted = torch.cat([torch.full((2, 1), 0 if start is None else start), ids[:, :-1]], 1)
    with torch.inference_mode():
        out = model(input_ids=ids, decoder_input_ids=shifted, output_hidden_states=True)
    for number, z in enumerate(getattr(out, f"{stack}_hidden_states")):
        assert torch.allclose(seen[number], z, atol=1e-6), number


@pytest.mark.parametrize("chosen", [[], [1, 0, 2]], ids=["none", "in a wrong order"])
def test_a_model_the_hooks_do_not_fit_is_read_through_its_outputs(monkeypatch, chosen):
    model = build("llama")
    monkeypatch.setattr(states, "repeated_blocks", lambda stack: [model.layers[i] for i in chosen])
    reader = StateReader(model)
    assert not reader.hooked
    assert reader.final_norm is None
    assert sorted(collect(reader, torch.randint(3, 97, (1, 5)))) == [0, 1, 2, 3]


def test_the_model_is_left_without_hooks_even_after_an_error():
    model = build("gpt2")
    reader = StateReader(model)

    def hooks():  # transformers leaves hooks of its own
        return [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]

    before = hooks()

    def fail(number, z):
        assert hooks() != before
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        reader.read(torch.randint(3, 97, (1, 5)), fail)
    assert hooks() == before


def test_errors():
    with pytest.raises(ValueError, match="stack must be one of 'decoder', 'encoder'"):
        StateReader(build("llama"), stack="middle")
    for name, told in (("llama", "LlamaModel"), ("bert", "BertModel")):
        with pytest.raises(
            ValueError, match=rf"^stack 'encoder' needs an encoder–decoder, but {told} has one stack: leave it out"
        ):
            StateReader(build(name), stack="encoder")
    with pytest.raises(TypeError, match=r"Linear is no transformers model: measure it with inputs=…"):
        StateReader(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"that can return hidden states, got Linear: .* name the layers .* modules="):
        measure(torch.nn.Linear(2, 2), inputs=torch.ones(1, 3, 2))
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    with pytest.raises(TypeError, match="ViTModel does not read token ids: measure it with inputs=…"):
        StateReader(ViTModel(ViTConfig(image_size=8, patch_size=4, **small)))
    model = build("llama")
    model.config.return_dict = True
    model.forward = lambda input_ids, **options: type("Bare", (), {"logits": input_ids})()
    with pytest.raises(ValueError, match=r"LlamaModel does not: measure it with inputs=…, .* with modules=\[…\]\.$"):
        StateReader(model)


@pytest.mark.parametrize("read", ["labels", "decoder_input_ids"])
@pytest.mark.parametrize("modules", [None, "decoder.block.*"])
def test_labels_say_which_of_the_decoders_tokens_count(read, modules):
    """As in training: a token without a label does not count, and is attended to."""
    model, g = build("t5").train(), torch.Generator().manual_seed(0)
    ids, labels, targets = (torch.randint(3, 97, (3, 9), generator=g) for _ in range(3))
    labels[:, :4] = labels[1, 7:] = -100
    batch = {"input_ids": ids, "labels": labels} | ({} if read == "labels" else {read: targets})
    decoded = targets if read != "labels" else torch.cat([torch.zeros(3, 1, dtype=int), labels[:, :-1]], 1).clamp_min(0)
    out = model.eval()(input_ids=ids, decoder_input_ids=decoded, output_hidden_states=True)
    c = measure(model, inputs=batch, modules=modules, bootstrap=20)
    assert [window["tokens"] for window in c.record.windows] == [5, 3, 5]
    rows = [z[labels[i] != -100].double().detach().numpy() for i, z in enumerate(out.decoder_hidden_states[1])]
    expected = np.mean([scalars(row)["mean_cosine"] for row in rows])
    assert c.mean_cosine[1 if modules is None else 0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("vocabulary", [2, 5, 6])
def test_a_vocabulary_of_few_tokens(vocabulary):
    model = LlamaModel(LlamaConfig(**LLAMA | {"vocab_size": vocabulary}, bos_token_id=None, eos_token_id=None)).eval()
    assert StateReader(model).states == 5
