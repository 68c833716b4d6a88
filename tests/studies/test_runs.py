"""Run folders: made, resumed, copied, merged and taken over, with a training that computes nothing."""

from __future__ import annotations

import json
import os
import shutil
import sys

import numpy as np
import pytest
import yaml
from study_runs import of_seeds, packed, run, scored, write

from decondense import records, studies
from decondense.needs import MissingExtra
from decondense.studies import core, settings_of, work
from decondense.studies.runs import Members, Run, read_run

STUDIES = studies.STUDIES
FILES = ("result.json", "config.yaml", "table.csv", "figure.png")
COUNTERACT = STUDIES["counteract"]


def content(folder):
    return {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}


def names(folder):
    return sorted(path.name for path in (folder / "runs").iterdir())


def lower(arm, seed):
    return run(cosine=0.5 - 0.1 * (arm == "dispersion") + seed / 100)


def make(name, folder, scale="smoke", changes=(), seeds=None, **options):
    """The study, as `decondense study` runs it."""
    study = STUDIES[name]
    return studies.run(study, scale, folder, settings_of(study, scale, changes, seeds), **options)


def written(name, folder, scale="gpu", changes=(), seeds=(1, 2, 3), numbers=lambda arm, seed: run(held_out=seed)):
    """The folder of a study whose runs have these numbers."""
    settings = settings_of(STUDIES[name], scale, changes)
    runs = of_seeds(settings, numbers, list(seeds))
    write(folder, STUDIES[name], scale, settings, runs)
    return runs


@pytest.fixture(autouse=True)
def _described(monkeypatch):
    """A figure is what would be drawn, in words: drawing would take nine tenths of the time here. test_smoke.py draws
    that of every study, and compares its bytes where one was killed and repeated."""

    def describe(strips, path):
        with np.printoptions(threshold=sys.maxsize):
            path.write_text(repr(strips))

    monkeypatch.setattr("decondense.figures.studies.draw", describe)


@pytest.fixture
def trained(monkeypatch):
    """What would have been trained, instead of training it; `stop` names a run at which the process is interrupted."""

    class Asked(list):
        stop = ""

    asked = Asked()

    def train(planned, shop):
        asked.append(planned.name)
        folder = shop.work / planned.name
        (folder / "model").mkdir(parents=True, exist_ok=True)
        (folder / "model" / "weights.safetensors").write_bytes(b"x" * 1000)
        if planned.name == asked.stop:
            asked.stop = ""
            raise KeyboardInterrupt
        made = of_seeds(shop.settings, lambda arm, s: lower(arm, s) | {"hardware": "here"}, [planned.seed])
        return next(one for one in made if one.name == planned.name)

    monkeypatch.setattr(work, "_trained", train)
    return asked


def test_run_writes_a_whole_folder(tmp_path, trained):
    record = make("counteract", tmp_path / "o")
    assert record == records.read(tmp_path / "o")
    assert (record.schema_, record.verdict) == ("decondense.study/2", "reproduced")
    assert record.sentence.startswith("reproduced: ")
    assert record.headline.startswith("mean cosine, dispersion minus cross-entropy: −")
    assert record.headline.endswith(record.sentence[-50:])  # which say that this is smoke scale
    assert record.runs == names(tmp_path / "o") == sorted(trained)
    assert trained[:2] == ["cross-entropy-seed-1", "dispersion-seed-1"]  # whole seeds first
    assert record.command == "decondense study counteract --scale smoke"
    assert record.config == settings_of(COUNTERACT, "smoke")
    assert sorted(p.name for p in (tmp_path / "o").iterdir()) == sorted([*FILES, "runs"])
    one = records.read(tmp_path / "o" / "runs" / "dispersion-seed-2")
    assert (one.arm, one.recipe["train"]["seed"]) == ("dispersion", 2)
    assert (one.seconds, one.tokens_per_second) == (None, None)  # the claim is not about speed


