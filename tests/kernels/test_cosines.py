"""Histogram and sums of all cosines against going over the pairs one by one in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from decondense.kernels.cosines import cosines

CUDA = torch.cuda.is_available()


def units(batch, tokens, width, *, seed=0, condensed=0.4):
    g = torch.Generator().manual_seed(seed)
    z = math.sqrt(condensed) * torch.randn(batch, 1, width, generator=g)
    z = z + math.sqrt(1 - condensed) * torch.randn(batch, tokens, width, generator=g)
    return z / z.norm(dim=-1, keepdim=True)


def count(u, bins=128, slack=0.0):
    """Counts, and how many cosines lie so near an edge that rounding may move them."""
    u = u.double().cpu().numpy()
    counts, near = np.zeros((len(u), bins), int), 0
    for b in range(len(u)):
        for i in range(u.shape[1]):
            for j in range(i):
                position = (float(u[b, i] @ u[b, j]) + 1) * bins / 2
                counts[b, min(max(math.floor(position), 0), bins - 1)] += 1
                near += abs(position - round(position)) <= slack * bins
    return counts, near


@pytest.mark.parametrize(("shape", "bins"), [((2, 40, 24), 128), ((1, 65, 7), 100), ((3, 2, 5), 1), ((1, 33, 40), 7)])
def test_counts(shape, bins, device):
    u = units(*shape, seed=bins).to(device)
    expected, near = count(u, bins=bins, slack=1e-6)
    got = cosines(u, bins=bins).counts.cpu().numpy()
    assert got.dtype == np.int64
    assert got.shape == (shape[0], bins)
    assert (got.sum(1) == shape[1] * (shape[1] - 1) // 2).all()
    assert np.abs(got - expected).sum() <= 2 * near


@pytest.mark.parametrize("shape", [(2, 70, 24), (1, 33, 40), (3, 2, 5)])
def test_sums(shape, device):
    u, about = units(*shape), torch.linspace(0, 0.9, shape[0])
    deviations, apart = np.zeros(shape[0]), np.zeros((shape[0], (shape[1] - 1).bit_length()))
    for b, of_sequence in enumerate(u.double().numpy()):
        for i in range(shape[1]):
            for j in range(i):
                c = float(of_sequence[i] @ of_sequence[j])
                deviations[b] += (c - float(about[b])) ** 2
                apart[b, int(math.log2(i - j))] += c
    got = cosines(u.to(device), about.to(device))
    assert got.deviations.dtype == got.apart.dtype == torch.float64
    np.testing.assert_allclose(got.deviations.cpu(), deviations, rtol=1e-6)
    np.testing.assert_allclose(got.apart.cpu(), apart, rtol=1e-6, atol=1e-5)


def test_edges(device):
    """Cosines of exactly 1, −1 and 0, and one a rounding error above 1."""
    u = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]], device=device)
    got = cosines(u, bins=4).counts[0].tolist()
    assert got == [2, 0, 3, 1]  # −1 twice; 0 three times, in the bin that begins there; 1 in the last
    assert cosines(u * 1.001, bins=4).counts[0].tolist() == got


def test_half_precision_and_nan(device):
    u = units(1, 40, 32).half().to(device)
    expected, near = count(u, slack=1e-5)
    assert np.abs(cosines(u).counts.cpu().numpy() - expected).sum() <= 2 * near
    u[0, 3, 0] = math.nan
    assert int(cosines(u).counts.sum()) == 39 * 38 // 2  # pairs with the broken token are in no bin


@pytest.mark.skipif(not CUDA, reason="needs a GPU: the interpreter is too slow for this size")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_on_the_gpu(dtype, device):
    u = units(3, 1000, 577).to(dtype).to(device)
    c = (u.double() @ u.double().transpose(1, 2)).tril(-1)
    got, squares, apart = cosines(u)
    # the matrix units of a GPU, which bfloat16 goes through, drop digits of their float32 sums that it rounds elsewhere
    rtol = 1e-6 if dtype == torch.float32 else 1e-5
    torch.testing.assert_close(squares, c.square().sum((1, 2)), rtol=rtol, atol=0)
    by_distance = [c.diagonal(-d, 1, 2).sum(1) for d in range(1, 1000)]
    expected = [torch.stack(by_distance[2**k - 1 : 2 ** (k + 1) - 1]).sum(0) for k in range(10)]
    torch.testing.assert_close(apart, torch.stack(expected, 1), rtol=rtol, atol=1e-3)
    for b in range(3):
        pairs = c[b][torch.ones_like(c[b], dtype=torch.bool).tril(-1)].clamp(-1, 1)
        expected = torch.histc(pairs, 128, -1, 1).long()
        assert (got[b] - expected).abs().sum() <= 40  # cosines within 1e-6 of an edge
        assert got[b].sum() == 1000 * 999 // 2
