"""Output head and cross-entropy, value and gradients: the fused head of `decondense train` against other ways to do it.

Every row: the last hidden states (batch, tokens, width) and the tied head weight (vocabulary, width), both float32 as
they are in training under bfloat16 autocast, in; the mean loss over next tokens and the gradients of both, out. The
logits resemble those of a trained model, not of fresh weights: a few tokens have most of the probability. Of nearly
uniform logits cut-cross-entropy, which skips what is too small to change a bfloat16 sum, would leave nothing.

    python benchmarks/bench_heads.py [--out DIR]              # a GPU
    python benchmarks/bench_heads.py --device cpu --out DIR   # small shape, nothing compiled: checks that it runs

The error is ‖g − g₆₄‖/‖g₆₄‖ of a gradient from a second call of the same function at the same shape, in which only 512
tokens have labels, so that float64 is cheap. cut-cross-entropy and liger-kernel are not dependencies of this project
and are used where they are installed; a row that cannot be made says why, and the others go on.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import itertools
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import harness
import torch
from torch import Tensor
from torch.nn import functional as F

from decondense.train.fast import compiled_head, head_loss

COLUMNS = ("model", "tokens", "width", "vocabulary", "what", "ms", "ratio", "peak_gib", "loss", "hidden_error",
           "weight_error", "version", "why_not")  # fmt: skip
OURS = "decondense train, fused head"
LABELLED = 512  # tokens of the comparison with float64
# batch, tokens, width, vocabulary
SHAPES = [
    ("SmolLM2-135M", (32, 1024, 576, 49152)),
    ("SmolLM2-135M", (128, 1024, 576, 49152)),
    ("GPT-2", (32, 1024, 768, 50257)),
]
SMALL = [("small", (2, 16, 32, 128))]
Head = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # hidden, weight, labels, number of labels → loss


class Case(NamedTuple):
    hidden: Tensor
    weight: Tensor
    labels: Tensor


class Absent(Exception):
    """A row needs something that this machine does not have."""


def ours(compiled: bool) -> Head:
    function = compiled_head() if compiled else head_loss
    return lambda hidden, weight, labels, items: function(hidden, weight, labels, items)["loss"]


def transformers_loss() -> Head:
    """As in a causal language model of transformers: all logits, then float32, then the loss."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    def loss(hidden: Tensor, weight: Tensor, labels: Tensor, items: Tensor) -> Tensor:
        logits = F.linear(hidden, weight)
        return ForCausalLMLoss(logits, labels, weight.shape[0], num_items_in_batch=items)

    return loss


def torch_linear(chunked: bool) -> Head:
    if not hasattr(F, "linear_cross_entropy"):
        raise Absent(f"torch {torch.__version__} has no linear_cross_entropy")
    options = torch.nn.LinearCrossEntropyOptions() if chunked else None

    def loss(hidden: Tensor, weight: Tensor, labels: Tensor, items: Tensor) -> Tensor:
        states, target = shifted(hidden, labels)
        # autocast does not reach inside: make its casts here
        lowered = (states.to(torch.bfloat16), weight.to(torch.bfloat16)) if chunked else (states, weight)
        return F.linear_cross_entropy(*lowered, target, reduction="sum", ignore_index=-100, options=options) / items

    return loss


def liger() -> Head:
    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss
    except ImportError as error:
        raise Absent(f"not installed ({error})") from None
    function = LigerFusedLinearCrossEntropyLoss(reduction="sum")

    def loss(hidden: Tensor, weight: Tensor, labels: Tensor, items: Tensor) -> Tensor:
        states, target = shifted(hidden, labels)
        return function(weight, states, target) / items

    return loss


def cut(filtered: bool) -> Head:
    try:
        from cut_cross_entropy import linear_cross_entropy
    except ImportError as error:
        raise Absent(f"not installed ({error})") from None
    choice = {} if filtered else {"filter_eps": None}

    def loss(hidden: Tensor, weight: Tensor, labels: Tensor, items: Tensor) -> Tensor:
        # its kernels ignore autocast and need half precision: make autocast's casts here
        half = hidden.to(torch.bfloat16), weight.to(torch.bfloat16)
        return linear_cross_entropy(*half, labels, shift=True, reduction="sum", **choice) / items

    return loss


def shifted(hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """States (n, width) and the label that comes after each."""
    return hidden[:, :-1].flatten(0, 1), labels[:, 1:].flatten()


# (what, how to make it, the package whose version counts). Ours first, since the ratios need it; last what may leave a
# GPU in an unusable state.
VARIANTS: list[tuple[str, Callable[[], Head], str]] = [
    (OURS, lambda: ours(True), "decondense"),
    ("transformers, eager", transformers_loss, "transformers"),
    ("transformers, compiled", lambda: torch.compile(transformers_loss(), dynamic=False), "transformers"),
    ("torch linear_cross_entropy", lambda: torch_linear(False), "torch"),
    ("torch linear_cross_entropy, in chunks", lambda: torch_linear(True), "torch"),
    ("Liger", liger, "liger-kernel"),
    ("cut-cross-entropy", lambda: cut(True), "cut-cross-entropy"),
    ("cut-cross-entropy, nothing left out", lambda: cut(False), "cut-cross-entropy"),
]
PLAIN: list[tuple[str, Callable[[], Head], str]] = [
    (OURS, lambda: ours(False), "decondense"),
    ("transformers, eager", transformers_loss, "transformers"),
    *VARIANTS[3:5],
]


def case(shape: tuple[int, int, int, int], device: str) -> Case:
    """Logits = log frequency of the word (Zipf) + noise of standard deviation 2 + what makes the label likely."""
    batch, tokens, width, vocabulary = shape
    g = torch.Generator(device).manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, device=device, generator=g)

    rank = torch.randperm(vocabulary, device=device, generator=g)
    logs = -torch.log(rank + 10.0)
    weight = normal(vocabulary, width)
    weight[:, 0] = logs - logs.mean()
    labels = torch.multinomial(logs.exp(), batch * tokens, replacement=True, generator=g).view(batch, tokens)
    hidden = normal(batch, tokens, width) * (2 / math.sqrt(width))
    hidden[..., 0] = 0
    hidden[:, :-1] += 8.5 / width * weight[labels[:, 1:]]
    hidden[..., 0] = 1
    return Case(hidden, weight, labels)


