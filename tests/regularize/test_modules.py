"""`modules=` on networks of no library, by the loss, the monitor and the meter: masks of any name, shared modules."""

from __future__ import annotations

import warnings

import pytest
import reference
import torch
import transformers
from torch import nn
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrapper

import decondense as dc
from decondense import losses
from decondense.meter.batches import NamedStates
from regularize.models import VOCABULARY, padded

BLOCKS = "encoder.layers.*"


class Encoder(nn.Module):
    """torch's own modules, under an argument that is called as here."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embed = nn.Embedding(VOCABULARY, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3)

    def states(self, ids, padding):
        z, found = self.embed(ids), []
        for layer in self.encoder.layers:
            z = layer(z, src_key_padding_mask=padding)
            found.append(z)
        return found


class Torchs(Encoder):
    def forward(self, ids, src_key_padding_mask=None):
        return self.encoder(self.embed(ids), src_key_padding_mask=src_key_padding_mask)


class Attentions(Encoder):
    def forward(self, ids, *, key_padding_mask=None):
        return self.encoder(self.embed(ids), src_key_padding_mask=key_padding_mask)


class Other(Encoder):
    """Does not hand on what it is told of padding."""

    def forward(self, ids, pad_mask=None, causal_mask=None, attention_mask=None):
        return self.encoder(self.embed(ids))


class Unmasked(Encoder):
    """Makes no use of its masks, which may be anything."""

    def forward(self, ids, src_key_padding_mask=None, key_padding_mask=None):
        return self.encoder(self.embed(ids))


def loss_of(model, *args, **kwargs):
    with dc.regularize(model, modules=BLOCKS) as handle:
        model.train()(*args, **kwargs)
        return handle.penalty()


def watched(model, *args, **kwargs):
    """The mean cosines of a training call, as the monitor has them."""
    with dc.monitor(model, modules=BLOCKS) as watch:
        model.train()(*args, **kwargs)
        return watch.readings[0].table["mean_cosine"]


def measured(model, **batch):
    return dc.measure(model, inputs=batch, modules=BLOCKS, bootstrap=20).mean_cosine


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize(("build", "name"), [(Torchs, "src_key_padding_mask"), (Attentions, "key_padding_mask")])
def test_masks_of_torch_mark_padding(build, name, kind):
    """True, or −∞ as attention adds it, is padding."""
    model, (ids, mask, _) = build().train(), padded()
    padding = mask == 0
    if kind == "float":
        padding = torch.zeros(mask.shape).masked_fill(padding, -torch.inf)
    with torch.no_grad():
        states = model.states(ids, padding)
    expected = torch.stack([reference.over_batch(reference.first_order, z.double(), mask.bool()) for z in states])
    with dc.regularize(model, modules=BLOCKS) as handle:
        model(ids, **{name: padding})
        handle.penalty()
        torch.testing.assert_close(handle.last["per_layer"].double(), expected, rtol=1e-5, atol=1e-5)
    rows = [[reference.mean_cosine(z[b, m.bool()].double(), eps=0.0) for b, m in enumerate(mask)] for z in states]
    cosines = torch.tensor(rows).mean(1).tolist()
    assert watched(model, ids, **{name: padding}) == pytest.approx(cosines, abs=1e-5)
    assert measured(model, ids=ids, **{name: padding}) == pytest.approx(cosines, abs=1e-5)


class Both(nn.Module):
    """torch's encoder–decoder, whose two stacks read other tokens."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.both = nn.Transformer(8, 2, 2, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, src, tgt, src_key_padding_mask=None, tgt_key_padding_mask=None):
        masks = {"src_key_padding_mask": src_key_padding_mask, "tgt_key_padding_mask": tgt_key_padding_mask}
        return self.both(src, tgt, **masks, memory_key_padding_mask=src_key_padding_mask)


class Inside(Both):
    """Says in no argument what is padding, and calls the stacks itself."""

    def forward(self, first, second):
        paddings = [z.isnan().any(-1) for z in (first, second)]
        memory = self.both.encoder(first.nan_to_num(), None, paddings[0])
        return self.both.decoder(second.nan_to_num(), memory, tgt_key_padding_mask=paddings[1])


class Layers(Both):
    """Goes through the layers itself; the one mask has a name of its own."""

    def forward(self, src, tgt, pads):
        for layer in self.both.encoder.layers:
            src = layer(src, src_key_padding_mask=pads[0])
        for layer in self.both.decoder.layers:
            tgt = layer(tgt, src, tgt_key_padding_mask=pads[1])
        return tgt


