"""What decided a study stands in a cell that can be read, and its numbers are those of the study."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from test_quoted_results import ROOT, STUDIES, estimate, table, values

from decondense.records import read
from decondense.stats.verdicts import decide
from decondense.words import signed

NAMES = sorted(file.parent.name for file in STUDIES.glob("*/result.json"))
NUMBER = r"[+−]?\d+(?:\.\d+)?"
INTERVAL = re.compile(rf"({NUMBER}) \[({NUMBER}), ({NUMBER})\](?: \(({NUMBER}) %\))?")


def result(name: str) -> dict[str, Any]:
    return json.loads((STUDIES / name / "result.json").read_text(encoding="utf-8"))


def parts(value: Any) -> Iterator[Any]:
    """A section or list and all that is in it, keys too."""
    yield value
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from parts(inner)


def unexplained(headline: str, record: dict[str, Any]) -> list[str]:
    """The numbers of a headline that the rest of its file does not have."""
    decisions = [part for part in parts(record["estimate"]) if isinstance(part, dict) and "low" in part]
    missing = []
    for *numbers, level in INTERVAL.findall(headline):  # all of it in one place
        digits = len(numbers[0].partition(".")[2])
        for one in decisions:
            ends = [signed(one[key], digits) for key in ("estimate", "low", "high") if key in one]
            if (ends, f"{100 * one.get('level', 0):.3g}") == (numbers, level or "95"):
                break
        else:
            missing.append(f"{numbers} {level}")
    there = list(parts([record[key] for key in ("estimate", "table", "config", "criterion")]))
    known = [part for part in there if isinstance(part, (int, float))]
    for words in (part for part in there if isinstance(part, str)):
        known += [float(number.replace("−", "-")) for number in re.findall(NUMBER, words)]
    for number in re.findall(NUMBER, INTERVAL.sub("", headline)):
        digits = len(number.partition(".")[2])
        if number.lstrip("+−") not in {f"{abs(value):.{digits}f}" for value in known}:
            missing.append(number)
    return missing


@pytest.mark.parametrize("name", NAMES)
def test_a_cell_of_the_table_can_be_read(name):
    told = read(STUDIES / name).headline
    assert len(told) <= 220
    lines = (ROOT / "docs" / "results.md").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.startswith(f"| [{name}](") and line.endswith(f" | {told} |")]) == 1


def counts(name: str) -> str:
    """What a headline counts, counted here."""
    if name == "theory":
        holds = [row["published_holds"] for row in table("theory")]
        return f"of {len(holds)} cases the lower bound fails in 0, the published upper bound in {holds.count(False)}"
    if name == "benchmarks":
        return f"average of {sum(row['p_holm'] is not None for row in table('benchmarks'))} tasks"
    if name == "hyper":
        cells = [one["verdict"] for one in estimate("hyper")["cell_minus_centre"].values()]
        excluded, shown = map(cells.count, ("reproduced", "not reproduced"))
        return f"is excluded in {excluded} of {len(cells)} other cells and shown in {shown}"
    if name == "arch":
        trends = {row["arm"]: values("arch", row["arm"], "spearman") for row in table("arch")}
        above = [decide(some).verdict for some in trends.values()].count("reproduced")
        strict = [decide(some, level=1 - 0.05 / len(trends)).verdict for some in trends.values()]
        lowest = min(trends, key=lambda arm: trends[arm].mean())
        sides = f"{above} above 0, {strict.count('not reproduced')} below 0 after correction"
        return f"of {len(trends)} architectures: {sides}; lowest {lowest}"
    return ""


@pytest.mark.parametrize("name", NAMES)
def test_numbers_of_a_headline_are_those_of_the_study(name):
    record, counted = result(name), counts(name)
    headline = record["headline"]
    assert re.search(NUMBER, headline)
    assert counted in headline
    assert unexplained(headline.replace(counted, ""), record) == []
    for _, low, *_ in INTERVAL.findall(headline):  # another number is seen
        wrong = low[:-1] + str((int(low[-1]) + 1) % 10)
        assert unexplained(headline.replace(counted, "").replace(low, wrong), record)
