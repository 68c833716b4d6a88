"""`regularize`: attach a loss on the hidden states of a model in one line; training calls add it to the task loss.

    handle = regularize(model, "dispersion", weight=0.1)
    out = model(input_ids=x, attention_mask=m, labels=x)     # out.loss = task loss + weight · penalty

The penalty is the mean over the chosen layers of the loss of each sequence's token states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from inspect import signature
from typing import Any

from torch import nn

from . import hidden_states as hs
from .handle import Attachment, Engine, Handle
from .insides.torch import unwrapped
from .integrations.own_loop import OwnLoop
from .losses.presets import Loss, get
from .losses.registry import registered
from .term import Schedule, Term, Terms
from .words import near


def regularize(
    target: Any,
    loss: str | Loss | Sequence[Mapping[str, Any]] = "dispersion",
    *,
    weight: float = 0.1,
    layers: hs.Layers = "all",
    schedule: Schedule = "constant",
    ramp_steps: int | None = None,
    release_at: int | None = None,
    segments: str | None = "auto",
    modules: str | Sequence[str] | None = None,
    check_every: int | None = None,
    **options: Any,
) -> Handle:
    """Attach a loss to a model, or to a transformers or TRL trainer.

    loss = task_loss + weight · penalty. Dispersion is the logarithm of a mean of numbers that are at most 1, so its
    penalty is negative and `loss` lies below `task_loss`.

    target       a transformers model (decoder, encoder, encoder–decoder, PEFT-wrapped, also inside DDP or after
                 torch.compile); a trainer, whose `compute_loss` and `log` are then wrapped; or any `nn.Module`
                 together with `modules`.
    loss         a name, with `options` as in `losses.get` (preset=…, tau=…, estimator=…), or what `losses.get`
                 returned. By name, dispersion is estimated to first order unless `estimator` or `preset` is given:
                 docs/estimators.md. Or a list of several, each with its own of the options below but `modules`:
                 [dict(loss="dispersion", weight=0.1), dict(loss="decorrelation", layers="last", weight=0.3)].
    weight       λ, the factor of the penalty.
    layers       "all" (every block, not the embedding layer), "last", "early_half", "late_half", a list of
                 indices into the hidden states (0 is the embedding layer), or a callable from their number to such
                 a list. With `modules`, indices count the matching modules from 0, in the order of their calls.
    schedule     "constant"; "linear" or "cosine": the weight rises from 0 over `ramp_steps` optimiser steps;
                 "release": it is constant until step `release_at` and then falls linearly to 0 over `ramp_steps`; or
                 a callable from the optimiser step to a factor of the weight. Steps of torch optimisers are counted;
                 after each step of any other optimiser, run handle.step += 1.
    segments     "position_ids": cut a packed row into documents where its position ids restart; "auto": the same,
                 but only in calls without an attention mask; None: a row is one sequence.
    modules      one or several patterns of submodule names: the outputs of these modules, (batch, tokens, width), are
                 read instead. Patterns match level by level: "blocks.*" are the modules directly in `blocks`.
                 `handle.reads` lists what is read, from the first call on in the order of the calls.
    options      options of the loss. If your own loop splits sequences over processes (context parallelism), pass
                 their process_group; gradients must be averaged over these processes, as DDP and FSDP do.
    check_every  every so many training calls, compare the estimator's gradient with the exact one on the first
                 sequence of the batch: `handle.last["agreement"]`, a cosine per layer, kept until the next check.
    """
    term = term_of(
        loss, weight=weight, layers=layers, schedule=schedule, ramp_steps=ramp_steps, release_at=release_at,
        segments=segments, check_every=check_every, **options,
    )  # fmt: skip
    return Handle(Attachment(_engine(target), term, modules))


def term_of(loss: str | Loss | Sequence[Mapping[str, Any]] = "dispersion", **options: Any) -> Term:
    """Build the term that `regularize` attaches: options that `Term` has go to it, all others to the loss."""
    if isinstance(loss, Sequence) and not isinstance(loss, str):
        return _several(loss, options)
    own = {field.name: options.pop(field.name) for field in fields(Term) if field.name in options}
    if isinstance(loss, str):
        _refuse_misspelt(loss, options)
        if get(loss).name == "dispersion" and "preset" not in options:
            options.setdefault("estimator", "first_order")
        loss = get(loss, **options)
    elif options:
        raise TypeError(
            f"options go with a loss by name, got {', '.join(options)} beside {loss!r}: give them to losses.get."
        )
    return Term(loss=loss, **own)


def _several(losses: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Term:
    example = "[dict(loss='dispersion', weight=0.1), dict(loss='decorrelation', layers='last', weight=0.3)]"
    usual = {name: parameter.default for name, parameter in signature(regularize).parameters.items()}
    if given := [name for name, value in options.items() if name not in usual or repr(value) != repr(usual[name])]:
        raise TypeError(f"each loss of a list has options of its own, got {', '.join(given)} beside it: {example}.")
    for one in losses:
        if not isinstance(one, Mapping) or not isinstance(one.get("loss"), (str, Loss)):
            raise TypeError(f"a list of losses must have a dict with `loss` for each, got {one!r}: {example}.")
        for name, remedy in (("modules", "give it beside the list"), ("check_every", "leave it out")):
            if one.get(name) is not None:
                raise TypeError(f"{name} is for all losses of a list or none, got it for {one['loss']!r}: {remedy}.")
    if len(losses) < 2:
        raise ValueError(f"a list of losses must have two or more, got {len(losses)}: give a single one by its name.")
    return Terms([term_of(**one) for one in losses])


# Keys of a recipe's `loss` section that `regularize` takes in another form.
RECIPE = {
    "name": "the loss is the second argument here, regularize(model, 'dispersion')",
    "options": "options of the loss are keywords here, tau=0.5",
    "release_end": "give release_at and ramp_steps in optimiser steps, the weight is 0 from their sum on",
}
LAMBDA = ("lam", "lambd", "lambda_", "λ", "coef", "coeff", "alpha")


def _refuse_misspelt(loss: str, options: dict[str, Any]) -> None:
    """Refuse misspelt keywords of `regularize`: passed on as options of the loss, its error would list only its own."""
    own = [name for name in signature(regularize).parameters if name not in ("target", "loss", "options")]
    for key in options.keys() - {"preset", *registered()[get(loss).name].options}:
        if key in RECIPE:
            raise ValueError(f"{key!r} is a key of a recipe, no option of regularize: {RECIPE[key]}.")
        if close := ["weight"] if key in LAMBDA else near(key, own, cutoff=0.7):
            raise ValueError(f"{key!r} is no option of regularize, nor of {loss}: did you mean {close[0]!r}?")


def _engine(target: Any) -> Engine:
    hs.refuse_lightning(target, "RegularizeCallback")
    if isinstance(target, nn.Module):
        return OwnLoop(unwrapped(target))
    if isinstance(target, type) or not hasattr(target, "compute_loss"):
        raise hs.no_target(target)
    from .integrations.trainer import TrainerEngine

    return TrainerEngine(target)
