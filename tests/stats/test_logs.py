"""Logs of other tools, as these wrote them (logs/make.py), whole and spoilt."""

from __future__ import annotations

import csv
import json
import pickle
import re
import shutil
import time
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from by_hand import cli, make_item, write_run
from pyarrow import parquet

import decondense as dc
from decondense.evaluate import apart
from decondense.evaluate.items import item_hash, log_shares
from decondense.evaluate.logs import Wanted
from decondense.evaluate.readers import _eval_file, read_logs
from decondense.records import Damaged

LOGS = Path(__file__).parent / "logs"


def one(path, **wanted):
    (log,) = read_logs(path, Wanted(**wanted))
    return log


def rows_of(file: Path) -> list[dict]:
    if file.suffix == ".parquet":
        return parquet.read_table(file).to_pylist()
    return [json.loads(line) for line in file.read_text().splitlines()]


def table(path: Path, rows, **more):
    """rows: (item, score) or whole rows."""
    rows = [row if isinstance(row, dict) else dict(zip(("item", "score"), row)) | more for row in rows]
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0] if rows else ["item", "score"])
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


# -- what the tools themselves computed ----------------------------------------------------------------------


@pytest.mark.parametrize("run", ["base", "treated"])
def test_lm_eval_scores_are_those_of_its_results(run):
    (file,) = (LOGS / "lm-eval" / run).glob("results_*.json")
    results = json.loads(file.read_text())["results"]
    log = one(LOGS / "lm-eval" / run)
    assert (log.tool, set(log.tasks)) == ("lm-eval", {"nature", "sums", "words", "pages"})
    assert log.tasks["nature"].score.mean() == pytest.approx(results["nature"]["acc,none"])
    assert sorted({name.split("/")[0] for name in log.tasks["nature"].ids}) == ["plants", "stars"]
    assert log.tasks["nature"].chance == pytest.approx((12 / 3 + 8 / 2) / 20)
    for name in ("strict-match", "flexible-extract"):
        found = one(LOGS / "lm-eval" / run, filter=name).tasks["sums"]
        assert found.score.mean() == pytest.approx(results["sums"][f"exact_match,{name}"])
    words, pages = log.tasks["words"], log.tasks["pages"]
    assert np.exp(-words.likelihood.mean()) == pytest.approx(results["words"]["perplexity,none"])
    assert pages.score is None
    size = np.array([len(text) for text in PAGES])
    nats = np.sum(pages.likelihood * size) / size.sum()
    assert np.exp(-nats) == pytest.approx(results["pages"]["byte_perplexity,none"])
    norm = one(LOGS / "lm-eval" / run, metrics=("acc_norm", "acc", "exact_match")).tasks["nature"]
    expected = (12 * results["plants"]["acc_norm,none"] + 8 * results["stars"]["acc_norm,none"]) / 20
    assert norm.score.mean() == pytest.approx(expected)


PAGES = [f"one two three {word}" for word in ("four", "five", "six", "seven", "eight", "nine")]


def test_lm_eval_likelihoods_by_a_loop():
    found = one(LOGS / "lm-eval" / "base").tasks["nature"]
    (file,) = (LOGS / "lm-eval" / "base").glob("samples_plants_*")
    for sample in rows_of(file):
        values = [float(value) for value, _ in sample["filtered_resps"]]
        share = np.exp(values[int(sample["target"])]) / np.sum(np.exp(values))
        at = found.ids.index(f"plants/{sample['doc_id']}")
        assert found.likelihood[at] == pytest.approx(np.log(share))


def test_an_evaluation_of_ours_pairs_with_a_log_of_lm_eval(tmp_path):
    """The same prompts have the same hash, whoever wrote them down."""
    (file,) = (LOGS / "lm-eval" / "base").glob("samples_plants_*")
    items = []
    for sample in rows_of(file):
        arguments = [tuple(one.values()) for one in sample["arguments"].values()]
        named = {"item": item_hash(arguments, int(sample["target"])), "doc_id": sample["doc_id"]}
        items.append(make_item("plants", 0, 1 - sample["acc"], values=(-1.0, -2.0, -3.0), **named))
    ours = write_run(tmp_path / "ours", {"plants": items})
    found = dc.significance(file, ours, bootstrap=0)
    assert found.tasks[0].items == 12
    assert not [note for note in found.notes if "by id alone" in note]
    items[3]["item"] = "other"
    changed = write_run(tmp_path / "changed", {"plants": items})
    with pytest.raises(ValueError, match=r"1 of 12 items of 'plants' are not in all of them, 1 of these asked"):
        dc.significance(file, changed, bootstrap=0)


