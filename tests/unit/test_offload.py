"""The offloading decision on the paper's cases, and how much the search in mid-training corrects it."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import NamedTuple

import pytest

from penstock.policy.offload import (
    Decision,
    Metrics,
    PlanMetrics,
    decide,
    workers_needed,
    worth_asking,
)
from penstock.policy.refinement import Observed, Profiled, after_window, gained, refinement
from tests.offload_plant import Plant, refined

# ---- the decision


def profile(*, training: float, remote: float, handling: float = 0.05) -> Metrics:
    """Local workers prepare 100 samples a second, on 7 cores."""
    plan = PlanMetrics(name="read there", remote=remote, handling_s=handling * 0.07)
    return Metrics(training=training, local=100.0, preparing_s=0.07, plans=(plan,))


def test_without_a_stall_nothing_is_offloaded() -> None:
    decision = decide(profile(training=109.0, remote=1000.0))
    assert decision[:4] == (False, "", 0.0, 100.0)
    assert decision.reason == "no offloading: training could be 1.09x as fast, less than 1.1x"


def test_equal_local_and_remote_cpus_share_a_compute_bound_job_half_and_half() -> None:
    """Figure 9a, 7:7: offloading half is best for Speaker Recognition, whose stall is about 80 %."""
    decision = decide(profile(training=500.0, remote=100.0))
    assert decision.share == pytest.approx(0.5)
    assert decision.expected == pytest.approx(200 / 1.05)


def test_three_times_as_many_remote_cpus_do_about_four_fifths() -> None:
    """Figure 9a, 7:21: 80 %. Without counting what handling costs it would be 75 %."""
    assert decide(profile(training=500.0, remote=300.0)).share == pytest.approx(300 / 385)


def test_where_handling_takes_most_of_the_cpus_here_nearly_all_is_offloaded() -> None:
    """Eight workers behind a fast link beside one core: by the paper's share, 87 %, that core has twice as much to do as it can."""
    plan = PlanMetrics(name="cut", remote=4764.0, handling_s=0.12 * 0.00142)
    metrics = Metrics(training=1e5, local=707.0, preparing_s=0.00142, plans=(plan,))
    decision = decide(metrics)
    assert decision.share == pytest.approx(0.972, abs=0.001)
    assert decision.expected > 1.5 * metrics.expected(plan, 0.87)


def test_a_slow_link_leaves_a_small_share() -> None:
    decision = decide(profile(training=300.0, remote=8.0))
    assert decision.share == pytest.approx(8 / 108)
    assert 100.0 < decision.expected < 108.0


def test_all_is_offloaded_if_remote_workers_alone_keep_up_with_training() -> None:
    decision = decide(profile(training=150.0, remote=150.0))
    assert (decision.share, decision.expected) == (1.0, 150.0)


def test_remote_workers_that_end_the_wait_get_all_that_they_can_do() -> None:
    assert decide(profile(training=200.0, remote=150.0)).share == pytest.approx(0.75)


def test_samples_that_cost_more_to_handle_than_to_prepare_stay_here() -> None:
    decision = decide(profile(training=500.0, remote=80.0, handling=1.2))
    assert not decision.offload
    assert decision.reason == (
        "no offloading: no plan is 5% faster than 100 samples/s (read there: 80/s remotely, 1.2 of a sample's CPU time to handle)"
    )


def test_a_local_disk_that_is_the_limit_does_not_forbid_costly_handling() -> None:
    """Preparing costs little CPU here, but waits for reads: that handling costs more CPU does not matter."""
    plan = PlanMetrics(name="read there", remote=800.0, handling_s=0.0012)
    decision = decide(Metrics(training=1000.0, local=100.0, preparing_s=0.001, plans=(plan,)))
    assert decision.offload
    assert decision.expected > 700.0


def test_without_plans_nothing_is_offloaded() -> None:
    metrics = replace(profile(training=500.0, remote=1.0), plans=())
    assert "there is none" in decide(metrics).reason


