"""The eigenvalues against LAPACK's, in float64: both may be off by rounding, n·eps·‖A‖ at most."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from decondense.kernels import eigenvalues as module
from decondense.kernels.eigenvalues import LIMIT, eigenvalues

EPS = torch.finfo(torch.float64).eps


def gram(*shape, seed=0, offset=1.0):
    """Of tokens (…, n, width) that share a direction."""
    z = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + offset
    return z @ z.mT


def check(a, device):
    given = a.to(device)
    before = given.clone()
    found = eigenvalues(given)
    assert torch.equal(given.nan_to_num(), before.nan_to_num()), "the matrix is left as it came"
    assert found.dtype == torch.float64
    assert found.device == given.device
    assert found.shape == a.shape[:-1]
    found = found.cpu()
    assert (found.diff(dim=-1) >= 0).all()
    wanted = torch.from_numpy(np.linalg.eigvalsh(a.numpy()))
    norm = wanted.abs().amax(-1, keepdim=True)
    assert ((found - wanted).abs() <= max(4, a.shape[-1]) * EPS * norm).all()
    return found


@pytest.mark.parametrize("n", [1, 2, 3, 20])
def test_gram_matrices(n, device):
    check(gram(2, n, n + 5, seed=n), device)


def test_several_widths_tiles_and_programs(device, monkeypatch):
    """As of large matrices: rows of 64, 32 and 16 numbers, several tiles of each, eigenvalues in two programs."""
    for name, value in {"NARROWEST": 16, "TILE": 256, "LANES": 32}.items():
        monkeypatch.setattr(module, name, value)
    module._launches.cache_clear()
    try:
        check(gram(1, 37, 60), device)
    finally:
        module._launches.cache_clear()


def special(n=9):
    one = torch.ones(n, 1, dtype=torch.float64)
    repeated = gram(5, 9)[torch.arange(n) % 5][:, torch.arange(n) % 5]
    other = torch.randn(n, n, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    grades = 10.0 ** -torch.arange(n, dtype=torch.float64)
    chain = torch.diag(torch.full((n - 1,), -1.0, dtype=torch.float64), 1)
    return {
        "zero": torch.zeros(n, n, dtype=torch.float64),
        "rank one": one @ one.T,
        "repeated tokens": repeated,
        "diagonal": torch.diag(0.5 ** torch.arange(n, dtype=torch.float64)),  # halving an interval meets them
        "of both signs": other + other.T,
        "in two blocks": torch.block_diag(gram(4, 9), -gram(n - 4, n)),
        "tridiagonal": 2 * torch.eye(n, dtype=torch.float64) + chain + chain.T,
        "graded": gram(n, n) * grades * grades[:, None],
        "tiny": gram(n, 20) * 1e-300,
        "huge": gram(n, 20) * 1e300,
    }


def test_special_matrices(device):
    """As one batch, whose matrices know nothing of each other's size."""
    matrices = special()
    found = dict(zip(matrices, check(torch.stack(list(matrices.values())), device)))
    assert (found["zero"] == 0).all()
    n = len(found["zero"])
    for name, rank in {"rank one": 1, "repeated tokens": 5}.items():
        assert (found[name] > n * EPS * found[name][-1]).sum() == rank, name
    wanted = 2 - 2 * torch.cos(torch.arange(1, n + 1, dtype=torch.float64) * math.pi / (n + 1))
    assert (found["tridiagonal"] - wanted).abs().max() <= 4 * n * EPS


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_stays_in_its_matrix(bad, device):
    a = gram(2, 6, 9)
    a[0, 2, 3] = a[0, 3, 2] = bad
    found = eigenvalues(a.to(device)).cpu()
    assert not found[0].isfinite().any()
    assert torch.equal(found[1], eigenvalues(a[1].to(device)).cpu())


def test_any_number_of_matrices_in_any_order_of_memory(device):
    a = gram(2, 1, 4, 7)
    assert torch.equal(check(a.mT, device), check(a, device))
    assert check(a[0, 0], device).shape == (4,)
    assert eigenvalues(a[:0].to(device)).shape == (0, 1, 4)
    assert eigenvalues(a[..., :0, :0].to(device)).shape == (2, 1, 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: the interpreter is too slow for this size")
@pytest.mark.parametrize(("batch", "n"), [(300, 130), (124, 512), (6, 1000), (2, LIMIT)])
def test_large_on_the_gpu(batch, n, device):
    a = gram(batch, n, n + 64, seed=n)
    a[0] = gram(n // 2, n)[torch.arange(n) % (n // 2)][:, torch.arange(n) % (n // 2)]
    some = check(a[:6], device)
    found = eigenvalues(a.to(device))
    assert ((found[:6].cpu() - some).abs() <= n * EPS * some[:, -1:]).all()
    for _ in range(3):  # a thread that reads too early would not read the same every time
        assert torch.equal(eigenvalues(a.to(device)), found)
