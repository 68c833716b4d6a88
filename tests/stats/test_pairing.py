"""Comparing runs: what is paired, and what is refused."""

from __future__ import annotations

import pandas
import pytest
from by_hand import compared, make_item

from decondense.stats.significance import significance


def test_items_that_do_not_match(make_run):
    base = make_run("a", {"t": [1, 0, 1, 1]})
    rows = [make_item("t", n, n % 2) for n in range(2, 6)]
    treated = make_run("b", {"t": rows}, settings={"limit": 4})
    with pytest.raises(ValueError, match=r"4 of 6 items of 't' are not in all of them \(limit is None and 4\)"):
        compared([base], [treated])
    record = compared([base], [treated], common=True)
    assert record["tasks"][0]["items"] == 2
    assert "4 of 6 items are not in all runs and are left out" in record["notes"][0]
    stranger = make_run("c", {"t": [make_item("t", n, 1) for n in range(90, 94)]})
    for common in (True, False):  # nothing is shared: --common is no remedy, least of all to who gave it
        with pytest.raises(ValueError, match=r"8 of 8 items .*: evaluate with the same data, shots, seed and limit\.$"):
            compared([base], [stranger], common=common)


def test_repeated_items_are_paired_one_by_one(make_run):
    def rows(*answers):
        return {"t": [make_item("t", n, a, item="same") for n, a in enumerate(answers)]}

    record = compared([make_run("a", rows(1, 0, 0))], [make_run("b", rows(1, 1, 1))])
    assert (record["tasks"][0]["gained"], record["tasks"][0]["items"]) == (2, 3)


def test_missing_tasks(make_run):
    base, treated = make_run("a", {"t": [1, 0], "u": [1, 1]}), make_run("b", {"t": [1, 1]})
    with pytest.raises(ValueError, match=r"task 'u' is missing in 1 of 2 runs \(b\)"):
        compared([base], [treated])
    assert [r["task"] for r in compared([base], [treated], common=True)["tasks"]] == ["t"]
    with pytest.raises(ValueError, match="no task in common"):
        compared([base], [make_run("c", {"v": [1]})], common=True)


def test_checkpoints_from_the_middle_are_refused(make_run):
    base = make_run("a", {"t": [1, 0]})
    middle = {"step": 500, "steps": 1526, "final": False}
    treated = make_run("b", {"t": [1, 1]}, checkpoint=middle)
    with pytest.raises(ValueError, match=r"treated run 'b' is step 500 of 1526, and nothing says how"):
        compared([base], [treated])
    chosen = make_run("c", {"t": [1, 1]}, checkpoint=middle | {"selected_by": "held-out-loss"})
    record = compared([base], [chosen])
    assert "treated run 'c': the checkpoint was chosen by held-out-loss." in record["notes"]
    assert record["treated"][0]["selected_by"] == "held-out-loss"


def test_checkpoints_are_told_by_the_run_they_lie_in(make_run):
    """By the place that the evaluation recorded, not by how the path was typed."""
    base = make_run("a", {"t": [1, 0]})

    def run(name, place, folder, typed="."):
        where = {"run": "run", "place": place, "folder": folder, "selected_by": "held-out-loss"}
        return make_run(name, {"t": [1, 1]}, checkpoint=where, model={"name": typed})

    whole, half = run("b", "1f", "", "out/run"), run("c", "1f", "checkpoint-50", "elsewhere/link")
    with pytest.raises(ValueError, match=r"2 treated runs are checkpoints of one training run \('run'\)"):
        compared([base], [whole, half])
    one, other = (run(name, name, "checkpoint-100", "checkpoint-100") for name in "de")
    assert compared([base], [one, other], bootstrap=0)["seeds"] == [1, 2]


def test_copies_are_not_seeds(make_run):
    base = make_run("a", {"t": [1, 0]})
    runs = [make_run(n, {"t": [1, 1]}, weights="same") for n in "bc"]
    with pytest.raises(ValueError, match="a copy is not another seed"):
        compared([base], runs)


