from __future__ import annotations

import copy
import json
import re
import shutil
import warnings
from pathlib import Path

import meter_oracle as oracle
import numpy as np
import pytest
import torch
from scipy import stats
from tiny_models import SMALL, build

from decondense.meter.result import BINS, load
from decondense.meter.run import measure
from decondense.records import Damaged


def test_every_number_of_the_result_agrees_with_brute_force(whole, real_states):
    for state, clouds in real_states.items():
        entry = whole.record.states[state].row()
        scalars = [oracle.scalars(z) for z in clouds]
        spectral = [oracle.spectral(z) for z in clouds]
        for name in ("mean_cosine", "mean_cosine_all", "mean_direction_norm", "token_norm", "top3_variance_share"):
            assert entry[name] == pytest.approx(np.mean([s[name] for s in scalars]), rel=2e-6, abs=2e-6), name
        for name in spectral[0]:
            assert entry[name] == pytest.approx(np.mean([s[name] for s in spectral]), rel=1e-6), name
        pooled = np.concatenate([oracle.pairs(oracle.cosine_matrix(z)) for z in clouds])
        assert entry["std"] == pytest.approx(pooled.std(), abs=2e-6)
        levels = [0.05, 0.25, 0.5, 0.75, 0.95]
        assert np.abs(np.array(whole.record.states[state].quantiles) - np.quantile(pooled, levels)).max() < 2 / 1024
        counts = np.array(whole.record.histogram.counts[state])
        assert counts.sum() == len(pooled)
        assert np.abs(np.cumsum(counts - oracle.bin_counts(pooled, BINS))).max() <= 3  # cosines on an edge
        by_distance = whole.record.states[state].by_distance
        distances = [np.mean([s[f"apart_{k}"] for s in scalars]) for k in range(len(by_distance))]
        assert by_distance == pytest.approx(distances, abs=2e-6)


def test_released_view_bins_the_averaged_matrices(whole, real_states):
    for state, clouds in real_states.items():
        averaged = np.mean([oracle.cosine_matrix(z) for z in clouds], axis=0)
        counts = np.array(whole.record.released_histogram.counts[state])
        assert counts.sum() == averaged.size  # all N² entries, the diagonal too
        assert np.abs(np.cumsum(counts - oracle.bin_counts(averaged.ravel(), BINS))).max() <= 4
    # averaging first narrows the histogram: that is why the pooled one is the default
    off_diagonal = [np.array(c) for c in whole.record.released_histogram.counts]
    for counts, pooled in zip(off_diagonal, whole.record.histogram.counts):
        counts[-1] -= SMALL["tokens"]
        assert _spread(counts) < _spread(np.array(pooled))


def _spread(counts):
    middles = (np.arange(BINS) + 0.5) / (BINS / 2) - 1
    mean = np.average(middles, weights=counts)
    return np.sqrt(np.average((middles - mean) ** 2, weights=counts))


def test_identities(whole):
    """Densities integrate to one, and the mean with the diagonal follows from the one without."""
    n = SMALL["tokens"]
    assert whole.histogram.shape == (6, BINS)
    assert (whole.histogram.sum(1) * 2 / BINS).tolist() == pytest.approx([1.0] * 6)
    assert whole.mean_cosine_all == pytest.approx(1 / n + (1 - 1 / n) * whole.mean_cosine, abs=1e-9)


def test_trends_with_and_without_embedding_and_norm(whole):
    from scipy.stats import spearmanr

    assert whole.spearman == pytest.approx(spearmanr(range(6), whole.mean_cosine_all).statistic)
    assert whole.trend("spearman", states="blocks") == pytest.approx(
        spearmanr(range(5), whole.mean_cosine[1:]).statistic
    )
    before = [*whole.mean_cosine[:5], whole.before_norm.mean_cosine]
    assert whole.trend("slope", states="all_before_norm") == pytest.approx(np.polyfit(np.arange(6) / 5, before, 1)[0])
    low, high = whole.interval("spearman")
    assert low <= whole.spearman <= high


def test_where_every_window_came_from(whole, prose, stories):
    _, tokenizer = stories
    assert len(whole.record.windows) == 5
    for origin in whole.record.windows:
        passage = prose[0][origin["start"] : origin["end"]]
        assert len(tokenizer(passage).input_ids) == pytest.approx(40, abs=2)


