"""Log-likelihoods against a plain float64 loop and against lm-eval's own model class."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import tokenizers
import torch
from by_hand import brute_force
from lm_eval.models.huggingface import HFLM
from transformers import ByT5Tokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from decondense.evaluate.scorer import Scorer, score_text
from decondense.evaluate.unfinished import Journal
from decondense.insides.lm_eval import quiet
from decondense.text import Text

PAIRS = [
    ("Once upon a time", " there was a little girl"),
    ("Once upon a time", " there was a big dog"),
    ("Once upon a time", " A"),
    ("Once upon a time", " B"),
    ("Lily ", "ran"),
    ("", "Tom saw a cat"),
    ("The end.\n\n", " Tim"),
    ("word " * 700 + "and so", " they played"),
]


def make(model, tokenizer, journal=None, **options):
    with quiet():
        scorer = Scorer(model, tokenizer, **options)
    scorer.journal = Journal(journal)
    return scorer


@pytest.fixture(scope="module")
def scorer(pair):
    return make(*pair)


def ask(scorer, pairs):
    return scorer._loglikelihood_tokens([(p, *t) for p, t in zip(pairs, scorer.encode_pairs(pairs))])


@pytest.mark.parametrize("batch_tokens", [1, 600, 100_000])
def test_against_brute_force(pair, batch_tokens):
    model = copy.deepcopy(pair[0]).double()
    scorer = make(model, pair[1], batch_tokens=batch_tokens)
    for got, (context, continuation) in zip(ask(scorer, PAIRS), scorer.encode_pairs(PAIRS)):
        value, greedy = brute_force(model, context, continuation, 512)
        # log-probabilities are rounded to float32 before they are summed
        assert got[0] == pytest.approx(value, abs=1e-5)
        assert got[1] == greedy


def test_tokens_are_those_of_lm_eval(pair, scorer):
    with quiet():
        theirs = HFLM(pretrained=pair[0], tokenizer=pair[1])
    for (context, continuation), mine in zip(PAIRS, scorer.encode_pairs(PAIRS)):
        if context:
            assert mine == theirs._encode_pair(context, continuation)
    bos = pair[1].decode(scorer.prefix_token_id)
    strings = [f"{bos}Tom", "Tom", "", "Tom  ran"]
    assert scorer.encode_many(strings) == [theirs.tok_encode(s) for s in strings]
    assert scorer.encode_many([]) == []


def test_a_token_in_front_of_a_text_is_not_scored():
    """Llama's tokenizer begins every text with <s>, which is the prefix token as well: it came twice, and the second
    counted as a token of the text."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "a": 1, "cat": 2}, unk_token="a"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="<s>")
    config = GPT2Config(n_layer=1, n_embd=8, n_head=2, n_positions=64, vocab_size=3, bos_token_id=0, eos_token_id=0)
    scorer = make(GPT2LMHeadModel(config).eval(), tokenizer)
    assert scorer.encode_many(["a cat"]) == [[0, 1, 2]]
    _, figures = score_text(Text("x", "x", ("a cat a",)), scorer, tokens=64)
    value, _ = brute_force(scorer.model, [0], [1, 2, 1], 64)
    assert figures["tokens"] == 3
    assert figures["loglikelihood"] == pytest.approx(value, abs=1e-4)


def test_a_token_behind_every_text_is_in_no_prompt():
    """ByT5's, of `tokenizer: bytes`, ends with </s>: the context would, and the continuation lose its first letter."""
    config = GPT2Config(n_layer=1, n_embd=8, n_head=2, n_positions=64, vocab_size=384, bos_token_id=1, eos_token_id=1)
    scorer = make(GPT2LMHeadModel(config).eval(), ByT5Tokenizer())
    letters = [[byte + 3 for byte in text.encode()] for text in ("How? Or", " so.", "Yes")]
    pairs = scorer.encode_pairs([("How? Or", " so."), ("How? Or ", "so."), ("", "Yes")])
    assert pairs == [(letters[0], letters[1]), (letters[0], letters[1]), ([1], letters[2])]
    _, figures = score_text(Text("x", "x", ("How? Or so.",)), scorer, tokens=64)
    value, _ = brute_force(scorer.model, [1], letters[0] + letters[1], 64)
    assert (figures["tokens"], figures["bytes"]) == (11, 11)
    assert figures["loglikelihood"] == pytest.approx(value, abs=1e-4)


def test_continuations_that_differ_in_the_last_token_share_a_row(pair, scorer):
    """Also when the continuations are cut at different places; each gets the score it has alone."""
    requests = [(None, [1, 50], [60, 90]), (None, [1, 50, 60], [70]), (None, [1, 50, 60], [80]), (None, [1, 50], [61])]
    rows = scorer._rows(requests)
    assert [(len(row.tokens), row.scored, len(row.members)) for row in rows] == [(3, 2, 3), (2, 1, 1)]
    for (value, greedy), (_, context, continuation) in zip(scorer._loglikelihood_tokens(requests), requests):
        expected = brute_force(pair[0], context, continuation, 512)
        assert value == pytest.approx(expected[0], abs=1e-4)
        assert greedy == expected[1]


