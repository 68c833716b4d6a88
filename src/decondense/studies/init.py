"""C4: condensation is there at initialisation, and training relieves it.

Criterion: over training runs, Spearman at step 0 is above 0, and Spearman at the end minus at step 0 is below 0; both
95 % intervals over training seeds must say so. At paper scale a row of published checkpoints is one training run. How
the mean cosine itself changes is said beside it: a trend can flatten while the level rises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..stats.verdicts import Decision, combine, decide, signed
from . import measuring, scales, training
from .study import Conclusion, Piece, Settings, Study, Workshop, safe_name
from .training import blocks, cosine, joined, last, spearman

CRITERION = (
    "Spearman at step 0 is above 0, and Spearman at the end minus at step 0 is below 0: both 95 % intervals over "
    "training runs (seeds; published runs at paper scale)."
)
ARM = "from scratch"


def plan(settings: Settings) -> list[Piece]:
    if "checkpoints" not in settings:
        return training.plan(settings)
    return [
        Piece(
            safe_name(f"{model}-{revision}"),
            f"{model} at {revision}",
            {"model": model, "revision": revision, "place": i},
        )
        for model, revisions in settings["checkpoints"].items()
        for i, revision in enumerate(revisions)
    ]


def work(piece: Piece, settings: Settings, shop: Workshop) -> dict[str, Any]:
    if "checkpoints" not in settings:
        return training.work(piece, settings, shop)
    what = piece.what
    return measuring.measured(what["model"], settings, shop, text=settings["text"], revision=what["revision"])


def check(settings: Settings) -> None:
    if "checkpoints" in settings:
        return
    if list(settings["arms"]) != [ARM]:
        given = ", ".join(map(repr, settings["arms"]))
        raise ValueError(f"the study follows one arm, {ARM!r}, got {given}: change that one, or base.")
    training.check(settings)


def rows_of_checkpoints(pieces: Sequence[Mapping[str, Any]], settings: Settings) -> dict[str, list[tuple[str, Any]]]:
    """run → its checkpoints in order: (label, snapshot)."""
    rows: dict[str, list[tuple[str, Any]]] = {}
    if "checkpoints" in settings:
        order = sorted(
            pieces, key=lambda p: (list(settings["checkpoints"]).index(p["what"]["model"]), p["what"]["place"])
        )
        for piece in order:
            rows.setdefault(piece["what"]["model"], []).append((piece["what"]["revision"], piece["measurement"]))
        # a run counts when its first and its last checkpoint are there
        return {
            m: r
            for m, r in rows.items()
            if {settings["checkpoints"][m][0], settings["checkpoints"][m][-1]} <= {x for x, _ in r}
        }
    runs = training.Runs(pieces, [ARM])
    for seed, run in runs.table.get(ARM, {}).items():
        rows[f"seed {seed}"] = [(f"step {s['step']}", s) for s in run["snapshots"]]
    return rows


def conclude(pieces: list[dict[str, Any]], settings: Settings) -> Conclusion:
    rows = rows_of_checkpoints(pieces, settings)
    runs = [{"snapshots": [s for _, s in row]} for row in rows.values()]
    unit = "training seed" if "checkpoints" not in settings else "training run"

    def change(metric: Callable[..., float]) -> Decision:
        return decide([metric(run) - metric(run, 0) for run in runs], claim="less", unit=unit)

    start = decide([spearman(run, 0) for run in runs], claim="greater", unit=unit, bound=1.0)
    fall, level, late = change(spearman), change(cosine), change(last)
    table = [
        [run, label, s.get("step"), s["spearman"], s["kendall"], s["last"], blocks(s)]
        for run, row in rows.items()
        for label, s in row
    ]
    sentence = (
        f"Spearman at step 0 {start.words(2)}; end minus step 0 {fall.words(2)}. Mean cosine of the blocks, end minus "
        f"step 0, {level.words()}; of the last three states {late.words()}."
    )

    def draw(path: Path) -> Path:
        from ..figures.studies import heat_row

        first = next(iter(rows.values()))
        labels = [label for label, _ in first]
        shown = {"Spearman": spearman, "mean cosine of the blocks": cosine, "mean cosine of the last 3 states": last}
        at = {
            label: [{"snapshots": [s]} for row in rows.values() for other, s in row if other == label]
            for label in labels
        }
        points = {
            what: [(label.removeprefix("step "), [metric(one) for one in at[label]]) for label in labels]
            for what, metric in shown.items()
        }
        return heat_row(first, path, points=points, x="optimiser step (heatmaps: the first run)")

    columns = ["run", "checkpoint", "step", "spearman", "kendall", "mean_cosine_last", "mean_cosine"]
    estimate = {
        "start": start.record(),
        "change": fall.record(),
        "mean_cosine": level.record(),
        "last": late.record(),
        "ends": [signed(spearman(run), 3) for run in runs],
    }
    return Conclusion(combine([start, fall]), sentence, columns, table, estimate, draw if rows else None)


_OLMO = ["stage1-step0", "stage1-step1000", "stage1-step10000", "stage1-step100000", "stage1-step500000"]
_OLMO += ["stage1-step1000000", "stage1-step1413814", "main"]
_PYTHIA = ["step0", "step512", "step1000", "step10000", "step50000", "step100000", "step143000"]
STUDY = Study(
    name="init",
    claim="C4",
    question="Is condensation there at initialisation, and does training relieve it?",
    criterion=CRITERION,
    scales={
        "smoke": {
            "about": "a GPT2 of 6 layers and width 32, 3 seeds, 8 steps, 4 checkpoints",
            "cost": "12 s of a CPU core",
            "base": joined(scales.TINY_GPT2, {"snapshots": {"count": 3}}),
            "arms": {ARM: {}},
            "seeds": scales.SEEDS,
            "heatmaps": "all",
        },
        "gpu": {
            "about": "a GPT2 of 12 layers and width 512, 3 seeds, 16M tokens of novels each, 8 checkpoints",
            "cost": "3 pieces of about 1 minute on an H200, or none with --reuse of `width`",
            "base": scales.SCRATCH,
            "arms": {ARM: {}},
            "seeds": scales.SEEDS,
            "heatmaps": "all",
        },
        "paper": {
            "about": "the paper's Olmo-3-1025-7B checkpoints and, as one run has no interval, three Pythia runs",
            "cost": "29 measurements, the largest of a 7B model; about 2 hours on an H200, and the downloads",
            "checkpoints": {
                "allenai/Olmo-3-1025-7B": _OLMO,
                "EleutherAI/pythia-160m": _PYTHIA,
                "EleutherAI/pythia-410m": _PYTHIA,
                "EleutherAI/pythia-1b": _PYTHIA,
            },
            "text": "wikitext-103",
            "windows": 100,
            "tokens": 512,
        },
    },
    plan=plan,
    work=work,
    conclude=conclude,
    check=check,
)
