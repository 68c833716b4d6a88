"""Two losses at once: the sum of what each adds alone, in value and in gradient, and each of them in the history."""

from __future__ import annotations

import pytest
import torch
import transformers

from decondense.regularizer import regularize
from decondense.train import train
from train.runs import CONFIGS, result, tiny

FIRST = {"loss": "decorrelation", "layers": "last", "weight": 0.3}
SECOND = {
    "loss": "dispersion",
    "layers": [0, 1],
    "weight": 0.5,
    "schedule": "release",
    "release_at": 1,
    "ramp_steps": 4,
}


def attached(model, step):
    handle = regularize(model, [FIRST, SECOND])
    handle.step = step
    return handle


def gradients(model, attach):
    """(loss, gradient of every parameter, the handle's last) of one training call."""
    ids = torch.arange(48).view(2, 24) * 7 % 384
    model.zero_grad()
    handle = attach(model) if attach is not None else None
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    last = dict(handle.last) if handle is not None else {}
    if handle is not None:
        handle.remove()
    return loss.detach(), torch.cat([p.grad.flatten() for p in model.parameters()]), last


@pytest.mark.parametrize("step", [0, 3])
def test_the_sum_of_both_as_from_two_separate_calls(step):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIGS["llama"])).train()

    def alone(options):
        def attach(model):
            handle = regularize(model, **options)
            handle.step = step
            return handle

        return attach

    plain, first, second = (gradients(model, a) for a in (None, alone(FIRST), alone(SECOND)))
    both = gradients(model, lambda model: attached(model, step))
    factor = {0: 1.0, 3: 0.5}[step]  # released from step 1 on over 4 steps
    added = 0.3 * first[2]["penalty"] + factor * 0.5 * second[2]["penalty"]
    assert both[2]["penalty"] == pytest.approx(float(added), rel=1e-5)
    assert both[0] == pytest.approx(float(plain[0] + added), rel=1e-6)
    assert [float(both[2][f"penalty_{k}"]) for k in (1, 2)] == pytest.approx(
        [float(first[2]["penalty"]), float(second[2]["penalty"])], rel=1e-5
    )
    assert both[2]["per_layer"].shape == (3,)
    expected = first[1] + second[1] - plain[1]
    assert torch.allclose(both[1], expected, rtol=1e-3, atol=1e-6)
    assert not torch.allclose(both[1], first[1], rtol=1e-3, atol=1e-6)


def llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIGS["llama"])).train()


def test_modules_are_read_for_all_of_them():
    model, ids, last = llama(), torch.arange(24)[None] * 5 % 384, []
    second = {**SECOND, "layers": "all"}
    for given in (FIRST, second, {"loss": [FIRST, second]}):
        with regularize(model, **given, modules="model.layers.*") as handle:
            model(input_ids=ids, labels=ids)
            last.append(dict(handle.last))
    for k, alone in enumerate(last[:2], 1):
        assert float(last[2][f"penalty_{k}"]) == pytest.approx(float(alone["penalty"]), rel=1e-5)
    # every layer once, each as the loss that reads it has it
    assert last[2]["mean_cosine"].tolist() == pytest.approx(last[1]["mean_cosine"].tolist(), abs=0.02)


def test_what_each_adds_is_on_the_scale_of_the_sum():
    """A quarter of a step's labels: the sum is that of the two, whatever the share."""
    model, ids = llama(), torch.arange(48).view(2, 24) * 7 % 384
    with regularize(model, [FIRST, SECOND]) as handle:
        model(input_ids=ids, labels=ids, num_items_in_batch=4 * 46)
        last = handle.last
    assert float(last["share"]) == pytest.approx(0.25)
    added = sum(last[f"penalty_weight_{k}"] * float(last[f"penalty_{k}"]) for k in (1, 2))
    assert float(last["penalty"]) == pytest.approx(added, rel=1e-5)


def test_rows_are_cut_as_each_loss_says():
    model, ids = llama(), torch.arange(48).view(2, 24) * 7 % 384
    packed = {"input_ids": ids, "labels": ids, "position_ids": torch.arange(12).repeat(2)[None].expand(2, -1)}
    first, second = {**FIRST, "segments": None}, {**SECOND, "segments": None, "layers": [1]}
    whole = []
    for given in (first, second, {"loss": [first, second]}):
        with regularize(model, **given) as handle:
            model(**packed)
            whole.append(handle.last["mean_cosine"].tolist())
    assert whole[2] == pytest.approx([*whole[1], *whole[0]], abs=1e-6)


