"""``decondense compare``: a family, a row of checkpoints, texts or pairs, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from . import measure as one
from .terminal import err, is_main, out, output_folder, writing


def compare(
    items: Annotated[
        list[str] | None, typer.Argument(help="models, or results saved by `measure` (folder or result.json)")
    ] = None,
    family: Annotated[str | None, typer.Option(help="a family of the paper, such as qwen3 or gpt2")] = None,
    paired: Annotated[bool, typer.Option("--paired", help="items come in pairs: a b, c d, …")] = False,
    revisions: Annotated[str | None, typer.Option(help="a,b,c: the one model at each of them")] = None,
    texts: Annotated[str | None, typer.Option(help="several texts a,b,c: every model on each")] = None,
    text: one.Text = "wikitext-2",
    windows: one.Windows = 100,
    tokens: one.Tokens = 512,
    seed: one.Seed = 0,
    out_dir: Annotated[Path | None, typer.Option("--out", help="output folder; default comparison")] = None,
    spectral: one.Spectral = False,
    released: one.Released = False,
    stack: one.Stack = "decoder",
    dtype: one.Dtype = None,
    device: one.Device = None,
    batch: one.Batch = 4,
    data: one.Data = None,
    trust_remote_code: one.Trust = False,
    as_json: one.Json = False,
) -> None:
    """Compare models or saved results: heatmaps on one scale, and the trend against size or checkpoint order."""
    options: dict[str, Any] = {
        "text": text,
        "windows": windows,
        "tokens": tokens,
        "seed": seed,
        "spectral": spectral,
        "released": released,
        "stack": stack,
        "dtype": dtype,
        "device": device,
        "batch": batch,
        "data": None if data is None else str(data),
        "trust_remote_code": trust_remote_code,
    }
    names = list(items or [])
    rows = _split(revisions)
    if family is not None:
        entry = _family(family)
        names += entry["models"]
        rows = rows or entry.get("revisions")
        paired = paired or entry["kind"] == "pairs"
    run_comparison(names, options, revisions=rows, texts=_split(texts), paired=paired, out_dir=out_dir, as_json=as_json)


def run_comparison(
    items: Sequence[str],
    options: dict[str, Any],
    *,
    revisions: Sequence[str] | None = None,
    texts: Sequence[str] | None = None,
    paired: bool = False,
    out_dir: Path | None = None,
    as_json: bool = False,
) -> None:
    """Each measurement is kept in its own folder as soon as it is done, so that nothing is measured twice after an
    interruption: name the folders again."""
    with output_folder(out_dir if out_dir is not None else Path("comparison")) as folder:
        _compare_into(folder, items, options, revisions, texts, paired, as_json)


def _compare_into(
    folder: Path,
    items: Sequence[str],
    options: dict[str, Any],
    revisions: Sequence[str] | None,
    texts: Sequence[str] | None,
    paired: bool,
    as_json: bool,
) -> None:
    from ..files import write_text
    from ..meter import compare as run

    def started(name: str, number: int, total: int) -> None:
        if is_main() and not as_json:
            err.print(f"measuring {name} ({number + 1} of {total})")

    def finished(result: Any) -> None:
        if is_main():
            place = folder / "results" / _slug(result)
            with writing(folder):
                place.mkdir(parents=True, exist_ok=True)
                result.save(place / "result.json")

    comparison = run(
        items, texts=texts, revisions=revisions, paired=paired, started=started, finished=finished, **options
    )
    if not is_main():
        return
    with writing(folder):
        write_text(folder / "result.json", comparison.to_json())
        comparison.plot(folder)
    if as_json:
        print(comparison.to_json(), end="")
        return
    out.print(_table(comparison))
    for result in comparison.results:
        if not result.complete:
            err.print(f"warning: {result.label} on {result.text} is incomplete.")
    out.print(f"[bold]{comparison.verdict}[/bold]")
    out.print(f"written: {folder}/result.json, heatmaps.png, trend.png, each figure with its CSV")


def _table(comparison: Any) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("model", "text", "parameters", "Spearman", "95 %", "last states", "verdict"):
        table.add_column(name, justify="right" if name == "parameters" else "left")
    for row in comparison.rows():
        interval = "" if row["spearman_low"] is None else f"[{row['spearman_low']:.2f}, {row['spearman_high']:.2f}]"
        value = "" if row["spearman"] is None else f"{row['spearman']:.2f}"
        verdict = row["verdict"].split(":")[0]
        table.add_row(
            row["model"], row["text"], f"{row['parameters']:,}", value, interval, f"{row['last']:.3f}", verdict
        )
    return table


def _family(name: str) -> dict[str, Any]:
    from ..meter.compare import families

    known = families()
    if name not in known:
        raise ValueError(f"family must be one of {', '.join(known)}, got {name!r}.")
    return known[name]


def _split(names: str | None) -> list[str] | None:
    found = [n.strip() for n in (names or "").split(",") if n.strip()]
    return found or None


def _slug(result: Any) -> str:
    model = result.record["model"]
    parts = [one.default_name(model["name"]), model["revision"], "init" if model["init"] else None, result.text]
    return "-".join(str(p) for p in parts if p).replace(":", "-").replace("/", "-")
