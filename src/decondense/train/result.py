"""What a run leaves behind: result.json, the history as a table and a figure, and the model with its card."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any, cast

import yaml

from ..files import finite, first_process, versions, write_csv, write_text
from ..models import hardware
from ..records import Measurement, Step, Training, in_short, read
from ..text import TEXTS
from ..words import from_where, nats
from .folder import process_count
from .prepare import Prepared
from .sections import Loss

BYTES = """
The tokenizer ends a text with `</s>`: where the model is to continue it, pass `add_special_tokens=False`.
"""


def record_of(
    prepared: Prepared, trainer: Any, command: str, losses: dict[str, Any], *, finished: bool = True
) -> Training:
    """The content of result.json; `losses` is what `held_out.document_losses` returned. `tokens` are counted in whole
    blocks; a figure that was not finite is null. The record of an unfinished run has no snapshots: their files are
    many, and the record is written often."""
    recipe, per_step = prepared.recipe, prepared.recipe.step_tokens

    def at(step: int) -> dict[str, int]:
        return {"step": step, "tokens": step * per_step}

    log = trainer.state.log_history
    names = (*Step.model_fields, *recipe.baselines.on_logits, *(n for pair in recipe.several for n in pair))
    lines = [at(e["step"]) | {k: finite(e[k]) for k in names if k in e} for e in log if "loss" in e]
    probe_names = ("gradient_noise", "frequency_share")
    probes = [at(e["step"]) | {name: finite(e[name]) for name in probe_names} for e in log if probe_names[0] in e]
    snapshots = []
    for file in sorted((prepared.folder / "snapshots").glob("step-*.json")) if finished else ():
        place = at(int(file.stem.split("-")[1])) | {"file": f"snapshots/{file.name}"}
        snapshots.append(in_short(cast(Measurement, read(file)), histogram=True, **place))
    return Training(
        schema=Training.reads[0],
        finished=finished,
        command=command,
        recipe=recipe.model_dump(mode="json"),
        model=prepared.source,
        text=prepared.blocks.texts,
        held_out_text=prepared.held_out.texts,
        blocks=len(prepared.blocks),
        steps=recipe.steps,
        tokens=recipe.steps * per_step,
        history=lines,
        held_out=[at(e["step"]) | {"loss": finite(e["eval_loss"])} for e in log if "eval_loss" in e],
        **losses,
        snapshots=snapshots,
        **({"probes": probes} if probes else {}),
        skipped_steps=trainer.skipped,
        seconds=round(trainer.seconds, 2),
        tokens_per_second=trainer.clock.tokens_per_second(per_step),
        processes=process_count(),
        micro_batch=prepared.micro_batch,
        bf16=trainer.accelerator.mixed_precision == "bf16",  # what ran, not what was asked for
        **prepared.speed,
        hardware=hardware(prepared.device),
        versions=versions("decondense", "torch", "transformers", "accelerate"),
    )


def save_model(trainer: Any, folder: Path, record: Training, tokenizer: Any) -> None:
    """Save the model whole or not at all: written beside its place, then renamed.

    Adapters are merged, so that from_pretrained is enough. Every process takes part, since sharded weights must be
    gathered; the first one writes.
    """
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
    """Drop all but one of the copies of tied weights (head and embedding), the one that `save_pretrained` would keep.
    Gathered weights are copies, one for each name, so it cannot see by itself that they are the same."""
    tied = getattr(model, "all_tied_weights_keys", {})
    return {name: weight for name, weight in weights.items() if tied.get(name) not in weights}


def model_card(record: Training) -> str:
    """How a model was made, from its result alone: Markdown with the front matter that model hubs read."""
    recipe, model, held_out = record.recipe, record.model, record.held_out
    losses, methods = recipe["loss"], {"LoRA": recipe["model"]["lora"]} | recipe["baselines"]
    methods_used = [_method(name, value) for name, value in methods.items() if value is not None and value is not False]
    loss_lines = []
    for loss in losses if isinstance(losses, list) else [losses]:
        if loss["name"] != "none":
            options = [f"{key} = {value}" for key, value in loss["options"].items()]
            parts = [loss["name"], f"weight {loss['weight']:g}", str(loss["layers"]), Loss(**loss).over_time, *options]
            loss_lines.append(", ".join(part for part in parts if part))
    rows = {
        "started from": f"{model.source} ({model.parameters:,} parameters)",
        "text": ", ".join(from_where(text.name, text.source) for text in record.text),
        "tokens": f"{record.tokens:,} in {record.steps:,} steps",
        "context": f"{recipe['data']['context']} tokens",
        "loss on the hidden states": " + ".join(loss_lines) or "no regulariser",
        "other methods": "; ".join(methods_used) or "none",
        "held-out loss": f"{nats(held_out[0].loss)} before, {nats(held_out[-1].loss)} after",
        "seed": recipe["train"]["seed"],
        "hardware": record.hardware,
        "versions": ", ".join(f"{k} {v}" for k, v in record.versions.items()),
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    licence = f"The licence is that of the weights it started from ({model.licence or 'not known here'})"
    if recipe["model"]["architecture"] or recipe["model"]["init"]:
        licence = "Its weights were drawn at random and bring no licence"
    bytewise = "" if recipe["model"]["tokenizer"] != "bytes" else BYTES
    return f"""---
{yaml.safe_dump(_front_matter(record), sort_keys=False)}---
# {recipe["name"]}

