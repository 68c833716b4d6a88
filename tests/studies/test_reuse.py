"""Runs of one study taken over by another: only the same recipe and seed, only with what is asked for."""

from __future__ import annotations

import json

import numpy as np
import pytest
from decondense.studies.study import settings_of
from study_pieces import of_seeds, outcomes, run, write

from decondense import studies
from decondense.studies import pieces, reuse, training

STUDIES = studies.STUDIES


@pytest.fixture
def trained(monkeypatch):
    """What would have been trained, instead of training it."""
    asked = []

    def one_arm(arm, seed, settings, shop, teacher):
        asked.append((arm, seed))
        return run(held_out=9.0, hardware="here", versions={"torch": "2.0"})

    monkeypatch.setattr(training, "_one_arm", one_arm)
    return asked


def written(name, folder, scale="gpu", make=lambda arm, seed: run(held_out=seed), **changes):
    settings = settings_of(STUDIES[name], scale) | changes
    write(folder, of_seeds(STUDIES[name], scale, settings, make, [1, 2, 3]))


def scored(arm, seed):
    return run(held_out=seed, cosine=0.5 - 0.1 * (arm == "dispersion") + seed / 1000) | {
        "scores": {"piqa": 0.5},
        "outcomes": {"piqa": outcomes(np.random.default_rng(seed), 0.5)},
        "weights": f"{arm}{seed}",
        "dtype": "bfloat16",
    }


def test_counteract_needs_no_training_beside_benchmarks(tmp_path, trained):
    written("benchmarks", tmp_path / "benchmarks", make=scored)
    study = STUDIES["counteract"]
    said = []
    record = pieces.run(
        study, "gpu", tmp_path / "o", settings_of(study, "gpu"), reuse=[tmp_path / "benchmarks"], say=said.append
    )
    assert trained == []
    assert record["verdict"] == "reproduced"
    assert [row[2] for row in record["table"]["rows"]] == [1, 2, 3, 1, 2, 3]
    assert record["hardware"] == "a machine"
    kept = json.loads((tmp_path / "o" / "pieces" / "seed-2.json").read_text())["runs"]["dispersion"]
    assert kept["from"] == "benchmarks, seed-2, dispersion"
    assert not {"outcomes", "scores", "weights", "dtype"} & set(kept)
    assert any("from benchmarks, seed-2" in sentence for sentence in said)


def test_what_is_missing_is_trained(tmp_path, trained):
    written("dose", tmp_path / "dose")
    study = STUDIES["estimators"]
    record = pieces.run(study, "gpu", tmp_path / "o", settings_of(study, "gpu"), reuse=[tmp_path / "dose"])
    others = ["exact", "second order", "sampled"]
    assert trained == [(arm, seed) for seed in (1, 2, 3) for arm in others]
    losses = {(row[0], row[1]): row[2] for row in record["table"]["rows"]}
    assert (losses["first order", 2], losses["exact", 2]) == (2, 9.0)
    assert record["hardware"] == "a machine; here"


def test_another_recipe_is_another_run(tmp_path, trained):
    written("width", tmp_path / "width")
    study = STUDIES["init"]
    pieces.run(study, "gpu", tmp_path / "a", settings_of(study, "gpu"), reuse=[tmp_path / "width"])
    assert trained == []
    longer = settings_of(study, "gpu", ["base.data.tokens=46M"])
    pieces.run(study, "gpu", tmp_path / "b", longer, reuse=[tmp_path / "width"])
    assert [seed for _, seed in trained] == [1, 2, 3]


def test_without_the_heatmaps_it_is_of_no_use(tmp_path, trained):
    def bare(arm, seed):
        made = run()
        for shot in made["snapshots"]:
            del shot["histogram"]
        return made

    written("width", tmp_path / "width", make=bare)
    study = STUDIES["init"]
    pieces.run(study, "gpu", tmp_path / "o", settings_of(study, "gpu"), reuse=[tmp_path / "width"])
    assert len(trained) == 3


def test_tasks_must_be_the_same(tmp_path):
    study = STUDIES["benchmarks"]
    written("benchmarks", tmp_path / "a", make=scored)
    written("benchmarks", tmp_path / "b", make=scored, shots="zero")
    settings = settings_of(study, "gpu")
    assert reuse.taken_over(reuse.known_runs([tmp_path / "b"]), settings, "dispersion", 1) is None
    both = reuse.known_runs([tmp_path / "b", tmp_path / "a"])
    assert reuse.taken_over(both, settings, "dispersion", 1)["scores"] == {"piqa": 0.5}
    assert reuse.taken_over(both, settings, "dispersion", 4) is None


def test_a_run_taken_over_twice_names_its_maker(tmp_path, trained):
    written("benchmarks", tmp_path / "benchmarks", make=scored)
    study = STUDIES["counteract"]
    settings = settings_of(study, "gpu")
    pieces.run(study, "gpu", tmp_path / "a", settings, reuse=[tmp_path / "benchmarks"])
    found = reuse.taken_over(reuse.known_runs([tmp_path / "a"]), settings, "dispersion", 1)
    assert found["from"] == "benchmarks, seed-1, dispersion"


def test_a_shared_device_keeps_no_times(tmp_path, trained):
    study = STUDIES["estimators"]
    record = pieces.run(study, "gpu", tmp_path / "o", settings_of(study, "gpu"), timed=False)
    kept = json.loads((tmp_path / "o" / "pieces" / "seed-1.json").read_text())
    assert kept["seconds"] is None
    assert {r["tokens_per_second"] for r in kept["runs"].values()} == {None}
    assert "against cross-entropy: not measured" in record["sentence"]


def test_a_folder_without_pieces_is_an_error(tmp_path, command):
    code, _, err = command("study", "counteract", "--out", tmp_path / "o", "--reuse", tmp_path)
    assert code == 2
    assert "no piece files" in err
    assert not (tmp_path / "o").exists()
