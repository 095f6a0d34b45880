"""The core's promises under whatever hypothesis can think of; the simulator judges (see `penstock.sim.world`).

Two ways to be mean: schedules of faults in virtual time, and a machine on which anything that can happen next may happen
next, however long it should have taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.core.events import Kind
from penstock.policy import tasks
from penstock.sim import FakePool, Fault, Scenario, World, simulate
from penstock.sim.audit import audit


@pytest.fixture(autouse=True, scope="module")
def few_samples_make_workers_old() -> Iterator[None]:
    """Or none would ever join others that are, in so few."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tasks, "NEW_SAMPLES", 2)
        patched.setattr(tasks, "OLD_SAMPLES", 6)
        yield


shares = st.sampled_from([0.0, 0.0, 0.0, 0.02, 0.1, 0.5])
map_kinds = st.sampled_from([Kind.SLOTS, Kind.PARTS, Kind.WHOLE])
all_kinds = st.sampled_from([Kind.SLOTS, Kind.PARTS, Kind.WHOLE, Kind.STREAM])
worker_faults = st.sampled_from(["kill", "kill", "freeze", "retire"])
changes = st.sampled_from(["resize", "resize", "resize", "kill", "freeze", "retire"])


pools = st.lists(
    st.builds(
        FakePool,
        st.integers(0, 3),
        st.floats(1, 30),
        st.sampled_from([0.0, 0.001, 0.05, 0.2]),
        st.sampled_from([0.0, 0.5]),
        st.sampled_from([0.0, 0.0, 0.1, 1.0]),
        st.sampled_from([0, 0, 512, 4096]),
    ),
    min_size=1,
    max_size=2,
).map(tuple)
"""Workers that are slower and further away, die, and may owe few bytes."""


def scenarios(kinds: Any = all_kinds, **fixed: Any) -> st.SearchStrategy[Scenario]:
    facts: dict[str, Any] = {
        "seed": st.integers(0, 2**32),
        "kind": kinds,
        "workers": st.integers(1, 8),
        "epochs": st.integers(1, 3),
        "batches": st.integers(1, 8),
        "batch_size": st.integers(1, 9),
        "ragged_sizes": st.booleans(),
        "window": st.integers(1, 8),
        "task_size": st.integers(0, 5),
        "in_order": st.booleans(),
        "limit_bytes": st.sampled_from([1 << 13, 1 << 14, 1 << 15, 1 << 20]),
        "sample_s": st.sampled_from([0.0001, 0.002, 0.03]),
        "keeps": st.integers(1, 4),
        "notice_s": st.sampled_from([0.0, 0.01, 0.5]),
        "slow": shares,
        "odd": shares,
        "texts": st.integers(1, 3),
        "refused": st.booleans(),
        "refers": st.booleans(),
        "collate_keeps": shares,
        "proceeds": st.booleans(),
    }
    return st.builds(Scenario, **{**facts, **fixed})


def faults(names: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[Fault, ...]]:
    one = st.builds(Fault, st.integers(0, 400), names, st.integers(0, 1000))
    return st.lists(one, max_size=8).map(lambda many: tuple(sorted(many)))


@given(scenarios())
def test_every_batch_comes_once_in_order_and_whole_for_any_workers_tasks_and_memory(
    scenario: Scenario,
) -> None:
    simulate(scenario, audits=True)


@given(scenarios(), faults(worker_faults))
def test_no_death_or_stop_of_workers_costs_a_sample(scenario: Scenario, many: tuple[Fault, ...]) -> None:
    simulate(replace(scenario, faults=many), audits=True)


@given(scenarios(map_kinds), faults(changes))
def test_workers_may_come_and_go_at_any_step_and_are_killed_as_they_do(
    scenario: Scenario, many: tuple[Fault, ...]
) -> None:
    simulate(replace(scenario, faults=many), audits=True)


@given(
    scenarios(map_kinds),
    faults(st.sampled_from(["borrow", "borrow", "borrow", "lend", "resize", "kill", "freeze"])),
)
def test_workers_for_borrowed_cores_that_cannot_start_cost_no_sample(
    scenario: Scenario, many: tuple[Fault, ...]
) -> None:
    simulate(replace(scenario, faults=many), audits=True)


@given(scenarios(map_kinds, pools=pools), faults(changes))
def test_unequal_pools_deliver_every_batch_once_in_order_and_whole(
    scenario: Scenario, many: tuple[Fault, ...]
) -> None:
    simulate(replace(scenario, faults=many), audits=True)


@given(
    scenarios(map_kinds, pools=pools),
    faults(st.sampled_from(["share", "share", "share", "resize", "kill", "late", "partition", "outage"])),
)
def test_shares_of_pools_may_change_at_any_step(scenario: Scenario, many: tuple[Fault, ...]) -> None:
    simulate(replace(scenario, faults=many), audits=True)


@given(scenarios(map_kinds), faults(st.sampled_from(["agent", "kill"])))
def test_no_death_of_agents_costs_a_sample(scenario: Scenario, many: tuple[Fault, ...]) -> None:
    simulate(replace(scenario, faults=many))


@given(scenarios(map_kinds), st.integers(0, 400), st.integers(0, 7))
def test_a_run_that_is_killed_anywhere_goes_on_with_any_number_of_workers(
    scenario: Scenario, step: int, workers: int
) -> None:
    simulate(
        replace(scenario, faults=(Fault(step, "restore", workers), Fault(step + 97, "restore", 7 - workers)))
    )


@given(scenarios(map_kinds, fails=shares, kills=shares, collate_fails=shares, skips=st.booleans()))
def test_an_error_is_that_of_the_first_bad_sample_and_of_no_other_batch(scenario: Scenario) -> None:
    simulate(scenario, audits=True)


@given(scenarios(epochs=st.just(3)), st.sets(st.integers(0, 2)))
def test_epochs_that_are_broken_off_leave_nothing_in_the_next(scenario: Scenario, aborts: set[int]) -> None:
    simulate(replace(scenario, aborts=tuple(sorted(aborts))), audits=True)


class AnythingMayHappenNext(RuleBasedStateMachine):
    """Messages keep their order on their way; apart from that, nothing is as fast as it should be."""

    @initialize(
        scenario=scenarios(
            map_kinds,
            workers=st.integers(1, 3),
            epochs=st.integers(1, 2),
            batches=st.integers(1, 4),
            batch_size=st.integers(1, 4),
            fails=shares,
        )
    )
    def begin(self, scenario: Scenario) -> None:
        self.world = World(scenario)

    @rule(which=st.integers(0, 12), times=st.integers(1, 8))
    def go_on(self, which: int, times: int) -> None:
        for _ in range(times):
            if not self.world.trainer.finished:
                self.world.agenda.step_out_of_turn(which)

    @precondition(lambda self: self.world.agent.alive)
    @rule(
        what=st.sampled_from(["kill", "kill", "freeze", "retire", "resize", "resize", "agent", "restore"]),
        which=st.integers(0, 1000),
    )
    def strike(self, what: str, which: int) -> None:
        if not self.world.trainer.finished:
            self.world.strike(Fault(0, what, which))

    @invariant()
    def the_books_agree(self) -> None:
        if hasattr(self, "world"):
            audit(self.world.agent.state)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.progress_s = self.world.agenda.now_s
            self.world.run()


AnythingMayHappenNext.TestCase.settings = settings(
    max_examples=settings.default.max_examples // 2, stateful_step_count=60
)
TestAnythingMayHappenNext = AnythingMayHappenNext.TestCase
