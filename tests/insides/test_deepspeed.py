"""DeepSpeed is not needed to work on this package: a module with what its 0.19.8 has takes its place here, and the real
one is asked in `make slow` (regularize/deepspeed_worker.py)."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from regularize.models import llama, tokens

import decondense as dc
from decondense.insides import Moved
from decondense.insides import deepspeed as inside

NAME = "deepspeed.runtime.sequence_parallel.parallel_state_sp"


def test_ulysses_is_noticed(monkeypatch):
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    assert inside.sequence_parallel_size() == 1
    state = ModuleType(NAME)
    state._SEQUENCE_PARALLEL_GROUP, state.get_sequence_parallel_world_size = None, lambda: 2
    monkeypatch.setitem(sys.modules, NAME, state)
    assert inside.sequence_parallel_size() == 1
    state._SEQUENCE_PARALLEL_GROUP = object()
    model, ids = llama(layers=1).train(), tokens()
    words = "must see whole sequences, got parts of them, split by DeepSpeed's Ulysses over 2 processes"
    for attach in (dc.regularize, dc.monitor):
        with attach(model), pytest.raises(ValueError, match=words):
            model(input_ids=ids, labels=ids)
    del state._SEQUENCE_PARALLEL_GROUP
    with pytest.raises(Moved, match="_SEQUENCE_PARALLEL_GROUP must exist in deepspeed, because sequences that"):
        inside.sequence_parallel_size()
