"""The real trainers of TRL, which compute their loss from the model's output and never read `out.loss`."""

from __future__ import annotations

import copy

import pytest
import torch

import decondense as dc
from regularize.models import PLAIN, VOCABULARY, llama

pytest.importorskip("trl")
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaForSequenceClassification, PreTrainedTokenizerFast
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    KTOConfig,
    KTOTrainer,
    RewardConfig,
    RewardTrainer,
    SFTConfig,
    SFTTrainer,
)
from trl.experimental.gkd import GKDConfig, GKDTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer


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


def test_a_loss_on_the_model_is_refused_in_the_first_step(tmp_path):
    """SFTTrainer would train without it, and `handle.last` would look right."""
    with pytest.raises(RuntimeError, match=r"no backward pass has reached it.*dc\.regularize\(trainer"):
        trained(tmp_path, 1.0, attach=lambda trainer, weight: dc.regularize(trainer.model, weight=weight))


def talks(rows: int = 8) -> list:
    words = texts(2 * rows)["text"]
    asked, said = words[:rows], words[rows:]
    return [
        [{"role": "user", "content": question + " "}, {"role": "assistant", "content": answer}]
        for question, answer in zip(asked, said)
    ]


def prompts(**columns) -> Dataset:
    rows = texts(8)["text"]
    made = {"prompt": [row + " " for row in rows], "first": rows[1:] + rows[:1], "second": rows[2:] + rows[:2]}
    return Dataset.from_dict({name: made[of] if isinstance(of, str) else of for name, of in columns.items()})


TALK = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


def stage(name: str, config: dict):
    """The trainer of a stage: real classes, small random models, eight rows."""
    words = tokenizer()
    words.chat_template = TALK
    given: dict = {"processing_class": words}
    if "LoRA" in name:  # on attention only
        peft = pytest.importorskip("peft")
        given["peft_config"] = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    if name.startswith("SFT"):
        rows = Dataset.from_dict({"messages": talks()}) if "assistant" in name else texts(8)
        extra = {"SFT assistant": {"assistant_only_loss": True}, "SFT packed": {"packing": True}}.get(name, {})
        return SFTTrainer(llama(), args=SFTConfig(max_length=16, **config, **extra), train_dataset=rows, **given)
    if name.startswith("DPO"):
        if "LoRA" not in name:  # there the reference is the same model with its adapter switched off
            given["ref_model"] = llama()
        rows = prompts(prompt="prompt", chosen="first", rejected="second")
        return DPOTrainer(llama(), args=DPOConfig(**config), train_dataset=rows, **given)
    if name == "ORPO":
        rows = prompts(prompt="prompt", chosen="first", rejected="second")
        return ORPOTrainer(llama(), args=ORPOConfig(max_length=32, **config), train_dataset=rows, **given)
    if name == "KTO":
        rows = prompts(prompt="prompt", completion="first", label=[True, False] * 4)
        return KTOTrainer(llama(), ref_model=llama(), args=KTOConfig(**config), train_dataset=rows, **given)
    if name == "reward":
        torch.manual_seed(1)
        model = LlamaForSequenceClassification(llama().config.__class__(**llama().config.to_dict() | {"num_labels": 1}))
        rows = prompts(chosen="first", rejected="second")
        return RewardTrainer(model, args=RewardConfig(**config), train_dataset=rows, **given)
    if name == "GKD":
        rows = Dataset.from_dict({"messages": talks()})
        args = GKDConfig(lmbda=0.0, max_length=32, **config)
        return GKDTrainer(llama(), teacher_model=llama(), args=args, train_dataset=rows, **given)
    args = GRPOConfig(num_generations=2, max_completion_length=4, **config)
    return GRPOTrainer(llama(), args=args, train_dataset=prompts(prompt="prompt"), **given,
                       reward_funcs=lambda completions, **_: [float(len(c)) for c in completions])  # fmt: skip


