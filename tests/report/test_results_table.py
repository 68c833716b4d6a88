"""Tables of studies in Markdown: printed, and put into a README between its markers."""

from __future__ import annotations

import json

import pytest
from by_hand import cli
from page_results import write_measurement, write_study

from decondense.report.results_table import insert_table, results_rows, results_table
from decondense.stats.verdicts import NOT, REPRODUCED


def test_table_and_readme(tmp_path):
    write_study(tmp_path / "results" / "width", headline="a | b\n<i>c</i>")
    write_study(tmp_path / "results" / "text", study="text", claim="C2", verdict="not reproduced")
    (tmp_path / "results" / "bad").mkdir()
    (tmp_path / "results" / "bad" / "result.json").write_text("{")
    readme = tmp_path / "README.md"
    readme.write_text("# head\n\n<!-- results -->\nold\n<!-- end results -->\n\ntail\n")
    done = cli("report", tmp_path / "results", "--table", "--readme", readme)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "| study | claim | verdict | what decided it |"
    assert [line.split(" | ")[1] for line in lines[2:4]] == ["C2", "C3"]
    assert "| a \\| b &lt;i&gt;c&lt;/i&gt; |" in lines[3]
    assert done.stderr.count("skipped: ") == 1
    text = readme.read_text()
    assert text.startswith("# head\n\n<!-- results -->\n| study")
    assert text.endswith("|\n\n*Hardware: NVIDIA H200.*\n<!-- end results -->\n\ntail\n")
    assert "\n| [width](results/width) | C3 |" in text
    assert "\nold\n" not in text
    again, _ = insert_table(readme, [tmp_path / "results"])
    assert again == text
    assert not (tmp_path / "report.html").exists()


def test_a_cell_has_the_headline_and_not_the_sentence(tmp_path):
    long = "reproduced: with 64 it is 0.78; " + "and so on, " * 40
    write_study(tmp_path, headline="+0.5 [+0.4, +0.6]", sentence=long)
    assert results_table([tmp_path])[0].splitlines()[2].split(" | ")[-1] == "+0.5 [+0.4, +0.6] |"
    (row,), _ = results_rows([tmp_path])
    assert (row["headline"], row["sentence"]) == ("+0.5 [+0.4, +0.6]", long.removeprefix("reproduced: ").strip())


def test_hardware_and_folders_are_told_where_they_differ(tmp_path):
    for name, hardware in (("a", "an H200"), ("b", "an H200"), ("c", "a CPU; a GPU")):
        write_study(tmp_path / name, study="width" if name == "a" else "text", hardware=hardware)
    lines = results_table([tmp_path], base=tmp_path)[0].splitlines()
    assert [line.split(" | ")[0] for line in lines[2:5]] == ["| [b](b)", "| [c](c)", "| [width](a)"]
    assert lines[5:] == ["", "*Hardware: an H200. c: a CPU; a GPU.*"]


@pytest.mark.parametrize("readme", [False, True])
def test_a_study_whose_words_are_no_text_is_left_out_of_the_tables(tmp_path, readme):
    write_study(tmp_path / "results" / "good", claim="C2")
    damaged = {"null": {"verdict": None}, "number": {"sentence": 3}, "empty": {"claim": " "}}
    for name, words in damaged.items():
        write_study(tmp_path / "results" / name, study="width")
        file = tmp_path / "results" / name / "result.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | words))
    target = tmp_path / "README.md"
    target.write_text("<!-- results -->\n<!-- end results -->\n<!-- verdicts -->\n<!-- end verdicts -->\n")
    done = cli("report", tmp_path / "results", *(["--readme", target] if readme else ["--table"]))
    assert done.returncode == 0
    said = done.stderr.replace("\n", " ")
    for name, part in (("null", "verdict"), ("number", "sentence"), ("empty", "claim")):
        assert f"skipped: results/{name}: result.json is damaged: {part}: " in said
    shown = target.read_text() if readme else done.stdout
    assert "results/good" in shown
    assert "None" not in shown
    assert not any(f"results/{name}" in shown for name in damaged)
    with pytest.raises(ValueError, match=r"no study in .*null: result\.json is damaged: verdict"):
        results_table([tmp_path / "results" / "null"])


def test_the_short_table_names_every_study(tmp_path):
    known = [("width", "C3", "Do models?"), ("text", "C2", "Is it?"), ("size", "C1", "Inside a family?")]
    write_study(tmp_path / "results" / "width", verdict="not reproduced")
    (tmp_path / "docs").mkdir()
    for place in (tmp_path / "README.md", tmp_path / "docs" / "results.md"):
        place.write_text("<!-- verdicts -->\nold\n<!-- end verdicts -->\n")
        text, _ = insert_table(place, [tmp_path / "results"], known=known)
        lines = text.splitlines()
        assert lines[1] == "| study | claim | question | verdict |"
        assert len(lines) == len(known) + 4
        assert sum(line.endswith("| undecided: not run |") for line in lines) == len(known) - 1
        link = "results/width" if place.parent == tmp_path else "../results/width"
        assert next(line for line in lines if "[width]" in line).startswith(f"| [width]({link}) | C3 | Do models")
    (tmp_path / "README.md").write_text("<!-- verdicts -->")
    with pytest.raises(ValueError, match="must hold <!-- verdicts --> and, after it, <!-- end verdicts -->"):
        insert_table(tmp_path / "README.md", [tmp_path / "results"])


def test_the_short_table_says_where_trend_and_level_part(tmp_path):
    for name, level in (("width", NOT), ("init", REPRODUCED)):
        write_study(tmp_path / name, study=name, estimate={"verdicts": {"trend": REPRODUCED, "level": level}})
    (tmp_path / "README.md").write_text("<!-- verdicts -->\n<!-- end verdicts -->\n")
    known = [("width", "C3", "Do they?"), ("init", "C4", "Is it?")]
    text, _ = insert_table(tmp_path / "README.md", [tmp_path], known=known)
    wide, first = text.splitlines()[3:5]
    assert wide.endswith("| reproduced (by the trend over depth reproduced, by the level not reproduced) |")
    assert first.endswith("| reproduced |")


def test_readme_without_markers_or_studies(tmp_path):
    write_study(tmp_path / "s")
    (tmp_path / "R.md").write_text("nothing here")
    with pytest.raises(ValueError, match="must hold <!-- results --> and, after it, <!-- end results -->"):
        insert_table(tmp_path / "R.md", [tmp_path])
    with pytest.raises(FileNotFoundError, match="no file at"):
        insert_table(tmp_path / "none.md", [tmp_path])
    write_measurement(tmp_path / "other" / "m", layers=2)
    with pytest.raises(ValueError, match="no study in"):
        results_table([tmp_path / "other"])