def test_bad_options(six):
    base, treated = six
    for arms, options, words in (
        (([], treated), {}, "at least one base and one treated"),
        ((base[:2], treated), {"paired": True}, "as many base as treated runs, at least 2, got 2 and 3"),
        ((base[:1], treated[:1]), {"paired": True}, "at least 2, got 1 and 1"),
        (six, {"alpha": 5}, r"alpha and power must lie between 0 and 1, got 5 and 0.8: take 0.05 and 0.8\.$"),
        (six, {"power": 0.04}, r"power must be above alpha, got 0.04 and 0.05: .* probability alpha; take 0.8\.$"),
        (six, {"bootstrap": -3}, r"bootstrap must be a number of resamplings, at least 20, .* got -3: .*\.$"),
        (six, {"permutations": 0}, r"permutations must be a whole number of at least 1, got 0: .*\.$"),
    ):
        with pytest.raises(ValueError, match=words):
            compared(*arms, **options)


def test_pairs_share_their_recorded_seed(make_run, tmp_path):
    """Pairs are made by place, and a seed that stands at another place in the other arm is no pair of its own."""
    outcomes = iter([[1, 0, 1, 1], [0, 0, 1, 1], [1, 1, 1, 0], [1, 0, 0, 1]])
    runs = [make_run(n, {"t": next(outcomes)}, checkpoint={"training_seed": s}) for n, s in zip("abcd", (1, 2, 1, 2))]
    base, treated = runs[:2], runs[2:]
    words = r"share their training seed, but 'a' has 1 and 'd' 2: give both arms, .*, in one order of the seeds\.$"
    with pytest.raises(ValueError, match=words):
        compared(base, treated[::-1], paired=True)
    assert compared(base[::-1], treated[::-1], paired=True, bootstrap=0)["paired"]
    assert compared(base, treated[::-1], bootstrap=0)["seeds"] == [2, 2]
    table = pandas.DataFrame({"item": [1, 2, 1, 2], "score": [1, 0, 0, 1], "seed": [1, 1, 2, 2]})
    table.to_csv(tmp_path / "rising.csv", index=False)
    table[::-1].assign(score=[1, 1, 1, 0]).to_csv(tmp_path / "falling.csv", index=False)
    with pytest.raises(ValueError, match=r"but 'rising.csv seed 1' has 1 and 'falling.csv seed 2' 2"):
        significance(tmp_path / "rising.csv", tmp_path / "falling.csv", paired=True)
    other = [
        make_run(n, {"t": o}, checkpoint={"training_seed": s})
        for n, o, s in (("e", [1, 1, 1, 1], 7), ("f", [0, 1, 1, 1], 8))
    ]
    assert compared(base, other, paired=True, bootstrap=0)["paired"], (
        "seeds that are none of the other arm's say nothing"
    )


def test_notes_about_few_seeds(six):
    base, treated = six
    assert "single seed" in compared(base[:1], treated, bootstrap=0)["notes"][0]
    assert "only 2 seeds" in compared(base[:2], treated, bootstrap=0)["notes"][0]
    assert compared(base, treated, bootstrap=0)["notes"] == []


def test_tables_of_unlike_items_need_the_words_of_each(tmp_path):
    """The sentence names the columns that make it possible, and with one of them it is."""

    def table(name, items, **more):
        rows = [",".join(["item", "score", *more])]
        rows += [
            ",".join([str(i), str(ord(name[0]) % 2 * i % 2), *(f"{word} {i}" for word in more.values())]) for i in items
        ]
        (tmp_path / name).write_text("\n".join(rows))
        return tmp_path / name

    bare = table("a.csv", range(9)), table("b.csv", range(5))
    words = (
        r"with --common too, but 4 of 9 items .*: give logs of one tool, or tables with a column hash or prompt; if an "
        r"id surely means the same item in all runs, leave the 4 other items out\.$"
    )
    for common in (True, False):
        with pytest.raises(ValueError, match=words):
            significance(*bare, common=common)
    found = significance(table("a.csv", range(5)), bare[1])
    assert found.tasks[0].items == 5, "the last remedy, as well"
    assert any("matched by id alone" in note for note in found.notes)
    full = table("c.csv", range(9), prompt="what is"), table("d.csv", range(5), prompt="what is")
    assert significance(*full, common=True).tasks[0].items == 5


def test_what_is_no_run_is_named(tmp_path):
    frame = pandas.DataFrame({"item": range(3), "score": [0, 1, 1]})
    for base in (frame, [frame]):
        with pytest.raises(TypeError, match=r"runs must be paths of logs or tables, got DataFrame: .*to_csv"):
            significance(base, base)
    path = tmp_path / "huge.csv"
    frame.assign(score=1e300).to_csv(path, index=False)
    with pytest.raises(ValueError, match=r"of at most 1e100, but 3 of the 3 of .* are not \(0, 1, 2\): score"):
        significance(path, path, metric="score")
