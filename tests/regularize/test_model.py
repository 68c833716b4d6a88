"""A loss attached to a model: what is added, when, and what is left behind."""

from __future__ import annotations

import copy
import gc
import weakref

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import decondense as dc
from decondense import losses, packing
from regularize.models import VOCABULARY, assert_same, gpt2, gradients, llama, padded, tokens


def states(model, **inputs):
    """The hidden states that a plain training call returns: what the penalty is made from."""
    return model(**inputs, output_hidden_states=True).hidden_states


def test_gradient_is_that_of_the_sum():
    """And the loss that of the sum, with the mean over the layers. All kinds of model: test_kinds.py."""
    model, (ids, mask, labels) = llama().train(), padded()
    inputs = {"input_ids": ids, "labels": labels, "attention_mask": mask}
    plain = model(**inputs)
    z = states(model, **inputs)
    expected = torch.stack([losses.dispersion(x, mask, tau=0.5) for x in z[1:]])
    (plain.loss + 0.3 * expected.mean()).backward()
    of_the_sum = gradients(model)
    model.zero_grad()
    with dc.regularize(model, "dispersion", weight=0.3, tau=0.5, estimator="exact") as handle:
        out = model(**inputs)
        out.loss.backward()
        torch.testing.assert_close(out.loss, plain.loss + 0.3 * expected.mean())
        torch.testing.assert_close(handle.last["task_loss"], plain.loss.detach())
        torch.testing.assert_close(handle.last["per_layer"], expected.detach())
        torch.testing.assert_close(handle.last["penalty"], expected.mean().detach())
        assert list(out.keys()) == list(plain.keys())
        assert out.get("hidden_states") is None
    assert_same(gradients(model), of_the_sum)


def test_off_in_eval_and_without_gradients():
    model, ids = llama(), tokens()
    plain = model.eval()(input_ids=ids, labels=ids).loss
    with dc.regularize(model, weight=10.0) as handle:
        assert torch.equal(model(input_ids=ids, labels=ids).loss, plain)
        model.train()
        with torch.no_grad():
            assert torch.equal(model(input_ids=ids, labels=ids).loss, plain)
        assert handle.last == {}
        assert not torch.equal(model(input_ids=ids, labels=ids).loss, plain)


def test_hidden_states_only_for_those_who_asked():
    model, ids = llama().train(), tokens()
    before = model.config.to_dict()
    with dc.regularize(model):
        asked = model(input_ids=ids, labels=ids, output_hidden_states=True)
        assert len(asked.hidden_states) == 4
        assert "hidden_states" not in model(input_ids=ids, labels=ids)
        model.config.output_hidden_states = True
        assert len(model(input_ids=ids, labels=ids).hidden_states) == 4
        model.config.output_hidden_states = False
    assert model.config.to_dict() == before


@pytest.mark.parametrize("asked", [[1], [0, 2], [-1], 1, -2])
def test_those_who_asked_for_some_hidden_states_have_them_as_without_the_loss(asked):
    model, ids = llama().train(), tokens()
    expected = torch.stack([losses.dispersion(z) for z in states(model, input_ids=ids)[1:]]).mean()
    alone = model(input_ids=ids, output_hidden_states=asked).hidden_states
    with dc.regularize(model, "dispersion", estimator="exact") as handle:
        out = model(input_ids=ids, labels=ids, output_hidden_states=asked)
        torch.testing.assert_close(handle.last["penalty"], expected.detach())
    assert [s is None for s in out.hidden_states] == [s is None for s in alone]
    assert all(s is None or torch.equal(s, t) for s, t in zip(out.hidden_states, alone, strict=True))


def test_tuples():
    model, ids = llama().train(), tokens()
    plain = model(input_ids=ids, labels=ids).loss
    with dc.regularize(model, weight=0.5) as handle:
        out = model(input_ids=ids, labels=ids, return_dict=False)
        assert isinstance(out, tuple)
        torch.testing.assert_close(out[0], plain + 0.5 * handle.last["penalty"])


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("all", [1, 2, 3, 4]),
        ("last", [4]),
        ("early_half", [1, 2]),
        ("late_half", [3, 4]),
        ([0, 2], [0, 2]),
        ([-1, 1], [1, 4]),
        (np.arange(1, 3), [1, 2]),
        ((i for i in (2, 3)), [2, 3]),  # which can be read once
        (lambda n: range(1, n, 2), [1, 3]),
    ],
)
def test_layers(layers, expected):
    model, ids = llama(layers=4).train(), tokens()
    z = states(model, input_ids=ids)
    with dc.regularize(model, layers=layers) as handle:
        for _ in range(2):
            model(input_ids=ids, labels=ids)
        values = torch.stack([losses.dispersion(z[i], estimator="first_order") for i in expected])
        torch.testing.assert_close(handle.last["per_layer"], values.detach())
        cosines = torch.stack([losses.mean_cosine(z[i], eps=1e-2).mean() for i in expected])
        torch.testing.assert_close(handle.last["mean_cosine"], cosines.detach())


