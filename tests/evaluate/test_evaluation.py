"""A whole evaluation: the items, resuming, repeating, and what goes wrong in words."""

from __future__ import annotations

import errno
import gzip
import importlib.metadata
import json
import math
import os
import re
import shutil

import numpy as np
import pytest
from by_hand import brute_force, cli, make_item

from decondense.evaluate.harness import evaluate
from decondense.evaluate.items import calibration, load_run, read_items, summarise, write_items
from decondense.evaluate.scorer import Scorer
from decondense.records import Damaged

OPTIONS = {"tasks": "piqa,winogrande", "limit": 8, "device": "cpu"}


@pytest.fixture(scope="module")
def whole(stories, bench):
    return evaluate(stories, data=bench, **OPTIONS)


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
    record, items = evaluate(stories, data=bench, **OPTIONS)
    write_items(tmp_path / "b", items)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert record == whole[0]
    assert read_items(tmp_path / "a") == [dict(item) for item in whole[1]]


@pytest.mark.parametrize("stop_after", [0, 5])
def test_a_killed_evaluation_resumes_with_the_same_result(pair, bench, tmp_path, monkeypatch, stop_after):
    class Killed(BaseException):
        pass

    options = {"data": bench, "batch_tokens": 150, "partial": tmp_path / "partial", "limit": 8}
    options["tasks"] = OPTIONS["tasks"]
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


def test_unfinished_work_of_other_settings_is_not_used(pair, bench, tmp_path):
    options = {"data": bench, "tasks": "piqa", "partial": tmp_path / "partial"}
    evaluate(pair, limit=3, **options)
    record, items = evaluate(pair, limit=4, **options)
    assert len(items) == record.tasks["piqa"].items == 4


def test_unfinished_work_on_other_data_is_not_used(pair, tmp_path, monkeypatch):
    """A file that was changed, and another lm-eval: finished tasks are done again."""
    place = tmp_path / "bench" / "piqa"
    place.mkdir(parents=True)
    row = {"goal": "boil water", "sol1": "heat it", "sol2": "freeze it", "label": 0}
    options = {"data": tmp_path / "bench", "tasks": "piqa", "partial": tmp_path / "partial"}

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
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda n: "0.0" if n == "lm_eval" else real(n))
    record, _ = evaluate(pair, **options)
    assert record.versions["lm_eval"] == "0.0"
    assert len(kept()) == 1
    assert not set(kept().items()) & set(before.items())


