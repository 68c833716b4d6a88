"""The one rule by which a study says "reproduced", "not reproduced" or "undecided": docs/studies.md has it in words.

A claim is about training, so the sample is the training runs: one number per training seed, and an interval over those
numbers (over models or texts, where the claim is about these). Whatever the interval does not decide is undecided, and
so is anything with fewer than three numbers. Without a true effect, "reproduced" has a probability of 2.5 % for a
direction (of numbers without ties), and at most 5 % for the other claims. numpy and scipy only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy

from ..checks import check_choice
from ..words import first_few, several, signed
from .intervals import LEAST, resolved, student, t_quantile

REPRODUCED, NOT, UNDECIDED = "reproduced", "not reproduced", "undecided"
MATTERS, SMALL, NONE = "an effect that matters", "an effect, too small to matter", "no effect that matters"


def finding(
    row: Mapping[str, Any], inner: tuple[float, float], smallest: float, *, significant: bool | None = None
) -> str:
    """What an interval says about an effect, where `smallest` is the least that would matter.

    With [l, h] the 95 % interval (`row`: low, high) and [l', h'] the 90 % one (`inner`):

        an effect that matters           l > smallest or h < −smallest
        an effect, too small to matter   different from 0, and −smallest < l', h' < smallest
        no effect that matters           not different from 0, and −smallest < l', h' < smallest
                                         (equivalence: two one-sided tests at 5 %)
        undecided                        anything else, including an effect of unknown size

    "Different from 0" is `significant` where that is given, else whether [l, h] excludes 0."""
    low, high = row["low"], row["high"]
    if low is None or high is None or not all(map(math.isfinite, (low, high, *inner))):
        return UNDECIDED
    different = not low <= 0 <= high if significant is None else significant
    if different and (low > smallest or high < -smallest):
        return MATTERS
    if -smallest < inner[0] and inner[1] < smallest:
        return SMALL if different else NONE
    return UNDECIDED


def judged(values: Sequence[float], smallest: float) -> str:
    """`finding` of the mean of `values`, one per unit, by Student's intervals; undecided with fewer than three."""
    if unclear(values) is not None:
        return UNDECIDED
    (_, low, high), (_, *inner) = interval(values), interval(values, 0.9)
    return finding({"low": low, "high": high}, (inner[0], inner[1]), smallest)


def trend_and_level(trend: str, level: str) -> str:
    """Both verdicts on a claim about condensation, side by side: a trend can flatten while the level rises."""
    return f"By the trend over depth {trend}, by the level of the mean cosine {level}."


def trend_and_level_short(trend: Decision, level: Decision) -> str:
    """Both numbers, in short."""
    return f"trend over depth (Spearman) {trend.short(2)}, mean cosine {level.short()}"


@dataclass(frozen=True)
class Decision:
    """A verdict, and the interval it comes from: over `n` units of the kind `unit`. `resolution`: the smallest true
    effect that would be found four times out of five, if units spread as these do."""

    verdict: str
    estimate: float | None
    low: float | None
    high: float | None
    n: int
    unit: str
    level: float
    reason: str
    resolution: float | None = None

    @property
    def why(self) -> str:
        """The reason as the next clause of a sentence, where `words` has not said it already."""
        return "" if self.low is None else f"; {self.reason}"

    def words(self, digits: int = 3) -> str:
        """+0.123 [+0.045, +0.201] over 3 training seeds (resolves 0.10)"""
        if self.estimate is None:
            return f"unknown ({self.reason})"
        if self.low is None or self.high is None:
            return f"{signed(self.estimate, digits)} ({self.reason})"
        if self.low == self.high:
            return f"{signed(self.estimate, digits)} in {self.n} of {several(self.n, self.unit)}"
        percent = "" if self.level == 0.95 else f"{100 * self.level:.3g} % interval "
        return (
            f"{signed(self.estimate, digits)} {percent}[{signed(self.low, digits)}, {signed(self.high, digits)}] over "
            f"{several(self.n, self.unit)}{resolves(self.resolution)}"
        )

    def short(self, digits: int = 3) -> str:
        """+0.123 [+0.045, +0.201], followed by the level unless it is 95 %, as (90 %)"""
        if self.estimate is None or (self.low is not None and self.low == self.high):
            return self.words(digits)
        if self.low is None or self.high is None:
            return f"{signed(self.estimate, digits)} ({several(self.n, self.unit)}, no interval)"
        level = "" if self.level == 0.95 else f" ({100 * self.level:.3g} %)"
        return f"{signed(self.estimate, digits)} [{signed(self.low, digits)}, {signed(self.high, digits)}]{level}"


def resolves(effect: float | None) -> str:
    """ " (resolves 0.12)", with two significant digits; empty where the effect is not known."""
    if effect is None or not 0 < effect < math.inf:
        return ""
    return f" (resolves {effect:.{max(0, 1 - math.floor(math.log10(effect)))}f})"


