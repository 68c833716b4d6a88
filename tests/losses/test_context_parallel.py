"""A sequence split over two and three gloo processes: same value and gradient as one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from processes import launch

from decondense import losses

GROUP = torch.distributed.ProcessGroup(0, 2)  # of nobody


@pytest.mark.parametrize("processes", [2, 3])
def test_split_sequences(processes):
    run = launch(processes, Path(__file__).with_name("context_worker.py"))
    assert run.returncode == 0, run.stderr[-3000:]
    assert "same value and gradient" in run.stdout


def test_estimators_that_do_not_cross_ranks():
    with pytest.raises(ValueError, match="second order and sampling do not cross ranks"):
        losses.dispersion(torch.randn(1, 4, 3), estimator="second_order", process_group=GROUP)
    for options in ({"max_tokens": 3}, {"estimator": "sampled"}):
        with pytest.raises(ValueError, match="process_group needs all tokens, got max_tokens"):
            losses.dispersion(torch.randn(1, 4, 3), process_group=GROUP, **options)
