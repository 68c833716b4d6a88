"""The numbers of SFT and DPO (results/stages) in the prose of README.md and docs/midtraining.md."""

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
    prose = " ".join(RESULTS.split())
    assert f"goes from {before:.3f} to {after:.3f}, by {told(moved['mean_cosine'], 3)}, 1 % of it" in prose
    assert round(100 * moved["mean_cosine"]["estimate"] / before) == -1
    assert f"The loss on WikiText-2 rises by {moved['text_loss']['estimate']:.3f} nats without a loss" in prose
    shares = [f"{100 * mean(stage, 'right'):.0f} %" for stage in ("DPO", "before", "SFT")]
    assert "in {} of questions not trained on, from {}; SFT alone does that.".format(*shares[:2]) in prose
    assert shares[2] == shares[0]
    small, large = (result["arms"][f"dispersion-{weight} minus none, after DPO"] for weight in ("0.1", "1"))
    assert f"With dispersion at 1 it ends {told(large['mean_cosine'], 3, -1)} lower than without," in prose
    assert f"with dispersion at 1 by {told(large['text_loss'], 3, 1)} more, which matters" in prose
    assert large["text_loss"]["low"] > 0.002
    percent = [100 * arm["mean_cosine"]["estimate"] / after for arm in (small, large)]
    assert f"lower than without, {-percent[1]:.1f} %." in prose
    assert max(-x for x in percent) < 10  # "neither reaches the 10 % that would matter"
    assert f"At 0.1 the cosine ends {-percent[0]:.1f} % lower, and no other difference is resolved:" in prose
    assert small["log_share"]["low"] < -0.01  # "one that matters is not excluded"
    assert small["text_loss"]["low"] < -0.002 < 0.002 < small["text_loss"]["high"]
    trends = [mean(stage, "spearman") for stage in ("before", "DPO")]
    assert (
        "Spearman falls from {:.2f} to {:.2f}, by {:.2f} in every seed.".format(*trends, trends[0] - trends[1]) in prose
    )
    every = {r["spearman"] for r in runs_of if (r["arm"], r["stage"]) == ("none", "DPO")}
    assert len(every) == 1
    assert (
        f"ends {told(large['spearman'], 3, 1)} higher than without: that model is more condensed by the trend" in prose
    )
    assert all(small[key]["low"] < 0 < small[key]["high"] for key in ("text_loss", "log_share", "right", "spearman"))
    assert max(map(abs, (large["log_share"]["low"], large["log_share"]["high"]))) < 0.01  # "nothing that matters"
    texts = [told(arm["text_loss"], digits) for arm, digits in ((small, 4), (large, 3))]
    assert "| other text: {} with 0.1, {} with 1 |".format(*texts) in RESULTS
    assert f"; after SFT and DPO, on other text, not resolved: {texts[0]} |" in README
    assert f"change by {told(large['log_share'], 4).replace(' [', ' nats per item [')}, which does not" in prose
    assert f"right answers {told(small['log_share'], 3)}, text {texts[0]}, where ones that matter" in prose
    changes = " ".join((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split())
    assert "the trend over depth from {:.2f} to {:.2f};".format(*trends) in changes
    assert f"at 1 it costs other text {large['text_loss']['estimate']:.3f} nats." in changes
