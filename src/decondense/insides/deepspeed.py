"""Insides of DeepSpeed: whether its Ulysses splits sequences."""

from __future__ import annotations

import sys

from . import attribute


def sequence_parallel_size() -> int:
    """Over how many processes Ulysses splits a sequence, with accelerate or without: its groups lie in a module, and
    what would tell their size fails where there are none."""
    module = sys.modules.get("deepspeed.runtime.sequence_parallel.parallel_state_sp")
    if module is None:  # who never imported it has made no groups
        return 1
    why = "sequences that are split over processes must be noticed"
    if attribute(module, "_SEQUENCE_PARALLEL_GROUP", library="deepspeed", why=why) is None:
        return 1
    return int(attribute(module, "get_sequence_parallel_world_size", library="deepspeed", why=why)())
