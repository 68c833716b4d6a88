"""What a loss on the hidden states adds at long context: its time beside that of one attention layer of that length.

For one sequence of N tokens, width 1024, bfloat16: causal attention of 16 heads × 64, forward and backward, by torch's
flash kernel; the first-order estimator and the exact loss, value and gradient, on a hidden state of the same length.
Attention and the exact loss grow with N², the first order with N. `share` is the GPU time of a row over that of one
attention layer; `call_ms` has the host's launches in it, which count where a step does not hide them.

    python benchmarks/bench_long.py [--out DIR]
"""

from __future__ import annotations

from collections.abc import Callable

import harness
import torch
from bench_exact import by_kernel, states
from bench_first_order import kernels
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

LENGTHS = (8192, 32768, 131072)
HEADS, SIZE = 16, 64
COLUMNS = ("tokens", "width", "what", "ms", "call_ms", "share", "why_not")


def attention(tokens: int, device: str = "cuda") -> Callable[[], tuple[torch.Tensor, ...]]:
    """Gradients of query, key and value of one causal layer."""
    g = torch.Generator(device).manual_seed(0)
    q, k, v, upstream = (
        torch.randn(1, HEADS, tokens, SIZE, device=device, dtype=torch.bfloat16, generator=g) for _ in range(4)
    )
    leaves = [x.requires_grad_() for x in (q, k, v)]

    def call() -> tuple[torch.Tensor, ...]:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = F.scaled_dot_product_attention(*leaves, is_causal=True)
        return torch.autograd.grad(out, leaves, upstream)

    return call


def first_order(tokens: int) -> Callable[[], torch.Tensor]:
    return kernels(states((1, tokens, HEADS * SIZE), torch.bfloat16, 0))


def exact(tokens: int) -> Callable[[], torch.Tensor]:
    return by_kernel(states((1, tokens, HEADS * SIZE), torch.bfloat16, 0), False)


VARIANTS: list[tuple[str, Callable]] = [
    ("attention, 16 heads × 64, causal", attention),
    ("dispersion, first order", first_order),
    ("dispersion, exact", exact),
]


def main() -> None:
    options = harness.arguments(__doc__ or "").parse_args()
    harness.need_cuda()
    rows: list[harness.Row] = []
    for tokens in LENGTHS:
        whole = None
        for what, make in VARIANTS:
            row = dict.fromkeys(COLUMNS, "") | {"tokens": tokens, "width": HEADS * SIZE, "what": what}
            try:
                call = make(tokens)
                row["call_ms"] = harness.call_time([call], rounds=7)
                row["ms"] = harness.device_time([call], rounds=7)
                whole = row["ms"] if make is attention else whole
                row["share"] = row["ms"] / whole if whole else ""
            except Exception as error:  # the other rows go on
                row["why_not"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            call = None
            rows.append(row)
            torch.cuda.empty_cache()
            print(harness.table([row], COLUMNS), flush=True)
            path = harness.write("long", rows, options.out)
    print(harness.table(rows, COLUMNS))
    print(path)


if __name__ == "__main__":
    main()