@pytest.mark.parametrize("name", losses.registered())
def test_every_loss(name):
    """One line, a padded batch, ten steps: the penalty is the loss of the states, and it falls."""
    model, (ids, mask, _) = gpt2().train(), padded()
    z = states(model, input_ids=ids, attention_mask=mask)
    loss, penalties = losses.get(name), []
    expected = torch.stack([loss(x, mask.bool()) for x in z[1:]]).detach()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    with dc.regularize(model, loss, weight=1.0) as handle:
        for _ in range(10):
            optimiser.zero_grad()
            model(input_ids=ids, attention_mask=mask)
            handle.penalty().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            penalties.append(handle.last["penalty"].item())
            if len(penalties) == 1:
                torch.testing.assert_close(handle.last["per_layer"], expected)
    assert penalties[-1] < penalties[0]


def test_a_mask_that_covers_a_cache_is_cut_to_the_tokens():
    """As prefix tuning calls the model: of virtual tokens there are keys and values, and no states."""
    peft = pytest.importorskip("peft")
    prefix = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5)
    model, (ids, mask, labels) = peft.get_peft_model(llama(), prefix).train(), padded()
    z = states(model, input_ids=ids, attention_mask=mask)
    expected = torch.stack([losses.dispersion(x, mask, estimator="first_order") for x in z[1:]])
    with dc.regularize(model) as handle:
        model(input_ids=ids, attention_mask=mask, labels=labels).loss.backward()
        torch.testing.assert_close(handle.last["per_layer"], expected.detach())
    with dc.monitor(model) as watch:
        model(input_ids=ids, attention_mask=mask, labels=labels)
    cosines = [losses.mean_cosine(x, mask.bool(), eps=0.0).mean().item() for x in z]
    assert watch.readings[0].table["mean_cosine"] == pytest.approx(cosines, abs=1e-5)


def test_packed_rows_are_their_documents():
    model = llama().train()
    a, b, c, d = tokens(1, 5, 1), tokens(1, 9, 2), tokens(1, 1, 3), tokens(1, 1, 4)
    row = torch.cat([a, b, c, d], 1)
    positions = torch.cat([torch.arange(x.shape[1]) for x in (a, b, c, d)]).unsqueeze(0)
    packed = {"input_ids": row, "position_ids": positions, "use_cache": False}  # a cache would join the documents
    with dc.regularize(model, weight=1.0, estimator="exact") as handle:
        model(**packed)
        together = handle.penalty()
        together.backward()
        grads = gradients(model)
        model.zero_grad()
        each = []
        for document in (a, b):
            model(input_ids=document)
            each.append(handle.penalty())
        apart = sum(each) / 2  # the two documents of one token have no pair, and no part in the mean
        apart.backward()
        torch.testing.assert_close(together, apart)
        assert_same(gradients(model), grads)
    with dc.regularize(model, weight=1.0, estimator="exact", segments=None) as handle:
        model(**packed)
        assert not torch.isclose(handle.penalty(), together)


def test_packed_rows_with_padding():
    model = llama().train()
    ids, mask = tokens(2, 10), torch.ones(2, 10, dtype=torch.long)
    mask[1, 7:] = 0
    positions = torch.stack([torch.cat([torch.arange(4), torch.arange(6)]), torch.arange(10)])
    with dc.regularize(model, segments="position_ids", estimator="exact", layers="last") as handle:
        model(input_ids=ids, attention_mask=mask, position_ids=positions, labels=ids)
        z = states(model, input_ids=ids, attention_mask=mask, position_ids=positions)[-1]
        expected = [losses.dispersion(x) for x in (z[:1, :4], z[:1, 4:], z[1:, :7])]
        torch.testing.assert_close(handle.last["penalty"], sum(expected).detach() / 3)


