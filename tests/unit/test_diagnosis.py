"""The one sentence about a run: from numbers to advice."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.policy.diagnosis import diagnose


def numbers(
    *, wait: float, busy: float = 0.0, workers: int = 2, batches: int = 100, engine: str = "workers"
) -> dict[str, Any]:
    """Stats of a run of ten seconds."""
    return {
        "engine": engine,
        "batches": batches,
        "wait_share": wait,
        "workers": workers,
        "worker_busy_s": [10 * busy] * workers,
        "elapsed_s": 10.0,
    }


def test_a_loader_that_keeps_up_needs_no_advice() -> None:
    said = diagnose(numbers(wait=0.01, busy=0.4), cores=8)
    assert (
        said
        == "training waits 1% of the time for preparation: the loader keeps up, and nothing here would make training faster."
    )


def test_busy_workers_and_free_cores_ask_for_more_workers() -> None:
    said = diagnose(numbers(wait=0.25, busy=1.0, workers=6), cores=8)
    assert said == (
        "training waits 25% of the time for preparation; 6 workers on 8 cores, busy 100% of the time; "
        "2 more are predicted to remove it."
    )


def test_too_few_free_cores_only_reduce_the_waiting() -> None:
    said = diagnose(numbers(wait=0.5, busy=1.0, workers=6), cores=8)
    assert said.endswith("2 more are predicted to reduce it to 33%.")


def test_without_free_cores_more_workers_are_not_advised() -> None:
    said = diagnose(numbers(wait=0.41, busy=0.9), cores=2)
    assert "all cores are in use, and about 4 would be needed" in said
    assert said.endswith("more workers would not.")


@pytest.mark.parametrize(("wait", "busy"), [(0.9, 0.3), (0.17, 0.52), (0.1, 0.9)])
def test_workers_that_could_do_it_point_elsewhere(wait: float, busy: float) -> None:
    assert "yet 2 workers" in diagnose(numbers(wait=wait, busy=busy), cores=2)


def test_one_worker_is_one_worker() -> None:
    said = diagnose(numbers(wait=0.5, busy=0.9, workers=1), cores=4)
    assert "1 worker on 4 cores" in said
    assert said.endswith("1 more is predicted to remove it.")


def test_without_workers_it_says_where_the_work_happens() -> None:
    assert "in the training process itself" in diagnose(
        numbers(wait=0.5, workers=0, engine="inline"), cores=4
    )


def test_few_batches_and_torchs_loader_say_nothing() -> None:
    assert "a diagnosis needs 10" in diagnose(numbers(wait=0.5, batches=3), cores=4)
    assert "nothing is measured" in diagnose(numbers(wait=0.5, engine="torch"), cores=4)


@pytest.mark.parametrize("workers", [1, 2, 5, 8, 16])
@pytest.mark.parametrize("wait", [0.02, 0.3, 0.99, 1.0])
@pytest.mark.parametrize("busy", [0.0, 0.5, 0.95, 1.0])
def test_any_numbers_make_a_sentence(workers: int, wait: float, busy: float) -> None:
    said = diagnose(numbers(wait=wait, busy=busy, workers=workers), cores=8)
    assert said.endswith(".")
    assert " 0 more" not in said
    assert "-" not in said
