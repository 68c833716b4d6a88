"""The review's open question: which small architectures resist condensation by themselves?

Transformers' own models, of one depth and width, that differ in the kind of norm (LayerNorm, RMSNorm), its place
(before the sublayer, after it), the position encoding (learned, rotary, none) and whether the output head is tied to
the embeddings.

Criterion: the paper speaks of Transformers as such, so "reproduced" is: Spearman at the end of training is above 0 in
every architecture, each by its 95 % interval over training seeds. "Not reproduced": some architecture is below 0, at
the level divided by their number. Pairs that differ in one thing are compared seed by seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..stats.verdicts import NOT, REPRODUCED, UNDECIDED, decide
from . import scales, training
from .study import Conclusion, Settings, Study
from .training import Runs, joined, spearman

CRITERION = (
    "Spearman at the end of training is above 0 in every architecture (95 % intervals over training seeds); not "
    "reproduced when one is below 0 at the level divided by the number of architectures."
)
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


def arms(
    *, layers: int, width: int, heads: int, mlp: int, gated: int, context: int, words: dict[str, Any]
) -> dict[str, Any]:
    """`mlp` is the width of a plain MLP, `gated` that of one with a gate, chosen for about as many parameters."""
    shape = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    common = {**words, **shape, "max_position_embeddings": context}
    rotary = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}}
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    gpt2 = {
        **words,
        **still,
        "n_embd": width,
        "n_layer": layers,
        "n_head": heads,
        "n_inner": mlp,
        "n_positions": context,
    }
    opt = {**common, "ffn_dim": mlp, "dropout": 0.0, "word_embed_proj_dim": width, "pad_token_id": 0}
    llama = {**common, "intermediate_size": gated, "num_key_value_heads": heads, "pad_token_id": 0}
    wanted = {
        GPT2: ("gpt2", gpt2),
        GPT2_UNTIED: ("gpt2", {**gpt2, "tie_word_embeddings": False}),
        OPT_PRE: ("opt", opt),
        OPT_POST: ("opt", {**opt, "do_layer_norm_before": False}),
        NEOX: ("gpt_neox", {**common, **rotary, "intermediate_size": mlp, "use_parallel_residual": False}),
        STABLE: ("stablelm", {**llama, **rotary}),
        LLAMA: ("llama", llama),
        LLAMA_TIED: ("llama", {**llama, "tie_word_embeddings": True}),
        OLMO2: ("olmo2", llama),
        ROPE: ("smollm3", {**llama, "no_rope_layers": [1] * layers}),
        NOPE: ("smollm3", {**llama, "no_rope_layers": [0] * layers}),
    }
    return {arm: {"model": {"architecture": kind, "config": config}} for arm, (kind, config) in wanted.items()}


def conclude(pieces: list[dict[str, Any]], settings: Settings) -> Conclusion:
    names = list(settings["arms"])
    runs = Runs(pieces, names)
    condense = {arm: decide(runs.values(arm, spearman), claim="greater") for arm in names}
    strict = {arm: decide(runs.values(arm, spearman), claim="greater", level=1 - 0.05 / len(names)) for arm in names}
    contrasts = {
        what: decide(runs.differences(first, second, spearman), claim="greater") for what, first, second in CONTRASTS
    }
    resist = [arm for arm, d in strict.items() if d.verdict == NOT]
    sure = [arm for arm, d in condense.items() if d.verdict == REPRODUCED]
    verdict = NOT if resist else REPRODUCED if len(sure) == len(names) else UNDECIDED
    moved = [f"{what} {d.words(2)}" for what, d in contrasts.items() if d.verdict in (REPRODUCED, NOT)]
    sentence = (
        f"{len(sure)} of {len(names)} architectures condense with the whole interval; dispersing by themselves: "
        f"{', '.join(resist) or 'none'}; single differences that show: {'; '.join(moved) or 'none'}."
    )
    columns, rows = runs.rows()

    def draw(path: Path) -> Path:
        from ..figures.studies import effects

        shown = sorted(runs.arms, key=lambda arm: runs.mean(arm, spearman))
        return effects(
            [(arm, runs.values(arm, spearman)) for arm in shown],
            path,
            x="Spearman of mean cosine with depth, end of training",
            note="above 0: condensing; dots: training seeds; bars: 95 % intervals",
        )

    estimate = {
        "spearman": {arm: d.record() for arm, d in condense.items()},
        "contrasts": {what: d.record() for what, d in contrasts.items()},
    }
    return Conclusion(verdict, sentence, columns, rows, estimate, draw)


_TINY = {"layers": 4, "width": 32, "heads": 2, "mlp": 64, "gated": 42, "context": 64}
_BYTES = {"vocab_size": 384, "bos_token_id": 1, "eos_token_id": 1}
_SMALL = {"layers": 12, "width": 512, "heads": 8, "mlp": 2048, "gated": 1376, "context": 1024}
_GPT2_WORDS = {"vocab_size": 50_257, "bos_token_id": 50_256, "eos_token_id": 50_256}
_SIZE = {"layers": 12, "width": 768, "heads": 12, "mlp": 3072, "gated": 2048, "context": 1024}


def _without_model(recipe: dict[str, Any]) -> dict[str, Any]:
    return {**recipe, "model": {"tokenizer": recipe["model"]["tokenizer"]}}


STUDY = Study(
    name="arch",
    claim="open question",
    question="Which small architectures resist condensation by themselves: norm, its place, positions, tied head?",
    criterion=CRITERION,
    scales={
        "smoke": {
            "about": "11 architectures of 4 layers and width 32, 1 seed, 2 steps",
            "cost": "15 s of a CPU core",
            "base": joined(_without_model(scales.TINY_GPT2), {"data": {"tokens": 512}}),
            "arms": arms(words=_BYTES, **_TINY),
            "seeds": [1],
        },
        "gpu": {
            "about": "11 architectures of 12 layers and width 512, 3 seeds, 16M tokens of novels each",
            "cost": "9 pieces of about 5 minutes on an H200",
            "base": _without_model(scales.SCRATCH),
            "arms": arms(words=scales.SMOLLM_WORDS, **_SMALL),
            "seeds": scales.SEEDS,
            "arms_per_piece": 4,
        },
        "paper": {
            "about": "11 architectures of GPT2's size, 3 seeds, 1B tokens of fineweb-edu each",
            "cost": "33 trainings of 1B tokens, about 33 × 1 hour on an H200",
            "base": joined(_without_model(scales.PUBLISHED_SCRATCH), {"train": {"learning_rate": 6e-4}}),
            "arms": arms(words=_GPT2_WORDS, **_SIZE),
            "seeds": scales.SEEDS,
            "arms_per_piece": 1,
        },
    },
    plan=training.plan,
    work=training.work,
    conclude=conclude,
    check=training.check,
)
