"""One line per task: the scores of an evaluation, and the forest plot of a comparison, the average at the bottom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..records import AVERAGE, WEIGHTED, Evaluation
from ..words import p_words, round_to, signed
from .chart import FAINT, INK, PALETTE, Axis, Box, Chart, Frame, Remark, Rule, Series
from .draw import Strip, Where, draw

Row = Mapping[str, Any]


def score_rows(record: Evaluation) -> list[dict[str, Any]]:
    columns = ("items", "shots", "acc", "stderr", "acc_norm", "ece", "perplexity")
    tasks = {name: task.model_dump() for name, task in record.tasks.items()}
    return [{"task": name} | {c: round_to(task.get(c)) for c in columns} for name, task in tasks.items()]


def score_chart(record: Evaluation) -> Chart:
    """Accuracy of each task with its 95 % interval over items, the average as a line."""
    tasks, average = record.tasks, record.macro_average
    places = list(range(len(tasks), 0, -1))
    values = [100 * task.acc for task in tasks.values()]
    reach = [0.0 if task.stderr is None else 196 * task.stderr for task in tasks.values()]
    hover_texts = [
        f"{name}\n{value:.2f}" + (f" ± {half:.2f}" if half else "") + f"\n{task.items:,} items"
        for (name, task), value, half in zip(tasks.items(), values, reach)
    ]
    low, high = ([v + sign * half for v, half in zip(values, reach)] for sign in (-1, 1))
    style: dict[str, Any] = {"symbol": "circle", "size": 10, "across": True, "of": hover_texts, "hover": "{of}"}
    marks: list[Any] = [Series(values, places, "accuracy, 95 % over items", low=low, high=high, **style)]
    y = Axis(ticks=list(zip(places, tasks)), range=(0.4, len(tasks) + 0.6), grid=False)
    note = "Lines: 95 % interval over items." + ("" if average is None else " Dashed: the average over tasks.")
    height = 120 + 30 * len(tasks)
    chart = Chart("Accuracy of each task", Axis("accuracy, %"), y, [Frame(marks)], height=height, note=note)
    chart.rules = [] if average is None else [Rule(100 * average, dash="dash", width=1.5)]
    chart.rows = score_rows(record)
    return chart


def score_figure(record: Evaluation, path: Where = None, **where: Any) -> Any:
    chart = score_chart(record)
    size = (7.2, 1.3 + 0.36 * len(record.tasks))
    return draw([Strip([[chart]], size, chart.note)], path, name="scores.png", rows=chart.rows, **where)


def forest_chart(title: str, rows: Sequence[Row], *, scale: float = 100.0, unit: str = "points", power: float) -> Chart:
    """One line per task, averages last. A square is the difference, larger with more items, filled if it is significant
    (for tasks after Holm's correction); its line is the 95 % interval. Small dots are single seeds. The grey band holds
    differences that this design could have missed."""
    places = list(range(len(rows), 0, -1))
    averages = sum(row["task"] in (AVERAGE, WEIGHTED) for row in rows)
    reaches = [None if row["smallest_effect"] is None else scale * row["smallest_effect"] for row in rows]
    singles = [
        (scale * (value - row["base"]), place + 0.24, number)
        for place, row in zip(places, rows)
        if len(row["treated_seeds"]) > 1
        for number, value in enumerate(row["treated_seeds"], 1)
    ]
    x, y = ([dot[i] for dot in singles] for i in (0, 1))
    hover_texts = [f"treated seed {number}: {signed(value, 2)}" for value, _, number in singles]
    marks: list[Any] = [
        Series(x, y, "single seeds" if x else "", PALETTE[1], symbol="circle", size=5, of=hover_texts, hover="{of}")
    ]
    for strong, name in ((False, "no difference shown"), (True, "differs")):
        chosen = [(place, row) for place, row in zip(places, rows) if bool(row["significant"]) is strong]
        if chosen:
            marks.append(_estimates(chosen, max(row["items"] for row in rows), scale, strong, name, unit))
    note = (
        "Squares: difference, larger with more items; lines: 95 % interval; filled: differs (tasks after Holm's "
        "correction); small dots: single seeds; grey: differences that would be found with less than "
        f"{100 * power:.0f} % probability."
    )
    ticks = [(place, f"{row['task']}  ({row['items']:,})") for place, row in zip(places, rows)]
    return Chart(
        title, Axis(f"treated − base, {unit}", _shown_range(rows, scale)),
        Axis(ticks=ticks, range=(0.4, len(rows) + 0.6), grid=False), [Frame(marks)],
        [Rule(0, colour=INK, width=1.5), *([Rule(averages + 0.5, "y")] if averages else [])],
        [Box((-r, r), (place - 0.42, place + 0.42)) for place, r in zip(places, reaches) if r is not None],
        right=[(place, p_words(_p(row))) for place, row in zip(places, rows)], height=130 + 34 * len(rows), note=note,
    )  # fmt: skip


def _estimates(
    chosen: Sequence[tuple[int, Row]], largest: int, scale: float, strong: bool, name: str, unit: str
) -> Series:
    rows = [row for _, row in chosen]
    low, high = ([None if row[end] is None else scale * row[end] for row in rows] for end in ("low", "high"))
    hover_texts = []
    for row, *ends in zip(rows, low, high):
        reach = " to ".join(signed(end, 2) for end in ends)
        hover_texts.append(f"{row['task']}\n{signed(scale * row['difference'], 2)} {unit}\n{reach}\np = {_p(row):.3g}")
    return Series(
        [scale * row["difference"] for row in rows], [place for place, _ in chosen], name,
        PALETTE[0] if strong else FAINT,
        symbol=["diamond" if row["task"] in (AVERAGE, WEIGHTED) else "square" for row in rows],
        size=[round(8 + 9 * (row["items"] / largest) ** 0.5, 1) for row in rows],
        low=low, high=high, across=True, hollow=not strong, of=hover_texts, hover="{of}",
    )  # fmt: skip


def _p(row: Row) -> float:
    return row["p"] if row.get("p_holm") is None else row["p_holm"]


def _shown_range(rows: Sequence[Row], scale: float) -> tuple[float, float]:
    """Return a range with every square, dot and interval in it. Grey bands may reach beyond: with two seeds they are
    wider than all the rest."""
    ends = [0.0]
    for row in rows:
        seeds = [value - row["base"] for value in row["treated_seeds"]]
        ends += [scale * v for v in (row["difference"], row["low"], row["high"], *seeds) if v is not None]
    room = 0.05 * (max(ends) - min(ends)) or 0.01 * scale
    return min(ends) - room, max(ends) + room


def forest(
    rows: Sequence[Row], path: Where = None, *, power: float, published: float | None = None, **where: Any
) -> Any:
    """The rows of a comparison (`records.differences`) as a figure. `published`: an average in points to draw beside
    ours."""
    chart = forest_chart("", rows, power=power)
    chart.x.title = (
        "treated − base, points, with 95 % interval (p of tasks after Holm)\n"
        f"grey: would be found with less than {100 * power:.0f} % probability"
        + ("; dots: treated seeds minus the base's mean" if max(len(row["treated_seeds"]) for row in rows) > 1 else "")
    )
    if published is not None:
        names = [row["task"] for row in rows]
        place = len(rows) - (names.index(AVERAGE) if AVERAGE in names else 0)  # a single task has no average
        line = Series([published] * 2, [place - 0.45, place + 0.45], colour=PALETTE[1], dash="dash", width=2.5)
        chart.frames[0].marks.append(line)
        chart.remarks = [Remark(f"published {signed(published, 2)}", published, place + 0.1, PALETTE[1])]
    return draw([Strip([[chart]], (7.2, 1.3 + 0.36 * len(rows)))], path, name="forest.png", **where)
