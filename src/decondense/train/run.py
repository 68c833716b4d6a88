"""`train`: a recipe carried out into a run folder; started, killed, resumed.

RUN/recipe.yaml        the recipe in full
RUN/result.json        what came out: losses, held-out loss, snapshots, speed
RUN/snapshots/         the meter at step 0 and at the steps of the recipe (`decondense.load` reads them)
RUN/model/             the trained model, with a card that says how it was made
RUN/checkpoints/       Trainer's checkpoints; those with complete.json can be resumed from
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from ..meter.result import write_text
from ..regularize import regularize
from ..weights_cache import cache_dir, quiet_loading
from .blocks import Blocks, Order, join, prepare
from .recipe import Recipe

__all__ = ["Run", "train"]

SCHEMA = "decondense.train/1"
# A resumed run may change these: they say how fast and where, or how much is told, not what is computed.
FREE = ("micro_batch", "device", "report_to", "on_nan", "keep", "compile", "fused_loss", "checkpointing")
HISTORY = (
    "loss",
    "task_loss",
    "penalty",
    "mean_cosine",
    "penalty_weight",
    "penalty_agreement",
    "learning_rate",
    "grad_norm",
)


@dataclass(frozen=True)
class Run:
    """A finished run: `folder`, and `record`, the content of its result.json."""

    folder: Path
    record: dict[str, Any]

    @property
    def held_out_loss(self) -> float:
        return float(self.record["held_out"][-1]["loss"])


def train(
    recipe: Recipe,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    command: str = "",
    cache: str | os.PathLike[str] | None = None,
    show: Callable[[int, dict[str, float]], None] | None = None,
    preparing: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Run:
    """Train as `recipe` says, into `folder`.

    resume     continue the run in `folder` from its last complete checkpoint (from the start when there is none);
               the recipe must be the one it was started with, save for what does not change the result
    cache      where tokenised texts lie; default: the package's cache folder
    show       called after every step with (step, latest figures)
    preparing  called while the text is tokenised with (tokens done, tokens in all)
    say        called with a sentence when something is worth knowing
    """
    target = Path(folder)
    say = say or (lambda sentence: None)
    with _owned(target):
        record = _finished(target)
        if record is not None and resume:
            say(f"this run is finished: {target / 'result.json'}")
            return Run(target, record)
        _check_folder(target, recipe, resume=resume)
        prepared = _prepare(recipe, target, cache, preparing)
        with _one_writer(target, recipe):
            return _carry_out(recipe, target, prepared, resume=resume, command=command, show=show, say=say)


# ---- before anything is trained ----------------------------------------------------------------------------------


def _main() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _world() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextlib.contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """One run per folder. The system drops the lock when the process ends, however it ends."""
    if not _main():
        yield
        return
    fresh = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / ".lock").open("w")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OSError(
            f"the run folder {str(folder)!r} must be writable: {reason}; choose another with --out."
        ) from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(
                f"the run folder {str(folder)!r} is in use by another process: wait for it, or choose another with --out."
            ) from None
        try:
            yield
        finally:
            (folder / ".lock").unlink(missing_ok=True)
            if fresh:
                with contextlib.suppress(OSError):
                    folder.rmdir()  # nothing came of it


def _finished(folder: Path) -> dict[str, Any] | None:
    file = folder / "result.json"
    return json.loads(file.read_text()) if file.is_file() else None


def _check_folder(folder: Path, recipe: Recipe, *, resume: bool) -> None:
    file = folder / "recipe.yaml"
    if not file.is_file():
        if resume and not any(folder.glob("*")):
            raise ValueError(f"there is no run to resume in {str(folder)!r}: leave out --resume.")
        return
    if not resume and _main():
        raise ValueError(
            f"{str(folder)!r} already holds a run: add --resume to continue it, or choose another folder with --out."
        )
    before, now = (_flat(yaml.safe_load(text)) for text in (file.read_text(), recipe.to_yaml()))
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key) and key.removeprefix("train.") not in FREE:
            raise ValueError(
                f"a run must be resumed with the recipe it was started with, but {key} was {before.get(key)!r} and is "
                f"{now.get(key)!r}: use {str(file)!r}, or start in another folder."
            )


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict) or not tree:
        return {prefix.rstrip("."): tree}
    return {k: v for key, value in tree.items() for k, v in _flat(value, f"{prefix}{key}.").items()}


@dataclass
class _Prepared:
    model: Any
    tokenizer: Any
    source: dict[str, Any]
    blocks: Blocks
    held_out: Blocks
    teacher: Any
    device: torch.device
    bf16: bool


def _prepare(recipe: Recipe, folder: Path, cache: Any, preparing: Any) -> _Prepared:
    """Everything that can be wrong is wrong here, before the first step."""
    from ..models import pick_device

    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = pick_device(recipe.train.device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    model, tokenizer, source = _model(recipe, device)
    limit = getattr(model.config, "max_position_embeddings", None) or getattr(model.config, "n_positions", None)
    if limit is not None and recipe.data.context > limit:
        raise ValueError(
            f"data.context must be at most {limit}, the positions of this model, got {recipe.data.context}."
        )
    where = Path(cache) if cache is not None else cache_dir() / "tokens"
    blocks, held_out = _blocks(recipe, tokenizer, where, preparing)
    rows = model.get_input_embeddings().weight.shape[0]
    largest = int(max(blocks.tokens.max(), held_out.tokens.max()))
    if largest >= rows:
        raise ValueError(
            f"the tokenizer must match the model: it makes token {largest}, the model has {rows} embeddings; choose "
            "the model's own tokenizer."
        )
    needed = recipe.snapshots.windows * recipe.snapshots.tokens if recipe.snapshots.count else 0
    if len(held_out.tokens) < needed:
        raise ValueError(
            f"the held-out text must hold {needed} tokens for the snapshots, it has {len(held_out.tokens)}: raise "
            "data.held_out_tokens or lower snapshots.windows."
        )
    teacher = None
    wanted = recipe.baselines.distillation
    if wanted is not None:
        from ..models import load
        from .distillation import check_teacher

        teacher, its_tokenizer = load(wanted.teacher, revision=wanted.revision, device=device, dtype="float32")
        check_teacher(model, teacher, (tokenizer, its_tokenizer), recipe.data.context)
        teacher.requires_grad_(False)
    precision = recipe.train.precision
    bf16 = precision == "bf16" or (precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported())
    _check_disk(folder, model, recipe)
    return _Prepared(model, tokenizer, source, blocks, held_out, teacher, device, bf16)


def _model(recipe: Recipe, device: torch.device) -> tuple[Any, Any, dict[str, Any]]:
    """(model in train mode on the device, tokenizer, what it is in words)."""
    import transformers

    from .. import models

    wanted, seed = recipe.model, recipe.train.seed
    options: dict[str, Any] = {} if wanted.attention is None else {"attn_implementation": wanted.attention}
    if wanted.architecture is not None:
        assert wanted.tokenizer is not None
        tokenizer = _tokenizer(wanted.tokenizer)
        try:
            config = transformers.AutoConfig.for_model(wanted.architecture, **wanted.config)
            torch.manual_seed(seed)
            model = transformers.AutoModelForCausalLM.from_config(config, **options)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"model.architecture must be a causal model type of transformers with a fitting config, got "
                f"{wanted.architecture!r}: {str(error).splitlines()[0]}"
            ) from None
        source = {"name": wanted.architecture, "source": "from scratch"}
    else:
        assert wanted.name is not None
        resolved = models.resolve(wanted.name, revision=wanted.revision)
        model, tokenizer = models.load(
            resolved, dtype="float32", device="cpu", init=wanted.init, seed=seed,
            trust_remote_code=wanted.trust_remote_code, config_changes=wanted.config or None, **options,
        )  # fmt: skip
        if wanted.tokenizer is not None:
            tokenizer = _tokenizer(wanted.tokenizer)
        source = {"name": resolved.name, "source": resolved.description + (", fresh weights" if wanted.init else "")}
    if not hasattr(model, "lm_head") and model.get_output_embeddings() is None:
        raise ValueError(f"train needs a causal language model, got {type(model).__name__}: choose another model.")
    model = model.to(device)
    source["parameters"] = sum(p.numel() for p in model.parameters())
    if wanted.lora is not None:
        from peft import LoraConfig, get_peft_model

        lora = wanted.lora
        adapters = LoraConfig(
            r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=lora.target_modules,
            task_type="CAUSAL_LM",
        )  # fmt: skip
        torch.manual_seed(seed)
        model = get_peft_model(model, adapters)
    model.config.use_cache = False
    return model.train(), tokenizer, source


def _tokenizer(name: str) -> Any:
    """The tokenizer of a model, or "bytes": one token per byte of UTF-8, which needs no file."""
    if name == "bytes":
        from transformers import ByT5Tokenizer

        return ByT5Tokenizer()
    from ..models import load_tokenizer, resolve

    return load_tokenizer(resolve(name))


def _blocks(recipe: Recipe, tokenizer: Any, cache: Path, preparing: Any) -> tuple[Blocks, Blocks]:
    """Training and held-out blocks. Only the first process of a machine tokenises; the others find the file."""
    data = recipe.data
    aside = -(-data.held_out_tokens // data.context)
    options: dict[str, Any] = {"context": data.context, "cache": cache, "data": data.folder}
    wanted = recipe.steps * recipe.batch_blocks * data.context

    def both() -> tuple[Blocks, Blocks]:
        if data.held_out is not None:
            blocks = prepare(data.text, tokenizer, tokens=wanted, progress=preparing, **options)
            names = [data.held_out] if isinstance(data.held_out, str) else data.held_out
            share = -(-aside // len(names))  # every held-out text has its say
            parts = [prepare(name, tokenizer, tokens=share * data.context, **options) for name in names]
            return blocks, join([part.part(0, min(len(part), share)) for part in parts])
        blocks = prepare(data.text, tokenizer, tokens=wanted + aside * data.context, progress=preparing, **options)
        if len(blocks) < aside + 1:
            raise ValueError(
                f"the text must fill {aside + 1} blocks of {data.context} tokens, {aside} of them held out, it fills "
                f"{len(blocks)}: give more text, name data.held_out, or lower data.held_out_tokens."
            )
        return blocks.part(0, len(blocks) - aside), blocks.part(len(blocks) - aside, len(blocks))

    if _world() == 1:
        return both()
    from accelerate import PartialState

    state = PartialState()
    with state.local_main_process_first():
        return both()


def _check_disk(folder: Path, model: Any, recipe: Recipe) -> None:
    """Weights in float32, and two moments for what is trained, for every checkpoint kept and one being written."""
    weights = sum(p.numel() for p in model.parameters()) * 4
    moments = sum(p.numel() for p in model.parameters() if p.requires_grad) * 8
    needed = (weights + moments) * (recipe.train.keep + 1) + weights
    free = shutil.disk_usage(folder if folder.exists() else folder.parent).free
    if free < needed:
        raise OSError(
            f"the disk must hold {needed / 2**30:.1f} GiB of checkpoints, it has {free / 2**30:.1f} GiB free: free some "
            "space or choose another folder with --out."
        )


def _micro_batch(recipe: Recipe, model: Any, device: torch.device) -> int:
    """Blocks per forward pass: what the recipe says, else the largest divisor of a process's share that should fit."""
    world = _world()
    if recipe.batch_blocks % world:
        raise ValueError(
            f"train.batch_tokens must give every one of {world} processes as many blocks, got {recipe.batch_blocks} "
            f"blocks of {recipe.data.context}: change train.batch_tokens or the number of processes."
        )
    share = recipe.batch_blocks // world
    if recipe.train.micro_batch is not None:
        if share % recipe.train.micro_batch:
            raise ValueError(
                f"train.micro_batch must divide the {share} blocks that a process has per step, got "
                f"{recipe.train.micro_batch}."
            )
        return recipe.train.micro_batch
    tokens = 4096.0
    if device.type == "cuda":
        # 65,536 tokens of a 135M-parameter model (30 layers × width 576, 49k words) take 41 GiB of an H200's 139.
        config = model.config
        work = config.num_hidden_layers * config.hidden_size / 17280 + config.vocab_size / 49152
        tokens = 65536 * torch.cuda.get_device_properties(device).total_memory / (139 * 2**30) * 2 / max(work, 2 / 3)
    fits = max(1, int(tokens / recipe.data.context))
    return max(d for d in range(1, share + 1) if share % d == 0 and (d <= fits or d == 1))