@pytest.mark.parametrize("run", ["base", "treated"])
def test_inspect_scores_are_those_of_its_header(run):
    log = one(LOGS / "inspect" / run)
    assert (log.tool, log.model) == ("inspect_ai", "mockllm/model")
    for file in (LOGS / "inspect" / run).glob("*.eval"):
        header, _ = _eval_file(file)
        for score in header["results"]["scores"]:
            found = one(file, metrics=(score["name"],)).tasks[header["eval"]["task"]]
            assert found.score.mean() == pytest.approx(score["metrics"]["accuracy"]["value"])
            assert len(found.ids) == 8
    assert log.tasks["stars"].chance == 0.5
    assert any("mean over 2 epochs" in note for note in log.notes)


def test_lighteval_scores_by_hand():
    base, treated = (one(LOGS / "lighteval" / run) for run in ("base", "treated"))
    assert (base.tool, set(base.tasks)) == ("lighteval", {"stars", "sums"})
    for log in (base, treated):
        stars = log.tasks["stars"]
        (file,) = Path(log.path).glob("details_stars*")
        for row in rows_of(file):
            at = stars.ids.index(row["doc"]["id"])
            values, gold = np.array(row["model_response"]["logprobs"]), row["doc"]["gold_index"]
            assert stars.score[at] == row["metric"]["acc"] == float(values.argmax() == gold)
            assert stars.likelihood[at] == pytest.approx(values[gold] - np.log(np.exp(values).sum()))
        assert log.tasks["sums"].metric == "em"
    assert not np.array_equal(base.tasks["stars"].score, treated.tasks["stars"].score)


@pytest.mark.parametrize("tool", ["lm-eval", "inspect", "lighteval"])
def test_the_command_and_the_function_say_the_same(tool, tmp_path):
    base, treated = LOGS / tool / "base", LOGS / tool / "treated"
    found = dc.significance(base, treated, bootstrap=50)
    done = cli("significance", base, treated, "--bootstrap", 50, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "result.json").read_text() == found.to_json()
    frame = found.to_pandas()
    assert list(frame["task"]) == [row.task for row in found.tasks] + ["average"]
    assert frame.set_index("task").loc["average", "difference"] == found.macro.difference
    assert found.plot(tmp_path / "forest.png").stat().st_size > 10_000
    assert "compares two checkpoints" in found.verdict


def test_logs_of_different_tools_pair_by_id_and_say_so():
    (sums,) = (LOGS / "inspect" / "base").glob("*sums*")
    (other,) = (LOGS / "lm-eval" / "treated").glob("samples_sums*")
    found = dc.significance(sums, other, bootstrap=0)
    assert found.tasks[0].items == 8
    assert any("matched by id alone" in note for note in found.notes)
    assert any("the metric is called match and exact_match" in note for note in found.notes)


