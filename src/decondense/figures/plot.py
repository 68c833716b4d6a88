"""One figure of any result, with one set of arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..records import Comparison, Evaluation, Measurement, Significance, Training, differences
from .draw import Where
from .measured import Geometry
from .measurements import heatmap, heatmaps, trend_plot
from .tasks import forest, score_figure
from .training import training_figure


def plot(result: Any, path: Where = None, *, ax: Any = None, title: str | None = None, view: str = "pooled") -> Any:
    """Draw a result: the heatmap of a measurement or of several, side by side; the trend of a comparison; the losses of
    a training run; the scores of an evaluation; the differences of a test of significance.

    Args:
        result: what ``load`` or the function that made it returns.
        path: a .png, .svg or .pdf, or a folder, in which the file is named after the figure (heatmap.png, …). Folders
            are made; heatmaps, trends and scores have their numbers in a CSV beside the file.
        ax: your own matplotlib axes instead of a file, as many as the figure has panels.
        title: instead of the figure's own.
        view: of heatmaps: pooled, or released where that was measured.

    Returns:
        the path of the file; with ``ax`` these axes; with neither the matplotlib figure.
    """
    options: dict[str, Any] = {"ax": ax, "title": title}
    if callable(getattr(result, "record", None)):  # a comparison that `compare` returned
        result = result.record()
    if isinstance(result, Measurement):
        result = Geometry(result)
    if isinstance(result, (Evaluation, Significance)) and not result.tasks:
        raise ValueError(f"a result with tasks is needed to draw one, got {result.kind} without any.")
    match result:
        case Geometry():
            return heatmap(result, path, view=view, **options)
        case Comparison():
            rows = [row.model_dump() for row in result.rows]
            return trend_plot(rows, path, axis=result.axis, paired=result.paired, **options)
        case Training():
            return training_figure([(str(result.recipe.get("name", "run")), result)], path, **options)
        case Evaluation():
            return score_figure(result, path, **options)
        case Significance():
            return forest(differences(result), path, power=result.power, **options | {"title": title or result.arms})
        case Sequence() if result and all(isinstance(one, Geometry) for one in result):
            return heatmaps(result, path, view=view, **options)
    raise TypeError(
        "a result must be a measurement, several of them, a comparison, a training run, an evaluation or a test of "
        f"significance to be drawn, got {type(result).__name__}."
    )
