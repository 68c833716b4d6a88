"""``decondense significance``: whether two ways of training differ."""

from __future__ import annotations

from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ..files import replaced, write_text
from ..words import nats, points
from . import options as o
from .terminal import fresh_folder, out, table, writing

if TYPE_CHECKING:
    from ..records import Significance

SEPARATOR, DIVIDER = "--", "\x1f"
"""What the user writes between base and treated runs, and its stand-in inside, a name that no folder has."""


class SeparatorCommand(TyperCommand):
    """Keep the first bare ``--`` as an argument: it divides base from treated runs, and options may follow it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if SEPARATOR in args:
            at = args.index(SEPARATOR)
            args = [*args[:at], DIVIDER, *args[at + 1 :]]
        return super().parse_args(ctx, args)


OPTIONS = {"cls": SeparatorCommand}  # for the registration in cli.py


def significance(
    runs: Annotated[list[str], typer.Argument(help="BASE… -- TREATED…: folders of `evaluate`, other tools' logs")],
    paired: Annotated[bool, typer.Option("--paired", help="the i-th base and treated run share their seed")] = False,
    common: Annotated[bool, typer.Option("--common", help="compare the items that all runs have")] = False,
    metric: Annotated[
        str | None, typer.Option(help="names, best first, or what a table's scores are; default acc, exact_match, …")
    ] = None,
    higher_is_better: Annotated[
        bool | None,
        typer.Option("--higher-is-better/--lower-is-better", help="of the --metric, or where its name does not say"),
    ] = None,
    filter: Annotated[str | None, typer.Option(help="lm-eval's filter; default the first in the log")] = None,
    cluster: Annotated[str | None, typer.Option(help="field that groups items, such as a subject or passage")] = None,
    matters: Annotated[float | None, typer.Option(help="smallest difference that would matter, in points")] = None,
    alpha: Annotated[float, typer.Option(help="level of the tests")] = 0.05,
    power: Annotated[float, typer.Option(help="power at which the smallest detectable effect is stated")] = 0.8,
    bootstrap: Annotated[int, typer.Option(help="resamplings of items and seeds")] = 2000,
    permutations: Annotated[int, typer.Option(help="permutations of items, where a test has no formula")] = 10_000,
    seed: Annotated[int, typer.Option(help="seed of bootstrap and permutations")] = 0,
    out_dir: Annotated[Path | None, typer.Option("--out", help="output folder; default significance")] = None,
    force: o.Force = False,
    as_json: o.Json = False,
) -> None:
    """Say whether two ways of training differ: paired tests on the same items, with seeds, intervals and power."""
    options = o.given(locals(), "runs")
    from ..figures.plot import plot
    from ..stats.significance import check_options
    from ..stats.significance import significance as compare
    from ..stats.tables import csv_table, latex, markdown

    base, treated = _divide(runs)
    check_options(alpha, power, bootstrap, permutations, seed)  # no other folder would mend them
    stale = ("table.tex", "forest.png")
    with fresh_folder(out_dir or Path("significance"), "significance", force=force) as folder:
        record = compare(base, treated, **options)
        with writing(folder), replaced(folder, stale=stale) as place:
            record.save(place)
            write_text(place / "table.md", markdown(record))
            write_text(place / "table.csv", csv_table(record))
            written = "result.json, table.md, table.csv"
            if record.tasks:
                write_text(place / "table.tex", latex(record))
                plot(record, place / "forest.png")
                written += ", table.tex, forest.png"
    if as_json:
        print(record.to_json(), end="")
        return
    _show(record)
    out.print(f"written: {folder}/{written}")


def _divide(runs: list[str]) -> tuple[list[str], list[str]]:
    if DIVIDER not in runs and len(runs) != 2:
        raise ValueError(f"put -- between base and treated runs: BASE… -- TREATED…; got {len(runs)} runs without it.")
    at = runs.index(DIVIDER) if DIVIDER in runs else 1
    return runs[:at], [run for run in runs[at:] if run != DIVIDER]


def _show(record: Significance) -> None:
    from ..stats.tables import LIKELIHOOD, SHORT, cells

    if record.tasks:
        rows = cells(record)
        _print_table(rows)
        chance = f"{100 * record.power:.0f} %"
        legend = f"could: the smallest true difference that would have been found with {chance} probability"
        if len(rows[0]) == len(SHORT):  # S/N, the last column, is there
            legend += "; S/N: how far the scores lie above chance, over the standard error of the difference"
        out.print(legend, style="dim")
    if record.likelihood:
        out.print(f"{LIKELIHOOD}:")
        _print_table(cells(record.likelihood, nats), without=("items", "p", "could") if record.tasks else ())
    if record.macro is not None and record.ranks is not None:
        macro, ranks = record.macro.model_dump(), record.ranks
        if macro["seed_sd"] is not None:
            spread = "difference of a pair of seeds" if record.paired else "seed's average"
            out.print(
                f"standard error of the average: {points(macro['seed_se'])} points from seeds, "
                f"{points(macro['item_se'])} from items; beyond what items explain a {spread} spreads by "
                f"{points(macro['seed_sd'])}"
            )
        if "bootstrap" in macro:
            low, high = (points(macro["bootstrap"][key], sign=True) for key in ("low", "high"))
            out.print(f"hierarchical bootstrap of the average: {low} to {high} points")
        if "effective" in macro:
            out.print(
                f"{macro['items']} items in {macro['clusters']} clusters tell as much as {macro['effective']:.0f} "
                "independent ones"
            )
        base, treated = (", ".join(f"{rank:.1f}" for rank in ranks[arm]) for arm in ("base", "treated"))
        out.print(f"mean rank over tasks (1 is best): base {base}; treated {treated}")
        out.print(
            f"treated ahead on {ranks['ahead']} of {len(record.tasks)} tasks, behind on {ranks['behind']} "
            f"(sign test p = {ranks['sign_test_p']:.2f})"
        )
    out.print(record.verdict, style="bold")
    for note in record.notes:
        out.print(f"note: {note}")


def _print_table(rows: list[tuple[str, ...]], *, without: tuple[str, ...] = ()) -> None:
    from ..stats.tables import SHORT

    heads = SHORT[: len(rows[0])]
    shown = [column not in without for column in heads]
    cells = [list(compress(row, shown)) for row in rows]
    narrow = ("items", "S/N", "could", "p", "base", "treated")  # what a narrow terminal does without, in this order
    out.print(table(list(compress(heads, shown)), cells, left=heads[:1], drop=narrow))
