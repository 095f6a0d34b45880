"""Offloading over random machines: never worse than local workers alone, and nearly as good as the best fixed share."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.policy.offload import (
    Decision,
    Metrics,
    PlanMetrics,
    decide,
    share_of,
    workers_needed,
    worth_asking,
)
from tests.conftest import FULL
from tests.offload_plant import Plant, refined

rates = st.floats(0.1, 1e5)
costs = st.floats(1e-6, 10.0)


@st.composite
def plans(draw: st.DrawFn) -> PlanMetrics:
    return PlanMetrics(
        name=draw(st.sampled_from("abc")), remote=draw(st.just(0.0) | rates), handling_s=draw(costs)
    )


@st.composite
def profiles(draw: st.DrawFn, most: int = 3) -> Metrics:
    return Metrics(
        training=draw(rates),
        local=draw(rates),
        preparing_s=draw(costs),
        plans=tuple(draw(st.lists(plans(), min_size=1, max_size=most))),
    )


# ---- the decision


@given(metrics=profiles())
def test_a_decision_never_expects_less_than_local_workers_alone_nor_more_than_training_takes(
    metrics: Metrics,
) -> None:
    decision = decide(metrics)
    assert 0.0 <= decision.share <= 1.0
    assert decision.expected >= metrics.local
    assert decision.offload == (decision.share > 0) == bool(decision.plan)
    if decision.offload:
        assert metrics.local < decision.expected <= metrics.training
        assert metrics.training >= 1.1 * metrics.local


@given(metrics=profiles(most=1), faster=st.floats(1.0, 100.0))
def test_a_faster_remote_plan_is_never_expected_to_be_slower(metrics: Metrics, faster: float) -> None:
    plan = metrics.plans[0]
    other = replace(metrics, plans=(replace(plan, remote=plan.remote * faster),))
    assert decide(other).expected >= decide(metrics).expected * (1 - 1e-9)


@given(metrics=profiles(most=1), slower=st.floats(1.0, 100.0))
def test_costlier_handling_is_never_expected_to_be_faster(metrics: Metrics, slower: float) -> None:
    plan = metrics.plans[0]
    if plan.remote * plan.handling_s * slower > metrics.local * metrics.preparing_s:
        return  # no profile shows this: handling would take more than the CPUs here
    other = replace(metrics, plans=(replace(plan, handling_s=plan.handling_s * slower),))
    share = share_of(metrics, plan)
    assert other.expected(other.plans[0], share) <= metrics.expected(plan, share) * (1 + 1e-9)


@given(need=rates, rate=rates, most=st.integers(0, 100))
def test_as_many_workers_as_needed_and_no_more(need: float, rate: float, most: int) -> None:
    workers = workers_needed(need, rate, most)
    assert 0 <= workers <= most
    assert workers == most or workers * rate >= need * (1 - 1e-6)
    assert workers == 0 or (workers - 1) * rate < need


@given(
    training=rates, local=rates, preparing_s=costs, sample=st.floats(1, 1e8), link=st.floats(1, 1e10), most=st.integers(0, 100)
)  # fmt: skip
def test_help_is_asked_for_only_if_it_would_be_worth_it(
    training: float, local: float, preparing_s: float, sample: float, link: float, most: int
) -> None:
    found = worth_asking(
        training=training, local=local, preparing_s=preparing_s, sample_bytes=sample, link_bytes_s=link, most=most
    )  # fmt: skip
    if found is not None:
        assert 1 <= found.workers <= most
        assert 1.1 * local <= found.expected <= training
        assert found.expected <= local + link / sample


# ---- refinement

WINDOWS, CHANGE, TAIL = 800, 350, 200


@st.composite
def plants(draw: st.DrawFn) -> Plant:
    """Local workers prepare 100 samples a second; all else is drawn."""
    cores = draw(st.sampled_from((1.0, 4.0, 16.0)))
    return Plant(
        cores=cores,
        preparing_s=cores / 100,
        handling_s=cores / 100 * draw(st.sampled_from((0.0, 0.02, 0.1, 0.3, 0.7, 1.3))),
        training=100 * draw(st.floats(1.1, 6.0)),
        workers=draw(st.integers(1, 28)),
        worker=draw(st.floats(3.0, 150.0)),
        link=draw(st.sampled_from((3.0, 20.0, 60.0, 150.0, 400.0, 2000.0))),
    )


changes_of = st.dictionaries(
    st.sampled_from(("link", "worker", "training", "cores")),
    st.sampled_from((0.1, 0.4, 0.8, 1.3, 3.0)),
    max_size=2,
)
first_shares = st.none() | st.floats(0.02, 1.0)


@settings(max_examples=40 if not FULL else 2000)
@given(
    plant=plants(),
    drift=changes_of,
    first=first_shares,
    noise=st.floats(0.0, 0.02),
    seed=st.integers(0, 2**32),
)
def test_refinement_comes_near_the_best_fixed_share_and_does_not_stay_below_local_workers(
    plant: Plant, drift: dict[str, float], first: float | None, noise: float, seed: int
) -> None:
    later = plant.faster(**drift)
    decision = decide(plant.metrics()) if first is None else Decision(True, "all", first, 0.0, "")
    if not decision.offload:
        return
    run = refined(
        lambda at: plant if at < CHANGE else later,
        windows=CHANGE + WINDOWS,
        noise=noise,
        seed=seed,
        decision=decision,
    )
    for now, end in ((plant, CHANGE), (later, CHANGE + WINDOWS)):
        best = now.best()
        assert median(run.held[end - TAIL : end]) >= 0.95 * best
        assert run.mean(end - TAIL, end) >= 0.97 * now.local
        assert run.mean(end - TAIL, end) >= 0.90 * best
