"""The comparison in words and as tables, from the record alone."""

from __future__ import annotations

import csv
import io
from typing import Any

__all__ = ["csv_table", "latex", "markdown", "verdict"]


def verdict(record: dict[str, Any]) -> str:
    """What was found on the average over tasks, on which tasks, and what could have been found."""
    macro, tasks = record["macro"], record["tasks"]
    if macro is None:
        return "There is no benchmark to compare."
    seeds = record["seeds"]
    one = record["claim"] == "checkpoints"
    who = "the treated checkpoint" if one else "the treated runs"
    over = f"{macro['tasks']} tasks" if macro["tasks"] > 1 else tasks[0]["task"]
    figures = (
        f"treated − base is {points(macro['difference'], sign=True)} points on the average over {over} (95 % interval "
        f"{points(macro['low'], sign=True)} to {points(macro['high'], sign=True)}, p = {p_value(macro['p'])})"
    )
    if macro["significant"]:
        word = "better" if macro["difference"] > 0 else "worse"
        head = f"Different, {who} {'scores' if one else 'score'} {word}: {figures}"
    else:
        head = f"No difference shown: {figures}"
    found = [row for row in tasks if row["significant"]]
    if len(tasks) > 1:
        named = ", ".join(f"{row['task']} ({points(row['difference'], sign=True)})" for row in found)
        head += f"; after Holm's correction {named or 'no single task'} {'differ' if len(found) > 1 else 'differs'}"
    power = f"{100 * record['power']:.0f} %"
    smallest = points(macro["smallest_effect"])
    tail = f" A true difference of {smallest} points would have been found with {power} probability."
    if one:
        tail += " One seed in each arm: this compares two checkpoints, not two ways of training."
    else:
        tail += f" {seeds[0]} base and {seeds[1]} treated seed{'s' if seeds[1] > 1 else ''}."
    return head + "." + tail


def points(value: float | None, *, sign: bool = False) -> str:
    """A fraction in points (percent), two decimals, with a true minus sign."""
    if value is None:
        return "–"
    text = f"{100 * value:+.2f}" if sign else f"{100 * value:.2f}"
    if float(text) == 0:
        text = text.replace("-", "+") if sign else text.replace("-", "")
    return text.replace("-", "−")


def p_value(value: float) -> str:
    if value < 0.0001:
        return "< 0.0001"
    return f"{value:.4f}" if value < 0.01 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


HEADER = ("task", "items", "base", "treated", "difference", "95 % interval", "p", "p (Holm)", "could have shown")
SHORT = ("task", "items", "base", "treated", "diff.", "95 % interval", "p", "Holm", "could")


def _cells(record: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = [*record["tasks"]]
    if record["macro"] is not None and len(rows) > 1:
        rows.append({"task": "average", "p_holm": None, **record["macro"]})
    cells: list[tuple[str, ...]] = []
    for row in rows:
        cells.append(
            (
                row["task"],
                f"{row['items']}",
                points(row["base"]),
                points(row["treated"]),
                points(row["difference"], sign=True),
                f"{points(row['low'], sign=True)} to {points(row['high'], sign=True)}",
                p_value(row["p"]),
                "" if row["p_holm"] is None else p_value(row["p_holm"]),
                points(row["smallest_effect"]),
            )
        )
    return cells


def markdown(record: dict[str, Any]) -> str:
    lines = ["| " + " | ".join(HEADER) + " |", "|---" + "|---:" * (len(HEADER) - 1) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in _cells(record)]
    body = "\n".join(lines) + f"\n\n{record['verdict']}\n"
    for note in record["notes"]:
        body += f"\nNote: {note}\n"
    return body


def latex(record: dict[str, Any]) -> str:
    """A booktabs table."""
    lines = ["\\begin{tabular}{l" + "r" * (len(HEADER) - 1) + "}", "\\toprule"]
    lines += [" & ".join(_tex(cell) for cell in HEADER) + " \\\\", "\\midrule"]
    cells = _cells(record)
    for number, row in enumerate(cells):
        if number == len(cells) - 1 and row[0] == "average":
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
