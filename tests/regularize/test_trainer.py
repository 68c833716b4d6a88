"""What trainers do that the plain case does not: train twice, compute no loss, have other rows than labels."""

from __future__ import annotations

import pytest
import reference
import torch
from transformers import BertConfig, BertForMultipleChoice, Trainer, TrainerCallback

import decondense as dc
from decondense import losses
from decondense.capture import Capture
from decondense.regularizer import term_of
from regularize.models import assert_same, gpt2, llama, padded, tokens
from regularize.test_model import states
from regularize.test_training import Rows, arguments, trained


def test_a_trainer_that_computes_no_loss_is_refused(tmp_path):
    """Its loss would be trained without the term, and nothing would tell."""

    class Own(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            loss = model(**inputs).loss
            loss.backward()
            return loss.detach()

    trainer = Own(model=llama(), args=arguments(tmp_path, max_steps=1), train_dataset=Rows(False))
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    with dc.regularize(trainer, weight=20.0), pytest.raises(RuntimeError, match=r"Own must compute its loss by comp"):
        trainer.train()
    assert_same(dict(trainer.model.named_parameters()), before)
    without = trainer.train().training_loss  # the loss is off, and so is its check
    with dc.regularize(trainer.model, weight=20.0) as handle:  # the remedy it names
        assert trainer.train().training_loss < without - 1
        assert handle.step == 1


class Stop(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 5:
            raise KeyboardInterrupt


@pytest.mark.parametrize("end", ["whole", "interrupted"])
def test_a_second_training_has_its_own_log(tmp_path, end):
    options = {"max_steps": 6, "logging_steps": 3}
    trainer = Trainer(model=llama(), args=arguments(tmp_path, **options), train_dataset=Rows(True))
    with dc.regularize(trainer, weight=0.5):
        if end == "whole":
            trainer.train()
        else:
            trainer.add_callback(Stop)
            with pytest.raises(KeyboardInterrupt):
                trainer.train()
            trainer.remove_callback(Stop)
        trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert len(lines) == 2
    for line in lines:
        assert line["loss"] == pytest.approx(line["task_loss"] + 0.5 * line["penalty"], rel=1e-5)
    kept = [callback for callback in trainer.callback_handler.callbacks if "decondense" in type(callback).__module__]
    assert not kept


@pytest.mark.parametrize("micro", [1, 2])
def test_the_choices_of_a_question_share_its_label(tmp_path, micro):
    """The penalty is the mean over all sequences of the step, however many micro-batches there are."""
    config = BertConfig(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_hidden_layers=2, vocab_size=64,
                        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)  # fmt: skip
    torch.manual_seed(1)
    model, ids = BertForMultipleChoice(config), tokens(4 * 4).view(4, 4, 12)
    layers = states(model.bert.train(), input_ids=ids.view(16, 12))[1:]
    expected = torch.stack([losses.dispersion(z, estimator="first_order") for z in layers]).mean()
    rows = [{"input_ids": question, "labels": torch.tensor(i)} for i, question in enumerate(ids)]
    options = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": 4 // micro, "max_steps": 1}
    trainer = Trainer(model=model, args=arguments(tmp_path, logging_steps=1, **options), train_dataset=rows)
    with dc.regularize(trainer, weight=0.5):
        trainer.train()
    assert trainer.state.log_history[0]["penalty"] == pytest.approx(expected.item(), rel=1e-5)


def test_sequences_read_twice_share_their_labels(tmp_path, monkeypatch):
    """As R-Drop reads them, whose loss computes the batch with itself."""

    def twice(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        double = {name: torch.cat([values, values]) for name, values in inputs.items()}
        return model(**double, num_items_in_batch=2 * num_items_in_batch).loss

    def weights(micro):
        return trained(tmp_path, llama(), lambda t: dc.regularize(t, weight=20.0), micro=micro, pad=False)

    once = weights(8)
    monkeypatch.setattr(Trainer, "compute_loss", twice)
    for micro in (1, 2, 8):
        assert_same(weights(micro), once, 1e-5)


def test_one_callback_serves_every_trainer_of_a_loop(tmp_path):
    callback, found = dc.DecondenseCallback(weight=20.0), []
    args = arguments(tmp_path, max_steps=2, logging_steps=1)
    trainers = [Trainer(model=llama(), args=args, train_dataset=Rows(True), callbacks=[callback]) for _ in range(2)]
    for trainer in trainers:
        trainer.train()
        found.append([line["penalty"] for line in trainer.state.log_history if "loss" in line])
    assert found[0] == found[1] != []
    callback.handle.remove()
    trainers[1].train()
    assert not any("penalty" in line for line in trainers[1].state.log_history), "what was removed stays removed"


def test_a_label_for_a_row_of_several_documents():
    """The documents of a call have equal parts of its rows' share."""
    z = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
    packed = Capture([z, z], position_ids=torch.tensor([[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 4, 5]]))
    documents = [z[:1, :3], z[:1, 3:], z[1:]]
    expected = torch.stack([losses.dispersion(part, estimator="first_order") for part in documents]).mean()
    found = term_of().penalty(packed, 0, labels=torch.tensor([1, 0]), items=8)
    torch.testing.assert_close(found["penalty"], expected / 4)
    assert found["share"] == 0.25


CLOSENESS = {
    "first_order": ("dispersion", {}, 1e-2),
    "wider": ("dispersion", {"estimator": "exact", "eps": 0.5}, 0.5),
    "exact": ("dispersion", {"estimator": "exact"}, 1e-2),
    "sampled": ("dispersion", {"estimator": "sampled", "max_tokens": 5}, 1e-2),
    "orthogonalization": ("orthogonalization", {}, 1e-2),
    "placebo": ("placebo", {}, 1e-2),
    "uniformity": ("uniformity", {}, 0.0),
    "koleo": ("koleo", {"eps": 0.1}, 0.0),  # of its logarithm
}


@pytest.mark.parametrize("case", CLOSENESS)
def test_the_mean_cosine_of_a_line_is_over_all_its_calls(tmp_path, case):
    """Of the unit vectors of the loss, by whatever it is estimated, and however a step is cut into micro-batches."""
    loss, options, eps = CLOSENESS[case]
    (ids, mask, _), found = padded(32), []
    with torch.no_grad():
        layers = states(gpt2().double(), input_ids=ids, attention_mask=mask)[1:]
    rows = [[reference.mean_cosine(z[b, m.bool()], eps).item() for b, m in enumerate(mask)] for z in layers]
    expected = torch.tensor(rows).mean(1)
    for micro in (8, 4, 2):
        cut = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": 8 // micro}
        args = arguments(tmp_path, max_steps=4, logging_steps=4, **cut)
        args.learning_rate = 0.0
        trainer = Trainer(model=gpt2(), args=args, train_dataset=Rows(True, 32))
        with dc.regularize(trainer, loss, **options):
            trainer.train()
        found.append(trainer.state.log_history[0]["mean_cosine"])
    assert found == pytest.approx([expected.mean().item()] * 3, abs=1e-6)
    with dc.regularize(model := gpt2().train(), loss, **options) as handle:  # and of a call in a loop of one's own
        model(input_ids=ids, attention_mask=mask)
        handle.penalty()
        torch.testing.assert_close(handle.last["mean_cosine"], expected, rtol=0, atol=1e-6)