# ---- the run itself ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _one_writer(folder: Path, recipe: Recipe) -> Iterator[None]:
    """The recipe is written when training begins, and a full disk is one sentence."""
    if _main():
        write_text(folder / "recipe.yaml", recipe.to_yaml())
    try:
        yield
    except OSError as error:
        if error.errno == 28:
            raise OSError(
                f"the disk became full while writing into {str(folder)!r}: free some space and repeat with --resume."
            ) from None
        raise


def _carry_out(
    recipe: Recipe, folder: Path, prepared: _Prepared, *, resume: bool, command: str, show: Any, say: Any
) -> Run:
    import transformers

    from .trainer import Trainer, last_complete_checkpoint
    from .watch import Clock, Milestones, Shown

    checkpoints = folder / "checkpoints"
    checkpoint = last_complete_checkpoint(checkpoints, remove_incomplete=_main()) if resume else None
    if resume:
        say(f"resuming from {checkpoint.name}" if checkpoint else "no complete checkpoint: starting from step 0")
    model, tokenizer = prepared.model, prepared.tokenizer
    micro = _micro_batch(recipe, model, prepared.device)
    speed = _make_fast(recipe, prepared)
    order = Order(
        prepared.blocks, recipe.steps * recipe.batch_blocks, seed=recipe.train.seed,
        isolated=recipe.data.boundaries == "isolated",
    )  # fmt: skip
    held_out = Order(
        prepared.held_out, len(prepared.held_out), seed=None, isolated=recipe.data.boundaries == "isolated"
    )
    passes = len(order) / len(prepared.blocks)
    if passes > 1:
        say(f"the text has {len(prepared.blocks)} blocks: the run goes over it {passes:.2f} times")
    trainer = Trainer(
        recipe=recipe,
        teacher=prepared.teacher,
        model=model,
        args=_arguments(recipe, checkpoints, micro, prepared, start=checkpoint is None),
        train_dataset=order,
        eval_dataset=held_out,
        processing_class=tokenizer,
        data_collator=transformers.default_data_collator,
    )
    for silent in (transformers.trainer_callback.PrinterCallback, transformers.trainer_callback.ProgressCallback):
        trainer.remove_callback(silent)
    clock = Clock()
    text = [tokenizer.decode(prepared.held_out.tokens.tolist())]
    trainer.add_callback(clock)
    if recipe.baselines.active_forgetting is not None:
        from .active_forgetting import Forgetting

        forgetting = recipe.baselines.active_forgetting
        trainer.add_callback(Forgetting(every=forgetting.every, std=forgetting.std, seed=recipe.train.seed))
    trainer.add_callback(Milestones(recipe, folder / "snapshots", text, tokenizer, recipe.name))
    if show is not None and _main():
        trainer.add_callback(Shown(show, clock, recipe.batch_blocks * recipe.data.context))
    handle = _attach(recipe, trainer)
    begun = time.monotonic()
    try:
        with quiet_loading():
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    finally:
        if handle is not None:
            handle.remove()
    seconds = time.monotonic() - begun
    record = _record(recipe, folder, prepared, trainer, clock, micro, speed, command, seconds)
    with quiet_loading():
        _save_model(trainer, folder, record, prepared)
    if _main():
        _write(folder, record)
    return Run(folder, record)


