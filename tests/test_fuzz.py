"""Junk in, a sentence out: files and names that are damaged, absurd or hostile are taken, or refused on purpose, within
ten seconds and two gigabytes, and nothing half-written stays. Mutations are drawn from fixed seeds."""

from __future__ import annotations

import copy
import functools
import gzip
import json
import lzma
import random
import shutil
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import tiny_gguf
import torch
from train.runs import tiny, weights

import decondense as dc
from decondense import cli, models
from decondense.evaluate.harness import evaluate
from decondense.evaluate.items import load_run
from decondense.meter.compare import Comparison
from decondense.records import Record, parse
from decondense.report.page import collect, render
from decondense.studies import STUDIES, conclude
from decondense.text import open_text
from decondense.train import train
from decondense.train.folder import check_recipe, last_complete_checkpoint
from decondense.train.recipe import load_recipe, recipe_from

resource = pytest.importorskip("resource", reason="limits are set in the manner of POSIX")
RESULTS = Path(__file__).resolve().parent.parent / "results"
JUNK = [
    None, True, 0, -1, 10**9, 10**30, 10**400, 1e308, float("nan"), float("inf"), "", "x" * 50, "\0", "../..", "1e5",
    "\ud800", [], {}, [[]], {"a": {}}, [1, [2]],
]  # fmt: skip
DROP = object()
BOMBS = {
    ".xz": lambda: lzma.compress(bytes(1 << 25), preset=0) * 3,
    ".gz": lambda: gzip.compress(bytes(1 << 25), 1) * 3,
}


