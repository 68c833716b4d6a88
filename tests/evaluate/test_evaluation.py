"""A whole evaluation: the items, resuming, repeating, and what goes wrong in words."""

from __future__ import annotations

import json
import math
import os
import re
import shutil

import numpy as np
import pytest
from by_hand import brute_force

from decondense import files
from decondense.evaluate.harness import evaluate
from decondense.evaluate.items import read_items, write_items
from decondense.evaluate.scorer import Scorer

OPTIONS = {"tasks": "piqa,winogrande", "limit": 8, "device": "cpu"}


def test_items(whole):
    record, items = whole
    assert [i["task"] for i in items] == ["piqa"] * 8 + ["winogrande"] * 8
    assert [i["doc_id"] for i in items] == list(range(8)) * 2
    assert len({i["item"] for i in items}) == 16
    for item in items:
        best = int(np.argmax(item["loglikelihoods"]))
        assert item["prediction"] == str(best)
        assert item["correct"] == float(best in item["gold"])
        assert len(item["units"]) == len(item["loglikelihoods"]) == 2
    scores = record.tasks
    assert scores["piqa"].acc == np.mean([i["correct"] for i in items[:8]])
    assert record.macro_average == pytest.approx((scores["piqa"].acc + scores["winogrande"].acc) / 2)


def test_the_same_model_and_seed_give_the_same_file(whole, stories, bench, tmp_path):
    write_items(tmp_path / "a", whole[1])
    record, items = evaluate(stories, bench=bench, **OPTIONS)
    write_items(tmp_path / "b", items)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert record == whole[0]
    assert read_items(tmp_path / "a") == [dict(item) for item in whole[1]]


@pytest.mark.parametrize("stop_after", [0, 5])
def test_a_killed_evaluation_resumes_with_the_same_result(pair, bench, tmp_path, monkeypatch, stop_after):
    class Killed(BaseException):
        pass

    options = OPTIONS | {"bench": bench, "batch_tokens": 150, "partial": tmp_path / "partial"}
    plain, count, uninterrupted, again = Scorer._score_together, [], [], []

    def counted(batches):
        return lambda self, batch: batches.append(batch) or plain(self, batch)

    monkeypatch.setattr(Scorer, "_score_together", counted(uninterrupted))
    whole = evaluate(pair, **options | {"partial": None})
    assert len(uninterrupted) > 5

    def dies(self, batch):
        if len(count) == stop_after:
            raise Killed
        count.append(batch)
        return plain(self, batch)

    monkeypatch.setattr(Scorer, "_score_together", dies)
    with pytest.raises(Killed):
        evaluate(pair, **options)
    monkeypatch.setattr(Scorer, "_score_together", counted(again))
    assert evaluate(pair, **options) == whole
    assert len(again) + stop_after == len(uninterrupted), "every batch is scored once, before or after"
    # finished tasks are read, not prepared again
    monkeypatch.setattr("decondense.evaluate.harness._run", None)
    assert evaluate(pair, **options) == whole


def test_unfinished_work_of_other_data_or_settings_is_not_used(pair, tmp_path, monkeypatch):
    """A file that was changed, another limit, another lm-eval: finished tasks are done again."""
    place = tmp_path / "bench" / "piqa"
    place.mkdir(parents=True)
    row = {"goal": "boil water", "sol1": "heat it", "sol2": "freeze it", "label": 0}
    options = {"bench": tmp_path / "bench", "tasks": "piqa", "partial": tmp_path / "partial"}

    def targets(**changes):
        (place / "validation.jsonl").write_text(json.dumps(row | changes))
        return [item["target"] for item in evaluate(pair, **options)[1]]

    assert targets() == ["0"]
    os.utime(place / "validation.jsonl", (1, 1))
    assert targets(label=1) == ["1"]  # as many bytes as before

    def kept():
        return {file.name: file.stat().st_mtime_ns for file in (tmp_path / "partial").glob("piqa*.parquet")}

    before = kept()
    evaluate(pair, **options)
    assert kept() == before
    evaluate(pair, limit=1, **options)
    assert not set(kept().items()) & set(before.items())
    real = files._version
    monkeypatch.setattr(files, "_version", lambda name: "0.0" if name == "lm_eval" else real(name))
    record, _ = evaluate(pair, **options)
    assert record.versions["lm_eval"] == "0.0"
    assert len(kept()) == 1


