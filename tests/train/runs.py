"""Small runs for the tests: recipes of a second, and processes of their own in which a run can be killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from decondense.train import Recipe, recipe_from, with_settings

HERE = Path(__file__).resolve().parent
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "vocab_size": 384,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
    },
    "gpt2": {"vocab_size": 384, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
}


def content(*settings: str, architecture: str = "llama", config: dict[str, Any] | None = None) -> dict[str, Any]:
    """A recipe of eight steps of 8 blocks of 32 tokens on the CPU, without snapshots, with `settings` put in."""
    small = {
        "name": "tiny",
        "model": {
            "architecture": architecture,
            "tokenizer": "bytes",
            "config": CONFIGS.get(architecture, {}) | (config or {}),
        },
        "data": {"text": "pydoc", "tokens": 2048, "held_out_tokens": 512, "context": 32},
        "train": {
            "batch_tokens": 256,
            "learning_rate": 1e-2,
            "log_every": 2,
            "checkpoints": 1,
            "device": "cpu",
            "seed": 1,
        },
        "snapshots": {"count": 0, "windows": 2, "tokens": 16, "bootstrap": 5},
    }
    return with_settings(small, settings)


def tiny(*settings: str, **options: Any) -> Recipe:
    return recipe_from(content(*settings, **options))


def saved(folder: Path, **changes: Any) -> Path:
    """A folder with the tiny Llama, its configuration changed, and the tokenizer of bytes."""
    import transformers

    config = transformers.LlamaConfig(**CONFIGS["llama"] | changes)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    transformers.ByT5Tokenizer().save_pretrained(folder)
    return folder


def weights(folder: Path) -> dict[str, Any]:
    """The trained weights of a finished run."""
    from safetensors.torch import load_file

    return load_file(folder / "model" / "model.safetensors")


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def fail_in_step_five(patch: Any, error: BaseException) -> None:
    """By a monkeypatch: the error comes in the fifth step from 0."""
    from decondense.train.trainer import Trainer

    own = Trainer.training_step

    def training_step(self: Trainer, *args: Any) -> Any:
        if self.state.global_step == 5:
            raise error
        return own(self, *args)

    patch.setattr(Trainer, "training_step", training_step)


# ---- processes ---------------------------------------------------------------------------------------------------


def child(recipe: dict[str, Any], folder: Path, cache: Path, **options: Any) -> multiprocessing.process.BaseProcess:
    """A started process that trains; `options` are those of `work`. All of them are forks of one server that has
    imported everything, so they start at once; the server itself has no threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["train.runs", "train.imports"])
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "OMP_NUM_THREADS")}
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), *filter(None, [before["PYTHONPATH"]])])
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        process = context.Process(target=work, args=(recipe, folder, cache), kwargs=options)
        process.start()
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
    return process


def work(
    recipe: dict[str, Any],
    folder: Path,
    cache: Path,
    *,
    resume: bool = False,
    kill: tuple[str, int] | None = None,
    pause: tuple[int, Any, Any] | None = None,
) -> None:
    """Train, on one thread. `kill` = (where, step) ends the process by SIGKILL there; `pause` = (step, reached, go)
    sets one event at a step and waits for the other. What the run says is added to FOLDER.said."""
    import torch

    from decondense.train import train

    torch.set_num_threads(1)
    if kill is not None:
        KILLS[kill[0]](kill[1])

    def show(step: int, figures: dict[str, float]) -> None:
        if pause is not None and step == pause[0] and not pause[1].is_set():
            pause[1].set()
            pause[2].wait(60)

    def say(sentence: str) -> None:
        with folder.with_suffix(".said").open("a") as file:
            file.write(sentence + "\n")

    train(recipe_from(recipe), folder, resume=resume, cache=cache, show=show, say=say)


def end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_step(step: int) -> None:
    """Between the backward pass and the optimiser's step."""
    from decondense.train.trainer import Trainer

    own = Trainer.on_pre_optimizer_step

    def look(self: Trainer, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step == step:
            end()
        own(self, *args, **kwargs)

    Trainer.on_pre_optimizer_step = look  # type: ignore[method-assign]


def kill_around_marker(step: int, *, after: bool) -> None:
    from decondense.train import trainer

    own = trainer.mark

    def mark(folder: Path, **said: Any) -> None:
        if said["step"] == step and not after:
            end()
        own(folder, **said)
        if said["step"] == step:
            end()

    trainer.mark = mark


def kill_in_optimiser_save(step: int) -> None:
    """Half of the optimiser's state is on disk, the model's is there already."""
    import torch

    own = torch.save

    def save(item: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        own(item, path, *args, **kwargs)
        if str(path).endswith("optimizer.pt") and f"checkpoint-{step}" in str(path):
            os.truncate(path, os.path.getsize(path) // 2)
            end()

    torch.save = save


def kill_in_model_save(step: int) -> None:
    """Training is over, the model folder is begun."""
    from decondense.train import result

    result.model_card = lambda record: end() or ""


def kill_while_tokenising(step: int) -> None:
    from decondense.train import token_files

    def stream(*_: Any) -> Any:
        yield 0, [5, 6, 7], "abc", "nowhere"
        end()

    token_files._stream = stream


KILLS: dict[str, Callable[[int], None]] = {
    "tokenising": kill_while_tokenising,
    "step": kill_in_step,
    "optimiser save": kill_in_optimiser_save,
    "before marker": lambda step: kill_around_marker(step, after=False),
    "after marker": lambda step: kill_around_marker(step, after=True),
    "model save": kill_in_model_save,
}
