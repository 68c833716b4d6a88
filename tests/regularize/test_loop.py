"""A loop of one's own: modules by name, penalty(), and the mistakes that must not be silent."""

from __future__ import annotations

import pickle
import warnings

import pytest
import torch
from torch import nn

import decondense as dc
from decondense import losses, packing, term
from regularize.models import VOCABULARY, Plain, assert_same, gradients, llama, tokens


def test_penalty_without_labels():
    model, ids = llama().train(), tokens()
    with dc.regularize(model, weight=0.5) as handle:
        with pytest.raises(RuntimeError, match="penalty\\(\\) needs a training call"):
            handle.penalty()
        out = model(input_ids=ids)
        assert out.loss is None
        term = handle.penalty()
        torch.testing.assert_close(term.detach(), 0.5 * handle.last["penalty"])
        term.backward()
        assert model.model.layers[0].mlp.up_proj.weight.grad.abs().sum() > 0
        model(input_ids=ids)
        with pytest.raises(RuntimeError, match=r"must be added before .*: pass labels, add handle\.penalty\(\)"):
            model(input_ids=ids, labels=ids)


@pytest.mark.parametrize(("weight", "schedule", "at"), [
    (1.0, "constant", None), (1000.0, "constant", 1), (1000.0, lambda step: float(step >= 2), 4),
])  # fmt: skip
def test_a_penalty_that_overwhelms_the_task_is_told_once(weight, schedule, at):
    """At the first step that has one among those that are looked at: 1, 2, 4, 8, …"""
    model, ids = llama().train(), tokens()
    optimiser, told = torch.optim.SGD(model.parameters(), lr=1e-9), []
    with dc.regularize(model, weight=weight, schedule=schedule) as handle, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for step in range(1, 9):
            model(input_ids=ids, labels=ids).loss.backward()
            optimiser.step()
            told += [(step, str(one.message)) for one in seen if "weight · penalty" in str(one.message)]
            seen.clear()
        assert bool(weight * handle.last["penalty"].abs() > 10 * handle.last["task_loss"]) == (at is not None)
    assert [step for step, _ in told] == ([] if at is None else [at])
    assert all(f"at step {at}: lower the weight" in words for _, words in told)


def test_only_the_steps_that_are_looked_at_wait_for_a_gpu(monkeypatch):
    """Those that are powers of two, until the warning has come: no other step reads a number of the losses."""
    read, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: read.append(handle.step) or tolist(tensor))
    model, ids = llama().train(), tokens()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-9)
    with dc.regularize(model, weight=1000.0, schedule=lambda step: float(step >= 2)) as handle:
        for _ in range(8):
            model(input_ids=ids, labels=ids).loss.backward()
            with warnings.catch_warnings(record=True):
                optimiser.step()
    assert read == [1, 2, 4]


def test_nothing_is_told_of_a_task_loss_that_is_not_known():
    model, ids = llama().train(), tokens()
    with dc.regularize(model, weight=1000.0) as handle, warnings.catch_warnings():
        warnings.simplefilter("error")
        model(input_ids=ids)
        handle.penalty().backward()
        torch.optim.SGD(model.parameters(), lr=1e-9).step()
        assert handle.step == 1


@pytest.mark.parametrize("compiled", [False, True])
def test_an_evaluation_before_the_penalty_is_taken_does_not_take_it(compiled):
    torch.compiler.reset()
    model, ids = llama(layers=1).train(), tokens()
    call = torch.compile(model, backend="eager") if compiled else model
    plain = model(input_ids=ids, labels=ids).loss.item()
    with dc.regularize(model, weight=1.0) as handle:
        call(input_ids=ids, use_cache=False)
        expected = handle.penalty().item()
        for how in ("no_grad", "eval"):
            call(input_ids=ids, use_cache=False)
            model.train(how == "no_grad")
            with torch.set_grad_enabled(how == "eval"):
                assert call(input_ids=ids, labels=ids, use_cache=False).loss.item() == pytest.approx(plain, abs=1e-5)
            assert handle.penalty().item() == pytest.approx(expected, abs=1e-6)


def test_an_exception_in_the_model_leaves_nothing_behind():
    model, ids = llama().train(), tokens()
    with dc.regularize(model) as handle:
        with pytest.raises(IndexError):
            model(input_ids=ids + VOCABULARY, labels=ids)
        model.lm_head.register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(input_ids=ids, labels=ids)
        model.lm_head._forward_pre_hooks.clear()
        model(input_ids=ids, labels=ids).loss.backward()
        assert "penalty" in handle.last