def test_graded_and_likelihood_tasks(pair, bench):
    record, items = evaluate(pair, tasks="truthfulqa_mc2,lambada_openai", bench=bench, limit=2)
    assert record.tasks["truthfulqa_mc2"].graded
    for item in items[:2]:
        shares = np.exp(item["loglikelihoods"]) / np.exp(item["loglikelihoods"]).sum()
        assert item["correct"] == pytest.approx(shares[item["gold"]].sum())
    values = [i["loglikelihoods"][0] for i in items[2:]]
    assert record.tasks["lambada_openai"].perplexity == pytest.approx(math.exp(-np.mean(values)))
    assert record.tasks["lambada_openai"].ece is None


def test_cut_prompts_and_borrowed_examples_are_reported(pair, bench):
    record, items = evaluate(pair, tasks="arc_challenge", shots=12, bench=bench, limit=2)
    assert record.tasks["arc_challenge"].cut["items"] == sum(i["cut"] > 0 for i in items) == 2
    words = " ".join(record.notes)
    assert "2 of 2 prompts were longer than the context of 512 tokens and lost their beginning, up to" in words
    assert "its examples (12 for each item) come from the evaluated split (test), the item itself left out" in words


def test_any_lm_eval_task(pair, tmp_path):
    """A task outside the ten, with rows in the hub's field names."""
    place = tmp_path / "sciq"
    place.mkdir()
    row = {"question": "What is wet?", "support": "Water is wet.", "correct_answer": "water"}
    row |= {"distractor1": "fire", "distractor2": "air", "distractor3": "sand"}
    (place / "test.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row | {"question": "Which?"}) + "\n")
    record, items = evaluate(pair, tasks="sciq", bench=tmp_path)
    assert len(items) == 2
    assert len(items[0]["loglikelihoods"]) == 4
    assert record.tasks["sciq"].shots == 0


def test_perplexity_against_a_loop(pair, tmp_path):
    file = tmp_path / "story.txt"
    file.write_text("Once upon a time, there was a little fox. She liked to read — a lot.\n" * 12)
    record, items = evaluate(pair, tasks="", text=str(file), text_tokens=64)
    tokens = pair[1](file.read_text(), add_special_tokens=False)["input_ids"]
    bos = pair[1].bos_token_id
    total = 0.0
    for start in range(0, len(tokens), 64):
        part = tokens[start : start + 64]
        before = [bos] if start == 0 else [tokens[start - 1]]
        # lm-eval's last window is as long as the others: it sees earlier tokens again, but scores only the new ones
        if start + 64 > len(tokens):
            before = tokens[len(tokens) - 65 : start]
        total += brute_force(pair[0], before, part, 64)[0]
    figures = record.texts["story.txt"]
    text = file.read_text()  # it ends with white space: lm-eval counts one empty word after it
    assert figures["tokens"] == len(tokens)
    assert figures["loglikelihood"] == pytest.approx(total, abs=2e-3)
    assert figures["token_perplexity"] == pytest.approx(math.exp(-total / len(tokens)), rel=1e-4)
    assert figures["word_perplexity"] == pytest.approx(math.exp(-total / (len(text.split()) + 1)), rel=1e-4)
    assert figures["bits_per_byte"] == pytest.approx(-total / len(text.encode()) / math.log(2), rel=1e-4)
    assert sum(item["units"][0] for item in items) == len(tokens)
    words = "text_tokens must be between 2 and the model's context of 512, got 600: leave it out for the default."
    with pytest.raises(ValueError, match=words):
        evaluate(pair, tasks="", text=str(file), text_tokens=600)


# -- errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"limit": 0}, "limit must be at least 1 item, got 0: leave it out"),
        ({"tasks": "", "text": "pydoc"}, "limit counts items of tasks, a text is scored whole, got 2: leave it out"),
        ({"selected_by": "best-benchmark"}, "selected_by must be one of final, held-out-loss"),
        ({"shots": "many"}, "shots must be"),
        ({"tasks": "piqaa"}, "nearest names are piqa"),
        ({"batch_tokens": -1}, "batch_tokens must be at least 1"),
        ({"text": "no-such-file.txt"}, "no-such-file.txt"),
    ],
)
def test_bad_options(pair, bench, options, words):
    with pytest.raises((ValueError, OSError), match=words):
        evaluate(pair, **{"bench": bench, "tasks": "piqa", "limit": 2} | options)


