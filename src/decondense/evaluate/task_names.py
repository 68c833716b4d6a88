"""Names of lm-eval's tasks: what the user may give, and which tasks a group or a tag stands for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..insides import lm_eval as inside
from ..words import near

PAPER: tuple[str, ...] = ("anli_r2", "lambada_openai", "openbookqa", "piqa", "truthfulqa_mc2", "winogrande", "arc_easy")
PAPER += ("arc_challenge", "medmcqa", "mmlu")
"""The ten benchmarks of the paper, in its order."""
FOLDERS = {"anli_r2": "anli", "lambada_openai": "lambada", "truthfulqa_mc2": "truthfulqa", "arc_easy": "arc"}
FOLDERS |= {"arc_challenge": "arc", "mmlu": "mmlu/default"}


def names_of(tasks: str | Sequence[str]) -> list[str]:
    """ "paper" or "piqa,arc_easy" or a list, as a list without repetitions; a name that lm-eval does not have is
    refused with the nearest ones."""
    given = tasks.split(",") if isinstance(tasks, str) else list(tasks)
    names: list[str] = []
    for name in (n.strip() for n in given):
        names += [n for n in (PAPER if name == "paper" else (name,)) if n]
    if not names:
        raise ValueError(f"tasks must be 'paper' or names of lm-eval tasks, got {tasks!r}: name at least one.")
    for name in names:
        if name not in PAPER and name not in inside.homes():
            raise _unknown(name, [*inside.homes()])
    return list(dict.fromkeys(names))


def _unknown(name: str, known: Sequence[str]) -> ValueError:
    close = near(name, ["paper", *PAPER, *known], n=4, cutoff=0.5)
    hint = f"the nearest names are {', '.join(close)}" if close else "`lm-eval ls tasks` lists them"
    return ValueError(f"task {name!r} must be 'paper' or a task that lm-eval knows: {hint}.")


def index_of(names: Sequence[str]) -> dict[str, Any]:
    """The part of lm-eval's index of tasks that holds ``names``: indexing their folders takes a second, everything
    several. Everything is indexed where their folders are not enough: for a tag with tasks in several folders, of which
    lm-eval would keep only the last, for a name in an included file, and for a group with members elsewhere."""
    if all(name in PAPER for name in names):
        folders = [inside.tasks_folder() / FOLDERS.get(name, name) for name in names]
    else:
        homes = inside.homes()
        if any(len(homes.get(name, ())) != 1 or inside.tasks_folder() in homes[name] for name in names):
            return _whole_index(names)
        folders = [folder for name in names for folder in homes[name]]
    index = inside.index(folders)
    try:
        for name in names:
            leaves_of(name, index)
    except KeyError:
        return _whole_index(names)
    return index


def _whole_index(names: Sequence[str]) -> dict[str, Any]:
    index = inside.index()
    for name in names:
        if name not in index:
            raise _unknown(name, [*index])
    return index


def leaves_of(name: str, index: dict[str, Any]) -> list[str]:
    """The tasks a name stands for: itself, the members of a group, or those that carry a tag. KeyError for a member
    that the index does not have."""
    entry = index[name]
    kind = entry.kind.name
    if kind == "TAG":
        members: list[str] = sorted(entry.tags)
    elif kind == "GROUP":
        members = entry.cfg["task"]
        if any(not isinstance(member, str) for member in members):
            raise ValueError(_inline(name, members))
    else:
        return [name]
    return list(dict.fromkeys(leaf for member in members for leaf in leaves_of(member, index)))


def _inline(name: str, members: Sequence[Any]) -> str:
    listed = [str(member.get("task")) if isinstance(member, dict) else member for member in members]
    known = [task for task in listed if task in inside.homes()]
    such = f", such as {', '.join(known[:3])}" if known else ""
    return (
        f"task {name!r} is a group that defines or changes its members in its own file, which is not supported: name "
        f"single tasks instead{such}."
    )
