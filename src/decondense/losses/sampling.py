"""A random subset of the tokens of each sequence: the paper's answer to the quadratic cost."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import is_whole

# The released code takes 256 tokens, one permutation for the whole batch, in every loss.
RELEASED_SAMPLE = {"max_tokens": 256, "shared_sample": True}


def sample(
    z: Tensor, mask: Tensor | None, max_tokens: int | None, *, shared: bool, generator: torch.Generator | None
) -> tuple[Tensor, Tensor | None]:
    """At most `max_tokens` tokens of each sequence, drawn without replacement among those that count; None: all.

    shared=True draws one set of positions for the whole batch, as the released code does; a position may then
    be padding in some sequences. The draw happens on the generator's device, without one on the device of z.
    """
    if max_tokens is not None and not is_whole(max_tokens, 2):
        raise ValueError(
            f"max_tokens must be a whole number of at least 2, got {max_tokens!r}: a pair needs two tokens, and "
            "None takes all of them."
        )
    batch, tokens, width = z.shape
    if max_tokens is None or tokens <= max_tokens:
        return z, mask
    device = generator.device if generator is not None else z.device
    key = torch.rand(1 if shared else batch, tokens, generator=generator, device=device).to(z.device)
    if mask is not None and not shared:
        key = torch.where(mask, key, -1)  # padding sorts last: taken only when nothing else is left
    index = key.topk(max_tokens, dim=1).indices.sort(dim=1).values.expand(batch, -1)
    picked = z.gather(1, index.unsqueeze(-1).expand(-1, -1, width))
    return picked, None if mask is None else mask.gather(1, index)
