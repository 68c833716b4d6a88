"""Small runs for the tests: recipes of a second, and processes of their own in which a run can be killed."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from processes import start

from decondense.train import Recipe, recipe_from, with_settings

KILLED = Path(__file__).with_name("kill_worker.py")
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"vocab_size": 384, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
              "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64,
              "tie_word_embeddings": False},
    "gpt2": {"vocab_size": 384, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
}  # fmt: skip


def content(*settings: str, architecture: str = "llama", config: dict[str, Any] | None = None) -> dict[str, Any]:
    """A recipe of eight steps of 8 blocks of 32 tokens on the CPU, without snapshots, with `settings` put in."""
    more = config or {}
    small = {
        "name": "tiny",
        "model": {"architecture": architecture, "tokenizer": "bytes", "config": CONFIGS.get(architecture, {}) | more},
        "data": {"text": "pydoc", "tokens": 2048, "held_out_tokens": 512, "context": 32},
        "train": {"batch_tokens": 256, "learning_rate": 1e-2, "log_every": 2, "checkpoints": 1, "device": "cpu",
                  "seed": 1},
        "snapshots": {"count": 0, "windows": 2, "tokens": 16, "bootstrap": 20},
    }  # fmt: skip
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


def child(recipe: dict[str, Any], folder: Path, cache: Path, **options: Any) -> Future[CompletedProcess[str]]:
    """A process that trains, in the background; `options` are those of `kill_worker.work`."""
    return start(KILLED, json.dumps([recipe, str(folder), str(cache), options]))


def interrupt(*_):
    raise KeyboardInterrupt  # not by a signal, which a process in the background may ignore
