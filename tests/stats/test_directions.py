"""Which way a metric is better: by its name, by what the user says, and what is said where neither is clear."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from by_hand import cli, make_item

import decondense as dc
from decondense.evaluate.directions import direction
from decondense.evaluate.logs import Scores

LOWER = """error error_rate err logloss ce bpc bits_per_byte nll wer cer rmse val_loss val_NLL eval-loss Brier_score
    word_perplexity test/loss"""
HIGHER = """acc acc_norm accuracy exact_match em score f1 macro_f1 pass@1 rougeL bleu-4 win_rate mc2 model_graded_qa"""
UNKNOWN = """error_free 1-error 100-wer perplexity_improvement error_detection accuracy_loss n_correct num_errors
    loss_std acc_stderr std_err neg_log_loss negative_mse lossless risk_score negative_recall depth tokens"""


def test_a_direction_is_told_by_the_usual_names_alone():
    assert {name: direction(name) for name in LOWER.split()} == dict.fromkeys(LOWER.split(), False)
    assert {name: direction(name) for name in HIGHER.split()} == dict.fromkeys(HIGHER.split(), True)
    doubtful = [*UNKNOWN.split(), "accuracy error", "1 - WER", ""]
    assert {name: direction(name) for name in doubtful} == dict.fromkeys(doubtful)


def tables(folder, metric):
    paths = [folder / "base.csv", folder / "treated.csv"]
    for k, path in enumerate(paths):
        path.write_text(
            "item,score,metric\n" + "".join(f"{n},{max(n % 2, k * (n % 3 == 0)):d},{metric}\n" for n in range(40))
        )
    return paths


def test_a_doubtful_name_is_not_turned_but_told_with_the_remedy_and_the_remedy_works(tmp_path):
    for metric, lower in (("error_rate", True), ("depth", False), ("accuracy_loss", False), ("error_free_rate", False)):
        base, treated = tables(tmp_path, metric)
        runs = {
            given: dc.significance(base, treated, metric=metric, higher_is_better=given, bootstrap=0)
            for given in (None, True, False)
        }
        found, other = runs[None], runs[lower]
        assert found.macro.difference == -other.macro.difference != 0
        assert runs[not lower].macro.difference == found.macro.difference
        told = f"items: the name {metric} does not say whether more of it is better, so higher is taken as better: "
        told += "if that is wrong, give --lower-is-better."
        assert (told in found.notes) == (metric != "error_rate")
        assert not any("does not say" in note for given in (True, False) for note in runs[given].notes)
        remedy = ("--metric", metric, "--higher-is-better") if lower else ("--lower-is-better",)
        done = cli("significance", base, treated, *remedy, "--out", tmp_path / metric, "--bootstrap", 0)
        assert done.returncode == 0, done.stderr
        written = dc.load(tmp_path / metric)
        assert (written.macro, written.notes) == (other.macro, other.notes)
    with pytest.raises(ValueError, match="higher_is_better must be True or False, got 'no'"):
        dc.significance(base, treated, higher_is_better="no")


def test_the_users_direction_holds_for_what_is_not_known_or_is_named(tmp_path):
    paths = tables(tmp_path, "depth")
    for path in paths:
        rows = path.read_text().splitlines()[1:]
        accuracies = [f"{row.replace('depth', 'accuracy')},other" for row in rows]
        path.write_text("\n".join(["item,score,metric,task", *(f"{row},first" for row in rows), *accuracies]) + "\n")

    def signs(**options):
        found = dc.significance(*paths, bootstrap=0, **options)
        told = [note for note in found.notes if "does not hold here" in note]
        return {row.task: row.difference > 0 for row in found.tasks}, told

    assert signs() == ({"first": True, "other": True}, [])
    told = (
        "other: the log or the metric's name says the opposite of --lower-is-better, which does not hold here: name it "
        "with --metric."
    )
    assert signs(higher_is_better=False) == ({"first": False, "other": True}, [told])
    assert signs(higher_is_better=False, metric="depth,accuracy") == ({"first": False, "other": True}, [told])
    assert signs(higher_is_better=True) == ({"first": True, "other": True}, [])


def test_the_users_direction_is_that_of_scores_without_a_name(tmp_path):
    paths = tables(tmp_path, "score")
    for path in paths:
        path.write_text("\n".join(line.rsplit(",", 1)[0] for line in path.read_text().splitlines()) + "\n")
    found = [dc.significance(*paths, bootstrap=0, higher_is_better=given) for given in (None, False)]
    assert found[0].macro.difference == -found[1].macro.difference > 0
    assert not any("does not hold" in note for note in found[1].notes)


def test_rounding_does_not_take_shares_beyond_one(make_run):
    """Sums of probabilities, such as TruthfulQA's mc2, end a rounding above 1."""

    def run(name, top):
        return make_run(name, {"t": [make_item("t", n, top if n % 2 else n / 40) for n in range(40)]})

    base, treated = run("a", 1.0), run("b", 1 + 2.4e-7)
    assert not any("the scores go" in note for note in dc.significance(base, treated, bootstrap=0).notes)
    assert any("from 0 to 1.01" in note for note in dc.significance(base, run("c", 1.01), bootstrap=0).notes)


def test_a_changed_copy_of_scores_keeps_their_sign():
    for scores in (
        Scores(["1"], np.array([2.0]), metric="loss"),
        Scores(["1"], np.array([2.0]), metric="x", higher_is_better=False),
    ):
        for copy in (dataclasses.replace(scores, clusters=["a"]), dataclasses.replace(scores, ids=["2"])):
            assert (copy.lower, copy.score.tolist()) == (True, [-2.0])