def _make_fast(recipe: Recipe, prepared: _Prepared) -> dict[str, bool]:
    """Compiled blocks and the fused head, on a GPU unless the recipe says otherwise."""
    from .fast import compile_blocks, fuse_head

    cuda = prepared.device.type == "cuda"
    compiled = recipe.train.compile if recipe.train.compile != "auto" else cuda
    fused = recipe.train.fused_loss if recipe.train.fused_loss != "auto" else cuda
    if recipe.baselines.distillation is not None or recipe.model.lora is not None:
        fused = False  # distillation needs the logits, and adapters wrap the model
    done = {"compiled": bool(compiled), "fused_loss": False}
    if fused:
        done["fused_loss"] = fuse_head(prepared.model, compiled=bool(compiled))
        if not done["fused_loss"] and recipe.train.fused_loss is True:
            raise ValueError(
                f"train.fused_loss does not reproduce the loss of {type(prepared.model).__name__}: set it to auto."
            )
    if compiled:
        torch.set_float32_matmul_precision("high")
        compile_blocks(prepared.model)
    return done


def _attach(recipe: Recipe, trainer: Any) -> Any:
    loss = recipe.loss
    if loss.name == "none":
        return None
    options = dict(loss.options)
    if loss.preset is not None:
        options["preset"] = loss.preset
    return regularize(
        trainer,
        loss.name,
        weight=loss.weight,
        layers=loss.layers,
        schedule=loss.schedule,
        ramp_steps=loss.ramp_steps,
        check_every=loss.check_every,
        **options,
    )


