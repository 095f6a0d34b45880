"""The one sentence about a run: from numbers to advice."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.policy.diagnosis import KEEPS_UP, diagnose


def numbers(
    *,
    wait: float,
    busy: float = 0.0,
    cpu: float | None = None,
    delayed: float = 0.0,
    workers: int = 2,
    batches: int = 100,
    engine: str = "workers",
    **recent: Any,
) -> dict[str, Any]:
    """Stats of a steady run of ten seconds; busy, cpu and delayed are shares of a worker's time."""
    return {
        "engine": engine,
        "batches": batches,
        "workers": workers,
        "reuse": None,
        "recent": {
            "batches": batches,
            "workers": workers,
            "elapsed_s": 10.0,
            "wait_share": wait,
            "handover_s": 0.0,
            "borrowed_cores": 0.0,
            "busy_s": 10 * busy * workers,
            "cpu_s": 10 * (busy if cpu is None else cpu) * workers,
            "delayed_s": 10 * delayed * workers,
            "first_wait_s": 0.0,
            "first_share": 0.0,
            **recent,
        },
    }


@pytest.mark.parametrize("busy", [0.01, 0.4, 1.0])
def test_a_loader_that_keeps_up_is_told_that_training_is_the_limit(busy: float) -> None:
    assert diagnose(numbers(wait=0.01, busy=busy), cores=8) == "Training does not wait for data."


def test_a_jitter_that_nothing_would_remove_is_not_worth_advice() -> None:
    assert diagnose(numbers(wait=0.04, busy=0.1), cores=2) == "Training does not wait for data."


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


def test_blocked_workers_ask_for_more_than_there_are_cores() -> None:
    said = diagnose(numbers(wait=0.75, busy=1.0, cpu=0.02), cores=2)
    assert said == (
        "training waits 75% of the time for preparation; 2 workers on 2 cores, busy 100% of the time, 98% of that blocked (reading or "
        "waiting, not computing); 6 more are predicted to remove it (more workers than cores: each is blocked 98% of its time)."
    )


def test_partly_blocked_workers_help_until_the_cores_are_in_use() -> None:
    said = diagnose(numbers(wait=0.9, busy=1.0, cpu=0.4), cores=2)
    assert "3 more are predicted to reduce it to 75%" in said


def test_a_loop_that_only_loads_is_told_the_speed() -> None:
    said = diagnose(numbers(wait=0.999, busy=1.0, cpu=0.01), cores=2)
    assert "14 more are predicted to make it 8.0 times as fast" in said


def test_many_blocked_workers_point_at_the_storage() -> None:
    said = diagnose(numbers(wait=0.9, busy=1.0, cpu=0.01, workers=32), cores=2)
    assert "Faster storage" in said
    assert "predicted" not in said


def test_workers_beside_a_gpu_lane_are_not_told_to_take_its_cores() -> None:
    stats = numbers(wait=0.25, busy=1.0, cpu=0.9, workers=12)
    assert "4 more are predicted to remove it" in diagnose(stats, cores=16)
    assert "more workers would not" in diagnose(stats, cores=12, most=12)
    blocked = numbers(wait=0.25, busy=1.0, cpu=0.1, workers=12)
    assert "predicted" not in diagnose(blocked, cores=12, most=12)


def test_cores_that_others_use_are_not_filled_with_more_workers() -> None:
    said = diagnose(numbers(wait=0.5, busy=0.6, delayed=0.4, workers=2), cores=8)
    assert "waiting for a core 40% of it" in said
    assert said.endswith("more workers would not.")


def test_blocked_samples_that_wait_for_a_core_now_and_then_still_ask_for_workers() -> None:
    assert "6 more are predicted to remove it" in diagnose(
        numbers(wait=0.75, busy=0.8, cpu=0.1, delayed=0.2), cores=4
    )


def test_shares_of_the_workers_time_do_not_exceed_it() -> None:
    """Lent cores make the mean number of workers a rounded one: busy and waiting, they may have worked for longer."""
    said = diagnose(numbers(wait=0.5, busy=0.9, delayed=0.6, workers=1), cores=8)
    assert "busy 60% of the time and waiting for a core 40% of it" in said