class Mean(NamedTuple):
    """A mean, and the interval around it."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float], level: float = 0.95) -> Mean:
    """Mean and Student's interval: mean ± t_(n−1) · s/√n. With one value the ends are NaN."""
    mean, half = student(values, level)
    return Mean(float(mean), float(mean - half), float(mean + half))


def decide(
    values: Sequence[float], *, claim: str = "greater", level: float = 0.95, unit: str = "training seed",
    bound: float | None = None,
) -> Decision:  # fmt: skip
    """Is the mean of `values`, one per unit, above 0 (`claim` "greater") or below ("less")?

    Values that are all the same have no spread to judge them by and leave the claim undecided, as in `equivalent` and
    `not_below`, unless all of them are at `bound`, the end of the quantity's range.
    """
    if (unknown := unclear(values, unit=unit, level=level, bound=bound)) is not None:
        return unknown
    mean, low, high = interval(values, level)
    resolution = resolved(high - mean, level, len(values) - 1) or None
    return from_interval(mean, low, high, n=len(values), claim=claim, level=level, unit=unit, resolution=resolution)


def from_interval(
    estimate: float, low: float, high: float, *, n: int, claim: str = "greater", smallest: float = 0.0,
    level: float = 0.95, unit: str = "training seed", least: int = LEAST, resolution: float | None = None,
) -> Decision:  # fmt: skip
    """`decide` for an interval computed elsewhere over `n` units; `smallest`: what the claim would call an effect."""
    check_choice("claim", claim, ("greater", "less"))
    if n < least or not all(map(math.isfinite, (estimate, low, high))):
        return _too_few(estimate, n, least, unit=unit, level=level)
    bottom, top = (low, high) if claim == "greater" else (-high, -low)
    if bottom > 0:
        verdict, reason = REPRODUCED, f"the whole interval lies {'above' if claim == 'greater' else 'below'} 0"
        if smallest and top < smallest:
            reason += f" and excludes an effect of {smallest:g}: the direction, not the size"
    elif top < 0:
        verdict, reason = NOT, f"the whole interval lies {'below' if claim == 'greater' else 'above'} 0"
    elif top < smallest:
        verdict, reason = NOT, f"the interval excludes an effect of {smallest:g}, and includes 0"
    else:
        verdict, reason = UNDECIDED, "the interval includes 0" + (f" and {smallest:g}" if smallest else "")
    return Decision(verdict, estimate, low, high, n, unit, level, reason, resolution)


def equivalent(values: Sequence[float], *, margin: float, around: float = 0.0) -> Decision:
    """Is the mean over training seeds within ±`margin` of 0, or of another number? Two one-sided tests at 5 %."""
    of = f" of {around:g}" if around else ""
    reasons = [f"{where} ±{margin:g}{of}" for where in ("lies inside", "lies outside", "crosses the margin of")]
    return _between(values, around - margin, around + margin, reasons, "training seed")


def not_below(values: Sequence[float], *, margin: float, unit: str = "training seed", tried: int = 1) -> Decision:
    """Is the mean above −`margin`? One test at 5 %: "not worse by more than the margin". "Not reproduced" is tested at
    5 % divided by `tried`, the number of such tests of which a single one is enough to refute the claim."""
    reasons = (f"lies above −{margin:g}", f"lies below −{margin:g}", f"crosses −{margin:g}")
    return _between(values, -margin, math.inf, reasons, unit, tried)


def _between(
    values: Sequence[float], bottom: float, top: float, reasons: Sequence[str], unit: str, tried: int = 1
) -> Decision:
    """Reproduced where the 90 % interval lies inside the bounds, not reproduced where the 1 − 0.05/`tried` interval
    lies outside, otherwise undecided."""
    if (unknown := unclear(values, unit=unit, level=0.9)) is not None:
        return unknown
    mean, low, high = interval(values, 0.9)
    _, outer_low, outer_high = interval(values, 1 - 0.05 / tried)
    resolution = resolved(high - mean, 0.9, len(values) - 1) or None
    case = 0 if bottom < low and high < top else 1 if outer_low > top or outer_high < bottom else 2
    verdict = (REPRODUCED, NOT, UNDECIDED)[case]
    return Decision(verdict, mean, low, high, len(values), unit, 0.9, f"the interval {reasons[case]}", resolution)


