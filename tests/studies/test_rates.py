"""Every arm at its own best rate, on runs made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from study_runs import concluded, of_seeds, run

from decondense.stats.verdicts import from_interval
from decondense.studies import find, settings_of
from decondense.studies.contrasts import below_everywhere
from decondense.studies.rates import choices
from decondense.studies.runs import Runs, by_document
from decondense.words import signed

LOSS = "decorrelation last 1"
SEEDS = [1, 2, 3, 4, 5]


def trained(levels, *, noise=0.001, left_out=()):
    """The study over runs with `levels`: (loss, rate) → held-out loss of the first seed, and of all others."""
    study = find("rates")
    settings = settings_of(study, "smoke", seeds=SEEDS)
    rng = np.random.default_rng(0)
    documents = rng.normal(0, 0.3, (2, 20))

    def make(arm, seed):
        loss, _, rate = arm.split(" · ")
        level = levels[loss, float(rate)][seed != 1] + rng.normal(0, noise)
        values = level + documents + rng.normal(0, noise, documents.shape)
        told = [
            {"text": text, "document": i, "tokens": 10, "loss": loss if math.isfinite(loss) else None}
            for text, losses in zip("ab", values)
            for i, loss in enumerate(losses)
        ]
        return run(held_out_documents=told)

    runs = [one for one in of_seeds(settings, make, SEEDS) if one.name not in left_out]
    return runs, concluded(study, settings, runs)


def at(plain, treated):
    """Two lists of three (first seed, other seeds), one for each rate."""
    rates = (0.001, 0.002, 0.004)
    return {("cross-entropy", r): p for r, p in zip(rates, plain)} | {(LOSS, r): t for r, t in zip(rates, treated)}


def test_each_is_compared_at_its_own_rate_without_the_seed_that_chose():
    """Cross-entropy is best at 0.002, the loss at 0.001. At one rate the loss would be ahead by 0.1 or behind by 0.1;
    at its own it is behind by 0.02 in the seeds that count, and ahead by 0.5 in the one that does not."""
    levels = at([(3.3, 3.3), (3.1, 3.0), (3.2, 3.2)], [(2.6, 3.02), (3.2, 3.1), (3.3, 3.1)])
    runs, end = trained(levels)
    assert end.verdict == "not reproduced"
    assert end.estimate["chosen"] == {"cross-entropy · llama": 0.002, f"{LOSS} · llama": 0.001}
    decision = end.estimate["own_rate"][f"{LOSS} · llama"]
    by_hand = {
        arm: np.mean([by_document(one.record) for one in runs if one.record.arm == arm and "seed-1" not in one.name])
        for arm in (f"{LOSS} · llama · 0.001", "cross-entropy · llama · 0.002")
    }
    plain, treated = by_hand["cross-entropy · llama · 0.002"], by_hand[f"{LOSS} · llama · 0.001"]
    assert decision["estimate"] == pytest.approx(treated - plain)
    assert treated - plain == pytest.approx(0.02, abs=0.003)
    assert (decision["n"], decision["level"]) == (4, 0.95)
    assert 0 < decision["low"] < decision["estimate"] < decision["high"]
    assert f"{LOSS} at 0.001, llama 1.02k (cross-entropy at 0.002): +0.0" in end.sentence
    told = f"{signed(treated - plain)} [{signed(decision['low'])}, {signed(decision['high'])}] in llama"
    none = "each at its own rate, no loss gains 0.005 nats of held-out loss in every model"
    assert end.headline == f"{none}; nearest to it {LOSS}: {told}"
    assert f"The best rate is an end of the list for {LOSS}, llama (0.001)." in end.sentence
    (panel,) = end.draw.args[0]
    assert panel["series"][LOSS][0] == [0.001, 0.002, 0.004]
    first = [r["seed_1"] for r in (dict(zip(end.columns, row)) for row in end.rows) if r["loss"] == LOSS]
    assert [values for (values,) in panel["series"][LOSS][1]] == first
    rows = {(row[0], row[2]): dict(zip(end.columns, row)) for row in end.rows}
    assert [key for key, row in rows.items() if row["chosen"]] == [("cross-entropy", 0.002), (LOSS, 0.001)]
    assert rows[LOSS, 0.001]["difference"] == decision["estimate"]
    assert rows[LOSS, 0.002]["difference"] is rows["cross-entropy", 0.002]["difference"] is None
    assert rows[LOSS, 0.001]["seed_1"] == pytest.approx(2.6, abs=0.3)
    assert rows[LOSS, 0.001]["held_out_loss"] == pytest.approx(treated)


@pytest.mark.parametrize(("gain", "verdict"), [(0.03, "reproduced"), (0.0, "not reproduced"), (0.005, "undecided")])
def test_a_gain_counts_from_the_smallest_that_matters(gain, verdict):
    plain = [(3.2, 3.2), (3.0, 3.0), (3.2, 3.2)]
    _, end = trained(at(plain, [(a - gain, b - gain) for a, b in plain]))
    assert end.verdict == verdict
    assert "an end of the list" not in end.sentence
    words = {"reproduced": f"{LOSS} gains", "not reproduced": "no loss gains", "undecided": "no loss is shown to gain"}
    assert end.headline.startswith(f"each at its own rate, {words[verdict]} 0.005 nats of held-out loss in every model")


def test_of_several_losses_the_one_nearest_to_a_gain_is_told_at_its_worst():
    def decision(low, high, n=3):
        return from_interval((low + high) / 2, low, high, n=n, claim="less", smallest=0.005)

    wide, fine = decision(-0.5, 0.4), decision(-0.03, -0.02)
    harm, less = decision(0.03, 0.05), decision(0.01, 0.02)
    unknown = decision(-0.1, -0.1, n=1)
    cases = [
        (
            {"a": {"m": harm, "n": fine}, "b": {"m": fine, "n": less}},
            "not reproduced",
            "b: +0.015 [+0.010, +0.020] in n",
        ),
        ({"a": {"m": harm, "n": fine}, "b": {"m": fine, "n": wide}}, "undecided", "b: −0.050 [−0.500, +0.400] in n"),
        (
            {"a": {"m": wide}, "b": {"m": fine}},
            "reproduced",
            "b gains 0.005 nats of held-out loss in every model; least",
        ),
        (
            {"a": {"m": harm, "n": wide}, "b": {"m": None, "n": unknown}},
            "undecided",
            "a: +0.040 [+0.030, +0.050] in m; not compared: b",
        ),
        ({"a": {"m": None}}, "undecided", "not known, with too few seeds or none"),
    ]
    for losses, verdict, told in cases:
        found, headline, deciding = below_everywhere(losses, 0.005)
        assert found == verdict
        assert told in headline
        assert all(name.split(" in ")[0] in headline and one.short() in headline for name, one in deciding.items())
        assert bool(deciding) == ("not known" not in headline)


def test_a_rate_needs_its_neighbours_and_a_run_that_broke_is_not_the_best():
    plain = [(3.2, 3.2), (3.0, 3.0), (math.inf, math.inf)]
    levels = at(plain, plain)
    runs, end = trained(levels)
    assert end.estimate["chosen"] == {"cross-entropy · llama": 0.002, f"{LOSS} · llama": 0.002}
    arms = list(dict.fromkeys(one.record.arm for one in runs))
    for rate, known in (("0.001", False), ("0.004", False), ("none", True)):  # of the loss alone
        some = [one for one in runs if not (rate in one.name and LOSS.split()[0] in one.name)]
        assert ((LOSS, "llama") in choices(Runs(some, arms), arms, 1)) == known
        assert choices(Runs(some, arms), arms, 1)["cross-entropy", "llama"] == ("cross-entropy · llama · 0.002", False)
    broken = at(plain, [(math.inf, math.inf)] * 3)  # at every rate: nothing is chosen
    assert trained(broken)[1].estimate["chosen"] == {"cross-entropy · llama": 0.002}
    later = at(plain, [(3.2, 3.2), (3.0, math.inf), (3.2, 3.2)])  # in the seeds that count
    _, end = trained(later)
    assert end.verdict == "undecided"
    unknown = f"{LOSS} at 0.002, llama 1.02k (cross-entropy at 0.002): unknown (4 training seeds without a value)."
    assert unknown in end.sentence
    left = {f"decorrelation-last-1-llama-0.002-seed-{seed}" for seed in SEEDS[1:]}
    _, end = trained(levels, left_out=left)  # the chosen arm has the seed that chose it alone
    assert end.verdict == "undecided"
    assert "not run." in end.sentence
    assert end.more == {}
