"""Piece files made by hand: runs with the numbers a test wants, in the form in which studies keep them."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from decondense.studies.study import PIECE_SCHEMA, Study, compact, comparable

STATES = 7


def snapshot(step: int, *, cosine: float = 0.5, spearman: float | None = 0.5, **more: Any) -> dict[str, Any]:
    """A measurement whose mean over the blocks is exactly `cosine`."""
    histogram = np.full((STATES, 64), 0.1)
    histogram[:, 32 + int(30 * max(0.0, min(1.0, cosine)))] = 4.0
    return {
        "step": step, "tokens": 100 * step, "mean_cosine": [0.1] + [cosine] * (STATES - 1), "spearman": spearman,
        "spearman_blocks": spearman, "kendall": spearman, "slope": 0.1, "last": cosine, "windows": 4,
        "final_norm": True, "histogram": histogram.round(2).tolist(),
    } | more  # fmt: skip


def run(
    *,
    held_out: float = 3.0,
    cosine: float = 0.5,
    spearman: float | None = 0.5,
    start: tuple[float, float] = (0.6, 0.9),
    speed: float = 1000.0,
    tokens: int = 10_000,
    **more: Any,
) -> dict[str, Any]:
    """What a study keeps of a training run; `start` is (mean cosine, Spearman) at step 0."""
    return {
        "parameters": 1000, "steps": 100, "tokens": tokens, "held_out": [[0, 6.0], [100, held_out]],
        "curves": {"step": [1, 100], "task_loss": [6.0, 3.0]},
        "snapshots": [snapshot(0, cosine=start[0], spearman=start[1]), snapshot(100, cosine=cosine, spearman=spearman)],
        "tokens_per_second": speed, "seconds": 10.0, "skipped_steps": 0,
    } | more  # fmt: skip


def outcomes(rng: np.random.Generator, rate: float, n: int = 200) -> dict[str, Any]:
    correct = rng.random(n) < rate
    shares = np.asarray(np.log(rng.random(n) + 1e-3), dtype="<f2")
    packed = {"n": n, "items": "same", "correct": "".join("1" if c else "0" for c in correct)}
    return packed | {"log_share": base64.b64encode(shares.tobytes()).decode()}


def piece(study: Study, scale: str, settings: dict[str, Any], name: str, what: dict[str, Any], **content: Any) -> dict:
    return {
        "schema": PIECE_SCHEMA, "study": study.name, "scale": scale, "piece": name, "settings": comparable(settings),
        "what": what, **content, "hardware": "a machine", "versions": {"torch": "2.0"}, "seconds": 1.0,
    }  # fmt: skip


def of_seeds(study: Study, scale: str, settings: dict[str, Any], make: Any, seeds: list[int]) -> list[dict]:
    """One piece per seed; `make(arm, seed)` gives the run."""

    def made(arm: str, seed: int) -> dict[str, Any]:
        found = make(arm, seed)
        return found | {"tokens": 11_000} if arm.endswith("more tokens") else found

    return [
        piece(study, scale, settings, f"seed-{s}", {"seed": s, "arms": list(settings["arms"])},
              runs={arm: made(arm, s) for arm in settings["arms"]})
        for s in seeds
    ]  # fmt: skip


def write(folder: Any, pieces: list[dict]) -> None:
    (folder / "pieces").mkdir(parents=True, exist_ok=True)
    for p in pieces:
        (folder / "pieces" / f"{p['piece']}.json").write_text(compact(p), encoding="utf-8")
