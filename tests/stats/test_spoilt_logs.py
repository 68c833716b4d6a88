"""Logs of other tools whose samples or files have another form than these tools write."""

from __future__ import annotations

import json
import re
import shutil

import pyarrow as pa
import pytest
from pyarrow import parquet
from stats.test_logs import LOGS, archive, one, rows_of

from decondense.evaluate.readers import read_logs
from decondense.records import Damaged


@pytest.mark.parametrize(
    ("task", "spoilt", "reason"),
    [
        ("pages", {"byte_perplexity": [-0.4]}, "ValueError: not enough values to unpack (expected 2, got 1)"),
        ("pages", {"byte_perplexity": [None, 18]}, "TypeError: float() argument must be"),
        ("pages", {"byte_perplexity": [-0.4, None]}, "TypeError: "),
        ("stars", {"filtered_resps": [["-0.8", "False"], ["-0.1"]]}, "ValueError: not enough values to unpack"),
        ("words", {"filtered_resps": [["few", "False"]]}, "ValueError: could not convert string to float: 'few'"),
        ("plants", {"arguments": {"gen_args_0": {}}}, "IndexError: list index out of range"),
        ("sums", {"arguments": None}, "AttributeError: 'NoneType' object has no attribute"),
    ],
)
def test_a_sample_of_another_form_is_told_with_its_line_and_file(tmp_path, task, spoilt, reason):
    """It was a traceback, or a sentence without the file."""
    folder = shutil.copytree(LOGS / "lm-eval" / "base", tmp_path / "log")
    (file,) = folder.glob(f"samples_{task}_*")
    rows = rows_of(file)
    rows[1] |= spoilt
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(Damaged, match=rf"^line 2 of '{file}' must be a sample of lm-eval, .*\({re.escape(reason)}.*\)"):
        one(folder).tasks[task].hashes["prompt"]()


def test_a_target_that_is_a_raised_number_is_a_text(tmp_path):
    """Python calls it a digit, and does not read it as a number."""
    folder = shutil.copytree(LOGS / "lm-eval" / "base", tmp_path / "log")
    (file,) = folder.glob("samples_plants_*")
    rows = rows_of(file)
    assert one(folder).tasks["nature"].likelihood is not None
    rows[1] |= {"target": "²"}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert one(folder).tasks["nature"].likelihood is None


def test_whole_files_of_another_form_are_told_with_the_log(tmp_path):
    folder = shutil.copytree(LOGS / "lm-eval" / "base", tmp_path / "lm-eval")
    (results,) = folder.glob("results_*")
    results.write_text('{"higher_is_better": {"pages": 1}}')
    spoilt = archive(tmp_path / "log.eval", header={"status": "success"}, summaries=[])
    (details,) = (LOGS / "lighteval" / "base").glob("details_stars*")
    parquet.write_table(pa.table({"doc": [1], "metric": [1], "model_response": [1]}), tmp_path / details.name)
    for path in folder, spoilt, tmp_path / details.name:
        with pytest.raises(Damaged, match=f"^'{path}' must be a log as its tool writes it, got one of another form"):
            read_logs(path)


def test_a_right_choice_that_is_none_of_the_choices_has_no_share(tmp_path):
    """Of lighteval's: it was another item's log-likelihood."""
    (details,) = (LOGS / "lighteval" / "base").glob("details_stars*")
    rows = rows_of(details)
    assert one(details).tasks["stars"].likelihood is not None
    rows[0]["doc"]["gold_index"] = 3
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / details.name)
    assert one(tmp_path / details.name).tasks["stars"].likelihood is None
