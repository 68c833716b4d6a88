"""Which tasks a name stands for, their shots, and their rows from local files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from decondense.evaluate import tasks
from decondense.evaluate.rows import Rows
from decondense.evaluate.task_names import index_of, leaves_of, names_of
from decondense.insides import lm_eval as inside


def test_names():
    assert names_of("paper") == list(tasks.PAPER)
    assert names_of("piqa, paper,piqa")[:2] == ["piqa", "anli_r2"]
    assert len(names_of("piqa,paper")) == 10
    with pytest.raises(ValueError, match="name at least one"):
        names_of(" , ")


@pytest.mark.parametrize(
    ("name", "shots", "expected"),
    [("arc_easy", "gpt2", 1), ("mmlu", "qwen3", 5), ("piqa", "qwen3", 0), ("mmlu", "zero", 0), ("piqa", "3", 3),
     ("hellaswag", "gpt2", None), ("piqa", 1.5, 1)],
)  # fmt: skip
def test_shots(name, shots, expected):
    assert tasks.shots_for(name, shots) == expected


@pytest.mark.parametrize("shots", ["gpt3", "-1", ""])
def test_bad_shots(shots):
    with pytest.raises(ValueError, match="shots must be gpt2, qwen3, zero or a number"):
        tasks.shots_for("piqa", shots)


@pytest.fixture(scope="module")
def paper(bench):
    return {b.name: b for b in tasks.build(names_of("paper"), bench, shots="qwen3")}


def test_all_ten_from_local_files(paper):
    sizes = {name: sum(len(t.eval_docs) for t in b.tasks.values()) for name, b in paper.items()}
    assert list(sizes) == list(tasks.PAPER)
    assert [*sizes.values()] == [1000, 5153, 500, 1838, 817, 1267, 2376, 1172, 4183, 14042]
    assert len(paper["mmlu"].tasks) == 57
    assert {b.name: b.shots for b in paper.values() if b.shots} == dict.fromkeys(tasks.FEWSHOT, 5)


def test_where_examples_come_from(paper, bench):
    assert paper["mmlu"].fewshot_source == "split dev"
    assert "evaluated split (test), the item itself left out" in paper["arc_easy"].fewshot_source
    assert "evaluated split (validation), the item itself left out" in paper["medmcqa"].fewshot_source
    assert paper["piqa"].fewshot_source == "none"
    assert tasks.build(["anli_r2"], bench, shots=1)[0].fewshot_source == "split dev_r2"


@pytest.mark.parametrize(("name", "split"), [("piqa", "validation"), ("arc_easy", "test")])
def test_the_item_itself_is_never_its_own_example(name, split, bench, tmp_path):
    """With four rows and three examples every other row is an example. lm-eval alone leaves the item out only where
    the few-shot split is the test split by name."""
    (tmp_path / name).mkdir()
    rows = tasks.read_rows(bench / name / f"{split}.jsonl.gz")[:4]
    (tmp_path / name / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (benchmark,) = tasks.build([name], tmp_path, shots=3)
    task = benchmark.tasks[name]
    assert split in benchmark.fewshot_source
    field = "goal" if name == "piqa" else "question"
    for document in task.eval_docs:
        for _ in range(5):
            context = task.fewshot_context(document, num_fewshot=3)
            assert [context.count(f"Question: {row[field]}\n") for row in rows] == [1, 1, 1, 1]


def test_prompts_are_those_of_lm_eval(paper):
    """Literally what the definition in lm-eval's YAML says, for one task of each kind."""
    task = paper["piqa"].tasks["piqa"]
    row = task.eval_docs[0]
    assert task.doc_to_text(row) == f"Question: {row['goal']}\nAnswer:"
    task = paper["mmlu"].tasks["mmlu_anatomy"]
    context = task.fewshot_context(task.eval_docs[0], num_fewshot=5)
    assert context.startswith("The following are multiple choice questions (with answers) about anatomy.\n\n")
    assert context.count("\nAnswer:") == 6


