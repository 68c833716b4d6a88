"""What a training call delivers, its hidden states and what came in with them, and the hooks that take it."""

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

Known = tuple[Tensor, Tensor, Tensor | None]  # a state, the loss of it and its mean cosines, (1, batch) each


@dataclass
class Capture:
    """One training call of the stack: its states, embedding layer first, and what came in with them. `masks` has one
    for each state where they are of two stacks, which read other tokens; `autocast` is the dtype of the call's. `known`
    are states whose values, and mean cosines where they came for nothing, the blocks have computed."""

    states: Sequence[Tensor]
    attention_mask: Tensor | None = None
    position_ids: Tensor | None = None
    masks: list[Tensor | None] | None = None
    autocast: torch.dtype | None = None
    known: Sequence[Known] = ()

    def __post_init__(self) -> None:
        positions = self.position_ids
        if isinstance(positions, Tensor) and positions.ndim == 3 and len(positions) == 4:
            self.position_ids = positions[0]  # of models with images: time, height and width are behind the text's

    def mask_of(self, state: int) -> Tensor | None:
        return self.attention_mask if self.masks is None else self.masks[state]

    def leads_to(self, loss: Tensor) -> bool:
        """Whether the loss was computed from these states: a walk back through its graph, which ends at the first. Of
        states that have no graph nobody knows."""
        ours = {state.grad_fn for state in self.states} - {None}
        seen, waiting = set(), deque([loss.grad_fn])
        while waiting:
            node = waiting.popleft()
            if node in ours or not ours:
                return True
            if node is not None and node not in seen:
                seen.add(node)
                waiting.extend(before for before, _ in node.next_functions)
        return False

    def targets(self, labels: Tensor, sides: Sequence[str]) -> None:
        """Targets are padded with −100, and the decoder sees them shifted: no label, no token. `sides`, one per state,
        or one for all, says which are the decoder's; a mask that was given stands."""
        labelled = labels.ne(-100)
        for i, side in enumerate(sides):
            if side == "decoder" and self.mask_of(i) is None and labelled.shape == self.states[i].shape[:2]:
                if self.masks is None:
                    self.attention_mask = labelled
                else:
                    self.masks[i] = labelled


class Hook(partial):
    """A hook that copies and pickles of a model leave behind: they are the model without the loss.

    It has no `__call__` in Python: torch.compile counts compilations by code object, and all hooks would share one.
    """

    handle: RemovableHandle | None = None

    @classmethod
    def hang(cls, register: Callable[..., RemovableHandle], function: Callable[..., Any], **options: Any) -> Any:
        """`register(hook of function, …)`, and what it returns."""
        hook = cls(function)
        hook.handle = register(hook, **options)
        return hook.handle

    def __deepcopy__(self, memo: dict[Any, Any]) -> Hook:
        # A hook cannot take itself out of a copy that is being made. `memo` goes when it is done, and with it the set.
        if self.handle is not None:
            weakref.finalize(memo.setdefault("decondense", set()), copy.deepcopy(self.handle, memo).remove)
        return Hook(_nothing)

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, (_nothing,)


def after_optimisers(owner: Any) -> Callable[[], None]:
    """Have `owner.stepped(optimiser)` called after every step of torch's optimisers, until what is returned is called
    or the owner is gone: the hook is global, and keeps neither it nor a model alive."""
    me = weakref.ref(owner)

    def stepped(optimiser: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if (one := me()) is not None:
            one.stepped(optimiser)

    remove = register_optimizer_step_post_hook(stepped).remove
    weakref.finalize(owner, remove).atexit = False
    return remove


def _nothing(*args: Any) -> None:
    """What is left of a hook in a model that was loaded from a file, or is being copied."""


def shifted(labels: Tensor) -> Tensor:
    """Labels as a causal loss counts them: that of position i is label i + 1, the last position has none."""
    return nn.functional.pad(labels[..., 1:], (0, 1), value=-100)
