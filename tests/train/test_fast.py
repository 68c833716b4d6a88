"""What makes a step faster must not change it: the fused head and compiled blocks against the model's own."""

from __future__ import annotations

import copy
import functools
import shutil

import pytest
import torch
import transformers
from regularize.models import assert_same, attachment, bert, gpt2, gradients, llama, qwen3, tokens
from torch._dynamo.testing import CompileCounterWithBackend

import decondense as dc
from decondense.insides.torch import eager, replace_compiled_call
from decondense.losses.presets import Loss
from decondense.train import run, train
from decondense.train.fast import compile_blocks, fuse_head, head_loss, matmul_precision, tap_blocks
from train.runs import result, tiny, weights


def inputs() -> dict[str, torch.Tensor]:
    ids = tokens(4)
    labels = ids.clone()
    labels[0, :3] = -100
    labels[2, -5:] = -100
    return {"input_ids": ids, "labels": labels}


@pytest.mark.parametrize("family", [llama, gpt2, qwen3])
@pytest.mark.parametrize("items", [None, 777])
def test_same_loss_and_gradients(family, items):
    own, fused = family().train(), family().train()
    assert fuse_head(fused, compiled=False)
    given = inputs() | ({} if items is None else {"num_items_in_batch": torch.tensor(items)})
    losses = [model(**copy.deepcopy(given), use_cache=False)["loss"] for model in (own, fused)]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-6, atol=1e-7)
    for loss in losses:
        loss.backward()
    assert_same(gradients(fused), gradients(own))


def test_head_loss_against_a_loop():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    weight = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    labels = torch.tensor([[1, 2, -100, 4], [0, 0, 3, -100]])
    total = 0.0
    for row in range(2):
        for at in range(3):
            if labels[row, at + 1] != -100:
                logits = [float(sum(hidden[row, at] * weight[word])) for word in range(5)]
                norm = torch.tensor(logits, dtype=torch.float64).exp().sum().log()
                total += float(norm) - logits[labels[row, at + 1]]
    assert float(head_loss(hidden, weight, labels, torch.tensor(8))["loss"]) == pytest.approx(total / 8, rel=1e-6)


def test_outside_training_nothing_changes():
    own, fused = llama().eval(), llama()
    assert fuse_head(fused, compiled=False)
    fused.eval()
    ids = tokens(2)
    with torch.no_grad():
        assert torch.equal(own(input_ids=ids).logits, fused(input_ids=ids).logits)
        assert torch.equal(own(input_ids=ids, labels=ids).loss, fused(input_ids=ids, labels=ids).loss)
        assert torch.equal(own(ids).logits, fused.train()(ids).logits)
    assert torch.equal(fused.train()(input_ids=ids).logits, own.train()(input_ids=ids).logits)


def small(kind: str, **options):
    torch.manual_seed(0)
    shape = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    config = transformers.AutoConfig.for_model(kind, **shape, **heads, **options)
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("gemma2", {"final_logit_softcapping": 30.0}), ("granite", {"logits_scaling": 8.0}), ("cohere", {})],
)
def test_a_model_that_bends_its_logits_keeps_its_own_head(kind, options):
    """Fresh weights have logits near 0, where neither a cap nor a scale shows by itself."""
    model = small(kind, **options).train()
    before = model.forward
    assert not fuse_head(model, compiled=False)
    assert model.forward == before
    assert model.training
    ids = torch.arange(12).view(2, 6)
    assert model(input_ids=ids, labels=ids).logits is not None  # no hook is left on the head either
    assert not model.get_output_embeddings()._forward_pre_hooks


def test_the_same_model_without_the_cap_takes_the_fused_head():
    assert fuse_head(small("gemma2", final_logit_softcapping=None), compiled=False)


def test_what_has_no_such_head():
    assert not fuse_head(bert(), compiled=False)
    assert not fuse_head(torch.nn.Linear(2, 2), compiled=False)


def test_a_run_with_the_fused_head_ends_with_the_same_weights(tmp_path, cache):
    """Through Trainer, with gradient accumulation and the dispersion loss."""
    settings = ["loss={name: dispersion, weight: 1.0}", "train.micro_batch=2", "data.tokens=1024"]
    for name, fused in (("own", "false"), ("fused", "true")):
        train(tiny(*settings, f"train.fused_loss={fused}"), tmp_path / name, cache=cache)
    own, fused = result(tmp_path / "own"), result(tmp_path / "fused")
    assert (own["fused_loss"], fused["fused_loss"]) == (False, True)
    for one, other in zip(own["history"], fused["history"]):
        for key in ("loss", "task_loss", "penalty", "mean_cosine"):
            assert one[key] == pytest.approx(other[key], rel=1e-5), (one["step"], key)
    left, right = weights(tmp_path / "own"), weights(tmp_path / "fused")
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=1e-3, atol=1e-5)


def test_a_model_whose_class_names_no_loss_is_no_notice(tmp_path, cache, monkeypatch):
    """GPT2's: transformers takes the causal loss and says so."""
    said = []
    monkeypatch.setattr("transformers.modeling_utils.logger.warning_once", said.append, raising=False)
    train(tiny("data.tokens=256", "train.fused_loss=true", architecture="gpt2"), tmp_path / "run", cache=cache)
    assert said == []


