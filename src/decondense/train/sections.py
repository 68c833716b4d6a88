"""The sections of a recipe: every key with its default, and which of them contradict each other."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic.types import StrictFloat, StrictInt  # in lists and mappings, too, true is no number

from ..checks import RESAMPLINGS, TOO_FEW_RESAMPLINGS

SUFFIXES = {"k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}


def count(value: Any) -> int:
    """A number of tokens: 2000000, "2M", "131_072", "1.5B"."""
    if isinstance(value, int):
        number = value
    else:
        text = re.sub(r",(?=\d{3}(?!\d))", "", str(value).strip().lower().replace("_", ""))
        factor = SUFFIXES.get(text[-1:], 1)
        try:
            exact = float(text[:-1] if factor > 1 else text) * factor
            number = round(exact)
            if abs(exact - number) > 0.2:  # 1.5, where the letter is missing; a product like 1.1 · 10¹² is not exact
                raise ValueError
        except (ValueError, OverflowError):
            raise ValueError(f"a number of tokens must be like 2000000, 2M or 1.5B, got {value!r}") from None
    if number < 1:
        raise ValueError(f"a number of tokens must be at least 1, got {value!r}")
    if number > 10**15:
        raise ValueError(f"a number of tokens must be at most 10**15, got {value!r}")
    return number


Count = Annotated[int, BeforeValidator(count)]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false where a number is expected: pydantic would read `weight: true` as 1."""
        kind = cls.model_fields[str(info.field_name)].annotation
        kinds = {get_args(one)[0] if hasattr(one, "__metadata__") else one for one in (kind, *get_args(kind))}
        if isinstance(value, bool) and kinds & {int, float} and bool not in kinds:
            raise ValueError(f"it must be a number, got {str(value).lower()}")
        return value


class Lora(Part):
    """Low-rank adapters instead of all weights; the paper's optional setting."""

    r: int = Field(16, ge=1)
    alpha: int = Field(32, ge=1)
    dropout: float = Field(0.05, ge=0, lt=1)
    target_modules: list[str] | Literal["all-linear"] = "all-linear"


class TrainedTokenizer(Part):
    """A byte-level BPE of `train` tokens, learnt from the recipe's own texts; see `train.tokenizer`."""

    train: Count = Field(ge=257, description="there are 256 bytes and an end of text")
    characters: Count = 20_000_000  # to learn from, shared among the texts as the tokens are


class Model(Part):
    """What is trained: a model by name (see `decondense.models`), or an architecture from scratch."""

    name: str | None = None
    revision: str | None = None
    init: bool = False  # the architecture of `name` with fresh weights
    architecture: str | None = None  # a transformers model type (gpt2, llama, qwen3) instead of a name
    config: dict[str, Any] = {}  # values of its configuration; only for fresh weights
    tokenizer: str | TrainedTokenizer | None = None  # of a model, "bytes" or {train: 8192}; required with architecture
    attention: str | None = None  # transformers' attn_implementation; default: its own choice
    lora: Lora | None = None
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def _one_of_two(self) -> Model:
        if (self.name is None) == (self.architecture is None):
            raise ValueError("give either name or architecture, got " + ("neither" if self.name is None else "both"))
        if self.architecture is not None and self.tokenizer is None:
            raise ValueError("an architecture from scratch needs a tokenizer: name a model's, bytes or {train: 8192}")
        of_a_name = [key for key in ("revision", "init", "trust_remote_code") if getattr(self, key)]
        if self.architecture is not None and of_a_name:
            raise ValueError(
                f"{of_a_name[0]} goes with name, got it with architecture, which is from scratch already: leave it out"
            )
        if self.config and self.architecture is None and not self.init:
            raise ValueError("config changes the architecture, so trained weights do not fit it: set init to true")
        if self.lora is not None and self.fresh:
            raise ValueError("lora adapts trained weights: leave it out when training from scratch")
        if isinstance(self.tokenizer, TrainedTokenizer) and not self.fresh:
            raise ValueError("trained weights know their own tokenizer: leave tokenizer out, or set init to true")
        return self

    @property
    def fresh(self) -> bool:
        """Whether training starts from random weights."""
        return self.init or self.architecture is not None


Texts = str | list[str] | dict[str, StrictFloat]  # one, several in equal shares, or name → share


