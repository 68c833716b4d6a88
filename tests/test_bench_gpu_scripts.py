"""Benchmarks for a GPU where there is none: they run, agree with float64, and a row that fails says why."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from decondense.term import Term
from decondense.train import fast

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    for path in BENCHMARKS.glob("*.py"):
        sys.modules.pop(path.stem, None)


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


def test_the_meter_beside_bare_passes(script, monkeypatch, capsys):
    """Its functions are called by names that the package does not promise."""
    measure = script("bench_measure")
    config = LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, vocab_size=32
    )
    monkeypatch.setattr("decondense.models.load", lambda *_, **__: (LlamaModel(config).eval(), None))
    monkeypatch.setattr("decondense.text.open_text", lambda _name: None)
    monkeypatch.setattr("decondense.windows.draw_windows", lambda *_, **__: SimpleNamespace(ids=np.ones((3, 8), int)))
    monkeypatch.setattr(sys, "argv", ["bench_measure.py", "--job", "time", "--tokens", "8", "--batch", "2"])
    measure.main()
    spent = json.loads(capsys.readouterr().out)
    assert list(spent) == ["bare", "default", "spectral"]
    assert all(times["wall_s"] > 0 for times in spent.values())


def test_two_batches_are_each_compared_with_their_own_bare_passes(script, monkeypatch, tmp_path):
    measure, harness, tables = script("bench_measure"), script("harness"), script("tables")
    times = {"4": {"bare": 2.0, "default": 3.0}, "16": {"bare": 1.0, "default": 1.25}}
    found = {n: {name: {"wall_s": s, "cpu_s": s, "peak_gib": s} for name, s in of.items()} for n, of in times.items()}
    monkeypatch.setattr(measure.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=json.dumps(found)))
    monkeypatch.setattr(sys, "argv", ["bench_measure.py", "--device", "cuda", "--out", str(tmp_path)])
    measure.main()
    rows = harness.read("measure_gpu", tmp_path)
    assert [(row["batch"], row["wall_ratio"]) for row in rows] == [
        ("4", "1"),
        ("4", "1.5"),
        ("16", "1"),
        ("16", "1.25"),
    ]
    monkeypatch.setattr(tables, "read", lambda name: harness.read(name, tmp_path))
    for line in "| 4 | default | 3 | 1.500 | 1 |", "| 16 | default | 1.25 | 1.250 | 0.25 |":
        assert line in tables.measure_gpu()


def test_several_batches_are_for_a_gpu(script, monkeypatch, capsys):
    measure = script("bench_measure")
    for batch, said in ("4,16", "several batches are for a GPU"), ("4;16", "must be whole numbers"):
        monkeypatch.setattr(sys, "argv", ["bench_measure.py", "--batch", batch])
        with pytest.raises(SystemExit, match="2"):
            measure.main()
        assert said in capsys.readouterr().err


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


def test_a_step_in_a_bfloat16_stream_recorded(script, monkeypatch, tmp_path):
    """Every block's output, and all that the loss sees, is bfloat16 while the weights are float32; the profile adds up
    and has what the loss calls."""
    throughput, recorded, harness = script("bench_throughput"), script("profile_compiled_step"), script("harness")
    tiny = {"vocab_size": 300, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2}
    monkeypatch.setattr(throughput, "SMOLLM2", tiny | {"num_attention_heads": 2, "num_key_value_heads": 1})
    monkeypatch.setattr(throughput, "CONTEXT", 16)
    exact = ["loss.name=dispersion", "loss.options.estimator=exact"]
    monkeypatch.setattr(throughput, "OPTIONS", [("none", ["train.fused_loss=true"]), ("exact", exact)])
    monkeypatch.setattr(harness, "need_cuda", lambda: None)
    seen, forward, penalty = set(), LlamaDecoderLayer.forward, Term.penalty

    @functools.wraps(forward)
    def block(self, *args, **kwargs):
        out = forward(self, *args, **kwargs)
        if self.training:
            seen.update({out.dtype} | {f"weights in {parameter.dtype}" for parameter in self.parameters()})
        return out

    def taken(self, capture, *args, **kwargs):
        seen.update(state.dtype for state in capture.states)
        return penalty(self, capture, *args, **kwargs)

    monkeypatch.setattr(LlamaDecoderLayer, "forward", block)
    monkeypatch.setattr(Term, "penalty", taken)
    for stream in ("float32", "bfloat16"):
        seen.clear()
        given = ["--streams", stream, "--steps", "1", "--batch-tokens", "32", "--out", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", ["profile_compiled_step.py", *given])
        recorded.main()
        assert seen == {getattr(torch, stream), "weights in torch.float32"}
    rows = harness.read("profile_compiled_step", tmp_path)
    assert {row["variant"] for row in rows} == {"none", "exact"}
    for variant in ("none", "exact"):
        *kernels, whole, clock = [row for row in rows if row["variant"] == variant]
        assert (whole["kernel"], clock["kernel"]) == ("sum", "by the clock")
        assert sum(float(row["us"]) for row in kernels) == pytest.approx(float(whole["us"]), rel=1e-3)
        assert (float(whole["added_calls"]) > 0) == (variant == "exact")


def test_what_the_loss_adds_to_a_recorded_step(script):
    recorded = script("profile_compiled_step")
    base = recorded.Profile({"gemm": 2, "tiny": 1}, {"gemm": 9000.0, "tiny": 1.0}, 10000.0)
    found = recorded.Profile(
        {"gemm": 2, "_project_kernel_0": 3, "add": 1}, {"gemm": 9003.0, "_project_kernel_0": 90.0, "add": 2.0}, 11000.0
    )
    rows = recorded.compared(found, base)
    figures = [(row["kernel"], row["calls"], row["us"], row["added_calls"], row["added_us"]) for row in rows]
    assert figures == [
        ("_project_kernel_0", 3, 90, 3, 90),
        ("gemm", 2, 9003, 0, 3),
        ("the rest", 1, 2, 0, 1),
        ("sum", 6, 9095, 3, 94),
        ("by the clock", "", 11000, "", 1000),
    ]
    assert rows[0]["what"] == "gradient: read z, write"
    assert [rows[3]["of_step"], rows[4]["of_step"]] == [94 / 9001, 0.1]


@pytest.mark.parametrize(
    ("kernel", "printed"),
    [
        ("void at::native::(anonymous namespace)::sum<at::f<4>, long>(int, at::g<2>)", "sum"),
        ("void cutlass::device_kernel<cutlass::gemm<a::b<(c)1>>>(int)", "device_kernel"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD"),
        ("by the clock", "by the clock"),
        ("triton_" + "a" * 600, "triton_" + "a" * 53),
    ],
)
def test_a_kernel_is_printed_by_its_last_name(script, kernel, printed):
    assert script("profile_compiled_step").short(kernel) == printed


def test_a_run_that_is_cut_off_keeps_what_it_had(script, monkeypatch, tmp_path):
    throughput, harness = script("bench_throughput"), script("harness")
    speeds = iter((8.0, 4.0))
    monkeypatch.setattr(
        throughput, "measure", lambda name, *rest: {"option": name, "tokens_per_s": next(speeds, None) or sys.exit(3)}
    )
    monkeypatch.setattr(harness, "need_cuda", lambda: None)
    monkeypatch.setattr(sys, "argv", ["bench_throughput.py", "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        throughput.main()
    assert [row["ratio"] for row in harness.read("throughput", tmp_path)] == ["1", "0.5"]


def test_a_row_is_compared_with_the_one_without_a_loss_of_its_round(script, monkeypatch, tmp_path):
    throughput, harness = script("bench_throughput"), script("harness")
    speeds = iter((8.0, 4.0, 2.0, 1.0, 1.0, 10.0, 5.0, 4.0, 2.0, 1.0))

    def measure(name, settings, *size):
        inside = torch.float32 in fast.TAPPED
        assert name.startswith("+") or inside == ("in the blocks" in name)
        return {"option": name, "tokens_per_s": next(speeds)}

    monkeypatch.setattr(throughput, "measure", measure)
    monkeypatch.setattr(harness, "need_cuda", lambda: None)
    monkeypatch.setattr(sys, "argv", ["bench_throughput.py", "--turns", "1", "--out", str(tmp_path)])
    throughput.main()
    rows = harness.read("throughput_turns", tmp_path)
    assert [float(row["ratio"]) for row in rows] == [1, 0.5, 0.25, 0.125, 0.125, 1, 0.5, 0.4, 0.2, 0.1]
    assert [row["option"].endswith("in a bfloat16 stream") for row in rows] == [False] * 5 + [True] * 5
    bare, *losses = [name for name, _ in throughput.OPTIONS[-3:]]
    expected = [bare, *(f"{name}, {place}" for name in losses for place in ("in the blocks", "afterwards"))]
    assert [row["option"] for row in rows[:5]] == expected
    assert [torch.float32] == list(fast.TAPPED)
