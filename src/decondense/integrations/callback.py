"""`DecondenseCallback`: `regularize` as a callback, for when a framework builds the transformers or TRL trainer.

    Trainer(…, callbacks=[DecondenseCallback(weight=0.1)])      # the same as regularize(trainer, weight=0.1)

LLaMA-Factory and ms-swift build the trainer themselves, but take callbacks.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback

from ..handle import Handle
from ..insides.transformers import calling_trainer
from ..losses.presets import Loss
from ..regularizer import regularize, term_of


class DecondenseCallback(TrainerCallback):
    """Attaches the loss when the trainer has been built, or at the latest when it begins to train; once to each
    trainer that calls it, so one callback may serve several, such as those of a loop over seeds.

    loss, modules, options  as in `regularize`
    trainer                 the trainer to attach to; by default the one that calls this callback
    handle                  what `regularize` returned for the latest of them; None before
    """

    def __init__(
        self,
        loss: str | Loss = "dispersion",
        *,
        trainer: Any = None,
        modules: str | Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        term_of(loss, **options)  # wrong options must fail here, not when training begins
        self.loss, self.options = loss, {"modules": modules, **options}
        self.trainer = trainer
        self.handle: Handle | None = None
        self._served: weakref.WeakSet[Any] = weakref.WeakSet()  # handles would keep trainers that nobody else holds

    def on_init_end(self, *args: Any, **kwargs: Any) -> None:
        trainer = self.trainer if self.trainer is not None else calling_trainer(self)
        if trainer is None:
            raise RuntimeError(
                "DecondenseCallback must be called by the transformers trainer whose callback it is, and no such "
                "trainer called it: attach to the trainer itself, dc.regularize(trainer, …)."
            )
        if trainer not in self._served:
            self.handle = regularize(trainer, self.loss, **self.options)
            self._served.add(trainer)

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.on_init_end()  # a callback added later by add_callback sees no on_init_end
