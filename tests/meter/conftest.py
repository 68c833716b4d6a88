from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch


@pytest.fixture(scope="session")
def stories(shared: Path) -> tuple[Any, Any]:
    """A real trained model of 260 thousand parameters and its tokenizer, without the head."""
    from decondense.models import load

    return load(shared / "models" / "stories260K", head=False, device="cpu")


@pytest.fixture(scope="session")
def prose(shared: Path) -> list[str]:
    from decondense.text import open_text

    return [open_text("wikitext-2:valid", data=shared / "data").joined[:60_000]]


@pytest.fixture(scope="session")
def whole(stories: tuple[Any, Any], prose: list[str]) -> Any:
    from tiny_models import SMALL

    from decondense.meter.run import measure

    return measure(stories, text=prose, spectral=True, released=True, batch=2, **SMALL)


@pytest.fixture(scope="session")
def real_states(stories: tuple[Any, Any], prose: list[str]) -> dict[int, list[np.ndarray]]:
    """Hidden states as ``output_hidden_states`` returns them, for 5 windows of 40 tokens; state 6 is the last block's
    output before the final norm, read independently of the meter's own hooks."""
    from decondense.text import open_text
    from decondense.windows import draw_windows

    model, tokenizer = stories
    ids = torch.from_numpy(draw_windows(open_text(prose), tokenizer, windows=5, tokens=40, seed=3).ids)
    inputs: list[torch.Tensor] = []
    handle = model.norm.register_forward_pre_hook(lambda _m, args: inputs.append(args[0]))
    with torch.inference_mode():
        hidden = model(input_ids=ids, output_hidden_states=True).hidden_states
    handle.remove()
    states = {i: [z.numpy() for z in state] for i, state in enumerate(hidden)}
    states[len(hidden)] = [z.numpy() for z in inputs[0]]
    return states
