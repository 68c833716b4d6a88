"""Insides of DeepSpeed: whether its Ulysses splits sequences."""

from __future__ import annotations

import sys

from . import attribute


def sequence_parallel_size() -> int:
    """Over how many processes Ulysses splits a sequence, with or without accelerate. Its group is a module's global,
    checked first because the function that tells its size fails where there is none."""
    module = sys.modules.get("deepspeed.runtime.sequence_parallel.parallel_state_sp")
    if module is None:  # never imported: there are no groups
        return 1
    why = "sequences that are split over processes must be noticed"
    if attribute(module, "_SEQUENCE_PARALLEL_GROUP", library="deepspeed", why=why) is None:
        return 1
    return int(attribute(module, "get_sequence_parallel_world_size", library="deepspeed", why=why)())