def slope(x: Sequence[float], y: Sequence[float], groups: Sequence[object], *, claim: str = "greater") -> Decision:
    """Does y rise (or fall) with x? One point per model; `groups` (families) have a level each and share the slope.

    b = Σ x̃ỹ/Σ x̃², x̃ and ỹ centred in their group; s² = Σ (ỹ − b x̃)²/ν, ν = n − groups − 1; b ± t_ν · s/√(Σ x̃²).
    Needs at least 4 points in groups of 2 or more, so that ν ≥ 2 for one family.
    """
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    names = list(groups)
    usable = [i for i, g in enumerate(names) if names.count(g) > 1]
    if (missing := _missing([float(b[i]) for i in usable], 4, unit="model")) is not None:
        return missing
    a, b, names = a[usable], b[usable], [names[i] for i in usable]
    for g in dict.fromkeys(names):
        inside = np.array([n == g for n in names])
        a[inside] -= a[inside].mean()
        b[inside] -= b[inside].mean()
    spread = float(a @ a)
    df = len(a) - len(set(names)) - 1
    if spread == 0 or df < 2:
        reason = "too few models" if df < 2 else "the models do not differ enough"
        return undecided(f"{reason} for a slope", len(a), unit="model")
    estimate = float(a @ b) / spread
    half = float(t_quantile(0.05, df)) * math.sqrt(float(((b - estimate * a) ** 2).sum()) / df / spread)
    return from_interval(
        estimate, estimate - half, estimate + half, n=len(a), claim=claim, unit="model", least=4,
        resolution=resolved(half, 0.95, df) or None,
    )  # fmt: skip


def steady(values: Sequence[float], *, margin: float, most: float = math.inf) -> Decision:
    """Would another text give about the same number? The 95 % interval for one more value,

        mean ± t_(n−1) · s √(1 + 1/n),

    lies within ±`margin` of the mean and does not contain 0: the same sign on any other text. Where no value can lie
    beyond ±`most`, as a correlation cannot beyond ±1, the reported interval is cut off there; this changes neither how
    often it holds the next value nor the verdict.
    """
    if (missing := _missing(values, unit="text")) is not None:
        return missing
    x = np.asarray(values, dtype=np.float64)
    n, mean, spread = len(x), float(x.mean()), float(x.std(ddof=1))
    half = float(t_quantile(0.05, n - 1)) * spread * math.sqrt(1 + 1 / n)
    low, high = mean - half, mean + half
    # s is itself uncertain: a true spread whose interval fits the margin is excluded when even the lower confidence
    # limit of the spread does not fit.
    least_spread = math.sqrt((n - 1) * spread**2 / float(scipy.special.chdtri(n - 1, 0.05)))
    if half < margin and (low > 0 or high < 0):
        verdict, reason = REPRODUCED, f"another text would lie within ±{margin:g}, with the same sign"
    elif least_spread * 1.96 > margin:
        verdict, reason = NOT, f"texts differ by more than ±{margin:g}"
    else:
        sign = ", or in sign" if low <= 0 <= high else ""
        verdict, reason = UNDECIDED, f"another text could differ by more than ±{margin:g}{sign}"
    return Decision(verdict, mean, max(low, -most), min(high, most), n, "text", 0.95, reason)


def combine(decisions: Sequence[Decision]) -> str:
    """A claim with several parts is reproduced when each part is, and not reproduced as soon as one is not. (All parts
    must hold, so the chance of a wrong "reproduced" stays that of a single part.)"""
    verdicts = [d.verdict for d in decisions]
    if NOT in verdicts:
        return NOT
    return REPRODUCED if verdicts and set(verdicts) == {REPRODUCED} else UNDECIDED


def deciding(decisions: Mapping[str, Decision], digits: int) -> str:
    """The parts that decide the verdict of `combine`, in short: all if every one is reproduced, else those that are not
    reproduced, else the undecided ones; three of them at most, then how many more there are."""
    verdict = combine(list(decisions.values()))
    parts = [f"{name} {one.short(digits)}" for name, one in decisions.items() if one.verdict == verdict]
    return first_few(parts, 3) or "unknown"


def undecided(
    reason: str, n: int, *, estimate: float | None = None, unit: str = "training seed", level: float = 0.95
) -> Decision:
    """A decision without an interval."""
    return Decision(UNDECIDED, estimate, None, None, n, unit, level, reason)


def unclear(
    values: Sequence[float], *, unit: str = "training seed", level: float = 0.95, bound: float | None = None
) -> Decision | None:
    """Undecided, where values are missing or all the same; None where there is a spread to judge them by."""
    missing = _missing(values, unit=unit, level=level)
    if missing is None and min(values) == max(values) != bound:
        same = f"all {several(len(values), unit)} give the same number, and no spread to judge it by"
        return undecided(same, len(values), estimate=float(values[0]), unit=unit, level=level)
    return missing


def _missing(values: Sequence[float], least: int = LEAST, *, unit: str, level: float = 0.95) -> Decision | None:
    if without := sum(not math.isfinite(value) for value in values):
        return undecided(f"{several(without, unit)} without a value", len(values), unit=unit, level=level)
    mean = float(np.mean(values)) if len(values) else math.nan
    return _too_few(mean, len(values), least, unit=unit, level=level) if len(values) < least else None


def _too_few(estimate: float, n: int, least: int, *, unit: str, level: float) -> Decision:
    reason = f"{n} of at least {several(least, unit)}"
    return undecided(reason, n, estimate=estimate if math.isfinite(estimate) else None, unit=unit, level=level)