def _arguments(recipe: Recipe, folder: Path, micro: int, prepared: _Prepared, *, start: bool) -> Any:
    from transformers import TrainingArguments

    train, world = recipe.train, _world()
    rate = train.learning_rate * (math.sqrt(world) if train.scale_learning_rate else 1.0)
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=recipe.steps,
        per_device_train_batch_size=micro,
        per_device_eval_batch_size=micro,
        gradient_accumulation_steps=recipe.batch_blocks // world // micro,
        learning_rate=rate,
        lr_scheduler_type=train.schedule,
        warmup_steps=round(train.warmup * recipe.steps),
        weight_decay=train.weight_decay,
        adam_beta1=train.beta1,
        adam_beta2=train.beta2,
        max_grad_norm=train.clip,
        optim="adamw_torch_fused" if prepared.device.type == "cuda" else "adamw_torch",
        bf16=prepared.bf16,
        use_cpu=prepared.device.type == "cpu",
        gradient_checkpointing=train.checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False} if train.checkpointing else None,
        neftune_noise_alpha=recipe.baselines.noisy_embedding,
        seed=train.seed,
        data_seed=train.seed,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        label_names=["labels"],
        prediction_loss_only=True,
        eval_strategy="no",
        eval_on_start=start,
        save_strategy="no",
        save_total_limit=train.keep,
        logging_steps=train.log_every,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        report_to=train.report_to or "none",
        run_name=recipe.name,
        ddp_find_unused_parameters=False,
        dataloader_pin_memory=prepared.device.type == "cuda",
    )


