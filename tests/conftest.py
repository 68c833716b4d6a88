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
    """Choose Triton's interpreter for the tests of the kernels, before anything imports Triton. The variable is removed
    afterwards, so that the tests of other packages do not take the interpreter for a GPU."""
    import torch

    loaded = sys.modules.get("triton.language.standard")  # by tests/processes.py, or by something that did not choose
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


gc.set_threshold(50_000, 20, 20)  # by default the collector takes a tenth of the time of imports and traces
# xdist's controller (`-n 3`) runs no tests and saves the seconds of importing torch and Triton.
if "PYTEST_XDIST_WORKER" in os.environ or not re.search(r" -n ?[1-9al]", " ".join(sys.argv)):
    choose_interpreter()
# pytest's logging plugin is off (pyproject.toml: no:logging): it would go through thousands of loggers three times per
# test, and no test uses it. Like the plugin, this handler keeps logs out of the stderr that tests look at.
logging.getLogger().addHandler(logging.NullHandler())
gc.get_freeze_count = lambda: 1  # some objects are frozen, and counting them takes longer than a small training step
typer.main.get_command = functools.cache(typer.main.get_command)  # hundreds of tests call this one command
os.environ.pop("COLUMNS", None)  # xdist sets it to 80 for workers, and tables would not be those of a pipe
ROOT = Path(__file__).resolve().parent.parent
# These kill processes, launch several, run a shell script or make links, in ways that need POSIX.
POSIX = (
    "losses/test_context_parallel.py", "regularize/test_distributed.py", "train/test_distributed.py",
    "train/test_resume.py", "test_doc_shell.py", "test_fsdp2.py", "test_launch.py", "test_torchtitan.py",
)  # fmt: skip
collect_ignore = [*POSIX] if sys.platform == "win32" else []
# The longest test files, which come first, so that the workers of `make test`, which take whole files, end together.
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
ASIDE = pytest.StashKey[int]()  # the number of full garbage collections after which objects are frozen again


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {ROOT / "tests" / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def compile_tests(config: pytest.Config) -> None:
    """Compile the tests as pytest does, with its assertions and into the files where it looks for them. Where pytest's
    insides are no longer as they are now, compiling is left to the workers."""
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
    """Start the process of tests/processes.py that imports once and forks everything else, the workers included. It
    imports before the workers start, so that after an installation they do not all compile the same files at the same
    time. The test files are compiled here in the meantime."""
    if sys.platform == "linux":
        if not sys.dont_write_bytecode:
            threading.Thread(target=compile_tests, args=(config,)).start()
        server()
    if FORKS_WORKERS:
        for spec in specs:
            spec.python = shlex.join([sys.executable, str(ROOT / "tests" / "processes.py")])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Freeze all objects that exist, again after every few full collections: Trainer collects garbage in every
    training, and going through all that was imported, traced and cached takes longer than a small one.

    Set the number of threads before every test and its fixtures, whose sums depend on it: a script that a test ran may
    have set more, which would wait for a core in later tests.
    """
    import torch

    torch.set_num_threads(1 if os.environ.get("PYTEST_XDIST_WORKER") else 2)
    if gc.get_stats()[2]["collections"] >= item.config.stash.get(ASIDE, 0):
        gc.collect()
        gc.freeze()
        item.config.stash[ASIDE] = gc.get_stats()[2]["collections"] + 4


@pytest.fixture(scope="session", autouse=True)
def _no_latency() -> None:
    """Keep torch from timing the guards of every graph: for that it empties the processor's caches, which takes a fifth
    of the time of a small graph, and the other worker has to fill its caches again."""
    guards = sys.modules.get("torch._dynamo.guards")
    if hasattr(guards, "profile_guard_manager"):
        guards.profile_guard_manager = lambda *_: 0.0
        settings = sys.modules["torch._dynamo.config"]
        with contextlib.suppress(AttributeError):  # absent in older torch; the default makes a message per side effect
            settings.side_effect_replay_policy = "silent"
        with contextlib.suppress(AttributeError):  # every graph would collect garbage, which workers do often enough
            settings.run_gc_after_compile = False


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Seed torch; without a GPU only the CPU's generator, since for the others torch records where they were seeded,
    which takes a millisecond each time."""
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
    """Save figures as files of a word: laying one out and painting it takes as long as a small measurement. For tests
    of words and numbers, of commands whose figures other tests look at."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    monkeypatch.setattr(
        FigureCanvasAgg, "print_png", lambda self, path, **metadata: Path(path).write_bytes(b"unpainted")
    )


@pytest.fixture
def make_run(tmp_path):
    """make_run(name, {task: outcomes}, weights=…, checkpoint=…, settings=…) → folder."""
    from by_hand import write_run  # here, so that xdist's controller saves its imports

    return lambda name, outcomes, **changes: write_run(tmp_path / name, outcomes, **changes)
