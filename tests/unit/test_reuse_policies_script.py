"""The ablation of Revamper's policies: what it computes shows what the paper says of the comparators, and it writes what it promises."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SHORT = ["--samples", "4000", "--batch", "50", "--epochs", "7"]


@pytest.fixture
def policies(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("reuse_policies")


@pytest.fixture
def found(policies: Any) -> dict[str, Any]:
    args = policies.parsed(SHORT)
    return {name: policies.summary(policies.misses(name, args), args) for name in policies.SUBJECTS}


def test_reference_counting_makes_all_anew_at_once_and_balanced_eviction_the_same_each_time(
    found: dict[str, Any],
) -> None:
    assert found["naive"]["misses_per_epoch"] == [4000, 0, 0, 4000, 0, 0, 4000]
    for name in ("ours", "plain order"):
        first, *later = found[name]["misses_per_epoch"]
        assert first == 4000
        assert sum(later) == 8000
        assert max(later) - min(later) <= 1


def test_a_plain_shuffle_spreads_misses_as_chance_does_and_ours_evenly(found: dict[str, Any]) -> None:
    ours, plain = (found[name]["misses_per_batch"] for name in ("ours", "plain order"))
    assert ours["most"] - ours["least"] <= 1
    drawn = np.sqrt(50 * (1 / 3) * (2 / 3) * (1 - 50 / 4000))  # hypergeometric
    assert plain["std"] == pytest.approx(drawn, rel=0.15)
    assert plain["most"] - plain["least"] > 10


def test_uneven_work_makes_training_wait(found: dict[str, Any]) -> None:
    means = [found[name]["work_ms_per_batch"]["mean"] for name in found]
    assert means == pytest.approx([means[0]] * 3, rel=1e-3)  # all do the same work
    for ahead in ("1", "4"):
        ours, plain, naive = (found[name]["waits"][ahead] for name in ("ours", "plain order", "naive"))
        assert ours < plain < naive
    assert found["naive"]["waits"]["4"] > 0.2
    assert found["ours"]["waits"]["1"] < 0.01


def test_waiting_is_none_for_even_work_and_half_for_work_that_is_all_at_once(policies: Any) -> None:
    first = 1 / 1001  # the first batch has to be waited for
    assert policies.waited(np.ones(1000), 2) == pytest.approx(first)
    lumpy = np.concatenate([np.zeros(500), np.full(500, 2.0)])
    assert policies.waited(lumpy, 1) == pytest.approx(1 / 3, abs=0.01)
    assert policies.waited(np.tile([0.0, 2.0], 500), 4) < 0.01


def test_it_writes_rows_and_a_picture(policies: Any, tmp_path: Path, capsys: Any) -> None:
    assert policies.main([*SHORT, "--out", str(tmp_path)]) == 0
    assert "naive" in capsys.readouterr().out
    rows = json.loads((tmp_path / "policies.json").read_text())
    assert set(rows["subjects"]) == set(policies.SUBJECTS)
    assert rows["arguments"]["samples"] == 4000
    picture = ET.fromstring((tmp_path / "policies.svg").read_text("utf-8"))
    assert len([each for each in picture.iter() if each.tag.endswith("path")]) == 3 + 2 + 3


@pytest.mark.parametrize("wrong", [["--epochs", "8"], ["--batch", "5000"], ["--times", "1"]])
def test_what_makes_no_sense_is_refused(policies: Any, wrong: list[str]) -> None:
    with pytest.raises(SystemExit, match="give 1 \\+ a multiple"):
        policies.main([*SHORT, *wrong])