def test_a_recipe_that_insists_is_told(tmp_path, cache):
    shape = {"vocab_size": 384, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 8,
             "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}  # fmt: skip
    recipe = tiny("train.fused_loss=true", architecture="gemma2", config=shape)
    with pytest.raises(ValueError, match=r"does not reproduce the loss of Gemma2ForCausalLM: set it to auto"):
        train(recipe, tmp_path / "run", cache=cache)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("before", ["ieee", "tf32"])
def test_products_are_afterwards_as_precise_as_before(before, tmp_path, cache):
    """As precise as `fp32_precision` says, which Trainer sets: torch then has no level of precision to name."""
    matmul = torch.backends.cuda.matmul
    own = matmul.fp32_precision
    try:
        matmul.fp32_precision = before
        for level, expected in (("highest", "ieee"), ("high", "tf32")):
            others = torch.backends.mkldnn.matmul.fp32_precision
            with matmul_precision(level):
                assert (torch.get_float32_matmul_precision(), matmul.fp32_precision) == (level, expected)
            assert (matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision) == (before, others)
        train(tiny("data.tokens=256", "snapshots.count=1"), tmp_path / "run", cache=cache)
        assert matmul.fp32_precision == before
    finally:
        matmul.fp32_precision = own


def test_products_go_on_as_torch_is_told_for_all():
    backends = torch.backends
    own = backends.fp32_precision
    try:
        backends.fp32_precision = "tf32"
        with matmul_precision("high"):
            pass
        backends.fp32_precision = "ieee"
        assert backends.cuda.matmul.fp32_precision == "ieee"
    finally:
        backends.fp32_precision = own


# ---- compiled blocks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [llama, gpt2, qwen3])
def test_a_loss_leaves_compiled_blocks_whole(family, monkeypatch):
    """One graph for all of them: the hooks by which transformers collects the states are not inside."""
    torch.compiler.reset()
    graphs = CompileCounterWithBackend("eager")
    monkeypatch.setattr(torch.nn.Module, "compile", functools.partialmethod(torch.nn.Module.compile, backend=graphs))
    model = family().train()
    compile_blocks(model)
    with dc.regularize(model, weight=1.0) as handle:
        model(**inputs(), use_cache=False).loss.backward()
    assert len(handle.reads) > 1
    assert graphs.frame_count == 1


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_blocks_give_the_same_gradients(backend, monkeypatch):
    """Forward and backward as they are traced; the code that is generated of them takes a minute on a CPU."""
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("SKIPPED WITHOUT A COMPILER: torch.compile needs g++ on a CPU")
    compile_with = functools.partialmethod(torch.nn.Module.compile, backend=backend)
    monkeypatch.setattr(torch.nn.Module, "compile", compile_with)
    plain, compiled = llama(2).train(), llama(2).train()
    names = list(compiled.state_dict())
    assert compile_blocks(compiled) == 2
    assert list(compiled.state_dict()) == names  # unlike torch.compile(model), which renames them
    given = inputs()
    penalties = []
    for model in (plain, compiled):
        with dc.regularize(model, weight=1.0) as handle:
            model(**given, use_cache=False).loss.backward()
            penalties.append(float(handle.last["penalty"]))
    assert penalties[0] == pytest.approx(penalties[1], rel=1e-5)
    expected, found = gradients(plain), gradients(compiled)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=1e-6)
    with eager(compiled):
        assert all(m._compiled_call_impl is None for m in compiled.modules())
    assert sum(m._compiled_call_impl is not None for m in compiled.modules()) == 2


# ---- the loss in the graphs of the blocks ------------------------------------------------------------------------


@pytest.fixture(params=["eager"])
def graphs(monkeypatch, request):
    """torch.compile without the minute that code for a CPU takes; counts what it compiles."""
    torch.compiler.reset()
    counter = CompileCounterWithBackend(request.param)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=counter))
    yield counter
    torch.compiler.reset()


@pytest.fixture
def outside(monkeypatch):
    """How many states each call of a loss outside of a graph was asked about."""
    asked, own = [], Loss.over_layers

    def over_layers(self, states, mask):
        if not torch.compiler.is_compiling():
            asked.append(len(states))
        return own(self, states, mask)

    monkeypatch.setattr(Loss, "over_layers", over_layers)
    return asked


def one_step(model, **options):
    """Loss, gradients and logs of the second of two calls; taps where the blocks are compiled."""
    with attachment(model, weight=1.0, **options) as attached:
        tapped = tap_blocks(model, attached)
        for _ in range(2):
            model.zero_grad()
            loss = model(**inputs(), use_cache=False).loss
            loss.backward()
        return loss.detach(), gradients(model), attached.last, tapped


CASES = {
    "first order": (gpt2, {}, 3, 1, 1),  # options, tapped blocks of three, graphs, states left for afterwards
    "some layers": (llama, {"layers": [1, 3]}, 1, 2, 1),
    "the last": (llama, {"layers": "last"}, 0, 1, 1),
}


