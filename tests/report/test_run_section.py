"""Training runs on the page: what they are called, and what the first line says of them."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from by_hand import cli
from page_results import (
    data_of,
    lines_of,
    section_of,
    whole,
    write_run,
)  # fmt: skip

from decondense.report.page import collect, render
from decondense.train.sections import Lora


def test_runs_side_by_side(everything):
    section = section_of(everything / "train")
    heat, curves, trend = section.panels
    assert [chart.title for chart in heat.charts] == [
        "cross-entropy-seed1 (no added loss)", "cross-entropy-seed2 (no added loss)",
        "dispersion-seed1 (loss dispersion, weight 0.1)", "dispersion-seed2 (loss dispersion, weight 0.1)",
    ]  # fmt: skip
    assert [step for step, _ in heat.steps] == [0, 100, 200, 300]
    assert heat.steps[1][1] == "step 100 · 3.28M tokens"
    assert [view for view, _ in heat.views] == ["pooled", "released"]
    assert [chart.title for chart in curves.charts] == [
        "Task loss while training", "Held-out loss", "Penalty", "Mean cosine while training",
    ]  # fmt: skip
    task, _, penalty, _ = map(lines_of, curves.charts)
    assert len(penalty) == 2, "cross-entropy alone has no penalty"
    assert [len(trace["y"]) for trace in task] == [300] * 4, "no step is left out"
    colours = [trace["line"]["color"] for trace in task]
    assert colours[0] == colours[1] != colours[2] == colours[3], "seeds of an arm share a colour"
    record = json.loads((everything / "train" / "dispersion-seed1" / "result.json").read_text())
    assert task[2]["y"] == pytest.approx([row["task_loss"] for row in record["history"]], rel=1e-5)
    assert len(trend.charts) == 2
    assert "no added loss (2 runs, means): held-out loss (mean over blocks) 3.50" in section.verdict
    (table,) = section.tables
    assert "held-out loss (mean over blocks)" in table.heads
    assert table.columns[1:3] == ["loss.name", "loss.weight"]
    assert {row[table.columns.index("hardware")] for row in table.rows} == {record["hardware"]}
    assert record["hardware"] in table.shown[0]
    assert len(section.origins) == 4
    assert section.origins[2].title == heat.charts[2].title
    assert section.depths[4].name == f"{heat.charts[2].title}, after"


def test_the_arm_without_a_loss_comes_first(tmp_path):
    for name, weight in (("a", 0.1), ("b", 0)):
        write_run(tmp_path / name, layers=3, steps=20, snapshots=(0, 20), weight=weight)
    section = section_of(tmp_path)
    assert [chart.title for chart in section.panels[0].charts] == [
        "b (no added loss)",
        "a (loss dispersion, weight 0.1)",
    ]


@pytest.mark.parametrize(
    ("adapters", "names", "columns"),
    [
        ([{}, {"r": 4}], ["LoRA rank 16", "LoRA rank 4"], ["LoRA rank"]),
        ([{}, {"alpha": 8}], ["LoRA alpha 32", "LoRA alpha 8"], ["LoRA alpha"]),
        (
            [{"target_modules": ["v_proj"]}, {"target_modules": ["q_proj", "v_proj"]}],
            ["LoRA targets [v_proj]", "LoRA targets [q_proj, v_proj]"],
            ["LoRA targets"],
        ),
        (
            [{}, {"r": 4, "alpha": 8, "target_modules": ["q"]}],
            ["LoRA rank 16, alpha 32, targets all-linear", "LoRA rank 4, alpha 8, targets [q]"],
            ["LoRA rank", "LoRA alpha", "LoRA targets"],
        ),
        ([None, {}], ["no LoRA", "LoRA rank 16"], ["LoRA rank"]),
        ([None, {}, {"r": 4}], ["no LoRA", "LoRA rank 16", "LoRA rank 4"], ["LoRA rank"]),
        (
            [None, {}, {"alpha": 8}],
            ["no LoRA", "LoRA rank 16, alpha 32", "LoRA rank 16, alpha 8"],
            ["LoRA rank", "LoRA alpha"],
        ),
    ],
)
def test_runs_that_differ_in_their_adapters_alone_are_named_by_what_differs(tmp_path, adapters, names, columns):
    defaults = Lora().model_dump()
    for letter, lora in zip("abc", adapters):
        record = write_run(tmp_path / letter, layers=3, steps=20, snapshots=(0, 20), weight=0.1)
        record["recipe"]["model"]["lora"] = None if lora is None else defaults | lora
        (tmp_path / letter / "result.json").write_text(json.dumps(record))
    section = section_of(tmp_path)
    titles = [f"{letter} ({name})" for letter, name in zip("abc", names)]
    assert [chart.title for chart in section.panels[0].charts] == titles
    assert section.tables[0].heads[: len(columns) + 2] == ["run", *columns, "seed"]
    assert [name in section.verdict for name in names] == [True] * len(names)


def test_without_an_arm_to_compare_with_the_first_line_is_of_every_arm(tmp_path):
    for name, weight in (("a", 0.1), ("b", 0.2)):
        write_run(tmp_path / name, layers=3, steps=20, snapshots=(0, 20), weight=weight)
    section = section_of(tmp_path)
    assert [chart.title for chart in section.panels[0].charts] == ["a (weight 0.1)", "b (weight 0.2)"]
    first, more = section.lines
    assert more == []
    assert re.search("weight 0.1: held-out loss .*[.] weight 0.2: held-out loss ", first)
    done = cli("report", tmp_path, "--out", tmp_path / "p.html")
    assert f"{section.title}. {first}\n" in done.stdout


@pytest.mark.parametrize("base", [0.0, 0.5])
def test_the_first_line_of_many_arms_names_three_and_counts_the_others(tmp_path, base):
    for number, weight in enumerate((base, 0.1, 0.2, 0.3, 0.4)):
        write_run(tmp_path / f"{number}", layers=3, steps=20, snapshots=(0, 20), weight=weight)
    done = " ".join(cli("report", tmp_path, "--out", tmp_path / "p.html").stdout.split())
    first, more = section_of(tmp_path).lines
    named = ("0.1", "0.2", "0.3", "0.4") if base == 0 else ("0.5", "0.1", "0.2", "0.3", "0.4")
    assert [f"weight {weight}" in first for weight in named] == [True] * 3 + [False] * (len(named) - 3)
    others = len(named) - 3  # arms, of which there are fewer than the runs that the title counts
    assert f". And {others} more arm{'s' * (others > 1)} written: " in done
    assert first in done
    assert all(any(f"weight {weight}" in line for line in more) for weight in named[3:])


@pytest.mark.parametrize(("seeds", "words"), [((1, 1), " and seed"), ((1, 2), ", 2 seeds"), ((1, 1, 2), ", 2 seeds")])
def test_a_repetition_is_no_other_seed(tmp_path, seeds, words):
    for number, seed in enumerate(seeds):
        record = write_run(tmp_path / f"{number}", layers=3, steps=20, snapshots=(0, 20), seed=seed)
        record["held_out"][-1]["loss"] = 2.0 + seed
        (tmp_path / f"{number}" / "result.json").write_text(json.dumps(record | {"hardware": f"GPU {number}"}))
    done = " ".join(cli("report", tmp_path, "--out", tmp_path / "p.html").stdout.split())
    runs = {(1, 2): "2 runs", (1, 1): "2 runs of 1 seed", (1, 1, 2): "3 runs of 2 seeds"}[seeds]
    assert f" runs. same settings{words} ({runs}, means): held-out loss (mean over blocks) " in done
    assert f" → {2 + sum(set(seeds)) / len(set(seeds)):.4f}, mean cosine" in done, "the mean over seeds, not over runs"


def test_runs_of_a_study_are_called_by_their_arms(tmp_path):
    """Not by "teacher large, temperature 2.0, share 0.5"; but where arms of two studies have one name, by those."""
    for arm, teacher in (("student alone", None), ("student with a teacher", "large"), ("with another", "a" * 50)):
        for seed in (1, 2):
            folder = tmp_path / f"{arm}-{seed}"
            record = write_run(folder, layers=3, steps=20, snapshots=(0, 20), seed=seed, weight=0) | {"arm": arm}
            if teacher is not None:
                record["recipe"]["baselines"] = {"distillation": {"teacher": teacher, "temperature": 2.0, "share": 0.5}}
            (folder / "result.json").write_text(json.dumps(record))

    def names():
        (curves,) = (panel for panel in section_of(tmp_path).panels if panel.title == "Curves")
        return list(dict.fromkeys(trace["name"] for trace in lines_of(curves.charts[0])))

    assert names() == ["student alone", "student with a teacher", "with another"]
    for seed in (1, 2):
        file = tmp_path / f"student alone-{seed}" / "result.json"
        file.write_text(file.read_text().replace('"arm": "student alone"', '"arm": "with another"'))
    others = "and others of its settings, 2 seeds"  # as they have no settings of their own, or too many
    assert names() == [f"student alone-1 {others}", "student with a teacher", f"with another-1 {others}"]


def test_the_first_line_of_runs_is_with_the_loss_minus_without(tmp_path):
    """Paired by seed, with m ± t s/√n; a seed that only one arm has, and a run that is not finished, do not count."""
    changes = {1: (-0.31, -0.02), 2: (-0.25, -0.05), 3: (-0.4, -0.03)}  # by seed: of held-out loss, of mean cosine
    for weight, seed in [(w, s) for w in (0.0, 0.1) for s in changes] + [(0.0, 4), (0.1, 5), (0.0, 6), (0.1, 6)]:
        options = {"layers": 3, "steps": 20, "snapshots": (0, 20), "weight": weight, "seed": seed}
        record = write_run(tmp_path / f"{weight}-{seed}", **options, finished=(weight, seed) != (0.1, 6))
        loss, cosine = changes.get(seed, (9.0, 0.9)) if weight else (0.0, 0.0)
        record["held_out"][-1]["loss"] = 3.0 + seed + loss
        record["snapshots"][-1] |= {"mean_cosine": [0.0] + [0.5 + seed / 50 + cosine] * 3, "file": None}
        (tmp_path / f"{weight}-{seed}" / "result.json").write_text(json.dumps(record))
    words = []
    for (a, b, c), digits in zip(zip(*changes.values()), (2, 3)):
        mean = (a + b + c) / 3
        half = (
            4.302653 * (((a - mean) ** 2 + (b - mean) ** 2 + (c - mean) ** 2) / 2 / 3) ** 0.5
        )  # t, 2 degrees of freedom
        said = [f"{x:+.{digits}f}".replace("-", "−") for x in (mean, mean - half, mean + half)]
        words.append(f"{said[0]} [{said[1]}, {said[2]}]")
    first, rest = section_of(tmp_path).lines
    assert first == (
        "With the loss minus without it (dispersion, 3 seeds, 95 % intervals): held-out loss (mean over blocks) "
        f"{words[0]}, mean cosine {words[1]}"
    )
    assert [line.split(" (")[0] for line in rest] == ["no added loss", "loss dispersion, weight 0.1"]


def test_two_seeds_have_no_interval_and_arms_that_differ_otherwise_no_difference(tmp_path):
    for number, words in ((1, "1 seed"), (2, "2 seeds")):
        write_run(tmp_path / f"a{number}", layers=3, steps=20, snapshots=(0, 20), seed=number, weight=0)
        write_run(tmp_path / f"b{number}", layers=3, steps=20, snapshots=(0, 20), seed=number)
        first, _ = section_of(tmp_path).lines
        assert first.startswith(f"With the loss minus without it (dispersion, {words}, so no interval): held-out loss")
        assert "[" not in first
    shutil.rmtree(tmp_path / "a2")
    shutil.rmtree(tmp_path / "b2")
    record = json.loads((tmp_path / "b1" / "result.json").read_text())
    record["recipe"]["train"]["learning_rate"] = 1e-3
    (tmp_path / "b1" / "result.json").write_text(json.dumps(record))
    first, _ = section_of(tmp_path).lines
    assert first.startswith("no added loss"), "another learning rate: the loss is not all that differs"


def test_seeds_are_counted_once_where_an_arm_is_called_after_a_run(tmp_path):
    for name, weight, teacher in (("a", 0, "t" * 50), ("b", 0.1, "t" * 50), ("c", 0.1, None)):
        for seed in (1, 2):
            record = write_run(
                tmp_path / f"{name}{seed}", layers=3, steps=20, snapshots=(0, 20), seed=seed, weight=weight
            )
            if teacher is not None:
                record["recipe"]["baselines"] = {"distillation": {"teacher": teacher, "temperature": 2.0, "share": 0.5}}
                (tmp_path / f"{name}{seed}" / "result.json").write_text(json.dumps(record))
    line = section_of(tmp_path).lines[0]
    assert line.startswith(
        "With the loss minus without it (b1 and others of its settings, 2 seeds, so no interval): held-"
    )


def test_a_seed_that_is_no_number_is_not_known(tmp_path):
    for number, weight in enumerate((0, 0.1)):
        record = write_run(tmp_path / f"{number}", layers=3, steps=20, snapshots=(0, 20), weight=weight)
        record["recipe"]["train"]["seed"] = [1]
        (tmp_path / f"{number}" / "result.json").write_text(json.dumps(record))
    section = section_of(tmp_path)
    assert section.lines[0].startswith("no added loss: held-out loss"), "no pair of a seed"
    assert [row[section.tables[0].heads.index("seed")] for row in section.tables[0].shown] == ["–", "–"]


def test_runs_of_other_models_or_texts_stand_apart(tmp_path):
    write_run(tmp_path / "a", layers=3, steps=20, snapshots=(0, 20))
    write_run(tmp_path / "b", layers=3, steps=20, snapshots=(0, 20), name="other")
    write_run(tmp_path / "c", layers=3, steps=20, snapshots=(0,), text="wikitext-2")
    record = write_run(tmp_path / "d", layers=3, steps=20, snapshots=(0,))
    pair = [{"name": "novels"}, {"name": "wikitext-2"}]
    for text, sections in ((record["text"], 3), (pair, 4)):
        (tmp_path / "d" / "result.json").write_text(json.dumps(record | {"text": text}))
        found = collect([tmp_path]).sections
        assert len(found) == sections
    assert found[-1].title == "smollm2-135m trained on novels + wikitext-2"


def test_an_unfinished_run_and_a_lost_snapshot_are_said(tmp_path):
    record = write_run(tmp_path / "a", layers=3, steps=20, snapshots=(0, 10, 20), finished=False)
    (tmp_path / "a" / "snapshots" / "step-000010.json").write_text("{")
    record["history"][4]["loss"] = record["history"][4]["task_loss"] = None
    record["snapshots"][2]["file"] = "../../secret.json"
    (tmp_path / "a" / "result.json").write_text(json.dumps(record))
    section = section_of(tmp_path)
    assert section.notes[0] == "unfinished: the run stopped at step 20."
    assert "snapshots/step-000010.json could not be read" in section.notes[1]
    assert "outside the run folder" in section.notes[2]
    assert not any(str(tmp_path) in note for note in section.notes)
    assert "1 of 20 steps have no finite loss" in section.notes[3]
    assert [step for step, _ in section.panels[0].steps] == [0, 10, 20], "what the run keeps of them is drawn"
    data, pool = data_of(render(collect([tmp_path])))
    assert whole(data["charts"]["r1-p1-c0"], pool)["frames"][0]["data"][0]["y"][4] is None
