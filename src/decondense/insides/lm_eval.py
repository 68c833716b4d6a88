"""Insides of lm-eval: its folder of task files and their index, the private parts of a task, and what is replaced while
one of its calls runs. Nothing stays replaced outside these calls.

lm-eval takes seconds to list its 14,000 names, because it parses every file; searching the files for names takes half
a second.
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
    """The folder of the task files: starting is fast if only the few that are wanted are read."""
    spec = importlib.util.find_spec("lm_eval")  # without importing it, which takes seconds
    folder = Path(str(spec and spec.origin)).parent / "tasks"
    if not folder.is_dir():
        raise Moved("lm_eval", "the folder lm_eval/tasks", "tasks are built from the files in it")
    return folder


@functools.cache
def homes() -> dict[str, set[Path]]:
    """Every task, group and tag that a file spells out → the folders of these files, found without parsing them. Files
    that do not end in .yaml are included by others: their names count, but are defined wherever they are included, so
    they get the folder of all tasks."""
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
    """lm-eval's index, name → entry (``kind``, ``tags``, ``cfg``, ``yaml_path``), of some folders or of all tasks."""
    why = "groups and tags stand for the tasks that lm-eval says"
    manager = member("lm_eval.tasks", "TaskManager", why=why)
    if folders is None:
        return _whole_index(manager)
    paths = list(dict.fromkeys(str(folder) for folder in folders))
    return attribute(manager(include_path=paths, include_defaults=False), "task_index", library="lm_eval", why=why)


@functools.cache
def _whole_index(manager: Any) -> dict[str, Any]:
    """The index of all tasks, each file read once and one loader class per folder. lm-eval itself reads a file again
    for every file that includes it, which is half of all its reading, and makes a class each time."""
    plain = member("lm_eval.tasks._yaml_loader", "load_yaml", why="an included file is read once")
    reader = member("lm_eval.tasks._yaml_loader", "_make_loader", why="files of a folder share one")
    loader: Any = importlib.import_module("lm_eval.tasks._yaml_loader")
    known: dict[Path, dict[str, Any]] = {}

    def once(path: Path, **how: Any) -> dict[str, Any]:
        if path not in known:
            known[path] = plain(path, **how)
        return dict(known[path])  # a copy: the caller removes entries

    # load_yaml calls the first for an included file, the second for every file
    with replaced(loader, "load_yaml", once), replaced(loader, "_make_loader", functools.cache(reader)):
        return manager().task_index


def definition(entry: Any) -> dict[str, Any]:
    """A task's YAML file with its includes and functions resolved: we change the data source in it before the task is
    built, which no public call allows."""
    why = "a task is built from lm-eval's own definition"
    load = member("lm_eval.tasks._yaml_loader", "load_yaml", why=why)
    return dict(load(entry.yaml_path, resolve_func=True))


# -- a task --------------------------------------------------------------------------------------------------


def example_count(task: Any) -> int:
    """How many rows few-shot examples can be drawn from: lm-eval fails in mid-run if there are fewer than asked for."""
    why = "the examples must suffice"
    sampler = attribute(task, "sampler", library="lm_eval", why=why)
    return len(list(attribute(sampler, "df", library="lm_eval", why=why)))


def few_shot_split(task: Any) -> str | None:
    """The split from which lm-eval draws few-shot examples; ``None`` if the task lists its own examples."""
    settings = attribute(task, "fewshot_cfg", library="lm_eval", why="the source of examples must be stated")
    if settings.split is not None:
        return settings.split
    if settings.samples is not None:
        return None
    return task.config.training_split or task.config.validation_split or task.config.test_split


def leave_item_out(task: Any, split: str) -> None:
    """Draw examples from the evaluated split, but never the item itself: lm-eval leaves it out only if that split is
    the test split by name."""
    task.config.test_split = split
    attribute(task, "fewshot_cfg", library="lm_eval", why="an item must not be its own example").split = split


def forget_prompts(task: Any) -> None:
    """Free a task's prompts, the largest thing in memory, which lm-eval keeps."""
    attribute(task, "_instances", library="lm_eval", why="prompts must not pile up over tasks")
    task._instances = None


def check_model_class(model_class: Any) -> None:
    """Raise `Moved` if lm-eval no longer has what our scorer overrides."""
    for name in OVERRIDDEN:
        attribute(model_class, name, library="lm_eval", why="the scorer puts its own in this place")


def bare_task(config: dict[str, Any]) -> Any:
    """A task of this definition without data, to which single rows can be given: if the task cannot be built from its
    rows, this one finds the row to blame."""
    why = "a row that does not fit is named"
    task = object.__new__(member("lm_eval.api.task", "ConfigurableTask", why=why))
    task._config = member("lm_eval.api.task", "TaskConfig", why=why)(**config)
    task.prompt, task.OUTPUT_TYPE = None, task.config.output_type
    return task


# -- while a call runs ---------------------------------------------------------------------------------------

_LOCK = threading.RLock()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence lm-eval's logging and its progress bar for every task, for which it has no option. One call at a time, so
    that two threads do not restore each other's replacements."""
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
    """Compile each distinct Jinja template only once while this is on; the rendered text is the same. lm-eval compiles
    a task's template for every item, which takes longer than scoring a small model on a GPU."""
    environment = member("lm_eval.utils", "env", why="its templates are compiled once")
    with _LOCK, replaced(environment, "from_string", functools.cache(environment.from_string)):
        yield