def outputs(model, patterns, *args):
    """What the layers of the stacks put out in a call."""
    found = []
    with dc.regularize(model, modules=patterns) as handle:
        names = handle.reads
    hooks = [
        model.get_submodule(name).register_forward_hook(lambda *call: found.append(call[-1].detach())) for name in names
    ]
    model(*args)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("length", [12, 9])
@pytest.mark.parametrize("stacks", [["encoder"], ["decoder"], ["encoder", "decoder"]])
@pytest.mark.parametrize("build", [Both, Inside, Layers])
def test_each_stack_of_torch_has_its_own_padding(build, stacks, length):
    model, masks = build().train(), {"encoder": padded()[1].bool(), "decoder": padded(4, length)[1].bool().flip(0)}
    source, target = torch.randn(4, 12, 8), torch.randn(4, length, 8)
    if build is Inside:
        source[~masks["encoder"]], target[~masks["decoder"]] = torch.nan, torch.nan
        call = {"first": source, "second": target}
    else:
        padding = [~mask for mask in masks.values()]
        named = {"src_key_padding_mask": padding[0], "tgt_key_padding_mask": padding[1]}
        call = {"src": source, "tgt": target} | (named if build is Both else {"pads": padding})
    patterns = [f"both.{stack}.layers.*" for stack in stacks]
    states = outputs(model, patterns, *call.values())
    each = [masks[stack] for stack in stacks for _ in range(2)]
    losses = [reference.over_batch(reference.first_order, z.double(), m) for z, m in zip(states, each)]
    rows = [[reference.mean_cosine(z[b, m[b]].double(), eps=0.0) for b in range(4)] for z, m in zip(states, each)]
    cosines = torch.tensor(rows).mean(1).tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with dc.regularize(model, modules=patterns) as handle:
            model(**call)
            handle.penalty()
        torch.testing.assert_close(handle.last["per_layer"].double(), torch.stack(losses), rtol=1e-5, atol=1e-5)
        with dc.monitor(model, modules=patterns) as watch:
            model(**call)
        assert watch.readings[0].table["mean_cosine"] == pytest.approx(cosines, abs=1e-5)
        if len(stacks) == 1:
            found = dc.measure(model, inputs=call, modules=patterns, bootstrap=20)
            assert found.mean_cosine == pytest.approx(cosines, abs=1e-5)
            return
        with pytest.raises(
            ValueError, match=r"^modules must name layers of one stack of .*, got both: measure them one"
        ):
            dc.measure(model, inputs=call, modules=patterns, bootstrap=20)


@pytest.mark.parametrize("when", ["before", "after"])
def test_checkpointed_layers_of_torch_have_their_own_padding(when):
    """In torch's wrapper, whether it is put around them before or after the loss is attached."""

    def wrap(model):
        wrapper.apply_activation_checkpointing(
            model, check_fn=lambda module: isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer)
        )

    call = (torch.randn(4, 12, 8), torch.randn(4, 9, 8), [padded()[1] == 0, padded(4, 9)[1] == 0])
    found = []
    for how in ("never", when):
        model = Layers().train()
        if how == "before":
            wrap(model)
        with dc.regularize(model, modules=["both.encoder.layers.*", "both.decoder.layers.*"]) as handle:
            if how == "after":
                wrap(model)
            model(*call)
            handle.penalty().backward()
        found.append((handle.last["per_layer"], [p.grad for p in model.parameters()]))
    torch.testing.assert_close(*found)


def test_a_compiled_stack_of_torch_has_its_own_padding():
    torch.compiler.reset()
    model, mask = Both().train(), padded(4, 9)[1]
    call = (torch.randn(4, 12, 8), torch.randn(4, 9, 8), padded()[1] == 0, mask == 0)
    penalties = []
    for whole in (model, torch.compile(model, fullgraph=True, backend="eager")):
        with dc.regularize(model, modules=["both.encoder.layers.*", "both.decoder.layers.*"]) as handle:
            whole(*call)
            penalties.append(handle.penalty().item())
    assert penalties[1] == pytest.approx(penalties[0], abs=1e-6)


