"""Log-likelihoods, as lm-eval's own Hugging Face model defines them, in fewer operations.

``Scorer`` *is* lm-eval's ``HFLM``: tokenisation rules, truncation from the left, the prefix token and one forward pass
for continuations that differ in their last token only are the same. What differs is how the work is done:

* strings are tokenised in batches, every distinct context once;
* batches are cut by tokens, not by a fixed number of rows, after sorting by length;
* the output head sees only the positions that score a continuation, and log-probabilities are float32 whatever the
  model's precision (``HFLM`` rounds them to the model's, which makes ties in bfloat16);
* one transfer per batch instead of two per request;
* every finished batch goes into a journal, so that a killed evaluation goes on with the next one.

The batches do not depend on what the journal holds, so an interrupted evaluation ends with the same numbers.
``score_text`` is the perplexity of a text: per token, per word, and bits per byte.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from ..insides.lm_eval import check_model_class
from ..meter.batches import checked
from ..meter.positions import positions_of
from ..windows import special_tokens
from ..words import nobody
from .items import TEXT, Item
from .unfinished import Journal

Answer = tuple[float, bool]
Request = tuple[Any, list[int], list[int]]


@dataclass
class _Row:
    """One forward sequence: ``tokens`` without the last one, and the requests it answers, each with the number of
    tokens of its continuation."""

    tokens: list[int]
    scored: int
    members: list[tuple[int, list[int]]]


class Scorer(HFLM):
    """lm-eval's Hugging Face model for a causal language model in memory.

    Args:
        batch_tokens: tokens in a batch, padding included; default 65,536 on an accelerator, 256 for every
            thread on a CPU.

    ``scored_tokens`` limits the positions of a batch that reach the output head: 16,384, on a CPU 128 for every
    thread. ``progress`` is called with (requests done, requests in all); ``journal`` keeps finished batches.
    ``cut`` has, for every (task, doc_id) with a prompt longer than the context, the most tokens that were lost.
    """

    def __init__(self, model: Any, tokenizer: Any, *, batch_tokens: int | None = None) -> None:
        check_model_class(HFLM)
        self._positions = positions_of(model, given=False)
        super().__init__(pretrained=model, tokenizer=tokenizer, batch_size=8)
        threads = torch.get_num_threads() if self.device.type == "cpu" else 0
        self.batch_tokens = batch_tokens or 256 * threads or 65_536
        self.scored_tokens = 128 * threads or 16_384
        self.progress: Callable[[int, int], None] = nobody
        self.journal = Journal(None)
        self.cut: dict[tuple[str, int], int] = {}
        self._appended = len(special_tokens(self.tokenizer)[1])
        self._options = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
        self._head: Any = None
        if self.backend == "causal":
            self._try_head()

    @property
    def max_length(self) -> int:
        """As many tokens as the configuration says, or fewer: RoBERTa's positions begin after the padding index."""
        return int(min(super().max_length, self._positions))

    # -- tokens ----------------------------------------------------------------------------------------------

    def encode_many(self, strings: Sequence[str], *, special: bool | None = None) -> list[list[int]]:
        """``tok_encode`` of every string, in one call per kind of string, but without the tokens that the tokenizer
        appends to a text: they would stand between a context and its continuation."""
        bos = self.tokenizer.decode(self.prefix_token_id)
        default = self.add_bos_token if special is None else special
        kinds = [False if special is None and string.startswith(bos) else default for string in strings]
        result: list[list[int]] = [[] for _ in strings]
        for kind in set(kinds):
            indices = [i for i, own in enumerate(kinds) if own is kind]
            options = {} if kind is None else {"add_special_tokens": kind}
            encoded = self.tokenizer([strings[i] for i in indices], verbose=False, **options)["input_ids"]
            appended = 0 if kind is False else self._appended
            for i, tokens in zip(indices, encoded):
                result[i] = tokens[: len(tokens) - appended]
        return result

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
        """(context, continuation) in tokens. The pair is tokenised as one string and divided after as many tokens as
        the context alone has; spaces at the end of the context belong to the continuation."""
        contexts = [context.rstrip() for context, _ in pairs]
        strings = [context + continuation for context, continuation in pairs]
        distinct = list(dict.fromkeys(filter(None, contexts)))
        heads = dict(zip(distinct, self.encode_many(distinct)))
        whole = iter(self.encode_many([s for s, context in zip(strings, contexts) if context]))
        alone = iter(self.encode_many([s for s, context in zip(strings, contexts) if not context], special=False))
        result, first = [], self.prefix_token_id
        for context in contexts:
            if context:
                head = heads[context]
                result.append((head, next(whole)[len(head) :]))
            else:  # also for a context of spaces only, which lm-eval encodes to nothing and then fails on
                tokens = next(alone)
                result.append((tokens[:1], tokens[1:]) if tokens[:1] == [first] else ([first], tokens))
        return result

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> list[Answer]:
        if self.backend != "causal":
            return super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        pairs = [request.args for request in requests]
        encoded = self.encode_pairs(pairs)
        for request, (context, continuation) in zip(requests, encoded):
            tokens = len(continuation)
            if not 0 < tokens <= self.max_length:
                saved = "; finished tasks are kept in partial/ and not scored again" if self.journal.path else ""
                raise ValueError(
                    f"a continuation must have 1 to {self.max_length} tokens, the context of the model, got {tokens} "
                    f"in item {request.doc_id} of task {request.task_name!r}: leave the task out with --tasks, or take "
                    f"a model with a longer context{saved}."
                )
            lost = self._lost(context, continuation)
            if lost:
                item = (request.task_name, request.doc_id)
                self.cut[item] = max(self.cut.get(item, 0), lost)
        return self._loglikelihood_tokens([(pair, *tokens) for pair, tokens in zip(pairs, encoded)])

    def _lost(self, context: list[int], continuation: list[int]) -> int:
        """How many tokens are cut on the left, as the model's context has no room for them."""
        return max(0, len(context) + len(continuation) - (self.max_length + 1))

    # -- scores ----------------------------------------------------------------------------------------------

    def _check_ids(self, ids: Iterable[int]) -> None:
        distinct = torch.tensor(sorted(set(ids)), dtype=torch.long)
        checked({"input_ids": distinct[:, None]}, self.model)  # each a sequence: positions are not checked here

    def _model_generate(self, context: torch.Tensor, *args: Any, **options: Any) -> Any:
        self._check_ids(context.flatten().tolist())
        return super()._model_generate(context, *args, **options)

    def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = False, override_bs: Any = None) -> list[Answer]:
        self._check_ids(token for _, context, continuation in requests for token in (*context, *continuation))
        if self.backend != "causal":
            return _numbers(super()._loglikelihood_tokens(requests, disable_tqdm=disable_tqdm, override_bs=override_bs))
        rows = self._rows(requests)
        batches = self._batches(rows)
        stage = self._stage(rows)
        answers: dict[int, Answer] = {}
        for number, batch in enumerate(batches):
            members = [index for row in batch for index, _ in row.members]
            scores = self.journal.done.get((stage, number))
            if scores is None or len(scores) != len(members):
                scores = _numbers(self._score(batch))
                self.journal.add(stage, number, scores)
            answers |= zip(members, scores)
            self.progress(len(answers), len(requests))
        return [answers[index] for index in range(len(requests))]

    def _rows(self, requests: Sequence[Request]) -> list[_Row]:
        """Requests that share all tokens but the last one share a row. Longest first; equal lengths in the order of
        their tokens, so that the order does not depend on where a request came from."""
        rows: dict[tuple[int, ...], _Row] = {}
        for index, (_, context, continuation) in enumerate(requests):
            tokens = (context + continuation)[self._lost(context, continuation) : -1]
            row = rows.setdefault(tuple(tokens), _Row(tokens, 0, []))
            row.scored = max(row.scored, len(continuation))
            row.members.append((index, continuation))
        return [rows[key] for key in sorted(rows, key=lambda k: (-len(k), k))]

    def _batches(self, rows: Sequence[_Row]) -> list[list[_Row]]:
        batches: list[list[_Row]] = []
        width = scored = 0
        for row in rows:
            full = bool(batches) and (
                (len(batches[-1]) + 1) * width > self.batch_tokens or scored + row.scored > self.scored_tokens
            )
            if not batches or full:
                batches.append([])
                width, scored = len(row.tokens), 0
            batches[-1].append(row)
            scored += row.scored
        return batches

    def _stage(self, rows: Sequence[_Row]) -> str:
        """A name for this set of requests, cut into batches this way."""
        digest = hashlib.sha256(f"{self.batch_tokens} {self.scored_tokens}".encode())
        for row in rows:
            digest.update(json.dumps([row.tokens, row.members]).encode())
        return digest.hexdigest()[:16]

    def _score(self, batch: list[_Row]) -> list[Answer]:
        try:
            return self._score_together(batch)
        except torch.OutOfMemoryError:
            if len(batch) == 1:
                raise
        torch.cuda.empty_cache()
        half = len(batch) // 2
        return self._score(batch[:half]) + self._score(batch[half:])

    @torch.inference_mode()
    def _score_together(self, batch: list[_Row]) -> list[Answer]:
        """Padding is on the right, where a causal model does not see it."""
        width = max(len(row.tokens) for row in batch)
        inputs = torch.zeros(len(batch), width, dtype=torch.long)
        positions: list[int] = []  # in the flattened batch, those that score something
        index: list[int] = []  # for every scored token: which of the positions
        targets: list[int] = []
        owners: list[int] = []
        members = 0
        for number, row in enumerate(batch):
            inputs[number, : len(row.tokens)] = torch.tensor(row.tokens)
            end = number * width + len(row.tokens)
            positions.extend(range(end - row.scored, end))
            for _, continuation in row.members:
                length = len(continuation)
                index.extend(range(len(positions) - length, len(positions)))
                targets.extend(continuation)
                owners.extend([members] * length)
                members += 1
        logits = self._logits(inputs.to(self.device), torch.tensor(positions, device=self.device))
        logit_rows = torch.tensor(index, device=logits.device)
        target = torch.tensor(targets, device=logits.device)
        owner = torch.tensor(owners, device=logits.device)
        # log_softmax and not a subtraction of logsumexp: to the last digits what lm-eval computes
        values = torch.log_softmax(logits, dim=-1, dtype=torch.float32)[logit_rows, target]
        greedy = logits.argmax(-1)[logit_rows] == target
        # float64 and one member after the other in order: the sum does not depend on the neighbours in the batch
        total = torch.zeros(members, dtype=torch.float64).index_add_(0, owner.cpu(), values.double().cpu())
        wrong = torch.zeros(members, dtype=torch.int64).index_add_(0, owner.cpu(), (~greedy).long().cpu())
        return [(float(t), int(w) == 0) for t, w in zip(total.tolist(), wrong.tolist())]

    def _logits(self, inputs: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """inputs (rows, width), positions (k,) in the flattened batch → logits (k, vocabulary)."""
        if self._head is None:
            full = self.model(inputs, **self._options).logits
            return full.flatten(0, 1)[positions.to(full.device)]

        def select(module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            hidden = arguments[0]
            return (hidden.flatten(0, 1)[positions.to(hidden.device)].unsqueeze(0), *arguments[1:])

        hook = self._head.register_forward_pre_hook(select)
        try:
            return self.model(inputs, **self._options).logits[0]
        finally:
            hook.remove()

    @torch.inference_mode()
    def _try_head(self) -> None:
        """Apply the head to scored positions only, if that gives the model's own logits: after the head, some models do
        more than act on each position by itself."""
        head = getattr(self.model, "get_output_embeddings", lambda: None)()
        if not isinstance(head, torch.nn.Module):
            return
        probe = torch.arange(min(4, self.max_length), device=self.device)[None] % self.vocab_size
        expected = self.model(probe, **self._options).logits[0, -1:]
        self._head = head
        try:
            short = self._logits(probe, torch.tensor([probe.shape[1] - 1], device=self.device))
            same = short.shape == expected.shape and torch.allclose(short, expected, rtol=1e-2, atol=1e-2)
        except (RuntimeError, IndexError, ValueError):
            same = False
        if not same:
            self._head = None


def _numbers(answers: list[Answer]) -> list[Answer]:
    """Refuse NaN, with which the first choice of every item would count as the best."""
    if any(math.isnan(value) for value, _ in answers):
        raise ValueError(
            "log-likelihoods must be numbers, but the model gives NaN: look for NaN or infinity in the weights, take "
            "another checkpoint, or dtype float32 where it is less."
        )
    return answers


def score_text(text: Any, scorer: Scorer, *, tokens: int) -> tuple[list[Item], dict[str, Any]]:
    """The perplexity of a text: every token is scored once, in disjoint windows as lm-eval cuts them, the first after
    the prefix token, the first of a later window after one token.

    With ℓ the sum of log-likelihoods over all windows:

        token perplexity = exp(−ℓ / tokens)        word perplexity = exp(−ℓ / words)
        bits per byte    = −ℓ / (bytes · ln 2)

    Words are what white space divides (as in lm-eval), bytes those of UTF-8; neither count depends on the tokenizer.
    Windows are kept as items, with the window's log-likelihood, so that two runs can be paired.

    Args:
        text: a ``decondense.text.Text``; its documents are joined.
        tokens: length of a window.

    Returns:
        (items, figures)
    """
    string = text.joined
    name = f"{TEXT}{text.name}"
    if not 2 <= tokens <= scorer.max_length:
        raise ValueError(
            f"text_tokens must be between 2 and the model's context of {scorer.max_length}, got {tokens}: leave it out "
            "for the default."
        )
    (ids,) = scorer.encode_many([string], special=False)  # else a BOS in front would be scored, after BOS as the prefix
    rolling_windows = get_rolling_token_windows(ids, scorer.prefix_token_id, max_seq_len=tokens, context_len=1)
    windows = [make_disjoint_window(window) for window in rolling_windows]
    answers = scorer._loglikelihood_tokens([(None, context, scored) for context, scored in windows])
    total = sum(value for value, _ in answers)
    token_count = sum(len(scored) for _, scored in windows)
    words = len(re.split(r"\s+", string))
    byte_count = len(string.encode("utf-8"))
    items = [
        Item(
            task=name, subtask=name, doc_id=number, item=hashlib.sha256(repr(window).encode()).hexdigest()[:16],
            prediction=None, target=None, gold=None, correct=value / len(window[1]), acc_norm=None,
            loglikelihoods=[value], greedy=None, units=[len(window[1])], cut=0,
        )
        for number, (window, (value, _)) in enumerate(zip(windows, answers))
    ]  # fmt: skip
    return items, {
        "source": text.source, "sha256": text.sha256, "window_tokens": tokens, "windows": len(windows),
        "tokens": token_count, "words": words, "bytes": byte_count, "loglikelihood": total,
        "token_perplexity": math.exp(-total / token_count),
        "word_perplexity": math.exp(min(700.0, -total / words)),
        "bits_per_byte": -total / (byte_count * math.log(2)),
    }  # fmt: skip
