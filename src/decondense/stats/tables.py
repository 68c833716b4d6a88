"""The comparison in words and as tables, from the record alone."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

__all__ = ["cells", "csv_table", "latex", "markdown", "nats", "p_value", "p_words", "points", "verdict"]


def verdict(record: dict[str, Any]) -> str:
    """What was found on the average over tasks, on which tasks, and what could have been found. Where there is no
    benchmark the log-likelihoods are all there is to speak of."""
    if record["macro"] is not None:
        return _in_words(record, record, "points", points)
    if record["likelihood"] is not None:
        return _in_words(record, record["likelihood"], "nats", nats, "log-likelihood, ")
    return "There is nothing to compare."


def _in_words(record: dict[str, Any], part: dict[str, Any], unit: str, say: Callable[..., str], what: str = "") -> str:
    macro, tasks = part["macro"], part["tasks"]
    seeds = record["seeds"]
    one = record["claim"] == "checkpoints"
    who = "the treated checkpoint" if one else "the treated runs"
    over = f"the average over {macro['tasks']} tasks" if macro["tasks"] > 1 else tasks[0]["task"]
    reach = "no interval can be stated"
    if macro["low"] is not None and macro["high"] is not None:
        reach = f"95 % interval {say(macro['low'], sign=True)} to {say(macro['high'], sign=True)}"
    figures = (
        f"{what}treated − base is {say(macro['difference'], sign=True)} {unit} on {over} ({reach}, "
        f"{p_words(macro['p'])})"
    )
    if macro["significant"]:
        word = "better" if macro["difference"] > 0 else "worse"
        head = f"Different, {who} {'scores' if one else 'score'} {word}: {figures}"
    else:
        head = f"No difference shown: {figures}"
    found = [row for row in tasks if row["significant"]]
    if len(tasks) > 1:
        named = ", ".join(f"{row['task']} ({say(row['difference'], sign=True)})" for row in found)
        head += f"; after Holm's correction {named or 'no single task'} {'differ' if len(found) > 1 else 'differs'}"
    if macro["smallest_effect"] is None:
        tail = " What could have been found cannot be stated: the outcomes vary too little, or are too few."
    else:
        power = f"{100 * record['power']:.0f} %"
        smallest = say(macro["smallest_effect"])
        tail = f" A true difference of {smallest} {unit} would have been found with {power} probability."
    if one:
        tail += " One seed in each arm: this compares two checkpoints, not two ways of training."
    else:
        tail += f" {seeds[0]} base and {seeds[1]} treated seed{'s' if seeds[1] > 1 else ''}."
    return head + "." + tail


def points(value: float | None, *, sign: bool = False) -> str:
    """A fraction in points (percent), two decimals, with a true minus sign."""
    return "–" if value is None else _signed(100 * value, 2, sign)


def nats(value: float | None, *, sign: bool = False) -> str:
    """A log-likelihood per item, or per token of a text, four decimals."""
    return "–" if value is None else _signed(value, 4, sign)


def _signed(value: float, digits: int, sign: bool) -> str:
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.replace("-", "+") if sign else text.replace("-", "")
    return text.replace("-", "−")


def p_value(value: float) -> str:
    if value < 0.0001:
        return "< 0.0001"
    return f"{value:.4f}" if value < 0.01 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def p_words(value: float) -> str:
    text = p_value(value)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


HEADER = ("task", "items", "base", "treated", "difference", "95 % interval", "p", "p (Holm)", "could have shown")
SHORT = ("task", "items", "base", "treated", "diff.", "95 % interval", "p", "Holm", "could")


def cells(part: dict[str, Any], say: Callable[..., str] = points) -> list[tuple[str, ...]]:
    """The rows of the record, or of its likelihoods, in words: the tasks, and their average where there are several."""
    rows = [*part["tasks"]]
    if part["macro"] is not None and len(rows) > 1:
        rows.append({"task": "average", "p_holm": None, **part["macro"]})
    return [
        (
            row["task"],
            f"{row['items']}",
            say(row["base"]),
            say(row["treated"]),
            say(row["difference"], sign=True),
            "–" if row["low"] is None else f"{say(row['low'], sign=True)} to {say(row['high'], sign=True)}",
            p_value(row["p"]),
            "" if row["p_holm"] is None else p_value(row["p_holm"]),
            say(row["smallest_effect"]),
        )
        for row in rows
    ]


LIKELIHOOD = "Log-likelihood of what is right, in nats per item (per token of a text)"


def markdown(record: dict[str, Any]) -> str:
    body = ""
    if record["tasks"]:
        body += _table(cells(record)) + "\n"
    if record["likelihood"]:
        body += f"{LIKELIHOOD}:\n\n{_table(cells(record['likelihood'], nats))}\n"
    body += f"{record['verdict']}\n"
    for note in record["notes"]:
        body += f"\nNote: {note}\n"
    return body


def _table(rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(HEADER) + " |", "|---" + "|---:" * (len(HEADER) - 1) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def latex(record: dict[str, Any]) -> str:
    """A booktabs table."""
    lines = ["\\begin{tabular}{l" + "r" * (len(HEADER) - 1) + "}", "\\toprule"]
    lines += [" & ".join(_tex(cell) for cell in HEADER) + " \\\\", "\\midrule"]
    rows = cells(record)
    for number, row in enumerate(rows):
        if number == len(rows) - 1 and row[0] == "average":
            lines.append("\\midrule")
        lines.append(" & ".join(_tex(cell) for cell in row) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _tex(text: str) -> str:
    for old, new in (
        ("\\", "\\textbackslash{}"),
        ("_", "\\_"),
        ("%", "\\%"),
        ("&", "\\&"),
        ("#", "\\#"),
        ("−", "$-$"),
        ("<", "$<$"),
        ("–", "--"),
    ):
        text = text.replace(old, new)
    return text


def csv_table(record: dict[str, Any]) -> str:
    """Full precision, fractions and not points; likelihoods as further rows."""
    columns: tuple[str, ...] = (
        "outcome",
        "task",
        "items",
        "base",
        "treated",
        "difference",
        "low",
        "high",
        "test",
        "p",
        "p_holm",
    )
    columns += ("significant", "smallest_effect", "seed_sd", "item_se", "seed_se")
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for outcome, part in (("score", record), ("log-likelihood", record["likelihood"])):
        if part is None:
            continue
        rows = [*part["tasks"]]
        if part["macro"] is not None:
            rows.append({"task": "average", **part["macro"]})
        writer.writerows({"outcome": outcome, **row} for row in rows)
    return stream.getvalue()