def test_saving_and_loading(whole, tmp_path):
    path = whole.save(tmp_path / "c.json")
    again = load(path)
    assert again.to_json() == whole.to_json() == path.read_text()
    assert again.mean_cosine.tolist() == whole.mean_cosine.tolist()
    assert "condensing" in repr(again)
    whole.save(tmp_path)
    assert load(tmp_path).to_json() == whole.to_json()
    with pytest.raises(ValueError, match=r"must be one of .*: was --spectral left out\?$"):
        again.values("nonsense")
    with pytest.raises(ValueError, match=r"must be one of .*: did you mean 'mean_cosine'\?$"):
        again.values("mean_cosin")
    with pytest.raises(ValueError, match=r"must be one of .*: did you mean 'token_norm'\?$"):
        again.values("norm")
    with pytest.raises(
        ValueError, match=r"name must be one of 'spearman', .*, got 'sperman': did you mean 'spearman'\?$"
    ):
        again.interval("sperman")
    with pytest.raises(ValueError, match=r"states must be one of 'all', .*, got 'block': did you mean 'blocks'\?$"):
        again.interval("spearman", states="block")
    assert again.plot(tmp_path / "deep" / "figures") == tmp_path / "deep" / "figures" / "heatmap.png"
    assert again.save(tmp_path / "new" / "c.json").exists()
    old = path.read_text().replace("condensation/2", "condensation/1")
    path.write_text(old)
    assert load(path).mean_cosine.tolist() == whole.mean_cosine.tolist()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda r: r.clear(), "names no schema"),
        (lambda r: r.update(schema="other"), "has the schema 'other'"),
        (lambda r: r["histogram"]["counts"][0].__setitem__(3, None), "histogram.counts.0.3"),
        (lambda r: r["states"][1].update(std=float("nan")), "a number must be finite, or null .*, got NaN; delete it"),
        (lambda r: r["settings"].update(x=float("inf")), "a number must be finite, or null .*, got Infinity"),
        (lambda r: r["histogram"]["counts"][1].pop(), "histogram: .*every row of counts must have 128 bins"),
        (lambda r: r["states"][2].pop("mean_cosine"), "states.2.mean_cosine: field required"),
        (lambda r: r["model"].update(layers=90), "90 layers have 91 states"),
        (lambda r: r.update(more=1), "more: extra inputs"),
        (lambda r: r["states"].pop(2), "states must be in order, none left out, and as many in counts"),
        (lambda r: r["states"].pop(), "states must be in order, none left out, and as many in counts"),
        (lambda r: r["histogram"]["counts"].pop(), "states must be in order, none left out, and as many in counts"),
        (lambda r: r["windows"].pop(), "windows_done is 5, but windows has 4"),
        (lambda r: r["per_window"]["mean_cosine"].pop(), r"windows_done is 5, but per_window\.mean_cosine has 4"),
        (lambda r: r["per_window"]["mean_cosine"][3].__setitem__(1, 1.5), "between -1 and 1, got 1.5"),
        (lambda r: r["states"][1].update(mean_cosine=-7.0), "between -1 and 1, got -7"),
        (lambda r: r["states"][1].update(mean_cosine=float("-inf")), "a number must be finite, or null .*, got -Inf"),
    ],
)
def test_a_file_that_does_not_fit_is_named_with_the_field(whole, tmp_path, change, field):
    content = json.loads(whole.to_json())
    change(content)
    (tmp_path / "result.json").write_text(json.dumps(content))
    with pytest.raises(Damaged, match=rf"{tmp_path.name}/result\.json .*{field}"):
        load(tmp_path)
    with pytest.raises(TypeError, match="path must be that of a result, got 3: give"):
        load(3)
    with pytest.raises(FileNotFoundError, match="no result at"):
        load(tmp_path / "none.json")


def test_a_number_that_python_reads_as_infinity_is_damage(whole, tmp_path):
    (tmp_path / "result.json").write_text(whole.to_json().replace('"std": ', '"std": -1e400, "more": '))
    with pytest.raises(Damaged, match="a number must be finite, or null where it is undefined, got -1e400; delete it"):
        load(tmp_path)


def test_a_fresh_model_of_the_same_architecture(shared, prose, whole):
    fresh, again = (measure(shared / "models" / "stories260K", text=prose, init=True, **SMALL) for _ in range(2))
    assert fresh.record.model.init
    assert "freshly initialised" in fresh.label
    assert fresh.to_json() == again.to_json()
    assert fresh.mean_cosine[0] < whole.mean_cosine[0]


@pytest.mark.parametrize(
    ("name", "stack", "states"),
    [("gpt2", "decoder", 4), ("bert", "decoder", 4), ("t5", "encoder", 3), ("t5", "decoder", 4)],
)
def test_encoders_and_encoder_decoders(name, stack, states, stories, prose):
    model = build(name)
    model.resize_token_embeddings(512)
    result = measure((model, stories[1]), text=prose, stack=stack, **SMALL)
    assert result.record.final_norm is (name != "bert")
    assert len(result.mean_cosine) == states
    assert np.isfinite(result.mean_cosine).all()
    if name == "bert":
        assert result.before_norm.mean_cosine == result.mean_cosine[-1]