def test_batches_keep_to_the_budget(scorer):
    rows = scorer._rows([(p, *t) for p, t in zip(PAIRS, scorer.encode_pairs(PAIRS))])
    small = copy.copy(scorer)
    small.batch_tokens, small.scored_tokens = 100, 10
    batches = small._batches(rows)
    assert [row for batch in batches for row in batch] == rows
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(len(r.tokens) for r in batch) <= 100
        assert len(batch) == 1 or sum(r.scored for r in batch) <= 10


def test_long_prompts_are_cut_on_the_left_and_counted(pair):
    scorer = make(*pair)

    def asked(pairs):
        requests = [SimpleNamespace(args=pair, task_name="t", doc_id=number) for number, pair in enumerate(pairs)]
        return scorer.loglikelihood(requests)

    assert asked(PAIRS) == ask(scorer, PAIRS)
    context, continuation = scorer.encode_pairs(PAIRS)[-1]
    lost = len(context) + len(continuation) - 513
    assert lost > 0
    assert scorer.cut == {("t", 7): lost}
    for wrong, tokens in (("word " * 600, r"\d+"), ("", "0")):
        with pytest.raises(ValueError, match=rf"must have 1 to 512 tokens, .* got {tokens} in item 0 of task 't'"):
            asked([("a", wrong)])


def test_head_on_all_positions_gives_the_same(pair, scorer):
    full = make(*pair)
    full._head = None  # as if no head were found: the long way
    for mine, theirs in zip(ask(scorer, PAIRS), ask(full, PAIRS)):
        assert mine[0] == pytest.approx(theirs[0], abs=1e-5)
        assert mine[1] == theirs[1]
    assert scorer._head is not None


def test_a_head_that_does_more_is_left_alone(pair):
    """A model whose logits at one position depend on the others: the short way is noticed to be wrong."""

    class Mixed(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.config, self.device = inner, inner.config, inner.device
            self.tie_weights = inner.tie_weights

        def get_output_embeddings(self):
            return self.inner.get_output_embeddings()

        def forward(self, x, use_cache=None):
            out = self.inner(x)
            out.logits = out.logits - 5 * out.logits.mean(1, keepdim=True)
            return out

    assert make(Mixed(pair[0]), pair[1])._head is None


def test_journal_resumes_and_ignores_broken_lines(pair, tmp_path):
    """One is cut short, and one has another digit."""
    file = tmp_path / "batches.jsonl"
    first = make(*pair, batch_tokens=20, journal=file)
    whole = ask(first, PAIRS)
    _, *lines = file.read_text().split("\n")
    assert len(lines) >= 5
    place = lines[1].rindex("-") + 1
    other = lines[1][:place] + str(9 - int(lines[1][place])) + lines[1][place + 1 :]
    file.write_text("\n".join([lines[0], other, lines[2], lines[3][: len(lines[3]) // 2]]))
    second = make(*pair, batch_tokens=20, journal=file)
    scored = []
    plain = second._score
    second._score = lambda batch: scored.append(batch) or plain(batch)
    assert ask(second, PAIRS) == whole
    assert len(scored) == len(lines) - 2
    assert Journal(file).done == first.journal.done


def test_other_requests_do_not_use_the_journal_of_these(pair, tmp_path):
    file = tmp_path / "batches.jsonl"
    scorer = make(*pair, journal=file)
    ask(scorer, PAIRS[:1])
    other = ask(scorer, PAIRS[1:2])
    scorer.journal = Journal(None)
    assert other == ask(scorer, PAIRS[1:2])


def test_out_of_memory_halves_the_batch(pair, scorer):
    small = copy.copy(scorer)
    plain, calls = small._score_together, []

    def tight(batch):
        calls.append(len(batch))
        if len(batch) > 2:
            raise torch.OutOfMemoryError("full")
        return plain(batch)

    small._score_together = tight
    values = [value for value, _ in ask(scorer, PAIRS[:7])]
    assert [value for value, _ in ask(small, PAIRS[:7])] == pytest.approx(values, abs=1e-5)
    assert max(calls) > 2


def test_a_model_that_gives_no_numbers_has_no_score(pair, tmp_path):
    """NaN in one weight: refused by the requests of tasks and by a text, and nothing of it is kept for a resumption."""
    model, tokenizer = copy.deepcopy(pair[0]), pair[1]
    model.model.layers[2].mlp.down_proj.weight.data[0] = torch.nan
    path, words = tmp_path / "journal", "log-likelihoods must be numbers, but the model gives NaN: look for NaN or"
    broken = make(model, tokenizer, journal=path)
    with pytest.raises(ValueError, match=words):
        ask(broken, PAIRS)
    with pytest.raises(ValueError, match=words):
        score_text(Text("a", "a", ("Once upon a time there was a cat.",)), broken, tokens=16)
    assert not Journal(path).done
