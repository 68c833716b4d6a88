"""benchmarks/scale_table.py: its formulas against what the code multiplies, sends and (on an H200) held."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from decondense import losses
from decondense.losses import context_parallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
import scale_table as scale

ONE = scale.Model("one layer", 1, 64, 256, 4, 4, 16, 100)


@pytest.mark.parametrize("model", [*scale.QWEN3, scale.GPT2], ids=lambda m: m.name)
def test_parameters_are_those_of_transformers(model):
    from transformers import GPT2Config, GPT2LMHeadModel, Qwen3Config, Qwen3ForCausalLM

    with torch.device("meta"):
        if model.gpt2:
            built = GPT2LMHeadModel(GPT2Config())
        else:
            built = Qwen3ForCausalLM(
                Qwen3Config(
                    vocab_size=model.vocabulary, hidden_size=model.width, intermediate_size=model.inner,
                    num_hidden_layers=model.layers, num_attention_heads=model.heads,
                    num_key_value_heads=model.key_heads, head_dim=model.head, tie_word_embeddings=model.tied,
                )
            )  # fmt: skip
    assert model.parameters == sum(p.numel() for p in built.parameters())


class Products(TorchDispatchMode):
    """Counts the arithmetic of matrix products; torch's own counter leaves out those in place."""

    flops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in ("mm", "bmm", "baddbmm", "baddbmm_"):
            left, right = args[-2:]
            self.flops += 2 * left.numel() * right.shape[-1]
        return func(*args, **(kwargs or {}))


def counted(estimator: str, n: int) -> int:
    z = torch.randn(1, n, ONE.width, requires_grad=True)
    with Products() as counter:
        losses.dispersion(z, estimator=estimator).backward()
    return counter.flops


@pytest.mark.parametrize("n", [512, 1024])
def test_products_of_exact(n):
    """One product halved but for the tiles on the diagonal, which are 256 rows high on a CPU, and one whole."""
    assert counted("exact", n) == pytest.approx(scale.loss_flops(ONE, "exact", n) * n * (1 + 256 / n / 3), rel=1e-9)


@pytest.mark.parametrize("n", [32, 512])
def test_products_of_second_order(n):
    """On a CPU both products are whole: 4 where the kernel has 3."""
    assert counted("second_order", n) == pytest.approx(scale.loss_flops(ONE, "second_order", n) * n * 4 / 3, rel=1e-9)


def test_products_of_sampled():
    assert scale.loss_flops(ONE, "sampled", 4096) * 4096 == pytest.approx(scale.loss_flops(ONE, "exact", 256) * 256)
    assert scale.loss_flops(ONE, "sampled", 100) == scale.loss_flops(ONE, "exact", 100)


class Wire:
    """Stands for torch.distributed seen by rank 0 of `ranks`, and counts the bytes that it is given to send."""

    isend, irecv = "isend", "irecv"

    def __init__(self, ranks: int) -> None:
        self.ranks, self.reduced, self.sent = ranks, 0, 0

    def get_world_size(self, group=None):
        return self.ranks

    def get_rank(self, group=None):
        return 0

    def get_global_rank(self, group, rank):
        return rank

    def all_reduce(self, tensor, group=None):
        self.reduced += tensor.numel() * tensor.element_size()

    def P2POp(self, kind, tensor, peer, group=None):
        return kind, tensor

    def batch_isend_irecv(self, operations):
        for kind, tensor in operations:
            if kind == "isend":
                self.sent += tensor.numel() * tensor.element_size()
            else:
                tensor.zero_()
        return []


@pytest.mark.parametrize("ranks", [2, 8])
def test_bytes_on_the_wire(monkeypatch, ranks):
    b, n = 3, 64
    z = torch.randn(b, n // ranks, ONE.width, requires_grad=True)
    for estimator in ("first_order", "exact"):
        wire = Wire(ranks)
        monkeypatch.setattr(context_parallel, "dist", wire)
        losses.dispersion(z, estimator=estimator, process_group=torch.distributed.ProcessGroup(0, ranks)).backward()
        if estimator == "first_order":
            assert wire.sent == 0
            assert wire.reduced * 2 * (ranks - 1) / ranks == pytest.approx(scale.first_order_bytes(ONE, b, ranks))
        else:
            assert wire.sent == scale.exact_bytes(ONE, b, n, ranks)
            assert wire.reduced == 2 * b * 4  # the sums and the counts


def test_memory_of_a_measured_step():
    """What a training step held beyond one without the loss is one of the two predictions, to one layer's states."""
    rows = scale.read("train_step")
    seen = 0
    for row in rows:
        estimator = row["variant"].removeprefix("+ ")
        if estimator not in scale.ESTIMATORS:
            continue
        model, s = scale.MEASURED[row["model"]]
        b, n = int(row["batch"]), int(row["tokens"])
        (base,) = [r for r in rows if r["model"] == row["model"] and r["variant"] == "cross-entropy"]
        measured = (float(row["peak_GiB"]) - float(base["peak_GiB"])) * scale.GIB
        layer = scale.state_bytes(model, b, n, s) / model.layers
        predicted = [scale.extra_bytes(model, estimator, b, n, s, rides=rides) for rides in (True, False)]
        assert min(abs(measured - p) for p in predicted) <= layer, (row["model"], estimator)
        seen += 1
    assert seen >= 6
