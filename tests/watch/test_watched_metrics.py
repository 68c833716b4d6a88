"""What a monitor reads of a layer, against loops in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from meter import meter_oracle as oracle

from decondense.meter.statistics import trimmed
from decondense.watch.reading import METRICS, begun


def loops(clouds: list[np.ndarray]) -> dict[str, float]:
    """Every metric of some sequences, each (tokens, width), by loops in float64: means over those that have it."""
    one = [oracle.scalars(z) | oracle.spectral(z) for z in clouds]
    result = {name: float(np.nanmean([row[name] for row in one])) for name in METRICS if name in one[0]}
    result["outlier_share"] = float(np.mean([row["top3_variance_share"] for row in one]))
    result["first_token_share"] = float(np.mean([(z[0] ** 2).sum() / (z**2).sum() for z in clouds]))
    across = [
        float(u @ v) for a, x in enumerate(clouds) for b, y in enumerate(clouds) if a != b
        for u in oracle.unit(x) for v in oracle.unit(y)
    ]  # fmt: skip
    return result | {"mean_cosine_across": float(np.mean(across))}


@pytest.mark.parametrize("lengths", [(9, 9, 9), (9, 4, 7), (9, 3, 2)])
def test_the_metrics_are_those_of_loops(lengths):
    z = torch.randn(3, 9, 6, dtype=torch.float64) + 0.5
    mask = torch.arange(9) < torch.tensor(lengths)[:, None]
    values, counts = begun([part for _, part in trimmed(z, mask)], METRICS)()
    wanted = loops([row[:n].numpy() for row, n in zip(z, lengths)])
    assert dict(zip(METRICS, values.tolist())) == pytest.approx({name: wanted[name] for name in METRICS}, rel=1e-9)
    assert counts.sum() == sum(n * (n - 1) // 2 for n in lengths)


def test_autocast_is_not_for_the_metrics():
    z = torch.randn(3, 9, 6) + 0.5
    values, counts = begun([z], METRICS)()
    with torch.autocast("cpu", torch.bfloat16):
        same, alike = begun([z], METRICS)()
    assert torch.equal(values, same)
    assert torch.equal(counts, alike)


def test_one_sequence_has_nothing_across_and_one_token_nothing_at_all():
    values = dict(zip(METRICS, begun([torch.randn(1, 5, 4)], METRICS)()[0].tolist()))
    assert math.isnan(values["mean_cosine_across"])
    assert math.isfinite(values["mean_cosine"])
    for nothing in (
        torch.randn(2, 1, 4),
        torch.randn(0, 5, 4),
        torch.randn(2, 5, 4) * 1e30,
        torch.randn(2, 5, 4) * 1e-30,
    ):
        assert begun([nothing], METRICS)()[0].isnan().all()
