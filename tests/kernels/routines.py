"""The kernels behind one face: values and gradient of a weighted sum of them, and what loops and torch say of both."""

from __future__ import annotations

import math

import numpy as np
import oracle
import torch

from decondense.kernels import first_order, pairwise, second_order
from decondense.kernels.curves import CURVES

CUDA = torch.cuda.is_available()
DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if CUDA else [])
# Rounding alone: below this nothing is asked of the kernels.
FLOOR = {torch.float32: 1e-6, torch.float16: 5e-4, torch.bfloat16: 4e-3}
LOGARITHMS = ("dispersion", "dispersion_cosine", "uniformity")  # of a mean over the pairs
# Kernel and, for each of its values, the curve of the oracle; the two moments are computed in two ways.
ROUTINES = {
    **{name: (pairwise, (name,)) for name in CURVES},
    "first_order": (first_order, ("mean",)),
    "second_order": (second_order, ("mean", "decorrelation")),
}


def cloud(batch, tokens, width, *, condensed=0.5, spread=3.0, seed=0):
    """Tokens round a common direction per sequence, norms log-normal: like hidden states."""
    g = torch.Generator().manual_seed(seed)
    common = torch.randn(batch, 1, width, generator=g)
    z = math.sqrt(condensed) * common + math.sqrt(1 - condensed) * torch.randn(batch, tokens, width, generator=g)
    return z * spread * torch.exp(0.5 * torch.randn(batch, tokens, 1, generator=g))


def weights(name, batch):
    """What the values are multiplied by before they are differentiated, as `backward` wants it."""
    upstream = torch.stack([torch.linspace(0.5, -1.5, batch), torch.linspace(2.0, 1.0, batch)])
    return upstream if name == "second_order" else upstream[0]


def run(name, z, mask=None, *, upstream=None, **options):
    """Values (B,) or (2, B), and the gradient of their weighted sum."""
    kernel, (curve, *_) = ROUTINES[name]
    options |= {"curve": curve} if kernel is pairwise else {}
    values, saved = kernel.forward(z, mask, **options)
    upstream = (weights(name, len(z)) if upstream is None else upstream).to(z.device)
    return values, kernel.backward(z, saved, upstream, **options)


def reference(name, z, mask=None, **options):
    """The same from the loops, numpy float64."""
    parts = [oracle.pairwise(z, mask, curve_name=curve, **options) for curve in ROUTINES[name][1]]
    rows = weights(name, len(z)).double().numpy().reshape(len(parts), -1)
    values = np.stack([value for value, _ in parts])
    return values.reshape(weights(name, len(z)).shape), sum(w[:, None, None] * g for w, (_, g) in zip(rows, parts))


def eager(name, z, mask=None, **options):
    """The same from torch in the dtype of z."""
    leaf = z.detach().clone().requires_grad_()
    values = torch.stack([oracle.eager(leaf, mask, curve_name=curve, **options) for curve in ROUTINES[name][1]])
    values = values.view(weights(name, len(z)).shape)
    (values * weights(name, len(z)).to(z.device)).sum().backward()
    return values.detach(), leaf.grad


def error(a, b):
    a, b = (x.detach().double().cpu().numpy() if isinstance(x, torch.Tensor) else x for x in (a, b))
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-300))


def assert_as_good_as_eager(name, z, mask=None, *, truth=None, floor=None, **options):
    """Error at most twice that of the eager formula; never asked to beat a few units of rounding. The value of a
    loss that ends with a logarithm is rounded as the mean of about 1 before it, however small the logarithm is."""
    expected = truth or reference(name, z, mask, **options)
    found, theirs = run(name, z, mask, **options), eager(name, z, mask, **options)
    assert found[0].dtype == torch.float32
    assert (found[1].dtype, found[1].shape) == (z.dtype, z.shape)
    floor = floor or (2e-6 if name.endswith("_order") else 1e-6)
    moments = (x.reshape(-1, len(z)) for x in (found[0], theirs[0], expected[0]))
    rounding = 4 * torch.finfo(torch.float32).eps
    for a, b, c in zip(*moments):
        least = max(floor, rounding * len(c) ** 0.5 / float(np.linalg.norm(c))) if name in LOGARITHMS else floor
        assert error(a, c) <= max(2 * error(b, c), least)
    assert error(found[1], expected[1]) <= max(2 * error(theirs[1], expected[1]), FLOOR[z.dtype])
