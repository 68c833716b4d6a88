"""The λ, τ table, and the choices around it: layers, clamp, sample size, weight schedule.

Criterion: held-out loss at the paper's choice (λ = 0.1, τ = 1) minus that of every other cell of its grid is below 0:
95 % intervals over training seeds. Not reproduced when some cell is better than the paper's, with the level divided
by the number of cells, as any of them might be. The other choices are told, and decide nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..stats.verdicts import NOT, REPRODUCED, UNDECIDED, decide
from . import scales, training
from .study import Conclusion, Settings, Study
from .training import Runs, cosine, held_out, joined

CRITERION = (
    "Held-out loss at λ = 0.1, τ = 1 minus that of every other cell of the paper's grid is below 0 (95 % "
    "intervals over training seeds); not reproduced when a cell is better at the level divided by the number of "
    "cells."
)
CENTRE = "λ 0.1, τ 1"
GRID = [(0.01, 1.0), (0.5, 1.0), (1.0, 1.0), (0.1, 0.1), (0.1, 0.5), (0.1, 2.0)]


def cell(weight: float, tau: float) -> str:
    return f"λ {weight:g}, τ {tau:g}"


def arms(sizes: tuple[int, int], ramp: int) -> dict[str, Any]:
    def with_loss(**changes: Any) -> dict[str, Any]:
        return joined(scales.DISPERSION, {"loss": changes})

    found: dict[str, Any] = {"cross-entropy": {}, CENTRE: scales.DISPERSION}
    found |= {cell(w, t): with_loss(weight=w, options={"tau": t}) for w, t in GRID}
    found |= {f"layers: {x.replace('_', ' ')}": with_loss(layers=x) for x in ("last", "early_half", "late_half")}
    found |= {f"clamp {x:g}": with_loss(options={"clamp": x}) for x in (0.01, 0.25)}
    found |= {f"{n} sampled tokens": with_loss(options={"estimator": "sampled", "max_tokens": n}) for n in sizes}
    found |= {f"weight rises, {x}": with_loss(schedule=x, ramp_steps=ramp) for x in ("linear", "cosine")}
    return found


def conclude(pieces: list[dict[str, Any]], settings: Settings) -> Conclusion:
    runs = Runs(pieces, list(settings["arms"]))
    others = [cell(w, t) for w, t in GRID]
    beats = {arm: decide(runs.differences(CENTRE, arm, held_out), claim="less") for arm in others}
    strict = {
        arm: decide(runs.differences(CENTRE, arm, held_out), claim="less", level=1 - 0.05 / len(others))
        for arm in others
    }
    verdict = UNDECIDED
    if all(d.verdict == REPRODUCED for d in beats.values()):
        verdict = REPRODUCED
    elif any(d.verdict == NOT for d in strict.values()):
        verdict = NOT
    worse = [arm for arm, d in beats.items() if d.verdict == REPRODUCED]
    better = [arm for arm, d in strict.items() if d.verdict == NOT]
    closest = max(beats.items(), key=lambda pair: pair[1].estimate if pair[1].estimate is not None else -1e9)
    sentence = (
        f"of {len(others)} other cells {len(worse)} have a higher held-out loss than the paper's choice with the whole "
        f"interval, and {len(better)} a lower one ({', '.join(better) or 'none'}); paper's choice minus its strongest "
        f"rival, {closest[0]}: {closest[1].words(4)}."
    )
    columns, rows = runs.rows()

    def draw(path: Path) -> Path:
        from ..figures.studies import effects

        shown = [arm for arm in runs.arms if arm != CENTRE and runs.differences(arm, CENTRE, held_out)]
        return effects(
            [(arm, runs.differences(arm, CENTRE, held_out)) for arm in shown],
            path,
            x=f"held-out loss minus that of {CENTRE}, nats per token",
            right=[f"{runs.mean(a, cosine):.3f}" for a in shown],
            right_title="mean cosine",
            colours=[0 if a in others else 2 if a == "cross-entropy" else 1 for a in shown],
            note="blue: the paper's grid; orange: other choices; green: cross-entropy alone",
        )

    estimate = {
        "centre_minus_cell": {arm: d.record() for arm, d in beats.items()},
        "others_minus_centre": {
            arm: decide(runs.differences(arm, CENTRE, held_out), claim="less").record()
            for arm in runs.arms
            if arm not in (CENTRE, *others)
        },
    }
    return Conclusion(verdict, sentence, columns, rows, estimate, draw)


STUDY = Study(
    name="hyper",
    claim="λ, τ table",
    question="Is λ = 0.1, τ = 1 the best of the paper's grid, and do layers, clamp, sample size or schedule matter?",
    criterion=CRITERION,
    scales={
        "smoke": {
            "about": "a Llama of 2 layers and width 32, all 17 arms, 1 seed, 2 steps",
            "cost": "15 s of a CPU core",
            "base": joined(scales.TINY_SHORT, {"data": {"tokens": 512}}),
            "arms": arms((8, 16), 2),
            "seeds": [1],
        },
        "gpu": {
            "about": "SmolLM2-135M, all 17 arms, 3 seeds, 10M tokens of novels each",
            "cost": "9 pieces of about 5 minutes on an H200",
            "base": scales.MIDTRAIN,
            "arms": arms((64, 256), 150),
            "seeds": scales.SEEDS,
            "arms_per_piece": 6,
        },
        "paper": {
            "about": "GPT2 on 200M tokens of wikitext-103, all 17 arms, 3 seeds",
            "cost": "51 trainings of 200M tokens, about 51 × 15 minutes on an H200",
            "base": scales.PUBLISHED_MIDTRAIN,
            "arms": arms((64, 256), 763),
            "seeds": scales.SEEDS,
            "arms_per_piece": 1,
        },
    },
    plan=training.plan,
    work=training.work,
    conclude=conclude,
    check=training.checking(CENTRE, *(cell(w, t) for w, t in GRID)),
)
