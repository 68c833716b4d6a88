"""The command as users call it: what it writes and says, what it refuses, and how it ends."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import yaml
from by_hand import cli as run
from by_hand import refused
from processes import start

import decondense
from decondense import cli
from decondense.commands import terminal
from decondense.meter.result import load
from decondense.meter.run import Interrupted
from decondense.studies import STUDIES, core
from decondense.words import span

QUICK = ["--text", "pydoc", "--windows", "4", "--tokens", "48", "--bootstrap", "50"]


@pytest.fixture(autouse=True)
def _no_ambient_data(monkeypatch):
    monkeypatch.delenv("DECONDENSE_DATA", raising=False)
    monkeypatch.setattr("decondense.hub.hub_reachable", lambda: False)


@pytest.fixture
def model(shared):
    return str(shared / "models" / "stories260K")


def test_measure_writes_a_folder_and_says_what_it_found(model, tmp_path):
    out = tmp_path / "deep" / "o"
    code, stdout, _ = run("measure", model, *QUICK, "--out", out, "--spectral", "--released")
    assert code == 0
    assert "ondensing: Spearman" in stdout or "no clear trend: Spearman" in stdout
    assert re.search(r"mean\s+cosine\s+of\s+the\s+blocks\s+0\.\d\d\s+\[0\.\d\d,\s+0\.\d\d\]", stdout)
    assert "embedding" in stdout
    assert "after the final norm" in stdout
    assert all(len(line) <= 80 for line in stdout.splitlines() if "█" in line)
    written = f"written: {out}/result.json, states.csv, heatmap.png, heatmap_released.png"
    assert " ".join(written.split()) in " ".join(stdout.split())
    names = {p.name for p in out.iterdir()}
    assert names == {
        "result.json", "config.yaml", "run.json", "states.csv", "heatmap.png", "heatmap.csv",
        "heatmap_released.png", "heatmap_released.csv",
    }  # fmt: skip
    result = load(out)
    assert result.complete
    assert "effective_rank" in result.record.states[0].row()
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["windows"] == 4
    assert config["spectral"] is True


@pytest.mark.usefixtures("unpainted")
def test_one_window_has_no_interval_to_print(model, tmp_path):
    code, stdout, _ = run("measure", model, *QUICK, "--windows", 1, "--out", tmp_path / "o")
    assert code == 0
    assert "1 window × 48 tokens" in stdout
    assert "nan" not in stdout


@pytest.mark.usefixtures("unpainted")
def test_json_is_all_there_is_on_stdout(model, tmp_path):
    code, stdout, stderr = run("measure", model, *QUICK, "--out", tmp_path / "o", "--json")
    assert code == 0
    assert json.loads(stdout)["schema"] == "decondense.condensation/2"
    assert stdout == (tmp_path / "o" / "result.json").read_text()
    assert stderr == ""


@pytest.mark.usefixtures("unpainted")
def test_compare_results_and_models(model, tmp_path):
    for seed in (0, 1):
        run("measure", model, *QUICK, "--seed", seed, "--out", tmp_path / f"r{seed}")
    out = tmp_path / "c"
    code, stdout, _ = run("compare", tmp_path / "r0", tmp_path / "r1" / "result.json", model, *QUICK[:-2], "--out", out)
    assert code == 0
    assert "Spearman" in stdout
    names = {p.name for p in out.iterdir()}
    figures = {f"{name}.{kind}" for name in ("heatmaps", "trend", "curves") for kind in ("png", "csv")}
    assert names == {"result.json", "results", "config.yaml", "run.json"} | figures
    assert len(json.loads((out / "result.json").read_text())["rows"]) == 3
    code, stdout, _ = run("compare", tmp_path / "r0", tmp_path / "r1", "--paired", "--out", tmp_path / "p", "--json")
    whole = json.loads(stdout)
    assert whole["paired"] is True
    code, stdout, _ = run("compare", tmp_path / "r0", tmp_path / "r1", "--out", tmp_path / "two")
    assert "parameters (no head)" in stdout.splitlines()[0], "which train and evaluate count"
    assert whole["difference"]["sentence"] in " ".join(stdout.split())


@pytest.mark.usefixtures("unpainted")
def test_compare_texts(model, tmp_path, shared):
    options = ["--texts", "imdb,squad", "--data", shared / "data", "--windows", 2, "--tokens", 32]
    code, _, _ = run("compare", model, *options, "--out", tmp_path / "o")
    assert code == 0
    assert json.loads((tmp_path / "o" / "result.json").read_text())["axis"] == "text"
    first, second = sorted(p.name for p in (tmp_path / "o" / "results").iterdir())
    assert first.endswith("models-stories260K-imdb-test")
    assert second.endswith("models-stories260K-squad-validation")


@pytest.mark.usefixtures("unpainted")
def test_comparing_what_differs_is_said_and_no_number_is_cut(model, tmp_path, shared, monkeypatch):
    for name, options in {"short": ["--tokens", "24"], "long": [], "imdb": ["--text", "imdb"]}.items():
        data = ["--data", shared / "data"]
        assert run("measure", model, *QUICK, *data, *options, "--out", tmp_path / name)[0] == 0
    folders = [tmp_path / name for name in ("short", "long", "imdb")]
    for width in (120, 80, 60):
        monkeypatch.setattr(terminal.out, "width", width)
        monkeypatch.setenv("COLUMNS", str(width))
        code, stdout, _ = run("compare", *folders, "--out", tmp_path / "c", "--force")
        assert code == 0
        table = stdout.split("over 3 results:")[0].splitlines()
        assert all(len(line) <= width for line in table)
        rows = json.loads((tmp_path / "c" / "result.json").read_text())["rows"]
        assert all(span(r["spearman"], r["spearman_low"], r["spearman_high"]) in "".join(table) for r in rows)
        assert all(f" {r['mean_cosine']:.3f} " in "".join(table) for r in rows)
        levels = [span(r["last"], r["last_low"], r["last_high"], 3) in "".join(table) for r in rows]
        assert levels == [width == 120] * 3
        words = " ".join(stdout.split())
        assert "note: the windows have 24, 48 tokens" in words
        assert words.count("is last_hidden_state, after the final norm") == 1
        code, stdout, _ = run("measure", model, *QUICK, "--out", tmp_path / "m", "--force")
        lines = stdout.splitlines()
        lines = lines[1 : lines.index(next(line for line in lines if line.startswith("near:")))]
        assert all(len(line) <= width for line in lines)
        assert "…" not in stdout
    assert [r["model"] for r in rows[:2]] == ["stories260K (tokens 24)", "stories260K (tokens 48)"]


@pytest.mark.usefixtures("unpainted")
def test_models_of_one_name_are_told_apart_and_keep_their_own_folders(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for run_name in ("runs/a", "runs/b"):
        shutil.copytree(model, Path(run_name) / "model")
        (Path(run_name) / "model" / "config.json").touch()
        assert run("measure", f"{run_name}/model", *QUICK)[0] == 0
    assert sorted(p.name for p in Path("condensation").iterdir()) == ["runs-a-model", "runs-b-model"]
    _, stdout, _ = run("compare", *Path("condensation").iterdir(), "--json")
    assert {row["model"] for row in json.loads(stdout)["rows"]} == {"a", "b"}


def test_a_result_is_never_replaced_in_silence(model, tmp_path):
    out = tmp_path / "o"
    assert run("measure", model, *QUICK, "--out", out)[0] == 0
    before, picture = ((out / name).read_bytes() for name in ("result.json", "heatmap.png"))
    said = refused("measure", model, *QUICK, "--seed", "1", "--out", out)
    assert "already holds a result: choose another folder with --out" in said
    for more in ([], ["--seed", "1", "--resume"]):  # the very same again, and another
        assert "already holds a result" in refused("measure", model, *QUICK, *more, "--out", out)
    wrong = {"--seed": "-1", "--windows": "0", "--dtype": "int3", "--stack": "left"}
    for name, value in wrong.items():  # what no other folder would mend comes first
        assert f"{name[2:]} must be" in refused("measure", model, *QUICK, name, value, "--out", out)
        assert f"{name[2:]} must be" in refused("compare", model, model, *QUICK[:6], name, value, "--out", out)
    assert "the path does not exist" in refused("measure", "./nowhere", *QUICK, "--out", out)
    assert "at least two results" in refused("compare", model, *QUICK[:6], "--out", out)
    assert (out / "result.json").read_bytes() == before
    assert run("measure", model, *QUICK, "--out", out, "--force")[0] == 0
    assert ((out / "result.json").read_bytes(), (out / "heatmap.png").read_bytes()) == (before, picture)
    assert run("measure", model, *QUICK, "--seed", "1", "--out", out, "--force")[0] == 0
    assert (out / "result.json").read_bytes() != before


@pytest.mark.usefixtures("unpainted")
def test_a_measurement_that_is_finished_is_not_resumed(model, tmp_path):
    out = tmp_path / "o"
    command = ("measure", model, *QUICK, "--out", out)
    assert run(*command, "--resume")[0] == 0  # nothing there yet: it is begun
    stamps = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    said = f"this measurement is finished: {out / 'result.json'}; to make it again, give --force.\n"
    for elsewhere in ["--device", "cpu"], ["--device", "auto"], ["--data", tmp_path]:  # is no other measurement
        assert run(*command, "--resume", *elsewhere) == (0, "", said)
    assert run(*command, "--resume", "--json") == (0, (out / "result.json").read_text(), said)
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == stamps
    assert run(*command, "--resume", "--force")[2] == ""
    assert (out / "result.json").stat().st_mtime_ns > stamps[out / "result.json"]
    whole = (out / "result.json").read_text()
    for other in whole.replace('"complete": true', '"complete": false'), whole.replace('"seed": 0', '"seed": 1'), "{":
        assert other != whole
        (out / "result.json").write_text(other)
        assert "already holds a result" in refused(*command, "--resume")
        assert (out / "result.json").read_text() == other


@pytest.mark.usefixtures("unpainted")
def test_a_result_of_another_kind_is_not_replaced_even_by_force(model, tmp_path):
    runs = Path(__file__).parents[1] / "results" / "studies"
    study = (runs / "theory" / "result.json").read_bytes()
    for command in (("measure", model, *QUICK), ("compare", model, model, *QUICK[:6])):
        for force in ([], ["--force"]):
            (tmp_path / "result.json").write_bytes(study)
            said = refused(*command, "--out", tmp_path, *force)
            assert said.endswith("holds a study: choose another folder with --out.\n")
            assert (tmp_path / "result.json").read_bytes() == study
            (tmp_path / "result.json").unlink()
            (tmp_path / "recipe.yaml").write_text("model: {}")  # a run that is not finished
            assert "holds a training: choose another folder with --out." in refused(*command, "--out", tmp_path, *force)
            (tmp_path / "recipe.yaml").unlink()
            core._write_config(STUDIES["theory"], "smoke", tmp_path, {})  # nor is this study
            assert "holds a study: choose another folder with --out." in refused(*command, "--out", tmp_path, *force)
            (tmp_path / "config.yaml").unlink()
    (tmp_path / "result.json").write_text("{")  # damaged: whatever it was, it is none
    assert "already holds a result" in refused("measure", model, *QUICK, "--out", tmp_path)
    assert run("measure", model, *QUICK, "--out", tmp_path, "--force")[0] == 0


@pytest.mark.usefixtures("unpainted")
@pytest.mark.parametrize("what", ["a call with an argument too many", "a value that does not convert", "elsewhere"])
def test_a_bug_keeps_its_trace(model, tmp_path, monkeypatch, what):
    """Neither is a refusal: no sentence, and the exit code of an uncaught exception, 1."""
    bugs = {
        "a call with an argument too many": (TypeError, "decondense.commands.measure.show", lambda result: None),
        "a value that does not convert": (TypeError, "decondense.commands.measure.bar", None),
        "elsewhere": (ValueError, "decondense.commands.measure.table", lambda *a, **k: int("x")),
    }
    kind, place, broken = bugs[what]
    monkeypatch.setattr(place, broken)
    with pytest.raises(kind):
        run("measure", model, *QUICK, "--out", tmp_path / "o")


WARNS = """
import warnings
from decondense import cli
from decondense.commands import study
from decondense.words import warn
__name__ = "decondense.here"  # whose caller is looked for
def show(*_):
    warn("the text is short.")
    warnings.warn_explicit("an old name", UserWarning, "/lib/other.py", 7)
