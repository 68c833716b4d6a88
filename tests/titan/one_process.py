"""Run by test_torchtitan.py: ten steps of torchtitan's debug model with and without the loss, in one process.

Prints one JSON object: what was found, for the tests to judge.
"""

from __future__ import annotations

import copy
import json
import re
import sys
import types
import warnings
from pathlib import Path

import cpu_device
import torch
from torch.distributed.tensor import DTensor

from decondense.integrations import torchtitan as ours

FOLDER = sys.argv[1]
found: dict = {}


def full(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def named(trainer):
    """Parameters by the name they have without checkpointing."""
    return {n.replace("_checkpoint_wrapped_module.", ""): p for n, p in trainer.model_parts[0].named_parameters()}


def weights(trainer):
    return {name: full(p) for name, p in named(trainer).items()}


def distance(a, b):
    return max(float((a[name] - b[name]).abs().max()) for name in a)


class Recorder:
    """Keeps what torchtitan logs, and hands it on."""

    def __init__(self, trainer):
        self.rows, self._log = [], trainer.metrics_processor.logger.log
        trainer.metrics_processor.logger.log = self

    def __call__(self, metrics, step):
        self.rows.append({"step": step, **metrics})
        self._log(metrics, step)

    def column(self, name):
        return [row[name] for row in self.rows if name in row]


def trained(config, steps=10):
    config.training.steps = steps
    trainer = config.build()
    rows = Recorder(trainer)
    trainer.train()
    return trainer, rows


def gradients(config):
    """The gradients of one optimiser step, before clipping and stepping."""
    config.training.max_norm = 1e9
    trainer = config.build()
    seen = {}
    trainer.optimizers.step = lambda *a, **k: seen.update({n: full(p.grad) for n, p in named(trainer).items()})
    trainer.step = 1
    trainer.train_step(trainer.batch_generator(trainer.dataloader))
    return seen, trainer


def debug(**options):
    return cpu_device.debug_model(FOLDER, **options)


# ---- ten steps ----
bare, bare_rows = trained(debug(layers=2))
zero, zero_rows = trained(ours.regularized(debug(layers=2), weight=0.0))
with_loss, rows = trained(ours.regularized(debug(layers=2), weight=10.0))
found["bare"] = bare_rows.column("loss_metrics/global_avg_loss")
found["zero"] = zero_rows.column("loss_metrics/global_avg_loss")
found["zero_distance"] = distance(weights(bare), weights(zero))
found["total"] = rows.column("loss_metrics/global_avg_loss")
found["task"] = rows.column("regularizer/task_loss")
found["penalty"] = rows.column("regularizer/penalty")
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for weight in (10.0, 1e6):
        with_loss.penalty._weight.fill_(weight)
        with_loss.penalty.log(10)
found["told"] = [str(one.message) for one in seen]
found["sharded"] = all(isinstance(p, DTensor) for p in with_loss.model_parts[0].parameters())

# ---- the penalty that plain training would have had: the same hooks, a weight that is next to nothing ----
_, watched = trained(ours.regularized(debug(layers=2), weight=1e-12))
found["penalty_without"] = watched.column("regularizer/penalty")

# ---- a ramp ----
_, ramp = trained(ours.regularized(debug(layers=2), weight=2.0, schedule="linear", ramp_steps=4), steps=6)
found["ramp"] = ramp.column("regularizer/penalty_weight")

# ---- the order in which torchtitan prepares a model ----
expected, _ = gradients(ours.regularized(debug(layers=3), weight=5.0))
plain, _ = gradients(debug(layers=3))
found["matters"] = distance(expected, plain)
from torchtitan.distributed.activation_checkpoint import FullAC  # noqa: E402

for name in ("accumulation", "full checkpointing", "no checkpointing", "compiled", "plain loss"):
    config = ours.regularized(debug(layers=3, batch=1 if name == "accumulation" else 4), weight=5.0)
    if name == "accumulation":
        config.training.global_batch_size = 4
    elif name == "full checkpointing":
        config.activation_checkpoint = FullAC.Config()
    elif name == "no checkpointing":
        config.activation_checkpoint = None
    elif name == "compiled":
        config.compile.enable, config.compile.backend, config.compile.components = True, "aot_eager", ["model"]
    else:
        config.loss = config.loss.loss_fn
    got, _ = gradients(config)
    found[name] = distance(expected, got)

# ---- documents of a packed row ----
cut, _ = gradients(ours.regularized(debug(layers=2, documents=True), weight=5.0))
whole, _ = gradients(ours.regularized(debug(layers=2, documents=True), weight=5.0, documents=False))
found["documents matter"] = distance(cut, whole)

# ---- the same weights in transformers ----
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

import decondense as dc  # noqa: E402

trainer = ours.regularized(debug(layers=3, ignored=10), weight=5.0, estimator="exact").build()
adapter = trainer.config.model_spec.state_dict_adapter(trainer.model_config, None)
state = adapter.to_hf({name: full(value) for name, value in trainer.model_parts[0].state_dict().items()})
rope = trainer.model_config.layers[0].attention.rope
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=2048, hidden_size=256, intermediate_size=state["model.layers.0.mlp.up_proj.weight"].shape[0],
        num_hidden_layers=3, num_attention_heads=16, num_key_value_heads=16, rms_norm_eps=1e-5,
        tie_word_embeddings=False, attn_implementation="sdpa", max_position_embeddings=16384,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": rope.theta, "factor": rope.scaling_factor,
            "low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_max_position_embeddings,
        },
    )
)  # fmt: skip
missing = model.load_state_dict(state, strict=False)
assert not missing.missing_keys, missing
model.train()
inputs, labels = next(iter(trainer.dataloader))
items = int((labels != -100).sum())
trainer.penalty.begin(1)
total = trainer.forward_backward_step(input_dict=inputs, labels=labels, global_valid_tokens=torch.tensor(items))
with dc.regularize(model, weight=5.0, estimator="exact"):
    out = model(input_ids=inputs["input"], labels=labels, shift_labels=labels, num_items_in_batch=items)
