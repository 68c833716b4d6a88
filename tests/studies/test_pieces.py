"""Running, resuming, copying and merging, with a study that computes instead of training."""

from __future__ import annotations

import itertools
import json
import os
import shutil

import pytest
from decondense.studies.study import Conclusion, NotRun, Piece, Study, rounded, safe_name, settings_of
from study_pieces import of_seeds, run, write

from decondense import studies
from decondense.stats.verdicts import decide
from decondense.studies import merging, pieces

FILES = ("result.json", "config.yaml", "table.csv", "figure.png")


def toy(work=None, **more) -> Study:
    """Three pieces; each 'trains' to a number."""

    def plan(settings):
        return [Piece(f"seed-{s}", f"seed {s}", {"seed": s}) for s in settings["seeds"]]

    def default(piece, settings, shop):
        return {"value": settings["effect"] + 0.1 * piece.what["seed"]}

    def conclude(found, settings):
        found = sorted(found, key=lambda p: p["what"]["seed"])
        decision = decide([p["value"] for p in found])
        rows = [[p["what"]["seed"], p["value"]] for p in found]
        return Conclusion(decision.verdict, decision.words(), ["seed", "value"], rows, {"effect": decision.record()})

    scales = {s: {"about": "toy", "cost": "none", "effect": 1.0, "seeds": [1, 2, 3]} for s in studies.SCALES}
    return Study("toy", "C0", "Is it so?", "It is above 0.", scales, plan, work or default, conclude, **more)


def content(folder):
    return {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}


def test_run_writes_a_whole_folder(tmp_path):
    study = toy()
    record = pieces.run(study, "gpu", tmp_path / "o", settings_of(study, "gpu"))
    assert record == json.loads((tmp_path / "o" / "result.json").read_text())
    assert record["schema"] == "decondense.study/1"
    assert record["verdict"] == "reproduced"
    assert record["sentence"].startswith("reproduced: ")
    assert record["pieces"] == ["seed-1", "seed-2", "seed-3"]
    assert record["command"] == "decondense study toy --scale gpu"
    assert record["criterion"] == "It is above 0."
    assert record["config"] == {"effect": 1.0, "seeds": [1, 2, 3]}
    assert sorted(p.name for p in (tmp_path / "o").iterdir()) == ["config.yaml", "pieces", "result.json", "table.csv"]


def test_pieces_in_any_order_on_any_machine_give_the_same_bytes(tmp_path):
    study = toy()
    settings = settings_of(study, "gpu")
    expected = None
    for order in itertools.permutations(["1", "2", "seed-3"]):
        machines = []
        for one in order:
            machines.append(tmp_path / f"{'-'.join(order)}-{one}")
            pieces.run(study, "gpu", machines[-1], settings, pieces=[one])
            for file in (machines[-1] / "pieces").iterdir():  # seconds are those of another machine every time
                found = json.loads(file.read_text())
                file.write_text(file.read_text().replace(f'"seconds": {found["seconds"]}', '"seconds": 0.0'))
        target = tmp_path / "-".join(order)
        merging.collect(study, "gpu", target, machines)
        merging.merge(study, "gpu", target)
        expected = expected or content(target)
        assert content(target) == expected


def test_all_studies_merge_to_the_same_bytes_whatever_the_order(tmp_path):
    """Of a real study: figure and table too, and pieces that were copied one after the other."""
    study = studies.STUDIES["counteract"]
    settings = settings_of(study, "smoke")
    found = of_seeds(
        study, "smoke", settings, lambda arm, s: run(cosine=0.5 - 0.1 * (arm == "dispersion") + s / 100), [3, 1, 2]
    )
    write(tmp_path / "a", found)
    write(tmp_path / "b", list(reversed(found)))
    for name in ("a", "b"):
        studies.merge(study, "smoke", tmp_path / name)
    merging.collect(study, "smoke", tmp_path / "c", [tmp_path / "b" / "pieces" / "seed-2.json", tmp_path / "a"])
    studies.merge(study, "smoke", tmp_path / "c")
    assert content(tmp_path / "a") == content(tmp_path / "b") == content(tmp_path / "c")
    assert set(content(tmp_path / "a")) == set(FILES)


