"""What decondense needs of accelerate's insides is where it was, and what is gone is named."""

from __future__ import annotations

from types import SimpleNamespace

import accelerate
import pytest
import torch
from accelerate.utils import FullyShardedDataParallelPlugin

from decondense.insides import Moved
from decondense.insides import accelerate as inside


def test_every_norm_is_told():
    accelerator = accelerate.Accelerator(cpu=True)
    norms: list[float] = []
    inside.watch_gradient_norm(accelerator, norms.append)
    weight = torch.nn.Parameter(torch.zeros(4))
    weight.grad = torch.full((4,), 3.0)
    assert float(accelerator.clip_grad_norm_([weight], 1.0)) == 6
    assert norms == [6]


def test_a_sharded_model_returns_float32():
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    plugin.set_mixed_precision("bf16")
    assert plugin.mixed_precision_policy.reduce_dtype == torch.bfloat16
    inside.keep_float32(SimpleNamespace(is_fsdp2=True, state=SimpleNamespace(fsdp_plugin=plugin)))
    policy = plugin.mixed_precision_policy
    assert (policy.param_dtype, policy.reduce_dtype, policy.output_dtype) == (torch.bfloat16, torch.float32, None)
    inside.keep_float32(accelerate.Accelerator(cpu=True))  # not sharded: nothing to do


def test_ulysses_is_noticed(monkeypatch):
    accelerate.Accelerator(cpu=True)
    assert inside.sequence_parallel_size() == 1
    state = accelerate.state.AcceleratorState._shared_state
    monkeypatch.setitem(state, "parallelism_config", accelerate.ParallelismConfig(sp_size=2))
    assert inside.sequence_parallel_size() == 2
    monkeypatch.setitem(state, "parallelism_config", SimpleNamespace())
    with pytest.raises(Moved, match=r"sp_size must exist in accelerate, because sequences that are split"):
        inside.sequence_parallel_size()


def test_what_is_gone_is_named():
    with pytest.raises(Moved, match=r"clip_grad_norm_ must exist in accelerate, because a gradient"):
        inside.watch_gradient_norm(SimpleNamespace(), print)
    with pytest.raises(Moved, match=r"is_fsdp2 must exist in accelerate, because a sharded model"):
        inside.keep_float32(SimpleNamespace())