def test_an_attached_model_can_be_pickled_and_saved(tmp_path):
    """What is loaded is the model without the loss; the one in memory keeps it."""
    model, ids = llama().train(), tokens()
    plain = model(input_ids=ids, labels=ids).loss
    with dc.regularize(model, weight=0.5):
        torch.save(model, tmp_path / "model.pt")
        loaded = [pickle.loads(pickle.dumps(model)), torch.load(tmp_path / "model.pt", weights_only=False)]
        for other in loaded:
            assert torch.equal(other(input_ids=ids, labels=ids).loss, plain)
        assert not torch.equal(model(input_ids=ids, labels=ids).loss, plain)
    model = Plain().train()
    with dc.regularize(model, modules="blocks.*"):
        pickle.dumps(model)


def test_any_module_by_the_names_of_its_layers():
    model, ids = Plain().train(), tokens()
    mask = torch.ones_like(ids).bool()
    mask[0, 7:] = False
    with dc.regularize(model, modules=["blocks.?"], layers=[0, -1], weight=1.0, estimator="exact") as handle:
        model(ids, attention_mask=mask)
        handle.penalty().backward()
        grads = gradients(model)
        assert len(handle.last["per_layer"]) == 2
        for model.checkpoint in (False, True):  # the output of a whole checkpoint carries its gradient
            model.zero_grad()
            model(ids, mask)
            handle.penalty().backward()
            assert_same(gradients(model), grads)
    # something inside one does not
    with dc.regularize(model, modules=["blocks.*.linear"]), pytest.raises(RuntimeError, match="use_reentrant=False"):
        model(ids, mask)
    with pytest.raises(
        TypeError, match=r"got Plain: .* modules='blocks\.\*' \(loss\.modules in a recipe\); .* before any final norm"
    ):
        dc.regularize(model)
    with pytest.raises(TypeError, match=r"modules='1\.blocks\.\*'"):
        dc.regularize(nn.Sequential(nn.Identity(), model))
    with pytest.raises(TypeError, match=r"got Linear: .* with modules=\[…\] \(loss\.modules in a recipe\)"):
        dc.regularize(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"matches none.*embed"):
        dc.regularize(model, modules=["layers.*"])
    with pytest.raises(
        TypeError, match=r"modules must be a name of submodules .*, got Linear: give names as named_mod"
    ):
        dc.regularize(model, modules=nn.Linear(2, 2))
    for given in (list(model.blocks), model.blocks, ["embed", model.blocks[0]]):
        with pytest.raises(TypeError, match=r"modules must be a name .*, got [\w, ]+: give names as") as no:
            dc.regularize(model, modules=given)
        assert len(str(no.value)) < 160
    with pytest.raises(ValueError, match=r"Did you mean 'blocks\.\*'\?$"):
        dc.regularize(model, modules=["block.*"])
    with pytest.raises(ValueError, match=r"got 7: this model has 3 hidden states\.$"):  # and no embedding layer
        dc.regularize(model, modules="blocks.*", layers=[7])
    nested = torch.nn.ModuleDict({"model": torch.nn.ModuleDict({"net": model})})
    for inside in ("net.blocks.*", "blocks.*", ["blocks.?"]):
        with pytest.raises(ValueError, match=r"Did you mean 'model\.net\.blocks\.[*?]'\?"):
            dc.regularize(nested, modules=inside)
    with pytest.raises(ValueError, match=r"got 'blocks', a ModuleList: name what is in it, 'blocks\.\*'"):
        dc.regularize(model, modules=["blocks"])
    model.checkpoint = None
    with dc.regularize(model, modules=["flat"]), pytest.raises(TypeError, match=r"output of flat.*got \(4, 8\)"):
        model(ids)


def test_replicas_are_refused():
    for take in (dc.regularize, dc.monitor, lambda model: dc.measure(model, inputs=tokens())):
        with pytest.raises(TypeError, match=r"got nn\.DataParallel, whose replicas run side by side: use DDP"):
            take(nn.DataParallel(llama(layers=1)))


