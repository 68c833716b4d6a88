"""Distillation: value and gradient against loops, gradient accumulation, and teachers that do not fit."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import transformers

from decondense.train import train
from decondense.train.distillation import check_teacher, distillation, predictions, share_loss
from train.runs import CONFIGS, result, saved, tiny, weights


def slowly(student: torch.Tensor, teacher: torch.Tensor, labels: torch.Tensor, temperature: float) -> float:
    """τ² Σ over positions with a next label of −Σ_v p_v log q_v, p and q softened by τ; plain loops in float64."""
    total = 0.0
    for row in range(len(labels)):
        for at in range(labels.shape[1] - 1):
            if labels[row, at + 1] == -100:
                continue
            t = [float(x) / temperature for x in teacher[row, at]]
            s = [float(x) / temperature for x in student[row, at]]
            t_all, s_all = math.log(sum(map(math.exp, t))), math.log(sum(map(math.exp, s)))
            total -= sum(math.exp(a - t_all) * (b - s_all) for a, b in zip(t, s))
    return temperature**2 * total


def problem() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    student = 2 * torch.randn(2, 5, 7, generator=generator, dtype=torch.float64)
    teacher = 2 * torch.randn(2, 5, 7, generator=generator, dtype=torch.float64)
    labels = torch.tensor([[-100, 1, 2, -100, 4], [-100, 3, 3, 0, -100]])
    return student, teacher, labels


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 4.0])
def test_value_and_gradient_against_loops(temperature):
    student, teacher, labels = problem()
    leaf = student.float().requires_grad_()
    value = distillation(leaf, teacher.float(), labels, temperature=temperature)
    value.backward()
    assert float(value) == pytest.approx(slowly(student, teacher, labels, temperature), rel=1e-5)
    step = 1e-5
    for index in [(0, 0, 3), (0, 1, 6), (0, 2, 1), (1, 2, 0), (1, 3, 2), (0, 4, 1)]:
        shifted = []
        for sign in (1, -1):
            moved = student.clone()
            moved[index] += sign * step
            shifted.append(slowly(moved, teacher, labels, temperature))
        slope = (shifted[0] - shifted[1]) / (2 * step)
        assert float(leaf.grad[index]) == pytest.approx(slope, rel=1e-3, abs=1e-5)


def test_pieces_change_nothing_and_keep_the_gradient_alone(monkeypatch):
    """Eight positions, two at a time: the value and gradient of all at once."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(1, 8, 50, generator=generator).bfloat16().requires_grad_()
    teacher = torch.randn(1, 8, 50, generator=generator).bfloat16()
    labels = torch.ones(1, 8, dtype=torch.long)
    found, kept = [], []
    for positions in (100, 2):
        monkeypatch.setattr("decondense.train.distillation.POSITIONS", positions)
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
            value = distillation(logits, teacher, labels, temperature=2.0)
        (gradient,) = torch.autograd.grad(value, logits)
        found.append((value.detach(), gradient))
    torch.testing.assert_close(found[1], found[0])
    assert [(x.dtype, x.numel()) for x in kept] == 2 * [(torch.bfloat16, 8 * 50)]


def test_a_gradient_in_16_bits_is_scaled_in_float32():
    """1/items in bfloat16 would be off by up to 0.4 %, the same way in every number."""
    generator = torch.Generator().manual_seed(2)
    student, teacher = torch.randn(2, 1, 9, 50, generator=generator)
    labels, gradients = torch.ones(1, 9, dtype=torch.long), []
    for dtype in (torch.float64, torch.bfloat16):
        leaf = student.bfloat16().to(dtype).requires_grad_()
        (distillation(leaf, teacher.bfloat16().to(dtype), labels, temperature=2.0) / 774).backward()
        gradients.append(leaf.grad.double().flatten())
    exact, rounded = gradients
    assert float(exact @ rounded / (exact @ exact)) == pytest.approx(1, abs=1e-3)


def test_no_labels_no_term():
    logits = torch.randn(1, 4, 5, requires_grad=True)
    distillation(logits, torch.randn(1, 4, 5), torch.full((1, 4), -100), temperature=1.0).backward()
    assert not logits.grad.any()