class Data(Part):
    """What the model is trained on; texts are named as in `decondense.text`."""

    text: Texts = "wikitext-2:train"
    order: Literal["mixed", "sequential"] = "mixed"  # sequential: one text after the other until `tokens` is reached
    held_out: Texts | None = None  # for the held-out losses and the snapshots; default: the end of the text
    folder: str | None = None  # of named texts; default $DECONDENSE_DATA
    tokens: Count = 2_000_000
    held_out_tokens: Count = 65_536
    held_out_documents: int = Field(20, ge=0)  # of each text in `held_out`, for the loss per document
    held_out_document_tokens: Count | None = None  # longer documents are cut to it; default: 16 blocks
    context: int = Field(1024, ge=8)
    boundaries: Literal["separator", "isolated"] = "separator"  # isolated: no attention or pair across documents
    begin: Literal["text", "bos"] = "text"  # bos: it replaces each block's first token, which is not predicted

    @model_validator(mode="after")
    def _shares(self) -> Data:
        for key in ("text", "held_out"):
            texts = getattr(self, key)
            shares = list(texts.values()) if isinstance(texts, dict) else []
            if texts in ([], {}, "") or not all(0 < share < float("inf") for share in shares):
                raise ValueError(f"{key} must name at least one text, each with a share above 0, got {texts}")
        if self.begin == "bos" and self.boundaries == "isolated":
            raise ValueError("begin bos is about blocks, which boundaries isolated cuts at documents: leave one out")
        if self.order == "sequential" and isinstance(self.text, dict):
            raise ValueError("texts that are read one after the other have no shares: give text as a list")
        return self


def shares_of(texts: Texts) -> dict[str, float]:
    """Every text with its share of the tokens; a list means equal shares. The shares add up to 1.

    A mapping has no order, and equal mappings must mean the same run: the texts are sorted by name.
    """
    names = [texts] if isinstance(texts, str) else texts
    given = dict(sorted(names.items())) if isinstance(names, dict) else dict.fromkeys(names, 1.0)
    return {name: share / sum(given.values()) for name, share in given.items()}


class Loss(Part):
    """What is added to the task loss; the options of `decondense.regularize`, but for `regularizer.RECIPE`."""

    name: str = "none"
    weight: float = 0.1
    layers: str | list[StrictInt] = "all"
    modules: str | list[str] | None = None  # patterns of submodules to read, where the model returns no hidden states
    preset: str | None = None
    schedule: Literal["constant", "linear", "cosine", "release"] = "constant"
    ramp_steps: int | None = None
    release_at: float = Field(0.6, ge=0, lt=1)  # with schedule release: share of the run after which the weight falls,
    release_end: float = Field(1.0, gt=0, le=1)  # and share after which it is 0
    check_every: int | None = None
    options: dict[str, Any] = {}  # of the loss itself: estimator, tau, clamp, …

    @field_validator("layers", mode="before")
    @classmethod
    def _one(cls, layers: Any) -> Any:
        return [layers] if isinstance(layers, int) and not isinstance(layers, bool) else layers

    @model_validator(mode="after")
    def _known(self) -> Loss:
        if self.name == "none":
            for key, field in type(self).model_fields.items():
                if key == "name" or key not in self.model_fields_set:
                    continue
                # A recipe printed in full has every key at its default; where no name is given, it was forgotten.
                if "name" not in self.model_fields_set or getattr(self, key) != field.default:
                    raise ValueError(f"{key} does nothing with loss none: name a loss, like koleo, or leave it out")
            return self
        from ..losses.presets import get
        from ..term import Term

        if self.schedule in ("constant", "release") and self.ramp_steps is not None:
            raise ValueError(
                f"ramp_steps goes with schedule linear or cosine, got {self.ramp_steps} with {self.schedule}: choose "
                "one of those, or leave it out"
            )
        for key in ("release_at", "release_end"):
            if self.schedule != "release" and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key} goes with schedule release, got it with {self.schedule}: choose release")
        if self.release_at >= self.release_end:
            raise ValueError(
                f"release_end must come after release_at = {self.release_at:g}, got {self.release_end:g}: lower it"
            )
        try:
            Term(loss=get(self.name, **self.of_the_loss), **self.of_the_term(1))  # valid for any number of steps
        except TypeError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def over_time(self) -> str:
        """How the weight changes during a run, in words; empty where it is constant."""
        if self.schedule == "release":
            return f"released from {self.release_at:g} to {self.release_end:g} of the run"
        return "" if self.schedule == "constant" else f"{self.schedule} rise over {self.ramp_steps:,} steps"

    @property
    def of_the_loss(self) -> dict[str, Any]:
        """What `losses.get` takes beside the name."""
        return self.options | ({} if self.preset is None else {"preset": self.preset})

    def of_the_term(self, steps: int) -> dict[str, Any]:
        """What `term_of` takes beside the options of the loss, for a run of `steps` steps."""
        options = self.model_dump(include={"weight", "layers", "schedule", "ramp_steps", "check_every"})
        if self.schedule == "release":
            options["release_at"] = round(self.release_at * steps)
            options["ramp_steps"] = max(1, round(self.release_end * steps) - options["release_at"])
        return options

    def term(self, steps: int) -> Any:
        from ..regularizer import term_of

        return term_of(self.name, **self.of_the_term(steps), **self.of_the_loss)