out.loss.backward()
found["transformers"] = [total.item(), out.loss.item()]
theirs = {name: p.grad for name, p in model.named_parameters()}
mine = adapter.to_hf({name: full(p.grad) for name, p in named(trainer).items()})
shared = [name for name in mine if name in theirs and "self_attn" not in name]  # q, k, v lie in another order
found["transformers_gradients"] = max(float((mine[n] - theirs[n]).abs().max() / theirs[n].abs().max()) for n in shared)
found["transformers_shared"] = len(shared)

# ---- the command line, and what is refused ----
from torchtitan.config import ConfigManager  # noqa: E402

page = (Path(__file__).parents[2] / "docs" / "trainers.md").read_text(encoding="utf-8")
line = re.search(r"^\| torchtitan \| `(.*?)`", page, re.MULTILINE)[1].split()
parsed = ConfigManager().parse_args([*line, "--config", "qwen3_0_6b", "--regularizer.no-documents"])
found["command line"] = [type(parsed).__module__, parsed.regularizer.weight, parsed.regularizer.documents]


def refused(change, **settings):
    """The error of attaching to the trainer above after a change to what it says of itself."""
    dims, config = copy.copy(trainer.parallel_dims), copy.deepcopy(trainer.config.parallelism)
    told = types.SimpleNamespace(
        parallel_dims=dims,
        model_parts=trainer.model_parts,
        loss_fn=trainer.loss_fn,
        device=torch.device("cpu"),
        config=types.SimpleNamespace(parallelism=config, training=copy.copy(trainer.config.training)),
    )
    change(told)
    try:
        ours.Penalty(told, ours.Regularizer(**settings)).handle.remove()
    except ValueError as error:
        return str(error)
    return ""


bare = trainer.loss_fn
trainer.penalty.handle.remove()
found["removed"] = trainer.loss_fn is not bare
found["refused"] = {
    "pipeline": refused(lambda t: setattr(t.parallel_dims, "pp", 2)),
    "backend": refused(lambda t: setattr(t.config.parallelism, "spmd_backend", "full_dtensor")),
    "two axes": refused(
        lambda t: (
            setattr(t.parallel_dims, "tp", 2),
            setattr(t.parallel_dims, "cp", 2),
            setattr(t.config.parallelism, "spmd_backend", "partial_dtensor"),
        )
    ),
    "graphs": refused(lambda t: setattr(t, "device", torch.device("cuda"))),
    "sampled": refused(lambda t: setattr(t, "device", torch.device("cuda")), documents=False, estimator="sampled"),
    "layer": refused(lambda t: None, layers="1,99"),
    "nothing": refused(lambda t: None),
}
torch.distributed.destroy_process_group()
print("FOUND " + json.dumps(found))
