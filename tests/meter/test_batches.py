"""`measure(model, inputs=…)`: batches of any kind, sequences of any length."""

from __future__ import annotations

import re
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from meter_oracle import cosine_matrix, pairs, scalars
from regularize.models import bert, gpt2, llama, tokens
from tiny_models import LENGTHS, build, padded
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import (
    DebertaV2Config,
    DebertaV2Model,
    RobertaConfig,
    RobertaModel,
    SwinConfig,
    SwinModel,
    ViTConfig,
    ViTModel,
)

import decondense as dc
from decondense.report.page import collect

measure = partial(dc.measure, bootstrap=20)


def test_sequences_of_different_lengths():
    """Each counts the same in every mean; a distance is a mean over those that have it; the histogram pools pairs."""
    model, batch = build("llama"), padded()
    c = measure(model, inputs=batch, spectral=True)
    z = model(**batch, output_hidden_states=True).hidden_states[2].detach().double().numpy()
    rows = [scalars(row[:n]) for row, n in zip(z, LENGTHS) if n > 1]
    state = c.record.states[2]
    for name in ("mean_cosine", "mean_cosine_without_first", "token_norm", "top3_variance_share"):
        assert getattr(state, name) == pytest.approx(np.mean([row[name] for row in rows]), abs=1e-5)
    far = [row["apart_2"] for row in rows if "apart_2" in row]  # 4–7 tokens apart
    assert len(far) == 3
    assert state.by_distance[2] == pytest.approx(np.mean(far), abs=1e-5)
    assert sum(c.record.histogram.counts[2]) == sum(n * (n - 1) // 2 for n in LENGTHS)
    assert np.isfinite(c.values("effective_rank")).all()
    assert [w["tokens"] for w in c.record.windows] == [n for n in LENGTHS if n > 1]
    assert c.record.text.source == "4 sequences of attention_mask, input_ids"
    assert "left out: 1 sequence with fewer than 2 tokens that count." in c.notes
    assert any(note.startswith("the sequences have 4 to 9 tokens") for note in c.notes)
    assert c.final_norm is True


def test_two_tokens_have_no_pair_without_the_first():
    """They counted as a cosine of 0 in the mean over sequences."""
    model, batch = build("llama"), padded()
    batch["attention_mask"][1, 2:] = 0
    z = model(**batch, output_hidden_states=True).hidden_states[1].detach().double().numpy()
    rows = [scalars(row[:n])["mean_cosine_without_first"] for row, n in zip(z, LENGTHS) if n > 4]
    found = measure(model, inputs=batch).values("mean_cosine_without_first")
    assert found[1] == pytest.approx(np.mean(rows), abs=1e-5)
    assert np.isnan(measure(model, inputs=batch["input_ids"][:, :2]).values("mean_cosine_without_first")).all()


def test_packed_rows_are_cut_into_documents_as_the_loss_and_the_monitor_cut_them():
    """No mask, and positions that restart; with a mask a row is a sequence."""
    model, ids = llama(), tokens(2, 12)
    batch = {"input_ids": ids, "position_ids": torch.cat([torch.arange(5), torch.arange(7)]).repeat(2, 1)}
    c = measure(model, inputs=batch)
    alone = {"use_cache": False}  # with a cache transformers lets documents attend to each other
    z = model(**batch, **alone, output_hidden_states=True).hidden_states[1].detach().double().numpy()
    rows = [scalars(part) for row in z for part in (row[:5], row[5:])]
    assert c.mean_cosine[1] == pytest.approx(np.mean([row["mean_cosine"] for row in rows]), abs=1e-6)
    assert np.array(c.record.per_window.mean_cosine)[:, 1] == pytest.approx([r["mean_cosine"] for r in rows], abs=1e-6)
    places = [(w["row"], w["start"], w["tokens"]) for w in c.record.windows]
    assert places == [(0, 0, 5), (0, 5, 7), (1, 0, 5), (1, 5, 7)]
    assert "packed rows are cut into documents where position ids restart: each is a sequence." in c.notes
    assert measure(model, inputs=batch, windows=3).record.windows_done == 3
    named = measure(model, inputs=batch, modules="model.layers.*")
    assert named.mean_cosine[0] == pytest.approx(c.mean_cosine[1], abs=1e-6)
    assert named.trend("mean_cosine", states="blocks") == pytest.approx(named.mean_cosine.mean()), (
        "none is an embedding"
    )
    late = measure(model, inputs=batch, mask=lambda batch: batch["position_ids"] > 0)
    assert [w["tokens"] for w in late.record.windows] == [4, 6, 4, 6]
    with dc.monitor(model, inputs=batch) as watch:
        assert watch.readings[0].table["mean_cosine"] == pytest.approx(c.mean_cosine, abs=1e-6)
    with dc.regularize(model.train(), eps=0.0) as handle:
        model(**batch, **alone, labels=ids)
        assert handle.last["mean_cosine"] == pytest.approx(c.mean_cosine[1:].tolist(), abs=1e-5)
    whole = measure(model, inputs=batch | {"attention_mask": torch.ones_like(ids)})
    assert [(w["row"], w["tokens"]) for w in whole.record.windows] == [(0, 12), (1, 12)]


class Fronted(nn.Module):
    """A token in front of the others, as [CLS] is, from block b on; block d reads half of them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embed = nn.Embedding(97, 8)
        self.a, self.b, self.c, self.d, self.e = (nn.Linear(8, 8) for _ in range(5))

    def forward(self, input_ids, position_ids=None):
        x = self.a(self.embed(input_ids))
        x = self.c(self.b(torch.cat([torch.ones_like(x[:, :1]), x], 1)))
        return self.e(self.d(x[:, ::2]))


def test_packed_rows_are_cut_only_where_their_positions_are_those_of_the_states():
    model, ids = Fronted().train(), tokens(4, 12)
    packed = torch.cat([torch.arange(5), torch.arange(7)]).repeat(4, 1)

    def loss(model, inputs, modules):
        with dc.regularize(model, modules=modules) as handle:
            model(**inputs)
            handle.penalty()

    def watch(model, inputs, modules):
        with dc.monitor(model, inputs=inputs, modules=modules) as found:
            assert found.readings

    for call in (measure, loss, watch):
        for layers, positions, shape in (
            (["b", "c"], packed, (4, 13)),
            (["d", "e"], packed, (4, 7)),
            (["embed", "a"], packed[:2], (4, 12)),
        ):
            words = (
                "position_ids that restart, as in packed rows, must have the rows and tokens of the states, "
                f"{shape}, or one row for all, got {tuple(positions.shape)}: name layers that return a state for every "
                "position, or leave position_ids out."
            )
            with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
                call(model, inputs={"input_ids": ids, "position_ids": positions}, modules=layers)
        call(model, inputs={"input_ids": ids, "position_ids": packed[:1]}, modules=["embed", "a"])
        call(model, inputs={"input_ids": ids, "position_ids": torch.arange(12)[None]}, modules=["b", "c"])  # not packed


def test_a_model_that_has_collapsed_has_no_trend():
    """Every token is the same, so that layers differ by rounding alone."""
    model = build("llama")
    with torch.no_grad():
        model.get_input_embeddings().weight[:] = model.get_input_embeddings().weight[0].clone()
    c = measure(model, inputs=torch.randint(3, 97, (12, 300), generator=torch.Generator().manual_seed(0)))
    assert c.mean_cosine == pytest.approx(1, abs=1e-5)
    assert len(set(c.mean_cosine)) > 2
    assert c.verdict == "constant over depth: Spearman undefined, mean cosine of the blocks 1.00 [1.00, 1.00]"


def test_the_spread_of_cosines_that_are_nearly_1_is_no_rounding():
    """From Σc² it was: 0, or 5e-4, in place of 1e-5."""
    model, ids = build("llama"), torch.randint(3, 97, (5, 30), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        table = model.get_input_embeddings().weight
        table[:] = table[0] + 0.01 * table[0].norm() / table.shape[1] ** 0.5 * torch.randn(table.shape)
    states = [z.detach().double().numpy() for z in model(ids, output_hidden_states=True).hidden_states]
    wanted = [np.concatenate([pairs(cosine_matrix(row)) for row in z]).std() for z in states]
    assert max(wanted) < 2e-4
    assert measure(model, inputs=ids).std == pytest.approx(wanted, rel=0.02, abs=2e-7)


def test_the_same_sequences_in_any_wrapping_and_the_first_so_many():
    model, ids = build("gpt2"), torch.randint(3, 97, (6, 8))
    whole = measure(model, inputs=ids)
    loader = DataLoader(TensorDataset(ids, torch.zeros(6)), batch_size=4)
    for other in (
        loader,
        [ids[:4], ids[4:]],
        [one.repeat_interleave(2, dim=1)[:, ::2] for one in ids.split(1)],  # every second number of another tensor
        iter([{"input_ids": ids[:4]}, {"input_ids": ids[4:], "labels": ids[4:]}]),
    ):
        c = measure((model, None), inputs=other)
        assert c.mean_cosine == pytest.approx(whole.mean_cosine, abs=1e-6)
        assert c.record.windows_done == 6
    assert whole.record.windows_done == 6
    for inputs in (ids, loader, [ids[:5]]):
        c = measure(model, inputs=inputs, windows=5)
        each = whole.record.per_window.mean_cosine[:5]
        assert np.array(c.record.per_window.mean_cosine) == pytest.approx(np.array(each), abs=1e-6)
        more = "these are the first 5 sequences of the inputs: windows=… says how many."
        assert (more in c.notes) is not isinstance(inputs, list)


@pytest.mark.parametrize("look", [dc.monitor, measure])
def test_what_may_be_a_mask_or_targets_is_refused_and_not_guessed(look):
    """In a list they were measured as sequences; a loader's mask was left out, so that padding counted."""
    model, text, padding = llama(), tokens(4, 10), padded()["attention_mask"][:4]
    ids = text[:, 1:]
    remedy = "give a mapping of the model's arguments, {'input_ids': …, 'attention_mask': …}, or the inputs alone."
    several = "inputs must be one batch or several that are alike, got a"
    doubt = "which may be one batch with its targets or its mask"
    for second in (padding, padding.bool(), padding.float(), torch.zeros(4), torch.zeros(4, 2), ids.clone()):
        for pair in ([ids, second], (ids, second)):
            words = f"{several} {type(pair).__name__} of (4, 9), {tuple(second.shape)}, {doubt}: {remedy}"
            with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
                look(model, inputs=pair)
    same = ids.clone()
    for pair in (
        [text[:, :-1], ids],
        [{"input_ids": ids}, torch.zeros(4)],
        [ids, ids.flip(1), padding],
        [ids, same, padding],
        [text[:, :-1], same, text[:, :-1]],
    ):
        with pytest.raises(ValueError, match=re.escape(doubt)):
            look(model, inputs=pair)
    for more in ([padding], [padding.bool()], [padding.float(), torch.zeros(4)]):
        words = r"^a batch must be inputs, .* got a list of \(2, 9\), \(2, 9\).*, of which one may be a mask: "
        with pytest.raises(ValueError, match=words + re.escape(remedy)):
            look(model, inputs=DataLoader(TensorDataset(ids, *more), batch_size=2))
    loader = DataLoader(TensorDataset(text[:, :-1], ids))
    several_batches = [ids, ids.flip(1), ids], [text[:, :-1], ids, ids.flip(1)], [ids, same, ids[:2]]
    for fine in (ids.split(2), [ids, ids.flip(1)], loader, [(ids, torch.ones(4))], *several_batches):
        look(model, inputs=fine)


@pytest.mark.parametrize("look", [dc.monitor, measure])
def test_a_mask_of_another_name_is_told(look):
    """A model that takes any keyword passes over it too."""
    model, ids, mask = llama(), padded()["input_ids"] % 64, padded()["attention_mask"]
    for name, kind in (("mask", mask), ("padding_mask", mask.bool()), ("attn_mask", mask.float())):
        words = f"padding is read from attention_mask (1: a token), got {name}, which is not read, so that every token"
        with pytest.warns(UserWarning, match=f"^{re.escape(words)} .* call it attention_mask in the batch"):
            look(model, inputs={"input_ids": ids, name: kind})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        look(model, inputs={"input_ids": ids, "mask": mask, "attention_mask": mask})
        if look is measure:
            c = measure(model, inputs={"input_ids": ids, "mask": mask}, mask=lambda batch: batch["mask"])
            assert [w["tokens"] for w in c.record.windows] == [n for n in LENGTHS if n > 1]


@pytest.mark.usefixtures("unpainted")
def test_inputs_have_a_fingerprint_and_the_result_is_one_like_any_other(tmp_path):
    config = ViTConfig(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32, image_size=8,
                       patch_size=2)  # fmt: skip
    model, pixels = ViTModel(config).train(), torch.randn(12, 3, 8, 8)
    c = measure(model, inputs=pixels, label="tiny")
    assert model.training
    assert dc.load(c.save(tmp_path)).to_json() == c.to_json() == measure(model, inputs=pixels, label="tiny").to_json()
    assert c.plot(tmp_path).is_file()
    assert all(value.untyped_storage().resizable() for value in (pixels, *model.parameters())), "FSDP frees storages"
    assert c.record.settings | {"windows": 12, "tokens": 17, "inputs": ["pixel_values"]} == c.record.settings
    assert "tiny" in repr(c)
    pixels[3, 0, 0, 0] += 1
    other = measure(model, inputs=pixels, label="tiny")
    assert other.record.text.sha256 != c.record.text.sha256
    assert "a difference may come from the texts" in dc.compare([c, other]).notes[0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"inputs": 3}, "inputs must be a tensor of .*, a mapping .*, or batches of them, got int"),
        ({"inputs": []}, "at least one batch, got none"),
        ({"inputs": ["a text"]}, "or batches of them, got str"),
        ({"inputs": {"use_cache": False}}, r"a batch must hold tensors \(sequences, …\), got use_cache"),
        ({"inputs": torch.ones(2, 1, dtype=torch.long)}, "at least 2 tokens that count, got none among 2"),
        ({"inputs": torch.ones(2, 4, dtype=torch.long), "text": "imdb"}, "^text has no meaning beside inputs"),
        ({"inputs": torch.ones(2, 4, dtype=torch.long), "windows": 0}, "windows must be an integer of at least 1"),
        ({"inputs": torch.ones(2, 4, dtype=torch.long), "released": True}, "^released has no meaning beside"),
        ({"inputs": torch.ones(2, 4, dtype=torch.long), "tokens": 3}, "^tokens has no meaning beside inputs"),
        ({"inputs": torch.ones(2, 4, dtype=torch.long), "column": "text"}, "^column has no meaning beside inputs"),
        ({"inputs": torch.ones(2, 4, dtype=torch.long), "mask": lambda batch: torch.ones(2, 3)}, "a mask of .2, 3."),
        ({"inputs": torch.tensor([[1, 2, 500]])}, r"from 0 to \d+, the vocabulary of Llama\w+, got 500: take"),
        ({"inputs": [torch.tensor([[1, 2, 3]]), torch.tensor([[1, -100, 3]])]}, "token ids must be .*, got -100: take"),
        ({"inputs": torch.ones(2, 4)}, "token ids must be whole numbers .*, got torch.float32"),
        ({"inputs": torch.ones(2, 4, dtype=torch.long), "modules": 3}, "modules must be a name .*, got 3: give names"),
        ({"inputs": torch.ones(2, 4, dtype=torch.long), "modules": ["layers.0", 3]}, r"got \['layers.0', 3\]: give"),
        ({"modules": "layers.*"}, "modules and mask need inputs"),
        ({"inputs": torch.ones(2, 4, dtype=torch.long), "mask": torch.ones(2, 4)}, r"^mask must .* got \(2, 4\): a"),
        ({"inputs": torch.ones(2, 4, dtype=torch.long), "mask": lambda batch: None}, "must return .* got NoneType"),
        *(
            ({"inputs": torch.ones(2, 4, dtype=torch.long), key: value}, f"^{key} is for .* got {value!r} .* memory: ")
            for key, value in {
                "dtype": "float3", "init": True, "revision": "main", "device": "cpu", "trust_remote_code": True,
            }.items()
        ),
        *(
            ({"inputs": torch.ones(2, 4, dtype=torch.long), key: "no"}, f"^{key} must be True or False, got 'no': give")
            for key in ("spectral", "released", "init", "trust_remote_code", "resume")
        ),
    ],
)  # fmt: skip
def test_refused(options, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        measure(build("llama"), **options)


def test_numbers_of_numpy_are_numbers_also_in_the_file():
    model, ids = build("llama"), tokens(3)
    plain = {"windows": 2, "seed": 3, "last": 2, "bootstrap": 20}
    numpys = {name: np.int64(value) for name, value in plain.items()}
    assert dc.measure(model, inputs=ids, **numpys).to_json() == dc.measure(model, inputs=ids, **plain).to_json()


def test_an_output_head_of_its_own_is_not_loaded_and_not_counted(tmp_path):
    """docs/measuring.md says so, and the page; of a model in memory all is counted."""
    model = llama()
    model.save_pretrained(tmp_path / "llama")
    whole = sum(p.numel() for p in model.parameters())
    for given, expected, said in (
        (tmp_path / "llama", whole - model.lm_head.weight.numel(), " (an output head of its own not counted)"),
        (model, whole, ""),
    ):
        c = measure(given, inputs=tokens())
        assert c.record.model.parameters == expected
        c.save(tmp_path / "c" / "result.json")
        (section,) = collect([tmp_path / "c"]).sections
        assert dict(section.origins[0].facts)["model"].startswith(f"{expected:,} parameters{said}, 3 layers")
        dc.compare([c, c]).save(tmp_path / "both")
        (section,) = collect([tmp_path / "both"]).sections
        assert "own output head only of models in memory" in section.tables[0].note


@pytest.mark.parametrize("look", [dc.monitor, dc.measure])
def test_a_module_without_parameters_is_refused(look):
    model = nn.Sequential(nn.Tanh(), nn.Tanh())
    with pytest.raises(
        ValueError, match=r"^Sequential must have parameters, .* got none: give the model that holds it\."
    ):
        look(model, inputs=torch.randn(2, 4, 8), modules="*")


@pytest.mark.parametrize("look", [dc.monitor, dc.measure])
def test_inputs_that_a_model_cannot_read_are_refused_before_the_first_pass(look):
    for model, told in ((gpt2(), "GPT2LMHeadModel"), (llama(), "LlamaForCausalLM"), (bert(), "BertForMaskedLM")):
        with pytest.raises(ValueError, match=f"^token ids must be whole numbers from 0 to 63, .* {told}, got 64: take"):
            look(model, inputs=[tokens(2), torch.full((2, 8), 64)])
    for flat in (tokens(1)[0], {"input_ids": tokens(1)[0]}, [tokens(2), tokens(1)[0]]):
        with pytest.raises(ValueError, match=r"^inputs must be \(batch, tokens\), got \(\d+,\): give ids\[None\]\.$"):
            look(gpt2(), inputs=flat)
    for model, most in ((gpt2(), 64), (bert(), 512)):
        sentence = f"^inputs must have at most {most} tokens, the positions of {type(model).__name__}, got {most + 1}: "
        long = torch.randint(64, (2, most + 1))
        with pytest.raises(ValueError, match=sentence):
            look(model, inputs=[tokens(2), long])
    packed = {"input_ids": tokens(2, 80), "position_ids": torch.arange(80).expand(2, -1) % 40}
    look(gpt2(), inputs=packed)
    with pytest.raises(ValueError, match=r"at most 64 tokens, .*, got 65: "):
        look(gpt2(), inputs=packed | {"position_ids": torch.arange(80).expand(2, -1).clamp_max(64)})
    sizes = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes["intermediate_size"] = 16
    roberta = RobertaModel(RobertaConfig(**sizes, max_position_embeddings=34, pad_token_id=1)).eval()
    look(roberta, inputs=torch.randint(2, 64, (2, 32)))
    with pytest.raises(ValueError, match="at most 32 tokens, the positions of RobertaModel, got 33: "):
        look(roberta, inputs=torch.randint(2, 64, (2, 33)))  # its positions begin after the padding
    relative = {"relative_attention": True, "position_buckets": 8, "position_biased_input": False}
    deberta = DebertaV2Model(DebertaV2Config(**sizes, **relative, max_position_embeddings=16, type_vocab_size=0)).eval()
    look(deberta, inputs=torch.randint(2, 64, (2, 24)))
    rotary = llama()
    rotary.config.max_position_embeddings = 16
    look(rotary, inputs=tokens(2, 20))  # it has no table of them, and reads more


class Stretch(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.tensor(by))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


def test_blocks_that_change_no_direction_have_no_trend():
    """Few directions in few dimensions: thousands of tokens round alike, and the means of the blocks differ by 2e-6."""
    torch.manual_seed(4)
    directions = (torch.randn(2, 64) + 1)[torch.arange(50) % 2]
    blocks = [Stretch(float(by)) for by in torch.rand(8) + 0.7]
    model = nn.Sequential(nn.Embedding.from_pretrained(directions, freeze=False), *blocks)
    c = measure(model, inputs={"input": torch.randint(0, 50, (8, 512))}, modules=[str(i) for i in range(1, 9)])
    assert c.verdict.startswith("constant over depth: Spearman undefined")


@pytest.mark.parametrize("kind", ["PrefixTuningConfig", "PromptTuningConfig"])
def test_an_adapter_in_front_of_the_model_is_not_left_out(kind):
    """Prefix and prompt tuning are no part of the model inside: it is not measured alone, and its layers are."""
    peft = pytest.importorskip("peft")
    config = getattr(peft, kind)(task_type="CAUSAL_LM", num_virtual_tokens=5)
    model, batch = peft.get_peft_model(llama(), config).eval(), {"input_ids": tokens(2, 12)}
    nn.init.normal_(model.prompt_encoder["default"].embedding.weight, std=2)
    for attempt in (measure, dc.monitor):
        with pytest.raises(
            ValueError, match=r"_TUNING, which acts in front of them: .*modules='base_model.model.layers"
        ):
            attempt(model, inputs=batch)
    c = measure(model, inputs=batch, modules="base_model.model.layers.*")
    z = model(**batch, output_hidden_states=True).hidden_states[1].detach().double().numpy()
    assert c.mean_cosine[0] == pytest.approx(np.mean([scalars(row)["mean_cosine"] for row in z]), abs=1e-5)
    assert model(**batch).logits.shape[1] == (12 if "Prefix" in kind else 17)


@pytest.mark.parametrize("kind", ["swin", "vit", "llama"])
def test_the_note_on_the_final_norm_is_true_of_what_the_model_returns(kind):
    """hidden_states[-1] is before the norm in Swin and ViT and after it in a Llama; last_hidden_state is after it."""
    models = {
        "swin": SwinModel(
            SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4)
        ),
        "vit": ViTModel(
            ViTConfig(image_size=16, patch_size=2, hidden_size=8, num_attention_heads=2, num_hidden_layers=2)
        ),
        "llama": build("llama"),
    }
    model = models[kind]
    batch = {"input_ids": tokens(2, 12)} if kind == "llama" else {"pixel_values": torch.randn(2, 3, 16, 16)}
    c = measure(model, inputs=batch)
    last = model.eval().base_model(**batch).last_hidden_state.detach().double().numpy()
    cosine = np.mean([scalars(row)["mean_cosine"] for row in last])
    assert c.mean_cosine[-1] == pytest.approx(cosine, abs=1e-5)
    layers = len(c.mean_cosine) - 1
    assert f"state {layers} is last_hidden_state, after the final norm; the others are before it." in c.notes
