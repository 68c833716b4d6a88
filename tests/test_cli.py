from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml

from decondense import cli
from decondense.meter import load

QUICK = ["--text", "pydoc", "--windows", "4", "--tokens", "48", "--bootstrap", "50"]


@pytest.fixture(autouse=True)
def _no_ambient_data(monkeypatch):
    monkeypatch.delenv("DECONDENSE_DATA", raising=False)
    monkeypatch.setattr("decondense.hub.hub_reachable", lambda: False)


@pytest.fixture
def model(shared):
    return str(shared / "models" / "stories260K")


def run(capsys, *arguments):
    """(exit code, stdout, stderr) of the command."""
    with pytest.raises(SystemExit) as caught:
        cli.main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return caught.value.code or 0, captured.out, captured.err


def test_measure_writes_a_folder_and_says_what_it_found(capsys, model, tmp_path):
    out = tmp_path / "deep" / "o"
    code, stdout, _ = run(capsys, "measure", model, *QUICK, "--out", out, "--spectral", "--released")
    assert code == 0
    assert "ondensing: Spearman" in stdout or "no clear trend: Spearman" in stdout
    assert "embedding" in stdout
    assert "after the final norm" in stdout
    assert all(len(line) <= 80 for line in stdout.splitlines() if "█" in line)
    names = {p.name for p in out.iterdir()}
    assert names == {
        "result.json", "config.yaml", "run.json", "states.csv", "heatmap.png", "heatmap.csv",
        "heatmap_released.png", "heatmap_released.csv",
    }  # fmt: skip
    result = load(out)
    assert result.complete
    assert "effective_rank" in result.record["states"][0]
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["windows"] == 4
    assert config["spectral"] is True


def test_the_same_command_gives_the_same_bytes(capsys, model, tmp_path):
    for name in ("a", "b"):
        assert run(capsys, "measure", model, *QUICK, "--out", tmp_path / name)[0] == 0
    assert (tmp_path / "a" / "result.json").read_bytes() == (tmp_path / "b" / "result.json").read_bytes()
    assert (tmp_path / "a" / "heatmap.png").read_bytes() == (tmp_path / "b" / "heatmap.png").read_bytes()


def test_json_is_all_there_is_on_stdout(capsys, model, tmp_path):
    code, stdout, stderr = run(capsys, "measure", model, *QUICK, "--out", tmp_path / "o", "--json")
    assert code == 0
    assert json.loads(stdout)["schema"] == "decondense.condensation/1"
    assert stdout == (tmp_path / "o" / "result.json").read_text()
    assert stderr == ""


def test_compare_results_and_models(capsys, model, tmp_path):
    for seed in (0, 1):
        run(capsys, "measure", model, *QUICK, "--seed", seed, "--out", tmp_path / f"r{seed}")
    out = tmp_path / "c"
    code, stdout, _ = run(
        capsys, "compare", tmp_path / "r0", tmp_path / "r1" / "result.json", model, *QUICK[:-2], "--out", out
    )
    assert code == 0
    assert "Spearman" in stdout
    names = {p.name for p in out.iterdir()}
    assert names == {"result.json", "heatmaps.png", "heatmaps.csv", "trend.png", "trend.csv", "results"}
    assert len(json.loads((out / "result.json").read_text())["rows"]) == 3
    code, stdout, _ = run(
        capsys, "compare", tmp_path / "r0", tmp_path / "r1", "--paired", "--out", tmp_path / "p", "--json"
    )
    assert json.loads(stdout)["paired"] is True


def test_compare_texts(capsys, model, tmp_path, shared):
    options = ["--texts", "imdb,squad", "--data", shared / "data", "--windows", 2, "--tokens", 32]
    code, _, _ = run(capsys, "compare", model, *options, "--out", tmp_path / "o")
    assert code == 0
    assert json.loads((tmp_path / "o" / "result.json").read_text())["axis"] == "text"
    assert sorted(p.name for p in (tmp_path / "o" / "results").iterdir()) == [
        "stories260K-imdb-test",
        "stories260K-squad-validation",
    ]


def test_doctor(capsys, shared):
    code, stdout, _ = run(capsys, "doctor", "--data", shared / "data")
    assert code == 0
    for word in ("torch", "kernels:", "smollm2-135m", "wikitext-2", "not reachable"):
        assert word in stdout
    code, stdout, _ = run(capsys, "doctor", "--json")
    found = json.loads(stdout)
    assert found["texts"]["pydoc"] == "python itself"
    assert found["devices"][0]["name"] == "cpu"


