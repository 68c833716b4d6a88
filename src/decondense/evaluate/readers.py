"""Logs that other tools wrote, read from their files without the tools: lm-eval's samples (JSON lines),
inspect_ai's .eval (a zip of JSON), lighteval's details (parquet), and plain tables. Checked with lm-eval 0.4.13,
inspect_ai 0.3.285 and lighteval 0.13.0."""

from __future__ import annotations

import json
import re
import struct
import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..records import Damaged
from ..text_files import check_quotes
from ..words import perhaps_beside
from . import logs as columns
from .items import item_hash, load_run, read_as, right_share
from .logs import Log, Scores, Wanted, chance_of, field_of, hashed, numbers, one_run, others, pick
from .samples import first_line, read_samples


def read_logs(path: str | Path, wanted: Wanted | None = None) -> list[Log]:
    """Read the runs in a folder or file of any tool: one, or several where a table has several seeds."""
    wanted = wanted or Wanted()
    try:
        logs = _read(Path(path), wanted)
    except (KeyError, AttributeError, TypeError, IndexError) as error:
        raise Damaged(
            f"{str(path)!r} must be a log as its tool writes it, got one of another form "
            f"({type(error).__name__}: {error}): log it again."
        ) from error
    for log in logs:
        columns.check(log)
        for scores in log.tasks.values() if wanted.higher_is_better is not None else ():
            if scores.better_higher is None or wanted.metrics == (scores.metric,):
                scores.higher_is_better = wanted.higher_is_better
    return logs


def _read(path: Path, wanted: Wanted) -> list[Log]:
    if path.name == "items.parquet" and (path.parent / "result.json").exists():
        path = path.parent  # of an evaluation, whose record says what the items are
    if path.is_dir() and not (path / "result.json").exists():
        for pattern, reader in (
            ("samples_*.jsonl", read_samples), ("*.eval", _inspect), ("details_*.parquet", _lighteval),
        ):  # fmt: skip
            files = sorted(path.rglob(pattern))
            if files:
                return [reader(path, files, wanted)]
    if path.is_file():
        if path.suffix == ".eval":
            return [_inspect(path, [path], wanted)]
        if path.suffix == ".jsonl" and {"doc_id", "filter"} <= first_line(path).keys():
            return [read_samples(path, [path], wanted)]
        if path.suffix == ".parquet" and {"doc", "metric"} <= set(_schema(path)):
            return [_lighteval(path, [path], wanted)]
        return _tables(path, wanted)
    if not path.exists():
        what = "a folder that `decondense evaluate` wrote, another tool's log, or a table (CSV, JSON lines, parquet)"
        raise FileNotFoundError(f"no file or folder at {str(path)!r}: give {what}{perhaps_beside(path)}")
    return [columns.from_run(load_run(path), wanted)]


# -- inspect_ai ----------------------------------------------------------------------------------------------

ZSTD = 93  # a zip compression method that Python itself reads from 3.14 on
CUT = "(content truncated)"


def _inspect(path: Path, files: Sequence[Path], wanted: Wanted) -> Log:
    """Read the .eval files of one run, one per task. The summaries have every score; a question too long for them is
    read from its sample. An item that was asked in several epochs gets their mean."""
    contents = {file: _eval_file(file) for file in files}
    for file, (header, _) in contents.items():
        if header.get("status") != "success":
            raise ValueError(
                f"the log {str(file)!r} must be finished, but its status is {header.get('status')!r}: repeat it with "
                "`inspect eval-retry`."
            )
    models = list(dict.fromkeys(str(header["eval"].get("model")) for header, _ in contents.values()))
    tasks, notes = {}, []
    for task, file in one_run(path, files, lambda file: str(contents[file][0]["eval"]["task"])).items():
        tasks[task], task_notes = _inspected(task, contents[file][1], wanted, file)
        notes += task_notes
    if len(models) > 1:
        raise ValueError(f"{str(path)!r} must hold the logs of one model, got {', '.join(models)}: name files of one.")
    return Log(str(path), "inspect_ai", tasks, hashed(*files), models[0], notes=notes)


def _inspected(task: str, samples: list[dict[str, Any]], wanted: Wanted, path: Path) -> tuple[Scores, list[str]]:
    if not samples:
        return Scores([], None), []
    tables = [_flat_scores(sample.get("scores") or {}) for sample in samples]
    metrics = list(dict.fromkeys(name for table in tables for name in table))
    metric = pick(metrics, wanted, task, path)
    values: dict[str, list[float]] = {}
    firsts: dict[str, dict[str, Any]] = {}
    for sample, value in zip(samples, numbers((table.get(metric) for table in tables), task, path)):
        values.setdefault(str(sample["id"]), []).append(value)
        firsts.setdefault(str(sample["id"]), sample)
    score = np.array([float(np.mean(of)) for of in values.values()])
    epochs = {len(of) for of in values.values()}
    if len(epochs) > 1:
        raise ValueError(
            f"every item of {task!r} in {str(path)!r} must be asked in the same number of epochs, got {min(epochs)} to "
            f"{max(epochs)}: repeat the evaluation."
        )
    notes = [f"{task}: the mean over {max(epochs)} epochs of every item."] if max(epochs) > 1 else []
    if len(metrics) > 1 and not wanted.metrics:
        notes.append(f"{task}: the scorer is {metric}; the log also has {others(metrics, metric)}.")
    hashes = [item_hash([_without_ids(s.get("input")), s.get("choices")], s.get("target")) for s in firsts.values()]
    scores = Scores(
        list(values), score, None, {"inspect_ai": partial(list, hashes)},
        field_of(list(firsts.values()), lambda s: s.get("metadata") or {}, wanted.cluster, path), metric,
        chance_of([len(s.get("choices") or ()) for s in firsts.values()]),
    )  # fmt: skip
    return scores, notes