def gradients(head: Head, given: Case, *, half: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    hidden, weight = given.hidden.detach().requires_grad_(), given.weight.detach().requires_grad_()
    items = (given.labels[:, 1:] != -100).sum()
    with torch.autocast(hidden.device.type, torch.bfloat16, enabled=half):
        loss = head(hidden, weight, given.labels, items)
    return loss.detach(), *torch.autograd.grad(loss, (hidden, weight))


def few_labels(given: Case) -> Case:
    """The same, but only the next tokens of the first states of the first sequence count."""
    labels = torch.full_like(given.labels, -100)
    some = min(LABELLED, labels.shape[1] - 1)
    labels[0, 1 : 1 + some] = given.labels[0, 1 : 1 + some]
    return given._replace(labels=labels)


def reference(given: Case) -> tuple[Tensor, Tensor]:
    """Gradients of the first sequence's states and of the weight in float64, where the other sequences do not count."""

    def loss(hidden: Tensor, weight: Tensor, labels: Tensor, items: Tensor) -> Tensor:
        states, target = shifted(hidden, labels)
        return F.cross_entropy(states @ weight.T, target, reduction="sum") / items

    return gradients(loss, Case(given.hidden[:1].double(), given.weight.double(), given.labels[:1]), half=False)[1:]


def milliseconds(call: Callable[[], Any]) -> float:
    if torch.cuda.is_available():
        return harness.call_time([call], rounds=7)
    spent = []
    for _ in range(3):
        begun = time.perf_counter()
        call()
        spent.append(time.perf_counter() - begun)
    return 1000 * statistics.median(spent)


def measured(head: Head, given: Case, wanted: tuple[Tensor, Tensor]) -> harness.Row:
    def call() -> tuple[Tensor, Tensor, Tensor]:
        return gradients(head, given)

    loss, hidden, weight = gradients(head, few_labels(given))
    if not torch.isfinite(loss):
        raise ValueError(f"the loss is {float(loss)}")
    row: harness.Row = {
        "hidden_error": harness.error(hidden[:1], wanted[0]),
        "weight_error": harness.error(weight, wanted[1]),
    }
    del hidden, weight
    row |= {"loss": float(call()[0]), "ms": milliseconds(call)}
    if torch.cuda.is_available():
        row["peak_gib"] = harness.extra_memory(call) / 2**30
    return row


def version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return ""


def row_of(make: Callable[[], Head], shape: tuple[int, int, int, int], device: str) -> harness.Row:
    """The figures, or why there are none."""
    try:
        head, given = make(), case(shape, device)
        return measured(head, given, reference(few_labels(given)))
    except Absent as reason:
        return {"why_not": str(reason)}
    except Exception as error:  # other people's kernels: whatever it is, the other rows go on
        return {"why_not": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    finally:
        if device == "cuda":
            with contextlib.suppress(Exception):  # the device may be gone
                torch.compiler.reset()  # one shape, one compilation
                gc.collect()
                torch.cuda.empty_cache()


def main() -> None:
    parser = harness.arguments(__doc__ or "")
    parser.add_argument("--device", default="cuda", help="cpu: a small shape, nothing compiled")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further row after so many seconds")
    options = parser.parse_args()
    if options.device == "cuda":
        harness.need_cuda()
    shapes, variants = (SHAPES, VARIANTS) if options.device == "cuda" else (SMALL, PLAIN)
    found: dict[tuple[int, int], harness.Row] = {}
    started = time.perf_counter()
    # variants outside: one that breaks the device leaves all the rows before it
    for (v, (what, make, package)), (s, (model, shape)) in itertools.product(enumerate(variants), enumerate(shapes)):
        batch, tokens, width, vocabulary = shape
        about = {"model": model, "tokens": f"{batch}x{tokens}", "width": width, "vocabulary": vocabulary, "what": what}
        begun = time.perf_counter()
        row = dict.fromkeys(COLUMNS, "") | about | {"version": version(package)}
        row |= row_of(make, shape, options.device) if begun - started < options.seconds else {"why_not": "no time left"}
        first = found.get((s, 0), row)["ms"]
        if row["ms"] and first:
            row["ratio"] = row["ms"] / first
        found[s, v] = row
        print(harness.table([row], COLUMNS), f"({time.perf_counter() - begun:.0f} s)", flush=True)
        path = harness.write("heads", [found[key] for key in sorted(found)], options.out)
    print(harness.table([found[key] for key in sorted(found)], COLUMNS))
    print(path)


if __name__ == "__main__":
    main()
