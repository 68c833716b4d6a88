"""Benchmarks for a GPU where there is none: they run, agree with float64, and a row that fails says why."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    for name in ("harness", "tables", "bench_heads", "bench_long", "bench_exact", "bench_first_order"):
        sys.modules.pop(name, None)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
def test_it_runs_on_a_cpu_and_a_row_that_fails_stops_no_other(script, monkeypatch, tmp_path):
    heads, harness, tables = script("bench_heads"), script("harness"), script("tables")

    def broken():
        raise RuntimeError("this kernel\nis broken")

    monkeypatch.setattr(heads, "PLAIN", [heads.PLAIN[0], ("broken", broken, "torch"), *heads.PLAIN[1:]])
    monkeypatch.setattr(sys, "argv", ["bench_heads.py", "--device", "cpu", "--out", str(tmp_path)])
    heads.main()
    rows = {row["what"]: row for row in harness.read("heads", tmp_path)}
    assert list(rows) == [what for what, _, _ in heads.PLAIN]
    assert rows.pop("broken")["why_not"] == "RuntimeError: this kernel"
    ours = rows[heads.OURS]
    assert ours["ratio"] == "1"
    assert not ours["why_not"]
    for row in rows.values():
        if not row["why_not"]:
            assert float(row["loss"]) == pytest.approx(float(ours["loss"]), rel=0.01)
            assert 0 < float(row["hidden_error"]) < 0.02
            assert 0 < float(row["weight_error"]) < 0.02
    monkeypatch.setattr(tables, "read", lambda name: harness.read(name, tmp_path))
    assert "RuntimeError: this kernel |" in tables.heads()


def test_all_ways_give_the_loss_and_gradients_of_float64(script):
    """In float32, where nothing is rounded away: what the bfloat16 rows are compared with is right."""
    heads = script("bench_heads")
    given = heads.few_labels(heads.case((2, 9, 8, 40), "cpu"))
    wanted = heads.reference(given)
    logits = given.hidden[0, :-1].double() @ given.weight.double().T
    target = given.labels[0, 1:]
    p = torch.softmax(logits, -1)
    p[torch.arange(8), target] -= 1
    torch.testing.assert_close(wanted[0][0, :-1], p @ given.weight.double() / 8)
    torch.testing.assert_close(wanted[1], p.T @ given.hidden[0, :-1].double() / 8)
    for what, make, _ in heads.PLAIN[:2]:
        _, hidden, weight = heads.gradients(make(), given, half=False)
        torch.testing.assert_close(hidden[:1].double(), wanted[0], msg=what, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(weight.double(), wanted[1], msg=what, rtol=1e-4, atol=1e-6)


def test_no_time_left(script, monkeypatch, tmp_path):
    heads, harness = script("bench_heads"), script("harness")
    monkeypatch.setattr(sys, "argv", ["x", "--device", "cpu", "--seconds", "0", "--out", str(tmp_path)])
    heads.main()
    assert {row["why_not"] for row in harness.read("heads", tmp_path)} == {"no time left"}


def test_shares_of_an_attention_layer(script, monkeypatch, tmp_path):
    long, harness, tables = script("bench_long"), script("harness"), script("tables")
    times = iter((8.0, 2.0, 8.0, 1.0))  # by the device, two lengths of attention and a loss
    monkeypatch.setattr(harness, "need_cuda", lambda: None)
    monkeypatch.setattr(harness, "call_time", lambda calls, **_: len([call() for call in calls]))
    monkeypatch.setattr(harness, "device_time", lambda calls, **_: next(times))

    def attention(tokens):
        return long_attention(tokens, "cpu")

    def broken(tokens):
        raise RuntimeError("out of memory\nfor this")

    long_attention = long.attention
    variants = [("attention", attention), ("loss", lambda tokens: lambda: None), ("broken", broken)]
    monkeypatch.setattr(long, "attention", attention)
    monkeypatch.setattr(long, "VARIANTS", variants)
    monkeypatch.setattr(long, "LENGTHS", (16, 32))
    monkeypatch.setattr(sys, "argv", ["bench_long.py", "--out", str(tmp_path)])
    long.main()
    rows = harness.read("long", tmp_path)
    assert [row["share"] for row in rows] == ["1", "0.25", "", "1", "0.125", ""]
    assert {row["why_not"] for row in rows} == {"", "RuntimeError: out of memory"}
    monkeypatch.setattr(tables, "read", lambda name: harness.read(name, tmp_path))
    assert "| 32 | loss | 1 | 0.125 |  |" in tables.long()
