"""The statistics behind the benchmark tables: a wrong median would be published as readily as a right one."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("_harness")


def _measured(harness: Any, ours: list[float | None], peer: list[float | None]) -> Any:
    results = harness.Results()
    for subject, values in ((harness.OURS, ours), (harness.PEER, peer)):
        for value in values:
            figures = None if value is None else {"speed": value}
            results.add("case", subject, harness.Outcome(figures, "it broke", 0.0))
    return results


def _row(harness: Any, goal: Any) -> Any:
    return harness.Row(line="a", title="speed", case="case", figure="speed", unit="samples/s", goal=goal)


def test_a_spread_is_the_median_with_its_extremes_and_of_nothing_is_nothing(harness: Any) -> None:
    assert harness.spread([9.0, 1.0, 3.0, 2.0, 4.0]) == "3.00 [1.00-9.00]"
    assert harness.spread([]) == ""


def test_ratios_are_taken_inside_a_round_and_skip_rounds_that_failed(harness: Any) -> None:
    results = _measured(harness, [10.0, None, 60.0], [5.0, 4.0, 20.0])
    assert results.ratios("case", "speed") == [2.0, 3.0]
    assert results.failures == ["case, ours: it broke"]


def test_subjects_swap_places_every_round(harness: Any) -> None:
    case = harness.Case(name="case", measure="m", params={}, limit_measure="l")
    alone = harness.Case(name="alone", measure="m", params={}, with_peer=False)
    order = [(case.name, subject) for case, subject in harness.schedule([case, alone], 2)]
    first = [("case", "ours"), ("case", "torch"), ("case", "limit"), ("alone", "ours")]
    assert order == [*first, ("case", "limit"), ("case", "torch"), ("case", "ours"), ("alone", "ours")]


@pytest.mark.parametrize(
    ("goal", "met"),
    [
        (("ratio", ">=", 3), True),
        (("ratio", ">=", 3.1), False),
        (("value", "<=", 12), True),
        (("value", "<=", 11), False),
    ],
)
def test_a_goal_is_judged_by_the_median_of_what_it_speaks_of(
    harness: Any, goal: tuple[Any, ...], met: bool
) -> None:
    results = _measured(harness, [10.0, 12.0, 90.0], [5.0, 4.0, 30.0])
    row = _row(harness, harness.Goal(*goal))
    assert harness.judgement(row.goal, harness.judged(row, results)).startswith("yes" if met else "NO")


def test_the_table_shows_spread_ratio_goal_and_how_many_rounds_met_it(harness: Any) -> None:
    results = _measured(harness, [10.0, 12.0, 60.0], [5.0, 4.0, 30.0])
    line = harness.table([_row(harness, harness.Goal("ratio", ">=", 2.5))], results).splitlines()[-1]
    assert "12.0 [10.0-60.0]" in line
    assert "2.00 [2.00-3.00]" in line
    assert "≥ 2.5x" in line
    assert "NO (1 of 3)" in line


def test_an_interrupt_keeps_what_has_been_measured(harness: Any) -> None:
    def run(case: Any, subject: str) -> Any:
        if subject == harness.PEER:
            raise KeyboardInterrupt
        return harness.Outcome({"speed": 1.0}, "", 0.0)

    results = harness.run_all([harness.Case(name="case", measure="m", params={})], 1, run, lambda _: None)
    assert results.values("case", harness.OURS, "speed") == [1.0]
    assert results.failures == ["interrupted after 1 of 2 measurements"]
