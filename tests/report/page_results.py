"""Result folders of every kind, written as the commands write them, with numbers that look real."""

from __future__ import annotations

import io
import json
import re
import tempfile
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from by_hand import condensation, make_item
from matplotlib.image import imsave

from decondense.evaluate.items import summarise, write_items
from decondense.meter.compare import Comparison
from decondense.meter.result import Condensation
from decondense.records import Evaluation, in_short
from decondense.report.page import Report, collect, render
from decondense.report.plotly import traces
from decondense.stats.significance import significance

HOSTILE = "<script>alert(1)</script></script><img src=x onerror=alert(2)>\"'&amp;%{x}"


def report(places: list[Path], target: Path, *, title: str | None = None) -> Report:
    """The page as a file, and what it says."""
    content = collect(places)
    target.write_text(render(content, title=title), encoding="utf-8")
    return content


def write_json(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(content))
    return content


def write_measurement(folder: Path, **options) -> Condensation:
    folder.mkdir(parents=True, exist_ok=True)
    result = condensation(**options)
    result.save(folder / "result.json")
    (folder / "run.json").write_text('{"seconds": 61.0}')
    return result


def write_comparison(folder: Path, *, keep=True) -> Comparison:
    family = []
    for k, (size, end) in enumerate(((30e6, 0.9), (100e6, 0.7), (400e6, 0.15))):
        options = {"layers": 6 + 4 * k, "end": end, "name": f"org/m{k}", "parameters": int(size), "seed": k}
        where = folder / "results" / f"m{k}"
        family.append(write_measurement(where, **options) if keep else condensation(**options))
    folder.mkdir(parents=True, exist_ok=True)
    comparison = Comparison(family, "size")
    (folder / "result.json").write_text(comparison.to_json())
    return comparison


def write_run(
    folder: Path, *, weight=0.1, seed=1, steps=300, every=1, finished=True, name="smollm2-135m", layers=30,
    snapshots=(0, 100, 200, 300), released=False, text="novels",
) -> dict:  # fmt: skip
    """A training run: cross-entropy alone (weight 0) or with the dispersion loss."""
    rng = np.random.default_rng(seed)
    (folder / "snapshots").mkdir(parents=True, exist_ok=True)
    history = []
    for step in range(every, steps + 1, every):
        task = 3.25 + 0.26 * np.exp(-step / 60) + 0.03 * rng.normal()
        cosine = 0.54 - (0.15 * weight / (weight + 0.1)) * (1 - np.exp(-step / 80))
        row = {"step": step, "tokens": step * 32768, "loss": float(task), "learning_rate": 1e-4 * (1 - step / steps)}
        row["grad_norm"] = float(0.8 + 0.05 * rng.normal())
        if weight:
            penalty = -float(np.arccos(cosine) / np.pi)
            row |= {"loss": float(task + weight * penalty), "task_loss": float(task), "penalty": penalty}
            row["mean_cosine"] = float(cosine)
        history.append(row)
    held = [
        {"step": s, "tokens": s * 32768, "loss": float(3.247 + 0.2536 * np.exp(-s / 60) + 0.0007 * rng.normal())}
        for s in snapshots
    ]
    entries = []
    for s in snapshots:
        file = f"snapshots/step-{s:06d}.json"
        fall = (0.01 + 0.45 * weight / (weight + 0.1)) * (1 - np.exp(-s / 80))
        result = condensation(layers=layers, start=0.15, end=0.65 - fall, seed=seed, name=name, released=released)
        result.save(folder / file)
        entries.append(in_short(result.record, histogram=True, step=s, tokens=s * 32768, file=file).model_dump())
    loss = {"name": "dispersion" if weight else "none", "weight": weight, "estimator": "first_order", "layers": "all"}
    record = {
        "schema": "decondense.train/2",
        "finished": finished,
        "command": f"decondense train --model {name} --text {text} --tokens 10M --weight {weight} --seed {seed}",
        "recipe": {
            "name": folder.name,
            "model": {"name": name},
            "data": {"text": text, "tokens": steps * 32768, "context": 1024},
            "loss": loss,
            "train": {"seed": seed, "learning_rate": 1e-4, "precision": "bf16"},
        },
        "model": {"name": name, "source": "bundled", "parameters": 134_515_008},
        "text": [{"name": text, "source": "data folder", "documents": 90, "sha256": "ab" * 32}],
        "steps": steps,
        "history": history,
        "held_out": held,
        "snapshots": entries,
        "skipped_steps": [],
        "tokens_per_second": 285_000.0,
        "seconds": 34.5,
        "hardware": "NVIDIA H200",
        "versions": {"decondense": "0.1.0", "torch": "2.11.0"},
    }
    return write_json(folder, record)


