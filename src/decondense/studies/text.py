"""C2: condensation does not depend on the text.

The unit is the text. The claim is about what happens when a given model reads something else, so what varies is the
text, and a new text is what one would generalise to; training seeds do not enter, and a bootstrap over windows would
only say how well each text is known.

Criterion: for every model, the 95 % prediction interval of Spearman on one more text (t over the texts, n − 1 degrees
of freedom) is within ±0.2 of the mean and does not contain 0; at least 3 texts. Not reproduced when the texts surely
differ more than that: ±1.96 times the lower 95 % confidence limit of their spread exceeds 0.2. With several models all
must agree.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from ..stats.verdicts import combine, signed, steady
from . import measuring, scales, training
from .study import Conclusion, Piece, Settings, Study, Workshop, safe_name

MARGIN = 0.2
CRITERION = (
    "For every model the 95 % prediction interval of Spearman on one more text, over the texts measured, is "
    "within ±0.2 of the mean and does not contain 0; not reproduced when even the lower 95 % confidence limit of "
    "the spread between texts, times 1.96, exceeds 0.2. The unit is the text: a new text is what the claim speaks "
    "of."
)
TRAINED = "trained first"


def plan(settings: Settings) -> list[Piece]:
    if "base" in settings:
        return [Piece("all-texts", f"a model, then {len(settings['texts'])} texts", {"model": TRAINED})]
    return [
        Piece(safe_name(f"{m}-{t}"), f"{m} on {t}", {"model": m, "text": t})
        for m in settings["models"]
        for t in settings["texts"]
    ]


def work(piece: Piece, settings: Settings, shop: Workshop) -> dict[str, Any]:
    if "base" not in settings:
        found = measuring.measured(piece.what["model"], settings, shop, text=piece.what["text"])
        found["measurements"] = {piece.what["text"]: found.pop("measurement")}
        return found
    run = training.train_recipe(training.recipe_of(settings, TRAINED, 1), shop.folder / "run", shop)
    measurements = {}
    found = {}
    for name in settings["texts"]:
        found = measuring.measured(str(run.folder / "model"), settings, shop, text=_documents(name, shop))
        measurements[name] = {**found.pop("measurement"), "model": TRAINED, "text": name}
    return {**found, "measurements": measurements}


def check(settings: Settings) -> None:
    if "base" not in settings:
        return
    training.checking(TRAINED)(settings)
    for name in settings["texts"]:
        _part(name)


def _part(name: str) -> tuple[int, int] | None:
    """(2, 4) of "pydoc 2/4", None of a whole text."""
    if " " not in name:
        return None
    found = re.fullmatch(r"\S+ ([1-9]\d*)/([1-9]\d*)", name)
    if found is None or int(found[1]) > int(found[2]):
        raise ValueError(f"a text must be NAME or a part of one like 'pydoc 2/4', got {name!r}: count from 1/4 to 4/4.")
    return int(found[1]), int(found[2])


def _documents(name: str, shop: Workshop) -> Any:
    """A text by name; "pydoc 2/4" is the second quarter of the documents of pydoc."""
    part = _part(name)
    if part is None:
        return name
    from ..text import open_text

    which, of = part
    documents = open_text(name.partition(" ")[0], data=shop.data).documents
    size = len(documents) // of
    return list(documents[(which - 1) * size : which * size])


def conclude(pieces: list[dict[str, Any]], settings: Settings) -> Conclusion:
    table: dict[str, dict[str, Any]] = {}
    for piece in pieces:
        table.setdefault(piece["what"]["model"], {}).update(piece["measurements"])
    order = {t: i for i, t in enumerate(settings["texts"])}
    table = {
        m: dict(sorted(found.items(), key=lambda pair: order.get(pair[0], 99))) for m, found in sorted(table.items())
    }
    decisions, words, agreement = {}, [], {}
    for model, found in table.items():
        values = [math.nan if s["spearman"] is None else s["spearman"] for s in found.values()]
        decisions[model] = steady(values, margin=MARGIN, unit="text")
        agreement[model] = _agreement([s["mean_cosine"] for s in found.values()])
        listed = ", ".join(f"{t} {signed(v, 2)}" for t, v in zip(found, values))
        words.append(
            f"{model}: Spearman {listed}; for one more text {decisions[model].words(2)}, {decisions[model].reason}; "
            f"lowest correlation of the curves of two texts {signed(agreement[model], 3)}"
        )
    columns = [
        "model",
        "text",
        "spearman",
        "spearman_low",
        "spearman_high",
        "kendall",
        "mean_cosine",
        "mean_cosine_last",
        "windows",
    ]
    rows = [
        [
            m,
            t,
            s["spearman"],
            *s["window_interval"],
            s["kendall"],
            training.blocks(s),
            s["last"],
            s["windows"],
        ]
        for m, found in table.items()
        for t, s in found.items()
    ]

    def draw(path: Path) -> Path:
        from ..figures.studies import heat_grid

        return heat_grid([(m.split("/")[-1], list(found.items())) for m, found in table.items()], path)

    estimate = {
        "another_text": {m: d.record() for m, d in decisions.items()},
        "lowest_correlation": agreement,
        "margin": MARGIN,
    }
    return Conclusion(combine(list(decisions.values())), "; ".join(words) + ".", columns, rows, estimate, draw)


def _agreement(curves: list[list[float]]) -> float:
    """The lowest Pearson correlation between two texts' curves of mean cosine over depth."""
    if len(curves) < 2:
        return math.nan
    return float(np.corrcoef(np.array(curves))[np.triu_indices(len(curves), 1)].min())


_PUBLISHED = ["pubmed_qa", "imdb", "squad"]
STUDY = Study(
    name="text",
    claim="C2",
    question="Is a model as condensed on one text as on another?",
    criterion=CRITERION,
    scales={
        "smoke": {
            "about": "a GPT2 of 6 layers and width 32, trained for 8 steps, on four quarters of pydoc",
            "cost": "10 s of a CPU core",
            "base": scales.TINY_GPT2,
            "arms": {TRAINED: {"snapshots": {"count": 0}}},
            "texts": ["pydoc 1/4", "pydoc 2/4", "pydoc 3/4", "pydoc 4/4"],
            "windows": 4,
            "tokens": 64,
            "bootstrap": 100,
        },
        "gpu": {
            "about": "SmolLM2-135M on wikitext-2, pubmed_qa, imdb and squad, 100 windows of 512 tokens each",
            "cost": "4 pieces of 5 minutes on two CPU cores, or of seconds on a GPU",
            "models": ["smollm2-135m"],
            "texts": ["wikitext-2", *_PUBLISHED],
            "windows": 100,
            "tokens": 512,
        },
        "paper": {
            "about": "GPT2 and Qwen3-0.6B on wikitext-103, pubmed_qa, imdb and squad, 100 windows of 512 tokens each",
            "cost": "8 measurements, minutes on a GPU, and the downloads",
            "models": ["openai-community/gpt2", "Qwen/Qwen3-0.6B"],
            "texts": ["wikitext-103", *_PUBLISHED],
            "windows": 100,
            "tokens": 512,
        },
    },
    plan=plan,
    work=work,
    conclude=conclude,
    check=check,
)