def sentence(code, stderr):
    """One sentence on stderr, exit code 2."""
    assert code == 2
    lines = stderr.strip().splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("error: ")
    assert "Traceback" not in stderr
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nobody/nothing"], "the hub did not provide it"),
        (["./nowhere"], "the path does not exist"),
        (["MODEL", "--text", "shakespeare"], "text must be a file or one of"),
        (["MODEL", "--text", "EMPTY"], "must hold some words"),
        (["MODEL", "--text", "SHORT"], "too few"),
        (["MODEL", "--windows", "0"], "windows must be an integer of at least 1"),
        (["MODEL", "--tokens", "100000"], "tokens must be at most 512"),
        (["MODEL", "--dtype", "int3"], "dtype must be one of"),
        (["MODEL", "--device", "warp"], "device must be one"),
        (["MODEL", "--stack", "left"], "stack must be one of"),
        (["MODEL", "--revision", "main"], "revision belongs to hub ids"),
        (["NOWEIGHTS"], "must hold *.safetensors"),
        (["BADGGUF"], "GGUF"),
        (["MODEL", "--revisions", "a,b", "--resume"], "--revisions cannot be combined"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(capsys, model, shared, tmp_path, arguments, message):
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "short.txt").write_text("Only a few words.")
    (tmp_path / "noweights").mkdir()
    (tmp_path / "noweights" / "config.json").write_text((shared / "models/stories260K/config.json").read_text())
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    places = {
        "MODEL": model,
        "EMPTY": tmp_path / "empty.txt",
        "SHORT": tmp_path / "short.txt",
        "NOWEIGHTS": tmp_path / "noweights",
        "BADGGUF": tmp_path / "bad.gguf",
    }
    given = [places.get(a, a) for a in arguments]
    extra = [] if "--text" in arguments else ["--text", "pydoc"]
    code, stdout, stderr = run(capsys, "measure", *given, *extra, "--out", tmp_path / "o")
    assert message in sentence(code, stderr)
    assert stdout == ""
    assert not (tmp_path / "o").exists()


def test_unknown_family_and_lonely_result(capsys, model, tmp_path):
    code, _, stderr = run(capsys, "compare", "--family", "llama9", "--out", tmp_path / "o")
    assert "family must be one of gpt2" in sentence(code, stderr)
    code, _, stderr = run(capsys, "compare", "--out", tmp_path / "o")
    assert "at least two results" in sentence(code, stderr)
    (tmp_path / "x.json").write_text("{}")
    code, _, stderr = run(capsys, "compare", tmp_path / "x.json", tmp_path / "x.json", "--out", tmp_path / "o")
    assert "schema" in sentence(code, stderr)


def test_an_output_folder_that_cannot_be_written(capsys, model, tmp_path):
    (tmp_path / "file").write_text("in the way")
    code, _, stderr = run(capsys, "measure", model, *QUICK, "--out", tmp_path / "file")
    assert "must be writable" in sentence(code, stderr)
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    if os.access(locked, os.W_OK):
        pytest.skip("this user may write everywhere")
    code, _, stderr = run(capsys, "measure", model, *QUICK, "--out", locked)
    assert "must be writable: permission denied" in sentence(code, stderr)


def test_read_only_folder_for_a_user_who_may_write_everywhere(capsys, model, tmp_path, monkeypatch):
    import tempfile

    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    code, _, stderr = run(capsys, "measure", model, *QUICK, "--out", tmp_path / "o")
    assert "must be writable: permission denied" in sentence(code, stderr)


def test_a_refused_command_leaves_no_folder_above_its_own(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    for out in ("a/b/c", "here/b"):
        code, _, _ = run(capsys, "measure", "no/such-model", *QUICK, "--out", out)
        assert code == 2
    assert [p.name for p in tmp_path.rglob("*")] == ["here"]


def test_disk_full_while_writing(capsys, model, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    code, _, stderr = run(capsys, "measure", model, *QUICK, "--out", tmp_path / "o")
    assert "the disk is full" in sentence(code, stderr)
    assert not (tmp_path / "o").exists()


def test_wrong_usage_is_exit_code_2(capsys):
    assert run(capsys, "measure", "x", "--windows", "many")[0] == 2
    assert run(capsys, "nonsense")[0] == 2


def test_ctrl_c_leaves_a_valid_result_that_resume_completes(model, tmp_path):
    out, asked = tmp_path / "o", 400
    base = [sys.executable, "-m", "decondense.cli", "measure", model, "--text", "pydoc", "--windows", str(asked)]
    base += ["--tokens", "64", "--bootstrap", "20", "--batch", "1", "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*base, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment | {"DECONDENSE_CHECKPOINT_SECONDS": "0"},
        # a shell that starts the tests in the background lets them, and so this process, ignore Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    while not (out / "partial-0.npz").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert stdout == ""
    assert "Repeat the command with --resume" in stderr
    partial = load(out)
    assert 0 < partial.record["windows_done"] < asked
    assert not partial.complete
    resumed = subprocess.run([*base, "--out", str(out), "--resume"], capture_output=True, env=environment)
    assert resumed.returncode == 0, resumed.stderr
    assert load(out).complete  # that it is byte for byte the uninterrupted result is tested with the meter
    assert not list(out.glob("partial*"))