study._show_list = show
cli.main(["study", "list"])
"""


def test_a_warning_of_ours_is_its_words_alone():
    """The line that it is of is typer's; one of another library keeps its place."""
    done = subprocess.run([sys.executable, "-c", WARNS], capture_output=True, text=True, check=True)
    assert done.stderr == "warning: the text is short.\n/lib/other.py:7: UserWarning: an old name\n"


def test_version_and_help():
    assert run("--version") == (0, f"decondense {decondense.__version__}\n", "")
    for arguments in (("-h",), ("measure", "-h"), ("compare", "--help")):
        code, stdout, _ = run(*arguments)
        assert code == 0
        assert "Usage: decondense" in stdout
    assert stdout.index("--paired") < stdout.index("--json")
    order = ["measure", "compare", "train", "evaluate", "significance", "study", "report", "doctor"]
    assert [c.name or c.callback.__name__ for c in cli.app.registered_commands] == order
    assert run("measure", "x", "--windows", "many")[0] == run("nonsense")[0] == 2


@pytest.mark.parametrize(("words", "both"), [
    ("study list", False), ("study list", True), ("--help", False), ("--version", False),
    ("report nowhere", False), ("report nowhere", True),
])  # fmt: skip
def test_a_reader_that_has_gone_is_no_error(words, both):
    """As in `decondense study list | head -1`, and `2>&1 |`: no trace, and the exit code of tools that SIGPIPE ends."""
    listened, said = os.pipe()
    os.close(listened)
    streams = {"stdout": said, "stderr": said if both else subprocess.PIPE}
    done = subprocess.run([sys.executable, "-m", "decondense", *words.split()], **streams)
    os.close(said)
    if words == "report nowhere" and not both:
        assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    else:
        assert (done.returncode, done.stderr or b"") == (141, b"")


