"""The meter's sums over pairs on a GPU against those of its tiles, its spectra against those of torch."""

from __future__ import annotations

import torch

from decondense.kernels.eigenvalues import eigenvalues
from decondense.meter import spectrum
from decondense.meter.spectrum import spectral_statistics
from decondense.meter.statistics import _fused_pairs, _pairs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_fused_pairs_are_the_tiles():
    z = torch.randn(3, 45, 20) + 0.7
    z[1, 4] = 0  # a zero vector has cosine 0 with everything
    u = torch.nn.functional.normalize(z, dim=-1)
    about = torch.tensor([0.3, 0.0, 0.5])
    (counts,), deviations, apart = (x.cpu() for x in _fused_pairs(u.to(DEVICE), about.to(DEVICE)))
    expected_counts, expected_deviations, expected_apart = _pairs(u, about, None)
    torch.testing.assert_close(deviations, expected_deviations, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(apart, expected_apart, rtol=1e-5, atol=1e-5)
    assert counts.sum() == expected_counts.sum() == 3 * 45 * 44 // 2
    # two ways to sum 20 products: a cosine on an edge may fall on either side of it
    assert (counts - expected_counts).abs().sum() <= 4


def test_fused_pairs_of_several_states():
    u = torch.nn.functional.normalize(torch.randn(6, 20, 12), dim=-1).to(DEVICE)
    about = torch.rand(6, device=DEVICE)
    counts, deviations, apart = _fused_pairs(u, about, 3)
    parts = [_fused_pairs(*part) for part in zip(u.chunk(3), about.chunk(3))]
    assert torch.equal(counts, torch.cat([part[0] for part in parts]))
    torch.testing.assert_close(deviations, torch.cat([part[1] for part in parts]))
    torch.testing.assert_close(apart, torch.cat([part[2] for part in parts]))


def test_spectra_are_those_of_torch(monkeypatch):
    z = torch.randn(2, 12, 15) + 0.5
    z[1, 3:9] = z[1, 2]  # exact zeros among the eigenvalues
    expected = spectral_statistics(z)
    if DEVICE == "cpu":
        monkeypatch.setattr(spectrum, "_eigenvalues", eigenvalues)
    torch.testing.assert_close(spectral_statistics(z.to(DEVICE)), expected, rtol=1e-9, atol=1e-9)