@pytest.mark.parametrize(("compiled", "labels"), [(False, True), (False, False), (True, True)])
def test_what_nothing_can_move_is_refused(compiled, labels):
    """A trained head over a frozen body: whatever the weight, the gradients are those without the loss."""
    torch.compiler.reset()
    model, ids = llama(layers=2).train(), tokens()
    call = torch.compile(model, backend="eager") if compiled else model
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-9)
    refused = pytest.raises(RuntimeError, match=r"nothing trainable lies below layers \[1, 2\]: .*handle\.remove\(\)")

    def step(handle):
        out = call(input_ids=ids, labels=ids if labels else None, use_cache=False)
        (out.loss if labels else out.logits.mean() + handle.penalty()).backward()
        optimiser.step()

    with dc.regularize(model) as handle:
        model.model.requires_grad_(False)
        with torch.no_grad():
            model(input_ids=ids, labels=ids)  # nobody differentiates
        with refused:
            step(handle)
        other = nn.Linear(2, 2)
        other(torch.ones(1, 2)).sum().backward()
        torch.optim.SGD(other.parameters(), lr=1e-3).step()  # whose training is none of this handle's business


def test_a_weight_of_0_moves_nothing_and_is_not_refused():
    """A control, and a loss that was released before the head is trained alone; but one that is to rise is refused."""
    model, ids = llama(layers=2).train(), tokens()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-9)

    def steps(count):
        for _ in range(count):
            model(input_ids=ids, labels=ids).loss.backward()
            optimiser.step()

    with dc.regularize(model, schedule="release", release_at=0, ramp_steps=1) as handle:
        steps(1)
        model.model.requires_grad_(False)
        assert handle.weight == 0
        steps(2)
    with dc.regularize(model, weight=0.0):
        steps(2)
    with (
        dc.regularize(model, schedule="linear", ramp_steps=2),
        pytest.raises(RuntimeError, match="nothing trainable lies below"),
    ):
        steps(1)


@pytest.mark.parametrize("how", ["plain", "checkpointed", "compiled"])
def test_layers_that_nothing_can_move_are_told_once(how):
    """They lie below those that learn, which is no mistake: the gradients are those of the sum."""
    torch.compiler.reset()
    model, ids = llama().train(), tokens()
    model.model.embed_tokens.requires_grad_(False)
    model.model.layers[:2].requires_grad_(False)
    out = model(input_ids=ids, labels=ids, output_hidden_states=True)
    terms = [dc.losses.dispersion(z, estimator="first_order") for z in out.hidden_states[1:]]
    (out.loss + torch.stack(terms).mean()).backward()
    plain = gradients(model)
    if how == "checkpointed":
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.disable_input_require_grads()  # with it every state carries a gradient, whatever learns
    call = torch.compile(model, backend="eager") if how == "compiled" else model
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-9)
    for layers, told in (("all", 1), ([3], 0)):
        with dc.regularize(model, weight=1.0, layers=layers), warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(2):
                model.zero_grad()
                call(input_ids=ids, labels=ids, use_cache=False).loss.backward()
                optimiser.step()
        words = [str(one.message) for one in seen if "nothing trainable" in str(one.message)]
        assert len(words) == told
        if told:
            assert "nothing trainable lies below layers [1, 2]: leave them out, layers=[3]" in words[0]
            assert_same(gradients(model), plain, 1e-5)


def test_patterns_match_whole_levels():
    """`blocks.*` are three blocks, not what is in them; a string is one pattern."""
    model, ids = Plain().train(), tokens()
    for modules in ("blocks.*", ["blocks.*"], ["blocks.0", "blocks.[12]"]):
        with dc.regularize(model, modules=modules, layers=[0, 2]) as handle:
            assert handle.reads == ["blocks.0", "blocks.2"]
            assert "blocks.0, blocks.2" in repr(handle)
            model(ids)
            handle.penalty()
    with dc.regularize(llama(), layers="last") as handle:
        assert handle.reads == ["hidden state 3 of LlamaModel"]
    model.skipped = nn.Linear(8, 8)
    with (
        dc.regularize(model, modules=["blocks.*", "skipped"]),
        pytest.raises(RuntimeError, match="but skipped did not"),
    ):
        model(ids)


