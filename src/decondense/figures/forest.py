"""The forest plot of a comparison: one line per task, the average at the bottom. Reads the record only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .measurements import _save

__all__ = ["forest", "shown_range"]

INK, SEED, NONE = "#1b4965", "#8aa9bd", "#9a9a9a"


def forest(
    record: dict[str, Any],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    published: float | None = None,
) -> Path:
    """Draw ``record`` (the ``result.json`` of a comparison) to ``path`` (.png, .pdf or .svg).

    A square is the difference treated − base in points, as large as the task has items; its line is the 95 % interval;
    filled dark where Holm's correction leaves a difference. Light dots are the differences of single seeds from the
    base's mean. The grey band is what this design could have missed: differences below the smallest detectable one.
    ``published``: an average in points to draw beside ours.
    """
    from matplotlib.figure import Figure

    rows = list(record["tasks"])
    macro = record["macro"]
    if macro is not None and len(rows) > 1:
        rows.append({"task": "average", **macro})
    figure = Figure(figsize=(7.2, 1.3 + 0.36 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    largest = max(row["items"] for row in rows)
    places = range(len(rows), 0, -1)
    for place, row in zip(places, rows):
        is_average = row["task"] == "average"
        strong = row["significant"]
        colour = INK if strong or is_average else NONE
        if row["smallest_effect"] is not None:
            reach = 100 * row["smallest_effect"]
            axes.fill_betweenx([place - 0.42, place + 0.42], -reach, reach, color="#f0f0f0", lw=0, zorder=0)
        if row["low"] is not None and row["high"] is not None:
            axes.plot([100 * row["low"], 100 * row["high"]], [place, place], color=colour, lw=1.6, zorder=2)
        if len(row["treated_seeds"]) > 1:
            dots = [100 * (value - row["base"]) for value in row["treated_seeds"]]
            axes.plot(dots, [place + 0.2] * len(dots), "o", ms=3, color=SEED, zorder=3)
        size = 5 + 5 * (row["items"] / largest) ** 0.5
        axes.plot(
            100 * row["difference"],
            place,
            "D" if is_average else "s",
            ms=size,
            color=colour,
            mfc=colour if strong else "white",
            zorder=4,
        )
        p = row["p"] if is_average else row["p_holm"]
        label = f"p = {p:.2f}" if p >= 0.01 else "p < 0.01" if p >= 0.001 else "p < 0.001"
        axes.text(1.02, place, label, transform=axes.get_yaxis_transform(), va="center", fontsize=8, color="#444444")
    if macro is not None and len(rows) > 1:
        axes.axhline(1.5, color="#cccccc", lw=0.8)
    axes.axvline(0, color="black", lw=0.8, zorder=1)
    several = any(len(row["treated_seeds"]) > 1 for row in rows)
    if published is not None:
        axes.plot([published, published], [0.55, 1.45], color="#D55E00", lw=1.6, ls=(0, (3, 1.5)), zorder=3)
        axes.annotate(f" published {published:+.2f}", (published, 1.3), color="#B04A00", fontsize=8, va="center")
    axes.set_yticks(list(places), [f"{row['task']} ({row['items']:,})" for row in rows], fontsize=9)
    axes.set_ylim(0.4, len(rows) + 0.6)
    axes.set_xlim(*shown_range(rows, scale=100))
    found = f"{100 * record['power']:.0f} %"
    axes.set_xlabel(
        "treated − base, points, with 95 % interval (p of tasks after Holm)\n"
        f"grey: would be found with less than {found} probability"
        + ("; dots: treated seeds minus the base's mean" if several else ""),
        fontsize=9,
    )
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    seeds = record["seeds"]
    words = "two checkpoints" if record["claim"] == "checkpoints" else f"{seeds[0]} base and {seeds[1]} treated seeds"
    axes.set_title(title or words, fontsize=10, loc="left")
    return _save(figure, Path(path))


def shown_range(rows: Sequence[dict[str, Any]], *, scale: float) -> tuple[float, float]:
    """From where to where the axis goes: every square, dot and interval is on it. Grey bands may go on beyond it: with
    two seeds they are wider than anything there is to see."""
    ends = [0.0]
    for row in rows:
        seeds = [value - row["base"] for value in row.get("treated_seeds") or ()]
        ends += [scale * v for v in (row["difference"], row["low"], row["high"], *seeds) if v is not None]
    room = 0.05 * (max(ends) - min(ends)) or 0.01 * scale
    return min(ends) - room, max(ends) + room