def test_training_mode_and_gradients_are_left_alone(stories, prose):
    model, _ = stories
    model.train()
    measure(stories, text=prose, **SMALL)
    assert model.training
    model.eval()
    assert all(p.grad is None for p in model.parameters())


def test_how_a_text_was_read_is_in_the_record(stories, prose, tmp_path):
    (tmp_path / "latin.txt").write_bytes(("Grüße. " + prose[0][:20_000]).encode("cp1252", "replace"))
    rows = [{"text": None}, {"text": prose[0][:20_000]}]
    (tmp_path / "holes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name, note in (
        ("latin.txt", "latin.txt is not UTF-8: read as Latin-1 (Windows-1252)."),
        ("holes.jsonl", "1 of 2 rows of holes.jsonl has no text and was left out."),
    ):
        with warnings.catch_warnings(action="error"):
            assert note in measure(stories, text=tmp_path / name, **SMALL).record.notes


def test_windows_cross_documents_and_say_where_in_the_joined_text_they_lie(stories, prose):
    """As docs/measuring.md has it: the document it begins in, and characters of all documents together."""
    documents = ["".join(prose[0][i : i + 20].split()) for i in range(0, 6_000, 20)]
    joined = "\n\n".join(documents)
    for window in measure(stories, text=documents, **SMALL).record.windows:
        first, after = (sum(len(d) + 2 for d in documents[: window["document"] + k]) for k in (0, 1))
        assert first <= window["start"] < after
        assert "\n\n" in joined[window["start"] : window["end"]], "a window of these crosses documents"


def test_the_level_has_an_interval_from_the_windows(whole):
    """Of the blocks by hand, as the trends are resampled; of every curve that has trends."""
    settings, blocks = whole.record.settings, whole.per_window[:, 1:].mean(1)
    chosen = np.random.default_rng(settings["seed"])
    weights = chosen.multinomial(len(blocks), [1 / len(blocks)] * len(blocks), size=settings["bootstrap"])
    tail = stats.norm.cdf(-np.sqrt(5 / 4) * stats.t.ppf(0.975, 4))
    ends = np.quantile([np.repeat(blocks, row).mean() for row in weights], [tail, 1 - tail])
    assert whole.interval("mean_cosine", states="blocks") == pytest.approx(ends)
    assert whole.trend("mean_cosine", states="blocks") == pytest.approx(whole.mean_cosine[1:].mean())
    assert whole.trend("mean_cosine") == pytest.approx(whole.mean_cosine.mean())
    low, high = ends
    assert f"mean cosine of the blocks {blocks.mean():.2f} [{low:.2f}, {high:.2f}]" in whole.verdict
    for states in whole.record.trend:
        low, high = whole.interval("mean_cosine", states=states)
        assert low < whole.trend("mean_cosine", states=states) < high
    with pytest.raises(ValueError, match="did you mean 'mean_cosine'"):
        whole.interval("mean_cosin")


def test_a_record_of_older_words_reads_as_one_of_today():
    """Of Gemma 3 270M the embedding has a mean cosine of 0.24 and the blocks 0.87: not called dispersing."""
    found = load(Path(__file__).parents[2] / "results" / "gemma-3-270m-wikitext2")
    found.record.verdict = "dispersing: Spearman −0.04 [−0.07, −0.04]"
    assert found.verdict.startswith("no clear trend: Spearman −0.04 [−0.07, −0.04], mean cosine of the blocks 0.87 [")
    assert found.verdict in repr(found)


def test_too_little_is_said(stories, prose):
    notes = measure(stories, text=prose, **(SMALL | {"windows": 2, "tokens": 2})).notes
    assert "an interval from 2 windows is too narrow: measure at least 10." in notes
    assert "a window of 2 tokens has only 1 pair: take longer windows." in notes
    assert not any("narrow" in n for n in measure(stories, text=prose, **(SMALL | {"windows": 10})).notes)
    states = stories[0].config.num_hidden_layers + 1
    clamped = f"the statistic last is the mean of all {states} states, as there are fewer than 99."
    assert clamped in measure(stories, text=prose, last=99, **SMALL).notes
    assert not any("last is" in n for n in measure(stories, text=prose, last=states, **SMALL).notes)
    one = measure(stories, text=prose, **(SMALL | {"windows": 1}))
    assert np.isnan(one.interval("spearman")).all()
    assert np.isnan(one.interval("mean_cosine")).all()
    assert "one window has no interval" in one.verdict