def test_an_answer_longer_than_the_context(stories, bench, tmp_path, monkeypatch):
    """The sentence names task and item; without that task the finished ones are not scored again."""
    data, out = tmp_path / "bench", tmp_path / "out"
    shutil.copytree(bench / "winogrande", data / "winogrande")
    (data / "piqa").mkdir()
    rows = [{"goal": "boil water", "sol1": "heat it", "sol2": end, "label": 0} for end in ("cool it", "word " * 600)]
    (data / "piqa" / "validation.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arguments = ("evaluate", stories, "--limit", 4, "--data", data, "--device", "cpu", "--out", out, "--tasks")
    done = cli(*arguments, "winogrande,piqa")
    assert done.returncode == 2
    assert re.fullmatch(
        r"error: a continuation must have 1 to 512 tokens, the context of the model, got \d+ in item 1 of task 'piqa': "
        r"leave the task out with --tasks, or take a model with a longer context; finished tasks are kept in partial/ "
        r"and not scored again\.",
        done.stderr.strip(),
    )
    monkeypatch.setattr("decondense.evaluate.harness._run", None)
    done = cli(*arguments, "winogrande")
    assert done.returncode == 0, done.stderr
    assert list(load_run(out).record.tasks) == ["winogrande"]


def test_graded_and_likelihood_tasks(pair, bench):
    record, items = evaluate(pair, tasks="truthfulqa_mc2,lambada_openai", data=bench, limit=2)
    assert record.tasks["truthfulqa_mc2"].graded
    for item in items[:2]:
        shares = np.exp(item["loglikelihoods"]) / np.exp(item["loglikelihoods"]).sum()
        assert item["correct"] == pytest.approx(shares[item["gold"]].sum())
    values = [i["loglikelihoods"][0] for i in items[2:]]
    assert record.tasks["lambada_openai"].perplexity == pytest.approx(math.exp(-np.mean(values)))
    assert record.tasks["lambada_openai"].ece is None


def test_cut_prompts_and_borrowed_examples_are_reported(pair, bench):
    record, items = evaluate(pair, tasks="arc_challenge", shots=12, data=bench, limit=2)
    assert record.tasks["arc_challenge"].cut["items"] == sum(i["cut"] > 0 for i in items) == 2
    words = " ".join(record.notes)
    assert "2 of 2 prompts were longer than the context of 512 tokens and lost their beginning, up to" in words
    assert "12 example(s) come from the evaluated split (test), the item itself left out" in words


def test_any_lm_eval_task(pair, tmp_path):
    """A task outside the ten, with rows in the hub's field names."""
    place = tmp_path / "sciq"
    place.mkdir()
    row = {"question": "What is wet?", "support": "Water is wet.", "correct_answer": "water"}
    row |= {"distractor1": "fire", "distractor2": "air", "distractor3": "sand"}
    (place / "test.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row | {"question": "Which?"}) + "\n")
    record, items = evaluate(pair, tasks="sciq", data=tmp_path)
    assert len(items) == 2
    assert len(items[0]["loglikelihoods"]) == 4
    assert record.tasks["sciq"].shots == 0


# -- numbers from items --------------------------------------------------------------------------------------


def test_ece_by_hand():
    log = math.log
    items = [
        make_item("t", 0, 1, values=(log(0.9), log(0.1))),  # confident 0.9, right
        make_item("t", 1, 0, values=(log(0.08), log(0.92))),  # confident 0.92, wrong
        make_item("t", 2, 1, values=(log(0.6), log(0.4))),  # confident 0.6, right
    ]
    assert calibration(items, bins=10) == pytest.approx(1 / 3 * abs(1 - 0.6) + 2 / 3 * abs(0.5 - 0.91))
    assert calibration([make_item("t", 0, 1, values=(-1.0,))]) is None
    certain = [make_item("t", 0, 1, values=(0.0, -1000.0))]
    assert calibration(certain) == pytest.approx(0)


def test_summary_of_one_item():
    assert summarise([make_item("t", 0, 1)])["stderr"] is None


def test_perplexity_against_a_loop(pair, tmp_path):
    file = tmp_path / "story.txt"
    file.write_text("Once upon a time, there was a little fox. She liked to read — a lot.\n" * 12)
    record, items = evaluate(pair, tasks="", text=str(file), text_tokens=64)
    tokens = pair[1](file.read_text())["input_ids"]
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
    with pytest.raises(ValueError, match="text_tokens must be between 2 and the model's context of 512, got 600"):
        evaluate(pair, tasks="", text=str(file), text_tokens=600)


# -- errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"limit": 0}, "limit must be at least 1 item, got 0: leave it out"),
        ({"limit": -3}, "limit must be at least 1 item"),
        ({"selected_by": "best-benchmark"}, "selected_by must be one of final, held-out-loss"),
        ({"shots": "many"}, "shots must be"),
        ({"tasks": "piqaa"}, "nearest names are piqa"),
        ({"batch_tokens": -1}, "batch_tokens must be at least 1"),
        ({"text": "no-such-file.txt"}, "no-such-file.txt"),
    ],
)
def test_bad_options(pair, bench, options, words):
    with pytest.raises((ValueError, OSError), match=words):
        evaluate(pair, **{"data": bench, "tasks": "piqa", "limit": 2} | options)


def test_models_that_cannot_be_scored(stories, bench, tmp_path, pair):
    bare = tmp_path / "bare"
    shutil.copytree(stories, bare)
    os.chmod(bare, 0o755)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (bare / name).unlink()
    with pytest.raises(ValueError, match="has no tokenizer, and benchmarks are text: save one"):
        evaluate(bare, tasks="piqa", data=bench, limit=1)
    with pytest.raises(ValueError, match="has no tokenizer"):
        evaluate((pair[0], None), tasks="piqa", data=bench, limit=1)
    with pytest.raises(ValueError, match="must be a language model with an output head, got LlamaModel"):
        evaluate((pair[0].model, pair[1]), tasks="piqa", data=bench, limit=1)
    with pytest.raises(TypeError, match=r"must be a pair \(model, tokenizer\), got 1"):
        evaluate((pair[0],), tasks="piqa", data=bench, limit=1)