@pytest.mark.parametrize("length", [12, 9])
def test_padding_of_a_source_is_not_taken_for_that_of_a_target(length):
    """A target that is called without a mask has no padding."""
    model, mask = Both().train(), padded()[1]
    call = (torch.randn(4, 12, 8), torch.randn(4, length, 8), mask == 0)
    states = outputs(model, "both.decoder.layers.*", *call)
    expected = torch.stack([reference.over_batch(reference.first_order, z.double()) for z in states])
    with dc.regularize(model, modules="both.decoder.layers.*") as handle, warnings.catch_warnings():
        warnings.simplefilter("error")
        model(*call)
        handle.penalty()
    torch.testing.assert_close(handle.last["per_layer"].double(), expected, rtol=1e-5, atol=1e-5)


def test_a_mapping_of_masks_is_read_where_one_is_of_tokens():
    """As transformers makes it for flash attention; the others are of pairs of tokens, which tell no padding."""
    model, (ids, mask, _) = Other().train(), padded()
    pairs, flex = torch.ones(4, 1, 12, 12, dtype=torch.bool).tril(), object()
    for call in (loss_of, watched, lambda model, ids, **masks: measured(model, ids=ids, **masks)):
        plain = torch.as_tensor(call(model, ids, attention_mask=mask))
        for masks in ({"full_attention": mask, "sliding_attention": mask}, {"full_attention": None, "linear": mask}):
            torch.testing.assert_close(torch.as_tensor(call(model, ids, attention_mask=masks)), plain)
        every = torch.as_tensor(call(model, ids))
        torch.testing.assert_close(torch.as_tensor(call(model, ids, attention_mask={"full_attention": None})), every)
        words = (
            r"^attention_mask must be \(batch, tokens\) to tell padding from tokens, got a mapping of full_attention "
            r"\(4, 1, 12, 12\), sliding_attention object: pass the two-dimensional mask, from which the model makes "
            r"these\.$"
        )
        with pytest.raises(ValueError, match=words):
            call(model, ids, attention_mask={"full_attention": pairs, "sliding_attention": flex})


@pytest.mark.parametrize("name", ["src_key_padding_mask", "key_padding_mask"])
def test_a_mask_of_torch_that_does_not_fit_is_refused_by_its_name(name):
    ids, mask, _ = padded()
    remedy = r": give it for every token; states must be \(batch, tokens, width\): batch_first=True\.$"
    plain, words = Unmasked(), rf"^{name} must be a tensor \(batch, tokens\)( = \(4, 12\))?, got "
    for wrong, came in ((mask[0], r"\(12,\)"), (mask[:, None], r"\(4, 1, 12\)"), (mask.tolist(), "list")):
        for call in (loss_of, watched, measured):
            with pytest.raises(ValueError, match=words + came + remedy):
                call(plain, ids=ids, **{name: wrong})
    words = rf"^{name} must be a tensor \(batch, tokens\) = \(12, 4\), got \(4, 12\)" + remedy
    for call in (loss_of, watched, measured):  # (tokens, batch), which the layers do not know
        with pytest.raises(ValueError, match=words):
            call(plain, ids=ids.T, **{name: mask == 0})


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False),
        lambda: nn.TransformerEncoderLayer(8, 2, 16),
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16), 2),
        lambda: nn.MultiheadAttention(8, 2),
        lambda: nn.GRU(8, 8),
    ],
)
def test_layers_of_torch_with_the_tokens_first_are_refused_without_a_mask_too(build):
    """The default of torch: pairs of sequences would be taken for pairs of tokens, and no shape tells."""
    model, layer = Encoder(), build()
    model.encoder = nn.ModuleDict({"layers": nn.ModuleList([layer])})
    words = r"^the output of encoder\.layers\.0 must be \(batch, tokens, width\), got that of a "
    words += rf"{type(layer).__name__} with batch_first=False, whose tokens come first: make it with batch_first=True\."
    for attach in (dc.regularize, dc.monitor):
        with pytest.raises(ValueError, match=words):
            attach(model, modules=BLOCKS)
    with pytest.raises(ValueError, match=words):
        measured(model, ids=padded()[0])