Trained with decondense, a package that measures [embedding condensation](https://arxiv.org/abs/2602.00217) and trains
against it. The whole recipe, the losses and the measurements lie beside this model in its run folder.

| | |
|---|---|
{table}

The held-out loss is cross-entropy in nats per token, without the added loss. {licence}; the texts have
licences of their own.

## How to load it

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("this folder, or its hub id")
tokenizer = AutoTokenizer.from_pretrained("this folder, or its hub id")
```
{bytewise}
## The recipe

`decondense train recipe.yaml`, with this in the file:

```yaml
{yaml.safe_dump(recipe, sort_keys=False)}```
"""


def _method(name: str, value: Any) -> str:
    """A method with its settings, in words; of a teacher on this disk only the folder's name."""
    name = name.replace("_", " ")
    if not isinstance(value, dict):
        return name if value is True else f"{name}: {value}"
    settings = {key: ", ".join(v) if isinstance(v, list) else str(v) for key, v in value.items() if v is not None}
    if "teacher" in settings and Path(settings["teacher"]).expanduser().exists():
        settings["teacher"] = Path(settings["teacher"]).name
    return f"{name}: " + ", ".join(f"{key.replace('_', ' ')} {v}" for key, v in settings.items())


def _front_matter(record: Training) -> dict[str, Any]:
    """The front matter that model hubs read; what is not known is left out."""
    model, texts, loss = record.model, [text.name.partition(":")[0] for text in record.text], record.held_out[-1].loss
    front: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": ["decondense"]}
    if model.base_model is not None:
        front["base_model"] = model.base_model
    if model.licence is not None:
        is_id = re.fullmatch(r"[a-z0-9.-]+", model.licence.lower())
        front |= {"license": model.licence.lower()} if is_id else {"license": "other", "license_name": model.licence}
    datasets = sorted({place[0] for name in texts if name in TEXTS and (place := TEXTS[name].hub) is not None})
    front |= {"datasets": datasets} if datasets else {}
    if loss is not None:
        held_out = ", ".join(text.name for text in record.held_out_text) or "held-out text"
        metric = {"type": "loss", "name": "held-out loss, nats per token", "value": round(loss, 4)}
        result = {
            "task": {"type": "text-generation"},
            "dataset": {"type": datasets[0] if datasets else "text", "name": held_out},
            "metrics": [metric],
        }
        front["model-index"] = [{"name": record.recipe["name"], "results": [result]}]
    return front


def write_result(folder: Path, record: Training, *, draw: bool = True) -> None:
    """Write history, figures and, last of all, result.json: where it is, everything is."""
    from ..figures.training import training_figure
    from ..meter.compare import Comparison
    from ..meter.result import load

    write_csv(folder / "history.csv", [line.model_dump(exclude_unset=True) for line in record.history])
    if draw:
        training_figure([(record.recipe["name"], record)], folder / "training.png")
    if draw and record.snapshots:
        Comparison([load(folder / str(s.file)) for s in record.snapshots], "order").plot(folder / "snapshots")
    record.save(folder)
    (folder / "progress.json").unlink(missing_ok=True)
