"""`train`: carry out a recipe in a run folder, from the start or from its last checkpoint."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from ..files import AnyPath, first_process
from ..handle import Attachment
from ..insides.torch import lost_process, out_of_memory
from ..insides.transformers import use_one_gpu
from ..integrations.trainer import TrainerEngine
from ..needs import need
from ..records import parse
from ..term import Terms
from ..weights_cache import quiet_loading
from ..words import Tell, list_of, nobody, several
from . import folder as run_folder
from .active_forgetting import Forgetting
from .blocks import Order
from .fast import matmul_precision, tap_blocks
from .held_out import TOKENS, document_losses, frequency_deciles, one_document, token_counts
from .prepare import Prepared, prepare
from .probes import Probes
from .quantised import quantised_losses
from .recipe import Recipe
from .result import record_of, save_model, write_result
from .sections import shares_of
from .watch import Clock, Milestones, Progress, Show, Shown


@dataclass(frozen=True)
class Run:
    """A finished run: `folder`, and `record`, the content of its result.json."""

    folder: Path
    record: dict[str, Any]

    def to_pandas(self) -> Any:
        """A row per logged step."""
        return parse(self.record).to_pandas()

    @property
    def held_out_loss(self) -> float:
        return float(self.record["held_out"][-1]["loss"])


def train(
    recipe: Recipe,
    folder: AnyPath,
    *,
    resume: bool = False,
    command: str = "",
    cache: AnyPath | None = None,
    show: Show | None = None,
    progress: Tell = nobody,
    say: Callable[[str], None] = nobody,
    stage: Callable[[str], None] = nobody,
    draw: bool = True,
) -> Run:
    """Train as `recipe` says, into `folder`.

    resume     continue the run in `folder` from its last complete checkpoint (from the start when there is none);
               the recipe must be the one it was started with, save for what does not change the result
    cache      where tokenised texts lie; default: the package's cache folder
    show       called after every step with (step, latest figures)
    progress   called with (what is being done, how much is done, how much there is or None) while texts are tokenised,
               held-out losses computed and snapshots taken
    say        called with a sentence when something is worth knowing
    stage      called with a few words as a stage of the run begins: loading the model, training
    draw       also write the figures; studies, which keep only the numbers, do without
    """
    need("train", "training")
    if not isinstance(recipe, Recipe):
        made = "make one with load_recipe(path) or recipe_from(mapping)"
        raise TypeError(f"recipe must be a Recipe, got {type(recipe).__name__}: {made}.")
    target = Path(folder)
    with run_folder.owned(target):
        record = run_folder.finished(target)
        begun = run_folder.check_recipe(target, recipe, resume=resume)
        if record is not None and resume:
            say(f"this run is finished: {target / 'result.json'}")
            return Run(target, record)
        checkpoint = None
        if resume:
            checkpoint = run_folder.last_complete_checkpoint(target)
            run_folder.check_contents(checkpoint, recipe, cache)
            start = "there is no complete checkpoint" if begun else f"there is no run in {str(target)!r} yet"
            say(f"resuming from {checkpoint.name}" if checkpoint else f"{start}: starting from step 0")
        stage(f"loading {recipe.model.name}" if recipe.model.name else f"building a {recipe.model.architecture}")
        prepared = prepare(recipe, target, cache, progress)
        # The few float32 products on a GPU may use its tensor cores, but only during the run.
        fast = prepared.device.type == "cuda" and prepared.speed["compiled"]
        with quiet_loading(), matmul_precision("high") if fast else contextlib.nullcontext():
            trainer = _trainer(prepared, show, say, progress, start=checkpoint is None)
            if resume and first_process():
                run_folder.remove_other_checkpoints(target, checkpoint)
            look = "" if checkpoint else "held-out loss at step 0, then "
            slow = "; the first ones compile and take longer" if prepared.speed["compiled"] else ""
            stage(f"training: {look}{several(recipe.steps, 'step')} of {recipe.step_tokens:,} tokens{slow}")
            with run_folder.begin(target, recipe, lambda: not begun and trainer.state.global_step == 0):
                record = _carry_out(prepared, trainer, checkpoint, command, progress, draw=draw)
        if prepared.device.type == "cuda":
            del prepared, trainer
            gc.collect()  # trainer, model and callbacks hold each other, and the GPU's memory with them
        return Run(target, record)


def _carry_out(
    prepared: Prepared, trainer: Any, checkpoint: Path | None, command: str, progress: Tell, *, draw: bool
) -> dict[str, Any]:
    trainer.begin(checkpoint)
    if first_process():
        record_so_far = functools.partial(record_of, prepared, trainer, command, {}, finished=False)
        trainer.add_callback(Progress(record_so_far, prepared.folder / "progress.json"))
    try:
        with _one_sentence(prepared):
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    finally:
        if trainer.attachment is not None:
            trainer.attachment.remove()
    losses: dict[str, Any] = {}
    if prepared.documents:
        vocabulary = prepared.model.get_input_embeddings().weight.shape[0]
        deciles = frequency_deciles(prepared.blocks.tokens, vocabulary)
        loss_arguments = (trainer.model_wrapped, prepared.documents, prepared.recipe.data.context, deciles)
        losses = document_losses(*loss_arguments, progress=progress)
        if prepared.recipe.train.quantised:
            schemes = prepared.recipe.train.quantised
            losses["held_out_quantised"] = quantised_losses(*loss_arguments, schemes, progress=progress)
    progress("saving the model", 0, None)
    record = record_of(prepared, trainer, command, losses)
    if prepared.centre is not None:
        prepared.centre.fold()
    save_model(trainer, prepared.folder, record, prepared.tokenizer)
    if first_process():
        write_result(prepared.folder, record, draw=draw)
    return json.loads(record.to_json())


def _other_shares(prepared: Prepared) -> str:
    """Name the share of each text in the blocks where a short text has changed the shares of the mixture; else ""."""
    data, texts = prepared.recipe.data, prepared.blocks.texts
    wanted, total = list(shares_of(data.text).values()), len(prepared.blocks.tokens)
    if data.order == "sequential" or len(wanted) != len(texts):
        return ""
    actual = [text["tokens"] / total for text in texts]
    tolerance = max(0.01, 2 * data.context / total)  # whole blocks, some of them held out
    if all(abs(got - share) <= tolerance for got, share in zip(actual, wanted)):
        return ""
    return ", ".join(
        f"{100 * got:.3g} % {text['name']} ({100 * share:.3g} % in the recipe)"
        for got, text, share in zip(actual, texts, wanted)
    )


def _trainer(prepared: Prepared, show: Show | None, say: Callable[[str], None], progress: Tell, *, start: bool) -> Any:
    """transformers' Trainer with everything attached that the recipe asks for."""
    from .trainer import Trainer  # which needs accelerate

    recipe = prepared.recipe
    isolated = recipe.data.boundaries == "isolated"
    blocks, held_out = prepared.blocks, prepared.held_out
    ordered = functools.partial(Order, isolated=isolated, begin=prepared.begin)
    order = ordered(blocks, recipe.steps * recipe.batch_blocks, seed=recipe.train.seed)
    if shares := _other_shares(prepared):
        say(f"a text is shorter than its share of the mixture, so the blocks hold {shares}")
    passes = len(order) / len(blocks)
    if passes > 1:
        say(f"the text has {len(blocks)} blocks: the run goes over it {passes:.2f} times")
    in_both = {text["name"] for text in blocks.texts} & {text["name"] for text in held_out.texts}
    if in_both and recipe.data.held_out is not None:
        say(f"not all held-out text is unseen: the run also trains on {list_of(sorted(in_both))}")
    for name, tokens in one_document(prepared.documents, recipe.data).items():
        say(f"{name} is one document, and the loss by document uses {tokens:,} tokens of it: a .jsonl may have more")
    clock = Clock()
    trainer = Trainer(
        recipe=recipe,
        teacher=prepared.teacher,
        contents=prepared.contents,
        clock=clock,
        model=prepared.model,
        args=_arguments(prepared, start=start),
        train_dataset=order,
        eval_dataset=ordered(held_out, len(held_out), seed=None),
        processing_class=prepared.tokenizer,
        data_collator=transformers.default_data_collator,
    )
    trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
    trainer.add_callback(clock)  # before the callbacks below, whose time must not count as training
    forgetting = recipe.baselines.active_forgetting
    if forgetting is not None:
        trainer.add_callback(Forgetting(every=forgetting.every, std=forgetting.std, seed=recipe.train.seed))
    snapshot_folder = prepared.folder / "snapshots"
    milestones = Milestones(recipe, snapshot_folder, prepared.window_text, prepared.tokenizer, progress)
    trainer.add_callback(milestones)
    if recipe.snapshots.count and recipe.snapshots.probes:
        counts = token_counts(blocks.tokens, prepared.model.get_output_embeddings().weight.shape[0])
        trainer.add_callback(Probes(trainer, held_out, counts, prepared.begin, progress))
    if show is not None and first_process():
        trainer.add_callback(Shown(show, clock, recipe.step_tokens, milestones, progress))
    if prepared.centre is not None:
        trainer.add_callback(prepared.centre)
    attachment = None
    if recipe.losses:
        terms = [loss.term(recipe.steps) for loss in recipe.losses]
        term = Terms(terms) if len(terms) > 1 else terms[0]
        attachment = Attachment(TrainerEngine(trainer), term, recipe.losses[0].modules)
    trainer.attach(attachment)
    if attachment is not None:
        tap_blocks(prepared.model, attachment, whole_rows=not isolated, checkpointing=recipe.train.checkpointing)
    return trainer


