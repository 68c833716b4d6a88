"""The real trainers of TRL, which compute their loss from the model's output and never read `out.loss`."""

from __future__ import annotations

import pytest
import torch

import decondense as dc
from regularize.models import PLAIN, VOCABULARY, assert_same, llama

pytest.importorskip("trl")
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer


def tokenizer() -> PreTrainedTokenizerFast:
    words = {"[PAD]": 0, "[UNK]": 1, "[EOS]": 2, **{f"w{i}": i for i in range(3, VOCABULARY)}}
    raw = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]")


def texts(rows: int = 32) -> Dataset:
    g = torch.Generator().manual_seed(5)
    lengths = torch.randint(5, 14, (rows,), generator=g).tolist()
    draw = [torch.randint(3, VOCABULARY, (n,), generator=g).tolist() for n in lengths]
    return Dataset.from_dict({"text": [" ".join(f"w{i}" for i in row) for row in draw]})


def trained(tmp_path, weight, micro=8, attach=lambda trainer, weight: dc.regularize(trainer, weight=weight), **options):
    model = llama()
    config = SFTConfig(
        output_dir=str(tmp_path),
        bf16=False,
        report_to=options.pop("report_to", "none"),
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=8 // micro,
        max_steps=2,
        logging_steps=1,
        max_length=16,
        gradient_checkpointing=False,
        dataset_num_proc=None,
        **PLAIN,
        **options,
    )
    trainer = SFTTrainer(
        model=model, args=config, train_dataset=texts(), eval_dataset=texts(8), processing_class=tokenizer()
    )
    before = trainer.evaluate()["eval_loss"]
    with attach(trainer, weight):
        assert trainer.evaluate()["eval_loss"] == pytest.approx(before, rel=1e-6)
        trainer.train()
    return {n: p.detach().clone() for n, p in model.named_parameters()}, trainer.state.log_history


PACKING = {"padded": {}, "packed": {"packing": True}}


@pytest.mark.parametrize("packing", PACKING.values(), ids=PACKING.keys())
def test_the_term_trains(tmp_path, packing):
    without, _ = trained(tmp_path, 0.0, **packing)
    with_it, logs = trained(tmp_path, 100.0, **packing)
    assert max((without[n] - with_it[n]).abs().max() for n in without) > 1e-2
    rows = [row for row in logs if "loss" in row]
    assert len(rows) == 2
    for row in rows:
        assert row["loss"] == pytest.approx(row["task_loss"] + 100 * row["penalty"], rel=1e-6)
        assert "mean_cosine" in row


@pytest.mark.parametrize("packing", PACKING.values(), ids=PACKING.keys())
def test_accumulation(tmp_path, packing):
    whole, _ = trained(tmp_path, 20.0, micro=8, **packing)
    parts, _ = trained(tmp_path, 20.0, micro=1, **packing)
    assert_same(whole, parts, 1e-5)


def test_a_loss_on_the_model_is_refused_in_the_first_step(tmp_path):
    """SFTTrainer would train without it, and `handle.last` would look right."""
    with pytest.raises(RuntimeError, match=r"no backward pass has reached it.*dc\.regularize\(trainer"):
        trained(tmp_path, 1.0, attach=lambda trainer, weight: dc.regularize(trainer.model, weight=weight))


def preferences(config):
    rows = texts(8)["text"]
    pairs = {"prompt": [row + " " for row in rows], "chosen": rows[1:] + rows[:1], "rejected": rows[2:] + rows[:2]}
    return DPOTrainer(model=llama(), ref_model=llama(), args=DPOConfig(**config), processing_class=tokenizer(),
                      train_dataset=Dataset.from_dict(pairs))  # fmt: skip


def rewards(config):
    config |= {"num_generations": 2, "max_completion_length": 4}
    return GRPOTrainer(model=llama(), args=GRPOConfig(**config), processing_class=tokenizer(),
                       train_dataset=Dataset.from_dict({"prompt": texts(8)["text"]}),
                       reward_funcs=lambda completions, **_: [float(len(c)) for c in completions])  # fmt: skip


@pytest.mark.parametrize("make", [preferences, rewards], ids=["DPO", "GRPO"])
def test_preferences_and_rewards(tmp_path, make):
    """Refused on the model in the first step; on the trainer it is trained and logged, also under accumulation."""
    config = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no",
              "disable_tqdm": True, "optim": "sgd", "learning_rate": 1e-2, "max_grad_norm": 0.0, "max_steps": 1,
              "logging_steps": 1, "gradient_checkpointing": False}  # fmt: skip
    trainer = make(config | {"per_device_train_batch_size": 4})
    with dc.regularize(trainer.model, weight=1.0), pytest.raises(RuntimeError, match=r"regularize\(trainer"):
        trainer.train()
    ends = []
    for weight, micro in ((0.0, 4), (100.0, 4), (100.0, 2)):
        batch = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": 4 // micro}
        trainer = make(config | batch)
        with dc.regularize(trainer, weight=weight):
            trainer.train()
        ends.append({name: p.detach().clone() for name, p in trainer.model.named_parameters()})
    assert max((ends[0][name] - ends[1][name]).abs().max() for name in ends[0]) > 1e-2
    assert_same(ends[1], ends[2], 1e-5)
    (row,) = [row for row in trainer.state.log_history if "task_loss" in row]
    assert row["penalty"] < 0
    assert row["loss"] == pytest.approx(row["task_loss"] + 100 * row["penalty"], rel=1e-6)


def test_tensorboard(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    trained(tmp_path, 0.1, report_to="tensorboard")
    files = list(tmp_path.rglob("events.out.tfevents*"))
    tags: set[str] = set()
    for file in files:
        events = EventAccumulator(str(file))
        events.Reload()
        tags |= set(events.Tags()["scalars"])
    assert {"train/task_loss", "train/penalty", "train/mean_cosine"} <= tags