def test_masks_of_pairs_of_tokens_are_not_taken_for_padding():
    """A square batch, whose causal mask has the shape of a mask of tokens; one that is called padding is named."""
    model, ids = Other(), padded(12)[0]
    causal = torch.ones(12, 12).triu(1).bool()
    for mask in (causal, torch.zeros(12, 12).masked_fill(causal, -torch.inf)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            watched(model, ids, causal_mask=mask)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watched(model, ids[:4], causal_mask=torch.zeros(4, 12))
    with pytest.warns(UserWarning, match="got pad_mask, which is not read"):
        watched(model, ids, causal_mask=causal, pad_mask=ids == 0)


class Batches(Encoder):
    """Is given all that it reads as one argument."""

    def forward(self, batch):
        z = self.embed(batch["ids"])
        for layer in self.encoder.layers:
            z = layer(z)
        return z


@pytest.mark.parametrize("kind", [dict, transformers.BatchEncoding])
def test_the_mask_inside_of_a_batch_that_is_one_argument(kind):
    model, (ids, mask, _) = Batches().train(), padded()
    z = model.states(ids, None)
    expected = torch.stack([reference.over_batch(reference.first_order, one.double(), mask.bool()) for one in z])
    cosines = [losses.mean_cosine(one, mask.bool(), eps=0.0).mean().item() for one in z]
    batch = kind({"ids": ids, "attention_mask": mask})
    for arguments in (((batch,), {}), ((), {"batch": batch})):
        with dc.regularize(model, modules=BLOCKS, weight=1.0) as handle:
            model(*arguments[0], **arguments[1])
            torch.testing.assert_close(handle.penalty().double(), expected.mean(), rtol=1e-5, atol=1e-6)
        with dc.monitor(model, every=1, modules=BLOCKS) as watch:
            model(*arguments[0], **arguments[1])
        assert watch.readings[0].table["mean_cosine"] == pytest.approx(cosines, abs=1e-5)
    with dc.regularize(model, modules=BLOCKS), pytest.warns(UserWarning, match="got pad_mask, which is not read"):
        model(kind({"ids": ids, "pad_mask": mask}))


def test_a_mask_that_is_not_read_is_named_once():
    model, (ids, mask, _) = Other().train(), padded(12)
    square = torch.ones(12, 12).triu(1).bool()  # as many sequences as tokens
    words = (
        r"^padding is read from attention_mask \(1: a token\) or key_padding_mask \(True: padding\), got pad_mask, "
        "which is not read, so that every token counts: if it marks padding, give this argument of forward one of those"
    )
    for call in (lambda: watched(model, ids, mask == 0), lambda: measured(model, ids=ids, pad_mask=mask == 0)):
        with pytest.warns(UserWarning, match=words):
            call()
    with warnings.catch_warnings():  # a function that reads it makes the sentence untrue
        warnings.simplefilter("error")
        batch, rest = {"ids": ids, "pad_mask": mask == 0}, {"modules": BLOCKS, "bootstrap": 20}
        found = dc.measure(model, inputs=batch, mask=lambda batch: ~batch["pad_mask"], **rest)
    assert [window["tokens"] for window in found.record.windows] == [n for n in mask.sum(1).tolist() if n > 1]
    for compiled in (False, True):
        torch.compiler.reset()
        with dc.regularize(model, modules=BLOCKS) as handle, warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            whole = torch.compile(model, fullgraph=True, backend="eager") if compiled else model
            for _ in range(3):
                whole(ids, causal_mask=square, attention_mask=mask)  # what is padding has been said
                handle.penalty()
                whole(ids, causal_mask=square)  # no mask of tokens
                handle.penalty()
            assert not [one for one in seen if "which is not read" in str(one.message)]
            for _ in range(2):
                whole(ids, pad_mask=mask == 0)
                handle.penalty()
        (told,) = [one for one in seen if "got pad_mask, which is not read" in str(one.message)]
        assert told.filename == __file__


@pytest.mark.parametrize(
    ("name", "build", "told"),
    [
        ("pad", lambda mask: mask == 0, True),
        ("is_pad", lambda mask: mask == 0, True),
        ("padding", lambda mask: 1 - mask, True),
        ("valid", lambda mask: mask.float(), True),
        ("padded_ids", lambda mask: mask, False),  # tokens
        ("pad_ids", lambda mask: mask, False),
        ("valid_labels", lambda mask: mask, False),
        ("pad_ids", lambda mask: mask == 0, True),
        ("is_valid", lambda mask: mask, True),
        ("valid", lambda mask: mask.sum(1), False),
        ("lengths", lambda mask: mask.sum(1), False),  # no mask: what the sentence advises would not help
        ("pad", lambda mask: 0, False),
    ],
)
def test_padding_by_a_name_without_mask_in_it_is_told_too(name, build, told):
    class Named(Other):
        def forward(self, ids, **rest):
            return super().forward(ids)

    model, (ids, mask, _) = Named().train(), padded(12)
    with dc.regularize(model, modules=BLOCKS) as handle, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model(ids, **{name: build(mask)})
        handle.penalty()
    assert [f"got {name}, which is not read" in str(one.message) for one in seen] == [True] * told


class Recurrent(nn.Module):
    """One block, gone through three times; with a mark for each time."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.block = nn.Embedding(VOCABULARY, 8), nn.Linear(8, 8)
        self.marks = nn.ModuleList(nn.Identity() for _ in range(3))

    def forward(self, ids):
        x = self.embed(ids)
        for mark in self.marks:
            x = mark(x + torch.tanh(self.block(x)))
        return x


def test_a_module_that_is_called_several_times_is_told_once():
    """And the remedy reads every time."""
    model, (ids, _, _) = Recurrent().train(), padded()
    words = "block was called more than once in a call of Recurrent, and its last output alone is read: to read each"
    for compiled in (False, True):
        torch.compiler.reset()
        with dc.regularize(model, modules="block") as handle, warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            whole = torch.compile(model, fullgraph=True, backend="eager") if compiled else model
            for _ in range(2):
                whole(ids)
                handle.penalty()
        assert [words in str(one.message) for one in seen if "more than once" in str(one.message)] == [True]
    with dc.monitor(model, modules="block"), pytest.warns(UserWarning, match=words):
        model(ids)
    with pytest.warns(UserWarning, match=words):
        dc.measure(model, inputs={"ids": ids}, modules=["embed", "block"], bootstrap=20)
    with dc.regularize(model, modules="marks.*") as handle, warnings.catch_warnings():
        warnings.simplefilter("error")
        model(ids)
        handle.penalty()
        assert len(handle.last["per_layer"]) == 3


class Backwards(nn.Module):
    """Holds its layers in another order than it calls them, as networks with a way down and up do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.last, self.first, self.middle = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, ids):
        return self.last(self.middle(self.first(self.embed(ids)) + 1) + 5)


