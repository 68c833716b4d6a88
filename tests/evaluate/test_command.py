"""`decondense evaluate` as a user meets it."""

from __future__ import annotations

import contextlib
import errno
import inspect
import json
import re
import shutil
import subprocess
import sys

import pytest
from by_hand import cli

from decondense import commands
from decondense.commands.evaluate import perplexity
from decondense.evaluate import harness
from decondense.evaluate.items import load_run
from decondense.evaluate.scorer import Scorer

resource = pytest.importorskip("resource", reason="a child's clock is read in the manner of POSIX")


def test_options_are_called_as_in_python():
    """But for those that a command has for its folder and its output."""
    ours = set(inspect.signature(commands.evaluate.evaluate).parameters) - {"out_dir", "force", "fresh", "as_json"}
    assert ours == set(inspect.signature(harness.evaluate).parameters) - {"partial", "progress"}


def test_an_answer_longer_than_the_context(stories, bench, tmp_path, monkeypatch):
    """The sentence names task and item; without that task the finished ones are not scored again."""
    data, out = tmp_path / "bench", tmp_path / "out"
    shutil.copytree(bench / "winogrande", data / "winogrande")
    (data / "piqa").mkdir()
    rows = [{"goal": "boil water", "sol1": "heat it", "sol2": end, "label": 0} for end in ("cool it", "word " * 600)]
    (data / "piqa" / "validation.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arguments = ("evaluate", stories, "--limit", 4, "--bench", data, "--device", "cpu", "--out", out, "--tasks")
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


def test_command(whole, stories, bench, tmp_path):
    out = tmp_path / "run"
    arguments = ("evaluate", stories, "--tasks", "piqa,winogrande", "--limit", 8, "--bench", bench, "--out", out)
    done = cli(*arguments, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "average over 2 tasks" in done.stdout
    assert sorted(p.name for p in out.iterdir()) == ["config.yaml", "items.parquet", "result.json", "run.json"]
    assert f"bench: {bench}\n" in (out / "config.yaml").read_text()
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
    for wrong, said in ((("--limit", 0), "limit must be"), (("--tasks", "piqaa"), "nearest names are piqa")):
        assert said in cli("evaluate", "runs/a/model", *words, 3, *wrong).stderr  # what no other folder would mend
    assert "path does not exist" in cli("evaluate", "./c", *words, 3, "--out", first).stderr
    full = OSError(errno.ENOSPC, "full")
    with monkeypatch.context() as patch:
        patch.setattr("decondense.commands.evaluate.write_origin", lambda *_: (_ for _ in ()).throw(full))
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
    words = ("evaluate", stories, "--bench", bench, "--device", "cpu", "--batch-tokens", 64, "--out", out, "--tasks")

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

    assert interrupted(0, "piqa", "--limit", 2) == "interrupted.\n"
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
        done = cli("evaluate", stories, "--tasks", "piqa", "--bench", bench, "--limit", 1, "--out", out)
    assert done.returncode == 2
    assert f"the folder {str(out)!r} is in use by another process: wait for it, or choose another" in done.stderr
    assert not (out / "result.json").exists()


def test_names_are_printed_as_they_are(stories, bench, tmp_path):
    """Square brackets in the names of folders, models and texts are markup to the library that prints."""
    model, text, out = tmp_path / "[bold]m", tmp_path / "[red]story.txt", tmp_path / "o[" / "x]"
    shutil.copytree(stories, model)
    text.write_text("Once upon a time, there was a little fox.\n" * 12)
    arguments = ("--tasks", "piqa", "--limit", 2, "--bench", bench, "--text", text, "--out", out, "--device", "cpu")
    done = cli("evaluate", model, *arguments)
    assert done.returncode == 0, done.stderr
    described, *_, average, prose, written = done.stdout.splitlines()
    assert described.startswith("[bold]m, 260,032 parameters")
    assert average.startswith("average over 1 task: ")
    assert prose.startswith("[red]story.txt: token perplexity")
    assert written.startswith(f"written: {out}/items.parquet")


@pytest.mark.parametrize(
    ("value", "said"), [(27.0529, "27.053"), (999_999, "999999.000"), (15673879343.109, "1.57e+10"), (None, "")]
)
def test_a_perplexity_has_no_more_digits_than_it_means(value, said):
    assert perplexity(value) == said


def test_a_wrong_task_name_is_refused_at_once(stories, tmp_path):
    """In a process of its own, within three seconds of its time: before lm-eval or a model is loaded."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = ["evaluate", stories, "--tasks", "piqa,helaswag", "--out", tmp_path / "out"]
    done = subprocess.run([sys.executable, "-m", "decondense.cli", *words], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 2
    assert re.search(r"task 'helaswag' must be 'paper' or a task .*: the nearest names are hellaswag", done.stderr)
    assert not (tmp_path / "out").exists()
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3


def test_one_clock_of_progress_from_the_first_look_at_the_model(monkeypatch):
    """A second one would begin to count anew, and a pipe would hear nothing for up to twice as long."""
    seen = []

    @contextlib.contextmanager
    def bar(label, *, quiet):
        seen.append("begun")
        yield None
        seen.append("ended")

    def check(*args, **options):
        seen.append("checked")

    monkeypatch.setattr("decondense.commands.evaluate.progress_bar", bar)
    monkeypatch.setattr("decondense.evaluate.harness.check", check)
    monkeypatch.setattr("decondense.commands.evaluate.fresh_folder", lambda *a, **k: contextlib.nullcontext())
    monkeypatch.setattr("decondense.commands.evaluate._evaluate_into", lambda *a, **k: (seen.append("evaluated"), ""))
    monkeypatch.setattr("decondense.commands.evaluate.show", lambda record: seen.append("shown"))
    assert cli("evaluate", "a-model", "--tasks", "piqa").returncode == 0
    assert seen == ["begun", "checked", "evaluated", "ended", "shown"]
