"""The scores of an evaluation: accuracy of every task, with intervals over items."""

from __future__ import annotations

from typing import Any

from ..records import Evaluation
from ..words import round_to
from .chart import Axis, Chart, Frame, Rule, Series
from .draw import Strip, Where, draw


def score_rows(record: Evaluation) -> list[dict[str, Any]]:
    """A row for every task."""
    columns = ("items", "shots", "acc", "stderr", "acc_norm", "ece", "perplexity")
    tasks = {name: task.model_dump() for name, task in record.tasks.items()}
    return [{"task": name} | {c: round_to(task.get(c)) for c in columns} for name, task in tasks.items()]


def score_chart(record: Evaluation) -> Chart:
    """Accuracy of each task with its 95 % interval over items, the average as a line."""
    tasks, average = record.tasks, record.macro_average
    places = list(range(len(tasks), 0, -1))
    values = [100 * task.acc for task in tasks.values()]
    reach = [0.0 if task.stderr is None else 196 * task.stderr for task in tasks.values()]
    words = [
        f"{name}\n{value:.2f}" + (f" ± {half:.2f}" if half else "") + f"\n{task.items:,} items"
        for (name, task), value, half in zip(tasks.items(), values, reach)
    ]
    low, high = ([v + sign * half for v, half in zip(values, reach)] for sign in (-1, 1))
    style: dict[str, Any] = {"symbol": "circle", "size": 10, "across": True, "of": words, "hover": "{of}"}
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