LINK_PLANS = ((20e6, "read there"), (60e6, "read there"), (100e6, "batch there"), (1e9, "batch there"))


@pytest.mark.parametrize(("link_bytes_s", "winner"), LINK_PLANS)
def test_the_winning_plan_changes_with_the_link(link_bytes_s: float, winner: str) -> None:
    """Figure 8: sending raw bytes there and decoded samples back loses; elements need less of a slow link than whole
    batches, padded to the longest; on a fast one batches are cheaper to handle."""
    sizes = {"send there": (700e3, 0.012), "read there": (400e3, 0.008), "batch there": (600e3, 0.002)}
    plans = tuple(
        PlanMetrics(name=name, remote=min(150.0, link_bytes_s / size), handling_s=handling_s)
        for name, (size, handling_s) in sizes.items()
    )
    decision = decide(Metrics(training=500.0, local=100.0, preparing_s=0.07, plans=plans))
    assert decision.plan == winner


def test_the_reason_has_its_numbers() -> None:
    reason = decide(profile(training=200.0, remote=150.0)).reason
    assert reason == (
        "offload 75% by read there: 100 samples/s here, 150 there, handling costs 0.05 of preparing; expect 200 of 200"
    )


def test_a_profile_without_rates_is_refused() -> None:
    with pytest.raises(ValueError, match="must be > 0"):
        profile(training=0.0, remote=1.0)
    with pytest.raises(ValueError, match="must be >= 0"):
        profile(training=1.0, remote=-1.0)


# ---- numbers of workers and bytes


@pytest.mark.parametrize(
    ("need", "rate", "most", "workers"),
    [(100.0, 25.0, 28, 4), (101.0, 25.0, 28, 5), (100.0, 25.0, 3, 3), (0.0, 25.0, 3, 0), (5.0, 0.0, 3, 0)],
)
def test_workers_needed(need: float, rate: float, most: int, workers: int) -> None:
    assert workers_needed(need, rate, most) == workers


def test_remote_workers_are_advised_until_training_is_the_limit() -> None:
    found = worth_asking(
        training=200.0, local=100.0, preparing_s=0.07, sample_bytes=150e3, link_bytes_s=1e9, most=28
    )
    assert found is not None
    assert (found.workers, found.expected, found.limit) == (7, 200.0, "training")


def test_remote_workers_are_advised_until_the_link_is_the_limit() -> None:
    found = worth_asking(
        training=500.0, local=100.0, preparing_s=0.07, sample_bytes=500e3, link_bytes_s=20e6, most=28
    )
    assert found is not None
    assert (found.workers, found.limit) == (3, "link")
    assert found.expected == pytest.approx(139.7, abs=0.1)


@pytest.mark.parametrize(
    "change",
    [{"training": 105.0}, {"link_bytes_s": 1e6}, {"preparing_s": 1e-4}, {"most": 0}],
    ids=lambda change: next(iter(change)),
)
def test_no_remote_workers_are_advised_that_would_not_help(change: dict[str, float]) -> None:
    fine = {
        "training": 200.0, "local": 100.0, "preparing_s": 0.07, "sample_bytes": 150e3, "link_bytes_s": 1e9, "most": 28
    }  # fmt: skip
    assert worth_asking(**fine) is not None  # type: ignore[arg-type]
    assert worth_asking(**{**fine, **change}) is None  # type: ignore[arg-type]


# ---- refinement


def test_a_gain_must_exceed_the_error() -> None:
    gain, error = gained([100.0, 104.0, 97.0, 101.0], [103.0, 99.0, 106.0, 102.0])
    assert 0.01 < gain < error
    gain, error = gained([100.0, 101.0, 99.0, 100.0], [120.0, 121.0, 119.0, 120.0])
    assert gain == pytest.approx(0.2)
    assert error < 0.02


def test_without_offloading_nothing_is_ever_tried() -> None:
    run = refined(lambda _: Plant(training=105.0), windows=500)
    assert {setting.share for setting in run.settings} == {0.0}


