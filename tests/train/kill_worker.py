"""kill_worker.py JSON: a run that ends itself by SIGKILL at one of its worst moments, or waits at a step."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from decondense.train import recipe_from, train


def work(
    recipe: dict[str, Any],
    folder: Path,
    cache: Path,
    *,
    resume: bool = False,
    kill: tuple[str, int] | None = None,
    pause: tuple[int, str, str] | None = None,
) -> None:
    """Train. `kill` = (where, step) ends the process by SIGKILL there; `pause` = (step, reached, go) makes the file
    `reached` at a step and waits for the file `go`. What the run says is added to FOLDER.said."""
    if kill is not None:
        KILLS[kill[0]](kill[1])

    def show(step: int, figures: dict[str, float]) -> None:
        if pause is not None and step == pause[0]:
            Path(pause[1]).touch()
            while not Path(pause[2]).exists():
                time.sleep(0.01)

    def say(sentence: str) -> None:
        with folder.with_suffix(".said").open("a") as file:
            file.write(sentence + "\n")

    train(recipe_from(recipe), folder, resume=resume, cache=cache, show=show, say=say, draw=False)


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

if __name__ == "__main__":
    recipe, folder, cache, options = json.loads(sys.argv[1])
    work(recipe, Path(folder), Path(cache), **options)
