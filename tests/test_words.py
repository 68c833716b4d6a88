from __future__ import annotations

import math

import pytest

from decondense import words


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (words.signed(-0.1234), "−0.123"),
        (words.signed(math.nan), "–"),
        (words.signed(-0.00001, 4), "0.0000"),
        (words.signed(0.00001, 4), "0.0000"),
        (words.signed(-0.00006, 4), "−0.0001"),
        (words.points(-0.00001, sign=True), "0.00"),
        (words.nats(-0.00001), "0.0000"),
        (words.points(0.1234), "12.34"),
        (words.nats(-1.5), "−1.5000"),
        (words.p_words(0.00001), "p < 0.0001"),
        (words.p_words(0.002), "p = 0.0020"),
        (words.p_words(0.0625), "p = 0.062"),
        (words.span(-0.5, -0.6, None), "−0.50"),
        (words.span(-0.001, -0.1, 0.001), "0.00 [−0.10, 0.00]"),
        (words.span(0.5, float("nan"), float("nan")), "0.50"),
        (words.span(float("nan")), "–"),
        (words.span(0.5, 0.25, 0.75), "0.50 [0.25, 0.75]"),
        (words.amount(134_515_008), "135M"),
        (words.amount(999), "999"),
        (words.several(1, "seed"), "1 seed"),
        (words.several(0, "seed"), "0 seeds"),
        (words.from_where("novels", "a folder"), "novels (a folder)"),
        (words.from_where("mine.txt", "mine.txt"), "mine.txt"),
        (words.duration(119), "119 s"),
        (words.duration(7200), "2.0 h"),
        (words.cell([1234, -0.5, True, None]), "1,234, −0.5, yes, –"),
        (words.slug("SmolLM2: λ", "0.1"), "smollm2-0-1"),
        (words.nearest("dispersoin", ["dispersion", "koleo"]), "did you mean 'dispersion'?"),
        (words.nearest("disp", ["koleo", "dispersion"]), "did you mean 'dispersion'?"),
        (words.nearest("norm", ["normal", "token_norm"]), "did you mean 'normal'?"),
        (words.nearest("norm", ["no", "token_norm", "enormous"]), "did you mean 'token_norm'?"),
        (words.nearest("wiki-3", ["wiki-2", "wiki", "wiki-103"]), "did you mean 'wiki-103' or 'wiki-2'?"),
        (words.nearest("wiki-13x", ["wiki-2", "wiki-13", "b"]), "did you mean 'wiki-13'?"),
        (words.nearest("xyz", ["a", "b"]), "known are a, b."),
        (words.nearest("xyz", ["a", "b"], "pick one."), "pick one."),
        (words.perhaps("g", ["cpu", "gpu-and-more"]), ": did you mean 'gpu-and-more'?"),
        (words.perhaps("", ["cpu", "gpu"]), "."),
        (words.near("token", ["tokens_per_step", "token_s", "broken"], n=3), ["token_s", "tokens_per_step"]),
        (words.near("tokan", ["tokens_per_step", "token", "token", "broken"], n=3, cutoff=0.5), ["token", "broken"]),
        (words.list_of(["a", "b", "c"]), "a, b and c"),
    ],
)
def test_numbers_and_names_as_text(text, wanted):
    assert text == wanted


def test_rounding_keeps_the_shape_and_makes_valid_json():
    value = {"a": [1.23456789, math.inf, 3.0], "b": "x", "c": True}
    assert words.round_to(value, 3) == {"a": [1.23, None, 3], "b": "x", "c": True}
