"""A comparison of evaluations in words and as tables: the verdict, Markdown, LaTeX, CSV. From the record alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..files import csv_text
from ..records import AVERAGE, Differences, Significance, differences
from ..words import DIFFERENCE, DIFFERENCE_COLUMNS, difference_cells, first_few, nats, p_words, points

SHORT = ("task", "items", "base", "treated", "diff.", "95 % interval", "p", "Holm", "could", "S/N")
LIKELIHOOD = "Log-likelihood of what is right, in nats per item (per token of a text)"
NAMED = 3
"""The most tasks that a sentence names; the table has all."""

Compared = Significance | Differences


def verdict(record: Significance) -> str:
    """State what was found on the average over tasks, on which tasks, and what could have been found. Without any
    benchmark, the verdict is about the log-likelihoods; where the scores show no difference but the log-likelihoods do,
    it says so."""
    if record.macro is not None:
        differ = "" if record.macro.significant else _likelihoods(record)
        return _sentence(record, record, "points", points, beside=differ)
    if record.likelihood is not None:
        return _sentence(record, record.likelihood, "nats", nats, what="log-likelihood, ")
    return "There is nothing to compare."


def _likelihoods(record: Significance) -> str:
    """The tasks whose log-likelihoods differ."""
    rows = record.likelihood.tasks if record.likelihood else []
    return first_few([f"{row.task} ({nats(row.difference, sign=True)} nats)" for row in rows if row.significant], NAMED)


def _sentence(
    record: Significance, part: Compared, unit: str, say: Callable[..., str], *, what: str = "", beside: str = ""
) -> str:
    macro, tasks = part.macro, part.tasks
    assert macro is not None
    of_checkpoints = record.claim == "checkpoints"
    scope = f"the average over {macro.tasks} tasks" if macro.tasks > 1 else tasks[0].task
    reach = "no interval can be stated"
    if macro.low is not None and macro.high is not None:
        reach = f"95 % interval {say(macro.low, sign=True)} to {say(macro.high, sign=True)}"
    head = "No difference shown"
    if beside:
        head += f" in the scores, but after Holm's correction in the log-likelihoods of {beside}"
    subject = "the treated checkpoint scores" if of_checkpoints else "the treated runs score"
    direction = f"{subject} {'better' if macro.difference > 0 else 'worse'}"
    if macro.significant:
        head = f"Different, {direction}"
    finding = macro.model_dump().get("finding")
    if finding is not None:
        matters = record.settings["matters"]
        stated = f"{matters:g} {unit.removesuffix('s') if matters == 1 else unit} or more would matter"
        head = f"{finding[0].upper()}{finding[1:]} ({stated}){f', {direction}' if macro.significant else ''}"
        head += f", but after Holm's correction the log-likelihoods of {beside} differ" if beside else ""
    head += (
        f": {what}treated − base is {say(macro.difference, sign=True)} {unit} on {scope} ({reach}, {p_words(macro.p)})"
    )
    if len(tasks) > 1:
        differing = [f"{row.task} ({say(row.difference, sign=True)})" for row in tasks if row.significant]
        named = ", ".join(differing) or "no single task"
        head += f"; after Holm's correction {named} {'differ' if len(differing) > 1 else 'differs'}"
    if macro.smallest_effect is None and (macro.model_dump().get("se") or 0.0) > 0:
        tail = f"No possible difference would have been found with {100 * record.power:.0f} % probability."
    elif macro.smallest_effect is None:
        tail = "What could have been found cannot be stated: the outcomes vary too little, or are too few."
    else:
        tail = (
            f"A true difference of {say(macro.smallest_effect)} {unit} would have been found with "
            f"{100 * record.power:.0f} % probability."
        )
    base, treated = record.seeds
    unit_of_claim = f"{base} base and {treated} treated seed{'s' if treated > 1 else ''}."
    if of_checkpoints:
        unit_of_claim = "One seed in each arm: this compares two checkpoints, not two ways of training."
    return f"{head}. {tail} {unit_of_claim}"


def cells(part: Compared, say: Callable[..., str] = points) -> list[tuple[str, ...]]:
    """The table's rows as text, in the order of ``DIFFERENCE``; without the last column where no task has a
    signal-to-noise ratio, as with log-likelihoods, which have no chance level."""
    rows = [difference_cells(row, say) for row in differences(part)]
    return rows if any(row[-1] for row in rows) else [row[:-1] for row in rows]


def markdown(record: Significance) -> str:
    body = f"{_table(cells(record))}\n" if record.tasks else ""
    if record.likelihood:
        body += f"{LIKELIHOOD}:\n\n{_table(cells(record.likelihood, nats))}\n"
    return body + f"{record.verdict}\n" + "".join(f"\nNote: {note}\n" for note in record.notes)


def _table(rows: list[tuple[str, ...]]) -> str:
    heads = DIFFERENCE[: len(rows[0])]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


TEX: dict[str, str | int | None] = {"\\": "\\textbackslash{}", "−": "$-$", "<": "$<$", "–": "--"}
TEX |= {sign: f"\\{sign}" for sign in "_%&#"}


def latex(record: Significance) -> str:
    def line(row: tuple[str, ...]) -> str:
        return " & ".join(cell.translate(str.maketrans(TEX)) for cell in row) + " \\\\"

    shown = cells(record)
    rows, heads = [line(row) for row in shown], DIFFERENCE[: len(shown[0])]
    if len(rows) > 1:
        rows.insert(len(record.tasks), "\\midrule")
    head = ["\\begin{tabular}{l" + "r" * (len(heads) - 1) + "}", "\\toprule", line(heads), "\\midrule"]
    return "\n".join([*head, *rows, "\\bottomrule", "\\end{tabular}"]) + "\n"


def csv_table(record: Significance) -> str:
    """The table as CSV: full precision, fractions instead of points, log-likelihoods as further rows."""
    lines: list[dict[str, Any]] = []
    for outcome, part in (("score", record), ("log-likelihood", record.likelihood)):
        if part is None or part.macro is None:
            continue
        rows: list[dict[str, Any]] = differences(part)
        if len(rows) == 1:
            rows.append(part.macro.model_dump() | {"task": AVERAGE})
        lines += [{"outcome": outcome} | {name: row.get(name) for name in DIFFERENCE_COLUMNS} for row in rows]
    return csv_text(lines)