@pytest.mark.parametrize("name", ["gpqa", "mgsm_direct", "m_mmlu"])
def test_names_that_no_yaml_file_spells_out_are_asked_of_lm_eval(name, tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"task '\w+' needs the folder '{name}'"):
        tasks.build([name], tmp_path)


def test_every_name_of_lm_eval_is_spelled_out_somewhere():
    """Else a right name would be refused. It stands here, where its whole index is made for others as well."""
    homes = inside.homes()
    assert [name for name in inside.index() if name not in homes] == []
    files = {name: entry.yaml_path for name, entry in inside.index().items() if entry.yaml_path}
    assert [name for name, file in files.items() if not any(map(file.is_relative_to, homes[name]))] == []
    assert len(files) > 10_000


def test_a_tag_stands_for_its_tasks_in_all_folders():
    leaves = leaves_of("social_bias", index_of(["social_bias"]))
    assert {"winogender_all", "bbq", "simple_cooccurrence_bias"} <= set(leaves)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("openllm", "group that defines or changes its members .*: name single tasks instead, such as arc_challenge"),
        ("tmlu", "group that defines or changes its members .*: name single tasks instead[.]"),
        ("fda", "defined by a Python class, not in YAML, which is not supported: choose another task"),
        ("wikitext", "is a text without questions: score it as a text, with --text"),
        ("scrolls", "a task that lm-eval knows: the nearest names are scrolls_"),  # a tag of Python classes only
    ],
)
def test_names_that_cannot_be_built(name, words, tmp_path):
    with pytest.raises(ValueError, match=f"task '{name}' .*{words}"):
        tasks.build([name], tmp_path)


def test_missing_data(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist: give 'hub' or a folder"):
        tasks.bench_folder(tmp_path / "nowhere")
    (tmp_path / "piqa").mkdir()
    with pytest.raises(FileNotFoundError, match=r"scored on the split 'validation', but .* holds no validation.jsonl"):
        tasks.build(["piqa"], tmp_path)
    with pytest.raises(FileNotFoundError, match=r"the folder 'arc_easy' .* piqa: put it there, or .* --bench hub\.$"):
        tasks.build(["arc_easy"], tmp_path)
    with pytest.raises(OSError, match=r"'piqa' \(baber/piqa\) is on the datasets hub, which cannot be reached"):
        tasks.build(["piqa"], None)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("validation.jsonl.gz", gzip.compress(b'{"goal": "x"', mtime=0)[:-3], "could not be read as rows"),
        (
            "validation.jsonl.gz",
            gzip.compress(b'{"goal": "x"}', mtime=0)[:12] + b"\xff" * 9,
            "could not be read as rows",
        ),
        ("validation.jsonl", b"[1, 2]\n", "must hold one object per item"),
        (
            "validation.jsonl",
            b'{"goal": "x", "label": 0}\n',
            "row 1 of '.*validation.jsonl' does not fit task 'piqa': sol1 and sol2 must be there and are missing",
        ),
    ],
)
def test_damaged_files(name, content, words, tmp_path):
    (tmp_path / "piqa").mkdir()
    (tmp_path / "piqa" / name).write_bytes(content)
    with pytest.raises(ValueError, match=words):
        tasks.build(["piqa"], tmp_path)


ROWS = [{"goal": f"g{i}", "sol1": "a", "sol2": "b", "label": 0} for i in range(3)]