def test_windows_longer_than_what_fresh_weights_were_trained_on(shared, prose, tmp_path):
    shutil.copytree(shared / "models" / "stories260K", tmp_path / "run" / "model")
    words = "windows of 40 tokens are longer than any text this model was trained on: take 32."
    for context, kind, said in ((32, "architecture", True), (40, "architecture", False), (32, "name", False)):
        recipe = {"model": {kind: "llama"}, "data": {"context": context}}
        (tmp_path / "run" / "recipe.yaml").write_text(json.dumps(recipe))
        assert (words in measure(tmp_path / "run", text=prose, **(SMALL | {"tokens": 40})).notes) == said
    (tmp_path / "run" / "recipe.yaml").write_text("{")
    assert words not in measure(tmp_path / "run" / "model", text=prose, **(SMALL | {"tokens": 40})).notes


def test_what_a_model_may_be(stories, prose):
    model, tokenizer = stories
    swapped, named = (tokenizer, model), ("gpt2", tokenizer)
    for wrong, got in (
        (model, "LlamaModel"), ((model,), "1 items"), (7, "int"), ([], "list"),
        (swapped, f"({type(tokenizer).__name__}, LlamaModel)"), (named, f"(str, {type(tokenizer).__name__})"),
    ):  # fmt: skip
        sentence = f"a pair (model, tokenizer), got {got}: call measure((model, tokenizer))"
        sentence += ", or measure(model, inputs=…) with batches of what it reads."
        with pytest.raises(TypeError, match=re.escape(sentence)):
            measure(wrong, text=prose, **SMALL)
    plain = measure((model, lambda text, **options: dict(tokenizer(text, **options))), text=prose, **SMALL)
    assert plain.mean_cosine == pytest.approx(measure(stories, text=prose, **SMALL).mean_cosine)
    batch = lambda text, **options: {"input_ids": [tokenizer(text)["input_ids"]]}  # noqa: E731  of one
    for wrong, got in ((3, "int"), (batch, "function")):
        with pytest.raises(TypeError, match=rf"the tokenizer must be one of transformers, .* got {got}"):
            measure((model, wrong), text=prose, **SMALL)


def test_overflow_is_named_not_measured(stories, prose):
    model, tokenizer = copy.deepcopy(stories[0]), stories[1]
    with torch.no_grad():
        model.layers[2].mlp.down_proj.weight[0, 0] = float("inf")
    with pytest.raises(ValueError, match="hidden state 3 of windows 0–3 must be finite"):
        measure((model, tokenizer), text=prose, **SMALL)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
def test_half_precision(shared, prose, whole):
    low = measure(shared / "models" / "stories260K", text=prose, dtype="bfloat16", **SMALL)
    assert low.record.model.dtype == "bfloat16"
    assert low.mean_cosine == pytest.approx(whole.mean_cosine, abs=0.02)


def test_numbers_of_numpy(stories, prose, whole):
    given = {name: np.int64(value) for name, value in (SMALL | {"batch": 2}).items()}
    assert measure(stories, text=prose, spectral=True, released=True, **given).to_json() == whole.to_json()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": 4096}, "tokens must be at most 512"),
        ({"windows": 0}, "windows must be an integer of at least 1"),
        ({"windows": 10**20}, "windows must be an integer of at least 1 and at most 1000000000, got 1000"),
        ({"seed": 2**64}, "seed must be an integer of at least 0 and at most 9223372036854775807, got 1844"),
        ({"tokens": 1}, "tokens must be an integer of at least 2"),
        ({"tokens": "32"}, "tokens must be an integer of at least 2, got '32'"),
        ({"batch": 0}, "batch must be an integer of at least 1"),
        ({"bootstrap": -1}, "bootstrap must be an integer of at least 20"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"resume": True}, "resume needs the folder of the partial measurement, got none"),
        (
            {"windows": 5000},
            r"5000 windows of 40 tokens \(195000 tokens without the 1 special token in each\), it has .* too few",
        ),
    ],
)
def test_bad_settings(stories, prose, change, message):
    with pytest.raises(ValueError, match=message):
        measure(stories, text=prose, **(SMALL | change))


@pytest.mark.slow
def test_smollm2_on_wikitext2_is_where_the_reference_says(shared):
    """100 windows × 512 tokens; the authors' package gives 0.806 on them."""
    result = measure("smollm2-135m", text="wikitext-2", data=shared / "data", windows=100, tokens=512)
    assert result.spearman == pytest.approx(0.806, abs=0.05)


def test_a_text_of_unknown_tokens_is_noted():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    pair = build("gpt2").eval(), PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    told = "75 % of the tokens are the unknown token: the tokenizer cannot read this text."
    for text, noted in (("今天天a", True), ("今a天b", False)):
        assert (told in measure(pair, text=[text * 400], **SMALL).notes) == noted
