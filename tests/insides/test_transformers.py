"""What decondense needs of transformers' insides is where it was, and what is gone is named."""

from __future__ import annotations

import pytest
import torch
from regularize.models import bert, gpt2, llama, t5
from transformers import GPT2LMHeadModel, Trainer, TrainingArguments

from decondense.insides import Moved
from decondense.insides import transformers as inside


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    args = TrainingArguments(output_dir=str(tmp_path_factory.mktemp("out")), use_cpu=True, report_to="none")
    return Trainer(model=llama(), args=args)


def test_how_models_count_labels(trainer):
    args = trainer.args
    found = {build.__name__: inside.shifts_labels(build()) for build in (gpt2, llama, bert, t5)}
    assert found == {"gpt2": True, "llama": True, "bert": False, "t5": False}
    assert not inside.shifts_labels(torch.nn.Linear(2, 2))
    own = llama()
    own.loss_function = min
    assert not inside.shifts_labels(own)
    # GPT2's class names no loss: Trainer counts all its labels, and for Trainer so must we
    assert [inside.trainer_shifts_labels(Trainer(model=build(), args=args)) for build in (gpt2, llama)] == [False, True]


def test_a_model_that_names_no_loss_is_given_the_one_it_has():
    for model, own in ((gpt2(), False), (llama(), True)):
        before = model.loss_function
        inside.name_loss(model)
        assert model.loss_function is before
        assert ("_loss_function" in vars(model)) is not own  # and nothing is left to complain of
        assert (model.loss_type is not None) is own, "Trainer counts as before"


def test_a_model_that_brings_its_loss_keeps_it():
    class Own(GPT2LMHeadModel):
        loss_function = property(lambda self: min)

    set_before = gpt2()
    set_before.loss_function = max
    for model, own in ((Own(gpt2().config), min), (set_before, max)):
        inside.name_loss(model)
        assert model.loss_function is own


def test_how_trainer_scales_a_loss(trainer):
    assert inside.trainer_shifts_labels(trainer) is True
    assert inside.scaled_for_accumulation(trainer, items=7) is True
    assert inside.scaled_for_accumulation(trainer, items=None) is False
    assert inside.loss_copies(trainer) == 1
    assert inside.sequence_shards(trainer) == {"context": 1, "sequence": 1}
    assert inside.pipeline_stages(trainer.model) == 1
    trainer.current_gradient_accumulation_steps = 3  # as train() does
    assert inside.accumulation_steps(trainer) == 3


def test_releases_before_the_word_was_there(trainer, monkeypatch):
    """transformers 5.17 and 5.18 have no loss_is_scaled_for_ga: their rule is by the model and the items alone."""
    monkeypatch.setattr("transformers.__version__", "5.17.0")
    monkeypatch.delattr(Trainer, "loss_is_scaled_for_ga", raising=False)
    assert inside.scaled_for_accumulation(trainer, items=7) is True
    assert inside.scaled_for_accumulation(trainer, items=None) is False


GONE = {
    "_loss_shifts_labels": lambda t: inside.trainer_shifts_labels(t),
    "loss_is_scaled_for_ga": lambda t: inside.scaled_for_accumulation(t, 1),
    "model_accepts_loss_kwargs": lambda t: inside.scaled_for_accumulation(t, 1),
    "compute_loss_func": lambda t: inside.scaled_for_accumulation(t, None),
    "current_gradient_accumulation_steps": lambda t: inside.accumulation_steps(t),
    "get_tp_size": lambda t: inside.loss_copies(t),
    "get_cp_size": lambda t: inside.sequence_shards(t),
    "get_sp_size": lambda t: inside.sequence_shards(t),
    "_tr_loss": lambda t: inside.loss_sum(t),
    "_n_gpu": lambda t: inside.use_one_gpu(t),
}


@pytest.mark.parametrize("name", GONE)
def test_a_field_that_is_gone_is_named(trainer, name):
    """No guess in its place: a penalty on another scale would look as right as this one."""
    if name == "loss_is_scaled_for_ga" and not hasattr(Trainer, name):
        pytest.skip("transformers 5.17 and 5.18 never had it")

    class Without:
        def __getattr__(self, asked):
            if asked == name:
                raise AttributeError(asked)
            return getattr(trainer, asked)

    with pytest.raises(Moved, match=rf"{name} must exist in transformers, because .*: install a release"):
        GONE[name](Without())


def test_a_loss_that_is_gone_is_named(monkeypatch):
    monkeypatch.delattr("transformers.loss.loss_utils.LOSS_MAPPING")
    with pytest.raises(Moved, match=r"transformers\.loss\.loss_utils\.LOSS_MAPPING must exist"):
        inside.shifts_labels(llama())


def test_hidden_states_are_collected_by_hooks_that_are_hung_up_once(monkeypatch):
    model = llama().model
    inside.collect_hidden_states(model)
    hung = [len(layer._forward_hooks) for layer in model.layers]
    assert min(hung) >= 1
    model(input_ids=torch.ones(1, 2, dtype=torch.long), output_hidden_states=True)  # transformers' own moment for it
    assert [len(layer._forward_hooks) for layer in model.layers] == hung
    monkeypatch.delattr("transformers.utils.output_capturing.maybe_install_capturing_hooks")
    with pytest.raises(Moved, match="maybe_install_capturing_hooks must exist in transformers"):
        inside.collect_hidden_states(model)


def test_which_hidden_states_a_call_asks_for(monkeypatch):
    states = list(torch.arange(4))
    assert inside.only(states, [0, -1]) == (0, None, None, 3)
    assert inside.only(states, -2) == (None, None, 2, None)
    monkeypatch.setattr(inside, "_release", lambda: (5, 22))
    assert inside.only(states, [0, 2]) == (1, None, 3)
    assert inside.only(states, 1) == (0, 1, 2, 3)


@pytest.mark.parametrize("attentions", [False, True])
def test_hooks_inside_the_blocks_are_for_what_the_configuration_asks_for(attentions, monkeypatch):
    model = llama().model
    model.set_attn_implementation("eager")
    model.config.output_attentions = attentions
    inside.collect_hidden_states_alone(model)
    assert [len(layer.self_attn._forward_hooks) for layer in model.layers] == [int(attentions)] * len(model.layers)
    out = model(input_ids=torch.ones(1, 2, dtype=torch.long), output_hidden_states=True)
    assert len(out.hidden_states) == len(model.layers) + 1
    assert (out.attentions is not None) == attentions
    other = llama().model  # another model of the class has all its hooks
    found = other(input_ids=torch.ones(1, 2, dtype=torch.long), output_hidden_states=True)
    assert len(found.hidden_states) == len(out.hidden_states)
    assert min(len(layer.self_attn._forward_hooks) for layer in other.layers) == 1
    monkeypatch.delattr("transformers.utils.output_capturing.install_all_output_capturing_hooks")
    with pytest.raises(Moved, match="install_all_output_capturing_hooks must exist in transformers"):
        inside.collect_hidden_states_alone(llama().model)
