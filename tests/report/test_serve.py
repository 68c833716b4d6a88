"""The page on loopback: it follows a run, and serves nothing else and nobody else."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import urllib.error
import urllib.request

import pytest
from page_results import write_measurement, write_run

from decondense.cli import main
from decondense.report.page import collect
from decondense.report.runs import now
from decondense.report.serve import server
from decondense.words import duration


@contextlib.contextmanager
def served(folder):
    with server([folder]) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def begun_run(folder, *, lines: int) -> dict:
    """A run that trains: two snapshots, and so many lines of its log; returns what its result will be."""
    record = write_run(folder, layers=3, steps=20, snapshots=(0, 10))
    (folder / "result.json").unlink()
    go_on(folder, record, lines)
    return record


def go_on(folder, record: dict, lines: int) -> None:
    so_far = {"finished": False, "tokens": 20_000, "history": record["history"][:lines], "snapshots": []}
    so_far |= {"held_out": record["held_out"][:1], "tokens_per_second": 100.0}
    (folder / "progress.json").write_text(json.dumps(record | so_far))


def test_the_page_follows_a_run_while_it_trains(tmp_path):
    with served(tmp_path) as home:

        def get(path, **headers):
            with urllib.request.urlopen(urllib.request.Request(home + path, headers=headers), timeout=30) as answer:
                return answer.read().decode()

        empty = json.loads(get("/now"))
        assert empty["runs"] == []
        assert "No result yet" in get("/")
        record = begun_run(tmp_path / "run", lines=12)
        begun = json.loads(get("/now"))
        assert begun["stamp"] != empty["stamp"]
        (run,) = begun["runs"]
        last = record["history"][11]
        assert (run["run"], run["step"], run["steps"]) == ("run", 12, 20)
        left = (1 - 12 / 20) * 20_000 / 100
        held_out = record["held_out"][0]
        assert run["words"] == (
            f"step 12 of 20, about {duration(left)} left, loss {last['task_loss']:.3f}, "
            f"held-out loss {held_out['loss']:.3f}"
        )
        assert run["lines"]["task_loss"] == [list(range(1, 13)), [row["task_loss"] for row in record["history"][:12]]]
        assert run["lines"]["held_out"] == [[held_out["step"]], [held_out["loss"]]]
        page = get("/")
        assert f"data-stamp={begun['stamp']}" in page
        assert "still training: 20 steps are planned" in page
        assert "connect-src &#39;self&#39;" in page
        os.utime(tmp_path / "run" / "progress.json", (1, 1))
        assert "nothing new for" in json.loads(get("/now"))["runs"][0]["words"]
        assert json.loads(get("/now"))["stamp"] == begun["stamp"], "the page is not made anew for a line of the log"
        write_run(tmp_path / "run", layers=3, steps=20, snapshots=(0, 10, 20))
        ended = json.loads(get("/now"))
        assert ended["stamp"] != begun["stamp"]
        assert ended["runs"] == []
        assert "still training" not in get("/")
        write_measurement(tmp_path / "m", layers=3)
        assert "1 measurement" in get("/")
        for path, headers, code in (("/recipe.yaml", {}, 404), ("/", {"Host": "evil.example"}, 403)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(path, **headers)
            assert refused.value.code == code


def test_its_loss_is_drawn_and_drawn_on(browser, tmp_path):
    from browsing import until

    record = begun_run(tmp_path / "run", lines=5)
    with served(tmp_path) as home:
        page = browser.new_page()
        said = []
        page.on("console", lambda message: said.append(message.text))
        page.goto(home)
        page.wait_for_selector("#now-p0-c0[data-drawn] .main-svg")
        assert page.locator("#now-runs progress").get_attribute("value") == "5"
        go_on(tmp_path / "run", record, 9)
        page.wait_for_selector("#now-runs progress[value='9']")
        until(page, "document.querySelector('#now-p0-c0 .plot').data[0].x.length === 9")
        page.close()
        assert said == []


def test_a_place_that_does_not_exist_is_told_at_once(tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match="no folder at"):
        server([tmp_path / "nowhere"])
    with server([tmp_path]) as taken:
        wrong = {(tmp_path, "99999"): "--port", (tmp_path / "nowhere", "0"): "error: no folder at"}
        wrong[tmp_path, str(taken.server_port)] = f"error: --port must be free, but {taken.server_port} is not"
        for (place, port), said in wrong.items():
            with pytest.raises(SystemExit) as stopped:
                main(["report", str(place), "--serve", "--port", port])
            assert stopped.value.code == 2
            assert said in capsys.readouterr().err


def test_a_run_that_is_not_finished_is_named_where_it_is_left_out(tmp_path):
    begun_run(tmp_path / "run", lines=5)
    with pytest.raises(ValueError, match=r"Skipped run: the run is not finished: show it with --serve"):
        collect([tmp_path])
    write_measurement(tmp_path / "m", layers=3)
    assert [one.folder for one in collect([tmp_path]).skipped] == ["run"]


def test_a_snapshot_that_cannot_be_read_hides_no_run(tmp_path):
    begun_run(tmp_path / "run", lines=5)
    (tmp_path / "run" / "snapshots" / "step-000010.json").write_text("{")
    assert [run["step"] for run in now([tmp_path])] == [5]
    (section,) = collect([tmp_path], running=True).sections
    assert section.notes == ["still training: 20 steps are planned."]