def test_a_loss_that_nobody_differentiates_is_an_error():
    """As in trainers that compute a loss of their own from the model's output, and in models that return theirs in a
    tuple, (logits, loss)."""
    model, ids = llama().train(), tokens()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    for labels in (ids, None):  # with labels the term is in out.loss; without, it waits for penalty()
        with dc.regularize(model) as handle:
            model(input_ids=ids, labels=labels).logits.mean().backward()
            with pytest.raises(RuntimeError, match=r"no backward pass has reached it.*dc\.regularize\(trainer"):
                optimiser.step()
            assert handle.step == 0
    plain = Plain().train()
    own = torch.optim.SGD(plain.parameters(), lr=1e-3)
    remedy = r'where the model returns it as out\.loss or out\["loss"\].*add handle\.penalty\(\) to the loss of'
    with dc.regularize(plain, modules="blocks.*"):
        plain(ids).mean().backward()
        with pytest.raises(RuntimeError, match=remedy):
            own.step()


@pytest.mark.parametrize("past", ["forward", "merged"])
def test_calls_past_the_model_are_named(past):
    """Its hooks, which add the penalty, do not run there; those on the blocks do."""
    model, ids = llama(layers=1).train(), tokens()
    if past == "merged":
        peft = pytest.importorskip("peft")
        model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"]))
    with dc.regularize(model):
        called = model.forward if past == "forward" else model.merge_and_unload().requires_grad_().train()
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        called(input_ids=ids, labels=ids).loss.backward()
        with pytest.raises(RuntimeError, match=r"must be called itself, .* went past it, as model\.forward"):
            optimiser.step()
        with pytest.raises(RuntimeError, match=r"merge_and_unload leaves: remove\(\) the handle and attach to"):
            called(input_ids=ids, labels=ids)


@pytest.mark.parametrize("options", [{}, {"modules": "base_model.model.model.layers.*"}])
@pytest.mark.parametrize("mode", [True, False])
def test_a_loss_that_acts_no_more_after_merging_is_named_at_the_next_step(options, mode):
    """Also where nothing of the call was read, and after steps in which the loss acted."""
    peft = pytest.importorskip("peft")
    model, ids = peft.get_peft_model(llama(), peft.LoraConfig(r=2, target_modules=["q_proj"])).train(), tokens()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    with dc.regularize(model, **options) as handle:
        for _ in range(2):
            model(input_ids=ids, labels=ids).loss.backward()
            optimiser.step()
        called = model.merge_and_unload().requires_grad_().train(mode)
        called(input_ids=ids, labels=ids).loss.backward()
        with pytest.raises(
            RuntimeError, match=r"the PeftModel that the loss .* merge_and_unload leaves: remove\(\) the handle"
        ):
            torch.optim.SGD(called.parameters(), 0.1).step()
        assert handle.step == 2
    with dc.regularize(called, **dict.fromkeys(options, "model.layers.*")) as handle:
        called.train()(input_ids=ids, labels=ids).loss.backward()
        torch.optim.SGD(called.parameters(), 0.1).step()
        assert handle.step == 1


def test_a_model_in_eval_mode_is_an_error_at_the_first_step():
    model, ids = llama().eval(), tokens()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    with dc.regularize(model) as handle:
        model(input_ids=ids, labels=ids).loss.backward()
        with pytest.raises(RuntimeError, match=r"eval mode.*call model\.train\(\)"):
            optimiser.step()
        assert handle.step == 0
        model.train()
        model(input_ids=ids, labels=ids).loss.backward()
        optimiser.step()
        model(input_ids=ids, labels=ids).loss.backward()
        model.eval()
        model(input_ids=ids, labels=ids)  # between two steps: somebody evaluates
        optimiser.step()
        assert handle.step == 2
        model(input_ids=ids, labels=ids).loss.backward()  # and forgets to go back
        with pytest.raises(RuntimeError, match=r"evaluations leave it: call model\.train\(\)"):
            optimiser.step()


def test_a_body_in_eval_mode_inside_of_a_model_that_trains_is_named():
    model, ids = llama().train(), tokens()
    model.model.eval()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    with dc.regularize(model):
        model(input_ids=ids, labels=ids).loss.backward()
        with pytest.raises(RuntimeError, match="got LlamaModel in eval mode inside of a model that trains"):
            optimiser.step()


class Own(nn.Module):
    """`loss` is a function of the states."""

    def __init__(self, loss):
        super().__init__()
        self.body, self.loss = nn.Linear(4, 4), loss

    def forward(self, x):
        states = self.body(x)
        return {"loss": self.loss(states), "states": states}


