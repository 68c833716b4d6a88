from __future__ import annotations

import numpy as np
import pytest

from decondense.meter.tally import Tally

COLUMNS = ("mean_cosine", "token_norm")


def random_tally(rng, windows):
    tally = Tally.empty(3, COLUMNS, 16, released_tokens=4)
    tally.counts += rng.integers(0, 100, tally.counts.shape)
    for w in windows:
        tally.rows[w] = rng.normal(size=(3, 2))
    tally.matrices += rng.normal(size=tally.matrices.shape)
    return tally


def pieces():
    rng = np.random.default_rng(0)
    return [random_tally(rng, w) for w in ([4, 1], [0], [2, 3, 7], [5])]


def assert_equal(a, b):
    assert (a.counts == b.counts).all()
    assert a.windows == b.windows
    for name in COLUMNS:
        assert (a.column(name) == b.column(name)).all()  # not approximately: rows are kept, not summed
    assert np.allclose(a.matrices, b.matrices, atol=1e-14)


def test_merging_in_any_order_and_grouping_gives_the_same():
    in_order, backwards = (Tally.empty(3, COLUMNS, 16, released_tokens=4) for _ in range(2))
    for first, last in zip(pieces(), reversed(pieces())):
        in_order.merge(first)
        backwards.merge(last)
    a, b, c, d = pieces()
    grouped = b.merge(d).merge(c.merge(a))
    assert_equal(in_order, backwards)
    assert_equal(in_order, grouped)


def test_a_window_counts_once():
    a, b, *_ = pieces()
    b.rows[4] = b.rows[0]
    with pytest.raises(ValueError, match="window 4 is in both tallies"):
        a.merge(b)


def test_saving_and_opening(tmp_path):
    whole = pieces()[2]
    whole.save(tmp_path / "partial-0.npz", "key")
    assert_equal(Tally.open(tmp_path / "partial-0.npz", "key"), whole)
    assert [p.name for p in tmp_path.iterdir()] == ["partial-0.npz"]
    with pytest.raises(ValueError, match="belongs to another measurement"):
        Tally.open(tmp_path / "partial-0.npz", "other")
    half = (tmp_path / "partial-0.npz").read_bytes()[:500]
    np.savez(tmp_path / "other.npz", a=1)
    for damaged in (b"nonsense", b"", half, (tmp_path / "other.npz").read_bytes()):
        (tmp_path / "partial-0.npz").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"partial-0\.npz is no partial measurement: delete it and start again\.$"):
            Tally.open(tmp_path / "partial-0.npz", "key")
