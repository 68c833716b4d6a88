"""What a training call delivers, hidden states and the arguments that came with them, and the hooks that take it."""

from __future__ import annotations

import copy
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from .inputs import labelled

Known = tuple[Tensor, Tensor, Tensor | None]  # a state; its loss and its mean cosines, (1, batch) each


@dataclass
class Capture:
    """One training call: its hidden states, embedding layer first, and the arguments that came with them. `masks` has
    one mask per state where the states belong to two stacks, which read different tokens; `autocast` is the call's
    dtype under autocast. `known` are states whose losses, and mean cosines if free, the blocks have computed."""

    states: Sequence[Tensor]
    attention_mask: Tensor | None = None
    position_ids: Tensor | None = None
    masks: list[Tensor | None] | None = None
    autocast: torch.dtype | None = None
    known: Sequence[Known] = ()

    def __post_init__(self) -> None:
        positions = self.position_ids
        if isinstance(positions, Tensor) and positions.ndim == 3 and len(positions) == 4:
            self.position_ids = positions[0]  # of models with images: text first, then time, height, width

    def mask_of(self, state: int) -> Tensor | None:
        return self.attention_mask if self.masks is None else self.masks[state]

    def leads_to(self, loss: Tensor) -> bool:
        """Whether the loss was computed from these states: walk back through its graph until one of them is found. True
        also for states without a graph, of which this cannot be known."""
        state_nodes = {state.grad_fn for state in self.states} - {None}
        seen, queue = set(), deque([loss.grad_fn])
        while queue:
            node = queue.popleft()
            if node in state_nodes or not state_nodes:
                return True
            if node is not None and node not in seen:
                seen.add(node)
                queue.extend(before for before, _ in node.next_functions)
        return False

    def targets(self, labels: Any, sides: Sequence[str]) -> None:
        """Derive missing decoder masks from the labels (`labelled`); given masks stay. `sides`, one per state or one
        for all, tells which are the decoder's."""
        for i, side in enumerate(sides):
            if side != "decoder" or self.mask_of(i) is not None:
                continue
            if (mask := labelled(labels, self.states[i])) is not None:
                if self.masks is None:
                    self.attention_mask = mask
                else:
                    self.masks[i] = mask


class Hook(partial):
    """A hook that copies and pickles of a model do not keep: they are the model without the loss.

    It has no `__call__` in Python: torch.compile counts compilations by code object, and all hooks would share one.
    """

    handle: RemovableHandle | None = None

    @classmethod
    def hang(cls, register: Callable[..., RemovableHandle], function: Callable[..., Any], **options: Any) -> Any:
        """Register a hook that calls `function`; return what `register` returns."""
        hook = cls(function)
        hook.handle = register(hook, **options)
        return hook.handle

    def __deepcopy__(self, memo: dict[Any, Any]) -> Hook:
        # A hook cannot take itself out of a copy in the making. `memo`, and this set in it, are freed when it is made.
        if self.handle is not None:
            weakref.finalize(memo.setdefault("decondense", set()), copy.deepcopy(self.handle, memo).remove)
        return Hook(_nothing)

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, (_nothing,)


def after_optimisers(owner: Any) -> Callable[[], None]:
    """Call `owner.stepped(optimiser)` after every step of a torch optimiser, until the returned function is called or
    the owner is garbage-collected: the hook is global, and keeps neither owner nor model alive."""
    me = weakref.ref(owner)

    def stepped(optimiser: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if (one := me()) is not None:
            one.stepped(optimiser)

    remove = register_optimizer_step_post_hook(stepped).remove
    weakref.finalize(owner, remove).atexit = False
    return remove


def _nothing(*args: Any) -> None:
    """What is left of a hook in a model that was unpickled, or is being copied."""


def counted(labels: Any, *, shift: bool) -> Tensor | None:
    """The labels (batch, …) as a loss counts them, with `shift` as a causal one does: position i gets label i + 1, the
    last position none (−100). None where they are no tensor, such as the boxes of an image: nothing counts those."""
    if not isinstance(labels, Tensor):
        return None
    return nn.functional.pad(labels[..., 1:], (0, 1), value=-100) if shift and labels.ndim > 1 else labels
