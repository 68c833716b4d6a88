"""What a run leaves behind: result.json, the history as a table and a figure, and the model."""

from __future__ import annotations

import importlib.metadata
import json
import math
import shutil
from pathlib import Path
from typing import Any

from ..files import write_text
from ..models import hardware
from .folder import first_process, process_count
from .prepare import Prepared
from .recipe import Recipe

__all__ = ["SCHEMA", "record_of", "save_model", "write_result"]

SCHEMA = "decondense.train/1"
HISTORY = (
    "loss",
    "task_loss",
    "penalty",
    "mean_cosine",
    "penalty_weight",
    "penalty_agreement",
    "z_loss",
    "label_smoothing",
    "learning_rate",
    "grad_norm",
)


def record_of(
    recipe: Recipe,
    folder: Path,
    prepared: Prepared,
    trainer: Any,
    clock: Any,
    command: str,
    documents: dict[str, Any],
) -> dict[str, Any]:
    """The content of result.json; `documents` is what `held_out.document_losses` returned. `tokens` are counted in
    whole blocks; a figure that was not finite is null."""
    per_step = recipe.step_tokens

    def at(step: int) -> dict[str, int]:
        return {"step": step, "tokens": step * per_step}

    log = trainer.state.log_history
    history = [at(e["step"]) | {k: _finite(e[k]) for k in HISTORY if k in e} for e in log if "loss" in e]
    held_out = [at(e["step"]) | {"loss": _finite(e["eval_loss"])} for e in log if "eval_loss" in e]
    files = {int(f.stem.split("-")[1]): f"snapshots/{f.name}" for f in (folder / "snapshots").glob("step-*.json")}
    return {
        "schema": SCHEMA,
        "finished": True,
        "command": command,
        "recipe": recipe.model_dump(mode="json"),
        "model": prepared.source,
        "text": prepared.blocks.texts,
        "held_out_text": prepared.held_out.texts,
        "blocks": len(prepared.blocks),
        "steps": recipe.steps,
        "tokens": recipe.steps * per_step,
        "history": history,
        "held_out": held_out,
        **documents,
        "snapshots": [at(step) | {"file": files[step]} for step in sorted(files)],
        "skipped_steps": trainer.skipped,
        "seconds": round(trainer.seconds, 2),
        "tokens_per_second": clock.tokens_per_second(per_step),
        "processes": process_count(),
        "micro_batch": prepared.micro_batch,
        "bf16": trainer.accelerator.mixed_precision == "bf16",  # what ran, not what was asked for
        **prepared.speed,
        "hardware": hardware(prepared.device),
        "versions": {n: importlib.metadata.version(n) for n in ("torch", "transformers", "accelerate")},
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def save_model(trainer: Any, folder: Path, record: dict[str, Any], tokenizer: Any) -> None:
    """Whole or not at all: written beside, then renamed. Adapters are merged, so that from_pretrained is enough.

    Every process takes part, since sharded weights must be gathered; the first one writes.
    """
    from .card import model_card

    model = trainer.model
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    weights = trainer.accelerator.get_state_dict(model) if trainer.is_fsdp_enabled else None
    if not first_process():
        return
    model = trainer.accelerator.unwrap_model(model, keep_torch_compile=False)
    model.config.use_cache = True
    temporary = folder / ".model"
    shutil.rmtree(temporary, ignore_errors=True)
    model.save_pretrained(temporary, state_dict=None if weights is None else without_twins(model, weights))
    tokenizer.save_pretrained(temporary)
    write_text(temporary / "README.md", model_card(record))
    shutil.rmtree(folder / "model", ignore_errors=True)
    temporary.replace(folder / "model")


def without_twins(model: Any, weights: dict[str, Any]) -> dict[str, Any]:
    """Gathered weights are copies, one for each name: of tied ones (head and embedding) keep the one that
    `save_pretrained` would keep if it could see that they are the same."""
    tied = getattr(model, "all_tied_weights_keys", {})
    return {name: weight for name, weight in weights.items() if tied.get(name) not in weights}


def write_result(folder: Path, record: dict[str, Any], *, draw: bool = True) -> None:
    """result.json comes last: who finds it finds everything."""
    from ..figures.training import training_figure
    from ..files import write_csv

    write_csv(folder / "history.csv", record["history"])
    if draw:
        training_figure([(record["recipe"]["name"], record)], folder / "training.png")
    if draw and record["snapshots"]:
        from ..meter.compare import Comparison
        from ..meter.result import load

        found = [load(folder / s["file"]) for s in record["snapshots"]]
        Comparison(found, "order").plot(folder / "snapshots")
    write_text(folder / "result.json", json.dumps(record, indent=1, allow_nan=False) + "\n")
