"""torchtitan on a CPU: it asks torch for an accelerator and takes "cuda" where there is none. Imported before it.

What a CPU cannot answer (memory statistics) is answered with nothing. Its FlexAttention has no backward pass on a CPU,
so its models take torchtitan's `ScaledDotProductAttention` here: causal, blind to documents. `set_timeout` is of a
later torch than 2.13, and the pause at the end of a run is left out. The rest (FSDP2, checkpointing, chunked loss,
optimiser, loop) is torchtitan's, unchanged.
"""

from __future__ import annotations

import os
import sys
import time
import types
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
import torch._utils
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.nn.functional import all_gather
from torch.distributed.tensor import DTensor


class Cpu(types.ModuleType):
    def __getattr__(self, name):
        return getattr(torch.cpu, name)

    def get_device_name(self, device=None):
        return "cpu"

    def get_device_properties(self, device=None):
        return types.SimpleNamespace(total_memory=1 << 34)

    def reset_peak_memory_stats(self, device=None):
        return None

    def empty_cache(self):
        return None

    def memory_stats(self, device=None):
        return {}

    def current_device(self):
        return 0


torch.set_num_threads(1)
torch._utils._get_available_device_type = lambda: "cpu"
torch._utils._get_device_module = lambda kind: Cpu("cpu")
if not hasattr(dist, "set_timeout"):
    dist.set_timeout = lambda timeout, group=None: None
for key, value in {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
    os.environ.setdefault(key, value)
os.environ.setdefault("MASTER_PORT", "0")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# At its import torchtitan compiles the FlexAttention that nobody calls here, for which torch imports all of inductor.
with mock.patch.object(torch, "compile", lambda function, **options: function):
    import torchtitan.trainer

torchtitan.trainer.time = types.SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda seconds: None)

from torchtitan.components.dataloader import BaseDataLoader  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.llama3.config_registry import llama3_debugmodel  # noqa: E402

TOKENS = 16


class Numbers(BaseDataLoader):
    """Random tokens, the same for every number of ranks: a rank takes its rows of the joined batch."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        documents: bool = False
        ignored: int = 0  # labels of the first row that do not count

    def __init__(self, config, *, dp_world_size, dp_rank, tokenizer, seq_len, local_batch_size, **rest):
        self.config, self.shape = config, (local_batch_size, seq_len)
        self.rank, self.ranks = dp_rank, dp_world_size

    def __iter__(self):
        batch, tokens = self.shape
        generator = torch.Generator().manual_seed(0)
        while True:
            # ids grow towards the end of a row: something to learn, and to condense on
            ids = torch.randint(0, 64, (batch * self.ranks, tokens + 1), generator=generator) + torch.arange(tokens + 1)
            labels = ids[:, 1:].clone()
            labels[0, : self.config.ignored] = -100
            positions = torch.arange(tokens).repeat(batch * self.ranks, 1)
            if self.config.documents:
                positions[0, tokens // 4 :] -= tokens // 4
            mine = slice(self.rank * batch, (self.rank + 1) * batch)
            yield {"input": ids[mine, :-1].contiguous(), "positions": positions[mine]}, labels[mine]

    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        return None


class Attention(ScaledDotProductAttention):
    """torchtitan's own; under context parallelism, whose ring has no CPU kernels, with keys and values gathered."""

    @dataclass(kw_only=True, slots=True)
    class Config(ScaledDotProductAttention.Config):
        pass

    def forward(self, q_BLNH, k_BLNH, v_BLNH, **rest):  # torchtitan knows these by name
        q, k, v = q_BLNH, k_BLNH, v_BLNH
        if not isinstance(q, DTensor) or "cp" not in q.device_mesh.mesh_dim_names:
            return super().forward(q, k, v, **rest)
        group = q.device_mesh.get_group("cp")
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        q, k, v = (x.to_local() for x in (q, k, v))
        # rank r holds the r-th chunk from the front and the r-th from the back: torchtitan's "headtail" balance
        chunks = torch.arange(q.shape[1] * ranks).chunk(2 * ranks)
        place = [torch.cat([chunks[r], chunks[2 * ranks - 1 - r]]) for r in range(ranks)]
        keys, values = (torch.cat(all_gather(x.contiguous(), group), 1) for x in (k, v))
        mask = place[rank][:, None] >= torch.cat(place)
        return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, keys, values)), mask).transpose(1, 2)


class NoTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, **rest):
        super().__init__()

    def encode(self, *args, **kwargs):
        return []

    def decode(self, *args, **kwargs):
        return ""

    def get_vocab_size(self):
        return 2048


def debug_model(folder: str, *, batch: int = 4, layers: int = 6, **data):
    """torchtitan's llama3 debug model as it is, but for what a CPU cannot do and the size of a batch."""
    config = llama3_debugmodel()
    del config.model_spec.model.layers[layers:]
    for layer in config.model_spec.model.layers:
        layer.attention.inner_attention = Attention.Config()
    config.tokenizer, config.dataloader = NoTokenizer.Config(), Numbers.Config(**data)
    config.training.local_batch_size, config.training.seq_len = batch, TOKENS
    config.training.mixed_precision_param = "float32"
    config.comm.trace_buf_size = 0
    config.dump_folder = folder
    config.debug.seed = 0
    return config