@pytest.mark.parametrize("words", ["study list", "study list --json"])
def test_letters_that_stdout_does_not_have_are_question_marks(words, monkeypatch):
    """As on Windows into a pipe, or with PYTHONIOENCODING: what a script reads is an exit code of 0."""
    seen = []
    for encoding in ("utf-8", "ascii"):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
        with pytest.raises(SystemExit) as ended:
            cli.main(words.split())
        assert not ended.value.code
        seen.append(sys.stdout.buffer.getvalue().decode(encoding))
    assert seen[1] == "".join(letter if letter.isascii() else "?" for letter in seen[0]) != seen[0]


def test_another_pipe_that_breaks_is_a_bug_with_its_trace():
    worker = "def broken(*_, **__): raise BrokenPipeError(32, 'of a worker')"
    code = f"from decondense import cli, studies\n{worker}\nstudies.find = broken\ncli.main(['study', 'dose'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("BrokenPipeError: [Errno 32] of a worker\n")


@pytest.mark.usefixtures("unpainted")
def test_measuring_says_what_it_does(model, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(
        terminal, "_progress_lines", lambda label: contextlib.nullcontext(lambda *at, note="": said.append((*at, note)))
    )
    run("measure", model, *QUICK, "--out", tmp_path / "o")
    notes = [note for *_, note in said]
    before = ["opening the model", "reading the text", "loading the model", "drawing windows"]
    assert [note for note in notes if not note.startswith("state") and note] == [*before, "computing the intervals"]
    first = next(note for note in notes if note.startswith("state"))
    assert re.fullmatch(r"state 0 of \d+ of the next \d windows?", first)


def test_doctor(shared):
    code, stdout, _ = run("doctor", "--data", shared / "data")
    assert code == 0
    for word in ("torch", "kernels:", "smollm2-135m", "wikitext-2", "not reachable"):
        assert word in stdout
    code, stdout, _ = run("doctor", "--json")
    found = json.loads(stdout)
    assert found["texts"]["pydoc"] == "python itself"
    assert found["devices"][0]["name"] == "cpu"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nobody/nothing"], "the hub did not provide it"),
        (["./nowhere"], "the path does not exist"),
        (["./nowhere", "--text", "nor-a-text"], "the path does not exist"),
        (["MODEL", "--seed", "-1"], "seed must be an integer of at least 0, got -1"),
        (["compare", "MODEL", "nobody/nothing"], "model 'nobody/nothing' is no folder"),
        (["MODEL", "--text", "shakespeare"], "text must be a file or one of"),
        (["MODEL", "--text", "EMPTY"], "must hold some words"),
        (["MODEL", "--text", "SHORT"], "too few"),
        (["MODEL", "--windows", "0"], "windows must be an integer of at least 1"),
        (["MODEL", "--tokens", "100000"], "tokens must be at most 512"),
        (["MODEL", "--dtype", "int3"], "dtype must be one of"),
        (["MODEL", "--device", "warp"], "device must be one"),
        (["MODEL", "--stack", "left"], "stack must be one of"),
        (["MODEL", "--stack", "encoder"], "has one stack: leave it out."),
        (["MODEL", "--revision", "main"], "revision belongs to hub ids"),
        (["NOWEIGHTS"], "must hold *.safetensors"),
        (["BADGGUF"], "GGUF"),
        (["MODEL", "--revisions", "a,b", "--resume"], "--revisions cannot be combined"),
        (["compare", "--family", "llama9"], "family must be one of 'gpt2'"),
        (["compare"], "at least two results"),
        (["compare", "NORESULT", "NORESULT"], "schema"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(model, shared, tmp_path, arguments, message):
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "short.txt").write_text("Only a few words.")
    (tmp_path / "noweights").mkdir()
    (tmp_path / "noweights" / "config.json").write_text((shared / "models/stories260K/config.json").read_text())
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    (tmp_path / "x.json").write_text("{}")
    places = {
        "MODEL": model,
        "EMPTY": tmp_path / "empty.txt",
        "SHORT": tmp_path / "short.txt",
        "NOWEIGHTS": tmp_path / "noweights",
        "BADGGUF": tmp_path / "bad.gguf",
        "NORESULT": tmp_path / "x.json",
    }
    command = [] if arguments[0] == "compare" else ["measure"]
    extra = [] if "--text" in arguments else ["--text", "pydoc"]
    assert message in refused(*command, *(places.get(a, a) for a in arguments), *extra, "--out", tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_an_output_folder_that_cannot_be_written(model, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    assert "must be writable" in refused("measure", model, *QUICK, "--out", tmp_path / "file")

    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    said = refused("measure", model, *QUICK, "--out", tmp_path / "o")
    assert "must be writable: permission denied" in said


def test_a_refused_command_leaves_no_folder_above_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    for out in ("a/b/c", "here/b"):
        refused("measure", "no/such-model", *QUICK, "--out", out)
    assert [p.name for p in tmp_path.rglob("*")] == ["here"]


def test_disk_full_while_writing(model, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert "the disk is full" in refused("measure", model, *QUICK, "--out", tmp_path / "o")
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), Interrupted(None)], ids=["loading", "first window"])
def test_ctrl_c_before_any_work_names_no_folder(model, tmp_path, monkeypatch, stop):
    """There is none: what nothing was written into is taken away."""

    def interrupted(*args, **options):
        raise stop

    monkeypatch.setattr("decondense.meter.run.measure", interrupted)
    code, stdout, stderr = run("measure", model, *QUICK, "--out", tmp_path / "new" / "o")
    assert (code, stdout) == (130, "")
    assert stderr == "interrupted.\n"
    assert not (tmp_path / "new").exists()


def test_ctrl_c_while_the_command_is_imported():
    """In the second that typer and the rest take, too; and the installed command is the one that is tested here."""
    finder = "type('F', (), {'find_spec': lambda self, name, *rest: stop() if name == 'typer' else None})()"
    code = f"import runpy, sys\ndef stop(): raise KeyboardInterrupt\nsys.meta_path.insert(0, {finder})\n"
    code += "runpy.run_module('decondense', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted.\n")
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["decondense"] == "decondense.__main__:main"


def test_ctrl_c_leaves_a_valid_result_that_resume_completes(model, tmp_path):
    out, asked = tmp_path / "o", 80
    base = ["measure", model, "--text", "pydoc", "--windows", str(asked), "--tokens", "64", "--bootstrap", "20"]
    base += ["--batch", "1", "--json", "--out", str(out)]
    command = Path(__file__).with_name("command_worker.py")
    running = start(command, tmp_path / "number", *base, DECONDENSE_CHECKPOINT_SECONDS=0)
    deadline = time.monotonic() + 120
    while not (out / "partial-0.npz").exists() and not running.done() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(int((tmp_path / "number").read_text()), signal.SIGINT)
    done = running.result(120)
    assert done.returncode == 130, done.stderr
    assert done.stdout == ""
    assert "Repeat the command with --resume" in done.stderr
    partial = load(out)
    assert 0 < partial.record.windows_done < asked
    assert not partial.complete
    code, _, stderr = run(*base)
    assert (code, "a result that is not finished, which --resume completes: choose" in stderr) == (2, True), stderr
    code, _, stderr = run(*base, "--resume")
    assert code == 0, stderr
    assert load(out).complete  # that it is byte for byte the uninterrupted result is tested with the meter
    assert not list(out.glob("partial*"))
