"""The table at the head of the page: which number a study is shown by, and how it is drawn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from page_results import write_study

from decondense.records import Damaged, read
from decondense.report.claims import Effect, claim_of
from decondense.report.page import collect, render
from decondense.report.section import brief
from decondense.stats.verdicts import NOT, REPRODUCED
from decondense.studies import STUDIES

ROOT = Path(__file__).resolve().parents[2]


def decision(estimate, low=None, high=None, verdict="reproduced", **more):
    return {"verdict": verdict, "estimate": estimate, "low": low, "high": high, "n": 3, "unit": "training seed"} | more


def claim(folder, **changes):
    """Of a result; a study of this package is shown as its own file says."""
    shown = STUDIES[changes["study"]].shown if changes.get("study") in STUDIES else None
    write_study(folder, **({"shown": shown} | changes))
    return claim_of(read(folder))


def test_a_known_study_is_shown_by_its_own_effect(tmp_path):
    estimate = {"start": decision(1, 1, 1), "change": decision(-1.15, -1.68, -0.62)}
    found = claim(tmp_path / "a", study="init", estimate=estimate)
    assert (found.effect.words, found.effect.text) == ("Spearman, end − start", "−1.15 [−1.68, −0.62]")
    assert found.evidence == "3 training seeds"
    toy = claim(tmp_path / "c", study="init", estimate=estimate, scale="smoke", runs=["a", "b"])
    assert toy.evidence == "3 training seeds at smoke scale, which checks the code, not the claim"
    one = {"kept_percent": {"sampled": decision(99.2), "first order": decision(99.6, 98.6, 100.5, level=0.9)}}
    found = claim(tmp_path / "b", study="estimators", estimate=one)
    assert found.effect.words == "% of the exact loss's change of the mean cosine, first order; 90 % interval"
    assert found.effect.text == "+99.60 [+98.60, +100.50]"
    several = {"a": decision(-0.2, -0.3, -0.1), "b": decision(0.2, 0.1, 0.3, "not reproduced")}
    found = claim(tmp_path / "d", study="variants", estimate={"contrasts": several}, verdict="not reproduced")
    assert found.effect.words == "held-out loss, dispersion − another loss, b"  # which decides


def test_the_dose_that_is_shown_is_the_one_that_decides(tmp_path):
    """Not the first of the arms, which condenses: below 0 it says the opposite."""
    against = {"λ −1": decision(-0.012, verdict="undecided"), "most": decision(0.092, verdict="undecided")}
    estimate = {"against_zero": against, "deciding": {"λ 1 − λ 0": against["most"]}}
    found = claim(tmp_path / "a", study="dose", estimate=estimate, verdict="undecided")
    assert (found.effect.words, found.effect.text) == ("held-out loss, λ 1 − λ 0", "+0.092")


def test_no_number_is_shown_that_the_study_does_not_name(tmp_path):
    estimate = {"a": decision(1, 0, 2, "undecided"), "b": {"inner_one": decision(0.5)}, "c": 3, "d": {"estimate": 1}}
    assert claim(tmp_path / "a", study="mine", estimate=estimate).effect is None
    for path, words in ((["b"], "gap, inner one"), (["c"], None), (["d"], None), (["b", "not run"], None)):
        effect = claim(tmp_path / "b", study="mine", estimate=estimate, shown={"words": "gap", "path": path}).effect
        assert (effect and effect.words) == words
    undecided = {"study": "mine", "estimate": {"x": decision(None)}, "shown": {"path": ["x"]}}
    assert claim(tmp_path / "c", **undecided).effect is None
    assert claim(tmp_path / "d", study="dose", estimate={}).effect is None
    with pytest.raises(Damaged, match=r"shown names 'deciding', which is not in estimate"):
        claim(tmp_path / "e", study="dose", estimate={"slope": decision(-0.006)})


def test_every_committed_result_has_the_number_that_it_names():
    for file in sorted((ROOT / "results" / "studies").glob("*/result.json")):
        record = read(file)
        assert (claim_of(record).effect is not None) == bool(record.shown.path), file


def test_places_in_the_bar():
    effect = Effect("", 1.0, -0.5, 2.0)
    assert [effect.place(x) for x in (0, 1.0, -0.5, 2.0)] == [50, pytest.approx(72.7), pytest.approx(38.6), 95.5]
    assert Effect("", 0.0, 0.0, 0.0).place(0.0) == 50


def test_an_end_that_is_not_zero_does_not_read_as_zero():
    """It would hide on which side of 0 the interval ends."""
    assert Effect("", -0.0004, -0.00076, -0.00004).text == "−0.00040 [−0.00076, −0.00004]"
    assert Effect("", 0.02, -0.0004, 0.05).text == "+0.0200 [−0.0004, +0.0500]"
    assert Effect("", 0.02, 0.0, 0.05).text == "+0.020 [0.000, +0.050]"
    assert Effect("", 0.0004, -0.02, 0.02).text == "0.000 [−0.020, +0.020]"


def test_the_table_says_where_trend_and_level_part(tmp_path):
    """As the short table of a README does."""
    for name, level in (("width", NOT), ("init", REPRODUCED)):
        estimate = {"verdicts": {"trend": REPRODUCED, "level": level}}
        write_study(tmp_path / name, study=name, claim=name, estimate=estimate)
    rows = re.findall(r"<td>([^<]*<span class=.badge.*?)</td>", render(collect([tmp_path])), re.DOTALL)
    first, wide = (" ".join(re.sub("<.*?>", " ", row).split()) for row in rows)
    assert first == "✓ reproduced"
    assert wide == "✓ reproduced (by the trend over depth reproduced, by the level not reproduced)"


def test_the_table_names_every_study_and_theory_comes_last(tmp_path):
    write_study(tmp_path / "t", study="theory", claim="Appendix E", verdict="not reproduced")
    write_study(tmp_path / "o", study="dose", claim="causality", verdict="undecided")
    estimate, shown = {"difference": decision(1.52, 1.43, 1.62)}, {"path": ["difference"]}
    write_study(tmp_path / "w", claim="C3", estimate=estimate, shown=shown)
    page = render(collect([tmp_path]))
    rows = re.findall(r'<tr><th scope="row"><strong>(.*?)</strong>.*?</tr>', page, re.DOTALL)
    assert rows == ["C3", "causality", "Appendix E"]
    assert page.count('<svg class="bar"') == 1
    assert '<path class="reach" d="M' in page
    assert page.index('class="claims"') < page.index("<section")


def test_two_results_of_one_study_are_told_apart_in_the_table(tmp_path):
    for name in ("a", "b"):
        write_study(tmp_path / name, study="width", claim="C3")
    rows = re.findall(r"<strong>C3</strong>(.*?)</th>", render(collect([tmp_path])), re.DOTALL)
    assert [row.endswith(f"/{name})") for row, name in zip(rows, "ab", strict=True)] == [True, True]


def test_long_words_are_behind_more():
    assert brief("short; and so on") == ("short; and so on", "")
    assert brief("a first clause here; " + "b" * 100) == ("a first clause here.", "b" * 100)
    assert brief("c" * 200) == ("c" * 200, "")


def test_a_study_begins_with_its_headline_and_has_the_sentence_behind_more(tmp_path):
    write_study(tmp_path / "a", headline="+0.5 [+0.4, +0.6]", sentence="reproduced: all of it; and more.")
    (section,) = collect([tmp_path]).sections
    assert section.lines == ("+0.5 [+0.4, +0.6]", ["all of it; and more."])
