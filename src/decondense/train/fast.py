"""What makes a step faster on a GPU without changing what it computes.

* the repeated blocks of the stack are compiled one by one (`nn.Module.compile`): they share one compilation, hooks
  stay outside it, and the weights keep their names;
* the loss of a hidden state is computed in the block that reads it (`tap_blocks`);
* the output head and the cross-entropy become one compiled function of the last hidden state, so that the logits in
  float32 never exist as a tensor. It is used only where it reproduces the model's own loss on a few tokens, so a
  model that scales or caps its logits keeps its own head.

`benchmarks/bench_throughput.py` shows the share of each.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import hidden_states as hs
from ..handle import Attachment
from ..insides.torch import call_with, compiled_call, replace_compiled_call
from ..insides.transformers import collect_hidden_states_alone
from ..losses.presets import Loss
from ..named_layers import ModuleReader
from ..stack import evaluating, repeated_blocks
from ..term import Terms

OfLogits = Callable[[Tensor, Tensor, Tensor], dict[str, Tensor]]
# Dtypes of states worth tapping. In bfloat16 a pass over the states costs half as much, and the first-order estimator
# has been slower inside the blocks than after them (benchmarks/results/throughput_turns.csv).
TAPPED = (torch.float32,)


@contextlib.contextmanager
def matmul_precision(level: str) -> Iterator[None]:
    """Within this context, multiply float32 matrices on a GPU at `level`: "highest", or "high", on tensor cores."""
    backends: Any = torch.backends  # for a type checker: torch adds `mkldnn.matmul` when it is imported
    products = (backends.cuda.matmul, backends.mkldnn.matmul)
    precisions = [product.fp32_precision for product in products]
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # set by `torch.backends.fp32_precision`, for which torch has no level
        before = "highest"
    torch.set_float32_matmul_precision(level)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        for product, precision in zip(products, precisions):
            product.fp32_precision = "none"  # as `torch.backends.fp32_precision` says
            if product.fp32_precision != precision:
                product.fp32_precision = precision


def compile_blocks(model: nn.Module) -> int:
    """Compile every block in place; return how many. Asking for hidden states later does not break up their graphs."""
    blocks = repeated_blocks(model)
    reader, _ = hs.reader_of(model, None)
    collect_hidden_states_alone(getattr(reader, "stack", None))
    for block in blocks:
        block.compile()
    return len(blocks)


def tap_blocks(model: Any, attachment: Attachment, *, whole_rows: bool = True, checkpointing: bool = False) -> int:
    """Let compiled blocks compute, in their own graphs, what the attached loss needs of the states that they read;
    return how many do. `losses/beside.py` says what that saves.

    whole_rows     whether every row is one sequence; where a row holds several, its value as a whole is of no use
    checkpointing  whether blocks run again in the backward pass, where nothing collects their states: none is tapped
    """
    term, blocks = attachment.term, repeated_blocks(model)
    if checkpointing or not whole_rows or isinstance(attachment.reader, ModuleReader):
        return 0
    if isinstance(term, Terms) or term.group or term.loss.keywords.get("generator"):
        return 0  # they cannot be traced, or have weights that change from step to step
    chosen = term.chosen(len(blocks) + 1, 1)
    # The first block reads the embedding layer, which is not one of "all": computing its value for nothing costs less
    # than a second compilation.
    tapped = blocks if set(range(1, len(blocks))) <= set(chosen) else [blocks[i] for i in chosen if i < len(blocks)]
    tapped = [block for block in tapped if compiled_call(block) is not None and "forward" not in vars(block)]
    if not tapped:
        return 0  # torch.compile imports the compiler, which takes a second
    with_values = torch.compile(_with_values, dynamic=False)
    for block in tapped:
        attachment.undo.callback(replace_compiled_call, block, compiled_call(block))
        replace_compiled_call(block, _tapped(block, attachment, with_values))
    return len(tapped)


def _tapped(block: nn.Module, attachment: Attachment, with_values: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a compiled block's call, which changes only while states are collected. Hooks stay outside the graph."""
    plain = compiled_call(block)

    def tapped(*args: Any, **kwargs: Any) -> Any:
        # After a training call that raised, `known` is still there for the next: evaluations in between do not count.
        known = attachment.known if block.training and torch.is_grad_enabled() else None
        states = args[0] if args else None
        if known is None or not isinstance(states, Tensor) or states.dtype not in TAPPED or states.ndim != 3:
            return plain(*args, **kwargs)

        def forward(states: Tensor, *args: Any, **kwargs: Any) -> Any:
            out, values, cosines = with_values(block, attachment.term.loss, states, *args, **kwargs)
            known.append((states, values, cosines))
            return out

        return call_with(block, forward, *args, **kwargs)

    return tapped


