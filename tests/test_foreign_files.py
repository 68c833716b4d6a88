"""Files that no command wrote are kept: every command refuses a folder where it would replace some, before it works."""

from __future__ import annotations

import functools
import pkgutil
import shlex
import shutil
from pathlib import Path

import pytest
from by_hand import cli, refused
from train.runs import content, saved, tiny

from decondense import cli as command_line
from decondense.files import to_yaml
from decondense.records import Study, read
from decondense.records.base import BESIDE

ROOT = Path(__file__).resolve().parent.parent
TEXT = " ".join(f"{n} people walked down to the harbour and {n * n} of them came back." for n in range(200))
WINDOWS = "--text a.txt --windows 3 --tokens 16"
COMMANDS = {
    "measurement": f"measure model {WINDOWS} --bootstrap 50 --released",
    "comparison": f"compare model model {WINDOWS}",
    "evaluation": "evaluate model --tasks none --text a.txt --text-tokens 16 --device cpu",
    "significance": "significance base treated --bootstrap 100",
    "training": "train small.yaml --set snapshots.count=1",
    "study": "study theory",
}
WITH_FORCE = [kind for kind in COMMANDS if kind not in ("training", "study")]
pytestmark = pytest.mark.usefixtures("unpainted")


@pytest.fixture
def place(tmp_path, monkeypatch, make_run) -> Path:
    """The current folder, with a model, a text, two evaluations and a recipe."""
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text(TEXT)
    Path("small.yaml").write_text(to_yaml(content()))
    saved(tmp_path / "model")
    for name, scores in {"base": [1.0, 0.0, 1.0, 0.0] * 5, "treated": [1.0, 1.0, 1.0, 0.0] * 5}.items():
        make_run(name, {"easy": scores})
    return tmp_path