def _evaluation(name: str, seed: int, bonus: float) -> tuple[Evaluation, list[dict]]:
    rng = np.random.default_rng(0)
    own = np.random.default_rng(seed)
    items: dict[str, list[dict]] = {}
    for task, n, level in (("arc_easy", 400, 0.55), ("lambada_openai", 600, 0.3), ("piqa", 300, 0.66)):
        hard = rng.random(n)
        items[task] = []
        for i in range(n):
            right = float(hard[i] + 0.05 * own.normal() < level + bonus)
            values = (-1.0 - float(own.random()), -2.0)
            items[task].append(make_item(task, i, right, values=values, acc_norm=right))
    table = {
        t: summarise(rows) | {"shots": 0, "fewshot_source": "none", "versions": ["1"]} for t, rows in items.items()
    }
    record = {
        "schema": "decondense.evaluation/1",
        "model": {
            "name": name, "description": name, "kind": "folder", "revision": None, "init": False, "architecture": "Y",
            "parameters": 134_515_008, "dtype": "bfloat16", "device": "cuda", "weights": f"{seed:016x}",
        },
        "settings": {"tasks": list(items), "shots": "gpt2", "limit": None, "texts": [], "text_tokens": None,
                     "seed": 1234, "batch_tokens": 65536, "context": 2048},
        "data": "folder",
        "checkpoint": {"selected_by": "final", "step": 300, "steps": 300, "final": True, "run": name,
                       "training_seed": seed},
        "tasks": table,
        "macro_average": float(np.mean([row["acc"] for row in table.values()])),
        "texts": {"wikitext-2:test": {"tokens": 1000, "window_tokens": 512, "token_perplexity": 20.1,
                                      "word_perplexity": 40.2, "bits_per_byte": 0.95}},
        "notes": [],
        "versions": {"decondense": "0.1.0"},
    }  # fmt: skip
    return Evaluation.model_validate(record), [item for rows in items.values() for item in rows]


def write_evaluation(folder: Path, *, name="smollm2-135m") -> dict:
    return write_json(folder, json.loads(_evaluation(name, 1, 0.0)[0].to_json()))


def write_significance(folder: Path, *, seeds=3, bonus=0.02, name="run") -> dict:
    arms: dict[str, list[Path]] = {"base": [], "treated": []}
    with tempfile.TemporaryDirectory() as runs:
        for number, (arm, paths) in enumerate(arms.items()):
            for seed in range(seeds):
                place = Path(runs) / f"{name}-{arm}-{seed}"
                record, items = _evaluation(place.name, 50 * number + seed, bonus * number)
                record.save(place)
                write_items(place / "items.parquet", items)
                paths.append(place)
        return write_json(folder, json.loads(significance(**arms, bootstrap=200).to_json()))


def png(width=160, height=90) -> bytes:
    """A small grey picture."""
    file = io.BytesIO()
    imsave(file, np.add.outer(np.arange(height), np.arange(width)), format="png", cmap="gray")
    return file.getvalue()


def write_study(folder: Path, *, study="width", claim="C3", verdict="reproduced", **changes) -> dict:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "figure.png").write_bytes(png())
    record = {
        "schema": "decondense.study/2",
        "study": study,
        "claim": claim,
        "criterion": "the slope of Spearman over log width is negative, 95 % interval over training seeds",
        "question": "Does a narrower MLP condense more, all else equal?",
        "scale": "gpu",
        "verdict": verdict,
        "headline": "narrow minus wide: −1.14 [−1.30, −0.98]",
        "sentence": f"{verdict}: Spearman falls from 0.78 to −0.36 as the MLP grows from 64 to 1024 (3 seeds each).",
        "command": f"decondense study {study} --scale gpu",
        "hardware": "NVIDIA H200",
        "table": {"columns": ["width", "seed", "spearman"], "rows": [[64, 1, 0.78], [1024, 1, -0.36], [1024, 2, None]]},
        "figures": ["figure.png"],
        "config": {"widths": [64, 1024], "steps": 700},
        "runs": [],
        "estimate": {},
        "versions": {"decondense": "0.2.0"},
    } | changes
    return write_json(folder, record)


@cache
def _short(layers: int) -> dict[str, Any]:
    return in_short(condensation(layers=layers, released=False, windows=2).record, histogram=True).model_dump()


def short(rng: np.random.Generator, *, layers=6, **more) -> dict[str, Any]:
    """What a study keeps of a measurement, another at every call."""
    base = _short(layers)
    noise = 1 + 0.1 * rng.normal(size=(layers + 1, 64)).clip(-2, 2)
    means = np.array(base["mean_cosine"]) + 0.02 * rng.normal(size=layers + 1)
    numbers = {"mean_cosine": means.round(6).tolist(), "spearman": round(float(rng.uniform(-1, 1)), 4)}
    return base | numbers | {"histogram": (np.array(base["histogram"]) * noise).round(2).tolist()} | more


