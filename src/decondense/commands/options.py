"""Arguments and options that several commands share: one help text each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

Model = Annotated[str, typer.Argument(help="hub id, folder, GGUF file or bundled name (smollm2-135m, gemma-3-270m)")]
Text = Annotated[str, typer.Option(help="named text (see `decondense doctor`), file, or - for stdin")]
Column = Annotated[str | None, typer.Option(help="column or field of a table or of JSON lines that holds the text")]
Windows = Annotated[int, typer.Option(help="number of windows of text")]
Tokens = Annotated[int, typer.Option(help="tokens per window")]
Seed = Annotated[int, typer.Option(help="seed of the windows' places, the bootstrap and fresh weights")]
Spectral = Annotated[bool, typer.Option("--spectral", help="also effective rank, IsoScore and the like")]
Released = Annotated[bool, typer.Option("--released", help="also the histogram as the published figures made it")]
Stack = Annotated[str, typer.Option(help="decoder or encoder, of an encoder-decoder")]
Init = Annotated[bool, typer.Option("--init", help="the same architecture, freshly initialised")]
Revision = Annotated[str | None, typer.Option(help="branch, tag or commit of a hub id")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16, float16, float64 or auto")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …; auto spreads a model too large for one")]
BestDevice = Annotated[str | None, typer.Option(help="cpu, cuda, …; default the best there is")]
Batch = Annotated[int | None, typer.Option(help="windows per forward pass; default 4, on a GPU up to 16")]
Last = Annotated[int, typer.Option(help="how many last states the statistic `last` averages")]
Bootstrap = Annotated[int, typer.Option(help="resamplings of the windows for the intervals")]
Data = Annotated[Path | None, typer.Option(help="folder of named texts; default $DECONDENSE_DATA")]
Bench = Annotated[
    str | None, typer.Option(help="folder with TASK/SPLIT.jsonl, or hub; default $DECONDENSE_BENCH, or hub")
]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="run code that comes with the model")]
Force = Annotated[bool, typer.Option("--force", help="replace a result in the output folder")]
Json = Annotated[bool, typer.Option("--json", help="print the result as JSON and nothing else")]

APART = ("model", "out_dir", "force", "as_json")  # parameters of commands that are no options of what they call


def given(parameters: Mapping[str, Any], *apart: str) -> dict[str, Any]:
    """A command's `locals()` as options for the function that it calls: in their order, without APART and `apart`, and
    with paths as text."""
    chosen = {name: value for name, value in parameters.items() if name not in (*APART, *apart)}
    return {name: str(value) if isinstance(value, Path) else value for name, value in chosen.items()}


def names_of(text: str | None) -> list[str] | None:
    """ "a, b" as ["a", "b"]; nothing as None."""
    return [name.strip() for name in (text or "").split(",") if name.strip()] or None


def texts_of(text: str | None) -> list[str] | None:
    """Several texts "a, b" as ["a", "b"]; nothing for one text, as for a file that has a comma in its name."""
    if text is None or "," not in text or os.path.exists(text):  # unlike Path.exists, False for a name too long
        return None
    return names_of(text)


def seeds_of(text: str | None) -> list[int] | None:
    """ "1, 2" as [1, 2]."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts) or len(set(parts)) < len(parts):
        raise ValueError(f"--seeds must be different whole numbers, got {text!r}: separate them by commas, like 1,2,3.")
    return [int(part) for part in parts]