def test_it_begins_with_the_decisions_share_then_measures_local_workers_alone() -> None:
    plant = Plant(training=300.0)
    run = refined(lambda _: plant, windows=10)
    first = decide(plant.metrics()).share
    assert [setting.share for setting in run.settings][:7] == [first] * 5 + [0.0] * 2


@pytest.mark.parametrize(("remote", "is_tried"), [(400.0, True), (150.0, False)])
def test_all_is_offloaded_next_if_remote_workers_alone_were_faster(remote: float, is_tried: bool) -> None:
    """A few local samples may delay every batch, where handling the others keeps the only core here busy."""
    first = Decision(True, "all", 0.93, 0.0, "")
    state = refinement(first, profiled=Profiled(local=100.0, remote=remote, crowded=False))
    for _ in range(5):
        state = after_window(state, Observed(300.0))
    assert (state.rival is not None and state.rival.share == 1.0) == is_tried


def test_a_link_that_breaks_down_is_left_and_tried_again_ever_later() -> None:
    good = Plant(training=400.0, workers=8)
    bad = replace(good, link=0.5)
    run = refined(lambda at: good if at < 60 else bad, windows=1500, noise=0.01)
    remote = [at for at, setting in enumerate(run.settings) if setting.share > 0 and at > 80]
    starts = [at for at in remote if at - 1 not in remote]
    assert starts[1] - starts[0] > starts[0] - 60 > 100
    assert len(remote) < 40


def test_a_link_that_comes_back_is_used_again() -> None:
    good = Plant(training=400.0, workers=8)
    bad = replace(good, link=0.5)
    run = refined(lambda at: bad if 200 <= at < 500 else good, windows=1200, noise=0.01)
    assert run.held[480] == pytest.approx(good.local)
    assert run.held[-1] > 0.95 * good.best()


def test_a_job_that_does_not_wait_does_not_try_remote_workers_again() -> None:
    state = refinement(decide(Plant(training=300.0).metrics()))
    for _ in range(60):
        state = after_window(state, Observed(100.0 if state.setting.is_local else 20.0))
    assert state.held.is_local
    for _ in range(1000):
        state = after_window(state, Observed(100.0, waits=False))
        assert state.setting.is_local


def test_more_workers_are_taken_if_they_help_and_fewer_if_they_are_in_each_others_way() -> None:
    few = refined(lambda _: Plant(training=900.0, workers=2, worker=30.0), windows=400, most=12)
    assert few.end.held.workers == 12
    crowded = Plant(training=900.0, workers=12, worker=30.0, crowding=0.07)
    many = refined(lambda _: crowded, windows=400, most=12)
    assert crowded.rate(*many.end.held) > 0.95 * crowded.best(range(1, 13))


def test_local_workers_that_lack_work_question_the_share() -> None:
    """Remote workers are the limit, so the total does not show that local ones became three times as fast."""
    slow = Plant(training=1000.0, workers=2)
    run = refined(lambda at: slow if at < 60 else slow.faster(cores=3.0), windows=120, noise=0.01)
    assert run.held[-1] > 0.95 * slow.faster(cores=3.0).best()


# ---- the paper's rule alone, and refined, against the best fixed share


class Row(NamedTuple):
    """A workload of the paper's kind on one machine. Numbers are per rank."""

    name: str
    plant: Plant
    measured: float = 1.0
    """Factor by which the profile misjudged the remote rate: another job used the link then, or uses it now."""