def test_padding_makes_no_documents():
    """Positions of 0 in padding would make a document of each of its tokens, as long as the longest one."""
    positions = torch.zeros(2, 1000, dtype=torch.long)
    positions[0, :4], positions[0, 4:10], positions[1, :7] = torch.arange(4), torch.arange(6), torch.arange(7)
    mask = torch.zeros(2, 1000, dtype=torch.bool)
    mask[0, :10] = mask[1, :7] = True
    cut = packing.documents(positions, mask, 2)
    assert cut.mask.sum(1).tolist() == [4, 6, 7]
    assert packing.documents(positions, torch.zeros_like(mask), 2).mask.sum() == 0


def test_sequences_without_a_pair_have_no_part_in_the_mean():
    """Rows that are all padding, or all but one token; and padding that position ids of 0 make documents of."""
    model, (ids, _, _) = llama().train(), padded()
    mask = torch.ones_like(ids)
    packed = torch.cat([torch.arange(ids.shape[1]), torch.zeros(20, dtype=torch.long)]).repeat(len(ids), 1)
    with dc.regularize(model) as handle:
        model(input_ids=ids, attention_mask=mask, labels=ids)
        alone = handle.last
        for extra in (0, 1):
            more = mask.new_zeros(3, ids.shape[1])
            more[:, :extra] = 1
            model(input_ids=ids.repeat(3, 1)[: len(ids) + 3], attention_mask=torch.cat([mask, more]), labels=None)
            handle.penalty()
            for key in ("penalty", "per_layer", "mean_cosine"):
                torch.testing.assert_close(handle.last[key], alone[key], msg=key)
        model(input_ids=nn.functional.pad(ids, (0, 20)), position_ids=packed, use_cache=False)
        handle.penalty()
        for key in ("penalty", "per_layer", "mean_cosine"):
            torch.testing.assert_close(handle.last[key], alone[key], msg=key)


def test_single_tokens_contribute_zero():
    model, ids = llama().train(), tokens(3, 1)
    with dc.regularize(model, weight=5.0) as handle:
        model(input_ids=ids)
        assert handle.penalty().item() == 0


def test_a_stack_that_is_called_past_the_model_is_noticed():
    """TRL once called the decoder directly: the term had nowhere to go."""
    model, ids = llama().train(), tokens()
    with dc.regularize(model):
        model.model(input_ids=ids)
        with pytest.raises(RuntimeError, match=r"regularize\(trainer"):
            model.model(input_ids=ids)


def test_a_handle_has_what_users_need_and_every_name_is_explained():
    public = [name for name in dir(dc.regularize(llama())) if not name.startswith("_")]
    assert public == ["attached", "last", "penalty", "reads", "remove", "step", "weight"]
    assert all(getattr(dc.Handle, name).__doc__ for name in public)


def test_a_peft_model_and_the_model_inside_have_one_loss():
    """Both would be added to the loss of one call."""
    peft = pytest.importorskip("peft")
    base = llama().train()
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["q_proj"]))
    modules = {base: "model.layers.*", model: "base_model.model.model.layers.*"}
    for first, second in ((base, model), (model, base)):
        words = f"this {type(second).__name__} already has a loss attached by way of its {type(first).__name__}: call"
        with dc.regularize(first, modules=modules[first]), pytest.raises(RuntimeError, match=words):
            dc.regularize(second, modules=modules[second])
        with dc.regularize(second) as handle:  # the first is off
            pass
        with dc.regularize(first):
            handle.remove()  # a second time, which does no harm
            with pytest.raises(RuntimeError, match="already has a loss attached"):
                dc.regularize(first)


def test_remove_restores_the_model():
    model, ids = llama().train(), tokens()
    plain = model(input_ids=ids, labels=ids, output_hidden_states=True).loss  # lets transformers install its own hooks

    def hooks():
        return {n: (len(m._forward_hooks), len(m._forward_pre_hooks)) for n, m in model.named_modules()}

    before, attributes = hooks(), set(vars(model))
    handle = dc.regularize(model)
    with pytest.raises(
        RuntimeError, match=r"already has a loss attached: .*; several losses at once are a list, regularize"
    ):
        dc.regularize(model)
    handle.remove()
    handle.remove()
    assert hooks() == before
    assert set(vars(model)) == attributes
    assert torch.equal(model(input_ids=ids, labels=ids).loss, plain)

    def failing_run():
        with dc.regularize(model):
            raise KeyError("user's error")

    with pytest.raises(KeyError):
        failing_run()
    assert hooks() == before
    dc.regularize(model).remove()