def test_finished_pieces_are_skipped(tmp_path):
    done = []

    def work(piece, settings, shop):
        done.append(piece.name)
        if len(done) == 2:
            raise KeyboardInterrupt
        return {"value": 1.0 + 0.01 * piece.what["seed"]}

    study = toy(work)
    settings = settings_of(study, "gpu")
    with pytest.raises(KeyboardInterrupt):
        pieces.run(study, "gpu", tmp_path, settings)
    assert [p.name for p in (tmp_path / "pieces").iterdir()] == ["seed-1.json"]
    assert not (tmp_path / "result.json").exists()
    before = (tmp_path / "pieces" / "seed-1.json").stat().st_mtime_ns
    said = []
    record = pieces.run(study, "gpu", tmp_path, settings, say=said.append)
    assert done == ["seed-1", "seed-2", "seed-2", "seed-3"]
    assert "seed-1: done before" in said
    assert (tmp_path / "pieces" / "seed-1.json").stat().st_mtime_ns == before
    assert record["verdict"] == "reproduced"
    assert not (tmp_path / ".work").exists()


def test_weights_never_stay_and_a_failed_first_piece_leaves_nothing(tmp_path):
    def work(piece, settings, shop):
        (shop.folder / "run" / "model").mkdir(parents=True)
        (shop.folder / "run" / "model" / "weights.safetensors").write_bytes(b"x" * 1000)
        if piece.what["seed"] == 1:
            raise OSError("no text here")
        return {"value": 1.0}

    study = toy(work)
    with pytest.raises(OSError, match="no text"):
        pieces.run(study, "gpu", tmp_path / "o", settings_of(study, "gpu"))
    assert list((tmp_path / "o").rglob("*")) == []
    pieces.run(study, "gpu", tmp_path / "o", settings_of(study, "gpu"), pieces=["2"])
    assert not list((tmp_path / "o").rglob("weights*"))
    assert not (tmp_path / "o" / ".work").exists()


def test_a_part_is_undecided_and_a_whole_is_not(tmp_path):
    study = toy()
    settings = settings_of(study, "gpu")
    record = pieces.run(study, "gpu", tmp_path, settings, pieces=["1", "2"])
    assert record["verdict"] == "undecided"
    assert "2 of at least 3 training seeds" in record["sentence"]
    assert pieces.run(study, "gpu", tmp_path, settings)["verdict"] == "reproduced"


def test_nothing_run_is_undecided_not_run(tmp_path):
    record = merging.merge(toy(), "gpu", tmp_path)
    assert record["verdict"] == "undecided"
    assert record["sentence"] == "undecided: not run."

    def work(piece, settings, shop):
        raise NotRun("there is no data here.")

    record = pieces.run(toy(work), "gpu", tmp_path / "o", settings_of(toy(), "gpu"))
    assert record["sentence"] == "undecided: not run: there is no data here."


def test_other_seeds_and_settings_are_in_the_command(tmp_path):
    study = toy()
    settings = settings_of(study, "gpu", ["effect=-2.5"], [7, 8, 9])
    record = pieces.run(study, "gpu", tmp_path, settings)
    assert record["command"] == "decondense study toy --scale gpu --seeds 7,8,9 --set effect=-2.5"
    assert record["verdict"] == "not reproduced"


