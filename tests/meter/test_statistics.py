from __future__ import annotations

import math

import meter_oracle as oracle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decondense.meter.spectrum import SPECTRAL, spectral_statistics
from decondense.meter.statistics import FINE_BINS, columns, not_finite, state_statistics, window_statistics


def by_name(z: torch.Tensor) -> dict[str, float]:
    return dict(zip(columns(len(z)), window_statistics(z[None]).scalars[0].tolist()))


def assert_same(found: dict[str, float], wanted: dict[str, float], tolerance: float) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=tolerance, abs=tolerance, nan_ok=True), name


def test_every_statistic_agrees_with_loops_on_real_hidden_states(real_states):
    for state, clouds in real_states.items():
        z = torch.tensor(clouds[state % len(clouds)])
        assert_same(by_name(z), oracle.scalars(z.numpy()), 2e-6)
        assert_same(by_name(z.double()), oracle.scalars(z.numpy()), 1e-12)


def test_spectral_statistics_agree_with_numpy_on_real_hidden_states(real_states):
    for clouds in real_states.values():
        for z in (clouds[0], clouds[1][:20], np.concatenate([clouds[2], clouds[3]])):  # wide and tall
            found = dict(zip(SPECTRAL, spectral_statistics(torch.tensor(z)).tolist()))
            assert_same(found, oracle.spectral(z), 1e-9)


def drawn(tokens: int, width: int) -> torch.Tensor:
    return torch.randn(tokens, width) * torch.rand(width) + torch.randn(width)


@pytest.mark.parametrize(("tokens", "width"), [(2, 4), (3, 5), (127, 8), (128, 16), (129, 7), (300, 33)])
def test_odd_shapes(tokens, width):
    z = drawn(tokens, width)
    assert_same(by_name(z), oracle.scalars(z.numpy()), 5e-6)


def test_zero_vectors_and_low_precision():
    z = drawn(9, 5)
    z[4] = 0  # has cosine zero with all others
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert_same(by_name(z.to(dtype)), oracle.scalars(z.to(dtype).float().numpy()), 1e-5)


def test_histogram_counts_every_pair_once(real_states):
    clouds = [torch.tensor(state[0]).double() for state in real_states.values()]
    for z in [*clouds, torch.randn(301, 6, dtype=torch.float64)]:  # one block of rows, and three
        u = torch.nn.functional.normalize(z, dim=-1)
        cosines = oracle.pairs(oracle.cosine_matrix(u.numpy()))
        counts = window_statistics(u[None]).counts
        assert counts.sum() == len(cosines)
        # a cosine that lies on an edge to the last digit may fall on either side
        difference = np.abs(np.cumsum(counts.numpy() - oracle.bin_counts(cosines, FINE_BINS)))
        edges = (cosines + 1) * FINE_BINS / 2
        assert difference.max() <= int((np.abs(edges - np.round(edges)) < 1e-9).sum())