@pytest.mark.parametrize("segments", ["auto", "position_ids", None])
def test_packed_rows_with_a_mask_are_told_of_unless_every_loss_says_what_to_do(segments, recwarn):
    model, ids = llama(), torch.arange(48).view(2, 24) * 7 % 384
    positions = torch.arange(12).repeat(2)[None].expand(2, -1)
    with regularize(model, [{**FIRST, "segments": segments}, {**SECOND, "segments": segments}]):
        model(input_ids=ids, labels=ids, attention_mask=torch.ones_like(ids), position_ids=positions)
    told = [str(one.message) for one in recwarn if "position_ids restart" in str(one.message)]
    assert len(told) == (segments == "auto")


def test_schedules_that_wait_for_steps_in_vain_are_told_of():
    model, ids = llama(), torch.arange(16)[None]
    rising = {"loss": "dispersion", "schedule": "linear", "ramp_steps": 5}
    with regularize(model, [rising, {**rising, "loss": "cosreg"}]):
        for _ in range(64):
            model(input_ids=ids, labels=ids).loss.backward()
        with pytest.warns(UserWarning, match="got none in 64"):
            model(input_ids=ids, labels=ids)


def test_a_loss_that_moves_nothing_is_refused_by_itself():
    model, ids = llama(), torch.arange(16)[None]
    model.requires_grad_(False)
    model.model.layers[1].requires_grad_(True)
    frozen, moving = {"loss": "koleo", "layers": [1]}, {"loss": "cosreg", "layers": [2]}
    with regularize(model, [frozen, moving]), pytest.raises(RuntimeError, match=r"lies below layers \[1\]"):
        model(input_ids=ids, labels=ids)
    with regularize(model, [{**frozen, "weight": 0.0}, moving]):  # a control
        model(input_ids=ids, labels=ids)


def test_a_trainer_logs_each_of_them_and_counts_the_steps_of_a_schedule(tmp_path):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIGS["llama"]))
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.arange(192).view(8, 24) * 7 % 384]
    arguments = transformers.TrainingArguments(
        str(tmp_path), logging_steps=1, max_steps=4, per_device_train_batch_size=2, report_to=[], use_cpu=True
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=rows)
    regularize(trainer, [FIRST, SECOND])
    trainer.train()
    lines = [line for line in trainer.state.log_history if "task_loss" in line]
    assert [line["penalty_weight_2"] for line in lines] == pytest.approx([0.5, 0.5, 0.375, 0.25])
    for line in lines:
        added = sum(line[f"penalty_weight_{k}"] * line[f"penalty_{k}"] for k in (1, 2))
        assert line["penalty"] == pytest.approx(added, rel=1e-4)


def test_the_handle_says_what_it_reads_and_adds():
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIGS["llama"]))
    with attached(model, 0) as handle:
        assert len(handle.reads) == 3  # states 0 and 1, and the last
        assert "decorrelation" in repr(handle)
        assert " + 0.5 · Loss('dispersion'" in repr(handle)


def test_a_recipe_with_two_losses(tmp_path, cache):
    ways = {
        "first": "{name: decorrelation, layers: last, weight: 0.3}",
        "second": "{name: dispersion, layers: [0, 1], weight: 0.5, schedule: release, release_at: 0.5}",
    }
    ways["both"] = f"[{ways['first']}, {ways['second']}]"
    settings = ("train.log_every=1", "train.micro_batch=2", "train.checkpoints=0")
    for name, loss in ways.items():
        train(tiny(*settings, f"loss={loss}"), tmp_path / name, cache=cache)
    record = result(tmp_path / "both")
    lines = record["history"]
    for k, name in ((1, "first"), (2, "second")):  # the first step sees the same weights
        alone = result(tmp_path / name)["history"][0]
        assert lines[0][f"penalty_{k}"] == pytest.approx(alone["penalty"], rel=1e-5)
        assert lines[0][f"penalty_weight_{k}"] == alone["penalty_weight"]
    for number, line in enumerate(lines):
        added = sum(line[f"penalty_weight_{k}"] * line[f"penalty_{k}"] for k in (1, 2))
        assert line["penalty"] == pytest.approx(added, rel=1e-5)
        assert line["loss"] == pytest.approx(line["task_loss"] + added, rel=1e-5)
        assert (line["penalty_weight"], line["penalty_weight_1"]) == (1.0, 0.3)
        assert line["penalty_weight_2"] == pytest.approx(0.5 * min(1.0, (8 - number) / 4))
        assert -1 <= line["mean_cosine"] <= 1
    assert [loss["name"] for loss in record["recipe"]["loss"]] == ["decorrelation", "dispersion"]
    card = (tmp_path / "both" / "model" / "README.md").read_text()
    second = "dispersion, weight 0.5, [0, 1], released from 0.5 to 1 of the run"
    assert f"| decorrelation, weight 0.3, last + {second} |" in card