@pytest.mark.parametrize("graphs", ["aot_eager"], indirect=True)
@pytest.mark.parametrize(("family", "options", "blocks", "compilations", "left"), CASES.values(), ids=CASES.keys())
def test_blocks_compute_the_loss_of_what_they_read(family, options, blocks, compilations, left, graphs, outside):
    plain, compiled = family(3).train(), family(3).train()
    compile_blocks(compiled)
    expected = one_step(plain, **options)
    del outside[:]
    found = one_step(compiled, **options)
    assert (expected[3], found[3]) == (0, blocks)
    assert graphs.frame_count == compilations
    assert outside == [left] * 2
    torch.testing.assert_close(found[0], expected[0])
    for name in expected[1]:
        torch.testing.assert_close(found[1][name], expected[1][name], rtol=1e-4, atol=1e-6)
    assert found[2].keys() == expected[2].keys()
    for key in expected[2]:
        torch.testing.assert_close(torch.as_tensor(found[2][key]), torch.as_tensor(expected[2][key]), msg=key)


def test_what_the_blocks_did_not_see_is_computed_afterwards(graphs, outside):
    """Padding, which they do not know of; states in bfloat16; and a call that is no training."""
    given = inputs() | {"attention_mask": torch.ones(4, 12, dtype=torch.long)}
    given["attention_mask"][1, 7:] = 0
    expected, found = [], []
    for values, compiled in ((expected, False), (found, True)):
        model = llama(3).train()
        if compiled:
            compile_blocks(model)
        with attachment(model, weight=1.0) as attached:
            tap_blocks(model, attached)
            values.append(model(**given, use_cache=False).loss.detach())
            with torch.no_grad():
                values.append(model(**inputs(), use_cache=False).loss)
            assert attached.known is None
            model.to(torch.bfloat16)
            del outside[:]
            model(**inputs(), use_cache=False).loss.backward()
            assert outside == [3]
    torch.testing.assert_close(found, expected)


def test_after_an_error_other_calls_are_no_training(graphs):
    """A training call that fails on its way leaves nothing behind that would keep the states of an evaluation."""
    model = llama(2).train()
    compile_blocks(model)
    with attachment(model, weight=1.0) as attached:
        assert tap_blocks(model, attached) == 2
        failing = model.model.norm.register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(**inputs(), use_cache=False)
        failing.remove()
        failed = len(attached.known or ())
        with torch.no_grad():
            model(**inputs(), use_cache=False)
        model.eval()(**inputs(), use_cache=False)
        assert len(attached.known or ()) == failed
        model.train()(**inputs(), use_cache=False).loss.backward()
        assert attached.known is None


def test_several_streams_are_refused_by_that_name():
    streams = {"vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 4, "laurel_rank": 4}
    rest = {"num_kv_shared_layers": 0, "layer_types": ["full_attention"] * 2, "activation_sparsity_pattern": [0.0] * 2}
    model = small("gemma3n_text", **streams, **rest).train()
    for block in model.model.layers:
        replace_compiled_call(block, block._call_impl)
    with attachment(model) as attached:
        assert tap_blocks(model, attached) == 2
        with pytest.raises(TypeError, match=r"got \(4, 2, 12, 16\), several streams"):
            model(input_ids=tokens(2) % 64)


def test_taps_go_with_the_loss(graphs):
    model = llama(2).train()
    compile_blocks(model)
    before = [block._compiled_call_impl for block in model.model.layers]
    with attachment(model, weight=1.0) as attached:
        assert tap_blocks(model, attached) == 2
        assert [block._compiled_call_impl for block in model.model.layers] != before
        copy.deepcopy(model)  # an average of the weights
    assert [block._compiled_call_impl for block in model.model.layers] == before


@pytest.mark.parametrize(
    ("settings", "blocks", "graphs"),
    [([], 2, "aot_eager"), (["data.boundaries=isolated"], 0, "eager"), (["train.checkpointing=true"], 0, "eager")],
    ids=["plain", "isolated documents", "checkpointing"],
    indirect=["graphs"],
)
def test_a_run_with_compiled_blocks_has_the_same_losses(settings, blocks, tmp_path, cache, graphs, monkeypatch):
    """Where a document is a sequence of its own, and where blocks run twice, the loss stays outside."""
    tapped = []
    monkeypatch.setattr(run, "tap_blocks", lambda *given, **about: tapped.append(tap_blocks(*given, **about)))
    shared = ["loss={name: dispersion, weight: 1.0}", "train.micro_batch=2", "data.tokens=1024", *settings]
    for name in ("false", "true"):
        train(tiny(*shared, f"train.compile={name}"), tmp_path / name, cache=cache)
    assert tapped == [0, blocks]
    plain, compiled = result(tmp_path / "false"), result(tmp_path / "true")
    assert (plain["compiled"], compiled["compiled"]) == (False, True)
    for one, other in zip(plain["history"], compiled["history"]):
        for key in ("loss", "task_loss", "penalty", "mean_cosine"):
            assert one[key] == pytest.approx(other[key], rel=1e-4), (one["step"], key)