# ---- what is left behind -----------------------------------------------------------------------------------------


def _record(
    recipe: Recipe,
    folder: Path,
    prepared: _Prepared,
    trainer: Any,
    clock: Any,
    micro: int,
    speed: dict[str, bool],
    command: str,
    seconds: float,
) -> dict[str, Any]:
    import importlib.metadata

    per_step = recipe.batch_blocks * recipe.data.context
    log = trainer.state.log_history
    history = [
        {"step": e["step"], "tokens": e["step"] * per_step, **{k: e[k] for k in HISTORY if k in e}}
        for e in log
        if "loss" in e
    ]
    held_out = [
        {"step": e["step"], "tokens": e["step"] * per_step, "loss": e["eval_loss"]} for e in log if "eval_loss" in e
    ]
    snapshots = [
        {
            "step": int(f.stem.split("-")[1]),
            "tokens": int(f.stem.split("-")[1]) * per_step,
            "file": f"snapshots/{f.name}",
        }
        for f in sorted((folder / "snapshots").glob("step-*.json"))
    ]
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
        "history": history,
        "held_out": held_out,
        "snapshots": snapshots,
        "skipped_steps": trainer.skipped,
        "seconds": round(seconds, 2),
        "tokens_per_second": clock.tokens_per_second(per_step),
        "processes": _world(),
        "micro_batch": micro,
        "bf16": prepared.bf16,
        **speed,
        "hardware": hardware(prepared.device),
        "versions": {n: importlib.metadata.version(n) for n in ("torch", "transformers", "accelerate")},
    }


def hardware(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def _save_model(trainer: Any, folder: Path, record: dict[str, Any], prepared: _Prepared) -> None:
    """Whole or not at all: written beside, then renamed. Adapters are merged, so that from_pretrained is enough."""
    from .card import model_card

    temporary = folder / ".model"
    if _main() and temporary.exists():
        shutil.rmtree(temporary)
    model = trainer.model
    if hasattr(model, "merge_and_unload"):
        trainer.model = model.merge_and_unload()
    trainer.model.config.use_cache = True
    trainer.save_model(str(temporary))
    if not _main():
        return
    (temporary / "training_args.bin").unlink(missing_ok=True)  # a pickle, and the recipe says it all
    prepared.tokenizer.save_pretrained(temporary)
    write_text(temporary / "README.md", model_card(record))
    shutil.rmtree(folder / "model", ignore_errors=True)
    temporary.replace(folder / "model")


def _write(folder: Path, record: dict[str, Any]) -> None:
    from ..report.tables import write_csv
    from ..report.training import training_figure

    write_csv(folder / "history.csv", record["history"])
    training_figure([(record["recipe"]["name"], record)], folder / "training.png")
    if record["snapshots"]:
        from ..meter.compare import Comparison
        from ..meter.result import load

        found = [load(folder / s["file"]) for s in record["snapshots"]]
        Comparison(found, "order").plot(folder / "snapshots")
    write_text(folder / "result.json", json.dumps(record, indent=1, allow_nan=False) + "\n")
