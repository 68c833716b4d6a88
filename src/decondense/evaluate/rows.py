"""Rows of benchmark files, checked against the task that reads them: lm-eval itself reads a missing field as None, and
counts an item as wrong whose answer is not among the choices."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from ..hub import first_line
from ..words import list_of

TEMPLATES = ("doc_to_text", "doc_to_choice", "doc_to_target")
OPTIONAL = re.compile(r"\b(if|default|defined)\b")  # in a template whose fields may be missing
GRADED = "mc2_targets"
WORD = "⟦word⟧"  # occurs in no file


@dataclass(frozen=True)
class Rows:
    """Rows of a file that a task reads, with their row numbers in the file, from 1."""

    task: str
    file: Path
    numbers: Sequence[int]
    rows: Sequence[dict[str, Any]]

    def refuse(self, which: str, why: str) -> NoReturn:
        raise ValueError(
            f"{which} of {str(self.file)!r} does not fit task {self.task!r}: {why}: correct the row, or take it out."
        )

    @cached_property
    def data(self) -> Any:
        """The rows as the dataset that lm-eval reads."""
        import pyarrow
        from datasets import Dataset

        try:
            table = pyarrow.Table.from_pylist(list(self.rows))
        except (pyarrow.ArrowException, OverflowError):
            kinds: dict[str, type] = {}
            for number, row in zip(self.numbers, self.rows):
                for field, value in row.items():
                    if value is not None and kinds.setdefault(field, type(value)) is not type(value):
                        self.refuse(
                            f"row {number}", f"{field} must be of the same kind as in the rows before, got {value!r}"
                        )
            raise
        # without a fingerprint, Dataset would hash every value for one, which takes longer than all the rest
        state = self.file, self.file.stat().st_size, self.file.stat().st_mtime_ns, self.numbers
        return Dataset(table, fingerprint=hashlib.sha256(repr(state).encode()).hexdigest()[:16])

    def check(self, task: Any, limit: int | None) -> None:
        """Refuse a row whose prompt, choices or answer cannot be made, or whose answer is not one of the choices; up to
        the limit. ``task`` may be one that has not made its items of these rows yet (``bare_task``)."""
        choice = task.OUTPUT_TYPE == "multiple_choice"
        templates = {key: getattr(task.config, key) for key in (TEMPLATES if choice else (TEMPLATES[0], TEMPLATES[2]))}
        needed = {key: () if OPTIONAL.search(str(one)) else fields_of(one) for key, one in templates.items()}
        items = self._items(task)
        whole = len(items) == len(self.rows)  # else the task left some rows out
        for at, item in enumerate(islice(items, limit)):
            which, source = (f"row {self.numbers[at]}", self.rows[at]) if whole else (f"item {at}", item)
            outputs = {}
            row = _Watched((f, v) for f, v in item.items() if v is not None or f in source)  # drop the dataset's nulls
            for key, template in templates.items():
                row.read = []
                try:
                    outputs[key] = getattr(task, key)(row)
                except Exception as error:
                    self._refuse_unfit(which, row, needed[key] or row.read)
                    shown = _shown(sorted(fields_of(template)) or row.read[-1:], item)
                    self.refuse(which, f"{shown} cannot be read, {error_text(error)}")
                nulls = [field for field in row.read if row.get(field) is None]
                self._refuse_unfit(which, row, needed[key] or [f for f in nulls if _shows(getattr(task, key), row, f)])
            if choice:
                self._check_answer(which, task, row, outputs)

    def _items(self, task: Any) -> Sequence[dict[str, Any]]:
        """The items that the task makes of the rows. A null that the task's own function reads is refused here, as the
        items no longer show it."""
        process, built = task.config.process_docs, getattr(task, "task_docs", None)
        if process is None:  # return the rows: reading them from the dataset takes as long as all checks
            task.features = list((self.data if built is None else built).features)
            return self.rows
        try:
            items = process(self.data) if built is None else built
            task.features = list(items.features)
        except Exception:
            items = None
        one_of_each = items is not None and len(items) == len(self.rows)
        for at, row in enumerate(self.rows):
            nulls = [field for field, value in row.items() if value is None]
            # trying every null takes long: only where no items could be made, or where the item says None
            if items is None or (nulls and one_of_each and "None" in json.dumps(items[at], default=str)):
                which = f"row {self.numbers[at]}"
                self._refuse_unfit(which, row, [f for f in nulls if _shows(partial(_made, process, apart=f), row, f)])
                outcome, failed = _outcome(partial(_made, process), row)
                if failed:
                    self.refuse(which, outcome)
        return items or []

    def _refuse_unfit(self, which: str, row: dict[str, Any], fields: Collection[str]) -> None:
        if missing := sorted(f for f in fields if f not in row):
            self.refuse(which, f"{list_of(missing)} must be there and {'is' if len(missing) == 1 else 'are'} missing")
        if empty := sorted({f for f in fields if row.get(f) is None}):
            self.refuse(which, f"{list_of(empty)} must not be null")

    def _check_answer(self, which: str, task: Any, item: Any, outputs: dict[str, Any]) -> None:
        choices = outputs["doc_to_choice"]
        if any(choice is None for choice in choices):
            self.refuse(which, f"one of its {len(choices)} choices is null")
        if callable(task.config.process_results) and GRADED not in item:
            return  # process_results decides itself what is right
        # a task with several inputs has the number of the right one in doc_to_text
        key = "doc_to_text" if isinstance(outputs["doc_to_text"], int) else "doc_to_target"
        fields = [GRADED] if GRADED in item else sorted(fields_of(getattr(task.config, key))) or item.read[-1:]
        negative = any(isinstance(item.get(field), int) and item[field] < 0 for field in fields)
        if negative or not right_of(task, item, outputs[key], len(choices)):
            self.refuse(which, f"{_shown(fields, item)} must name one of {len(choices)} choices")


def right_of(task: Any, item: Any, answer: Any, choices: int) -> list[int]:
    """The numbers of the right ones among the ``choices`` of an item; empty where its answer is not among them."""
    if callable(task.config.process_results) and GRADED in item:
        labels = item[GRADED]["labels"]
        return [i for i, label in enumerate(labels) if label == 1] if len(labels) == choices else []
    if isinstance(answer, str):
        choice_texts = task.doc_to_choice(item)
        answer = choice_texts.index(answer) if answer in choice_texts else -1
    numbers = answer if isinstance(answer, list) else [answer]
    return [int(one) for one in numbers if isinstance(one, int) and 0 <= one < choices]


def fields_of(template: Any) -> set[str]:
    """The fields that a template reads: its Jinja variables, or the one field that it names."""
    return _variables(template) if isinstance(template, str) else set()


@cache
def _variables(template: str) -> set[str]:
    from jinja2 import meta
    from lm_eval.utils import env

    return {template} if template.isidentifier() else meta.find_undeclared_variables(env.parse(template))


class _Watched(dict):
    """A row that records which of its fields are read, since a function does not declare them."""

    read: list[str]

    def __getitem__(self, key: Any) -> Any:
        self.read.append(key)
        return super().__getitem__(key)


def _made(process: Callable[..., Any], row: dict[str, Any], *, apart: str = "") -> list[dict[str, Any]]:
    """What a task's function makes of a row, without the field `apart`."""
    from datasets import Dataset

    return [{key: one[key] for key in one if key != apart} for one in process(Dataset.from_list([row]))]


def _shows(make: Callable[..., Any], row: dict[str, Any], field: str) -> bool:
    """Whether the null in a field harms what is made of the row: with a word in its place the error changes or is gone,
    or the word stands where None stood. A function that handles null itself does neither."""
    outcome, failed = _outcome(make, row)
    with_word, _ = _outcome(make, row | {field: WORD})
    return with_word != outcome and (failed or with_word.replace(WORD, "None") == outcome)


def _outcome(make: Callable[..., Any], row: dict[str, Any]) -> tuple[str, bool]:
    """What is made of a row, or the error, in words; and whether it is an error."""
    try:
        return str(make(row)), False
    except Exception as error:
        return error_text(error), True


def _shown(fields: Sequence[str], item: Any) -> str:
    """The names of the fields, each with its value where that is short."""
    return list_of(f"{f} {item[f]!r}" if f in item and len(str(item[f])) <= 20 else f for f in fields)


def error_text(error: Exception) -> str:
    return f"{type(error).__name__}, {first_line(error)}"