# -- tables --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_tables(tmp_path, ending):
    rows = [
        {"item": f"0{n}", "score": (n + seed) % 3 / 2, "task": "ab"[n % 2], "seed": seed, "cluster": n // 4}
        for seed in range(3)
        for n in range(12)
    ]
    logs = read_logs(table(tmp_path / f"t.{ending}", rows))
    assert [log.seed for log in logs] == ["0", "1", "2"]
    assert logs[1].tasks["b"].ids == [f"0{n}" for n in range(1, 12, 2)]
    assert logs[1].tasks["b"].score.tolist() == [(n + 1) % 3 / 2 for n in range(1, 12, 2)]
    assert logs[0].tasks["a"].clusters == ["0", "0", "1", "1", "2", "2"]
    other = [row | {"score": 1 - row["score"]} for row in rows]
    found = dc.significance(tmp_path / f"t.{ending}", table(tmp_path / f"u.{ending}", other), bootstrap=0)
    assert (found.seeds, found.claim, len(found.tasks)) == ((3, 3), "training", 2)


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_prompts_may_have_many_lines_and_be_long(tmp_path, ending):
    """Of more than a megabyte, which is parsed at once unless one says otherwise."""
    prompts = [f'{n}:\n"Is it, so?"\n' + "word " * 30 for n in range(6000)] + ["x" * 3_000_000]
    rows = [{"item": n, "score": n % 2, "prompt": prompt} for n, prompt in enumerate(prompts)]
    (log,) = read_logs(table(tmp_path / f"t.{ending}", rows))
    assert log.tasks["items"].hashes["table"]() == prompts
    assert log.tasks["items"].score.tolist() == [row["score"] for row in rows]


def test_the_sign_of_a_metric_that_is_better_when_lower_is_turned(tmp_path):
    low = table(tmp_path / "a.csv", [(n, 2 + n % 5) for n in range(20)], metric="wer")
    high = table(tmp_path / "b.csv", [(n, 3 + n % 7) for n in range(20)], metric="wer")
    found = dc.significance(low, high, bootstrap=0)
    assert found.macro.difference < 0
    assert any("wer is better when lower, so its sign is turned" in note for note in found.notes)


@pytest.mark.parametrize(("metric", "lower"), [("exact_match", True), ("wer", False)])
def test_what_lm_eval_says_of_a_metric_counts_more_than_its_name(tmp_path, metric, lower):
    """The sign is turned once, also where a log is read in another process."""
    given = one(LOGS / "lm-eval" / "base").tasks["sums"].score
    shutil.copytree(LOGS / "lm-eval" / "base", tmp_path / "log")
    for file in (tmp_path / "log").iterdir():
        content = file.read_text().replace("exact_match", metric)
        file.write_text(content.replace(f'"{metric}": true', f'"{metric}": {str(not lower).lower()}'))
    found = one(tmp_path / "log").tasks["sums"]
    assert (found.metric, found.lower) == (metric, lower)
    for scores in (found, pickle.loads(pickle.dumps(found))):
        np.testing.assert_array_equal(scores.score, -given if lower else given)


def test_scores_that_are_no_shares_need_a_name_that_says_which_way_is_better(tmp_path):
    """Of losses, which are better when lower, the better run would be called the worse one."""
    base = table(tmp_path / "a.csv", [(n, 2 + n % 5 / 8) for n in range(20)])
    better = table(tmp_path / "b.csv", [(n, 1.75 + n % 7 / 8) for n in range(20)])
    with pytest.raises(ValueError, match=r"a.csv' must name the metric of scores .* 'items' go from 2 to 2.5: give"):
        dc.significance(base, better)
    for ending in ("csv", "jsonl"):
        unnamed = table(tmp_path / f"unnamed.{ending}", [(n, 2 + n % 5 / 8) for n in range(20)], metric=None)
        with pytest.raises(ValueError, match=r"unnamed.* must name the metric of scores"):
            dc.significance(unnamed, better)
    means = [sum(start + n % size / 8 for n in range(20)) / 20 for start, size in ((2, 5), (1.75, 7))]
    for metric, sign in ("loss", -1), ("val_NLL", -1), ("score", 1), ("lossless", 1), ("neg_log_loss", 1):
        found = dc.significance(base, better, metric=metric, bootstrap=0)
        assert found.macro.difference == pytest.approx(sign * (means[1] - means[0]))
        unit = f"items: the scores go from 1.75 to 2.5, not from 0 to 1: a point is 0.01 of {metric}"
        assert unit + ("." if sign < 0 else ", and higher counts as better.") in found.notes
    shares = [table(tmp_path / f"{k}.csv", [(n, (n + k) % 3 / 2) for n in range(20)]) for k in range(2)]
    assert not any("0.01" in note for note in dc.significance(*shares, bootstrap=0).notes)


def test_order_does_not_matter(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(n, int(rng.random() < 0.5)) for n in range(60)]
    other = [(n, int(rng.random() < 0.6)) for n in range(60)]
    first = dc.significance(table(tmp_path / "a.csv", rows), table(tmp_path / "b.csv", other), bootstrap=0)
    again = dc.significance(tmp_path / "a.csv", table(tmp_path / "c.csv", other[::-1]), bootstrap=0)
    assert (again.macro.p, again.tasks[0].gained) == (first.macro.p, first.tasks[0].gained)


def test_numbers_of_numpy_are_numbers_also_in_the_file(tmp_path):
    arms = [table(tmp_path / f"{k}.csv", [(n, (n + k) % 3 // 2) for n in range(20)]) for k in range(2)]
    plain = {"bootstrap": 0, "permutations": 50, "seed": 3, "matters": 0.5}
    numpys = {name: np.float32(value) if name == "matters" else np.int64(value) for name, value in plain.items()}
    assert dc.significance(*arms, **numpys).to_json() == dc.significance(*arms, **plain).to_json()


@pytest.mark.parametrize("pair", ["Yes No", "y n", "Correct incorrect", "TRUE False", "C I", "partial N"])
def test_scores_that_are_words_are_so_in_any_case(pair, tmp_path):
    top = 0.5 if "partial" in pair else 1
    words = dict(zip((1, 0), pair.split()))
    arms = [[(n, int(n % 5 > step)) for n in range(20)] for step in (2, 1)]
    shown = [table(tmp_path / f"w{k}.csv", [(n, words[x]) for n, x in arm]) for k, arm in enumerate(arms)]
    found = dc.significance(*shown, bootstrap=0)
    assert (found.macro.base, found.macro.treated) == (0.4 * top, 0.6 * top)


def test_a_perplexity_that_is_a_plain_number_is_a_score_and_no_likelihood(tmp_path):
    for run, step in ("base", 1), ("treated", 2):
        (file,) = (LOGS / "lm-eval" / run).glob("samples_pages_*")
        rows = rows_of(file)
        for n, row in enumerate(rows):
            del row["byte_perplexity"], row["bits_per_byte"]
            row |= {"metrics": ["word_perplexity"], "word_perplexity": 20.0 + n * step % 5}
        (tmp_path / run).mkdir()
        (tmp_path / run / file.name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = dc.significance(tmp_path / "base", tmp_path / "treated", bootstrap=0)
    assert found.likelihood is None
    assert found.macro.treated == -np.mean([20 + n * 2 % 5 for n in range(len(rows))])
    assert any(note.startswith("pages: word_perplexity is better when lower") for note in found.notes)


# -- bad input -----------------------------------------------------------------------------------------------

ROWS = [(n, n % 2) for n in range(8)]


@pytest.mark.parametrize(
    ("base", "treated", "words"),
    [
        (ROWS, [(n, 1) for n in range(4, 12)], r"8 of 12 items of 'items' are not in all \(0, 1, 2, …\)"),
        ([{"item": 1, "score": 1, "prompt": "a"}], [{"item": 1, "score": 0, "prompt": "b"}], "in other words (1)"),
        ([(1, 1)], [{"item": 1, "score": 1, "metric": "wer"}], "better when higher and 'wer' in 'b.csv' is"),
        (ROWS, ROWS, "every outcome is the same in all of them"),
        (ROWS, [*ROWS[:-1], (7, "nan")], r"must be a finite number .* 1 of the 8 of 'items' in .*b.csv' are not \(7\)"),
        (ROWS, [*ROWS[:-1], (7, "")], "every score must be a finite number"),
        (ROWS, [*ROWS[:-1], (7, "maybe")], r"one of c, correct, y, yes, .* got 'maybe' in 'items' of .*b.csv': "),
        (ROWS, [*ROWS, (0, 1)], r"an item must occur once in 'items' of .* 1 item \(0\)"),
        (ROWS, [{"item": n, "score": 1, "task": "x"} for n in range(8)], "task 'items' is missing in 1 of 2 runs"),
        (ROWS, [], "must hold items, got none"),
        (ROWS, [{"question": 1, "points": 2}], "lacks item and score: it has question, points; item says which"),
    ],
)
def test_bad_tables(tmp_path, base, treated, words):
    """A sentence, exit code 2, nothing written."""
    words = words if "\\" in words or ".*" in words else re.escape(words)
    arms = table(tmp_path / "a.csv", base), table(tmp_path / "b.csv", treated)
    with pytest.raises(ValueError, match=words):
        dc.significance(*arms)
    done = cli("significance", *arms, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_log_given_twice_is_no_second_seed(tmp_path):
    a, b = table(tmp_path / "a.csv", ROWS), table(tmp_path / "b.csv", [(n, 1) for n in range(8)])
    with pytest.raises(ValueError, match=r"two base runs are the same log"):
        dc.significance([a, shutil.copy(a, tmp_path / "copy.csv")], [b])


@pytest.mark.parametrize("tool", ["lm-eval", "inspect", "lighteval"])
def test_logs_that_are_cut_off(tool, tmp_path):
    shutil.copytree(LOGS / tool / "base", tmp_path / "log")
    for file in sorted(p for p in (tmp_path / "log").iterdir() if not p.name.startswith("results")):
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(Damaged, match=r"cut off|could not be read"):
        read_logs(tmp_path / "log")
    done = cli("significance", tmp_path / "log", LOGS / tool / "treated", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert not (tmp_path / "out").exists()


def archive(path: Path, **members) -> Path:
    """A log of inspect_ai."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.json", json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("tool", "copied"),
    [
        ("lm-eval", r"an item must occur once in 'stars'"),
        ("lighteval", r"an item must occur once in 'stars'.* 1 item"),
        ("inspect", r"must be asked in the same number of epochs, got 2 to 3"),
    ],
)
def test_items_that_are_reordered_lost_or_copied(tmp_path, tool, copied):
    file, other = (next((LOGS / tool / run).glob("*stars*")) for run in ("base", "treated"))
    header, rows = _eval_file(file) if tool == "inspect" else ({}, rows_of(file))
    place = tmp_path / file.name

    def found(chosen):
        if tool == "inspect":
            archive(place, header=header, summaries=chosen)
        else:
            table(place, chosen)
        return dc.significance(place, other, bootstrap=0).macro

    assert found(rows[::-1]).p == found(rows).p == dc.significance(file, other, bootstrap=0).macro.p
    with pytest.raises(ValueError, match=r"1 of \d+ items of 'stars' are not in all of them"):
        found([row for n, row in enumerate(rows) if row.get("id", n) != rows[0].get("id", 0)])  # in every epoch
    with pytest.raises(ValueError, match=copied):
        found([*rows, rows[0]])


def test_foreign_or_unfinished_content(tmp_path):
    (lines,) = (LOGS / "lm-eval" / "base").glob("samples_stars*")
    lines = tmp_path / lines.name
    lines.write_text("")
    with pytest.raises(ValueError, match="must hold items, got none"):
        read_logs(lines)
    lines.write_text('{"doc_id": 0, "filter": "none"}\n')
    with pytest.raises(Damaged, match=r"line 1 of .*stars.* must be a sample of lm-eval.*'arguments'"):
        read_logs(lines)
    (details,) = (LOGS / "lighteval" / "base").glob("details_stars*")
    (tmp_path / "lighteval").mkdir()
    parquet.write_table(pa.table({"a": [1]}), tmp_path / "lighteval" / details.name)
    with pytest.raises(Damaged, match="must hold details of lighteval, but lacks doc, metric, model_response"):
        read_logs(tmp_path / "lighteval")
    with pytest.raises(ValueError, match=r"must be finished, but has no header\.json"):
        read_logs(archive(tmp_path / "log.eval", something="else"))
    with pytest.raises(ValueError, match="must be finished, but its status is 'error'"):
        read_logs(archive(tmp_path / "log.eval", header=HEADER | {"status": "error"}, summaries=[]))


HEADER = {"status": "success", "eval": {"task": "t", "model": "m"}}


def test_folders_with_more_than_one_run(tmp_path):
    with pytest.raises(ValueError, match="must hold the log of one run, got 2 folders"):
        read_logs(LOGS / "lm-eval")
    for run in ("base", "treated"):
        for file in (LOGS / "lm-eval" / run).glob("samples_stars*"):
            shutil.copy(file, tmp_path / file.name)
    with pytest.raises(ValueError, match="must hold a task once, got 'stars' in samples_stars_"):
        read_logs(tmp_path)


def test_a_quote_that_is_never_closed_swallows_no_rows(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('item,score,prompt\n1,1,"One\nline"\n2,0,"Two\n3,0,Three\n')
    with pytest.raises(
        ValueError, match=r"every quote in .*t.csv' must be closed, .* opens in line 4 is not: close it"
    ):
        read_logs(path)
    path.write_text('item,score,prompt\n1,1,One\n2,0,"Two\nlines"\n')
    assert one(path).tasks["items"].ids == ["1", "2"]


def test_names_that_are_not_there():
    base, treated = LOGS / "lm-eval" / "base", LOGS / "lm-eval" / "treated"
    with pytest.raises(ValueError, match=r"must have the metric f1, got acc, acc_norm: "):
        dc.significance(base, treated, metric="f1")
    with pytest.raises(ValueError, match=r"got 'strict': did you mean 'strict-match'\?"):
        dc.significance(base, treated, filter="strict")


def test_long_questions_of_inspect_are_read_whole(tmp_path):
    """Summaries cut them: two questions that differ at the end are different questions."""
    hashes = []
    for ending in ("x", "y"):
        sample = {"id": 1, "epoch": 1, "target": "A", "scores": {"s": {"value": "C"}}}
        cut, whole = (sample | {"input": text} for text in ("aaa...\n(content truncated)", f"aaa{ending}"))
        log = archive(tmp_path / "log.eval", header=HEADER, summaries=[cut], **{"samples/1_epoch_1": whole})
        hashes += one(log).tasks["t"].hashes["inspect_ai"]()
    assert hashes[0] != hashes[1]


def test_log_shares_by_a_loop():
    rng = np.random.default_rng(0)
    items = [make_item("t", n, 0, values=tuple(-5 * rng.random(1 + n % 4)), gold=[0]) for n in range(20)]
    items[3]["gold"] = [1, 3]
    for item, found in zip(items, log_shares(items)):
        values = np.exp(item["loglikelihoods"])
        share = values.sum() if len(values) == 1 else values[item["gold"]].sum() / values.sum()
        assert found == pytest.approx(np.log(share))


def test_a_hundred_thousand_items_take_seconds(tmp_path):
    """Under 5 s on two cores; the clock here is generous, as machines that run tests are busy."""
    rng = np.random.default_rng(0)
    for name in "ab":
        rows = [
            {"item": n, "score": score, "prompt": f"question {n}"}
            for n, score in enumerate(rng.integers(0, 2, 100_000))
        ]
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    begun = time.perf_counter()
    found = dc.significance(tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert time.perf_counter() - begun < 30
    assert found.macro.items == 100_000


def test_logs_read_by_another_process_are_the_same(tmp_path, monkeypatch):
    base, treated = LOGS / "lm-eval" / "base", LOGS / "lm-eval" / "treated"
    alone = dc.significance(base, treated, bootstrap=0).to_json()
    monkeypatch.setattr(apart, "LARGE", 1)
    monkeypatch.setattr(apart, "_cores", lambda: 2)
    started = []
    start = apart._apart
    monkeypatch.setattr(apart, "_apart", lambda run, wanted: started.append([run]) or start(run, wanted))
    assert dc.significance(base, treated, bootstrap=0).to_json() == alone
    assert sorted(started) == [[base], [treated]]
    for name in ("inspect", "lighteval"):  # what is sent between processes must be plain
        for log in one(LOGS / name / "base").tasks.values():
            assert [make() for make in pickle.loads(pickle.dumps(log.hashes)).values()]
    (tmp_path / "samples_cut.jsonl").write_text('{"doc_id": 0, "filter"')
    with pytest.raises(Damaged, match=r"line 1 of .*samples_cut\.jsonl' must be an object of JSON"):
        dc.significance(base, tmp_path, bootstrap=0)
    monkeypatch.setattr(apart, "CHILD", "raise SystemExit(1)")  # a process that ends early has its share read here
    assert dc.significance(base, treated, bootstrap=0).to_json() == alone


def test_half_of_a_surrogate_pair_is_no_reason_to_refuse_a_log(tmp_path):
    (file,) = (LOGS / "lm-eval" / "base").glob("samples_stars_*")
    content = file.read_text().replace('"doc": {', '"doc": {"odd": "\\ud83d", ')
    (tmp_path / file.name).write_text(content)
    assert one(tmp_path / file.name).tasks["stars"].ids == one(file).tasks["stars"].ids