def test_mixture():
    student, teacher, labels = problem()
    task = torch.tensor(3.0)
    term = slowly(student, teacher, labels, 2.0)
    for items, count in ((None, 6), (torch.tensor(24), 24)):  # six labels, or those of the whole step
        mixed = share_loss(task, student.float(), teacher.float(), labels, items, temperature=2.0, share=0.25)
        assert float(mixed) == pytest.approx(0.75 * 3.0 + 0.25 * term / count, rel=1e-5)


def test_a_teacher_reads_what_the_student_reads():
    def model(**given):
        assert given.keys() == {"input_ids", "use_cache"}
        assert not torch.is_grad_enabled()
        return SimpleNamespace(logits=given["input_ids"])

    ids = torch.zeros(2, 5, dtype=torch.long)
    assert predictions(model, {"input_ids": ids, "labels": ids}) is ids


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    torch.manual_seed(5)
    return saved(tmp_path_factory.mktemp("teacher"), hidden_size=24, initializer_range=0.5)


def distilled(teacher, *settings: str, share: float = 0.5):
    return tiny(
        f"baselines.distillation={{teacher: {teacher}, temperature: 2.0, share: {share}}}",
        "data.tokens=768",
        "train.weight_decay=0",
        *settings,
    )


def test_accumulation_is_exact_and_the_teacher_matters(tmp_path, cache, teacher):
    runs = {
        "at once": distilled(teacher, "train.micro_batch=8", "loss={name: dispersion, weight: 0.5}"),
        "one by one": distilled(teacher, "train.micro_batch=1", "loss={name: dispersion, weight: 0.5}"),
        "alone": tiny("data.tokens=768", "train.weight_decay=0", "loss={name: dispersion, weight: 0.5}"),
    }
    for name, recipe in runs.items():
        train(recipe, tmp_path / name, cache=cache)
    whole, split, alone = (weights(tmp_path / name) for name in runs)
    for name in whole:
        torch.testing.assert_close(whole[name], split[name], rtol=1e-4, atol=1e-5)
    assert any((whole[name] - alone[name]).abs().max() > 1e-3 for name in whole)
    first = [result(tmp_path / name)["history"][0] for name in runs]
    assert first[0]["loss"] == pytest.approx(first[1]["loss"], rel=1e-5)
    assert first[0]["penalty"] == pytest.approx(first[2]["penalty"], rel=1e-5)  # the penalty is not shared out


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_teacher_is_called_in_the_precision_of_the_run(tmp_path, cache, teacher, monkeypatch, precision, dtype):
    found = []

    def seen(task, student, target, *rest, **options):
        found.append(target.dtype)
        return share_loss(task, student, target, *rest, **options)

    monkeypatch.setattr("decondense.train.trainer.share_loss", seen)
    train(distilled(teacher, f"train.precision={precision}"), tmp_path / "run", cache=cache)
    assert set(found) == {dtype}


def test_a_student_of_one_teacher_alone_learns_from_it(tmp_path, cache, teacher):
    """share = 1: the task loss is out of it. The held-out loss stays a plain cross-entropy."""
    train(distilled(teacher, "data.tokens=4096", share=1.0), tmp_path / "run", cache=cache)
    history = result(tmp_path / "run")["history"]
    assert history[-1]["loss"] < history[0]["loss"] - 0.05
    assert result(tmp_path / "run")["held_out"][0]["loss"] == pytest.approx(math.log(384), rel=0.02)


def test_teachers_that_do_not_fit(tmp_path, cache):
    other, short = saved(tmp_path / "other", vocab_size=400), saved(tmp_path / "short", max_position_embeddings=16)
    for unfit, error, sentence in (
        ("nobody/has-this", OSError, "model 'nobody/has-this' is no folder, no GGUF file .* the hub did not provide"),
        (tmp_path / "absent", FileNotFoundError, "no model at"),
        (other, ValueError, "share the student's vocabulary of 384 tokens, this one has 400: choose"),
        (short, ValueError, "must see whole blocks of 32 tokens, this one sees 16"),
    ):
        with pytest.raises(error, match=sentence):
            train(distilled(unfit), tmp_path / "run", cache=cache)
    assert not (tmp_path / "run").exists()


def test_a_teacher_that_splits_text_otherwise():
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIGS["llama"]))
    ours = transformers.ByT5Tokenizer()
    with pytest.raises(ValueError, match="this one has 384 and splits text differently"):
        check_teacher(model, model, (ours, lambda text: {"input_ids": [1, 2]}), 32)
    check_teacher(model, model, (ours, ours), 32)