def one_step(name: str, folder, weight: float, steps: int = 2):
    """A step of plain descent in `steps` micro-batches of 2, and what went through the decoder stack in each."""
    config = {**PLAIN, "output_dir": str(folder), "bf16": False, "report_to": "none", "max_steps": 1,
              "logging_steps": 1, "gradient_checkpointing": False, "per_device_train_batch_size": 2,
              "gradient_accumulation_steps": steps}  # fmt: skip
    trainer = stage(name, config)
    before = copy.deepcopy(trainer.model)
    calls: list[tuple] = []  # (labels, items, [inputs of the stack])
    compute = trainer.compute_loss

    def recorded(model, inputs, *args, num_items_in_batch=None, **kwargs):
        calls.append((inputs.get("labels"), num_items_in_batch, []))
        return compute(model, inputs, *args, num_items_in_batch=num_items_in_batch, **kwargs)

    def seen(module, args, kwargs):
        if module.training and torch.is_grad_enabled():
            calls[-1][2].append(dict(kwargs, input_ids=args[0] if args else kwargs["input_ids"]))

    trainer.compute_loss = recorded
    stack_of(trainer.model).register_forward_pre_hook(seen, with_kwargs=True)
    handle = dc.regularize(trainer, weight=weight)
    trainer.train()
    assert handle.step == 1
    return trainer, before, calls


def stack_of(model):
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inner.base_model


def penalty_by_hand(model, calls, by_items: bool) -> torch.Tensor:
    """The penalty of the step: a loop over micro-batches, sequences and layers. A sequence weighs its share of the
    step's labels, or the same as every other."""
    total = torch.zeros(())
    for labels, items, inputs in calls:
        for one in inputs:
            ids, mask, positions = one["input_ids"], one.get("attention_mask"), one.get("position_ids")
            states = stack_of(model)(
                input_ids=ids, attention_mask=mask, position_ids=positions, output_hidden_states=True, use_cache=False
            ).hidden_states[1:]
            for keep, share in sequences(ids, mask, positions, labels, items, by_items):
                layers = [dc.losses.dispersion(z[keep][None], estimator="first_order") for z in states]
                total = total + share / len(inputs) / (1 if by_items else len(calls)) * torch.stack(layers).mean()
    return total


def sequences(ids, mask, positions, labels, items, by_items):
    """(which tokens, weight) of every sequence: a row, or in a packed row what lies between two positions 0."""
    found = []
    for row in range(len(ids)):
        tokens = torch.ones_like(ids[row]) if mask is None else mask[row]
        document = tokens.cumsum(0) * 0 if mask is not None or positions is None else (positions[row] == 0).cumsum(0)
        for number in document.unique():
            keep = torch.zeros_like(ids, dtype=torch.bool)
            keep[row] = (document == number) & tokens.bool()
            found.append(keep)
    for keep in found:
        if by_items:
            counted = torch.nn.functional.pad(labels[:, 1:] != -100, (0, 1))
            yield keep, float((counted & keep).sum() / items)
        else:
            yield keep, 1 / len(found)


STAGES = ["SFT", "SFT assistant", "SFT packed", "SFT LoRA", "DPO", "DPO LoRA", "ORPO", "KTO", "GRPO", "reward", "GKD"]


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_steps_along_the_plain_sum(tmp_path, name):
    """p(with) − p(without) = −lr · weight · ∇penalty under accumulation. So the same tokens were drawn in both runs,
    and no pass of a reference or a teacher has counted."""
    plain, _, _ = one_step(name, tmp_path, 0.0)
    trainer, before, calls = one_step(name, tmp_path, 10.0)
    assert len(calls) == 2
    before.train()
    penalty = penalty_by_hand(before, calls, by_items=name.startswith(("SFT", "GKD")))
    names = [n for n, p in before.named_parameters() if p.requires_grad]
    slopes = torch.autograd.grad(penalty, [before.get_parameter(n) for n in names], allow_unused=True)
    assert "LoRA" not in name or all("lora" in n for n in names)
    felt = 0.0
    for n, slope in zip(names, slopes):
        moved = trainer.model.get_parameter(n) - plain.model.get_parameter(n)
        wanted = torch.zeros_like(moved) if slope is None else -PLAIN["learning_rate"] * 10.0 * slope
        torch.testing.assert_close(moved, wanted, rtol=1e-3, atol=1e-6, msg=n)
        felt = max(felt, float(wanted.abs().max()))
    assert felt > 1e-4
    (row,) = [row for row in trainer.state.log_history if "task_loss" in row]
    assert row["penalty"] == pytest.approx(float(penalty.detach()), rel=1e-4)
    assert row["loss"] == pytest.approx(row["task_loss"] + 10 * row["penalty"], rel=1e-5)
    for other in (getattr(trainer, "ref_model", None), getattr(trainer, "teacher_model", None)):
        assert other is None or not any(m._forward_pre_hooks for m in other.modules())


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