def test_several_windows_at_once_are_the_windows_one_by_one():
    z = torch.randn(3, 141, 20, dtype=torch.float64) + torch.randn(3, 1, 20)
    together = window_statistics(z, matrix=(whole := torch.zeros(141, 141, dtype=torch.float64)))
    one_by_one = torch.zeros_like(whole)
    single = [window_statistics(w[None], matrix=one_by_one) for w in z]
    assert torch.allclose(together.scalars, torch.cat([s.scalars for s in single]), atol=1e-13)
    assert torch.equal(together.counts, sum(s.counts for s in single))
    assert torch.allclose(whole, one_by_one)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu():
    for shape in ((4, 512, 96), (1, 129, 33)):
        z = torch.randn(shape) + torch.randn(shape[-1])
        wanted, found = window_statistics(z.double()), window_statistics(z.cuda())
        assert torch.allclose(found.scalars, wanted.scalars, atol=2e-6)
        assert (found.counts - wanted.counts).cumsum(0).abs().max() <= 20  # cosines on an edge
        assert found.counts.sum() == wanted.counts.sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_rounds_no_statistic(dtype):
    """It would make the products bfloat16, also of states in float32."""
    z = (torch.randn(2, 24, 16) + 1).to(dtype)
    wanted = state_statistics(z, "", spectral=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = state_statistics(z, "", spectral=True)
    assert torch.equal(found.scalars, wanted.scalars)
    assert torch.equal(found.counts, wanted.counts)


def test_closed_forms():
    n = 16
    orthonormal = by_name(torch.eye(n) * 3)
    assert orthonormal["mean_cosine"] == pytest.approx(0, abs=1e-12)
    assert orthonormal["mean_cosine_all"] == pytest.approx(1 / n)
    assert orthonormal["token_norm"] == pytest.approx(3)
    identical = window_statistics(torch.ones(1, n, 8))
    assert identical.counts[-1] == n * (n - 1) / 2
    values = dict(zip(columns(n), identical.scalars[0].tolist()))
    assert values["mean_cosine"] == pytest.approx(1, abs=1e-6)
    assert values["mean_direction_norm"] == pytest.approx(1, abs=1e-6)
    antipodal = window_statistics(torch.tensor([[[1.0, 2.0], [-1.0, -2.0]]]))
    assert antipodal.scalars[0, 0] == pytest.approx(-1, abs=1e-6)
    assert antipodal.counts[0] == 1
    spectrum = dict(zip(SPECTRAL, spectral_statistics(torch.eye(n) * 3).tolist()))
    assert spectrum["effective_rank"] == pytest.approx(n)
    assert spectrum["distance_to_rank_one"] == pytest.approx(math.sqrt(1 - 1 / n))
    one_direction = dict(zip(SPECTRAL, spectral_statistics(torch.outer(torch.arange(1.0, 9), torch.ones(5))).tolist()))
    assert one_direction["effective_rank"] == pytest.approx(1, abs=1e-5)
    assert one_direction["isoscore"] == pytest.approx(0, abs=1e-9)
    assert one_direction["participation_ratio"] == pytest.approx(1)


def test_outlier_dimension_is_found_and_its_removal_undoes_the_condensation():
    z = torch.randn(64, 50)
    z[:, 7] += 100  # constant over tokens: no variance, all of the cosine
    values = by_name(z)
    assert values["mean_cosine"] > 0.98
    assert values["top3_cosine_share"] > 0.98
    assert abs(values["mean_cosine_without_cosine3"]) < 0.1
    assert_same(values, oracle.scalars(z.numpy()), 1e-4)


def test_released_matrix_is_filled_above_the_diagonal(real_states):
    z = torch.tensor(real_states[3][1])
    matrix = torch.zeros(len(z), len(z), dtype=torch.float64)
    window_statistics(z[None], matrix=matrix)
    assert torch.allclose(matrix, torch.from_numpy(np.triu(oracle.cosine_matrix(z.numpy()), 1)), atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(3, 20), st.integers(4, 12), st.integers(0, 10_000), st.floats(1e-3, 1e3))
def test_rotation_and_scale_change_nothing(tokens, width, seed, scale):
    rng = np.random.default_rng(seed)
    z = torch.tensor(rng.normal(size=(tokens, width)) + rng.normal(size=width))
    q = torch.linalg.qr(torch.tensor(rng.normal(size=(width, width)))).Q
    a, b = by_name(z), by_name(scale * z @ q)
    for name in ("mean_cosine", "mean_cosine_all", "cosine_variance", "mean_cosine_without_first", "apart_0"):
        assert a[name] == pytest.approx(b[name], abs=1e-9)
    assert b["token_norm"] == pytest.approx(scale * a["token_norm"])
    shuffled = by_name(z[torch.tensor(rng.permutation(tokens))])
    assert shuffled["mean_cosine"] == pytest.approx(a["mean_cosine"], abs=1e-12)


@pytest.mark.parametrize("shape", [(1, 8), (3, 8), (2, 1, 4), (8,), (2, 3, 4, 5)])
def test_wrong_shapes(shape):
    with pytest.raises(ValueError, match=r"z must be \(windows, tokens, width\) with at least 2 tokens"):
        window_statistics(torch.zeros(shape))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_remedy_for_a_state_that_is_not_finite_is_another_dtype_only_where_one_could_help(dtype):
    wider = "measure with dtype float32" in str(not_finite("state 1", dtype))
    assert wider == (dtype != torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("power", [-37, -30, -25, -20, -15, -9, 9, 14, 17, 20, 30, 37])
def test_a_state_too_large_or_too_small_to_be_squared_is_refused_and_never_measured_wrong(power, dtype):
    """Cosines do not change with the scale; where squares overflow or vanish they would come out as 0 or −1/(N−1)."""
    z = (drawn(16, 40) + 1).to(dtype)
    scaled = z * 2.0 ** round(power * math.log2(10))
    if dtype != torch.float64 and not -15 <= power <= 14:
        way = "at most 2.59e[+]15" if power > 0 else "at least 3.87e-16"
        with pytest.raises(ValueError, match=f"state 1 must have a largest entry of {way} .* float64"):
            state_statistics(scaled[None], "state 1", spectral=True)
        return
    wanted, found = (state_statistics(part[None], "", spectral=True) for part in (z, scaled))
    same = [i for i, name in enumerate(columns(16) + SPECTRAL) if name != "token_norm"]
    torch.testing.assert_close(found.scalars[:, same], wanted.scalars[:, same], rtol=1e-6, atol=1e-6)
    assert torch.equal(found.counts, wanted.counts)


def test_a_state_of_zeros_has_cosine_0():
    assert state_statistics(torch.zeros(1, 5, 4), "", spectral=False).scalars[0, 0] == 0