def test_models_that_cannot_be_scored(stories, bench, tmp_path, pair):
    bare = tmp_path / "bare"
    shutil.copytree(stories, bare)
    os.chmod(bare, 0o755)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (bare / name).unlink()
    with pytest.raises(ValueError, match="has no tokenizer, and benchmarks are text: save one"):
        evaluate(bare, tasks="piqa", bench=bench, limit=1)
    with pytest.raises(ValueError, match="has no tokenizer"):
        evaluate((pair[0], None), tasks="piqa", bench=bench, limit=1)
    with pytest.raises(ValueError, match="must be a language model with an output head, got LlamaModel"):
        evaluate((pair[0].model, pair[1]), tasks="piqa", bench=bench, limit=1)
    with pytest.raises(TypeError, match=r"must be a pair \(model, tokenizer\), got 1"):
        evaluate((pair[0],), tasks="piqa", bench=bench, limit=1)


@pytest.mark.parametrize("fresh", [{"architecture": "llama"}, {"name": "x", "init": True}, {"name": "x"}])
def test_texts_are_scored_in_windows_as_long_as_fresh_weights_were_trained_on(stories, bench, tmp_path, fresh):
    """It has positions for 512 tokens, as a Llama of transformers has 2048 unless told otherwise."""
    place, file = tmp_path / "run" / "model", tmp_path / "story.txt"
    shutil.copytree(stories, place)
    os.chmod(place, 0o755)
    file.write_text("Once upon a time, there was a little fox.\n" * 20)
    (place.parent / "recipe.yaml").write_text(json.dumps({"model": fresh, "data": {"context": 64}}))
    record, _ = evaluate(place, tasks="winogrande", bench=bench, limit=1, text=str(file))
    longer, _ = evaluate(place, tasks="", text=str(file), text_tokens=128)
    trained = "the model was trained on blocks of 64 tokens and has positions for 512"
    notes = [
        f"texts are scored in windows of 64 tokens, as it was trained; {trained}.",
        f"{trained}: a prompt of more than 64 tokens is longer than any it has seen.",
    ]
    known = fresh != {"name": "x"}  # what was only trained further may know its whole context
    assert record.texts["story.txt"]["window_tokens"] == (64 if known else 512)
    assert record.notes == (notes if known else [])
    assert longer.texts["story.txt"]["window_tokens"] == 128
    assert ("longer than any it has seen: leave --text-tokens out" in " ".join(longer.notes)) == known


def test_a_checkpoint_is_of_the_run_that_its_model_is_of(stories, bench, tmp_path):
    """As `decondense train` lays them out: RUN/model, RUN/checkpoints/checkpoint-50."""
    folders = [tmp_path / "run" / "model", tmp_path / "run" / "checkpoints" / "checkpoint-50"]
    for place in folders:
        shutil.copytree(stories, place)
    (tmp_path / "run" / "recipe.yaml").write_text("model: {name: x}")
    told = [evaluate(place, tasks="winogrande", bench=bench, limit=1)[0].checkpoint for place in folders]
    assert [(one.run, one.folder) for one in told] == [("run", "model"), ("run", "checkpoint-50")]
    assert told[0].place == told[1].place


def test_checkpoints_in_the_middle_are_recorded(stories, bench, tmp_path):
    place = tmp_path / "run" / "checkpoint-50"
    shutil.copytree(stories, place)
    os.chmod(place, 0o755)
    (place / "trainer_state.json").write_text(json.dumps({"global_step": 50, "max_steps": 100}))
    record, _ = evaluate(place, tasks="winogrande", bench=bench, limit=1, training_seed=7)
    again, _ = evaluate(place.parent / ".." / "run" / "checkpoint-50", tasks="winogrande", bench=bench, limit=1)
    shutil.move(place, place.parent / "model")
    final, _ = evaluate(place.parent / "model", tasks="winogrande", bench=bench, limit=1)
    where = record.checkpoint.place
    assert re.fullmatch("[0-9a-f]{16}", where)
    assert again.checkpoint.place == final.checkpoint.place == where
    assert final.checkpoint.folder == "model"
    told = {"selected_by": "final", "step": 50, "steps": 100, "final": False, "run": "run"}
    told |= {"folder": "checkpoint-50", "training_seed": 7}
    assert record.checkpoint.model_dump(exclude={"place"}) == told