GOOD: dict[str, dict] = {
    "piqa": ROWS[0],
    "anli_r2": {"premise": "p", "hypothesis": "h", "label": 0},
    "arc_easy": {"question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "A"},
    "openbookqa": {"question_stem": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "A"},
    "winogrande": {"sentence": "a _ b", "option1": "x", "option2": "y", "answer": "1"},
    "medmcqa": {"question": "q", "opa": "a", "opb": "b", "opc": "c", "opd": "d", "cop": 0, "exp": None},
    "truthfulqa_mc2": {"question": "q", "mc2_targets": {"choices": ["a", "b"], "labels": [1, 0]}},
    "lambada_openai": {"text": "the last word"},
    "hellaswag": {"ctx_a": "a", "ctx_b": "b", "activity_label": "c", "endings": ["x", "y"], "label": "0"},
}


def with_row(task: str, folder: Path, bad: dict, at: int = 1) -> Path:
    """A folder whose row `at` (from 0) of `task` is changed; a field that is ... is left out."""
    rows = [GOOD[task] | {"id": number} for number in range(3)]
    rows[at] = {key: value for key, value in (rows[at] | bad).items() if value is not ...}
    split = {"piqa": "validation", "winogrande": "validation", "medmcqa": "validation", "anli_r2": "test_r2",
             "truthfulqa_mc2": "validation", "hellaswag": "validation"}.get(task, "test")  # fmt: skip
    (folder / task).mkdir()
    (folder / task / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(
    ("task", "bad", "why"),
    [
        ("piqa", {"sol2": ...}, "sol2 must be there and is missing"),
        ("piqa", {"sol2": None}, "sol2 must not be null"),
        ("piqa", {"label": 7}, "label 7 must name one of 2 choices"),
        ("piqa", {"label": -1}, "label -1 must name one of 2 choices"),
        ("anli_r2", {"label": 3}, "label 3 cannot be read, UndefinedError, .*"),
        ("anli_r2", {"label": -1}, "label -1 must name one of 3 choices"),
        ("arc_easy", {"answerKey": "E"}, "answerKey 'E' and choices cannot be read, ValueError, .*"),
        ("openbookqa", {"question_stem": ...}, "question_stem must be there and is missing"),
        ("winogrande", {"option2": ...}, "option2 must be there and is missing"),
        ("winogrande", {"answer": "3"}, "answer '3' cannot be read, KeyError, '3'"),
        ("winogrande", {"sentence": "no gap"}, "sentence 'no gap' cannot be read, ValueError, substring not found"),
        ("medmcqa", {"opd": ...}, "opd must be there and is missing"),
        ("medmcqa", {"cop": 4}, "cop 4 must name one of 4 choices"),
        (
            "truthfulqa_mc2",
            {"mc2_targets": {"choices": ["a", "b"], "labels": [1]}},
            "mc2_targets must name one of 2.*",
        ),
        (
            "truthfulqa_mc2",
            {"mc2_targets": {"choices": ["a"], "labels": [0]}},
            "mc2_targets must name one of 1 choices",
        ),
        ("lambada_openai", {"text": None}, "text must not be null"),
        ("medmcqa", {"opc": None}, "opc must not be null"),
        ("medmcqa", {"question": None, "opa": None}, "opa and question must not be null"),
        ("winogrande", {"sentence": None}, "sentence must not be null"),
        ("hellaswag", {"ctx_b": None, "id": None}, "ctx_b must not be null"),
        ("hellaswag", {"label": None}, "label must not be null"),
        ("hellaswag", {"activity_label": ...}, "KeyError, 'activity_label'"),
        ("hellaswag", {"label": "5"}, "label '5' must name one of 2 choices"),
    ],
)
def test_a_row_that_does_not_fit_is_named_with_file_number_and_field(task, bad, why, at, tmp_path):
    folder = with_row(task, tmp_path, bad, at)
    said = rf"row {at + 1} of '{tmp_path}/{task}/\w+.jsonl' does not fit task '{task}': {why}: correct the row, or take"
    with pytest.raises(ValueError, match=f"^{said}"):
        tasks.build([task], folder)


def test_a_null_that_makes_a_none_is_named_and_one_that_is_not_read_is_taken(tmp_path):
    """Where a task's function makes items of the rows. A choice may be called None."""
    rows = [{"goal": f"g{i}", "sol1": "None of it", "hint": None, "note": None if i else "n"} for i in range(3)]
    config = {"task": "t", "output_type": "generate_until", "doc_to_text": "query", "doc_to_target": "sol1"}
    config["process_docs"] = lambda data: data.map(lambda row: {"query": f"{row['goal']} {row['hint'] or ''}"})
    (tmp_path / "a.jsonl").write_text("")
    task = inside.bare_task(config)
    Rows("t", tmp_path / "a.jsonl", range(1, 4), rows).check(task, None)
    rows[2]["goal"] = None
    with pytest.raises(ValueError, match=r"^row 3 of '.*a.jsonl' does not fit task 't': goal must not be null: "):
        Rows("t", tmp_path / "a.jsonl", range(1, 4), rows).check(task, None)


def test_a_null_that_a_function_of_the_task_looks_for_may_stand_beside_the_word_none(tmp_path):
    rows = [{"goal": "None of it", "hint": None}]
    config = {"task": "t", "output_type": "generate_until", "doc_to_target": "goal"}
    config["doc_to_text"] = lambda row: f"{row['goal']} {row['hint'] or ''}"
    (tmp_path / "a.jsonl").write_text("")
    Rows("t", tmp_path / "a.jsonl", range(1, 2), rows).check(inside.bare_task(config), None)
    config["doc_to_text"] = lambda row: f"{row['goal']} {row['hint']}"
    with pytest.raises(ValueError, match=r"^row 1 of '.*a.jsonl' does not fit task 't': hint must not be null: "):
        Rows("t", tmp_path / "a.jsonl", range(1, 2), rows).check(inside.bare_task(config), None)


def test_a_row_that_may_become_an_example_must_fit_too(tmp_path):
    folder = with_row("piqa", tmp_path, {})
    (folder / "piqa" / "train.jsonl").write_text("\n".join(map(json.dumps, [ROWS[0], ROWS[1] | {"label": 7}])))
    with pytest.raises(ValueError, match=r"^row 2 of '.*train.jsonl' .* 'piqa': label 7 must name one of 2 choices: "):
        tasks.build(["piqa"], folder, shots=1)
    assert tasks.build(["piqa"], folder, shots=0)[0].shots == 0  # not read
    (folder / "piqa" / "train.jsonl").unlink()
    (folder / "piqa" / "validation.jsonl").write_text("\n".join(map(json.dumps, [*ROWS, ROWS[1] | {"label": 7}])))
    assert tasks.build(["piqa"], folder, shots=0, limit=2)[0].shots == 0
    with pytest.raises(ValueError, match=r"^row 4 of '.*validation.jsonl' .*: label 7 must name one of 2 choices: "):
        tasks.build(["piqa"], folder, shots=1, limit=2)


@pytest.mark.parametrize("task", GOOD)
def test_rows_that_fit_are_taken(task, tmp_path):
    """A field that the task does not read may be missing."""
    whole = tasks.build([task], with_row(task, tmp_path, {"id": ...}, 1))
    assert len(next(iter(whole[0].tasks.values())).eval_docs) == 3


def test_a_value_of_another_kind_and_a_subject_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"row 3 of .* label must be of the same kind as in the rows before, got 'x'"):
        tasks.build(["piqa"], with_row("piqa", tmp_path, {"label": "x"}, 2))
    row = {"question": "q", "choices": list("abcd"), "answer": 1, "subject": "anatomy"}
    (tmp_path / "mmlu").mkdir()
    for split in ("dev", "test"):
        (tmp_path / "mmlu" / f"{split}.jsonl").write_text(json.dumps(row))
    with pytest.raises(ValueError, match=r"must hold rows with subject '\w+' for task 'mmlu_\w+': it has none[.]$"):
        tasks.build(["mmlu"], tmp_path)


def test_more_shots_than_examples(tmp_path):
    (tmp_path / "piqa").mkdir()
    (tmp_path / "piqa" / "validation.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    assert tasks.build(["piqa"], tmp_path, shots=2)[0].shots == 2
    with pytest.raises(ValueError, match="at most 2 for task 'piqa'"):
        tasks.build(["piqa"], tmp_path, shots=3)


def test_other_formats(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    assert tasks.read_rows(tmp_path / "a.json") == tasks.read_rows(tmp_path / "a.parquet") == ROWS
