"""Fixtures that every test may use. Tests that need the shared folder of weights and texts skip without it."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import logging
import os
import pkgutil
import re
import shlex
import sys
import threading
from pathlib import Path

import pytest
import typer.main
from processes import FORKS_WORKERS, server


def choose_interpreter() -> None:
    """The kernels' tests want Triton's interpreter, which must be chosen before anything imports Triton. The tests of
    other packages must not take the interpreter for a GPU, so the word is taken back when the choice is made."""
    import torch

    loaded = sys.modules.get("triton.language.standard")  # by tests/processes.py, or by something that has not chosen
    if loaded is not None and type(loaded.cdiv).__name__ != "InterpretedFunction":
        return
    if torch.cuda.is_available() or "TRITON_INTERPRET" in os.environ:
        return
    os.environ["TRITON_INTERPRET"] = "1"
    with contextlib.suppress(ImportError):
        import triton.experimental.gluon  # noqa: F401  a part of Triton that makes the same choice, at first use

        from decondense import kernels

        for module in pkgutil.iter_modules(kernels.__path__):
            importlib.import_module(f"{kernels.__name__}.{module.name}")
    del os.environ["TRITON_INTERPRET"]


gc.set_threshold(50_000, 20, 20)  # by default a tenth of the time of imports and traces is the collector's
# The process that only tells workers what to do (`-n 3`) can spare the seconds of torch and Triton.
if "PYTEST_XDIST_WORKER" in os.environ or not re.search(r" -n ?[1-9al]", " ".join(sys.argv)):
    choose_interpreter()
# pytest would look through thousands of loggers three times in every test to listen to them, which no test asks of it
# (pyproject.toml: no:logging). As with pytest, what is logged does not end up on the screen that tests look at.
logging.getLogger().addHandler(logging.NullHandler())
gc.get_freeze_count = lambda: 1  # there is some, and to count it takes a study longer than a step of its training
typer.main.get_command = functools.cache(typer.main.get_command)  # hundreds of tests call the command, which is one
os.environ.pop("COLUMNS", None)  # a worker is told 80, and tables would not be those of a pipe
ROOT = Path(__file__).resolve().parent.parent
# They kill processes, launch several, run a shell script or make links, all of it in the manner of POSIX.
POSIX = (
    "losses/test_context_parallel.py", "regularize/test_distributed.py", "train/test_distributed.py",
    "train/test_resume.py", "test_doc_shell.py", "test_fsdp2.py", "test_launch.py", "test_torchtitan.py",
)  # fmt: skip
collect_ignore = [*POSIX] if sys.platform == "win32" else []
# They take longest, and come first, so that the workers of `make test`, of which each takes whole files, end together.
LONGEST = (
    "studies/test_smoke.py", "regularize/test_fullgraph.py", "kernels/test_operators.py", "report/test_browser.py",
    "train/test_fast.py", "test_distribution.py", "test_doc_shell.py", "test_docs.py", "kernels/test_routines.py",
    "test_fuzz.py", "report/test_access.py", "regularize/test_training.py", "test_cli.py", "test_torchtitan.py",
    "train/test_resume.py", "kernels/test_compiles.py", "regularize/test_steps.py", "studies/test_conclusions.py",
    "regularize/test_loop.py", "kernels/test_sixteen_bits.py", "regularize/test_modules.py", "evaluate/test_tasks.py",
    "losses/test_properties.py", "watch/test_monitor.py", "evaluate/test_agreement.py", "kernels/test_layers.py",
    "kernels/test_losses.py", "train/test_command.py", "losses/test_oracle.py", "kernels/test_eigenvalues.py",
    "report/test_plot.py", "test_fsdp2.py", "report/test_page.py", "stats/test_simulation.py",
    "studies/test_settings.py", "train/test_before_training.py", "stats/test_significance.py",
    "studies/test_paper_tables.py", "regularize/test_kinds.py",
    "evaluate/test_evaluation.py", "train/test_quantised.py", "losses/test_numerics.py", "meter/test_measure.py",
    "kernels/test_pairwise.py", "regularize/test_trl.py", "test_stages.py", "test_site.py", "train/test_controls.py",
    "stats/test_logs.py", "train/test_not_finite.py", "studies/test_runs.py", "train/test_distributed.py",
    "regularize/test_engines.py", "train/test_result.py", "train/test_probes.py", "regularize/test_lightning.py",
    "regularize/test_distributed.py", "test_bench_gpu_scripts.py", "evaluate/test_command.py",
    "regularize/test_model.py", "figures/test_figures.py", "stats/test_paired_tests.py", "test_theory.py",
    "stats/test_significance_command.py", "train/test_distillation.py", "test_package.py", "regularize/test_page.py",
    "losses/test_context_parallel.py", "meter/test_statistics.py", "meter/test_batches.py",
)  # fmt: skip
ASIDE = pytest.StashKey[int]()  # the full collection of garbage after which it is told to leave alone what there is


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {ROOT / "tests" / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def compile_tests(config: pytest.Config) -> None:
    """With pytest's assertions, into the files where it looks for them, as it does itself; without pytest's insides as
    they are now it is left to the workers."""
    from _pytest.assertion import rewrite

    for file in (ROOT / "tests").rglob("*.py"):
        with contextlib.suppress(Exception):
            place = rewrite.get_cache_dir(file) / (file.stem + rewrite.PYC_TAIL)
            if rewrite._read_pyc(file, place) is None:
                status, code = rewrite._rewrite_test(file, config)
                place.parent.mkdir(exist_ok=True)
                rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, status, place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list) -> None:
    """One process imports what tests/processes.py forks, the workers among it. It does so before them: after an
    installation it leaves the compiled files that every worker would make at the same time. Those of the tests are made
    here in the meantime."""
    if sys.platform == "linux":
        if not sys.dont_write_bytecode:
            threading.Thread(target=compile_tests, args=(config,)).start()
        server()
    if FORKS_WORKERS:
        for spec in specs:
            spec.python = shlex.join([sys.executable, str(ROOT / "tests" / "processes.py")])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Trainer collects garbage in every training, and looking through all that was imported, traced and remembered
    before takes longer than a small one: it is set aside, and what was added since after every few collections."""
    if gc.get_stats()[2]["collections"] >= item.config.stash.get(ASIDE, 0):
        gc.collect()
        gc.freeze()
        item.config.stash[ASIDE] = gc.get_stats()[2]["collections"] + 4


