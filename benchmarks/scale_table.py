"""Memory, arithmetic and communication of each estimator for large models and many GPUs: calculated, not measured.

docs/scale.md has the formulas in words; here they are functions, tested in tests/test_scale.py against what the code
sends and multiplies and what a training step held on an H200. `python benchmarks/tables.py` puts the tables into the
document.

    python benchmarks/scale_table.py        print them
"""

from __future__ import annotations

from dataclasses import dataclass

from harness import read

ESTIMATORS = ("first_order", "second_order", "exact", "sampled")
SAMPLED = 256
FLOAT, HALF = 4, 2  # bytes
GIB = 2**30
PEAK = 989e12  # bfloat16 FLOP/s of an H200 or H100, dense, from its data sheet
UTILISATION = 0.4  # of that peak, by the rest of the step: an assumption, what well-tuned trainers reach
TOKENS, SEQUENCES = 4096, 2  # of a sequence; of a GPU's micro-batch, as in recipes/pretrain-qwen3-0.6b-c4.yaml
SPLIT = 8  # ranks of context parallelism


@dataclass(frozen=True)
class Model:
    """The shape of a Qwen3 or GPT2 model, as its configuration says."""

    name: str
    layers: int
    width: int
    inner: int
    heads: int
    key_heads: int
    head: int
    vocabulary: int
    tied: bool = True
    gpt2: bool = False  # learned positions, biases, two matrices in an MLP

    @property
    def parameters(self) -> int:
        f, attention, keys = self.width, self.heads * self.head, self.key_heads * self.head
        embeddings = self.vocabulary * f * (1 if self.tied else 2)
        if self.gpt2:
            block = 4 * f * f + 2 * f * self.inner + 5 * f + self.inner + 4 * f  # weights, biases, two norms
            return embeddings + 1024 * f + self.layers * block + 2 * f
        block = f * (attention + 2 * keys) + attention * f + 3 * f * self.inner + 2 * f + 2 * self.head
        return embeddings + self.layers * block + f

    def step_flops(self, tokens: int) -> float:
        """Per token, forward and backward: 6 per weight of a product, and causal attention, 6·N·(heads × head)."""
        weights = self.parameters - (0 if self.tied else self.vocabulary * self.width)
        return 6 * weights + 6 * self.layers * tokens * self.heads * self.head


QWEN3 = [
    Model("Qwen3-0.6B", 28, 1024, 3072, 16, 8, 128, 151936),
    Model("Qwen3-1.7B", 28, 2048, 6144, 16, 8, 128, 151936),
    Model("Qwen3-4B", 36, 2560, 9728, 32, 8, 128, 151936),
    Model("Qwen3-8B", 36, 4096, 12288, 32, 8, 128, 151936, tied=False),
]
GPT2 = Model("GPT2", 12, 768, 3072, 12, 12, 64, 50257, gpt2=True)


# ---- the formulas; b sequences of N tokens on a GPU, states of s bytes per number ----


def state_bytes(model: Model, b: int, n: int, s: int) -> int:
    """L·b·N·F·s: the states of all blocks. They are there without the loss: the next block keeps its input."""
    return model.layers * b * n * model.width * s


def extra_bytes(model: Model, estimator: str, b: int, n: int, s: int, *, rides: bool = True) -> int:
    """What the loss holds on a GPU at the peak of a step, between its forward pass and the end of its backward pass.

    rides: the loss's gradient is added where the gradient from above arrives (losses/layers.py). Where it cannot
    (a model compiled as a whole, documents cut out of rows, sampling) the gradients of all layers wait for theirs.
    """
    whole = state_bytes(model, b, n, s)
    if estimator == "sampled":  # the sample and its remainder, then a gradient of all tokens, mostly zeros
        return whole + model.layers * b * min(n, SAMPLED) * model.width * s
    if not rides:
        return whole
    last = whole // model.layers  # nothing above it brings a gradient to add to
    if estimator == "first_order":  # a norm per token, a sum per feature
        return last + model.layers * b * (n + model.width + 2) * FLOAT
    return last + model.layers * b * n * model.width * HALF  # the remainder of the gradient, in 16 bits