def test_runs_in_any_order_on_any_machine_give_the_same_bytes(tmp_path, trained):
    expected = None
    parts = ["1,2", "*-seed-2", "cross-entropy-seed-3,dispersion-seed-3"]
    for number, order in enumerate((parts, parts[::-1])):
        target = tmp_path / f"{number}"
        machines = [tmp_path / f"{number}-{place}" for place in range(3)]
        for machine, some in zip(machines, order):
            make("counteract", machine, pieces=some.split(","))
        studies.collect(COUNTERACT, "smoke", target, [*machines, machines[0] / "runs"])
        studies.conclude(COUNTERACT, "smoke", target)
        expected = expected or content(target)
        assert content(target) == expected
        assert set(expected) == set(FILES)


def test_interrupted_and_repeated_is_the_same_bytes(tmp_path, trained):
    make("counteract", tmp_path / "a")
    for trained.stop in ("dispersion-seed-1", "cross-entropy-seed-3"):
        with pytest.raises(KeyboardInterrupt):
            make("counteract", tmp_path / "b")
        assert not (tmp_path / "b" / "result.json").exists()
    assert list((tmp_path / "b" / ".work").rglob("weights*"))  # to be resumed from
    make("counteract", tmp_path / "b")
    assert trained[6:] == [*trained[:2], *trained[1:5], *trained[4:6]]  # what was finished is not made again
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert not (tmp_path / "b" / ".work").exists()
    assert not list(tmp_path.rglob("weights*"))