class ActiveForgetting(Part):
    """Input embeddings drawn anew every `every` steps; see `train.active_forgetting`."""

    every: int = Field(1000, ge=1)
    learning_rate: float = Field(5e-5, gt=0)
    warmup: float = Field(0.08, ge=0, lt=1)
    std: float = Field(0.02, gt=0)


class Distillation(Part):
    """A teacher's softened predictions as a second target; see `train.distillation`."""

    teacher: str
    revision: str | None = None
    temperature: float = Field(2.0, gt=0)
    share: float = Field(0.5, gt=0, le=1)  # of the distillation term; the task loss has the rest


class Baselines(Part):
    """What the loss is compared with: the paper's baselines and controls (`train.controls`), all off by default."""

    noisy_embedding: float | None = Field(None, gt=0)  # NEFTune's α; the paper: 1
    active_forgetting: ActiveForgetting | None = None
    distillation: Distillation | None = None
    dropout: float | None = Field(None, ge=0, lt=1)  # all dropout keys of the architecture; fresh weights only
    z_loss: float | None = Field(None, gt=0)  # weight of the mean squared log-partition function
    label_smoothing: float | None = Field(None, gt=0, lt=1)
    centre_last: bool = False  # a running mean of the last hidden state is subtracted before the head

    @property
    def on_logits(self) -> dict[str, float]:
        """Terms that are added to the cross-entropy, with their weights."""
        weights = {"z_loss": self.z_loss, "label_smoothing": self.label_smoothing}
        return {name: weight for name, weight in weights.items() if weight is not None}


class Train(Part):
    seed: int = Field(0, ge=0)
    batch_tokens: Count = 131_072  # per optimiser step, over all processes
    micro_batch: int | None = Field(None, ge=1)  # blocks per forward pass and process; default: what fits
    learning_rate: float = Field(5e-5, gt=0)
    scale_learning_rate: bool = False  # × √(number of processes), as the paper
    schedule: Literal["cosine", "linear", "constant", "constant_with_warmup"] = "cosine"
    warmup: float = Field(0.2, ge=0, lt=1)
    weight_decay: float = Field(0.1, ge=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    clip: float = Field(1.0, ge=0)
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    checkpointing: bool = False
    compile: Literal["auto"] | bool = "auto"
    fused_loss: Literal["auto"] | bool = "auto"
    device: str | None = None
    report_to: list[str] = []
    log_every: int = Field(10, ge=1)
    checkpoints: int = Field(4, ge=0)  # over the whole run, the last one at its end; 0: none, so no resuming
    keep: int = Field(2, ge=2, description="one must be whole while the next is being written")
    on_nan: Literal["stop", "skip"] = "stop"
    quantised: list[Literal["int8", "int4", "int8-int8"]] = []  # for the loss of held-out documents after rounding

    @model_validator(mode="after")
    def _constant(self) -> Train:
        """Trainer's constant schedule has no warm-up, whatever it is told."""
        if self.schedule == "constant":
            if self.warmup and "warmup" in self.model_fields_set:
                raise ValueError(
                    f"schedule constant has no warm-up, got warmup {self.warmup:g}: set it to 0, or schedule to "
                    "constant_with_warmup"
                )
            self.warmup = 0.0
        return self


class Snapshots(Part):
    """The meter on a few fixed held-out windows: at step 0 and `count` times during the run, the last at its end."""

    count: int = Field(4, ge=0)
    windows: int = Field(8, ge=1)
    tokens: int = Field(512, ge=2)
    bootstrap: int = Field(200, ge=RESAMPLINGS, description=TOO_FEW_RESAMPLINGS)
    spectral: bool = False  # also the ranks of the states
    probes: bool = False  # also the noise of the gradient and the share of frequency (`probes.py`)
