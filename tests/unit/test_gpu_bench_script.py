"""The parts of the GPU benchmark that need no GPU: what is planned, what is left to do, what is said of it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


def _choice(plan: Any, **changes: Any) -> Any:
    return plan.Choice(
        **{"models": ["resnet18"], "workers": [15, 4], "subjects": ["limit", "off", "on"], **changes}
    )


def _row(plan: Any, subject: str, **figures: Any) -> dict[str, Any]:
    cell = {"part": "main", "group": "", "model": "resnet18", "batch": 512, "repeat": 0}
    place = {"workload": "", "workers": 0} if subject == "limit" else {"workload": "W1", "workers": 15}
    assert set(cell | place) | {"subject"} == {each.name for each in plan.fields(plan.Job)}
    return {**cell, **place, "subject": subject, **figures}


def test_rounds_are_interleaved_turn_about_and_measure_the_limit_once_each(module: Any) -> None:
    plan = module("_gpu_plan")
    jobs = plan.main_jobs(_choice(plan, workers=[15], repeats=2))
    assert [(job.repeat, job.subject) for job in jobs] == [
        (0, "limit"),
        (0, "off"),
        (0, "on"),
        (1, "limit"),
        (1, "on"),
        (1, "off"),
    ]


@pytest.mark.parametrize("part", ["main", "defaults", "rivals", "memory", "workers"])
def test_no_part_plans_the_same_measurement_twice(module: Any, part: str) -> None:
    plan = module("_gpu_plan")
    jobs = plan.PARTS[part](_choice(plan, models=["resnet18", "resnet50"], subjects=[], repeats=2, dali=True))
    assert len({job.key for job in jobs}) == len(jobs) > 0
    assert plan.estimate_s(jobs, _choice(plan)) > 0


def test_a_subject_that_is_not_installed_is_not_planned(module: Any) -> None:
    plan = module("_gpu_plan")
    subjects = {job.subject for job in plan.main_jobs(_choice(plan, subjects=[], dali=False))}
    assert "dali" not in subjects
    assert "torch" in subjects


@pytest.mark.parametrize("there", [False, True])
def test_spdl_is_a_rival_where_it_is_installed(module: Any, there: bool) -> None:
    plan = module("_gpu_plan")
    subjects = {job.subject for job in plan.rivals_jobs(_choice(plan, subjects=[], spdl=there))}
    assert ({"spdl", "spdl_mp"} <= subjects) is there
    assert "timm" in subjects


def test_what_is_in_the_file_is_not_measured_again(module: Any, tmp_path: Path) -> None:
    plan, rows = module("_gpu_plan"), module("_gpu_rows")
    jobs, path = plan.main_jobs(_choice(plan)), tmp_path / "rows.jsonl"
    rows.append_row(path, jobs[0], {"images_per_s": 1.0})
    rows.append_row(path, jobs[1], {"error": "it broke"})
    assert rows.pending(jobs, rows.read_rows(path)) == jobs[2:]


def test_a_line_that_was_cut_off_is_no_measurement_and_spoils_none_behind_it(
    module: Any, tmp_path: Path
) -> None:
    plan, rows = module("_gpu_plan"), module("_gpu_rows")
    jobs, path = plan.main_jobs(_choice(plan)), tmp_path / "rows.jsonl"
    path.write_text('{"part": "main", "subj')
    rows.append_row(path, jobs[0], {"images_per_s": 1.0})
    assert [plan.Job.of(row) for row in rows.read_rows(path)] == [jobs[0]]


def test_a_line_of_the_table_is_a_median_with_its_extremes_and_its_share_of_the_limit(module: Any) -> None:
    plan, report = module("_gpu_plan"), module("_gpu_report")
    found = [_row(plan, "limit", images_per_s=each) for each in (900.0, 1000.0, 1100.0)]
    found += [_row(plan, "on", images_per_s=each) for each in (700.0, 800.0, 850.0)]
    found.append(_row(plan, "on", error="it broke"))
    (line,) = report.summarised(found)[("main", "", "resnet18", 512, 15, "W1")]
    assert line.spread("images_per_s") == (800.0, 700.0, 850.0)
    assert line.of_limit == 0.8
    assert "800 [700-850]" in report.text(found)
    assert "it broke" in report.text(found)


@pytest.mark.parametrize("most", [1, 3, 100, 1187, 4096])
def test_the_largest_batch_is_found_to_one_percent(module: Any, most: int) -> None:
    pytest.importorskip("torch")
    memory = module("_gpu_memory")

    def fits(size: int) -> bool:
        return size <= most

    found = memory.largest(fits, *memory.bracketed(fits, 512))
    assert most - max(1, 0.01 * most) <= found <= most


def test_waits_are_laid_to_the_change_that_they_follow(module: Any) -> None:
    workers = module("_gpu_workers")
    steps = [workers.Step(at, 10, wait) for at, wait in ((0.1, 0.0), (0.4, 0.2), (4.6, 0.5), (8.0, 0.1))]
    first, second = workers.about(steps, [(0.0, 4), (4.5, 8)], 9.5)
    assert (first["workers"], first["longest_wait_ms"], first["images_per_s"]) == (4, 200.0, 0.0)
    assert (second["longest_wait_ms"], second["longest_wait_later_ms"], second["images_per_s"]) == (
        500.0,
        100.0,
        5.0,
    )


def test_what_the_lane_took_is_the_difference_of_two_looks_and_nothing_where_the_loader_does_not_say(
    module: Any,
) -> None:
    feeds, measure = module("_gpu_feeds"), module("_gpu_measure")

    class Loader:
        def __init__(self, gpu: Any) -> None:
            self.gpu = gpu

        def stats(self) -> dict[str, Any]:
            return {"gpu": self.gpu}

    def look(gpu: Any) -> Any:
        return feeds.Feed(batches=iter(()), loader=Loader(gpu)).lane()

    before, after = look({"samples": 100, "packed": 10, "share": 0.1}), look({"samples": 300, "packed": 90})
    none = {"finished_share": 0.0, "resident_share": 0.0, "by_cpu_share": 0.0}
    assert measure.lane_figures(before, after) == {"lane_share": 0.4, **none}
    assert measure.lane_figures(None, before) == {"lane_share": 0.1, **none, "share_at_end": 0.1}
    assert measure.lane_figures(look(None), look({"mode": "idle"})) == {}


def test_no_module_of_the_benchmark_imports_in_a_circle() -> None:
    """A circle hides in imports inside functions."""
    imports = {
        path.stem: set(re.findall(r"^\s*(?:from|import) (_\w+)", path.read_text("utf-8"), re.MULTILINE))
        for path in BENCHMARKS.glob("*.py")
    }
    left = dict(imports)
    while free := [name for name, needed in left.items() if not needed & left.keys()]:
        for name in free:
            del left[name]
    assert not left
