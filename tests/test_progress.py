"""What a long command shows while it works, in a terminal and in a pipe."""

from __future__ import annotations

import importlib
import io
import re
import threading
import time

import pytest
from rich.console import Console
from rich.text import Text

from decondense.commands import terminal


def test_progress_into_a_pipe_is_a_line_now_and_then_with_the_time_left(capsys, monkeypatch):
    clock = iter((0.0, 1.0, 11.0, 12.0, 22.0, 40.0, 50.0, 60.0, 72.0))
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(clock))
    with terminal.progress_bar("measuring x", quiet=False) as move:
        for done in (0, 10, 11, 21):
            move(done, 100)
        move(5, 30, "step")
        move(10, 30, "step", "loss 2.5")
        for done in (0, 5000):
            move(done, None, "tokenising")
    assert capsys.readouterr().err.splitlines() == [
        "measuring x: 10 of 100, about 90 s left",
        "measuring x: 21 of 100, about 79 s left",
        "step: 5 of 30",
        "step: 10 of 30, about 40 s left; loss 2.5",
        "tokenising: 0 s so far",
        "tokenising: 5,000, 12 s so far",
    ]
    with terminal.progress_bar("x", quiet=True) as move:
        move(1, 2, "step", "loss 2.5")
    assert capsys.readouterr() == ("", "")


def test_a_single_call_that_takes_long_is_not_silent_in_a_pipe(capsys, monkeypatch):
    def hear(pattern):
        """What is said until a line is like this, which nothing calls for; the thread that says it may come late."""
        said, end = "", time.monotonic() + 30
        while not re.search(f"^{pattern}$", said, re.MULTILINE):
            assert time.monotonic() < end, said
            time.sleep(0.05)
            said += capsys.readouterr().err
        return said

    monkeypatch.setattr(terminal, "EVERY", 0.5)
    with terminal.progress_bar("measuring x", quiet=False) as move:
        told = terminal.with_stages(move)
        told["stage"]("loading the model")
        said = hear(r"measuring x: loading the model, [1-9] s so far")
        assert all(re.fullmatch(r"measuring x: loading the model, \d s so far", line) for line in said.splitlines())
        told["progress"](0, 4)
        told["stage"]("state 3 of 30")
        hear("measuring x: 0 of 4; state 3 of 30")
        told["progress"](4, 4)
        told["stage"]("computing the intervals")
        hear(r"measuring x: computing the intervals, [1-9] s so far")
    before = threading.active_count()
    capsys.readouterr()
    with terminal.progress_bar("x", quiet=True) as move:
        assert threading.active_count() == before
        terminal.with_stages(move)["stage"]("nobody listens")
    assert capsys.readouterr().err == ""


def test_progress_in_a_terminal_shows_the_time_left(monkeypatch):
    """Of a run that goes on at step 400 of 1000 and makes one in two seconds: not what has passed, nor a pace that
    counts the 400."""
    now, file = [0.0], io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, get_time=lambda: now[0])
    monkeypatch.setattr(terminal, "err", console)
    with terminal.progress_bar("tokenising", quiet=False) as move:
        move(10, 10)
        for step in range(400, 421):
            now[0] += 2.0
            move(step, 1000, "step", "[loss] 2.5")
        now[0] += 0.6  # rich reckons anew twice a second
    shown = Text.from_ansi(file.getvalue()).plain
    assert re.search(r"step .* 420/1000 0:19:20 left \[loss\] 2\.5", shown)
    assert "?  left" not in shown, "nothing is said of a time that nobody knows"


def test_another_work_in_a_terminal_takes_over_no_number(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(terminal, "err", Console(file=file, force_terminal=True, width=100))
    with terminal.progress_bar("getting ready", quiet=False) as move:
        move(7, 10, "step", "loss 2.5")
        move(1, 4, "windows")
        move(0, None, "saving the model")
        move(70, None, "tokenising")
        move(80, None, "tokenising")
        move(8, 10, "step", "loss 2.4")
    frames = Text.from_ansi(file.getvalue().replace("\r", "\n")).plain.splitlines()
    for words, number in (("windows", "1/4"), ("saving the model", "0/?"), ("tokenising", "0/?"), ("step", "/10")):
        lines = [line for line in frames if words in line]
        assert lines
        assert all(number in line and ("loss" in line) == (words == "step") for line in lines), lines


@pytest.mark.parametrize(("value", "width", "shown"), [(0.5, 8, "████"), (1.2, 4, "████"), (-0.1, 9, "◂"), (0, 9, "")])
def test_bar(value, width, shown):
    assert terminal.bar(value, width=width) == shown


def test_what_a_library_logs_to_stdout_at_its_import_is_not_before_the_json(capsys, tmp_path, monkeypatch):
    """As deepspeed does, which accelerate imports where it is installed: its handler keeps the stream it found."""
    words = "import logging, sys\nlog = logging.getLogger('loud')\nlog.addHandler(logging.StreamHandler(sys.stdout))\n"
    (tmp_path / "loud.py").write_text(words + "log.warning('at its import')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with terminal.progress_bar("training", quiet=True) as move:
        loud = importlib.import_module("loud")
        move(1, 2)
    print("{}")
    loud.log.warning("later")
    assert capsys.readouterr() == ("{}\n", "at its import\nlater\n")
