"""The simulator notices what it is there to notice: each test breaks one rule and expects an objection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.core import events as ev
from penstock.core.events import Action, Kind
from penstock.sim import Fault, Scenario, Violation, World, simulate
from penstock.sim.agenda import Agenda, Link
from penstock.sim.agent import FakeAgent
from penstock.sim.memory import FakeMemory, FakeResult, Shape, room_beside

PLAIN = Scenario(seed=1, workers=2, batches=6, batch_size=4)


def test_a_run_is_a_function_of_its_scenario() -> None:
    one, other = (simulate(replace(PLAIN, faults=(Fault(60, "kill", 1),))) for _ in range(2))
    assert (one.agenda.now_s, one.log, one.history) == (other.agenda.now_s, other.log, other.history)


def test_what_is_planned_for_the_same_time_happens_in_the_order_of_planning() -> None:
    agenda, happened = Agenda(), list[str]()
    for name in "abc":
        agenda.after(1.0, happened.append, name)
    while agenda.step():
        pass
    assert (happened, agenda.now_s) == (["a", "b", "c"], 1.0)


def test_messages_of_one_link_keep_their_order_whatever_their_delays() -> None:
    agenda, read = Agenda(), list[int]()
    delays = iter((5.0, 1.0, 3.0))
    link = Link(agenda, lambda: next(delays), read.append)
    for number in range(3):
        link.send(number)
    while agenda.step():
        pass
    assert read == [0, 1, 2]


def test_memory_with_two_owners_is_noticed_when_it_is_given_out() -> None:
    memory = FakeMemory(1 << 16)
    memory.claim("first", "slab 1", 4096, 5000)
    with pytest.raises(Violation, match="still has"):
        memory.claim("second", "slab 2", 8192, 100)


def test_a_torn_result_is_noticed_when_it_is_read() -> None:
    memory = FakeMemory(1 << 16)
    memory.write_result(4096, FakeResult(640, ("a", "b")), 0.5)
    with pytest.raises(Violation, match="torn"):
        memory.read_result(4096)


def test_a_slot_that_two_samples_share_is_noticed() -> None:
    memory, shape = FakeMemory(1 << 16), Shape(0, 1)
    memory.write_slot(0, shape, 4, 1, "mine")
    memory.write_slot(64, shape, 4, 1, "yours")
    assert memory.read_slot(0, shape, 4, 1) == {"mine", "yours"}


def test_the_room_beside_what_is_taken_is_the_longest_gap() -> None:
    assert room_beside([(10, 20), (15, 30), (70, 80)], 0, 100) == 40


def meddled(change: Callable[[Action], list[Action]], scenario: Scenario = PLAIN) -> World:
    """Play with a driver that changes what the core says on its way."""

    class Meddling(FakeAgent):
        def perform(self, action: Action, beside: list[tuple[int, int]]) -> None:
            for one in change(action):
                super().perform(one, beside)

    return World(scenario, agent_type=Meddling).run()


def without(kind: type[Action]) -> Callable[[Action], list[Action]]:
    return lambda action: [] if isinstance(action, kind) else [action]


def test_a_driver_that_changes_nothing_breaks_no_rule() -> None:
    assert len(meddled(lambda action: [action]).log) == PLAIN.batches


def test_a_batch_delivered_twice_is_noticed() -> None:
    with pytest.raises(Violation, match="delivered twice"):
        meddled(lambda action: [action] * (1 + isinstance(action, ev.Deliver)))


def test_a_batch_that_is_never_delivered_is_noticed() -> None:
    with pytest.raises(Violation, match="no batch for"):
        meddled(without(ev.Deliver))


def test_a_batch_in_the_place_of_another_is_noticed() -> None:
    def misplaced(action: Action) -> list[Action]:
        return [action._replace(offset=4096) if isinstance(action, ev.Deliver) else action]

    with pytest.raises(Violation, match="still has"):
        meddled(misplaced, replace(PLAIN, keeps=4))


def test_a_worker_that_is_not_started_again_is_noticed() -> None:
    with pytest.raises(Violation, match="no batch for"):
        meddled(without(ev.Start), replace(PLAIN, workers=1, faults=(Fault(40, "kill"),)))


def test_a_cancelled_task_that_its_worker_never_hears_of_is_noticed() -> None:
    tight = replace(PLAIN, seed=4, kind=Kind.WHOLE, window=8, limit_bytes=1 << 13, train_s=0.5, keeps=2)
    scenario = replace(tight, aborts=(0,))
    assert meddled(lambda action: [action], scenario)
    with pytest.raises(Violation, match="are left"):
        meddled(without(ev.Cancel), scenario)


@pytest.mark.parametrize("kind", [Kind.SLOTS, Kind.PARTS, Kind.WHOLE])
def test_an_agent_may_die_at_every_step_of_a_run(kind: Kind) -> None:
    scenario = replace(PLAIN, kind=kind, batches=3)
    for step in range(0, simulate(scenario).agenda.steps, 3):
        simulate(replace(scenario, faults=(Fault(step, "agent"),)))


@pytest.mark.parametrize("kind", [Kind.SLOTS, Kind.PARTS, Kind.WHOLE])
def test_a_worker_may_die_at_every_step_of_a_run(kind: Kind) -> None:
    scenario = replace(PLAIN, kind=kind, batches=3)
    for step in range(0, simulate(scenario).agenda.steps, 2):
        simulate(replace(scenario, faults=(Fault(step, "kill", step),)), audits=True)


def test_a_training_process_may_be_restored_at_every_step_with_other_workers() -> None:
    for step in range(0, simulate(PLAIN).agenda.steps, 5):
        simulate(replace(PLAIN, faults=(Fault(step, "restore", step),)))