@pytest.fixture(autouse=True)
def _bounds(monkeypatch, tmp_path) -> Iterator[None]:
    """Two gigabytes more than there are, where the system can say so; and no hub."""
    monkeypatch.setenv("DECONDENSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("decondense.hub.hub_reachable", lambda: False)
    before = resource.getrlimit(resource.RLIMIT_AS)
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (2 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def refusal(what: object, call: Callable[..., Any], *arguments: Any, **options: Any) -> str | None:
    """The sentence, or None where it was taken. What nobody raised on purpose fails the test."""
    signal.signal(signal.SIGPROF, lambda *_: pytest.fail(f"more than 10 s: {what}"))
    signal.setitimer(signal.ITIMER_PROF, 10)  # of this process: other tests may run beside it
    try:
        call(*arguments, **options)
    except Exception as error:
        if not cli._on_purpose(error) or not isinstance(error, (ValueError, OSError)):
            error.add_note(f"made by {what}")
            raise
        return str(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a tree, of a long list the first two and the last."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys if isinstance(tree, dict) else [*keys[:2], *keys[2:][-1:]]:
        yield (*path, key)
        yield from places(tree[key], (*path, key))


def mutated(tree: Any, rng: random.Random) -> tuple[Any, str]:
    """A copy with one value dropped, replaced, cut in half or doubled, and which. Every depth is as likely."""
    tree = copy.deepcopy(tree)
    every = [path for path in places(tree) if path != ("schema",)]
    depth = rng.choice(sorted({len(path) for path in every}))
    *parents, key = rng.choice([path for path in every if len(path) == depth])
    here = tree
    for parent in parents:
        here = here[parent]
    value = here[key]
    half = value[: len(value) // 2] if isinstance(value, (list, str)) else None
    here[key] = rng.choice([*JUNK, *(half, [value, value], DROP) * 4])
    if here[key] is DROP:
        del here[key]
    return tree, f"{[*parents, key]}, which was {str(value)[:80]}, in {str(here)[:200]}"


LINE = {"items": 9, "base": 0.5, "treated": 0.6, "base_seeds": [0.5], "treated_seeds": [0.6, 0.61], "low": -0.1}
LINE |= {"difference": 0.1, "high": 0.3, "p": 0.4, "p_holm": 0.5, "test": "exact", "significant": False}
TESTED = {"tasks": [LINE | {"task": "piqa"}, LINE | {"task": "arc"}], "macro": LINE | {"tasks": 2}}
EXAMPLES = {
    "measurement": "smollm2-135m-wikitext2", "training": "studies/dose/runs/lambda-0-seed-3", "study": "studies/theory",
    "training with whole snapshots": "midtrain-smollm2-135m/exact-seed1", "evaluation": "smollm2-135m-benchmarks",
    "outcomes": "studies/dose/runs/lambda-0-seed-3/outcomes.json", "measured": "studies/text/runs/smollm2-135m-squad",
    "study of benchmarks": "studies/benchmarks", "comparison": None,
    "significance": TESTED | {
        "schema": "decondense.significance/1", "base": [{"name": "a"}], "treated": [{"name": "b"}], "seeds": [1, 2],
        "paired": False, "claim": "training", "alpha": 0.05, "power": 0.8, "likelihood": TESTED, "notes": ["n"],
        "verdict": "v",
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", EXAMPLES)
def test_records(kind, tmp_path):
    assert {kind.kind for kind in Record.by_schema.values()} <= set(EXAMPLES)
    rng, base, folder = random.Random(kind), EXAMPLES[kind], tmp_path / "r"
    folder.mkdir()
    if kind == "comparison":
        run = RESULTS / EXAMPLES["training with whole snapshots"]
        pair = [dc.load(run / f"step-000{step}.json") for step in ("000", 153)]
        base = json.loads(Comparison(pair, "order").to_json())
    elif isinstance(base, str):
        path = RESULTS / base
        if path.is_dir():
            shutil.copytree(path, folder, dirs_exist_ok=True)
        base = json.loads((path / "result.json" if path.is_dir() else path).read_text(encoding="utf-8"))
    sentences = []
    for number in range(6 if "study" in kind else 16):
        content, how = mutated(base, rng)
        text = json.dumps(content)
        (folder / "result.json").write_text(text[: rng.randrange(len(text))] if number == 0 else text, encoding="utf-8")
        sentences.append(refusal(how, lambda: repr(dc.load(folder)) + dc.load(folder).to_json()))
        if sentences[-1] is None:
            refusal(how, lambda: render(collect([folder])))
    assert any(sentences), "no mutation was refused"


@pytest.mark.parametrize("name", ["dose", "text", "benchmarks"])
def test_runs_of_a_study(name, tmp_path):
    """The conclusion, and the page, from run folders one file of which is damaged."""
    rng, folder = random.Random(name), tmp_path / "s"
    shutil.copytree(RESULTS / "studies" / name, folder)
    files = sorted((folder / "runs").glob("*/*.json"))
    sentences = []
    for file in rng.sample(files, 2):
        whole = file.read_text(encoding="utf-8")
        content, how = mutated(json.loads(whole), rng)
        file.write_text(json.dumps(content), encoding="utf-8")
        sentences.append(refusal(how, conclude, STUDIES[name], "gpu", folder))
        refusal(how, lambda file=file: render(collect([file.parent])))
        file.write_text(whole, encoding="utf-8")
    assert any(sentences), "no mutation was refused"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"correct": "012"}, "neither 0 nor 1"), ({"correct": "01"}, "2 outcomes of 3 items"),
        ({"correct": [0.5, 0.5, 2.0]}, "neither 0 nor 1"), ({"n": 4}, "3 outcomes of 4 items"),
        ({"log_share": "AAA"}, "log_share is no base64"), ({"log_share": "AAAA"}, "1.5 log-likelihoods of 3 items"),
    ],
)  # fmt: skip
def test_outcomes_are_one_of_each_item(change, sentence):
    task = {"n": 3, "items": "h", "correct": "011", "log_share": "AAAAAAAA"}
    rest = {"schema": "decondense.outcomes/1", "scores": {}, "weights": "w", "dtype": "float32"}
    parse(rest | {"outcomes": {"piqa": task}})
    assert sentence in str(refusal(change, parse, rest | {"outcomes": {"piqa": task | change}}))


def test_recipes(tmp_path):
    file = tmp_path / "r.yaml"
    full = recipe_from({"model": {"name": "m"}, "loss": {"name": "dispersion", "options": {"tau": 1.0}}}).model_dump()
    for path in [path for path in places(full) if path != ("schema",)]:
        for value in random.Random(str(path)).sample(JUNK, 10):
            content = copy.deepcopy(full)
            functools.reduce(dict.__getitem__, path[:-1], content)[path[-1]] = value
            refusal((path, value), lambda content: recipe_from(content).steps, content)
    bad = ["a: 2026-13-45", "0x_", "[" * 900, "a: " * 900, "\0", "- 1", "&a [*a]", "a: !!python/object:os.system x"]
    bad += ["model: {name: m}\nname: ../x", "model: {name: m}\n1: 2", "model: {name: m}\ndata: {tokens: .nan}", ""]
    for text in bad:
        file.write_text(text)
        assert refusal(text, load_recipe, file), text
    file.write_text("model: {name: m}")
    for setting in ("a=2026-13-45", "=", "model.name.x=1", "train.seed=-1", "name=../x", "data.tokens=1e400", "a=[["):
        assert refusal(setting, load_recipe, file, [setting]), setting


@pytest.mark.parametrize("ending", [".txt", ".jsonl", ".json", ".csv", ".parquet", ".txt.gz", ".jsonl.xz"])
def test_texts(ending, tmp_path):
    rng, file = random.Random(ending), tmp_path / f"t{ending}"
    blobs = [
        rng.randbytes(999), b"a\0b" * 9, b"\xef\xbb\xbfhello", b"\xff\xfeh", b"\x81\x8d", b"", b"a " * 10**6, b"3",
        b"[" * 10**5, b'{"text": ' * 5000, b'{"text": ' + b"9" * 5000 + b"}", b'{"text": 3}', b'{"data": [3]}',
        b'{"data": [{"paragraphs": 3}]}', b'text\n"a\rb', b"text,b\nx,2,3\n", b"text\n\0\n", b'{"text": "\\ud800"}',
    ]  # fmt: skip
    if ending == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table({"text": ["a b", "c"]}), file)
        whole = file.read_bytes()
        blobs += [whole[:i] + rng.randbytes(1) + whole[i + 1 :] for i in rng.sample(range(len(whole)), 40)]
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(file.suffix, bytes)
    packed = [pack(blob) for blob in blobs]
    for blob in (*blobs, *packed, *(b[:-9] for b in packed), *(b[:20] + b"\xff" + b[21:] for b in packed)):
        file.write_bytes(blob)
        refusal(blob[:60], lambda: open_text(file).sha256)
    if file.suffix in BOMBS:
        file.write_bytes(BOMBS[file.suffix]())
        assert "at most 64 MiB or 200 times its size" in str(refusal("a bomb", open_text, file))


def test_models(tmp_path):
    """GGUF and safetensors headers, and the values of config.json."""
    whole = tiny_gguf.write(tmp_path / "ok.gguf").read_bytes()
    base, folder, file = Path(models.resolve(tmp_path / "ok.gguf").location), tmp_path / "m", tmp_path / "x.gguf"
    blocks = whole.index(b"llama.block_count") + len("llama.block_count") + 4
    numbers = [(blocks, "<I", 10**9), (blocks, "<I", 7), *((at, "<Q", 2**62) for at in (8, 16, 24)), (24, "<Q", 10**9)]
    damaged = [whole[:at] + struct.pack(how, n) + whole[at + struct.calcsize(how) :] for at, how, n in numbers]
    for blob in (*damaged, whole[:8], whole[:200], whole[:-9]):
        file.write_bytes(blob)
        assert refusal(blob[:40], models.load, file)
    assert [p for p in (tmp_path / "cache" / "models").iterdir() if p != base] == []

    weights, config = (base / "model.safetensors").read_bytes(), json.loads((base / "config.json").read_text())
    size = struct.unpack("<Q", weights[:8])[0]
    header = json.loads(weights[8 : 8 + size])
    name, entry = next((key, value) for key, value in header.items() if key != "__metadata__")
    heads = [json.dumps(header | {name: entry | change}).encode() for change in (
        {"data_offsets": [0, 10**15]}, {"shape": [10**9, 10**9]}, {"shape": [-1]}, {"dtype": "X"})]  # fmt: skip
    files = [("model.safetensors", struct.pack("<Q", len(head)) + head + weights[8 + size :]) for head in heads]
    files += [("model.safetensors", blob + weights[8:]) for blob in (b"\xff" * 8, struct.pack("<Q", 10**9), b"")]
    files += [("model.safetensors", blob) for blob in (b"", weights[:50], weights[:-9])]
    files += [(n, junk) for n in ("config.json", "tokenizer.json") for junk in (b"[]", b"3", b"{", b"[" * 5000)]
    files += [("adapter_config.json", b"[]"), ("tokenizer_config.json", b"[]")]
    absurd = (10**9, 10**30, -1, 1.5, "x", [None])
    wrong = {"num_hidden_layers": (*absurd, 3), "hidden_size": absurd, "num_attention_heads": (0, *absurd)}
    wrong |= {"vocab_size": absurd, "architectures": (3,), "dtype": ("x",), "model_type": ([], "x")}
    files += [("config.json", json.dumps(config | {k: v}).encode()) for k, values in wrong.items() for v in values]
    for file_name, content in files:
        shutil.copytree(base, folder)
        (folder / file_name).write_bytes(content)
        assert refusal((file_name, content[-200:]), models.load, folder), (file_name, content)
        shutil.rmtree(folder)


def damaged(blob: bytes, rng: random.Random, number: int) -> list[bytes]:
    """The same with another bit somewhere, `number` times; half of it, none of it, and something else."""
    flips = [(rng.randrange(len(blob)), 1 << rng.randrange(8)) for _ in range(number)]
    return [*(blob[:at] + bytes([blob[at] ^ bit]) + blob[at + 1 :] for at, bit in flips),
            blob[: len(blob) // 2], b"", b"\xff\xfe{]"]  # fmt: skip


def test_items(make_run):
    """What is read of a damaged table is what was written, or nothing."""
    folder = make_run("run", {task: [0, 1, 0.5] * 9 for task in ("piqa", "text:a")})
    file, whole = folder / "items.parquet", load_run(folder)
    sentences = []
    for blob in damaged(file.read_bytes(), random.Random(0), 150):
        file.write_bytes(blob)
        loaded: list[Any] = []
        sentences.append(refusal(blob[:60], lambda: loaded.append(load_run(folder))))  # noqa: B023
        assert sentences[-1] or loaded[0].items == whole.items
    assert sum(map(bool, sentences)) > 100
    rows = [item for items in whole.items.values() for item in items]
    for column, value in (("correct", None), ("doc_id", None), ("correct", "x"), ("gold", ["a"]), ("task", None)):
        table = pyarrow.table({key: [value if key == column else row[key] for row in rows] for key in rows[0]})
        pyarrow.parquet.write_table(table, file)
        assert "could not be read as items" in str(refusal(column, load_run, folder)), (column, value)


def test_unfinished_evaluations(tmp_path):
    """Of a damaged `partial/` nothing is believed that is not whole: it is done again, with the same result."""
    rows = [{"goal": f"boil {i}", "sol1": "heat it", "sol2": "cool it " * i, "label": i % 2} for i in range(1, 7)]
    (tmp_path / "piqa").mkdir()
    (tmp_path / "piqa" / "validation.jsonl").write_text("\n".join(map(json.dumps, rows)))
    model, partial = models.load(tiny_gguf.write(tmp_path / "m.gguf")), tmp_path / "partial"
    options = {"tasks": "piqa", "bench": tmp_path, "batch_tokens": 40, "partial": partial}
    whole = evaluate(model, **options)
    shutil.copytree(partial, tmp_path / "kept")
    rng = random.Random(0)
    for name in sorted(p.name for p in partial.iterdir()):
        for blob in damaged((tmp_path / "kept" / name).read_bytes(), rng, 2):
            shutil.rmtree(partial)
            journal = name == "batches.jsonl"  # is asked where the benchmark is not finished
            shutil.copytree(tmp_path / "kept", partial, ignore=shutil.ignore_patterns("*.parquet" if journal else ""))
            (partial / name).write_bytes(blob)
            again: list[Any] = []
            assert refusal((name, blob[:60]), lambda: again.append(evaluate(model, **options))) is None  # noqa: B023
            assert again == [whole], (name, blob)


@pytest.mark.usefixtures("unpainted")
def test_unfinished_runs(tmp_path):
    """A checkpoint with another bit anywhere is not resumed from: the one before it is, or the run begins anew. A
    recipe that was changed is not taken for the one that was begun."""
    recipe, folder, tokens = tiny("data.tokens=1024", "train.checkpoints=2"), tmp_path / "run", tmp_path / "tokens"
    begun = train(recipe, folder, cache=tokens)
    whole = weights(begun.folder)
    (folder / "result.json").unlink()
    rng, last = random.Random(0), folder / "checkpoints" / "checkpoint-4"
    files = [p for p in last.rglob("*") if p.is_file()]
    assert len(files) > 6
    for file in (*files, folder / "recipe.yaml"):
        content = file.read_bytes()
        for blob in damaged(content, rng, 3):
            file.write_bytes(blob)
            if file in files:
                assert last_complete_checkpoint(folder) == last.with_name("checkpoint-2"), (file.name, blob[:60])
            else:
                refusal(blob[:60], check_recipe, folder, recipe, resume=True)
        file.write_bytes(content)
    assert last_complete_checkpoint(folder) == last
    for steps in ((4,), (2, 4)):
        for step in steps:
            (folder / "checkpoints" / f"checkpoint-{step}" / "optimizer.pt").write_bytes(b"PK")
        train(recipe, folder, cache=tokens, resume=True)
        assert all(torch.equal(whole[name], weight) for name, weight in weights(folder).items())
        (folder / "result.json").unlink()


@pytest.mark.parametrize(
    "arguments",
    [
        "measure ../x", "measure ../../x/y.gguf", "measure m/../../x", "measure MODEL --text ../x",
        "measure MODEL --text novels:../../secret", "measure MODEL --text novels:../../secret --data .",
        "measure MODEL --tokens 64 --windows -1", "measure MODEL --tokens 1000000000", "measure " + "x" * 5000,
        "compare --family ../x", "study ../x", "study theory --scale ../x", "report ../nowhere",
        "evaluate MODEL --tasks ../x", "train --model MODEL --set name=../../x", "train ../x.yaml",
    ],
)  # fmt: skip
def test_names_on_the_command_line(arguments, tmp_path, monkeypatch, capsys):
    work = tmp_path / "a" / "b"
    (work / "novels").mkdir(parents=True)
    (tmp_path / "a" / "secret.jsonl").write_text('{"text": "secret"}')
    model = tiny_gguf.write(tmp_path / "m.gguf")
    monkeypatch.chdir(work)
    before = sorted(tmp_path.rglob("*"))
    given = arguments.replace("MODEL", str(model)).split()
    for more in ([], ["--out", "../o"], ["--out", str(model / "o")], ["--out", "x" * 5000]):
        with pytest.raises(SystemExit) as left:
            cli.main([*given, *more])
        printed = capsys.readouterr().err
        assert left.value.code == 2
        assert printed.splitlines()[-1].startswith("error: "), printed
        assert [p for p in sorted(tmp_path.rglob("*")) if "cache" not in p.parts] == before
