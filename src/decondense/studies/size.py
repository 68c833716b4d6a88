"""C1: inside a family, smaller models condense more.

Two kinds of families: published models, measured (any list of ids), and one trained here from nothing, whose members
differ in depth and width. The unit is the model: a family member is one number (Spearman; of a model trained with
several seeds, their mean), and windows only make that number more precise.

Criterion: the slope of Spearman over log₁₀(parameters), one slope for all families with a level of its own for each,
is below 0: 95 % interval over models (n − families − 1 degrees of freedom), at least 4 models. A family of one tells
nothing and is shown only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..stats.verdicts import signed, slope
from . import measuring, scales, training
from .study import Conclusion, Piece, Settings, Study, Workshop, safe_name
from .training import Runs, blocks, cosine, spearman

CRITERION = (
    "The slope of Spearman over log₁₀(parameters), families having a level each, is below 0: 95 % interval over "
    "models, at least 4 of them."
)
SCRATCH = "trained from scratch"


def arms(sizes: list[tuple[int, int, int]], **more: Any) -> dict[str, Any]:
    """(layers, width, heads) → a GPT2 with an MLP of four times its width."""
    return {
        f"{layers} layers, width {width}": {
            "model": {"config": {"n_layer": layers, "n_embd": width, "n_head": heads, "n_inner": 4 * width, **more}}
        }
        for layers, width, heads in sizes
    }


def plan(settings: Settings) -> list[Piece]:
    pieces = training.plan(settings) if settings.get("arms") else []
    for family, models in (settings.get("families") or {}).items():
        pieces += [Piece(safe_name(m), f"{family}: {m}", {"family": family, "model": m}) for m in models]
    return pieces


def check(settings: Settings) -> None:
    if settings.get("arms"):
        training.check(settings)
    elif not settings.get("families"):
        raise ValueError("the study needs models, got no arms and no families: name some with --set families.NAME=[…].")


def work(piece: Piece, settings: Settings, shop: Workshop) -> dict[str, Any]:
    if "arms" in piece.what:
        return training.work(piece, settings, shop)
    return measuring.measured(piece.what["model"], settings, shop, text=settings["text"])


def members(pieces: list[dict[str, Any]], settings: Settings) -> list[dict[str, Any]]:
    """Every model once: family, name, parameters, Spearman, mean cosine, and what to draw."""
    found: list[dict[str, Any]] = []
    runs = Runs([p for p in pieces if "runs" in p], list(settings.get("arms") or {}))
    for arm in runs.arms:
        first = runs.first(arm)
        found.append(
            {
                "family": SCRATCH,
                "model": arm,
                "parameters": first["parameters"],
                "seeds": len(runs.table[arm]),
                "spearman": runs.mean(arm, spearman),
                "mean_cosine": runs.mean(arm, cosine),
                "snapshot": first["snapshots"][-1],
            }
        )
    order = {m: i for i, m in enumerate(m for models in (settings.get("families") or {}).values() for m in models)}
    measured = [p for p in pieces if "measurement" in p]
    for piece in sorted(measured, key=lambda p: order.get(p["what"]["model"], len(order))):
        m: Mapping[str, Any] = piece["measurement"]
        found.append(
            {
                "family": piece["what"]["family"],
                "model": m["model"],
                "parameters": m["parameters"],
                "seeds": 1,
                "spearman": math.nan if m["spearman"] is None else m["spearman"],
                "mean_cosine": blocks(m),
                "snapshot": m,
            }
        )
    return found


def conclude(pieces: list[dict[str, Any]], settings: Settings) -> Conclusion:
    found = members(pieces, settings)
    x, y = [math.log10(m["parameters"]) for m in found], [m["spearman"] for m in found]
    families = [m["family"] for m in found]
    trend = slope(x, y, families, claim="less")
    alone = sorted({f for f in families if families.count(f) == 1})
    several = [f for f in dict.fromkeys(families) if f not in alone]
    named = ", ".join(several) or "no family of two"
    sentence = f"slope of Spearman {trend.words(2)} per tenfold parameters ({named}){trend.why}"
    for family in several:
        ends = sorted((m for m in found if m["family"] == family), key=lambda m: m["parameters"])
        sentence += f"; {family}: {signed(ends[0]['spearman'], 2)} smallest, {signed(ends[-1]['spearman'], 2)} largest"
    if alone:
        sentence += f"; shown only: {', '.join(m['model'] for m in found if m['family'] in alone)}"
    columns = ["family", "model", "parameters", "seeds", "spearman", "mean_cosine"]
    rows = [[m[c] for c in columns] for m in found]

    def draw(path: Path) -> Path:
        from ..figures.studies import heat_row

        ordered = sorted(found, key=lambda m: (families.index(m["family"]), m["parameters"]))
        panels = [(m["model"].split("/")[-1], m["snapshot"]) for m in ordered]
        points = [(str(m["parameters"]), [m["spearman"]]) for m in ordered]
        return heat_row(panels, path, points={"Spearman": points}, x="parameters", numbers=True)

    return Conclusion(trend.verdict, sentence + ".", columns, rows, {"slope": trend.record()}, draw if found else None)


_SIZES = [(4, 128, 2), (6, 192, 3), (8, 256, 4), (10, 384, 6), (12, 512, 8), (16, 768, 12)]
STUDY = Study(
    name="size",
    claim="C1",
    question="Inside a family, do smaller models condense more?",
    criterion=CRITERION,
    scales={
        "smoke": {
            "about": "a family of four GPT2s of 3 to 6 layers from scratch, 1 seed, 8 steps",
            "cost": "12 s of a CPU core",
            "base": scales.TINY_GPT2,
            "arms": arms([(3, 16, 2), (4, 32, 2), (5, 48, 2), (6, 64, 2)]),
            "seeds": [1],
            "heatmaps": "last",
            "families": {},
            "text": "pydoc",
            "windows": 4,
            "tokens": 64,
        },
        "gpu": {
            "about": "six GPT2s of 4 to 16 layers from scratch, 3 seeds, 16M tokens of novels; two bundled models",
            "cost": "8 pieces of at most 6 minutes on an H200",
            "base": scales.SCRATCH,
            "arms": arms(_SIZES),
            "arms_per_piece": 3,
            "seeds": scales.SEEDS,
            "heatmaps": "last",
            "families": {"SmolLM2": ["smollm2-135m"], "Gemma 3": ["gemma-3-270m"]},
            "text": "wikitext-2",
            "windows": 100,
            "tokens": 512,
        },
        "paper": {
            "about": "the published families: GPT2, Qwen1.5 (for Qwen1), Qwen2.5, Qwen3, Bloom, measured",
            "cost": "29 measurements, the largest of a 72B model (several GPUs), and the downloads",
            "families": {
                "GPT2": [
                    "openai-community/gpt2",
                    "openai-community/gpt2-medium",
                    "openai-community/gpt2-large",
                    "openai-community/gpt2-xl",
                ],
                "Qwen1.5": [f"Qwen/Qwen1.5-{s}B" for s in ("0.5", "1.8", "4", "7", "14", "32", "72")],
                "Qwen2.5": [f"Qwen/Qwen2.5-{s}B" for s in ("0.5", "1.5", "3", "7", "14", "32", "72")],
                "Qwen3": [f"Qwen/Qwen3-{s}B" for s in ("0.6", "1.7", "4", "8", "14", "32")],
                "Bloom": [f"bigscience/bloom-{s}" for s in ("560m", "1b1", "1b7", "3b", "7b1")],
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