def study_run(
    rng: np.random.Generator, arm: str, seed: int, *, steps: Sequence[int] = (0, 50, 100), penalty=True, layers=6
) -> dict[str, Any]:
    """A run folder of a study, which keeps no weights and thins the history."""
    names = ("task_loss", "penalty", "mean_cosine") if penalty else ("task_loss",)
    at = range(1, 60, 2)
    return {
        "schema": "decondense.train/2", "finished": True, "arm": arm, "recipe": {"train": {"seed": seed}},
        "model": {"name": "m", "parameters": 1000}, "steps": steps[-1], "tokens": 100 * steps[-1],
        "history": [
            {"step": s, "tokens": 100 * s, "loss": 3.0, **{n: round(3 * float(rng.random()), 5) for n in names}}
            for s in at
        ],
        "held_out": [{"step": s, "tokens": 100 * s, "loss": round(3 + float(rng.random()), 5)} for s in steps],
        "snapshots": [short(rng, layers=layers, step=s, tokens=100 * s) for s in steps],
        "skipped_steps": 0, "seconds": 9.0, "tokens_per_second": 1e5, "hardware": "x", "versions": {},
    }  # fmt: skip


def measured(content: dict[str, Any], **config: Any) -> dict[str, Any]:
    """A measurement of a study."""
    base = {"schema": "decondense.measured/1", "hardware": "x", "versions": {}}
    return base | {"measurement": content, "config": config}


def write_runs(
    folder: Path, arms: Sequence[str] = ("cross-entropy", "dispersion"), seeds: Sequence[int] = (1, 2), **options
) -> dict[str, dict[str, Any]]:
    """A run of every arm and seed, which the study in the folder names; the first arm has no penalty."""
    rng = np.random.default_rng(zlib.crc32(folder.name.encode()))
    runs = {}
    for number, arm in enumerate(arms):
        for seed in seeds:
            name = f"arm{number}-seed-{seed}"
            runs[name] = write_json(folder / "runs" / name, study_run(rng, arm, seed, penalty=number > 0, **options))
    study = json.loads((folder / "result.json").read_text())
    write_json(folder, study | {"runs": list(runs)})
    return runs


def write_everything(root: Path) -> Path:
    """One folder with a result of every kind, and four training runs of two arms."""
    write_study(root / "studies" / "width")
    write_runs(root / "studies" / "width", ("MLP 64", "MLP 1024"))
    write_study(
        root / "studies" / "benchmarks", study="benchmarks", claim="C7", verdict="undecided",
        question="Do benchmarks gain?",
        sentence="undecided: +0.12 points on the average of ten tasks, 95 % interval −0.31 to +0.55 (3 seeds each).",
    )  # fmt: skip
    write_significance(root / "significance")
    for weight, arm in ((0.0, "cross-entropy"), (0.1, "dispersion")):
        for seed in (1, 2):
            write_run(root / "train" / f"{arm}-seed{seed}", weight=weight, seed=seed, released=True)
    write_comparison(root / "family")
    write_measurement(root / "measured")
    write_evaluation(root / "evaluated")
    return root


def section_of(*places: Path) -> Any:
    """The one section of a page of these folders."""
    (section,) = collect(places).sections
    return section


def charts_of(section: Any) -> dict[str, Any]:
    return {chart.title: chart for panel in section.panels for chart in panel.charts}


def lines_of(chart: Any) -> list[dict[str, Any]]:
    """What plotly draws of its last frame."""
    return traces(chart.frames[-1])


def estimates(chart: Any) -> dict[float, tuple[float, float, float, str]]:
    """Of a forest plot: place → difference, its interval, and what the legend says of it."""
    return {
        y: (x, x - down, x + up, trace["name"])
        for trace in lines_of(chart)[1:]
        for x, y, down, up in zip(trace["x"], trace["y"], trace["error_x"]["arrayminus"], trace["error_x"]["array"])
    }


def without_library(text: str) -> str:
    """The page less plotly.js."""
    return re.sub(r'<script type="text/plain" id="plotly">.*?</script>', "", text, flags=re.DOTALL)


def data_of(text: str) -> tuple[dict, list]:
    parts = [re.search(rf'id="page-{name}">(.*?)</script>', text, re.DOTALL)[1] for name in ("data", "pool")]
    return json.loads(parts[0]), json.loads(parts[1])


def whole(value, pool):
    if isinstance(value, dict):
        return pool[value["$"]] if "$" in value else {k: whole(v, pool) for k, v in value.items()}
    return [whole(v, pool) for v in value] if isinstance(value, list) else value