def loss_flops(model: Model, estimator: str, n: int) -> float:
    """Per token, all layers, value and gradient, as the kernels do it: one product halved, one whole."""
    f = model.width
    if estimator == "first_order":
        return 10 * model.layers * f  # norm, sum, dot product, gradient: bound by memory, not by this
    if estimator == "second_order":
        return 3 * model.layers * f * min(n, f)
    if estimator == "exact":
        return 3 * model.layers * n * f
    m = min(n, SAMPLED)
    return 3 * model.layers * m * m * f / n


def loss_traffic(model: Model, estimator: str, n: int, s: int, *, rides: bool = True) -> float:
    """Bytes to and from a GPU's memory per token, all layers, without what the products of exact move."""
    passes = 4 if rides and estimator != "sampled" else 6  # read z; read z, the gradient from above, write the sum
    per_number: float = passes * s
    if estimator == "exact":
        per_number += 2 * HALF  # the remainder, written and read
    if estimator == "second_order":
        per_number += 5 * HALF  # and the unit vectors, written and read by two products
    return model.layers * model.width * per_number


def loss_seconds(model: Model, estimator: str, n: int, s: int, tokens: int, *, rides: bool = True) -> float:
    """Time on an H200 at the speed that cuBLAS and a copy were measured at; the curve and launches are left out.

    exact is charged with two whole products, as the half that its kernel saves pays for the curve.
    """
    flops = loss_flops(model, estimator, n) * (4 / 3 if estimator in ("exact", "sampled") else 1)
    work = 0.0 if estimator == "first_order" else flops / product_speed()
    return tokens * (work + loss_traffic(model, estimator, n, s, rides=rides) / copy_speed())


def first_order_bytes(model: Model, b: int, ranks: int) -> float:
    """Sent by each rank of a split sequence per step: a ring all-reduce of F + 2 numbers per sequence and layer."""
    return model.layers * b * (model.width + 2) * FLOAT * 2 * (ranks - 1) / ranks