def test_checkpoints_in_the_middle_are_recorded(stories, bench, tmp_path):
    place = tmp_path / "run" / "checkpoint-50"
    shutil.copytree(stories, place)
    os.chmod(place, 0o755)
    (place / "trainer_state.json").write_text(json.dumps({"global_step": 50, "max_steps": 100}))
    record, _ = evaluate(place, tasks="winogrande", data=bench, limit=1, training_seed=7)
    again, _ = evaluate(place.parent / ".." / "run" / "checkpoint-50", tasks="winogrande", data=bench, limit=1)
    shutil.move(place, place.parent / "model")
    final, _ = evaluate(place.parent / "model", tasks="winogrande", data=bench, limit=1)
    where = record.checkpoint.place
    assert re.fullmatch("[0-9a-f]{16}", where)
    assert again.checkpoint.place == final.checkpoint.place == where
    assert final.checkpoint.folder == "model"
    told = {"selected_by": "final", "step": 50, "steps": 100, "final": False, "run": "run"}
    told |= {"folder": "checkpoint-50", "training_seed": 7}
    assert record.checkpoint.model_dump(exclude={"place"}) == told


# -- the command ---------------------------------------------------------------------------------------------


def test_command(whole, stories, bench, tmp_path):
    out = tmp_path / "run"
    arguments = ("evaluate", stories, "--tasks", OPTIONS["tasks"], "--limit", 8, "--data", bench, "--out", out)
    done = cli(*arguments, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "average over 2 tasks" in done.stdout
    assert sorted(p.name for p in out.iterdir()) == ["config.yaml", "items.parquet", "result.json", "run.json"]
    run = load_run(out)
    assert run.record == whole[0]
    assert [i for rows in run.items.values() for i in rows] == whole[1]


def test_a_result_is_never_replaced_without_force(stories, bench, tmp_path, monkeypatch):
    """Two models with the same last name have folders of their own; a second result needs --force, and replaces all."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DECONDENSE_BENCH", str(bench))
    for name in "ab":
        shutil.copytree(stories, tmp_path / "runs" / name / "model")
    words = ("--tasks", "piqa", "--device", "cpu", "--limit")
    for name in "ab":
        done = cli("evaluate", f"runs/{name}/model", *words, 2)
        assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in (tmp_path / "evaluation").iterdir()) == ["runs-a-model", "runs-b-model"]
    first = tmp_path / "evaluation" / "runs-a-model"
    before = {file.name: file.read_bytes() for file in first.iterdir()}
    done = cli("evaluate", "runs/a/model", *words, 3)
    assert (done.returncode, done.stderr.strip()) == (
        2,
        "error: 'evaluation/runs-a-model' already holds a result: choose another folder with --out, or replace it with "
        "--force.",
    )
    full = OSError(errno.ENOSPC, "full")
    with monkeypatch.context() as patch:
        patch.setattr("decondense.commands.evaluate.run_record", lambda *_: (_ for _ in ()).throw(full))
        done = cli("evaluate", "runs/a/model", *words, 3, "--force")
    assert done.returncode == 2
    assert "the disk is full" in done.stderr
    assert {file.name: file.read_bytes() for file in first.iterdir() if file.is_file()} == before
    done = cli("evaluate", "runs/a/model", *words, 3, "--force")
    assert done.returncode == 0, done.stderr
    run = load_run(first)
    assert len(run.items["piqa"]) == run.record.tasks["piqa"].items == 3
    assert {file.name for file in first.iterdir()} == set(before)


def test_interrupted_before_any_work_and_beside_an_older_result(stories, bench, tmp_path, monkeypatch):
    out, plain = tmp_path / "out", Scorer._score_together
    words = ("evaluate", stories, "--data", bench, "--device", "cpu", "--batch-tokens", 64, "--out", out, "--tasks")

    def interrupted(after, *arguments):
        left = iter(range(after))

        def score(self, batch):
            if next(left, None) is None:
                raise KeyboardInterrupt
            return plain(self, batch)

        with monkeypatch.context() as patch:
            patch.setattr(Scorer, "_score_together", score)
            done = cli(*words, *arguments)
        assert done.returncode == 130
        return done.stderr

    assert "interrupted" not in interrupted(0, "piqa", "--limit", 2)
    assert not out.exists()
    assert f"{out}/partial holds what is done of {stories}.\n" in interrupted(1, "piqa", "--limit", 2)
    assert cli(*words, "piqa", "--limit", 3).returncode == 0  # other settings: nothing of the two items is used
    before = load_run(out)
    said = interrupted(1, "winogrande", "--limit", 4, "--force")
    assert f"holds what is done of {stories}; result.json is of the evaluation before it." in said
    assert load_run(out) == before
    assert cli(*words, "winogrande", "--limit", 5, "--force").returncode == 0
    after = load_run(out)
    assert {task: len(rows) for task, rows in after.items.items()} == {"winogrande": 5}
    assert not (out / "partial").exists()


def test_one_process_at_a_time(stories, bench, tmp_path):
    """The second is refused before it has touched anything."""
    from decondense.files import locked

    out = tmp_path / "out"
    out.mkdir()
    with locked(out / ".lock"):
        done = cli("evaluate", stories, "--tasks", "piqa", "--data", bench, "--limit", 1, "--out", out)
    assert done.returncode == 2
    assert f"the folder {str(out)!r} is in use by another process: wait for it, or choose another" in done.stderr
    assert not (out / "result.json").exists()


def test_a_wrong_task_name_is_refused_before_lm_eval_is_asked(stories, tmp_path, monkeypatch):
    monkeypatch.setattr("decondense.insides.lm_eval.index", None)
    monkeypatch.setattr("decondense.models.load", None)
    done = cli("evaluate", stories, "--tasks", "piqa,helaswag", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert re.search(r"task 'helaswag' must be 'paper' or a task .*: the nearest names are hellaswag", done.stderr)
    assert not (tmp_path / "out").exists()


def test_names_are_printed_as_they_are(stories, bench, tmp_path):
    """Square brackets in the names of folders, models and texts are markup to the library that prints."""
    model, text, out = tmp_path / "[bold]m", tmp_path / "[red]story.txt", tmp_path / "o[" / "x]"
    shutil.copytree(stories, model)
    text.write_text("Once upon a time, there was a little fox.\n" * 12)
    arguments = ("--tasks", "piqa", "--limit", 2, "--data", bench, "--text", text, "--out", out, "--device", "cpu")
    done = cli("evaluate", model, *arguments)
    assert done.returncode == 0, done.stderr
    described, *_, average, prose, written = done.stdout.splitlines()
    assert described.startswith("[bold]m, 260,032 parameters")
    assert average.startswith("average over 1 task: ")
    assert prose.startswith("[red]story.txt: token perplexity")
    assert written.startswith(f"written: {out}/items.parquet")


def test_command_errors_leave_nothing(stories, bench, tmp_path):
    out = tmp_path / "run"
    done = cli("evaluate", stories, "--tasks", "piqa", "--limit", 0, "--data", bench, "--out", out)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip() == "error: limit must be at least 1 item, got 0: leave it out to take all items."
    assert not out.exists()


def test_load_run_errors(tmp_path, make_run):
    with pytest.raises(FileNotFoundError, match="no run at"):
        load_run(tmp_path / "none")
    (tmp_path / "half" / "partial").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="it is unfinished: repeat its command"):
        load_run(tmp_path / "half")
    folder = make_run("good", {"t": [1, 0]})
    (folder / "items.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(ValueError, match="could not be read as items"):
        load_run(folder)
    (folder / "result.json").write_text('{"schema": "other"}')
    with pytest.raises(Damaged, match=r"result\.json has the schema 'other', which this version does not read"):
        load_run(folder)
    (folder / "result.json").write_bytes(gzip.compress(b"x"))
    with pytest.raises(Damaged, match=r"result\.json is not valid JSON"):
        load_run(folder)
