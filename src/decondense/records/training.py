"""One training run, with its snapshots in short form."""

from __future__ import annotations

from pydantic import Field

from .base import Count, Number, Open, Part, Record, Section, known
from .measurement import Snapshot


class Step(Open):
    """A line of the history. `loss` = `task_loss` + `penalty_weight` · `penalty`; other terms are further fields."""

    step: Count
    tokens: Count
    loss: Number = None
    task_loss: Number = None
    penalty: Number = None
    mean_cosine: Number = None
    penalty_weight: Number = None
    penalty_agreement: Number = None
    learning_rate: Number = None
    grad_norm: Number = None


class HeldOut(Part):
    step: Count
    tokens: Count
    loss: Number


class Probe(Part):
    """`gradient_noise` is in tokens, `frequency_share` is of the last state: see `train/probes.py`."""

    step: Count
    tokens: Count
    gradient_noise: Number
    frequency_share: Number


class HeldOutDocument(Part):
    text: str
    document: int
    tokens: int
    loss: Number


class TrainedModel(Part):
    name: str
    source: str = "unknown source"
    parameters: int
    base_model: str | None = None  # hub id of the weights that training started from
    licence: str | None = None  # of those weights


class TrainedText(Part):
    name: str
    source: str = "unknown source"
    documents: int | None = None
    tokens: int | None = None
    sha256: str | None = None


class Training(Record, reads=("decondense.train/2",)):
    finished: bool
    command: str | None = None
    recipe: Section
    model: TrainedModel
    text: list[TrainedText] = Field([])
    held_out_text: list[TrainedText] = Field([])
    blocks: int | None = None
    steps: int
    tokens: int | None = None
    history: list[Step]
    held_out: list[HeldOut]
    held_out_texts: dict[str, Number] | None = None
    held_out_documents: list[HeldOutDocument] | None = None
    held_out_by: Section | None = None
    held_out_quantised: dict[str, dict[str, Number]] | None = None  # scheme → text → loss, beside `held_out_texts`
    snapshots: list[Snapshot]
    probes: list[Probe] | None = None
    skipped_steps: list[int] | int
    seconds: Number = None
    tokens_per_second: Number = None
    processes: int | None = None
    micro_batch: int | None = None
    bf16: bool | None = None
    compiled: bool | None = None
    fused_loss: bool | None = None
    hardware: str
    versions: dict[str, str]
    arm: str | None = None  # of a study that the run belongs to
    origin: str | None = None  # where a study took the run from

    def lines(self) -> list[Section]:
        """Return a row per logged step, with the held-out loss at the steps where it was measured."""
        held_out = {entry.step: entry.loss for entry in self.held_out}
        rows = {line.step: line.model_dump() for line in self.history}
        for entry in self.held_out:
            rows.setdefault(entry.step, {"step": entry.step, "tokens": entry.tokens})
        return [rows[step] | {"held_out_loss": held_out.get(step)} for step in sorted(rows)]

    @property
    def quantisation_cost(self) -> dict[str, float]:
        """Map each scheme to the held-out loss after quantisation minus before, in nats per token, averaged over texts;
        NaN where a loss is not finite."""
        before = self.held_out_texts or {}
        return {
            scheme: sum(known(loss) - known(before[text]) for text, loss in after.items()) / len(after)
            for scheme, after in (self.held_out_quantised or {}).items()
        }

    @property
    def skipped(self) -> int:
        """Number of steps skipped because loss or gradient was not finite; a study keeps only this number."""
        return self.skipped_steps if isinstance(self.skipped_steps, int) else len(self.skipped_steps)