def _without_ids(question: Any) -> Any:
    """Reduce a conversation to who says what: the ids of its messages are drawn anew in every run."""
    return [[m.get("role"), m.get("content")] for m in question] if isinstance(question, list) else question


def _flat_scores(scores: dict[str, Any]) -> dict[str, Any]:
    """scorer → value, and scorer/key → value where a scorer gives several."""
    flat: dict[str, Any] = {}
    for name, score in scores.items():
        value = score.get("value")
        flat |= {f"{name}/{key}": inner for key, inner in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def _eval_file(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(header, samples)"""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: info for info in archive.infolist()}
            if "header.json" not in members:
                raise ValueError(f"the log {str(path)!r} must be finished, but has no header.json: repeat it.")

            def load(name: str) -> Any:
                return json.loads(_member(archive, path, members[name]))

            whole = [name for name in members if name.startswith("samples/")]
            samples = load("summaries.json") if "summaries.json" in members else [load(name) for name in whole]
            for number, sample in enumerate(samples):
                if CUT in json.dumps([sample.get(key) for key in ("input", "choices", "target")]):
                    samples[number] = load(f"samples/{sample['id']}_epoch_{sample['epoch']}.json")
            return load("header.json"), samples
    except (zipfile.BadZipFile, OSError, KeyError, json.JSONDecodeError, UnicodeDecodeError, struct.error) as error:
        reason = str(error).rstrip(".")
        raise Damaged(f"{str(path)!r} could not be read as a log of inspect_ai: {reason}; copy it again.") from error


def _member(archive: zipfile.ZipFile, path: Path, info: zipfile.ZipInfo) -> bytes:
    if info.compress_type != ZSTD:
        return archive.read(info)
    import pyarrow

    with path.open("rb") as file:
        file.seek(info.header_offset + 26)
        name, extra = struct.unpack("<HH", file.read(4))
        file.seek(name + extra, 1)
        packed = file.read(info.compress_size)
    return bytes(pyarrow.CompressedInputStream(pyarrow.BufferReader(packed), "zstd").read())


# -- lighteval -----------------------------------------------------------------------------------------------


SHOTS = re.compile(r"\|\d+$")  # lighteval's names end in the number of examples


def _lighteval(path: Path, files: Sequence[Path], wanted: Wanted) -> Log:
    """``details_TASK_DATE.parquet``, a file per task: the document, the model's response, the metrics."""
    tables = {file: _parquet(file) for file in files}

    def task_of(file: Path) -> str:
        return SHOTS.sub("", str(tables[file][0]["doc"]["task_name"]) if tables[file] else file.stem)

    by_task = one_run(path, files, task_of)
    tasks = {task: _details(task, tables[file], wanted, file) for task, file in by_task.items()}
    return Log(str(path), "lighteval", tasks, hashed(*files), path.name)


def _details(task: str, rows: list[dict[str, Any]], wanted: Wanted, path: Path) -> Scores:
    if not rows:
        return Scores([], None)
    docs = [row["doc"] for row in rows]
    metric = pick(rows[0]["metric"], wanted, task, path)
    values = np.array(numbers((row["metric"].get(metric) for row in rows), task, path))
    golds = [doc["gold_index"] if isinstance(doc["gold_index"], list) else [doc["gold_index"]] for doc in docs]
    logprobs = [row["model_response"].get("logprobs") or [] for row in rows]
    known = all(
        len(v) == len(doc["choices"]) > 0 and gold and set(gold) <= set(range(len(v)))
        for v, doc, gold in zip(logprobs, docs, golds)
    )
    questions = [[doc["query"], doc["choices"], row["model_response"].get("input")] for doc, row in zip(docs, rows)]
    hashes = [item_hash(question, gold) for question, gold in zip(questions, golds)]
    return Scores(
        [str(doc["id"]) for doc in docs], values, right_share(logprobs, golds) if known else None,
        {"lighteval": partial(list, hashes)},
        field_of(docs, lambda doc: doc | (doc.get("specific") or {}), wanted.cluster, path), metric,
        chance_of([len(v) for v in logprobs]),
    )  # fmt: skip


def _schema(path: Path) -> list[str]:
    from pyarrow import parquet

    with read_as("parquet", path):
        return list(parquet.read_schema(path).names)


def _parquet(path: Path) -> list[dict[str, Any]]:
    from pyarrow import parquet

    missing = {"doc", "metric", "model_response"} - set(_schema(path))
    if missing:
        raise Damaged(f"{str(path)!r} must hold details of lighteval, but lacks {', '.join(sorted(missing))}.")
    with read_as("details", path):
        return list(parquet.read_table(path, columns=["doc", "metric", "model_response"]).to_pylist())


# -- a plain table -------------------------------------------------------------------------------------------

TEXT_COLUMNS = ("item", "task", "cluster", "seed", "metric", "hash", "prompt")
TABLES = (".csv", ".jsonl", ".ndjson", ".parquet")


def _tables(path: Path, wanted: Wanted) -> list[Log]:
    """Read a table with a row per item: ``item`` and ``score``, optionally ``task``, ``cluster``, ``seed``, ``metric``,
    ``hash`` or ``prompt``. One log per seed; an item with several metrics has several rows."""
    table = _columns(path)
    missing = [name for name in ("item", "score") if name not in table]
    if missing:
        raise ValueError(
            f"{str(path)!r} must be a log of lm-eval, inspect_ai or lighteval, or a table with the columns item and "
            f"score, but it lacks {' and '.join(missing)}: it has {', '.join(table) or 'no columns'}; "
            "item says which question a row answers, in the same word in all runs."
        )
    size = len(table["item"])
    if not any(table.get("metric", ())):  # a column without a single name says nothing
        table.pop("metric", None)
    if wanted.metrics and "metric" not in table:
        table["metric"] = [wanted.metrics[0]] * size  # the scores are what the user says that they are
    cluster = wanted.cluster or ("cluster" if "cluster" in table else None)
    if cluster is not None and cluster not in table:
        raise columns.unknown_field(cluster, table, path)
    keys = [map(str, table.get(name, [default] * size)) for name, default in DEFAULTS.items()]
    parts: dict[str, dict[str, dict[str, list[int]]]] = {}
    for row, (seed, task, metric) in enumerate(zip(*keys)):
        parts.setdefault(seed, {}).setdefault(task, {}).setdefault(metric, []).append(row)
    content = hashed(path)
    logs = []
    for seed, tasks in (parts or {"": {}}).items():  # an empty table gives a log too, which `check` refuses
        name = f"{path} seed {seed}" if len(parts) > 1 else str(path)
        log = Log(name, "table", {}, f"{content} {seed}", path.stem, seed or None)
        for task, metrics in tasks.items():
            metric = pick(metrics, wanted, task, path)
            rows = metrics[metric]
            texts = {key: [str(values[row]) for row in rows] for key, values in table.items() if key in TEXT_COLUMNS}
            score = np.array(numbers((table["score"][row] for row in rows), task, path))
            if "metric" not in table and (reach := columns.beyond_shares(score)):
                raise ValueError(
                    f"{str(path)!r} must name the metric of scores that are not between 0 and 1, but those of {task!r} "
                    f"go {reach}: give --metric or a column metric; lower is then better for names such as loss, "
                    "higher for names such as score."
                )
            prompts = texts.get("hash") or texts.get("prompt")
            hashes: dict[str, Any] = {"table": partial(list, prompts)} if prompts else {}
            clusters = [str(table[cluster][row]) for row in rows] if cluster else None
            said = None if "metric" in table else wanted.higher_is_better  # of a metric without a name nothing is known
            log.tasks[task] = Scores(texts["item"], score, None, hashes, clusters, metric, higher_is_better=said)
        logs.append(log)
    return logs


DEFAULTS = {"seed": "", "task": "items", "metric": "score"}


def _columns(path: Path) -> dict[str, list[Any]]:
    import pyarrow
    from pyarrow import csv, parquet
    from pyarrow import json as json_lines

    if path.suffix not in TABLES:
        raise ValueError(
            f"{str(path)!r} must be a folder of `decondense evaluate`, a log of lm-eval, inspect_ai or lighteval, or a "
            f"table ({', '.join(TABLES)}): give one of these."
        )
    size = path.stat().st_size
    if size == 0:
        return {"item": [], "score": []}
    block = min(size + 1, 2**31 - 1)  # bytes parsed at once: a row, with its prompt, must lie in one block
    with read_as("a table", path):
        if path.suffix == ".csv":
            text = csv.ConvertOptions(column_types=dict.fromkeys(TEXT_COLUMNS, pyarrow.string()))
            lines = csv.ParseOptions(newlines_in_values=True)
            table = csv.read_csv(path, csv.ReadOptions(block_size=block), lines, text)
        elif path.suffix == ".parquet":
            table = parquet.read_table(path)
        else:
            table = json_lines.read_json(path, json_lines.ReadOptions(block_size=block))
    values = {name: table.column(name).to_pylist() for name in table.column_names}
    if path.suffix == ".csv" and any("\n" in str(value[-1]) for value in values.values() if value):
        check_quotes(path.read_text(encoding="utf-8-sig"), ",", repr(str(path)))
    return values