def hooks_of(model):
    """How many hooks every module has, pre-hooks and those with keyword arguments too."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")
    return {name: [len(getattr(m, kind)) for kind in kinds] for name, m in model.named_modules()}


@pytest.mark.parametrize("modules", [None, "model.layers.*"])
@pytest.mark.parametrize("attach", [dc.regularize, dc.monitor])
def test_a_copy_of_the_model_is_without_what_is_attached(attach, modules):
    """An average of the weights, a quantised copy, one that evaluates; what is attached to the model goes on."""
    model, ids = llama().train(), tokens()
    seen = []
    model.model.register_forward_hook(lambda *_: seen.append(1))  # of a user, and copied as ever
    plain, hooks = model(input_ids=ids, labels=ids, output_hidden_states=True).loss, hooks_of(model)
    given = attach(model, modules=modules)
    attached = hooks_of(model)
    average = torch.optim.swa_utils.AveragedModel(model)
    inside = copy.deepcopy(nn.ModuleDict({"student": model, "teacher": model}))
    for twin in (average.module, inside["student"]):
        assert hooks_of(twin) == hooks
        seen.clear()
        assert torch.equal(twin.train()(input_ids=ids, labels=ids).loss, plain)
        assert seen == [1]
        dc.regularize(twin).remove()
    if attach is dc.regularize:
        assert not given.last, "of a call of the copies"
        assert not torch.equal(model(input_ids=ids, labels=ids).loss, plain)
    else:
        assert not given.readings
        model(input_ids=ids)
        assert len(given.readings) == 1
    assert hooks_of(model) == attached
    given.remove()
    assert hooks_of(model) == hooks


def test_replicas_of_data_parallel_are_refused():
    model, ids = llama().train(), tokens()
    with dc.regularize(model):
        model._is_replica = True
        with pytest.raises(RuntimeError, match="use DDP"):
            model(input_ids=ids, labels=ids)


CLASSIFIERS = {
    "BertForSequenceClassification": {"vocab_size": VOCABULARY, "input_ids": tokens()},
    "ViTForImageClassification": {"image_size": 16, "patch_size": 4, "pixel_values": torch.randn(4, 3, 16, 16)},
}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_one_label_per_sequence(name):
    """Classification of texts and of images, under Trainer: items are sequences, of tokens or of patches."""
    kind, (*options, (key, x)) = getattr(transformers, name), CLASSIFIERS[name].items()
    torch.manual_seed(1)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 3}
    model, labels = kind(kind.config_class(**shape, **dropout, **dict(options))).train(), torch.tensor([0, 1, 2, 1])
    z = states(model, **{key: x})
    expected = torch.stack([losses.dispersion(layer, estimator="first_order") for layer in z[1:]])
    with dc.regularize(model) as handle:
        model(**{key: x}, labels=labels).loss.backward()
        whole = handle.last["penalty"]
        torch.testing.assert_close(handle.last["per_layer"], expected.detach())
        parts = []
        for i in range(4):
            model(**{key: x[i : i + 1]}, labels=labels[i : i + 1], num_items_in_batch=4)
            assert handle.last["share"] == 0.25
            parts.append(handle.last["penalty"] * handle.last["share"])
        torch.testing.assert_close(torch.stack(parts).sum(), whole)
    if key == "pixel_values":
        with pytest.raises(TypeError, match=r"reads token ids; ViTFor.* does not .*: measure it with inputs=…"):
            dc.measure(model)


@pytest.mark.parametrize("build", [llama, gpt2])
def test_items_are_counted_as_the_models_loss_counts_them(build):
    """GPT2's class names no loss, but it has the causal one: a row has a label less than tokens."""
    model, ids = build().train(), tokens()
    found = {}
    for rows in (4, 1):
        with dc.regularize(model, weight=5.0):
            for part in ids.split(rows):
                model(input_ids=part, labels=part, num_items_in_batch=4 * 11).loss.backward()
        found[rows] = gradients(model)
        model.zero_grad()
    with dc.regularize(model, weight=5.0):
        model(input_ids=ids, labels=ids).loss.backward()  # a mean over items, and over rows of one length
    for parts in found.values():
        assert_same(parts, gradients(model), 1e-5)