@pytest.mark.parametrize("names", [["last", "first", "middle"], "*"])
def test_depth_is_the_order_of_the_calls(names):
    """It was that of `named_modules()`: the meter called a model dispersing that condenses."""
    model, (ids, _, _) = Backwards().train(), padded()
    called = ["embed"] * (names == "*") + ["first", "middle", "last"]
    c = dc.measure(model, inputs=ids, modules=names, bootstrap=20)
    assert [state.name for state in c.record.states] == called
    assert c.mean_cosine.tolist() == sorted(c.mean_cosine)
    assert c.spearman == 1
    for compiled in (False, True) if names == "*" else (False,):
        torch.compiler.reset()
        with dc.monitor(model, modules=names, sequences=9, metrics="mean_cosine", collapse=1) as watch:
            (torch.compile(model, backend="eager") if compiled else model)(ids)
            assert list(watch.readings[0].layers) == called
            assert watch.readings[0].table["mean_cosine"] == pytest.approx(c.mean_cosine, abs=1e-5)
            assert watch.readings[0].trend == 1
        with dc.regularize(model, modules=names, layers="last") as handle:
            (torch.compile(model, backend="eager") if compiled else model)(ids)
            handle.penalty()
            assert handle.reads == ["last"]
            assert handle.last["mean_cosine"].tolist() == pytest.approx(c.mean_cosine[-1:], abs=1e-2)


@pytest.mark.filterwarnings("ignore:first was called more than once")
def test_a_layer_that_is_called_again_has_the_place_of_its_last_call():
    class Again(Backwards):
        def forward(self, ids):
            return self.first(self.middle(self.first(self.embed(ids))))

    with dc.regularize(model := Again().train(), modules=["first", "middle"]) as handle:
        model(padded()[0])
        handle.penalty()
        assert handle.reads == ["middle", "first"]


def test_layers_that_another_batch_calls_in_another_order_keep_their_places():
    class Either(Backwards):
        def forward(self, ids):
            layers = [self.first, self.middle] if ids[0, 0] == 0 else [self.middle, self.first]
            return self.last(layers[1](layers[0](self.embed(ids))))

    model, seen = Either().eval(), {}
    reader = NamedStates(model, ["first", "middle", "last"], probe={"ids": torch.zeros(1, 3, dtype=int)}, masked=False)
    model.middle.register_forward_hook(lambda module, args, out: seen.update(middle=out))
    found = {}
    reader.read({"ids": torch.ones(1, 3, dtype=int)}, lambda number, z: found.update({reader.names[number]: z}))
    assert list(found) == ["first", "middle", "last"]
    assert found["middle"] is seen["middle"]
