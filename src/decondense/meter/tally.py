"""What a measurement accumulates, and how two tallies are merged.

A tally holds, for every hidden state, pooled counts of cosines per fine bin (integers: any order of merging gives
the same), and for every window one row of scalars per state (kept by window number: again any order). Rows take
about 4 kB a window for a 30-layer model; nothing else grows. The ``released`` view adds one N×N sum per state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from ..files import atomic


@dataclass
class Tally:
    """``counts`` (states, fine bins); ``rows[window]`` (states, columns); ``matrices`` (states, N, N) or None."""

    columns: tuple[str, ...]
    counts: np.ndarray
    rows: dict[int, np.ndarray] = field(default_factory=dict)
    matrices: np.ndarray | None = None

    @classmethod
    def empty(cls, states: int, columns: tuple[str, ...], bins: int, *, released_tokens: int | None = None) -> Tally:
        matrices = None if released_tokens is None else np.zeros((states, released_tokens, released_tokens))
        return cls(columns, np.zeros((states, bins), dtype=np.int64), {}, matrices)

    def merge(self, other: Tally) -> Tally:
        """Add ``other``, of the same measurement, into this tally. No window may be in both."""
        twice = self.rows.keys() & other.rows.keys()
        if twice:
            raise ValueError(f"window {min(twice)} is in both tallies: each window may be counted once.")
        self.counts += other.counts
        self.rows |= other.rows
        if self.matrices is not None and other.matrices is not None:
            self.matrices += other.matrices
        return self

    @property
    def windows(self) -> list[int]:
        return sorted(self.rows)

    def column(self, name: str) -> np.ndarray:
        """Return one statistic as (windows, states), windows in order."""
        index = self.columns.index(name)
        return np.stack([self.rows[w][:, index] for w in self.windows])

    def save(self, path: Path, key: str) -> None:
        """Write the tally to a file; ``key`` identifies the measurement it belongs to."""
        arrays = {
            "key": np.array(key),
            "columns": np.array(self.columns),
            "counts": self.counts,
            "windows": np.array(self.windows, dtype=np.int64),
            "rows": np.array([self.rows[w] for w in self.windows]),
        }
        if self.matrices is not None:
            arrays["matrices"] = self.matrices
        with atomic(path) as temporary:
            np.savez(temporary, **arrays)  # type: ignore[arg-type]

    @classmethod
    def open(cls, path: Path, key: str) -> Tally:
        try:
            with np.load(path, allow_pickle=False) as stored:
                arrays = dict(stored)
            stored_key = str(arrays["key"])
        except (OSError, ValueError, EOFError, KeyError, BadZipFile) as error:
            raise ValueError(f"{path} is no partial measurement: delete it and start again.") from error
        if stored_key != key:
            raise ValueError(
                f"{path} belongs to another measurement (model, its weights or tokenizer, text, windows, tokens, seed, "
                "views or version differ): repeat the first command with what it read, or choose another output folder."
            )
        rows = dict(zip(arrays["windows"].tolist(), arrays["rows"]))
        return cls(tuple(arrays["columns"].tolist()), arrays["counts"], rows, arrays.get("matrices"))