def _with_values(block: Any, loss: Loss, states: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    states, *values = loss.beside(states)
    return type(block).forward(block, states, *args, **kwargs), *values


def head_loss(
    hidden: Tensor, weight: Tensor, labels: Tensor, items: Tensor, terms: OfLogits | None = None
) -> dict[str, Tensor]:
    """Return "loss", Σ cross-entropy of label i + 1 given hidden state i, divided by `items`, and what `terms` computes
    from the same logits. hidden (batch, tokens, width), weight (vocabulary, width), labels (batch, tokens)."""
    logits, target = F.linear(hidden[:, :-1].flatten(0, 1), weight).float(), labels[:, 1:].flatten()
    loss = F.cross_entropy(logits, target, reduction="sum", ignore_index=-100) / items
    return {"loss": loss} if terms is None else {"loss": loss, **terms(logits, target, items)}


def compiled_head(terms: OfLogits | None = None) -> Callable[..., dict[str, Tensor]]:
    """`head_loss` as one compiled function."""
    # A run has one shape; by default the compiler may make a slower kernel that takes any shape.
    return torch.compile(functools.partial(head_loss, terms=terms), dynamic=False)


def fuse_head(model: Any, *, compiled: bool = True, terms: OfLogits | None = None) -> bool:
    """Give a causal language model the fused head; return whether it fits this model. In eval() nothing changes.

    terms  function of (logits, labels, items): what else to compute from the logits and return beside the loss
    """
    head: Any = getattr(model, "get_output_embeddings", lambda: None)()
    plain = isinstance(head, nn.Linear) and head.bias is None and model.base_model is not model
    if not plain or not _reproduces(model, head):
        return False
    function = compiled_head(terms) if compiled else functools.partial(head_loss, terms=terms)
    model_forward = model.forward

    @functools.wraps(model_forward)
    def forward(*args: Any, labels: Tensor | None = None, **kwargs: Any) -> Any:
        if labels is None or not model.training or args:
            return model_forward(*args, **({} if labels is None else {"labels": labels}), **kwargs)
        items = kwargs.pop("num_items_in_batch", None)
        if items is None:
            items = (labels[:, 1:] != -100).sum()
        hidden = model.base_model(**kwargs).last_hidden_state
        return function(hidden, head.weight, labels, torch.as_tensor(items, device=hidden.device))

    model.forward = forward
    return True


@torch.no_grad()
def _reproduces(model: Any, head: nn.Linear) -> bool:
    """Whether the fused head gives the model's own loss on a few tokens.

    Checked twice: with the model as it is, and with the last hidden state stretched until the largest logit is 100.
    Fresh weights have logits near 0, where a cap or a scale of the logits would not show.
    """
    ids = torch.arange(2 * 6, device=head.weight.device).view(2, 6) % head.weight.shape[0]
    stretch = 1.0
    hook = head.register_forward_pre_hook(lambda module, args: (args[0] * stretch, *args[1:]))
    try:
        with evaluating(model):  # no dropout
            hidden = model.base_model(input_ids=ids).last_hidden_state
            largest = float(F.linear(hidden, head.weight).abs().max())
            for stretch in (1.0, 100.0 / max(largest, 1e-6)):
                fused = head_loss(hidden * stretch, head.weight, ids, torch.tensor(10, device=ids.device))["loss"]
                if not torch.isclose(fused, model(input_ids=ids, labels=ids)["loss"].float(), rtol=1e-4, atol=1e-4):
                    return False
    except (TypeError, AttributeError, KeyError, RuntimeError):
        return False
    finally:
        hook.remove()
    return True