def test_pieces_of_other_settings_or_studies_are_refused_before_work(tmp_path):
    study = toy()
    pieces.run(study, "gpu", tmp_path, settings_of(study, "gpu"), pieces=["1"])
    with pytest.raises(ValueError, match=r"same settings, but effect is 1\.0 in seed-1\.json and 2 here"):
        pieces.run(study, "gpu", tmp_path, settings_of(study, "gpu", ["effect=2"]), pieces=["2"])
    with pytest.raises(ValueError, match="belongs to the study toy at scale gpu"):
        pieces.run(study, "paper", tmp_path, settings_of(study, "paper"))
    with pytest.raises(ValueError, match="belongs to the study toy at scale gpu"):
        merging.merge(study, "smoke", tmp_path)
    shutil.copy(tmp_path / "pieces" / "seed-1.json", tmp_path / "seed-1.json")
    changed = (tmp_path / "seed-1.json").read_text().replace('"value": 1.1', '"value": 9.9')
    (tmp_path / "seed-1.json").write_text(changed)
    with pytest.raises(ValueError, match="twice with different numbers"):
        merging.collect(study, "gpu", tmp_path, [tmp_path / "seed-1.json"])
    with pytest.raises(FileNotFoundError, match="no piece files"):
        merging.collect(study, "gpu", tmp_path, [tmp_path / "nowhere"])
    (tmp_path / "pieces" / "seed-2.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        merging.merge(study, "gpu", tmp_path)


def test_merge_copies_nothing_that_does_not_belong(command, tmp_path):
    """All pieces are looked at before the first is copied."""
    study = studies.STUDIES["dose"]
    settings = settings_of(study, "smoke")
    mine = of_seeds(study, "smoke", settings, lambda arm, s: run(), [1, 2])
    write(tmp_path / "mine", mine)
    other = studies.STUDIES["width"]
    write(tmp_path / "width", of_seeds(other, "smoke", settings_of(other, "smoke"), lambda arm, s: run(), [1, 2]))
    changed = settings_of(study, "smoke", ["base.data.tokens=2048"])
    write(tmp_path / "changed", of_seeds(study, "smoke", changed, lambda arm, s: run(), [3]))
    write(tmp_path / "again", [{**mine[0], "piece": "seed-1-1"}])
    write(tmp_path / "half", [{k: v for k, v in mine[0].items() if k != "settings"}])
    tokens = r"base.data.tokens is 2048 in seed-3.json and 1024 here"
    for sources, scale, words in (
        (["width"], "smoke", "belongs to the study width at scale smoke, not dose at smoke"),
        (["mine"], "gpu", "belongs to the study dose at scale smoke, not dose at gpu"),
        (["mine", "changed"], "smoke", tokens),
        (["mine", "again"], "smoke", "a copy is not another seed"),
        (["half"], "smoke", "lacks settings: delete it and run the piece again"),
    ):
        given = [x for source in sources for x in ("--from", tmp_path / source)]
        code, _, err = command("study", "dose", "--scale", scale, "--merge", *given, "--out", tmp_path / "o")
        assert code == 2
        assert words in err
        assert not (tmp_path / "o").exists()
    code, _, _ = command("study", "dose", "--merge", "--from", tmp_path / "mine", "--out", tmp_path / "o")
    assert code == 0
    before = sorted(p.name for p in (tmp_path / "o" / "pieces").iterdir())
    code, _, err = command("study", "dose", "--merge", "--from", tmp_path / "changed", "--out", tmp_path / "o")
    assert code == 2
    assert tokens in err
    assert sorted(p.name for p in (tmp_path / "o" / "pieces").iterdir()) == before


def test_a_second_process_on_a_piece_is_refused(tmp_path):
    study = toy()
    settings = settings_of(study, "gpu")

    def work(piece, inner, shop):
        with pytest.raises(ValueError, match="being run by another process"):
            pieces.run(toy(), "gpu", tmp_path, settings, pieces=["1"])
        return {"value": 1.0}

    pieces.run(toy(work), "gpu", tmp_path, settings, pieces=["1"])


def test_the_same_seed_twice_is_not_two_seeds():
    study = studies.STUDIES["counteract"]
    settings = settings_of(study, "smoke")
    found = of_seeds(study, "smoke", settings, lambda arm, s: run(), [1])
    with pytest.raises(ValueError, match="a copy is not another seed"):
        study.conclude([*found, {**found[0], "piece": "copy"}], settings)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path, command):
    tmp_path.chmod(0o500)
    code, _, err = command("study", "theory", "--out", tmp_path / "o")
    assert code == 2
    assert "must be writable" in err


