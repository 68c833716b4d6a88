"""The numbers in the prose about `distill` and `size` are those of the committed study folders."""

from __future__ import annotations

import numpy as np
from test_quoted_results import README, RESULTS, bounds, estimate, mean, runs, table

from decondense.records import Training
from decondense.stats.verdicts import signed

ALONE, TAUGHT, OTHERWISE = "student alone", "student with a teacher", "student with a dispersed teacher"
TEACHER = "dispersed teacher"


def lower(decision: dict, digits: int) -> str:
    """An effect below 0, told as how much lower."""
    low, high = -decision["high"], -decision["low"]
    return f"{-decision['estimate']:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def test_distill():
    found, of = estimate("distill"), runs("distill")
    assert {(arm, *some) for arm, some in of.items()} == {(arm, 1, 2, 3) for arm in (ALONE, TAUGHT, OTHERWISE, TEACHER)}
    first, second = found["mean_cosine"], found["mean_cosine_dispersed"]
    told = f"{signed(first['estimate'], 3)}, 90 % interval {bounds(first, 3)}"
    assert f"{told}, and {signed(second['estimate'], 3)} {bounds(second, 3)}" in RESULTS
    assert min(first["low"], second["low"]) > -found["margin"]
    assert f"a fall of {found['margin']:g}, the margin, is excluded for both" in RESULTS
    assert f"mean cosine is {first['estimate']:.3f} and {second['estimate']:.3f} higher than alone" in README
    start, end = (np.mean([run.snapshots[i].blocks for run in of[TEACHER].values()]) for i in (0, -1))
    assert f"mean cosine, from {start:.3f} to {end:.3f}" in RESULTS
    levels = [mean("distill", arm, "mean_cosine") for arm in (ALONE, TAUGHT, OTHERWISE)]
    assert "end at {:.3f} alone, {:.3f} with the first teacher and {:.3f} with the second".format(*levels) in RESULTS
    handed = lower(found["mean_cosine_handed_on"], 3)
    assert f"Of the {start - end:.3f} by which the two teachers differ, {handed} reach" in RESULTS
    loss, other = found["held_out_loss"], found["held_out_loss_dispersed"]
    one, two = lower(loss, 3).replace(" [", " nats ["), lower(other, 3)
    assert f"lower with either, by {one} and by {two}" in RESULTS
    row = f"held-out loss {signed(loss['estimate'], 3)} nats {bounds(loss, 3)}, mean cosine {told}"
    assert row in RESULTS
    assert f"{signed(other['estimate'], 3)} {bounds(other, 3)} and {signed(second['estimate'], 3)}" in RESULTS
    read = [np.mean([run.held_out[i].loss for run in of[TEACHER].values()]) for i in (-1, 0)]
    assert "held-out loss shows ({:.2f} instead of {:.2f})".format(*read) in RESULTS
    assert f"A GPT2 of {table('distill')[0]['parameters'] / 1e6:.0f}M parameters" in RESULTS


def at_loss(run: Training, loss: float) -> tuple[float, float]:
    """Spearman and mean cosine where a run passes a held-out loss, between its snapshots."""
    losses = [one.loss for one in run.held_out][::-1]
    assert [one.step for one in run.held_out] == [shot.step for shot in run.snapshots]
    kept = [(shot.spearman, shot.blocks) for shot in run.snapshots][::-1]
    return tuple(float(np.interp(loss, losses, column)) for column in zip(*kept))


def test_size():
    found, of = estimate("size"), runs("size")
    rows = sorted((row for row in table("size") if row["seeds"] == 3), key=lambda row: row["parameters"])
    assert len(rows) == 6
    small, large = rows[0], rows[-1]
    assert f"({small['parameters'] / 1e6:.1f}M to {large['parameters'] / 1e6:.0f}M parameters)" in RESULTS
    trend = f"{signed(small['spearman'], 2)} in the smallest to {signed(large['spearman'], 2)} in the largest"
    per = lower(found["slope"], 2)
    assert f"Spearman falls from {trend}, by {per} for tenfold parameters" in RESULTS
    level = found["mean_cosine"]
    rise = f"from {small['mean_cosine']:.3f} to {large['mean_cosine']:.3f}"
    assert f"{rise}, by {level['estimate']:.3f} [{level['low']:.3f}, {level['high']:.3f}]." in RESULTS
    assert (
        f"the largest has a Spearman of {signed(large['spearman'], 2)} and a mean cosine of "
        f"{large['mean_cosine']:.3f}, the smallest {signed(small['spearman'], 2)} and {small['mean_cosine']:.3f}"
    ) in README
    curves = {arm: [np.array(run.snapshots[-1].mean_cosine) for run in some.values()] for arm, some in of.items()}
    ends = [curve[-1] for some in curves.values() for curve in some]
    assert f"({min(ends):.2f} to {max(ends):.2f} after the final norm)" in RESULTS
    for arm, some in curves.items():
        peaks = [int(curve.argmax()) for curve in some]
        if arm != small["model"]:  # "of 6 layers or more the cosine rises over the first blocks, then falls"
            assert max(peaks) <= (len(some[0]) - 1) / 2, arm
    highest = {arm: (min(map(max, some)), max(map(max, some))) for arm, some in curves.items()}
    six, sixteen = "6 layers, width 192", large["model"]
    assert "{:.2f} to {:.2f} at a third to half of the depth with 6 layers".format(*highest[six]) in RESULTS
    assert {int(curve.argmax()) for curve in curves[six]} == {2, 3}
    assert "{:.2f} to {:.2f} after the second or third block of 16".format(*highest[sixteen]) in RESULTS
    assert {int(curve.argmax()) for curve in curves[sixteen]} == {2, 3}
    last = float(np.mean([run.held_out[-1].loss for run in of[small["model"]].values()]))
    assert f"the loss that the smallest ends with, {last:.2f}, interpolated" in RESULTS
    (low, narrow), (high, wide) = (
        np.mean([at_loss(run, last) for run in of[row["model"]].values()], axis=0) for row in (large, small)
    )
    assert f"Spearman still goes from {signed(high, 2)} to {signed(low, 2)}" in RESULTS
    assert f"and the mean cosine from {wide:.2f} to {narrow:.2f}" in RESULTS
