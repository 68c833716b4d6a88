"""The numbers of SFT and DPO (results/stages) in the prose of README.md and docs/results.md."""

from __future__ import annotations

import csv
import json

import numpy as np
from test_quoted_results import README, RESULTS, ROOT

from decondense.stats.verdicts import signed


def test_stages():
    folder = ROOT / "results" / "stages"
    result = json.loads((folder / "conclusion.json").read_text(encoding="utf-8"))
    with (folder / "table.csv").open(encoding="utf-8", newline="") as file:
        runs_of = list(csv.DictReader(file))
    assert (result["runs"], len(runs_of)) == (9, 27)

    def mean(stage: str, key: str) -> float:
        return float(np.mean([float(r[key]) for r in runs_of if (r["arm"], r["stage"]) == ("none", stage)]))

    def told(found: dict[str, float], digits: int, sign: int = 0) -> str:
        """Difference and interval; with a sign, how much it is up (1) or down (−1)."""
        ends = [found[key] for key in ("estimate", "low", "high")]
        if sign:
            ends = [f"{sign * x:.{digits}f}" for x in (ends[0], *ends[1:][::sign])]
        else:
            ends = [signed(x, digits) for x in ends]
        return "{} [{}, {}]".format(*ends)

    before, after = mean("before", "mean_cosine"), mean("DPO", "mean_cosine")
    moved = result["stages"]["none, DPO minus before"]
    assert f"goes from {before:.3f} to {after:.3f}, by {told(moved['mean_cosine'], 3)}, 1 % of it" in RESULTS
    assert round(100 * moved["mean_cosine"]["estimate"] / before) == -1
    assert f"the loss on WikiText-2 rises by {moved['text_loss']['estimate']:.3f}." in RESULTS
    shares = [f"{100 * mean(stage, 'right'):.0f} %" for stage in ("DPO", "before")]
    assert "in {} of questions not trained on, from {}.".format(*shares) in RESULTS
    small, large = (result["arms"][f"dispersion-{weight} minus none, after DPO"] for weight in ("0.1", "1"))
    assert f"cosine ends {told(large['mean_cosine'], 3, -1)} lower, " in RESULTS
    assert f"that text rises by {told(large['text_loss'], 3, 1)} more" in RESULTS
    percent = [100 * arm["mean_cosine"]["estimate"] / after for arm in (small, large)]
    assert f"lower, {-percent[1]:.1f} %, which is less than the 10 %" in RESULTS
    assert f"At 0.1 the cosine ends {-percent[0]:.1f} % lower, and nothing else is seen." in RESULTS
    assert all(small[key]["low"] < 0 < small[key]["high"] for key in ("text_loss", "log_share", "right", "spearman"))
    assert max(map(abs, (large["log_share"]["low"], large["log_share"]["high"]))) < 0.01  # "nothing that matters"
    texts = [told(arm["text_loss"], digits) for arm, digits in ((small, 4), (large, 3))]
    listed = [told(small["log_share"], 3).replace(" [", " nats per item ["), told(large["log_share"], 4)]
    assert "right answers {} with 0.1, {} with 1; loss on other text".format(*listed) in RESULTS
    assert "loss on other text {} and **{}**".format(texts[0].replace(" [", " nats ["), texts[1]) in RESULTS
    assert "; mean cosine {} % and {} %; three seeds".format(*(signed(x, 1) for x in percent)) in RESULTS
    assert f"and 1 costs other text {large['text_loss']['estimate']:.3f} nats." in README