@pytest.fixture(autouse=True)
def _few_threads() -> None:
    """For every test: a script that a test runs may ask for more, which then wait for a core in all later tests."""
    import torch

    torch.set_num_threads(1 if os.environ.get("PYTEST_XDIST_WORKER") else 2)


@pytest.fixture(scope="session", autouse=True)
def _no_latency() -> None:
    """Of every graph torch measures how long its guards take, and empties the processor's caches first: a fifth of the
    time of a small graph, and the other worker has to fill its caches again."""
    guards = sys.modules.get("torch._dynamo.guards")
    if hasattr(guards, "profile_guard_manager"):
        guards.profile_guard_manager = lambda *_: 0.0
        settings = sys.modules["torch._dynamo.config"]
        with contextlib.suppress(AttributeError):  # of an older torch; else a message is made of every side effect
            settings.side_effect_replay_policy = "silent"
        with contextlib.suppress(AttributeError):  # every graph would collect garbage, which workers do often enough
            settings.run_gc_after_compile = False


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Without a GPU alone the generator that there is: for all others torch writes down, a millisecond each time, where
    they were asked for."""
    import torch

    (torch if torch.accelerator.is_available() else torch.default_generator).manual_seed(0)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real weights, texts and reference values: DECONDENSE_SHARED, else ../shared."""
    folder = Path(os.environ.get("DECONDENSE_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"SKIPPED WITHOUT REAL DATA: {folder} does not exist; set DECONDENSE_SHARED")
    return folder


@pytest.fixture
def unpainted(monkeypatch) -> None:
    """Figures are made, and are empty files: laying one out and painting it takes as long as a small measurement. For
    tests of words and numbers, of commands whose figures other tests look at."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    monkeypatch.setattr(FigureCanvasAgg, "print_png", lambda self, path, **metadata: Path(path).touch())


@pytest.fixture
def make_run(tmp_path):
    """make_run(name, {task: outcomes}, weights=…, checkpoint=…, settings=…) → folder."""
    from by_hand import write_run  # whose imports the process that only tells workers what to do can spare

    return lambda name, outcomes, **changes: write_run(tmp_path / name, outcomes, **changes)
