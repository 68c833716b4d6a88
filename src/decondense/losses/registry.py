"""The registry of losses. A loss is one file with one registered function; the rest follows from the registration.

    @register("1 minus something", source="rival", reference="Somebody 2030, arXiv 3001.00001")
    def my_loss(z, mask=None, *, tau=1.0, **common: Unpack[Common]): ...

is enough for `losses.my_loss`, `losses.get("my_loss")`, recipes and the command line, the study of variants, and the
table in docs/method.md. Files in this folder are imported automatically; in any other module, when you import it.

The function returns the value of each sequence, (batch,), and gets states that have been checked; the registration adds
what all losses share: the options of `Common`, the value 0 for a sequence with fewer than two tokens that count, and
the mean over the other sequences.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, ParamSpec, TypedDict

import torch
from torch import Tensor

from .. import geometry
from ..checks import check_choice, check_flags
from .beside import beside
from .context_parallel import tokens_across
from .kernel import Kernel
from .options import check_objects
from .pairs import Routine, apply
from .sampling import RELEASED_SAMPLE, sample

SOURCES = {"paper": "the paper", "released": "its released code", "rival": "the literature", "control": "a control"}
P = ParamSpec("P")


class Common(TypedDict, total=False):
    """The options of every loss.

    max_tokens     from longer sequences, use a random subset of so many tokens (256 for `estimator="sampled"`)
    shared_sample  draw one set of positions for the whole batch
    generator      the random generator of this draw
    reduction      "mean" over the sequences with at least two tokens that count, 0 without any; or "none": (batch,)
    """

    max_tokens: int | None
    shared_sample: bool
    generator: torch.Generator | None
    reduction: str


class OfMoments(NamedTuple):
    """What a loss may return instead of its values: a curve of moments of the cosines, and the routine that computes
    these moments, (batch,) or (moments, batch) with the mean first.

    The curve is applied to all layers at once: layer by layer, its dozen tiny operations would cost a GPU more than
    the sums over the tokens.
    """

    curve: Callable[..., Tensor]
    routine: Routine

    def moments(self, z: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
        moments = apply(self.routine, z, mask)
        return (moments,) if moments.ndim == 1 else tuple(moments)


class OfRoutine(NamedTuple):
    """What a loss may return instead of its values: the routine that computes them, and a constant added to each.

    A call of the loss by itself returns the mean over the sequences; the routine can take it in its own autograd step.
    """

    routine: Routine
    constant: float = 0.0

    def applied(self, z: Tensor, mask: Tensor | None, mean: bool) -> Tensor:
        values = apply(self.routine, z, mask, mean=mean)
        return values + self.constant if self.constant else values


def _stack(values: Sequence[Tensor]) -> Tensor:
    """(layers, batch) on the device of the first layer."""
    return torch.stack([value.to(values[0].device) for value in values])


@dataclass(frozen=True)
class Entry:
    """A registered loss.

    written    the decorated function: z (batch, tokens, width), mask (batch, tokens) and its own keywords → (batch,),
               `OfMoments` or `OfRoutine`
    about      what it is, in one line, for the table in the documentation
    source     "paper", "released", "rival" or "control"
    reference  where it was published
    presets    preset name (`presets.PRESETS`) → keywords
    flags      the keywords that must be True or False
    eps_of_units  whether its option eps is the ε of its unit vectors z/(‖z‖ + ε); without, they are z/‖z‖
    """

    written: Callable[..., Tensor | OfMoments | OfRoutine]
    about: str
    source: str
    reference: str
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    eps_of_units: bool = False

    @property
    def name(self) -> str:
        return self.written.__name__

    @property
    def options(self) -> list[str]:
        return [name for name in inspect.signature(self.function).parameters if name not in ("z", "mask")]

    def eps(self, options: Mapping[str, Any]) -> Any:
        """The ε of its unit vectors, given these options."""
        own = inspect.signature(self.written).parameters.get("eps") if self.eps_of_units else None
        return 0.0 if own is None else options.get("eps", own.default)

    @functools.cached_property
    def function(self) -> Callable[..., Tensor]:
        """The loss as users call it: a scalar, or (batch,) with `reduction="none"`."""

        @functools.wraps(self.written)
        def function(z: Tensor, mask: Tensor | None = None, *, reduction: str = "mean", **options: Any) -> Tensor:
            if wrong := options.keys() - parameters.keys():  # which `**common` would swallow
                raise TypeError(f"{self.name}() got an unexpected keyword argument {min(wrong)!r}")
            check_choice("reduction", reduction, ("mean", "none"))
            # under a mask a sequence may have too few tokens: its value is set to 0 before the mean is taken
            mean = reduction == "mean" and mask is None
            values, _ = self.over_layers([z], [mask], lambda alone: alone[0], mean, **options)
            if reduction == "none" or not values.ndim:
                return values
            if mask is None:
                return values.mean()
            n = tokens_across(mask, options.get("process_group"))
            return values.mean() * geometry.over_enough(n, values.dtype)

        written, *others = (
            inspect.signature(f, follow_wrapped=False) for f in (self.written, self.over_layers, function)
        )
        parameters = {name: p for name, p in written.parameters.items() if p.kind is not p.VAR_KEYWORD}
        parameters |= {
            name: p for other in others for name, p in other.parameters.items() if name in Common.__annotations__
        }
        function.__signature__ = written.replace(parameters=list(parameters.values()))  # type: ignore[attr-defined]
        return function

    def over_layers(
        self,
        states: Sequence[Tensor],
        masks: Sequence[Tensor | None],
        join: Callable[[Sequence[Tensor]], Tensor] = _stack,
        mean: bool = False,
        /,
        *,
        max_tokens: int | None = None,
        shared_sample: bool = False,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Values (layers, batch), on the device of the first layer, and mean cosines where they come for free.

        `join` makes one tensor of the layers' tensors; for a single layer it may drop the layer axis. `mean` allows a
        loss to return the mean over the sequences instead, a scalar per layer.
        """
        if max_tokens is None and options.get("estimator") == "sampled":
            max_tokens = RELEASED_SAMPLE["max_tokens"]
        geometry.check_eps(options.get("eps", 0))
        check_objects(generator=generator, **options)
        check_flags(shared_sample=shared_sample, **{name: options[name] for name in self.flags if name in options})
        across_ranks = options.get("process_group") is not None
        if across_ranks and max_tokens is not None:
            raise ValueError(
                f"process_group needs all tokens, got max_tokens={max_tokens}: samples do not cross ranks."
            )
        masks = [geometry.check_states(z, mask) for z, mask in zip(states, masks)]
        layers = [sample(*layer, max_tokens, shared=shared_sample, generator=generator) for layer in zip(states, masks)]
        parts = [self.written(z, mask, **options) for z, mask in layers]
        for part, (z, _) in zip(parts, layers):
            self._check(part, z)
        parts = [p.applied(*layer, mean) if isinstance(p, OfRoutine) else p for p, layer in zip(parts, layers)]
        of_moments = [(part, part.moments(*layer)) for part, layer in zip(parts, layers) if isinstance(part, OfMoments)]
        cosines = None
        if of_moments:
            cosines, *rest = (join(moment) for moment in zip(*(moments for _, moments in of_moments)))
            values = of_moments[0][0].curve(cosines, *rest)
        else:
            values = join([part for part in parts if isinstance(part, Tensor)])
        # Not for split sequences: their losses count the tokens over all ranks.
        if not across_ranks and any(mask is not None for _, mask in layers):
            enough: list[Tensor] = []
            for i, (z, mask) in enumerate(layers):
                if i and mask is layers[i - 1][1]:  # most layers share one mask
                    enough.append(enough[-1])
                else:
                    enough.append(mask.sum(1) >= 2 if mask is not None else values.new_ones(len(z), dtype=torch.bool))
            values = torch.where(join(enough), values, 0)
        return values, cosines

    def _check(self, part: Any, z: Tensor) -> None:
        """Refuse anything but a value of each sequence: others would broadcast over layers and sequences."""
        if isinstance(part, OfMoments | OfRoutine) or (isinstance(part, Tensor) and part.shape == z.shape[:1]):
            return
        got = tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__
        raise ValueError(
            f"loss {self.name!r} must return a value of each sequence, (batch,), got {got} of states "
            f"{tuple(z.shape)}: the mean over sequences is taken of what it returns."
        )

    def beside(self, z: Tensor, **options: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        """For the graph of a block that reads z: z as the block must read it, then `over_layers` of z alone. Where
        `losses/beside.py` has the gradient, the compiler adds it to the block's own in a kernel of the block."""
        is_sampled = options.get("max_tokens") or options.get("estimator") == "sampled"
        part = None if is_sampled else self.written(z, None, **options)
        if not (isinstance(part, OfMoments | OfRoutine) and isinstance(part.routine, Kernel) and part.routine.projects):
            return z, *self.over_layers([z], [None], **options)
        z, values = beside(part.routine, z)
        if isinstance(part, OfMoments):
            return z, part.curve(values)[None], values[None]
        return z, (values + part.constant)[None], None


_entries: dict[str, Entry] = {}


def register(
    about: str, *, source: str, reference: str, **rest: Any
) -> Callable[[Callable[P, Tensor | OfMoments | OfRoutine]], Callable[P, Tensor]]:
    """Decorator that registers a function of z (batch, tokens, width) and a mask as a loss. Arguments as in `Entry`.

    The function returns a value of each sequence, (batch,). Its name is then one for `losses.get` and `regularize`.
    """
    check_choice("source", source, tuple(SOURCES))

    def add(written: Callable[P, Tensor | OfMoments | OfRoutine]) -> Callable[P, Tensor]:
        options = inspect.signature(written).parameters  # read now: compilers cannot
        flags = tuple(name for name, option in options.items() if isinstance(option.default, bool))
        entry = Entry(written, about, source, reference, flags=flags, **rest)
        other = _entries.get(entry.name)
        if other is not None and other.written.__module__ != written.__module__:
            raise ValueError(
                f"a loss must have a name of its own, got a second {entry.name!r} in {written.__module__} beside "
                f"{other.written.__module__}: rename the function."
            )
        _entries[entry.name] = entry
        return entry.function

    return add


def registered(source: str | None = None) -> dict[str, Entry]:
    """The losses by name, the paper's first: all, or those of one source."""
    order = list(SOURCES)
    names = sorted(_entries, key=lambda name: (order.index(_entries[name].source), name != "dispersion", name))
    return {name: _entries[name] for name in names if source in (None, _entries[name].source)}
