"""The review's open question: which small architectures resist condensation by themselves?

Transformers' own models, of one depth and width, that differ in the kind of norm (LayerNorm, RMSNorm), its place
(before the sublayer, after it), the position encoding (learned, rotary, none) and whether the output head is tied to
the embeddings. The paper speaks of Transformers as such, so all of them must condense. Pairs that differ in one thing
are compared seed by seed. An architecture that hardly learns at its learning rate is reported but decides nothing: its
states do not show what training does. Beside the trend over depth, and not part of the criterion: whether training
raises the level, that is the mean cosine of the blocks, since step 0, where it depends on how the weights are drawn,
and since the first snapshot after it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ..figures.studies import curves, effects
from ..records import known
from ..stats.verdicts import NOT, REPRODUCED, UNDECIDED, Decision, decide, trend_and_level
from .runs import Conclusion, Draw, Runs, Settings, cosine, held_out, spearman, spearman_blocks

GPT2, GPT2_UNTIED = "GPT2: LayerNorm before, learned, tied", "GPT2: LayerNorm before, learned, untied"
OPT_PRE, OPT_POST = "OPT: LayerNorm before, learned, tied", "OPT: LayerNorm after, learned, tied"
NEOX = "GPT-NeoX: LayerNorm before, rotary, untied"
STABLE = "StableLM: LayerNorm before, rotary, untied"
LLAMA, LLAMA_TIED = "Llama: RMSNorm before, rotary, untied", "Llama: RMSNorm before, rotary, tied"
OLMO2 = "Olmo2: RMSNorm after, rotary, untied"
ROPE, NOPE = "SmolLM3: RMSNorm before, rotary, tied", "SmolLM3: RMSNorm before, no positions, tied"
# (what differs, first, second): first − second
CONTRASTS = [
    ("norm: RMSNorm − LayerNorm (Llama, StableLM)", LLAMA, STABLE),
    ("place of the norm: after − before (OPT)", OPT_POST, OPT_PRE),
    ("place of the norm: after, with norms of q and k − before (Olmo2, Llama)", OLMO2, LLAMA),
    ("positions: none − rotary (SmolLM3)", NOPE, ROPE),
    ("positions: rotary − learned (GPT-NeoX, GPT2)", NEOX, GPT2_UNTIED),
    ("head: tied − untied (GPT2)", GPT2, GPT2_UNTIED),
    ("head: tied − untied (Llama)", LLAMA_TIED, LLAMA),
]


FEW = 3  # as many names, which have commas, can still be read in a list
GATED = (STABLE, LLAMA, LLAMA_TIED, OLMO2, ROPE)  # with rotary positions and a gated MLP
LEARNS = 1.0  # nats of held-out loss above the best architecture: this far behind, one has hardly learned


def arms(size: dict[str, Any]) -> Settings:
    """Eleven models of one size. `mlp` is the width of a plain MLP, `gated` that of one with a gate; `vocabulary` is
    (size, id of the first token of a text, id of the last), `pad` the id of the padding token, which has no
    embedding, for architectures that must have one; `opt_rate`, where given, the learning rate of the two OPTs."""
    layers, width, heads, context, pad = (size[key] for key in ("layers", "width", "heads", "context", "pad"))
    vocabulary = dict(zip(("vocab_size", "bos_token_id", "eos_token_id"), size["vocabulary"]))
    common = vocabulary | {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    common |= {"max_position_embeddings": context}
    rotary = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}}
    gpt2 = vocabulary | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "n_embd": width, "n_layer": layers}
    gpt2 |= {"n_head": heads, "n_inner": size["mlp"], "n_positions": context}
    opt = common | {"ffn_dim": size["mlp"], "dropout": 0.0, "word_embed_proj_dim": width, "pad_token_id": pad}
    llama = common | {"intermediate_size": size["gated"], "num_key_value_heads": heads, "pad_token_id": pad}
    models = {
        GPT2: ("gpt2", gpt2),
        GPT2_UNTIED: ("gpt2", gpt2 | {"tie_word_embeddings": False}),
        OPT_PRE: ("opt", opt),
        OPT_POST: ("opt", opt | {"do_layer_norm_before": False}),
        NEOX: ("gpt_neox", common | rotary | {"intermediate_size": size["mlp"], "use_parallel_residual": False}),
        STABLE: ("stablelm", llama | rotary),
        LLAMA: ("llama", llama),
        LLAMA_TIED: ("llama", llama | {"tie_word_embeddings": True}),
        OLMO2: ("olmo2", llama),
        ROPE: ("smollm3", llama | {"no_rope_layers": [1] * layers}),
        NOPE: ("smollm3", llama | {"no_rope_layers": [0] * layers}),
    }
    opt_training = {"train": {"learning_rate": size["opt_rate"]}} if "opt_rate" in size else {}
    return {
        arm: {"model": {"architecture": kind, "config": config}} | (opt_training if kind == "opt" else {})
        for arm, (kind, config) in models.items()
    }


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    arm_count = len(settings["arms"])
    losses = {arm: runs.mean(arm, held_out) for arm in runs.arms}
    best = min(filter(math.isfinite, losses.values()), default=math.nan)
    failed = [arm for arm, loss in losses.items() if not loss < best + LEARNS]
    names = [arm for arm in settings["arms"] if arm not in failed]
    trends = {arm: runs.values(arm, spearman) for arm in names}
    level_changes = {arm: [cosine(run) - cosine(run, 0) for run in runs.of(arm)] for arm in names}
    condense, verdict, resist = _all_above(trends, arm_count)
    level, by_level, lowered = _all_above(level_changes, arm_count)
    late = {arm: [cosine(run) - cosine(run, 1) for run in runs.of(arm) if len(run.snapshots) > 2] for arm in names}
    later, _, fallen = _all_above({arm: some for arm, some in late.items() if some}, arm_count)
    pairs = [pair for pair in CONTRASTS if not {*pair[1:]} & {*failed}]
    contrasts = {what: runs.contrast(a, b, spearman, claim="greater") for what, a, b in pairs}
    levels = {what: runs.contrast(a, b, cosine, claim="greater") for what, a, b in pairs}
    seeds = [len(runs.of(arm)) for arm in runs.arms]
    sentence = ""
    if len(seeds) < arm_count or min(seeds) < 3:
        sentence = f"{len(seeds)} of {arm_count} architectures are run, {min(seeds)} of at least 3 training seeds; "
    verdicts = {"trend": verdict, "level": by_level}
    sentence += (
        f"Spearman of {len(names)} architectures: {_sides(condense, resist)}; pairs that differ in it: "
        f"{_moved(contrasts, 2) or 'none'}. Mean cosine of the blocks, end minus step 0: {_sides(level, lowered)}"
        f"{f'; since the first snapshot after that: {_sides(later, fallen)}' if later else ''}; pairs that "
        f"differ in it at the end: {_moved(levels, 3) or 'none'}. {trend_and_level(**verdicts)}"
    )
    if failed:
        sentence += (
            f" Hardly learned, held-out loss {LEARNS:g} nat or more above the best, and left out: {', '.join(failed)}."
        )
    lowest = min(((d.estimate, arm) for arm, d in condense.items() if d.estimate is not None), default=None)
    headline = (
        f"trend over depth (Spearman) of {len(names)} architectures: {_sure(condense)} above 0, {len(resist)} below 0 "
        f"after correction{f'; lowest {lowest[1]} {condense[lowest[1]].short(2)}' if lowest else ''}"
    )
    shown = sorted(runs.arms, key=lambda arm: runs.mean(arm, spearman))
    draw = partial(
        effects,
        [(f"{arm}{' (hardly learned)' * (arm in failed)}", runs.values(arm, spearman)) for arm in shown],
        x="Spearman of mean cosine with depth, end of training", strong=[arm not in failed for arm in shown],
        right=[f"{runs.mean(arm, cosine):.3f}" for arm in shown], right_title="mean cosine",
        note="above 0: condensing; dots: training seeds; bars, where there are several: 95 % intervals",
    )  # fmt: skip
    estimate = {
        "spearman": condense, "contrasts": contrasts, "mean_cosine": level, "contrasts_mean_cosine": levels,
        "verdicts": verdicts,
    }  # fmt: skip
    rows = runs.rows(spearman_blocks=spearman_blocks)
    return Conclusion(verdict, headline, sentence, *rows, estimate, draw, {"curves.png": _curves(runs)})


def _curves(runs: Runs) -> Draw:
    """The mean cosine of every state at the end, in two panels: rotary positions with a gated MLP, and all others."""
    cosines = {
        arm: [[known(value) for value in run.snapshots[-1].mean_cosine] for run in runs.of(arm)] for arm in runs.arms
    }
    top = max((value for some in cosines.values() for one in some for value in one if math.isfinite(value)), default=1)
    axes = {"x": "state (0: embedding)", "y": "mean cosine of two tokens", "limits": (0.0, 1.7 * top)}  # room for names
    panels = []
    for title, gated in (("Rotary positions and a gated MLP", True), ("All others", False)):
        shown = {arm: some for arm, some in cosines.items() if (arm in GATED) == gated}
        series = {arm: (list(range(len(some[0]))), list(zip(*some))) for arm, some in shown.items()}
        panels += [{"title": title, "series": series, "band": True, "legend": True} | axes] if series else []
    return partial(curves, panels, note="end of training: means over seeds, and bands from the lowest to the highest")


def _all_above(values: Mapping[str, Sequence[float]], all_arms: int) -> tuple[dict[str, Decision], str, list[str]]:
    """(is each architecture above 0, the verdict on all of them, which are below 0 at the level divided by the number
    of arms). The verdict stays undecided where all are above but more than half of the arms are left out."""
    above = {arm: decide(some, claim="greater") for arm, some in values.items()}
    strict = {arm: decide(some, claim="greater", level=1 - 0.05 / all_arms) for arm, some in values.items()}
    below = [arm for arm, d in strict.items() if d.verdict == NOT]
    enough = _sure(above) == len(above) and 2 * len(above) >= all_arms
    return above, NOT if below else REPRODUCED if enough else UNDECIDED, below


def _sides(decisions: Mapping[str, Decision], strictly_below: Sequence[str]) -> str:
    """How many architectures lie on either side of 0 with the whole interval, and which, where they are few; and how
    many are still below at the level of the criterion."""
    counted = []
    for side, verdict in (("above 0", REPRODUCED), ("below 0", NOT), ("undecided", UNDECIDED)):
        arms = [arm for arm, d in decisions.items() if d.verdict == verdict]
        counted.append(f"{len(arms)} {side}" + (f" ({' and '.join(arms)})" if 0 < len(arms) <= FEW else ""))
    corrected = f"at the level divided by their number {len(strictly_below)} below 0"
    return f"{', '.join(counted)} (by 95 % intervals; {corrected})"


def _sure(decisions: Mapping[str, Decision]) -> int:
    return sum(d.verdict == REPRODUCED for d in decisions.values())


def _moved(contrasts: Mapping[str, Decision], digits: int) -> str:
    return "; ".join(f"{what} {d.words(digits)}" for what, d in contrasts.items() if d.verdict in (REPRODUCED, NOT))