def test_rounded_and_names():
    assert rounded({"a": [1.23456789, float("nan")], "b": (1, "x", None, True)}) == {
        "a": [1.23457, None],
        "b": [1, "x", None, True],
    }
    assert safe_name("λ −0.3, τ 1/2") == "lambda--0.3-tau-1-2"
    assert safe_name("Qwen/Qwen2.5-0.5B") == "Qwen-Qwen2.5-0.5B"


def test_an_interrupted_piece_keeps_its_finished_arms(tmp_path, monkeypatch):
    study = studies.STUDIES["counteract"]
    settings = settings_of(study, "smoke")
    trained = []

    def one_arm(arm, seed, inner, shop, teacher):
        trained.append((seed, arm))
        (shop.folder / "run").mkdir(exist_ok=True)
        (shop.folder / "run" / "weights").write_text("x")
        if len(trained) == 2:
            raise KeyboardInterrupt
        return run(hardware="here", versions={"torch": "2.0"})

    monkeypatch.setattr("decondense.studies.training._one_arm", one_arm)
    with pytest.raises(KeyboardInterrupt):
        pieces.run(study, "smoke", tmp_path, settings, pieces=["1"])
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["cross-entropy.json"]
    pieces.run(study, "smoke", tmp_path, settings, pieces=["1"])
    assert trained == [(1, "cross-entropy"), (1, "dispersion"), (1, "dispersion")]
    assert not (tmp_path / ".work").exists()
    assert json.loads((tmp_path / "result.json").read_text())["hardware"] == "here"


def test_a_piece_may_be_cut_into_smaller_ones(tmp_path, monkeypatch):
    """What an interrupted piece has finished is as good as a piece of those arms alone."""
    study = studies.STUDIES["counteract"]
    settings = settings_of(study, "smoke")
    monkeypatch.setattr(
        "decondense.studies.training._one_arm", lambda *a: run(hardware="here", versions={"torch": "2.0"})
    )
    pieces.run(study, "smoke", tmp_path, settings, pieces=["1"])
    cut = settings_of(study, "smoke", ["arms_per_piece=1"])
    found = pieces.run(study, "smoke", tmp_path, cut, pieces=["seed-2-dispersion", "seed-3-cross-entropy"])
    assert sorted(found["pieces"]) == ["seed-1", "seed-2-dispersion", "seed-3-cross-entropy"]
    assert found["command"] == "decondense study counteract --scale smoke"
    assert found["estimate"]["mean_cosine"]["n"] == 1  # seed 1 alone has both arms
    with pytest.raises(ValueError, match="seed 1 of 'cross-entropy' is in two pieces"):
        pieces.run(study, "smoke", tmp_path, cut, pieces=["seed-1-cross-entropy"])


def test_an_arm_that_diverged_is_undecided_and_not_an_error():
    study = studies.STUDIES["dose"]
    settings = settings_of(study, "smoke")
    lost = run(held_out=3.0)
    lost["held_out"][-1][1] = None
    found = of_seeds(study, "smoke", settings, lambda arm, s: lost if (arm, s) == ("λ +1", 2) else run(), [1, 2, 3])
    end = study.conclude(found, settings)
    assert end.verdict == "undecided"
    assert "without a value" in end.sentence


def test_a_training_that_goes_on_says_so_now_and_then(monkeypatch):
    from decondense.studies import training

    clock = iter([0.0, 1.0, 29.0, 31.0, 31.0, 40.0, 61.5, 61.5])
    monkeypatch.setattr(training.time, "monotonic", lambda: next(clock))
    said = []
    tell = training._now_and_then(lambda *values: said.append(values))
    for step in range(5):
        tell(step, {})
    assert said == [(2, {}), (4, {})]
