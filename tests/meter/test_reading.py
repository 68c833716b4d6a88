"""How the windows of a measurement are read changes nothing in it: batches, interruptions, several processes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import launch
from tiny_models import SMALL

from decondense.meter import run
from decondense.meter.result import load
from decondense.meter.run import Interrupted, measure


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(stories, prose):
    options = SMALL | {"windows": 3}
    first, second = (measure(stories, text=prose, **options) for _ in range(2))
    assert first.to_json() == second.to_json()
    assert first.to_json() != measure(stories, text=prose, **(options | {"seed": 4})).to_json()


def test_batches_and_threads_do_not_change_the_numbers(stories, prose, whole):
    kept = torch.get_num_threads()
    try:
        for batch, threads in ((1, kept), (2, 1), (2, 3)):
            torch.set_num_threads(threads)
            other = measure(stories, text=prose, spectral=True, batch=batch, **SMALL)
            assert torch.get_num_threads() == threads
            assert other.mean_cosine == pytest.approx(whole.mean_cosine, abs=1e-6)
            for name in ("effective_rank", "isoscore"):
                assert other.values(name) == pytest.approx(whole.values(name), rel=1e-5)
    finally:
        torch.set_num_threads(kept)


def test_the_rows_of_windows_do_not_depend_on_the_batch_which_is_4_on_a_cpu(stories, prose, tmp_path, monkeypatch):
    monkeypatch.setenv("DECONDENSE_CHECKPOINT_SECONDS", "0")
    kept = {}
    for batch in (None, 4, 16):
        folder = tmp_path / str(batch)
        folder.mkdir()
        result = measure(stories, text=prose, spectral=True, batch=batch, partial=folder, **SMALL | {"windows": 18})
        assert result.record.settings["batch"] == (batch or 4)
        kept[batch] = np.load(folder / "partial-0.npz")
    assert all(np.array_equal(kept[None][name], kept[4][name], equal_nan=name == "rows") for name in ("counts", "rows"))
    assert kept[4]["windows"].tolist() == kept[16]["windows"].tolist() == list(range(18))
    assert kept[16]["rows"] == pytest.approx(kept[4]["rows"], rel=1e-4, abs=1e-5, nan_ok=True)
    moved = np.abs(kept[16]["counts"] - kept[4]["counts"]).sum() / kept[4]["counts"].sum()
    assert moved < 1e-3, "a cosine at the edge of a fine bin may be in the next one"


@pytest.mark.parametrize(
    ("device", "windows", "tokens", "world", "batch"),
    [
        ("cpu", 100, 512, 1, 4), ("cpu", 3, 4096, 8, 4),
        ("cuda", 100, 512, 1, 16), ("cuda", 100, 64, 1, 16), ("cuda", 100, 1024, 1, 8), ("cuda", 100, 100_000, 1, 1),
        ("cuda", 100, 512, 8, 13), ("cuda", 3, 512, 8, 1), ("cuda", 5, 512, 1, 5),
    ],
)  # fmt: skip
def test_a_gpu_gets_more_windows_at_once_but_every_process_its_share(device, windows, tokens, world, batch):
    assert run.windows_at_once(device, windows=windows, tokens=tokens, world=world) == batch


def test_processes_agree_on_a_batch(stories, prose, monkeypatch):
    """One without a GPU among others: the groups of windows must be those of all."""
    monkeypatch.setattr("decondense.meter.processes.gather", lambda item, world: [3, item] if item == 4 else [item])
    assert measure(stories, text=prose, **SMALL).record.settings["batch"] == 3


def test_interrupted_with_one_batch_and_resumed_with_another(stories, prose, whole, tmp_path):
    """What it is by default depends on the device and on the number of processes, which may be others by then."""

    def stop(done, total):
        if done >= 2:
            raise KeyboardInterrupt

    options = {"text": prose, "spectral": True, "released": True, "partial": tmp_path, **SMALL}
    with pytest.raises(Interrupted):
        measure(stories, progress=stop, batch=2, **options)
    seen = []
    resumed = measure(stories, resume=True, progress=lambda done, total: seen.append(done), **options)
    assert seen == [2, 4, 5]
    assert resumed.record.settings["batch"] == 4
    assert resumed.mean_cosine == pytest.approx(whole.mean_cosine, abs=1e-6)
    assert resumed.record.windows == whole.record.windows


def test_interrupted_and_resumed_is_byte_for_byte_the_whole(stories, prose, whole, tmp_path):
    def stop(done, total):
        if done >= 2:
            raise KeyboardInterrupt

    options = {"text": prose, "spectral": True, "released": True, "batch": 2, "partial": tmp_path, **SMALL}
    with pytest.raises(Interrupted) as caught:
        measure(stories, progress=stop, **options)
    partial = caught.value.result
    assert partial.record.windows_done == 2
    assert not partial.complete
    assert (tmp_path / "partial-0.npz").exists()
    seen = []
    resumed = measure(stories, resume=True, progress=lambda done, total: seen.append((done, total)), **options)
    assert seen == [(2, 5), (4, 5), (5, 5)]
    assert resumed.to_json() == whole.to_json()
    with pytest.raises(ValueError, match="another measurement"):
        measure(stories, resume=True, **(options | {"seed": 8}))


def test_what_two_processes_began_one_may_go_on_with_and_stop_again(stories, prose, whole, tmp_path, monkeypatch):
    """Every process keeps its own windows in its own file, so that none is there twice after any number of stops."""

    def stop_after(windows):
        def progress(done, total):
            if done >= windows:
                raise KeyboardInterrupt

        return progress

    options = {"text": prose, "spectral": True, "released": True, "batch": 1, "partial": tmp_path, **SMALL}
    for rank in (1, 0):
        monkeypatch.setattr("decondense.meter.processes.join_group", lambda rank=rank: (rank, 2))
        with pytest.raises(Interrupted):
            measure(stories, progress=stop_after(1), **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["partial-0.npz", "partial-1.npz"]
    for world, windows in ((2, 2), (2, 3), (1, 4)):
        monkeypatch.setattr("decondense.meter.processes.join_group", lambda world=world: (0, world))
        with pytest.raises(Interrupted) as caught:
            measure(stories, resume=True, progress=stop_after(windows), **options)
        assert caught.value.result.record.windows_done == windows, "those of the other process are known too"
        rows = [np.load(tmp_path / f"partial-{rank}.npz")["windows"].size for rank in (0, 1)]
        assert rows == [windows - 1, 1], "and stay in its file"
    monkeypatch.undo()
    first = (tmp_path / "partial-0.npz").read_bytes()
    for name, sentence in (
        ("partial-old.npz", r"partial-old\.npz is no partial measurement: delete it and start again\.$"),
        ("partial-0 (1).npz", r"partial-0 \(1\)\.npz is no partial measurement: delete it"),
        ("partial-00.npz", r"partial-00\.npz is no partial measurement: delete it"),
        ("partial-3.npz", r"0 is in partial-0\.npz and in partial-3\.npz: delete one of these files, and resume\.$"),
    ):
        (tmp_path / name).write_bytes(first)
        with pytest.raises(ValueError, match=sentence):
            measure(stories, resume=True, progress=lambda *_: pytest.fail("too late"), **options)
        (tmp_path / name).unlink()
    resumed = measure(stories, resume=True, **options)
    assert resumed.mean_cosine == pytest.approx(whole.mean_cosine, abs=1e-6)
    assert resumed.record.histogram == whole.record.histogram


@pytest.mark.skipif(sys.platform == "win32", reason="launched in the manner of POSIX")
def test_two_processes_give_the_numbers_of_one(shared, prose, tmp_path):
    model = shared / "models" / "stories260K"
    text = tmp_path / "text.txt"
    text.write_text(prose[0])
    alone = measure(model, text=text, device="cpu", **SMALL)
    worker = Path(__file__).with_name("measure_worker.py")
    run = launch(2, worker, model, text, tmp_path, DECONDENSE_CACHE=tmp_path / "cache")
    assert run.returncode == 0, run.stderr[-3000:]
    results = [load(tmp_path / f"rank{r}.json") for r in (0, 1)]
    assert results[0].to_json() == results[1].to_json()
    assert results[0].mean_cosine == pytest.approx(alone.mean_cosine, abs=1e-6)
    assert results[0].interval("slope") == pytest.approx(alone.interval("slope"), abs=1e-6)
    assert results[0].record.histogram == alone.record.histogram
