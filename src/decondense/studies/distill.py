"""C5: distillation does not cure condensation.

Criterion: mean cosine of the block outputs, student from a teacher minus student alone, is not below −0.05: the claim
is that the teacher does *not* help, so the lower end of the 90 % interval over training seeds (one test at 5 %) must
lie above −0.05. At paper scale nothing is trained and the unit is the pair of published models.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..stats.verdicts import decide, not_below
from . import measuring, scales, training
from .study import Conclusion, Piece, Settings, Study, Workshop, safe_name
from .training import Runs, blocks, cosine, held_out, spearman

MARGIN = 0.05
CRITERION = (
    "Mean cosine of the block outputs, with a teacher minus alone, is not below −0.05: the lower end of the 90 % "
    "interval over training seeds (pairs of models at paper scale) lies above −0.05."
)
ALONE, TAUGHT = "student alone", "student with a teacher"


def plan(settings: Settings) -> list[Piece]:
    if "pairs" not in settings:
        return training.plan(settings)
    return [
        Piece(safe_name(model), f"pair {i + 1}: {model}", {"model": model, "pair": i, "taught": bool(k)})
        for i, pair in enumerate(settings["pairs"])
        for k, model in enumerate(pair)
    ]


def work(piece: Piece, settings: Settings, shop: Workshop) -> dict[str, Any]:
    if "pairs" not in settings:
        return training.work(piece, settings, shop)
    return measuring.measured(piece.what["model"], settings, shop, text=settings["text"])


def conclude(pieces: list[dict[str, Any]], settings: Settings) -> Conclusion:
    return _pairs(pieces, settings) if "pairs" in settings else _students(pieces, settings)


def _students(pieces: list[dict[str, Any]], settings: Settings) -> Conclusion:
    runs = Runs(pieces, list(settings["arms"]))
    change = not_below(runs.differences(TAUGHT, ALONE, cosine), margin=MARGIN)
    trend = decide(runs.differences(TAUGHT, ALONE, spearman), claim="less")
    loss = decide(runs.differences(TAUGHT, ALONE, held_out), claim="less")
    sentence = (
        f"mean cosine {runs.mean(ALONE, cosine):.3f} alone, {runs.mean(TAUGHT, cosine):.3f} with a teacher; difference "
        f"{change.words()}{change.why}. Spearman {trend.words(2)}, held-out loss {loss.words(4)}."
    )
    columns, rows = runs.rows()

    def draw(path: Path) -> Path:
        from ..figures.studies import heat_row

        panels = [(arm, runs.first(arm)["snapshots"][-1]) for arm in runs.arms]
        points = [(arm, runs.values(arm, cosine)) for arm in runs.arms]
        return heat_row(panels, path, points={"mean cosine of the blocks": points}, x="")

    estimate = {
        "mean_cosine": change.record(),
        "spearman": trend.record(),
        "held_out_loss": loss.record(),
        "margin": MARGIN,
    }
    return Conclusion(change.verdict, sentence, columns, rows, estimate, draw)


def _pairs(pieces: list[dict[str, Any]], settings: Settings) -> Conclusion:
    found: dict[tuple[int, bool], Mapping[str, Any]] = {
        (p["what"]["pair"], p["what"]["taught"]): p["measurement"] for p in pieces
    }
    whole = [i for i in range(len(settings["pairs"])) if (i, False) in found and (i, True) in found]
    change = not_below([blocks(found[i, True]) - blocks(found[i, False]) for i in whole], margin=MARGIN, unit="pair")
    sentence = f"distilled minus original {change.words()}{change.why}."
    rows = [
        [i, m["model"], taught, m["parameters"], blocks(m), m["spearman"], *m["window_interval"]]
        for (i, taught), m in sorted(found.items())
    ]
    columns = ["pair", "model", "distilled", "parameters", "mean_cosine", "spearman", "spearman_low", "spearman_high"]

    def draw(path: Path) -> Path:
        from ..figures.studies import heat_grid

        shown = []
        for words, taught in (("original", False), ("distilled", True)):
            panels = [(found[i, taught]["model"].split("/")[-1], found[i, taught]) for i in whole]
            shown.append((words, panels))
        return heat_grid(shown, path)

    estimate = {"mean_cosine": change.record(), "margin": MARGIN}
    return Conclusion(change.verdict, sentence, columns, rows, estimate, draw if whole else None)


def _arms(teacher: str) -> dict[str, Any]:
    return {ALONE: {}, TAUGHT: {"baselines": {"distillation": {"teacher": teacher, "temperature": 2.0, "share": 0.5}}}}


STUDY = Study(
    name="distill",
    claim="C5",
    question="Does learning from a larger teacher cure condensation?",
    criterion=CRITERION,
    scales={
        "smoke": {
            "about": "a Llama of width 32 alone and from one of width 64 (trained first), 3 seeds, 4 steps",
            "cost": "15 s of a CPU core",
            "base": scales.TINY_SHORT,
            "teacher": {"model": {"config": {"hidden_size": 64}}, "snapshots": {"count": 0}},
            "arms": _arms("teacher"),
            "seeds": scales.SEEDS,
            "heatmaps": "last",
        },
        "gpu": {
            "about": "a GPT2 of 12 layers and width 512 alone and from SmolLM2-135M, 3 seeds, 16M tokens of novels",
            "cost": "3 pieces of about 5 minutes on an H200",
            "base": scales.SCRATCH,
            "arms": _arms("smollm2-135m"),
            "seeds": scales.SEEDS,
            "heatmaps": "last",
        },
        "paper": {
            "about": "Qwen2.5(-Math) against DeepSeek-R1-Distill-Qwen, 1.5B, 7B, 14B, 32B, measured in pairs",
            "cost": "8 measurements, the largest of a 32B model; about 1 hour on an H200, and the downloads",
            "pairs": [
                ["Qwen/Qwen2.5-Math-1.5B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"],
                ["Qwen/Qwen2.5-Math-7B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"],
                ["Qwen/Qwen2.5-14B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B"],
                ["Qwen/Qwen2.5-32B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B"],
            ],
            "text": "wikitext-103",
            "windows": 100,
            "tokens": 512,
        },
    },
    plan=plan,
    work=work,
    conclude=conclude,
    check=lambda settings: None if "pairs" in settings else training.checking(ALONE, TAUGHT)(settings),
)
