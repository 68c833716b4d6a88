"""The numbers in the prose about `release`, `placebo` and `hyper` are those of the committed study folders."""

from __future__ import annotations

import numpy as np
import pytest
from test_quoted_results import PLAIN, README, RESULTS, bounds, estimate, mean, runs

from decondense.stats.crossed import crossed_macro
from decondense.stats.verdicts import signed
from decondense.studies.contrasts import by_texts


def test_release():
    found = estimate("release")
    released, kept, opposite = "λ 1, then released", "λ 1 to the end", "λ −1, then released"
    stronger = "λ 3, then released"
    moved, lost = found["mean_cosine_percent"], found["held_out_loss"]
    cost = f"{lost[released]['estimate']:.4f}"
    assert found["gate_met_by"] == [stronger]
    assert f"{-moved[released]['estimate']:.1f} % below cross-entropy's, and held-out loss {cost} nats above" in RESULTS
    open_by, loss, nats, points = (
        found[key][stronger] for key in ("mean_cosine_percent", "held_out_loss", "log_likelihood", "points")
    )
    wide, worse = f"{-open_by['estimate']:.1f} %", f"{loss['estimate']:.4f}"
    assert f"1: +{cost} {bounds(lost[released], 4)}; 3: +{worse} {bounds(loss, 4)} |" in RESULTS
    assert f"with {wide}, and held-out loss is {worse} nats higher {bounds(loss, 4)}" in RESULTS
    less = {key: -nats[key] for key in ("estimate", "low", "high")}
    assert "lower by {estimate:.4f} nats per item [{high:.4f}, {low:.4f}]".format(**less) in RESULTS
    fewer = f"{-points['estimate']:.2f} points [{-points['high']:.2f}, {-points['low']:.2f}]"
    assert f"average score by {fewer}" in RESULTS
    assert f"the cone {-open_by['estimate']:.0f} % more open and the model {worse} nats worse" in README
    assert f"above it {bounds(lost[released], 4)}; kept to the end" in RESULTS
    assert f"gives {-moved[kept]['estimate']:.1f} % and {lost[kept]['estimate']:.4f}." in RESULTS
    narrower, other = f"{moved[opposite]['estimate']:.1f}", signed(lost[opposite]["estimate"], 4)
    assert f"stays {narrower} % narrower, and the loss is {other} nats {bounds(lost[opposite], 4)}" in RESULTS
    sides = found["released_minus_opposite"]
    assert f"is the worse, by {sides['estimate']:.4f} {bounds(sides, 4)}" in RESULTS
    less = {
        arm: [-found["log_likelihood"][arm][key] for key in ("estimate", "high", "low")] for arm in (kept, released)
    }
    assert "by {:.4f} nats per item [{:.4f}, {:.4f}]".format(*less[kept]) in RESULTS
    value, low, high = less[released]
    assert f"is not resolved ({value:.4f} [{signed(low, 4)}, {signed(high, 4)}])" in RESULTS
    at_release = []
    for arm in (released, stronger):
        run, plain = (runs("release")[one] for one in (arm, PLAIN))
        strongest, last = (
            np.mean([plain[s].snapshots[i].blocks - run[s].snapshots[i].blocks for s in run]) for i in (2, -1)
        )
        at_release.append(100 * strongest / np.mean([one.snapshots[2].blocks for one in plain.values()]))
        assert 1 - last / strongest == pytest.approx(1 / 3, abs=0.015)
    told = "{:.1f} % more open with a weight of 1 and {:.1f} % with 3; a third of that closed again with either"
    assert told.format(*at_release) in RESULTS
    ranks = [mean("release", arm, "spearman") for arm in (released, stronger, PLAIN, opposite)]
    told = "Spearman is {:.2f} and, with 3, {:.2f}; cross-entropy has {:.2f}, and condensed and released {:.2f}."
    assert told.format(*ranks) in RESULTS


