"""Studies that train: arms, each a recipe, for every seed; and what is kept of a run.

Settings of such a study: `base` (a recipe), `arms` (name → what is different from `base`), `seeds`, and optionally
`arms_per_piece` (default: all arms of a seed in one piece), `heatmaps` ("all", "last" or "none": of which snapshots
the histogram is kept), `tasks` with `shots`, `limit` and `dtype` (benchmarks after training), `teacher` (a recipe
trained first in the piece; its folder takes the place of the word "teacher" in an arm).
"""

from __future__ import annotations

import copy
import gc
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .reuse import taken_over
from .study import Piece, Settings, Workshop, compact, comparable, joined_versions, rounded, safe_name

if TYPE_CHECKING:
    from ..meter.result import Condensation
    from ..train.recipe import Recipe

__all__ = [
    "Runs",
    "arms_of",
    "blocks",
    "check",
    "checking",
    "cosine",
    "held_out",
    "joined",
    "last",
    "plan",
    "recipe_of",
    "snapshot",
    "spearman",
    "train_recipe",
    "work",
]

BINS = 64  # of a kept histogram
POINTS = 60  # of a kept curve
EVERY = 30.0  # seconds between two words about a training that goes on
CURVES = ("task_loss", "penalty", "mean_cosine")


def joined(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` put in, section by section; None takes a section out."""
    result = copy.deepcopy(dict(base))
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = joined(result[key], value)
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = copy.deepcopy(value)
    return result


def arms_of(settings: Settings) -> dict[str, dict[str, Any]]:
    return settings["arms"]


def recipe_of(settings: Settings, arm: str, seed: int, **changes: Any) -> Recipe:
    """The whole recipe of an arm and a seed."""
    from ..train.recipe import recipe_from

    content = joined(joined(settings["base"], arms_of(settings)[arm]), {"name": arm, "train": {"seed": seed}})
    return recipe_from(joined(content, changes), f"arm {arm!r}")


def check(settings: Settings) -> None:
    """Every recipe is valid, or the first that is not is named, before anything runs."""
    for arm in arms_of(settings):
        recipe_of(settings, arm, 0)
    if settings.get("teacher"):
        _teacher_recipe(settings, 0)


def checking(*needed: str) -> Callable[[Settings], None]:
    """`check`, of a study that compares arms by name: they must be there."""

    def both(settings: Settings) -> None:
        missing = [arm for arm in needed if arm not in arms_of(settings)]
        if missing:
            raise ValueError(
                f"the study compares the arms {', '.join(map(repr, needed))}, and the settings lack "
                f"{', '.join(map(repr, missing))}: change arms one by one, like arms.NAME.loss.weight=0.2."
            )
        check(settings)

    return both


def plan(settings: Settings) -> list[Piece]:
    """One piece per seed, or per seed and group of arms."""
    arms = list(arms_of(settings))
    size = settings.get("arms_per_piece") or len(arms)
    pieces = []
    for seed in settings["seeds"]:
        for first in range(0, len(arms), size):
            some = arms[first : first + size]
            part = "" if size >= len(arms) else f"-{first // size + 1}"
            if size == 1:
                part = f"-{safe_name(some[0])}"
            pieces.append(Piece(f"seed-{seed}{part}", f"seed {seed}: {', '.join(some)}", {"seed": seed, "arms": some}))
    return pieces


def work(piece: Piece, settings: Settings, shop: Workshop) -> dict[str, Any]:
    """Train the arms of a piece one after the other; what is finished survives an interruption of the piece."""
    seed = piece.what["seed"]
    runs: dict[str, Any] = {}
    teacher: Path | None = None
    try:
        for arm in piece.what["arms"]:
            if len(runs) == 1:
                _set_imports_aside()
            kept = shop.folder / f"{safe_name(arm)}.json"
            done = _kept(kept, settings) or taken_over(shop.known, settings, arm, seed)
            if done is None:
                if settings.get("teacher") and teacher is None:
                    teacher = _train_teacher(settings, seed, shop)
                done = _one_arm(arm, seed, settings, shop, teacher)
                said = _in_words(done)  # with the speed, also where it is not kept
                if not shop.timed:
                    done["tokens_per_second"] = done["seconds"] = None
                kept.write_text(compact({"settings": comparable(settings), "run": done}))
            else:
                said = _in_words(done) + (f" (from {done['from']})" if "from" in done else "")
            runs[arm] = done
            shop.say(f"  {arm}: {said}")
    finally:
        gc.unfreeze()
    hardware = "; ".join(sorted({r["hardware"] for r in runs.values()}))
    versions = joined_versions([r["versions"] for r in runs.values()])
    slim = {arm: {k: v for k, v in r.items() if k not in ("hardware", "versions")} for arm, r in runs.items()}
    return {"runs": slim, "hardware": hardware, "versions": versions}


def _kept(file: Path, settings: Settings) -> dict[str, Any] | None:
    """An arm that an interrupted run of this piece has finished, with the same settings."""
    try:
        record = json.loads(file.read_text())
        return record["run"] if comparable(record["settings"]) == comparable(settings) else None
    except (OSError, ValueError, KeyError):
        return None


def _one_arm(arm: str, seed: int, settings: Settings, shop: Workshop, teacher: Path | None) -> dict[str, Any]:
    folder = shop.folder / "run"
    shutil.rmtree(folder, ignore_errors=True)
    recipe = recipe_of(settings, arm, seed)
    distillation = recipe.baselines.distillation
    if teacher is not None and distillation is not None and distillation.teacher == "teacher":
        distillation.teacher = str(teacher)
    run = train_recipe(recipe, folder, shop)
    summary = summarise(run.record, folder, heatmaps=settings.get("heatmaps", "none"))
    del run
    _free_memory()
    if settings.get("tasks"):
        from .outcomes import evaluate_folder

        summary |= evaluate_folder(folder / "model", settings, seed, shop)
    shutil.rmtree(folder, ignore_errors=True)
    _free_memory()
    return summary


def train_recipe(recipe: Recipe, folder: Path, shop: Workshop) -> Any:
    from ..train.run import train
    from ..train.watch import in_words

    def step(number: int, now: dict[str, float]) -> None:
        shop.say(f"  {recipe.name}: step {number}/{recipe.steps}  {in_words(now, 80)}")

    recipe.data.folder = recipe.data.folder or shop.data
    recipe.train.device = recipe.train.device or shop.device
    # The figures of a run folder would be thrown away with it.
    return train(
        recipe,
        folder,
        say=lambda sentence: shop.say(f"  {sentence}"),
        show=_now_and_then(step),
        preparing=_now_and_then(lambda done, of: shop.say(f"  tokenised {done:,} of {of:,} tokens")),
        draw=False,
    )


def _now_and_then(tell: Callable[..., None]) -> Callable[..., None]:
    """`tell`, but not more often than every half minute, and not in the first."""
    last = time.monotonic()

    def maybe(*values: Any) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            tell(*values)

    return maybe


def _train_teacher(settings: Settings, seed: int, shop: Workshop) -> Path:
    folder = shop.folder / "teacher"
    shutil.rmtree(folder, ignore_errors=True)
    train_recipe(_teacher_recipe(settings, seed), folder, shop)
    return folder / "model"


def _teacher_recipe(settings: Settings, seed: int) -> Recipe:
    from ..train.recipe import recipe_from

    content = joined(joined(settings["base"], settings["teacher"]), {"name": "teacher", "train": {"seed": seed}})
    return recipe_from(content, "teacher")


def _set_imports_aside() -> None:
    """Trainer collects garbage in every training, and what torch and transformers have imported takes longer to look
    through than a small training takes. After the first arm all of it is there."""
    gc.collect()
    gc.freeze()


def _free_memory() -> None:
    """Trainer and model refer to each other in circles: the next arm needs the GPU memory they hold."""
    import torch

    if torch.cuda.is_available():
        gc.collect()
        torch.compiler.reset()  # else the tenth arm meets the limit of recompilations and runs slower than the first
        torch.cuda.empty_cache()


# ---- what is kept of a run ---------------------------------------------------------------------------------------


def summarise(record: Mapping[str, Any], folder: Path, *, heatmaps: str) -> dict[str, Any]:
    """Curves, held-out losses and snapshots of a run; no weights, no paths."""
    from ..meter.result import load

    history = record["history"]
    chosen = history[:: -(-len(history) // POINTS)] if history else []
    if history and chosen[-1] is not history[-1]:
        chosen = [*chosen, history[-1]]
    curves: dict[str, list[Any]] = {"step": [e["step"] for e in chosen]}
    for name in CURVES:
        values = [e.get(name, e.get("loss") if name == "task_loss" else None) for e in chosen]
        if any(v is not None for v in values):
            curves[name] = values
    snapshots = []
    for entry in record["snapshots"]:
        last = entry is record["snapshots"][-1]
        found = load(folder / entry["file"])
        drawn = heatmaps == "all" or (heatmaps == "last" and last)
        snapshots.append({"step": entry["step"], "tokens": entry["tokens"], **snapshot(found, histogram=drawn)})
    return rounded(
        {
            "parameters": record["model"]["parameters"],
            "steps": record["steps"],
            "tokens": record["held_out"][-1]["tokens"],
            "held_out": [[e["step"], e["loss"]] for e in record["held_out"]],
            "curves": curves,
            "snapshots": snapshots,
            "tokens_per_second": record["tokens_per_second"],
            "seconds": record["seconds"],
            "skipped_steps": len(record["skipped_steps"]),
            "hardware": record["hardware"],
            "versions": record["versions"],
        }
    )


def snapshot(found: Condensation, *, histogram: bool) -> dict[str, Any]:
    """The numbers of a measurement: mean cosine per state, trends, and the histogram where it will be drawn."""
    kept: dict[str, Any] = {
        "mean_cosine": found.mean_cosine.tolist(),
        "spearman": found.spearman,
        "spearman_blocks": found.trend("spearman", states="blocks"),
        "kendall": found.kendall,
        "slope": found.slope,
        "last": found.trend("last"),
        "windows": found.record["windows_done"],
        "final_norm": bool(found.record["final_norm"]),
    }
    if histogram:
        density = found.histogram
        coarse = density.reshape(len(density), BINS, -1).mean(-1)
        kept["histogram"] = [[round(float(v), 2) for v in row] for row in coarse]
    return kept


def _in_words(run: Mapping[str, Any]) -> str:
    words = f"held-out loss {held_out(run):.4f}"
    if run["snapshots"]:
        words += f", mean cosine {cosine(run):.3f}, Spearman {spearman(run):+.2f}"
    if run.get("tokens_per_second"):
        words += f", {run['tokens_per_second']:,.0f} tokens/s"
    if run.get("skipped_steps"):
        words += f", {run['skipped_steps']} steps skipped because their loss was not finite"
    return words


# ---- reading it back ---------------------------------------------------------------------------------------------

Metric = Callable[[Mapping[str, Any]], float]


def held_out(run: Mapping[str, Any]) -> float:
    """Held-out loss at the end, nats per token."""
    value = run["held_out"][-1][1]
    return float("nan") if value is None else float(value)


def blocks(shot: Mapping[str, Any]) -> float:
    """Mean cosine of the block outputs (what the losses act on) in a snapshot."""
    return float(np.mean(shot["mean_cosine"][1:]))


def cosine(run: Mapping[str, Any], at: int = -1) -> float:
    """The same of a run at a snapshot, default the last."""
    return blocks(run["snapshots"][at])


def spearman(run: Mapping[str, Any], at: int = -1) -> float:
    """Spearman of mean cosine with depth, over all states, at a snapshot; NaN where it is not defined."""
    value = run["snapshots"][at]["spearman"]
    return float("nan") if value is None else float(value)


def last(run: Mapping[str, Any], at: int = -1) -> float:
    """Mean cosine of the last three states."""
    return float(run["snapshots"][at]["last"])


def speed(run: Mapping[str, Any]) -> float:
    return float(run["tokens_per_second"] or "nan")


class Runs:
    """The runs of all pieces: arm → seed → what was kept."""

    def __init__(self, pieces: Sequence[Mapping[str, Any]], arms: Sequence[str]) -> None:
        self.table: dict[str, dict[int, Mapping[str, Any]]] = {arm: {} for arm in arms}
        for piece in pieces:
            seed = int(piece["what"]["seed"])
            for arm, run in piece["runs"].items():
                if arm not in self.table:
                    raise ValueError(
                        f"the piece {piece['piece']!r} holds an arm {arm!r} that the settings do not name."
                    )
                if seed in self.table[arm]:
                    raise ValueError(
                        f"seed {seed} of {arm!r} is in two pieces, one of them {piece['piece']!r}: a copy is not "
                        "another seed; keep one."
                    )
                self.table[arm][seed] = run
        self.table = {arm: dict(sorted(seeds.items())) for arm, seeds in self.table.items() if seeds}

    @property
    def arms(self) -> list[str]:
        return list(self.table)

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for seeds in self.table.values() for seed in seeds})

    def __contains__(self, arm: str) -> bool:
        return arm in self.table

    def values(self, arm: str, metric: Metric) -> list[float]:
        return [metric(run) for run in self.table.get(arm, {}).values()]

    def mean(self, arm: str, metric: Metric) -> float:
        values = self.values(arm, metric)
        return float(np.mean(values)) if values else float("nan")

    def differences(self, arm: str, other: str, metric: Metric) -> list[float]:
        """`arm` − `other`, seed by seed, for the seeds that both have."""
        first, second = self.table.get(arm, {}), self.table.get(other, {})
        return [metric(first[s]) - metric(second[s]) for s in first if s in second]

    def first(self, arm: str) -> Mapping[str, Any]:
        """The run of the lowest seed, for drawing."""
        return next(iter(self.table[arm].values()))

    def rows(self, extra: Sequence[str] = ()) -> tuple[list[str], list[list[Any]]]:
        """One row per run: what every training study tells."""
        columns = ["arm", "seed", "held_out_loss", "mean_cosine", "spearman", "mean_cosine_start", "spearman_start"]
        columns += ["parameters", "tokens", "tokens_per_second", "skipped_steps", *extra]
        rows: list[list[Any]] = []
        for arm, seeds in self.table.items():
            for seed, run in seeds.items():
                geometry = [cosine(run), spearman(run), cosine(run, 0), spearman(run, 0)]
                row = [arm, seed, held_out(run), *geometry, run["parameters"], run["tokens"], run["tokens_per_second"]]
                row.append(run["skipped_steps"])
                rows.append(row + [run.get("scores", {}).get(name) for name in extra])
        return columns, rows