def _arguments(prepared: Prepared, *, start: bool) -> Any:
    recipe, world, micro = prepared.recipe, run_folder.process_count(), prepared.micro_batch
    train = recipe.train
    rate = train.learning_rate * (math.sqrt(world) if train.scale_learning_rate else 1.0)
    arguments = transformers.TrainingArguments(
        output_dir=str(prepared.folder / "checkpoints"),
        max_steps=recipe.steps,
        per_device_train_batch_size=micro,
        per_device_eval_batch_size=min(micro, max(1, TOKENS // recipe.data.context)),
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
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        label_names=["labels"],
        eval_on_start=start,
        save_strategy="no",
        save_total_limit=train.keep,
        logging_steps=train.log_every,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        log_level="error",
        log_level_replica="error",
        report_to=train.report_to or "none",
        run_name=recipe.name,
        ddp_find_unused_parameters=False,
        dataloader_pin_memory=prepared.device.type == "cuda",
    )
    use_one_gpu(arguments)
    return arguments


@contextlib.contextmanager
def _one_sentence(prepared: Prepared) -> Iterator[None]:
    """Report in one sentence what can only fail during the run: too little memory, or another process that died, which
    shows here as a broken connection."""
    try:
        yield
    except RuntimeError as error:
        effect = run_folder.where_it_goes_on(prepared.folder)
        if out_of_memory(error):
            micro = prepared.micro_batch
            smaller = max((d for d in range(1, micro) if micro % d == 0), default=None)
            remedy = "train.checkpointing=true" if smaller is None else f"train.micro_batch={smaller}"
            raise ValueError(
                f"the memory of {prepared.device} must hold train.micro_batch = {micro} blocks of "
                f"{prepared.recipe.data.context} tokens, but it does not: add --resume --set {remedy}, which {effect}."
            ) from None
        if run_folder.process_count() == 1 or not lost_process(error):
            raise
        raise OSError(
            f"another process of this run has died ({str(error).splitlines()[0][:120]}): the same command with "
            f"--resume, on as many processes or another number, {effect}."
        ) from None