@pytest.mark.parametrize(
    ("cores", "said"),
    [
        (-1.9, "2 workers (1.9 more were lent) on 2 cores"),
        (0.5, "2 workers (0.5 of them borrowed) on 2 cores"),
    ],
)
def test_cores_that_moved_are_mentioned(cores: float, said: str) -> None:
    assert said in diagnose(numbers(wait=0.5, busy=1.0, borrowed_cores=cores), cores=2)
    assert "2 workers on 2 cores" in diagnose(numbers(wait=0.5, busy=1.0, borrowed_cores=cores / 20), cores=2)


def test_the_rank_that_holds_up_the_others_comes_before_remote_workers() -> None:
    last = {"ranks": [1], "share": 0.5, "why": "single samples", "cores": 2.0, "other_cores": 2.0}
    stats = numbers(wait=0.9, busy=1.0, samples=800, wait_s=9.0)
    said = diagnose(
        {**stats, "gpu": None, "sample_bytes": 1, "node": {"slowest": last}}, cores=2, link_bytes_s=1e9
    )
    assert 0 < said.index("Rank 1 holds up the others") < said.index("remote")


def test_a_gpu_is_offered_only_where_there_is_one_and_reuse_only_where_it_is_off() -> None:
    stats = numbers(wait=0.5, busy=1.0)
    assert "Cheaper samples, reuse or more CPUs" in diagnose(stats, cores=2)
    assert "Cheaper samples, reuse, the GPU (gpu_prep) or more CPUs" in diagnose(stats, cores=2, gpu=True)
    assert "Cheaper samples or more CPUs" in diagnose({**stats, "reuse": {"times": 2}}, cores=2)


def test_cheap_samples_are_not_told_to_look_for_slow_ones() -> None:
    said = diagnose(numbers(wait=0.9, busy=0.01, batches=5000), cores=2)
    assert "Larger batches or num_workers=0 would help" in said


def test_start_up_of_each_epoch_is_mentioned_where_it_takes_long() -> None:
    said = diagnose(numbers(wait=0.0, busy=0.5, first_wait_s=1.2, first_share=0.3), cores=2)
    assert said == (
        "Training does not wait for data. The first batch of a later epoch takes 1.2 s, 30% of the time: persistent_workers=True "
        "keeps the workers between epochs."
    )


def test_batches_that_are_ready_and_small_are_no_wait() -> None:
    said = diagnose(numbers(wait=0.0, busy=0.1, handover_s=2.0), cores=2)
    assert said.startswith("Training does not wait for data. Taking a batch that is ready is 20% of the time")


def test_workers_of_torch_are_not_measured() -> None:
    assert "not measured" in diagnose(numbers(wait=0.5, busy=0.0), cores=2)


def test_a_loop_that_runs_ahead_of_a_busy_device_does_not_wait_for_data() -> None:
    """The same run by two clocks: its loop stands in next() for 30 % of the time, its device is idle for 1 %."""
    assert "predicted to" in diagnose(numbers(wait=0.30, busy=0.87, workers=12), cores=16)
    assert diagnose(numbers(wait=0.01, busy=0.87, workers=12), cores=16) == KEEPS_UP


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
    assert diagnose({**numbers(wait=0.5), "batches": 10, "recent": {"batches": 9}}, cores=4) == (
        "only 9 batches of a steady run so far; a diagnosis needs 10."
    )
    assert "nothing is measured" in diagnose(numbers(wait=0.5, engine="torch"), cores=4)


@pytest.mark.parametrize("workers", [1, 2, 5, 8, 16])
@pytest.mark.parametrize("wait", [0.02, 0.3, 0.99, 1.0])
@pytest.mark.parametrize("busy", [0.0, 0.5, 0.95, 1.0])
def test_any_numbers_make_a_sentence(workers: int, wait: float, busy: float) -> None:
    said = diagnose(numbers(wait=wait, busy=busy, workers=workers), cores=8)
    assert said.endswith(".")
    assert " 0 more" not in said
    assert "-" not in said