def test_labels_that_are_no_tensor():
    """The boxes of an image, of a model with an encoder and a decoder."""
    narrow = {"d_model": 32, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "encoder_layers": 1, "decoder_layers": 2,
              "encoder_attention_heads": 4, "decoder_attention_heads": 4, "dropout": 0.0, "num_queries": 5}  # fmt: skip
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 8, 8, 16], "depths": [1, 1, 1, 1], "out_features": ["stage4"]}
    eyes = transformers.ResNetConfig(layer_type="basic", **sizes)
    torch.manual_seed(1)
    model = transformers.DetrForObjectDetection(transformers.DetrConfig(backbone_config=eyes, **narrow)).train()
    boxes = [{"class_labels": torch.tensor([1]), "boxes": torch.tensor([[0.4, 0.5, 0.2, 0.3]])}] * 2
    with dc.regularize(model, weight=3.0) as handle:
        loss = model(pixel_values=torch.randn(2, 3, 64, 64), labels=boxes).loss
    last = handle.last
    assert [name.rpartition(" of ")[2] for name in handle.reads] == ["DetrDecoder"] * 2
    assert last["penalty"] < 0
    torch.testing.assert_close(loss.detach(), last["task_loss"] + 3.0 * last["penalty"])
    with dc.monitor(model, collapse=1) as watch:
        model(pixel_values=torch.randn(2, 3, 64, 64), labels=boxes)
    assert len(watch.readings) == 1


def test_the_model_is_not_kept_alive():
    model = llama()
    dc.regularize(model)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


def test_a_misspelt_name_of_the_handle_is_refused_and_a_copy_is_the_same_handle():
    handle = dc.regularize(llama(), schedule=lambda step: step.nowhere)
    with pytest.raises(AttributeError, match="'Handle' object has no attribute 'wieght'"):
        handle.wieght = 0.5
    with pytest.raises(AttributeError, match="'Handle' object has no attribute 'wieght'"):
        _ = handle.wieght
    with pytest.raises(AttributeError, match="'int' object has no attribute 'nowhere'"):
        _ = handle.weight
    twin = copy.deepcopy(handle)
    weakref.ref(twin)().remove()
    assert not handle.attached, "a copy is a handle on the same"


def test_check_every_reports_the_agreement_with_exact():
    model, (ids, mask, labels) = llama().train(), padded()
    with dc.regularize(model, check_every=2) as handle:
        seen = []
        for _ in range(4):
            model(input_ids=ids, attention_mask=mask, labels=labels)
            seen.append(handle.last["agreement"])
        assert seen[0] is seen[1]  # kept until the next check
        assert seen[1] is not seen[2]
        assert (seen[0] > 0.9).all()
    with dc.regularize(model, estimator="exact", check_every=1) as handle:
        model(input_ids=ids, attention_mask=mask, labels=labels)
        torch.testing.assert_close(handle.last["agreement"], torch.ones(3))


def test_the_agreement_is_that_of_the_first_sequence_with_a_pair():
    model, ids = llama().train(), tokens()
    mask = torch.ones_like(ids)
    mask[0, 1:] = 0
    positions = torch.cat([torch.arange(1), torch.arange(11)]).expand_as(ids)  # the same, of packed rows
    with dc.regularize(model, check_every=1) as handle:
        model(input_ids=ids[1:], labels=ids[1:])
        expected = handle.last["agreement"]
        model(input_ids=ids, attention_mask=mask, labels=ids)
        torch.testing.assert_close(handle.last["agreement"], expected)
        model(input_ids=ids, position_ids=positions, labels=ids, use_cache=False)
        packed = handle.last["agreement"]
        model(input_ids=ids[:, 1:], labels=ids[:, 1:], use_cache=False)
        torch.testing.assert_close(packed, handle.last["agreement"])


@pytest.mark.parametrize("step", [None, "a", -1, 1.5, True])
def test_a_step_is_a_whole_number(step):
    with dc.regularize(llama()) as handle, pytest.raises(ValueError, match="step must be a whole number of at least 0"):
        handle.step = step


@pytest.mark.parametrize("attach", [dc.regularize, dc.monitor])
def test_what_is_dropped_with_its_model_leaves_no_hook(attach):
    from torch.optim.optimizer import _global_optimizer_post_hooks as hooks

    before, model = len(hooks), llama().train()
    gone = weakref.ref(model)
    held = attach(model)
    assert len(hooks) == before + 1
    del held, model
    gc.collect()
    assert gone() is None
    assert len(hooks) == before
