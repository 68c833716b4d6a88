"""Insides of lm-eval: its folder of task files and their index, the parts of a task that have no public name, and what
is replaced while one of its calls runs. Nothing is replaced outside these calls.

lm-eval's own list of its 14,000 names takes seconds, because it parses every file; reading the names out of the files
takes half a second.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from . import Moved, attribute, member, replaced

_NAME = r"""["']?([\w.()-]+)["']?"""
NAME = re.compile(rf"""^["']?(?:task|group|tag)["']?\s*:\s*{_NAME}\s*(?:#.*)?$""", re.MULTILINE)
TAGS = re.compile(rf"""^["']?tag["']?\s*:[ \t]*\n((?:\s*-\s*{_NAME}[ \t]*\n)+)""", re.MULTILINE)
OVERRIDDEN = ("_loglikelihood_tokens", "loglikelihood", "prefix_token_id", "max_length")


# -- names of tasks ------------------------------------------------------------------------------------------


def tasks_folder() -> Path:
    """Where the task files lie. Reading the few that are wanted is what makes a start fast."""
    spec = importlib.util.find_spec("lm_eval")  # without importing it, which takes seconds
    folder = Path(str(spec and spec.origin)).parent / "tasks"
    if not folder.is_dir():
        raise Moved("lm_eval", "the folder lm_eval/tasks", "tasks are built from the files in it")
    return folder


@functools.cache
def homes() -> dict[str, set[Path]]:
    """Every task, group and tag that a file spells out, with the folders of the files, read without parsing them. Files
    without the ending .yaml are included by others: their names count, but what they define lies elsewhere, so they
    have the folder of all."""
    root = tasks_folder()
    places: dict[str, set[Path]] = {}
    for folder, _, files in sorted(os.walk(root)):
        own = root.joinpath(*Path(folder).relative_to(root).parts[:1])
        for file in sorted(files):
            ending = os.path.splitext(file)[1]
            if ending in (".py", ".pyc", ".md", ".txt", ".json", ".jsonl"):
                continue
            with open(os.path.join(folder, file), encoding="utf-8", errors="replace") as opened:
                body = opened.read()
            names = [match[1] for match in NAME.finditer(body)]
            names += [name for block in TAGS.finditer(body) for name in re.findall(rf"-\s*{_NAME}", block[1])]
            for name in names:
                places.setdefault(name, set()).add(own if ending == ".yaml" else root)
    if "piqa" not in places:
        raise Moved("lm_eval", "the line `task: piqa` in a file of lm_eval/tasks", "names of tasks are read there")
    return places


def index(folders: Sequence[Path] | None = None) -> dict[str, Any]:
    """lm-eval's index, name → entry (``kind``, ``tags``, ``cfg``, ``yaml_path``), of some folders or of everything."""
    why = "groups and tags stand for the tasks that lm-eval says"
    manager = member("lm_eval.tasks", "TaskManager", why=why)
    if folders is None:
        return _whole_index(manager)
    paths = list(dict.fromkeys(str(folder) for folder in folders))
    return attribute(manager(include_path=paths, include_defaults=False), "task_index", library="lm_eval", why=why)


@functools.cache
def _whole_index(manager: Any) -> dict[str, Any]:
    """lm-eval reads a file again for every other that includes it, which is half of what it reads, and makes a class
    each time: here a file is read once, and a folder has one class."""
    plain = member("lm_eval.tasks._yaml_loader", "load_yaml", why="an included file is read once")
    reader = member("lm_eval.tasks._yaml_loader", "_make_loader", why="files of a folder share one")
    loader: Any = importlib.import_module("lm_eval.tasks._yaml_loader")
    known: dict[Path, dict[str, Any]] = {}

    def once(path: Path, **how: Any) -> dict[str, Any]:
        if path not in known:
            known[path] = plain(path, **how)
        return dict(known[path])  # the caller takes entries out

    # what load_yaml itself calls, for an included file and for every one
    with replaced(loader, "load_yaml", once), replaced(loader, "_make_loader", functools.cache(reader)):
        return manager().task_index


def definition(entry: Any) -> dict[str, Any]:
    """A task's YAML file, with what it includes and its functions: a task is built from it after its data source is
    changed, which no public call allows."""
    why = "a task is built from lm-eval's own definition"
    load = member("lm_eval.tasks._yaml_loader", "load_yaml", why=why)
    return dict(load(entry.yaml_path, resolve_func=True))


# -- a task --------------------------------------------------------------------------------------------------


def example_count(task: Any) -> int:
    """How many rows few-shot examples can be drawn from: with fewer than asked for lm-eval fails in the middle."""
    why = "the examples must suffice"
    sampler = attribute(task, "sampler", library="lm_eval", why=why)
    return len(list(attribute(sampler, "df", library="lm_eval", why=why)))


def few_shot_split(task: Any) -> str | None:
    """The split that examples are drawn from, by lm-eval's rule; ``None`` where the task lists its own."""
    settings = attribute(task, "fewshot_cfg", library="lm_eval", why="the source of examples must be stated")
    if settings.split is not None:
        return settings.split
    if settings.samples is not None:
        return None
    return task.config.training_split or task.config.validation_split or task.config.test_split


def leave_item_out(task: Any, split: str) -> None:
    """Examples come from the evaluated split: lm-eval leaves the item itself out of them only where that split is the
    test split by name."""
    task.config.test_split = split
    attribute(task, "fewshot_cfg", library="lm_eval", why="an item must not be its own example").split = split


def forget_prompts(task: Any) -> None:
    """The prompts of a task are the largest thing in memory, and lm-eval keeps them."""
    attribute(task, "_instances", library="lm_eval", why="prompts must not pile up over tasks")
    task._instances = None


def check_model_class(model_class: Any) -> None:
    """What our scorer overrides must still be what lm-eval calls."""
    for name in OVERRIDDEN:
        attribute(model_class, name, library="lm_eval", why="the scorer puts its own in this place")


def bare_task(config: dict[str, Any]) -> Any:
    """A task of this definition that reads rows and has no data: where a task cannot be built from its rows, this one
    tells which of them is to blame."""
    why = "a row that does not fit is named"
    task = object.__new__(member("lm_eval.api.task", "ConfigurableTask", why=why))
    task._config = member("lm_eval.api.task", "TaskConfig", why=why)(**config)
    task.prompt, task.OUTPUT_TYPE = None, task.config.output_type
    return task


# -- while a call runs ---------------------------------------------------------------------------------------

_LOCK = threading.RLock()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """lm-eval logs and draws a bar of its own for every task, and has no option against it. One call at a time, so that
    two threads do not put back each other's replacements."""
    import lm_eval.api.task as module

    logger = logging.getLogger("lm_eval")
    attribute(module, "tqdm", library="lm_eval", why="its bars would break ours")
    with _LOCK, replaced(module, "tqdm", lambda items, **_: items):
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


@contextlib.contextmanager
def templates_compiled_once() -> Iterator[None]:
    """lm-eval compiles a task's Jinja template anew for every item that it renders, which takes longer than scoring a
    small model on a GPU. Inside, each distinct template is compiled once; what it renders is the same."""
    environment = member("lm_eval.utils", "env", why="its templates are compiled once")
    with _LOCK, replaced(environment, "from_string", functools.cache(environment.from_string)):
        yield