@pytest.mark.parametrize("loss", [0.5, {"main": torch.ones(())}, torch.ones(2), torch.ones(2, 3)])
def test_a_loss_that_is_no_number_in_a_tensor_is_told(loss):
    model = Own(lambda states: loss).train()
    with (
        dc.regularize(model, modules="body"),
        pytest.raises(TypeError, match=r"must be a tensor of one number .* handle\.penalty\(\)"),
    ):
        model(torch.randn(2, 3, 4))


def test_a_loss_with_a_dimension_of_one():
    model, x = Own(lambda states: states.square().mean().view(1)).train(), torch.randn(2, 3, 4)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
    plain = model(x)
    with dc.regularize(model, weight=0.1, modules="body", estimator="exact") as handle:
        loss = model(x)["loss"]
        loss.backward()
        optimiser.step()
        torch.testing.assert_close(loss, plain["loss"] + 0.1 * losses.dispersion(plain["states"]))
        torch.testing.assert_close(handle.last["task_loss"], plain["loss"].detach().squeeze())


@pytest.mark.parametrize("forgotten", ["the loss", "train()"])
def test_copies_of_the_weights_are_told_too(forgotten):
    """An optimiser over float32 copies, as mixed precision has it, in pieces or in one."""
    model, ids = llama().train(forgotten == "the loss"), tokens()
    for copies in (
        [p.detach().clone().requires_grad_() for p in model.parameters()],
        [nn.utils.parameters_to_vector(model.parameters()).detach().requires_grad_()],
    ):
        optimiser, other = (torch.optim.SGD(p, lr=1e-3) for p in (copies, nn.Linear(2, 2).parameters()))
        with dc.regularize(model):
            out = model(input_ids=ids, labels=ids)
            (out.logits.sum() if forgotten == "the loss" else out.loss).backward()
            other.step()
            with pytest.raises(RuntimeError, match="no backward pass" if forgotten == "the loss" else "eval mode"):
                optimiser.step()


ROWS = torch.stack([torch.cat([torch.arange(5), torch.arange(7)]), torch.arange(12)])  # two documents, and one
PADS = torch.tensor([[0, 0, 0] + [1] * 9, [1] * 10 + [0, 0]])
PADDED = torch.stack([torch.tensor([9, 9, 9, *range(9)]), torch.tensor([*range(10), 0, 0])])
JOINED = {
    "packed": (True, {"attention_mask": torch.ones(2, 12, dtype=torch.long), "position_ids": ROWS}),
    "one row for all": (True, {"attention_mask": torch.ones(2, 12, dtype=torch.long), "position_ids": ROWS[:1]}),
    "no mask": (False, {"position_ids": ROWS}),
    "no positions": (False, {"attention_mask": torch.ones(2, 12, dtype=torch.long)}),
    "padding": (False, {"attention_mask": PADS, "position_ids": PADDED}),
    "the same for all": (False, {"attention_mask": PADS, "position_ids": torch.zeros_like(ROWS)}),
}


@pytest.mark.parametrize("segments", ["auto", "position_ids", None])
@pytest.mark.parametrize("case", JOINED)
def test_documents_that_a_mask_joins_are_told_once(case, segments, monkeypatch):
    """At the first training call of an attachment: looking waits for a GPU."""
    joined, given = JOINED[case]
    model, ids, looks = llama().train(), tokens(2), []
    monkeypatch.setattr(term, "restarts", lambda *rows: looks.append(rows) or packing.restarts(*rows))
    for _ in range(2):
        with dc.regularize(model, segments=segments) as handle, warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(3):
                model(input_ids=ids, use_cache=False, **given)
                handle.penalty()
        told = [one for one in seen if "position_ids restart in a row, and a mask came too" in str(one.message)]
        assert [one.filename for one in told] == [__file__] * (joined and segments == "auto")
    assert len(looks) == 2 * (segments == "auto" and len(given) == 2)


def test_a_whole_graph_is_not_asked_for_its_positions():
    """Their values are not known where it is traced."""
    model = llama().train()
    with dc.regularize(model) as handle, warnings.catch_warnings():
        warnings.filterwarnings("error", "position_ids restart")
        whole = torch.compile(lambda **given: model(**given), fullgraph=True, backend="eager")
        whole(input_ids=tokens(2), labels=tokens(2), use_cache=False, **JOINED["packed"][1])
        assert handle.last["penalty"] < 0