def contents(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def written_into(folder: Path) -> set[str]:
    """What a command has written beside result.json, as `BESIDE` calls it."""
    shared = ("checkpoints", "snapshots")  # which hold files of others too
    paths = [inner for path in folder.iterdir() for inner in (path.iterdir() if path.name in shared else [path])]
    return {path.relative_to(folder).as_posix() for path in paths} - {"result.json", "results"}


def unknown(names: set[str], kind: str) -> set[str]:
    return {name for name in names if not any(Path(name).match(known) for known in BESIDE[kind])}


def figures_in(file: Path) -> list[str]:
    record = read(file)
    return record.figures if isinstance(record, Study) else []


def no_work(*args, **kwargs):
    raise AssertionError("the work was begun")


def forbid(patch: pytest.MonkeyPatch, work: str) -> None:
    """Put `no_work` in the place of a function, with its signature, which decides what a command passes on."""
    name = f"decondense.{work}"
    patch.setattr(name, functools.wraps(pkgutil.resolve_name(name))(lambda *args, **kwargs: no_work()))


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_command_refuses_every_name_that_it_writes(place, kind, monkeypatch):
    words = [*shlex.split(COMMANDS[kind]), "--out", "o"]
    done = cli(*words)
    assert done.returncode == 0, done.stderr
    written = written_into(Path("o"))
    assert unknown(written, kind) == set()
    works = {
        "measurement": "meter.run.measure", "comparison": "meter.compare.compare", "training": "train.run.prepare",
        "evaluation": "evaluate.harness.evaluate", "significance": "stats.significance.significance",
        "study": "studies.core.conclude",
    }  # fmt: skip
    with monkeypatch.context() as patch:
        forbid(patch, works[kind])
        with pytest.raises(AssertionError, match="the work was begun"):
            cli(*words[:-1], "free")
        for number, name in enumerate(sorted(written)):
            folder = Path(f"f{number}")
            path = folder / name / "mine" if (Path("o") / name).is_dir() else folder / name
            path.parent.mkdir(parents=True)
            path.write_text("x")
            said = refused(*words[:-1], folder)
            force = ", or replace it with --force" if kind in WITH_FORCE else ""
            assert said == (
                f"error: '{folder}' holds {name}, which belongs to no result and would be replaced: choose another "
                f"folder with --out{force}.\n"
            )
            above = [folder / up for up in path.relative_to(folder).parents if up != Path(".")]
            assert contents(folder) == dict.fromkeys(above) | {path: b"x"}


@pytest.mark.parametrize("kind", WITH_FORCE)
def test_force_replaces_them(place, kind):
    Path("o").mkdir()
    for name in BESIDE[kind][:3]:
        (Path("o") / name).write_text("x")
    words = [*shlex.split(COMMANDS[kind]), "--out", "o"]
    first, second, third = sorted(BESIDE[kind][:3])
    assert f"'o' holds {first}, {second} and {third}, which belong to no result and would be replaced: " in refused(
        *words
    )
    done = cli(*words, "--force")
    assert done.returncode == 0, done.stderr
    assert b"x" not in [(Path("o") / name).read_bytes() for name in BESIDE[kind][:3]]


@pytest.mark.parametrize("kind", COMMANDS)
def test_other_files_and_empty_folders_stay_where_they_are(place, kind):
    """So `--out .` is no mistake by itself."""
    others = [Path("o") / name for name in ("notes.md", "model.safetensors", "partial-2024-results.npz")]
    others += [Path("o") / "snapshots" / "mine.png", Path("o") / "checkpoints" / "runs" / "of-tensorboard"]
    (Path("o") / "model").mkdir(parents=True)
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    done = cli(*shlex.split(COMMANDS[kind]), "--out", "o")
    assert done.returncode == 0, done.stderr
    assert [path.read_text() for path in others] == ["mine"] * len(others)


def test_training_asked_to_go_on_where_there_is_no_run_replaces_nothing(place):
    """And neither does a rehearsal promise that it would."""
    mine = Path("o") / "model" / "config.json"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    for more in (["--resume"], ["--dry-run"], ["--dry-run", "--resume"]):
        code, _, err = cli(*shlex.split(COMMANDS["training"]), "--out", "o", *more)
        assert code == 2
        assert err.endswith(
            "'o' holds model, which belongs to no result and would be replaced: choose another folder with --out.\n"
        )
    assert list(contents(Path("o"))) == [mine.parent, mine]


@pytest.mark.parametrize("recipe", [to_yaml(content()), tiny().to_yaml(), "[", "x"])
def test_a_recipe_of_somebody_s_is_no_run(place, recipe):
    """Not even beside a model, and not even if it has every section."""
    shutil.copytree("model", "w/model")
    Path("w/recipe.yaml").write_text(recipe)
    before = contents(Path("w"))
    for more in ([], ["--resume"], ["--dry-run"], ["--dry-run", "--resume"]):
        code, _, err = cli("train", "small.yaml", "--out", "w", *more)
        assert code == 2
        assert err.endswith(
            "'w' holds model and recipe.yaml, which belong to no result and would be replaced: choose another folder "
            "with --out.\n"
        )
    assert contents(Path("w")) == before


def test_a_run_that_was_killed_is_one_with_and_without_a_checkpoint(place):
    """So is one whose result was damaged, and deleted."""
    Path("o/snapshots").mkdir(parents=True)
    Path("o/checkpoints/checkpoint-4").mkdir(parents=True)
    Path("o/checkpoints/checkpoint-4/model.safetensors").write_text("half")
    Path("o/recipe.yaml").write_text(tiny().to_yaml())
    for lost in ("snapshots/step-000000.json", "result.json"):
        Path("o", lost).unlink(missing_ok=True)
        assert "'o' already holds a run: add --resume to go on" in refused("train", "small.yaml", "--out", "o")
        done = cli("train", "small.yaml", "--out", "o", "--resume")
        assert done.returncode == 0, done.stderr
    shutil.rmtree("o/checkpoints")
    Path("o/result.json").unlink()
    assert "'o' already holds a run: add --resume to go on" in refused("train", "small.yaml", "--out", "o")


@pytest.mark.parametrize("kind", ["measurement", "comparison", "evaluation"])
def test_a_result_that_was_deleted_or_never_there_is_made_again(place, kind):
    """As the sentence about a damaged one advises, and as the files of an evaluation are moved one by one."""
    words = [*shlex.split(COMMANDS[kind]), "--out", "o"]
    assert cli(*words).returncode == 0
    whole = Path("o/result.json").read_bytes()
    Path("o/result.json").unlink()
    shutil.rmtree("o/results", ignore_errors=True)  # measurements of a comparison, which are results themselves
    if kind == "evaluation":
        Path("o/partial").mkdir()
        Path("o/partial/settings.json").write_text("{}")
    config = Path("o/config.yaml").read_text()
    Path("o/config.yaml").write_text("command: another")
    assert "'o' holds config.yaml, " in refused(*words)
    Path("o/config.yaml").write_text(config)
    done = cli(*words)
    assert done.returncode == 0, done.stderr
    assert Path("o/result.json").read_bytes() == whole


def test_an_unfinished_evaluation_is_ours_and_another_partial_is_not(place):
    words = [*shlex.split(COMMANDS["evaluation"]), "--out", "o"]
    partial = Path("o") / "partial"
    partial.mkdir(parents=True)
    (partial / "mine.csv").write_text("x")
    for more in ([], ["--fresh"]):
        assert "'o' holds partial, which belongs to no result and would" in refused(*words, *more)
    assert (partial / "mine.csv").read_text() == "x"
    (partial / "settings.json").write_text("{}")
    assert cli(*words).returncode == 0


def test_the_figures_of_every_study_are_known():
    figures = {name for file in (ROOT / "results" / "studies").rglob("result.json") for name in figures_in(file)}
    assert {"figure.png", "rates.png", "curves.png"} < figures
    assert unknown(figures, "study") == set()


def test_a_page_replaces_a_page_and_no_other_file(place, monkeypatch):
    cli(*shlex.split(COMMANDS["significance"]), "--out", "o")
    Path("notes.html").write_text("<!DOCTYPE html><title>mine</title>")
    with monkeypatch.context() as patch:
        patch.setattr("decondense.report.page.collect", no_work)
        assert refused("report", "o", "--out", "notes.html") == (
            "error: --out must name a page of this command or a new file, got 'notes.html', which is neither: choose "
            "another name, or replace it with --force.\n"
        )
    assert "mine" in Path("notes.html").read_text()
    for _ in range(2):
        done = cli("report", "o", "--out", "page.html")
        assert done.returncode == 0, done.stderr
    done = cli("report", "o", "--out", "notes.html", "--force")
    assert done.returncode == 0, done.stderr
    assert Path("notes.html").read_bytes() == Path("page.html").read_bytes()
    assert "--serve writes nothing, got --force" in refused("report", "o", "--serve", "--force")


def test_commands_that_write_folders_are_all_here():
    """A new command with --out is tested above as well, or writes one file."""
    functions = [command.callback for command in command_line.app.registered_commands]
    with_out = {f.__name__ for f in functions if {"out_dir", "out_file"} & set(f.__annotations__)}
    assert with_out == {words.split()[0] for words in COMMANDS.values()} | {"report"}