def test_interrupted_before_any_work_leaves_nothing_and_names_nothing(command, tmp_path, monkeypatch):
    def train(planned, shop):
        raise KeyboardInterrupt

    monkeypatch.setattr(work, "_trained", train)
    code, out, err = command("study", "counteract", "--out", tmp_path / "o")
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == "interrupted: the same command goes on with what is missing."
    assert str(tmp_path) not in err
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--set", "base.data.text=novels:train"], "'novels' is read from a local folder only"),
        (["--reuse", "."], "no training runs"),
    ],
)
def test_what_fails_at_once_leaves_nothing(refusal, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    assert sentence in refusal("study", "counteract", *arguments, "--out", "o/p")
    assert not (tmp_path / "o").exists()


def test_nothing_run_is_undecided_not_run(tmp_path):
    record = studies.conclude(COUNTERACT, "gpu", tmp_path)
    assert (record.verdict, record.sentence) == ("undecided", "undecided: not run.")
    assert record.headline == "not run"


def test_packages_for_the_tasks_are_missed_before_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr("decondense.needs.find_spec", lambda name: None)
    monkeypatch.setattr(work, "_carry_out", lambda *options: pytest.fail("trained first"))
    with pytest.raises(MissingExtra, match=r"for its tasks, needs lm-eval .*: pip install 'decondense\[evaluate\]'"):
        make("release", tmp_path / "o", "gpu", bench=str(tmp_path), pieces=["1"])


def test_other_seeds_and_settings_are_in_the_command(tmp_path, trained):
    record = make("counteract", tmp_path / "a", changes=["base.data.tokens=2048"], seeds=[7, 8, 9])
    assert record.command == "decondense study counteract --scale smoke --seeds 7,8,9 --set base.data.tokens=2048"
    assert record.config["seeds"] == [7, 8, 9]
    record = make("counteract", tmp_path / "b", pieces=["1", "2", "*-seed-2", "5"])
    assert record.command.endswith("--scale smoke")  # the seeds are those of the runs: 1, 2 and half of 3
    assert "2 of at least 3 training seeds" in record.sentence


def test_how_closely_a_run_was_looked_at_does_not_matter_where_it_was_does(tmp_path):
    """Fewer or plainer snapshots belong, and the run keeps its own; none, or others in size, do not."""
    settings = settings_of(COUNTERACT, "smoke")
    members = Members([], settings)
    one = of_seeds(settings, lower, [1])[0]

    def taken(**snapshots):
        recipe = one.record.recipe | {"snapshots": one.record.recipe["snapshots"] | snapshots}
        return members.take(one._replace(record=one.record.model_copy(update={"recipe": recipe})))

    count = one.record.recipe["snapshots"]["count"]
    run, reason = taken(count=count + 3, spectral=True, probes=True)
    assert (reason, run.record.recipe["snapshots"]["count"]) == ("", count + 3)
    said = f"snapshots.count is 'none' in the run and 'some' in the arm {one.record.arm!r} here"
    assert taken(count=0) == (None, said)
    assert taken(windows=one.record.recipe["snapshots"]["windows"] + 1)[1].startswith("snapshots.windows is ")


def test_what_runs_that_are_there_differ_in_nevertheless_is_named(tmp_path):
    """They belong, but the settings, and so the command in the result, say something else of them."""
    changes = {
        "base.snapshots.count=7": "already done, but with snapshots.count 1 (7 in the settings)",
        "base.train.micro_batch=1": "already done, but with train.micro_batch null (1 in the settings)",
        "base.train.device=cpu": "already done",
    }
    written("screen", tmp_path, "smoke", seeds=[1])
    for change, words in [("base.data.tokens=1024", "already done"), *changes.items()]:
        said = []
        make("screen", tmp_path, changes=[change], say=said.append)
        assert {one.partition(": ")[2] for one in said} == {words}
    said.clear()
    make("screen", tmp_path, changes=list(changes), say=said.append, pieces=["1"])
    assert "with snapshots.count 1 (7 in the settings) and train.micro_batch null (1 in the settings)" in said[0]


def test_a_run_of_train_counts_whatever_its_folder_is_called(tmp_path, trained):
    """Its recipe says which arm and seed it is. Name, device and the like do not matter, everything else does."""
    plain = of_seeds(settings_of(COUNTERACT, "smoke"), lower, [1, 2, 3])
    for number, one in enumerate(plain):
        recipe = one.record.recipe | {"name": "mine"}
        recipe = recipe | {"train": recipe["train"] | {"device": "cuda", "compile": "auto"}}
        # as a version had it that did not know this key
        recipe["loss"] = {key: value for key, value in recipe["loss"].items() if key != "release_at"}
        record = one.record.model_copy(update={"arm": None, "recipe": recipe, "seconds": 5.0})
        work.save_run(Run(f"run-{number}", record), tmp_path / "plain")
    studies.collect(COUNTERACT, "smoke", tmp_path / "o", [tmp_path / "plain"])
    assert names(tmp_path / "o") == sorted(one.name for one in plain)
    assert studies.conclude(COUNTERACT, "smoke", tmp_path / "o").verdict == "reproduced"
    shutil.copytree(tmp_path / "plain", tmp_path / "dropped" / "runs")
    record = make("counteract", tmp_path / "dropped")
    assert (trained, record.verdict) == ([], "reproduced")
    assert record.runs == [f"run-{number}" for number in range(6)]
    shutil.copytree(tmp_path / "plain" / "run-3", tmp_path / "dropped" / "runs" / "again")
    with pytest.raises(ValueError, match="is in two runs, again and run-3: a copy is not another seed"):
        studies.conclude(COUNTERACT, "smoke", tmp_path / "dropped")


def test_merge_names_the_runs_that_are_missing(command, tmp_path):
    mine = written("dose", tmp_path, "smoke", seeds=[1, 2, 3])
    assert "missing" not in command("study", "dose", "--merge", "--out", tmp_path)[2]
    for one in mine[:2]:
        shutil.rmtree(tmp_path / "runs" / one.name)
    (tmp_path / "runs" / mine[2].name).rename(tmp_path / "runs" / "another name")  # belongs by its recipe
    said = f"2 of {len(mine)} runs are missing; without --merge they are made: {mine[0].name}, {mine[1].name}\n"
    assert said in command("study", "dose", "--merge", "--out", tmp_path)[2]
    for one in mine[3:7]:
        shutil.rmtree(tmp_path / "runs" / one.name)
    said = command("study", "dose", "--merge", "--out", tmp_path)[2]
    assert f"6 of {len(mine)} runs are missing" in said
    assert said.endswith(f"{mine[5].name} and 1 more\n")
    assert "missing" not in command("study", "dose", "--merge", "--out", tmp_path, "--json")[2]


def test_a_merge_that_was_interrupted_is_repeated(command, tmp_path, monkeypatch):
    """Also in a folder that held nothing but runs, with figures drawn and no result yet."""
    written("dose", tmp_path, "smoke", seeds=[1, 2, 3])
    (tmp_path / "config.yaml").unlink(missing_ok=True)

    def interrupt(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("decondense.studies.core.write_csv", interrupt)
        assert command("study", "dose", "--merge", "--out", tmp_path)[0] == 130
    assert (tmp_path / "figure.png").is_file()
    assert command("study", "dose", "--merge", "--out", tmp_path)[0] == 0


def test_a_seed_of_which_nothing_is_there_is_missing_in_every_merge(command, tmp_path):
    """The scale has 3, and 4 is one more."""
    written("dose", tmp_path, "smoke", seeds=[1, 2, 4])
    for planned in (9, 12):
        said = command("study", "dose", "--merge", "--out", tmp_path)[2]
        assert said.startswith(f"3 of {planned} runs are missing; without --merge they are made: lambda--1-seed-3, ")
        assert records.read(tmp_path).config["seeds"] == [1, 2, 4]  # what the result rests on
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["seeds"] == [1, 2, 3, 4]


def test_conclude_gets_whole_records(tmp_path):
    """Losses by document, as the next study needs them, are there after merging."""
    documents = [{"text": "t", "document": 3, "tokens": 7, "loss": 2.5}]
    history = [{"step": s, "tokens": s, "loss": 1.0, "grad_norm": 0.5} for s in range(1, 1000)]
    made = run(held_out_documents=documents, history=history)
    written("counteract", tmp_path / "a", "smoke", seeds=[1], numbers=lambda arm, s: dict(made))
    studies.collect(COUNTERACT, "smoke", tmp_path / "b", [tmp_path / "a"])
    kept = records.read(tmp_path / "b" / "runs" / "dispersion-seed-1")
    assert [one.model_dump() for one in kept.held_out_documents] == documents
    assert 50 < len(kept.history) <= 62
    assert (kept.history[0].step, kept.history[-1].step, kept.history[-1].grad_norm) == (1, 999, 0.5)
    studies.collect(COUNTERACT, "smoke", tmp_path / "c", [tmp_path / "b"])  # what is small stays as it is
    files = [tmp_path / x / "runs" / "dispersion-seed-1" / "result.json" for x in "bc"]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_merge_copies_nothing_that_does_not_belong(command, refusal, tmp_path):
    """All runs are looked at before the first is copied."""
    mine = written("dose", tmp_path / "mine", "smoke", seeds=[1, 2])
    written("width", tmp_path / "width", "smoke", seeds=[1, 2])
    written("dose", tmp_path / "changed", "smoke", ["base.data.tokens=2048"], [3])
    written("dose", tmp_path / "again", "smoke", seeds=[2], numbers=lambda arm, s: run(held_out=1.0))
    written("dose", tmp_path / "damaged", "smoke", seeds=[1])
    (tmp_path / "damaged" / "runs" / mine[0].name / "result.json").write_text("{")
    (tmp_path / "empty").mkdir()
    tokens = "data.tokens is 2048 in the run and 1024 in the arm"
    for sources, scale, words in (
        (["width"], "smoke", "belongs to the study width at scale smoke, not dose at smoke"),
        (["mine"], "gpu", "belongs to the study dose at scale smoke, not dose at gpu"),
        (["width/runs"], "smoke", "no run at"),
        (["mine", "changed/runs"], "smoke", tokens),
        (["mine", "again"], "smoke", "is there twice with different numbers"),
        (["damaged"], "smoke", "(char 1); delete it and make the result again, or leave it out."),
        (["empty"], "smoke", "there is no finished run"),
    ):
        given = [x for source in sources for x in ("--from", tmp_path / source)]
        assert words in refusal("study", "dose", "--scale", scale, "--merge", *given, "--out", tmp_path / "o")
        assert not (tmp_path / "o").exists()
    code, out, _ = command("study", "dose", "--merge", "--from", tmp_path / "mine", "--out", tmp_path / "o")
    assert code == 0
    assert "undecided: " in out
    record = json.loads((tmp_path / "o" / "result.json").read_text())
    assert (len(record["runs"]), record["config"]["seeds"]) == (6, [1, 2])
    assert json.loads(command("study", "dose", "--merge", "--out", tmp_path / "o", "--json")[1]) == record
    before = names(tmp_path / "o")
    assert tokens in refusal("study", "dose", "--merge", "--from", tmp_path / "changed", "--out", tmp_path / "o")
    assert names(tmp_path / "o") == before
    mixed = tmp_path / "mixed"
    shutil.copytree(tmp_path / "mine" / "runs", mixed)
    shutil.copytree(tmp_path / "changed" / "runs", mixed / "more")
    _, _, err = command("study", "dose", "--merge", "--from", mixed, "--out", tmp_path / "p")
    assert "3 runs" in err
    assert "do not belong and are left out" in err
    assert names(tmp_path / "p") == before


def test_runs_of_other_settings_or_studies_are_refused_before_work(tmp_path, trained):
    make("counteract", tmp_path, pieces=["1"])
    with pytest.raises(ValueError, match=r"data\.tokens is 1024 in the run and 2048 in the arm 'cross-entropy' here"):
        make("counteract", tmp_path, changes=["base.data.tokens=2048"], pieces=["2"])
    with pytest.raises(ValueError, match="belongs to the study counteract at scale smoke"):
        make("counteract", tmp_path, "gpu")
    assert trained == ["cross-entropy-seed-1"]


def test_a_second_process_on_a_run_is_refused(tmp_path, monkeypatch):
    def train(planned, shop):
        with pytest.raises(ValueError, match="being made by another process"):
            make("counteract", tmp_path, pieces=["1"])
        return of_seeds(shop.settings, lower, [1])[0]

    monkeypatch.setattr(work, "_trained", train)
    make("counteract", tmp_path, pieces=["1"])


@pytest.mark.parametrize("merge", [[], ["--merge"], ["--merge", "--from", "mine"]])
def test_a_folder_with_another_result_is_left_alone(merge, refusal, tmp_path, monkeypatch):
    """Its result.json and config.yaml would be replaced. So would be those of a run that is not finished."""
    monkeypatch.chdir(tmp_path)
    mine = written("width", tmp_path / "mine", "smoke", seeds=[1, 2])
    there = tmp_path / "there"
    there.mkdir()
    for file, content in (("result.json", mine[0].record.to_json()), ("recipe.yaml", "model: {}")):
        (there / file).write_text(content)
        assert "'there' holds a training: choose another folder with --out." in refusal(
            "study", "width", "--out", "there", *merge
        )
        assert [(p.name, p.read_text()) for p in there.iterdir()] == [(file, content)]
        (there / file).unlink()


def test_a_damaged_config_is_one_sentence(refusal, tmp_path):
    for damaged in ("{", "command: study\ncommand: study", "[" * 100_000):
        (tmp_path / "config.yaml").write_text(damaged)
        for merge in ([], ["--merge"]):
            assert "config.yaml' must be YAML: remove it" in refusal("study", "width", "--out", tmp_path, *merge)


def test_merging_a_folder_that_does_not_exist_is_refused(refusal, tmp_path):
    said = refusal("study", "width", "--merge", "--out", tmp_path / "there")
    assert f"no study at {str(tmp_path / 'there')!r}: --merge runs nothing" in said
    assert not (tmp_path / "there").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path, refusal):
    tmp_path.chmod(0o500)
    assert "must be writable" in refusal("study", "theory", "--out", tmp_path / "o")


def test_the_time_that_all_runs_still_take_is_said(tmp_path, monkeypatch):
    clock = iter([0.0, 60.0, 200.0])
    monkeypatch.setattr(core.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(core, "make", lambda planned, shop: None)
    monkeypatch.setattr(core, "conclude", lambda *given, **options: None)
    said = []
    make("counteract", tmp_path, pieces=["1", "2", "3"], say=said.append)
    assert said == ["  2 runs to go, about 2 min", "  1 run to go, about 100 s"]


# ---- runs taken over: only the same recipe and seed, only with what is asked for ----


def with_scores(arm, seed, **changes):
    settings = settings_of(STUDIES["benchmarks"], "gpu") | changes
    tasks = {"piqa": packed(np.random.default_rng(seed), 0.5)}
    return lower(arm, seed) | {"outcomes": scored(tasks, f"{arm}{seed}", settings, piqa=0.5)}


def test_counteract_needs_no_training_beside_benchmarks(tmp_path, trained):
    written("benchmarks", tmp_path / "benchmarks", numbers=with_scores)
    said = []
    record = make("counteract", tmp_path / "o", "gpu", reuse=[tmp_path], say=said.append)  # wherever below
    assert trained == []
    assert (record.verdict, record.hardware) == ("reproduced", "a machine")
    folder = tmp_path / "o" / "runs" / "dispersion-seed-2"
    assert records.read(folder).origin == f"{tmp_path.name}/benchmarks/runs/dispersion-seed-2"
    assert [p.name for p in folder.iterdir()] == ["result.json"]  # without the outcomes, which it does not ask for
    assert any("(from " in sentence for sentence in said)
    make("counteract", tmp_path / "p", "gpu", reuse=[tmp_path / "o"])  # taken over twice, it names its maker
    assert records.read(tmp_path / "p" / "runs" / "dispersion-seed-2").origin == records.read(folder).origin


def test_what_is_missing_is_trained(tmp_path, trained):
    written("dose", tmp_path / "dose")
    record = make("estimators", tmp_path / "o", "gpu", reuse=[tmp_path / "dose"])
    others = ["exact", "second-order", "sampled"]
    assert trained == [f"{arm}-seed-{seed}" for seed in (1, 2, 3) for arm in others]
    numbers = {(row[0], row[1]): (row[2], row[9]) for row in record.table.rows}
    assert (numbers["first order", 2], numbers["exact", 2]) == ((2, None), (3.0, 1000.0))  # not timed beside the others
    assert record.hardware == "a machine; here"


def test_another_recipe_or_too_little_kept_is_another_run(tmp_path, trained):
    written("width", tmp_path / "width")
    make("init", tmp_path / "a", "gpu", reuse=[tmp_path / "width"])
    assert trained == []
    make("init", tmp_path / "b", "gpu", ["base.data.tokens=46M"], reuse=[tmp_path / "width"])
    assert len(trained) == 3

    def bare(arm, seed):
        made = run()
        return made | {"snapshots": [{k: v for k, v in s.items() if k != "histogram"} for s in made["snapshots"]]}

    written("width", tmp_path / "bare", numbers=bare)
    make("init", tmp_path / "c", "gpu", reuse=[tmp_path / "bare"])
    assert len(trained) == 6


def test_of_two_trainings_with_one_recipe_the_caller_names_one(tmp_path, trained):
    """The same recipe and seed gave two results, as on a GPU: whichever was found first would decide."""
    written("width", tmp_path / "once")
    written("width", tmp_path / "again", numbers=lambda arm, seed: run(held_out=seed + 0.001))
    told = r"--reuse must lead to one run .*, got again/\S+ and once/\S+ with different numbers: name the folder"
    with pytest.raises(ValueError, match=told):
        make("init", tmp_path / "a", "gpu", reuse=[tmp_path / "again", tmp_path / "once"])
    assert not list((tmp_path / "a").rglob("result.json"))
    make("init", tmp_path / "b", "gpu", reuse=[tmp_path / "once"])
    make("init", tmp_path / "c", "gpu", reuse=[tmp_path / "once", tmp_path / "b"])  # one run and its copy
    assert trained == []


def test_tasks_must_be_the_same(tmp_path, trained):
    written("benchmarks", tmp_path / "zero", numbers=lambda arm, s: with_scores(arm, s, shots="zero"))
    written("benchmarks", tmp_path / "none")
    make("benchmarks", tmp_path / "a", "gpu", reuse=[tmp_path / "zero", tmp_path / "none"], pieces=["1"])
    assert trained == ["cross-entropy-seed-1"]
    written("benchmarks", tmp_path / "same", numbers=with_scores)
    make("benchmarks", tmp_path / "b", "gpu", reuse=[tmp_path / "zero", tmp_path / "same"])
    assert len(trained) == 1
    settings = settings_of(STUDIES["benchmarks"], "gpu")
    members = Members(STUDIES["benchmarks"].plan(settings), settings)
    assert "other settings" in members.take(read_run(tmp_path / "zero" / "runs" / "dispersion-seed-1"))[1]


def test_a_shared_device_keeps_no_times(tmp_path, trained):
    record = make("estimators", tmp_path / "o", "gpu", timed=False)
    kept = json.loads((tmp_path / "o" / "runs" / "exact-seed-1" / "result.json").read_text())
    assert (kept["seconds"], kept["tokens_per_second"]) == (None, None)
    assert "against cross-entropy: not measured" in record.sentence