def row(
    name: str, *, stall: float, sample_ms: float, sample_kb: float, handling: float = 0.05, workers: int = 7, link_gbit: float = 20.0,
    ranks: int = 1, crowding: float = 0.0, measured: float = 1.0,
) -> Row:  # fmt: skip
    """7 local CPUs per rank; ranks share the remote workers and the link."""
    preparing_s = sample_ms / 1000
    plant = Plant(
        cores=7.0,
        preparing_s=preparing_s,
        handling_s=handling * preparing_s,
        training=7.0 / preparing_s / (1.0 - stall),
        worker=1.0 / preparing_s,
        workers=max(1, workers // ranks),
        link=link_gbit * 1e9 / 8 / (sample_kb * 1e3) / ranks,
        crowding=crowding,
    )
    return Row(name, plant, measured)


TABLE = (
    row("speaker, compute-bound, 7:7", stall=0.80, sample_ms=12, sample_kb=64),
    row("speaker, compute-bound, 7:21", stall=0.80, sample_ms=12, sample_kb=64, workers=21),
    row("speaker, compute-bound, 7:28", stall=0.80, sample_ms=12, sample_kb=64, workers=28),
    row("speaker, 28 crowded workers", stall=0.80, sample_ms=12, sample_kb=64, workers=28, crowding=0.02),
    row("transformer ASR, transfer-bound, 20 Gbit/s", stall=0.65, sample_ms=25, sample_kb=900, handling=0.15, workers=14),
    row("transformer ASR, transfer-bound, 1 Gbit/s", stall=0.65, sample_ms=25, sample_kb=900, handling=0.15, workers=28, link_gbit=1.0),
    row("transformer ASR, 0.1 Gbit/s", stall=0.65, sample_ms=25, sample_kb=900, handling=0.15, workers=28, link_gbit=0.1),
    row("learnable resizer, large samples, 1 Gbit/s", stall=0.50, sample_ms=10, sample_kb=1080, handling=0.30, link_gbit=1.0),
    row("GAN ADA, small stall", stall=0.30, sample_ms=14, sample_kb=200),
    row("MelGAN, no stall", stall=0.03, sample_ms=5, sample_kb=100),
    row("RandAugment, two ranks, 28 workers", stall=0.60, sample_ms=9, sample_kb=150, workers=28, ranks=2),
    row("RandAugment, two ranks, one worker each", stall=0.60, sample_ms=9, sample_kb=150, workers=2, ranks=2),
    row("one remote worker", stall=0.60, sample_ms=9, sample_kb=150, workers=1),
    row("cheap samples, handling costs 0.8", stall=0.60, sample_ms=0.2, sample_kb=3, handling=0.8, workers=14),
    row("cheap samples, handling costs 1.3", stall=0.60, sample_ms=0.2, sample_kb=3, handling=1.3, workers=14),
    row("CTC ASR, link busy since the profile", stall=0.65, sample_ms=20, sample_kb=400, workers=14, link_gbit=0.4, measured=8.0),
    row("CTC ASR, link busy in the profile", stall=0.65, sample_ms=20, sample_kb=400, workers=14, measured=0.1),
    row("speaker, two ranks, profile 3x too fast", stall=0.80, sample_ms=12, sample_kb=64, workers=14, ranks=2, measured=3.0),
)  # fmt: skip
WINDOWS, NOISE, SEEDS, TAIL = 600, 0.02, range(3), 300


def compared(entry: Row, seed: int = 0) -> tuple[float, float, float]:
    """Of the best fixed share: local workers alone, the paper's rule alone, and refined (with all that it tries)."""
    plant, metrics = entry.plant, entry.plant.metrics()
    plan = metrics.plans[0]
    decision = decide(replace(metrics, plans=(replace(plan, remote=plan.remote * entry.measured),)))
    run = refined(lambda _: plant, windows=WINDOWS, noise=NOISE, seed=seed, decision=decision)
    best = plant.best()
    assert median(run.held[-TAIL:]) >= 0.95 * best, entry.name
    return plant.local / best, plant.rate(decision.share) / best, run.mean(WINDOWS - TAIL, WINDOWS) / best


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry.name)
def test_refined_reaches_the_best_fixed_share(entry: Row) -> None:
    for seed in SEEDS:
        _, _, by_refinement = compared(entry, seed)
        assert by_refinement >= 0.95, seed


if __name__ == "__main__":
    for each in TABLE:
        found = [compared(each, seed) for seed in SEEDS]
        numbers = [sum(one[at] for one in found) / len(found) for at in range(3)]
        print(f"{each.name:48}" + "".join(f"{number:8.3f}" for number in numbers))
