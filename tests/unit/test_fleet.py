"""The rules of the gateway's actors and children, without Ray."""

from __future__ import annotations

import pytest

from penstock.remote.fleet import (
    STABLE_S,
    ActorLost,
    Announce,
    Answered,
    Arrived,
    Complain,
    ComplainOfQueue,
    Create,
    Destroy,
    Ended,
    Fleet,
    FleetTick,
    Retract,
    StartChild,
    Want,
    next_due_s,
    on_event,
)


def running(workers: int = 1, **rules: int) -> Fleet:
    """Return a fleet whose workers all run since 0 s."""
    fleet = Fleet(**rules)
    on_event(fleet, Want(workers), 0.0)
    for slot in range(workers):
        on_event(fleet, Arrived(slot, f"node{slot}"), 0.0)
        on_event(fleet, Answered(slot), 0.0)
    return fleet


def test_a_worker_is_an_actor_and_then_a_child_and_then_announced() -> None:
    fleet = Fleet()
    assert on_event(fleet, Want(1), 0.0) == [Create(0)]
    assert on_event(fleet, Arrived(0, "here"), 1.0) == [StartChild(0)]
    assert on_event(fleet, Answered(0), 2.0) == [Announce(0, 0)]
    assert fleet.counts() == {
        "wanted": 1,
        "given_up": 0,
        "queued": 0,
        "starting": 0,
        "running": 1,
        "paused": 0,
    }


def test_more_are_created_and_the_youngest_go_first() -> None:
    fleet = running(2)
    assert on_event(fleet, Want(3), 1.0) == [Create(2)]
    assert on_event(fleet, Want(1), 2.0) == [Destroy(2), Retract(1, "it is no longer wanted"), Destroy(1)]
    assert on_event(fleet, Want(1), 3.0) == []


def test_those_that_do_not_run_yet_go_before_those_that_do() -> None:
    fleet = Fleet()
    on_event(fleet, Want(2), 0.0)
    on_event(fleet, Arrived(1, "here"), 0.0)
    on_event(fleet, Answered(1), 0.0)
    assert on_event(fleet, Want(1), 1.0) == [Destroy(0)]


def test_a_child_that_ended_is_started_again_under_a_new_id_after_a_pause_that_doubles() -> None:
    fleet = running(pause_s=1)
    assert on_event(fleet, Ended(0, "crash"), 5.0) == [Retract(0, "crash")]
    assert next_due_s(fleet) == 6.0
    assert on_event(fleet, FleetTick(), 5.9) == []
    assert on_event(fleet, FleetTick(), 6.0) == [StartChild(0)]
    assert on_event(fleet, Answered(0), 6.0) == [Announce(1, 0)]
    on_event(fleet, Ended(0, "crash"), 7.0)
    assert next_due_s(fleet) == 9.0


def test_a_child_that_served_its_client_is_started_again_at_once() -> None:
    fleet = running()
    on_event(fleet, Ended(0, "done", in_order=True), 5.0)
    assert on_event(fleet, FleetTick(), 5.0) == [StartChild(0)]
    assert fleet.slots[0].failures == 0


def test_a_lost_actor_is_created_again_under_a_new_number() -> None:
    fleet = running(pause_s=1)
    assert on_event(fleet, ActorLost(0, "node died"), 5.0) == [Retract(0, "node died"), Destroy(0)]
    assert on_event(fleet, FleetTick(), 6.0) == [Create(1)]


def test_what_a_dead_actor_says_is_not_heard() -> None:
    fleet = running(pause_s=1)
    on_event(fleet, ActorLost(0, "node died"), 5.0)
    on_event(fleet, FleetTick(), 6.0)
    for late in (Arrived(0, "here"), Answered(0), Ended(0, "late"), ActorLost(0, "late")):
        assert on_event(fleet, late, 7.0) == []


def test_failures_in_a_row_are_the_end_until_the_client_wants_anew() -> None:
    fleet = running(max_failures=2, pause_s=1)
    on_event(fleet, Ended(0, "crash"), 1.0)
    on_event(fleet, FleetTick(), 2.0)
    given_up = on_event(fleet, Ended(0, "crash"), 3.0)
    assert given_up[0] == Destroy(0)
    assert isinstance(given_up[1], Complain)
    assert "on node0 failed 2 times in a row" in given_up[1].text
    assert "crash" in given_up[1].text
    assert on_event(fleet, FleetTick(), 100.0) == []
    assert next_due_s(fleet) is None
    assert on_event(fleet, Want(1), 101.0) == [Create(1)]


def test_a_long_life_starts_a_new_row() -> None:
    fleet = running(max_failures=2, pause_s=1)
    at_s = 0.0
    for _ in range(5):
        at_s += STABLE_S
        assert on_event(fleet, Ended(0, "crash"), at_s)[0] == Retract(fleet.next_worker - 1, "crash")
        at_s += 1.0
        assert on_event(fleet, FleetTick(), at_s) == [StartChild(0)]
        on_event(fleet, Answered(0), at_s)


@pytest.mark.parametrize("again", [True, False])
def test_a_queue_is_told_once_and_again_when_it_was_empty_meanwhile(again: bool) -> None:
    fleet = Fleet(patience_s=10)
    on_event(fleet, Want(2), 0.0)
    assert next_due_s(fleet) == 10.0
    assert on_event(fleet, FleetTick(), 10.0) == [ComplainOfQueue(2)]
    assert on_event(fleet, FleetTick(), 11.0) == []
    if again:
        for slot in range(2):
            on_event(fleet, Arrived(slot, "here"), 12.0)
        on_event(fleet, FleetTick(), 12.0)
    on_event(fleet, Want(3), 13.0)
    assert on_event(fleet, FleetTick(), 23.0) == ([ComplainOfQueue(1)] if again else [])
