"""Rows of benchmark files, checked against the task that reads them: of a field that a row lacks lm-eval makes None,
and an answer that is none of the choices it counts as wrong."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from ..hub import first_line
from ..words import list_of

TEMPLATES = ("doc_to_text", "doc_to_choice", "doc_to_target")
OPTIONAL = re.compile(r"\b(if|default|defined)\b")  # a template that may do without a field


@dataclass(frozen=True)
class Rows:
    """Rows of a file that a task reads, with their numbers in it, from 1."""

    task: str
    file: Path
    numbers: Sequence[int]
    rows: Sequence[dict[str, Any]]

    def refuse(self, at: int, why: str) -> NoReturn:
        number = f"row {self.numbers[at]}" if at < len(self.numbers) else f"item {at - len(self.numbers)}"
        raise ValueError(
            f"{number} of {str(self.file)!r} does not fit task {self.task!r}: {why}: correct the row, or take it out."
        )

    def check_fields(self, config: dict[str, Any]) -> None:
        """The fields that the templates name are there and not null. What a function reads shows when it does."""
        templates = [config.get(key) for key in TEMPLATES]
        named = {field for one in templates if not OPTIONAL.search(str(one)) for field in fields_of(one)}
        if config.get("process_docs") is not None:  # which adds fields of its own
            named &= {field for row in self.rows for field in row}
        for at, row in enumerate(self.rows):
            if missing := sorted(f for f in named if f not in row):
                self.refuse(at, f"{list_of(missing)} must be there and {'is' if len(missing) == 1 else 'are'} missing")
            if empty := sorted(f for f in named if row[f] is None):
                self.refuse(at, f"{list_of(empty)} must not be null")

    @cached_property
    def data(self) -> Any:
        """As lm-eval reads them."""
        import pyarrow
        from datasets import Dataset

        try:
            table = pyarrow.Table.from_pylist(list(self.rows))
        except (pyarrow.ArrowException, OverflowError):
            kinds: dict[str, type] = {}
            for at, row in enumerate(self.rows):
                for field, value in row.items():
                    if value is not None and kinds.setdefault(field, type(value)) is not type(value):
                        self.refuse(at, f"{field} must be of the kind that it is in the rows before, got {value!r}")
            raise
        # Dataset.from_list would look at every value to name the data, which takes longer than all the rest
        state = self.file, self.file.stat().st_size, self.file.stat().st_mtime_ns, self.numbers
        return Dataset(table, fingerprint=hashlib.sha256(repr(state).encode()).hexdigest()[:16])

    def check_items(self, task: Any, limit: int | None) -> None:
        """Prompt, choices and answer of every row can be made, up to the limit, and the answer is one of the choices.
        The task need not be a whole one, that has made its items of these rows."""
        process, items = task.config.process_docs, getattr(task, "task_docs", None)
        if items is None:
            try:
                items = self.data if process is None else process(self.data)
            except Exception as error:
                for at in range(len(self.rows)):
                    if _raises(process, self.data.select([at])):
                        self.refuse(at, _words(error))
                return
            task.features = list(items.features)
        if process is None:  # the same, and there already: reading the data takes as long as all checks
            items = self.rows
        chosen = task.OUTPUT_TYPE == "multiple_choice"
        for number, item in enumerate(islice(items, limit)):
            at = number if len(items) == len(self.numbers) else len(self.numbers) + number  # some were left out
            item, made = _Watched(item), {}
            for key in TEMPLATES if chosen else ("doc_to_text", "doc_to_target"):
                try:
                    made[key] = getattr(task, key)(item)
                except Exception as error:
                    if isinstance(error, KeyError) and item.last not in item:
                        self.refuse(at, f"{item.last} must be there and is missing")
                    fields = _shown(sorted(fields_of(getattr(task.config, key))) or [item.last], item)
                    self.refuse(at, f"{fields} cannot be read, {_words(error)}")
            if chosen:
                self._check_answer(at, task, item, made)

    def _check_answer(self, at: int, task: Any, item: Any, made: dict[str, Any]) -> None:
        choices = made["doc_to_choice"]
        if any(choice is None for choice in choices):
            self.refuse(at, f"one of its {len(choices)} choices is null")
        if callable(task.config.process_results) and GRADED not in item:
            return  # which says what is right
        key = "doc_to_text" if isinstance(made["doc_to_text"], int) else "doc_to_target"  # prompts of several inputs
        fields = [GRADED] if GRADED in item else sorted(fields_of(getattr(task.config, key))) or [item.last]
        negative = any(isinstance(item.get(field), int) and item[field] < 0 for field in fields)
        if negative or not right_of(task, item, made[key], len(choices)):
            self.refuse(at, f"{_shown(fields, item)} must name one of {len(choices)} choices")


GRADED = "mc2_targets"


def right_of(task: Any, item: Any, answer: Any, choices: int) -> list[int]:
    """The right ones among so many choices of an item; none where its answer is not among them."""
    if callable(task.config.process_results) and GRADED in item:
        labels = item[GRADED]["labels"]
        return [i for i, label in enumerate(labels) if label == 1] if len(labels) == choices else []
    if isinstance(answer, str):
        named = task.doc_to_choice(item)
        answer = named.index(answer) if answer in named else -1
    several = answer if isinstance(answer, list) else [answer]
    return [int(one) for one in several if isinstance(one, int) and 0 <= one < choices]


def fields_of(template: Any) -> set[str]:
    """What a template reads: variables of Jinja, or the field that it is the name of."""
    return _variables(template) if isinstance(template, str) else set()


@cache
def _variables(template: str) -> set[str]:
    from jinja2 import meta
    from lm_eval.utils import env

    return {template} if template.isidentifier() else meta.find_undeclared_variables(env.parse(template))


class _Watched(dict):
    """A row that knows which field was read last, as a function does not say what it reads."""

    last = ""

    def __getitem__(self, key: Any) -> Any:
        self.last = key
        return super().__getitem__(key)


def _shown(fields: Sequence[str], item: Any) -> str:
    """The fields, with what they hold where that is short."""
    plain = [f for f in fields if isinstance(item.get(f), (int, float)) or len(str(item.get(f))) <= 20]
    return list_of([f"{f} {item[f]!r}" if f in plain and f in item else f for f in fields])


def _words(error: Exception) -> str:
    return f"{type(error).__name__}, {first_line(error).rstrip('.')}"


def _raises(job: Callable[..., Any], *args: Any) -> bool:
    try:
        job(*args)
    except Exception:
        return True
    return False