def exact_bytes(model: Model, b: int, n: int, ranks: int) -> float:
    """Sent by each rank: its block of unit vectors and the mask, R − 1 times, per layer."""
    return model.layers * b * (n // ranks) * (model.width + 1) * FLOAT * (ranks - 1)


def attention_bytes(model: Model, b: int, n: int, ranks: int) -> float:
    """For comparison: keys and values, gathered forward and their gradients scattered backward, in 16 bits."""
    return model.layers * b * n * 2 * model.key_heads * model.head * HALF * 2 * (ranks - 1) / ranks


def fsdp_bytes(model: Model, gpus: int) -> float:
    """For comparison: parameters gathered twice in 16 bits, gradients scattered in 32, per micro-batch."""
    return model.parameters * (2 * HALF + FLOAT) * (gpus - 1) / gpus


def sharded_bytes(model: Model, gpus: int) -> float:
    """Parameters, gradients and two moments in 32 bits, over all GPUs."""
    return model.parameters * 4 * FLOAT / gpus


# ---- measured on an H200 ----


def _floor(name: str) -> dict[str, str]:
    """The row of the largest batched case that says how fast the hardware is without the loss."""
    (row,) = [
        r for r in read(name) if (r["shape"], r["dtype"]) == ("8x4096x1024", "bfloat16") and "floor" in r["variant"]
    ]
    return row


def product_speed() -> float:
    """FLOP/s of cuBLAS on the two products of the exact loss."""
    return 4 * 8 * 4096**2 * 1024 / (float(_floor("exact")["ms"]) / 1e3)


def copy_speed() -> float:
    """Bytes per second of a copy."""
    return float(_floor("first_order")["TB/s"]) * 1e12


# ---- the tables ----


def _markdown(header: list[str], lines: list[list[str]], note: str) -> str:
    text = "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *lines])
    return f"{text}\n\n*Calculated by `benchmarks/scale_table.py`{note}.*\n"


def _gib(number: float) -> str:
    return f"{number / GIB:.3f}" if number / GIB < 0.1 else f"{number / GIB:.2f}"


def _mib(number: float) -> str:
    return f"{number / 2**20:.2f}" if number < 2**20 * 100 else f"{number / 2**20:.0f}"


def memory() -> str:
    lines = []
    for model in QWEN3:
        extra = [extra_bytes(model, e, SEQUENCES, TOKENS, HALF) for e in ESTIMATORS]
        waiting = extra_bytes(model, "first_order", SEQUENCES, TOKENS, HALF, rides=False)
        lines.append(
            [model.name, f"{model.parameters / 1e9:.2f}B", _gib(state_bytes(model, SEQUENCES, TOKENS, HALF))]
            + [_gib(x) for x in extra]
            + [_gib(waiting)]
        )
    header = ["model", "parameters", "states", *ESTIMATORS, "nothing rides"]
    return _markdown(header, lines, f": GiB per GPU, {SEQUENCES} × {TOKENS} tokens, bfloat16 states")


def work() -> str:
    lines = []
    for model in QWEN3:
        for n in (TOKENS, 8 * TOKENS):
            step = model.step_flops(n)
            seconds = step / (UTILISATION * PEAK)
            flops = [f"{loss_flops(model, e, n) / step:.2%}" for e in ESTIMATORS]
            time = [f"{loss_seconds(model, e, n, HALF, 1) / seconds:.2%}" for e in ESTIMATORS]
            lines.append([model.name, str(n), *(f"{a} / {b}" for a, b in zip(flops, time))])
    header = ["model", "tokens", *ESTIMATORS]
    speeds = f"{product_speed() / 1e12:.0f} TFLOP/s and {copy_speed() / 1e12:.2f} TB/s of `benchmarks/results`"
    return _markdown(
        header,
        lines,
        f": share of the step's arithmetic / of its time, at {UTILISATION:.0%} of the peak, with the {speeds}",
    )


def gpus() -> str:
    lines = [
        [model.name, str(g), _gib(sharded_bytes(model, g)), _gib(fsdp_bytes(model, g)), "0"]
        for model in QWEN3
        for g in (8, 64, 640)
    ]
    header = ["model", "GPUs", "sharded state, GiB per GPU", "FSDP2 sends, GiB per GPU", "the loss sends"]
    return _markdown(header, lines, ": per micro-batch, sequences whole on their GPU")


def split() -> str:
    lines = []
    for model in QWEN3:
        for n in (TOKENS, 8 * TOKENS):
            sent = (
                first_order_bytes(model, 1, SPLIT),
                exact_bytes(model, 1, n, SPLIT),
                attention_bytes(model, 1, n, SPLIT),
            )
            lines.append([model.name, str(n), *map(_mib, sent)])
    header = ["model", "tokens", "first_order, MiB", "exact, MiB", "attention itself, MiB"]
    return _markdown(header, lines, f": sent by each of {SPLIT} ranks that share a sequence, per sequence")


MEASURED = {"gpt2": (GPT2, FLOAT), "qwen3": (QWEN3[0], FLOAT)}  # autocast: the residual stream is float32


def check() -> str:
    """The formulas beside benchmarks/results/train_step.csv."""
    rows = read("train_step")
    lines = []
    for row in rows:
        estimator = row["variant"].removeprefix("+ ")
        if estimator not in ESTIMATORS:
            continue
        model, s = MEASURED[row["model"]]
        b, n = int(row["batch"]), int(row["tokens"])
        (base,) = [r for r in rows if r["model"] == row["model"] and r["variant"] == "cross-entropy"]
        both = [
            (extra_bytes(model, estimator, b, n, s, rides=r), loss_seconds(model, estimator, n, s, b * n, rides=r))
            for r in (True, False)
        ]
        lines.append(
            [row["model"], f"{b}×{n}", estimator]
            + [f"{float(row['peak_GiB']) - float(base['peak_GiB']):.2f}"]
            + [_gib(m) for m, _ in both]
            + [f"{float(row['ms']) - float(base['ms']):.1f}"]
            + [f"{t * 1e3:.1f}" for _, t in both]
        )
    header = [
        "model", "tokens", "estimator", "measured GiB", "riding", "not riding", "measured ms", "riding", "not riding",
    ]  # fmt: skip
    where = sorted({f"{r['device']}, torch {r['torch']}, {r['commit']}" for r in rows})
    return _markdown(header, lines, f"; measured: `benchmarks/results/train_step.csv`, {'; '.join(where)}")


TABLES = {
    "scale_memory": memory,
    "scale_work": work,
    "scale_gpus": gpus,
    "scale_split": split,
    "scale_check": check,
}

if __name__ == "__main__":
    for name, table in TABLES.items():
        print(f"{name}\n{table()}")