def test_placebo():
    found = estimate("placebo")
    real, blind, away = "dispersion λ +1", "placebo λ +1", "placebo λ −1"
    alone, more = found["against_no_loss"], found["dispersion_minus_placebo"][real]
    seen = found["seen_percent"][blind]
    assert f"its change is {signed(seen['estimate'], 1)} % of dispersion's, 90 % interval {bounds(seen, 1)}" in RESULTS
    costs = f"It costs {alone[blind]['estimate']:.4f} nats {bounds(alone[blind], 4)}, dispersion"
    assert f"{costs} {alone[real]['estimate']:.4f}: {more['estimate']:.4f} more {bounds(more, 4)}" in RESULTS
    assert f"| +{alone[real]['estimate']:.4f} {bounds(alone[real], 4)}; +{more['estimate']:.4f}" in RESULTS
    assert f"; +{more['estimate']:.4f} {bounds(more, 4)} more than a push of the same strength" in RESULTS
    likely = found["log_likelihood"][real]
    assert f"minus placebo {signed(likely['estimate'], 4)} nats per item {bounds(likely, 4)}" in RESULTS
    lost = {key: -found["log_likelihood_alone"][blind][key] for key in ("estimate", "high", "low")}
    assert (
        "the placebo loses {estimate:.4f} nats per item [{high:.4f}, {low:.4f}], dispersion".format(**lost) in RESULTS
    )
    assert f"dispersion {-found['log_likelihood_alone'][real]['estimate']:.4f}, and the two are not told" in RESULTS
    norms = found["gradient_norm"]
    assert f"is {norms[blind]:.2f} times that without a loss, dispersion's {norms[real]:.2f}" in RESULTS
    windows = [mean("placebo", arm, "held_out_loss") - mean("placebo", "λ 0", "held_out_loss") for arm in (blind, real)]
    assert "`held_out_loss`, the placebo costs {:.4f} and dispersion {:.4f}.".format(*windows) in RESULTS
    told = "at most {:.1f} up to step 90, is between {:.0f} and {:.0f} from step 110 on"
    early, late = (
        [line.grad_norm for run in runs("placebo")[away].values() for line in run.history if low <= line.step <= high]
        for low, high in ((1, 90), (110, 300))
    )
    assert told.format(max(early), np.floor(min(late)), np.ceil(max(late))) in RESULTS
    lower = 100 * (1 - mean("placebo", away, "mean_cosine") / mean("placebo", "λ 0", "mean_cosine"))
    windows = mean("placebo", away, "held_out_loss") - mean("placebo", "λ 0", "held_out_loss")
    ends = f"ends {alone[away]['estimate']:.2f} nats higher {bounds(alone[away], 2)} (over windows {windows:.2f})"
    assert f"{ends}, the mean cosine {lower:.1f} % lower" in RESULTS
    other = "dispersion λ −1"
    assert f"Condensing itself costs {alone[other]['estimate']:.4f} nats {bounds(alone[other], 4)}" in RESULTS
    lost = {key: -found["log_likelihood_alone"][other][key] for key in ("estimate", "high", "low")}
    assert "and {estimate:.4f} nats per item [{high:.4f}, {low:.4f}] of right answers".format(**lost) in RESULTS
    known = runs("placebo")
    both = by_texts(*([known[arm][seed] for seed in (1, 2, 3)] for arm in (other, real)))
    crossed = crossed_macro(both, paired=True)
    low, high = crossed.interval(0.95)
    told = f"weight {crossed.difference:.4f} nats more {bounds({'low': low, 'high': high}, 4)}: not told apart"
    assert told in RESULTS
    worse = mean("dose", "λ −1", "held_out_loss") - mean("dose", "λ +1", "held_out_loss")
    assert f"condensing had cost {worse:.4f} more" in RESULTS


def test_hyper():
    found = estimate("hyper")
    cells = ["0.01, 1", "0.1, 2", "0.1, 1", "0.1, 0.5", "0.5, 1", "0.1, 0.1", "1, 1"]
    opened = []
    for cell in cells:
        arm = f"λ {cell.replace(', ', ', τ ')}"
        against = found["minus_cross_entropy"][arm]
        opened.append(100 * (mean("hyper", arm, "mean_cosine") / mean("hyper", PLAIN, "mean_cosine") - 1))
        middle, around = signed(against["estimate"], 4), bounds(against, 4)
        own = cell == "0.1, 1"
        name = f"{cell} (the paper's)" if own else cell
        assert f"| {name} | {signed(opened[-1], 1)} % | {middle} {around} |" in RESULTS
        if own:
            assert f"| (0.1, 1): {middle} {around}; (1, 1)" in RESULTS
    assert f"; (1, 1): {middle} {around}; 99.3 % |" in RESULTS
    assert opened == sorted(opened, reverse=True)
    assert sum(d["high"] < 0 for d in found["minus_cross_entropy"].values()) == 0
    rivals = [found["cell_minus_centre"][arm] for arm in ("λ 0.1, τ 2", "λ 0.01, τ 1")]
    assert {f"{-rival['estimate']:.4f}" for rival in rivals} == {"0.0004"}
    assert f"each 0.0004 lower, 90 % intervals {bounds(rivals[0], 5)} and {bounds(rivals[1], 5)}" in RESULTS
    assert {d["verdict"] for d in found["points_minus_centre"].values()} == {"undecided"}
    assert f"more than {-min(d['low'] for d in found['minus_cross_entropy'].values()):.4f} nats is excluded" in RESULTS
    ratios = [float(weight) / float(tau) for weight, tau in (cell.split(", ") for cell in cells)]
    falls = [-percent / ratio for percent, ratio in zip(opened, ratios)]
    assert f"falls by {min(falls):.1f} to {max(falls):.1f} % times λ/τ" in RESULTS
    last = mean("hyper", "λ 1, τ 1", "held_out_loss") - mean("hyper", "λ 0.1, τ 0.1", "held_out_loss")
    assert f"the last two, differ by {last:.4f} nats" in RESULTS
    pairs = zip(runs("placebo")["dispersion λ −1"].values(), runs("release")["λ −1, then released"].values())
    again = [abs(one.loss - two.loss) for new, old in pairs for one, two in zip(new.held_out[:3], old.held_out[:3])]
    assert f"differs by at most {max(again):.4f} nats" in RESULTS
    likely = found["log_likelihood_minus_centre"]
    told = f"by {-likely['λ 0.1, τ 0.1']['estimate']:.3f} and {-likely['λ 1, τ 1']['estimate']:.3f} nats per item"
    assert told in RESULTS
    assert {arm for arm, d in likely.items() if d["low"] > 0 or d["high"] < 0} == {"λ 0.1, τ 0.1", "λ 1, τ 1"}
    reach = [(d["high"] - d["low"]) / 2 for d in found["points_minus_centre"].values()]
    assert f"intervals of ±{min(reach):.1f} to ±{max(reach):.1f}. From" in RESULTS
    assert sum(map(len, runs("hyper").values())) == 24
