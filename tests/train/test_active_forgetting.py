"""Active forgetting: the learning rate's cycle, which steps forget, and what they leave alone."""

from __future__ import annotations

import pytest
import torch
from transformers import TrainerCallback

from decondense.train import train
from decondense.train.active_forgetting import Forgetting, embedding_learning_rate, forget
from train.runs import tiny, weights


def slowly(steps: int, every: int, warmup: float) -> list[float]:
    """The factor at every step: a linear rise over the first share and a linear fall to 0, at (g·⌊T/K⌋) mod T."""
    rise = round(warmup * steps)
    curve = [at / rise if at < rise else (steps - at) / (steps - rise) for at in range(steps)]
    speed = steps // every if steps >= every else 1
    return [curve[(g * speed) % steps] for g in range(steps)]


@pytest.mark.parametrize(
    ("steps", "every", "warmup"), [(1526, 1000, 0.08), (1526, 100, 0.08), (40, 10, 0.1), (17, 5, 0.3), (10, 50, 0.2)]
)
def test_learning_rate_against_the_formula(steps, every, warmup):
    found = [embedding_learning_rate(g, steps=steps, every=every, warmup=warmup) for g in range(steps)]
    assert found == pytest.approx(slowly(steps, every, warmup), abs=1e-12)
    assert max(found) <= 1
    assert min(found) >= 0


def test_the_papers_setting_is_one_cycle():
    """T = 1526, K = 1000: what is drawn at step 1000 begins in the middle of the fall."""
    assert embedding_learning_rate(1000, steps=1526, every=1000) == pytest.approx(526 / 1404, abs=1e-12)


def test_a_draw_is_that_of_the_seed_and_the_step():
    one, two, other = torch.zeros(300, 40), torch.zeros(300, 40), torch.zeros(300, 40)
    forget(one, 0.02, [1, 5])
    torch.manual_seed(99)
    forget(two, 0.02, [1, 5])
    forget(other, 0.02, [1, 6])
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert float(one.std()) == pytest.approx(0.02, rel=0.03)
    assert float(one.mean()) == pytest.approx(0, abs=0.001)


class Watched(TrainerCallback):
    """Weights and Adam state of every parameter before and after `Forgetting` has its turn, at every step."""

    def __init__(self) -> None:
        self.inner = Forgetting(every=3, std=0.5, seed=1)
        self.seen: dict[int, dict] = {}

    def on_step_end(self, args, state, control, model, optimizer, **kwargs):
        def look() -> tuple[dict, dict]:
            inner = getattr(optimizer, "optimizer", optimizer)
            values = {n: p.detach().clone() for n, p in model.named_parameters()}
            moments = {n: inner.state.get(p, {}).get("exp_avg") for n, p in model.named_parameters()}
            return values, {n: None if m is None else m.clone() for n, m in moments.items()}

        before = look()
        self.inner.on_step_end(args, state, control, model=model, optimizer=optimizer, **kwargs)
        rates = {g.get("embeddings", False): g["lr"] for g in optimizer.param_groups}
        self.seen[state.global_step] = {"before": before, "after": look(), "rates": rates}


@pytest.mark.parametrize(("architecture", "tied"), [("llama", False), ("llama", True), ("gpt2", True)])
def test_what_a_run_forgets(architecture, tied, tmp_path, cache, monkeypatch):
    watched = Watched()
    made: list[dict] = []
    monkeypatch.setattr("decondense.train.run.Forgetting", lambda **options: made.append(options) or watched)
    recipe = tiny(
        "baselines.active_forgetting={every: 3, learning_rate: 0.004, warmup: 0.25, std: 0.5}",
        "data.tokens=2304",  # nine steps
        "train={schedule: constant, warmup: 0, learning_rate: 0.01, batch_tokens: 256, seed: 1, device: cpu}",
        architecture=architecture,
        config={"tie_word_embeddings": tied},
    )
    train(recipe, tmp_path / "run", cache=cache)
    assert made == [{"every": 3, "std": 0.5, "seed": 1}]
    embedding = "model.embed_tokens.weight" if architecture == "llama" else "transformer.wte.weight"
    head = "lm_head.weight"
    for step, seen in watched.seen.items():
        (values, moments), (later, moments_later) = seen["before"], seen["after"]
        changed = {n for n in values if not torch.equal(values[n], later[n])}
        cleared = {n for n in values if moments[n] is not None and moments_later[n] is None}
        forgets = step in (3, 6)  # not at the end, step 9: nothing would learn the embeddings again
        assert changed == cleared == ({embedding} if forgets else set()), step
        if forgets:
            assert float(later[embedding].std()) == pytest.approx(0.5, rel=0.05)
        # the scheduler has stepped: this is the rate of the next step
        assert seen["rates"][False] == 0.01
        expected = 0.004 * [*slowly(9, 3, 0.25), 0.0][step]
        assert seen["rates"][True] == pytest.approx(expected)
    names = set(watched.seen[1]["before"][0])
    assert (head in names) != tied  # tied: one matrix, so the head forgets too
    assert (head in weights(tmp_path / "run")) != tied
