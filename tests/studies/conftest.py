"""Every test starts without a data folder, a benchmark folder and a hub; the command is there as users have it."""

from __future__ import annotations

import pytest

from decondense import cli


@pytest.fixture(autouse=True)
def _no_ambient_data(monkeypatch):
    monkeypatch.delenv("DECONDENSE_DATA", raising=False)
    monkeypatch.delenv("DECONDENSE_BENCH", raising=False)
    monkeypatch.setattr("decondense.hub.hub_reachable", lambda: False)


@pytest.fixture
def command(capsys):
    """A function of arguments: (exit code, stdout, stderr) of the command."""

    def run(*arguments):
        with pytest.raises(SystemExit) as caught:
            cli.main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return caught.value.code or 0, captured.out, captured.err

    return run


@pytest.fixture
def refusal(command):
    """A function of arguments: the sentence with which the command refuses them, exit code 2."""

    def refuse(*arguments):
        code, _, err = command(*arguments)
        assert code == 2
        *_, last = err.strip().splitlines()
        assert last.startswith("error: ")
        return last

    return refuse
