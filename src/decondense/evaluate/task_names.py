"""Names of lm-eval's tasks: where each stands, and which tasks a group or a tag means.

lm-eval reads all of its 14,000 task files to know a name, a quarter of a minute; here only the folders that have it.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["PAPER", "index_of", "leaves_of"]

PAPER = (
    "anli_r2",
    "lambada_openai",
    "openbookqa",
    "piqa",
    "truthfulqa_mc2",
    "winogrande",
    "arc_easy",
    "arc_challenge",
    "medmcqa",
    "mmlu",
)
"""The ten benchmarks of the paper, in its order."""
FOLDERS = {"anli_r2": "anli", "lambada_openai": "lambada", "truthfulqa_mc2": "truthfulqa", "arc_easy": "arc"}
FOLDERS |= {"arc_challenge": "arc", "mmlu": "mmlu/default"}
NAME = re.compile(r"""^["']?(?:task|group|tag)["']?\s*:\s*["']?([\w.-]+)["']?\s*(?:#.*)?$""", re.MULTILINE)
TAGS = re.compile(r"""^["']?tag["']?\s*:[ \t]*\n((?:\s*-\s*[\w.-]+[ \t]*\n)+)""", re.MULTILINE)


def index_of(names: Sequence[str]) -> dict[str, Any]:
    """The part of lm-eval's index of tasks that holds ``names``. All of its 14,000 names take a quarter of a minute to
    read; the folders of the wanted ones take a second."""
    import lm_eval.tasks
    from lm_eval.tasks import TaskManager

    root = Path(lm_eval.tasks.__file__).parent
    if all(name in PAPER for name in names):
        folders = [root / FOLDERS.get(name, name) for name in names]
    else:
        homes = _homes(root)
        if any(len(homes.get(name, ())) != 1 for name in names):
            return _whole_index(names)  # of several folders lm-eval would keep a tag's tasks in the last one only
        folders = [folder for name in names for folder in homes[name]]
    paths = list(dict.fromkeys(str(folder) for folder in folders))
    index = TaskManager(include_path=paths, include_defaults=False).task_index
    if not all(name in index and _known(name, index) for name in names):
        return _whole_index(names)  # a group with members in other folders
    return index


def _whole_index(names: Sequence[str]) -> dict[str, Any]:
    """All of lm-eval's index: it also knows the names that a file takes from another one by ``include``."""
    index = _all_tasks()
    for name in names:
        if name not in index:
            near = difflib.get_close_matches(name, [*PAPER, *index], n=4, cutoff=0.5)
            hint = f"the nearest names are {', '.join(dict.fromkeys(near))}" if near else "no name is near"
            raise ValueError(f"task {name!r} must be 'paper' or a task that lm-eval knows: {hint}.")
    return index


@functools.cache
def _all_tasks() -> dict[str, Any]:
    from lm_eval.tasks import TaskManager

    return TaskManager().task_index


def _homes(root: Path) -> dict[str, set[Path]]:
    """Every task, group and tag that a YAML file under ``root`` names, with its folders, without parsing the files. The
    tasks that carry a tag may lie in several."""
    homes: dict[str, set[Path]] = {}
    for file in sorted(root.glob("**/*.yaml")):
        folder = root / file.relative_to(root).parts[0]
        body = file.read_text(encoding="utf-8", errors="replace")
        names = [match[1] for match in NAME.finditer(body)]
        names += [word for block in TAGS.finditer(body) for word in re.findall(r"-\s*([\w.-]+)", block[1])]
        for name in names:
            homes.setdefault(name, set()).add(folder)
    return homes


def _known(name: str, index: dict[str, Any]) -> bool:
    """Whether all members of a group are in a partial index as well."""
    try:
        return all(leaf in index for leaf in leaves_of(name, index))
    except KeyError:
        return False


def leaves_of(name: str, index: dict[str, Any]) -> list[str]:
    """The tasks a name stands for: itself, the members of a group, or those that carry a tag."""
    entry = index[name]
    kind = entry.kind.name
    if kind == "TAG":
        members: list[str] = sorted(entry.tags)
    elif kind == "GROUP":
        listed = entry.cfg["task"]
        if any(not isinstance(member, str) for member in listed):
            raise ValueError(_inline(name, listed))
        members = listed
    else:
        return [name]
    return list(dict.fromkeys(leaf for member in members for leaf in leaves_of(member, index)))


def _inline(name: str, listed: Sequence[Any]) -> str:
    words = [str(member.get("task")) if isinstance(member, dict) else member for member in listed]
    known = [word for word in words if word in _all_tasks()]
    such = f", such as {', '.join(known[:3])}" if known else ""
    return (
        f"task {name!r} is a group that defines or changes its members in its own file, which is not supported: name "
        f"single tasks instead{such}."
    )
