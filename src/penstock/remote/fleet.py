"""Which actors and children the gateway keeps: events in, actions out; no clock, no Ray.

Rule 1: a slot is one actor. Its number is never used again, so what a dead actor still says matches no slot.
Rule 2: a worker is one child process of an actor, with its own key. Its id is never used again.
Rule 3: a child that ended is started again in its actor, a lost actor is created again: each after a pause that doubles.
Rule 4: `max_failures` in a row are the end of a slot, until the client says anew how many it wants. A child that worked for
        `STABLE_S`, or ended in order, starts a new row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

STABLE_S = 30.0
LONGEST_PAUSE_S = 30.0


class Phase(StrEnum):
    """Where a slot is on its way."""

    QUEUED = "queued"
    """Ray has not started its actor yet."""
    STARTING = "starting"
    """Its child has not said its port yet."""
    RUNNING = "running"
    PAUSED = "paused"
    """Waits to try again."""


@dataclass(slots=True)
class Slot:
    """One actor and what became of it."""

    number: int
    phase: Phase
    since_s: float
    failures: int = 0
    worker: int | None = None
    node: str = ""
    has_actor: bool = True
    due_s: float = 0.0


@dataclass(slots=True)
class Fleet:
    """All slots, and how many the client wants."""

    max_failures: int = 5
    pause_s: float = 0.5
    patience_s: float = 10.0
    """Time an actor may be queued before the client is told."""
    wanted: int = 0
    spent: int = 0
    """Slots given up (Rule 4)."""
    slots: dict[int, Slot] = field(default_factory=dict)
    next_slot: int = 0
    next_worker: int = 0
    told_of_queue_s: float | None = None

    def counts(self) -> dict[str, int]:
        """Return how many slots are in each phase, for the client."""
        found = {"wanted": self.wanted, "given_up": self.spent}
        for phase in Phase:
            found[phase.value] = sum(slot.phase == phase for slot in self.slots.values())
        return found


@dataclass(frozen=True, slots=True)
class Want:
    """The client wants so many workers from now on."""

    workers: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """Ray has started the actor of a slot, on this node."""

    slot: int
    node: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The child of a slot listens."""

    slot: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The child of a slot ended or never answered; its actor is well."""

    slot: int
    why: str
    in_order: bool = False


@dataclass(frozen=True, slots=True)
class ActorLost:
    """The actor of a slot is gone, or is of no use where it is."""

    slot: int
    why: str


@dataclass(frozen=True, slots=True)
class FleetTick:
    """Time has passed."""


Event = Want | Arrived | Answered | Ended | ActorLost | FleetTick


@dataclass(frozen=True, slots=True)
class Create:
    """Ask Ray for an actor."""

    slot: int


@dataclass(frozen=True, slots=True)
class StartChild:
    """Let an actor start a child, with a fresh key."""

    slot: int


@dataclass(frozen=True, slots=True)
class Destroy:
    """End an actor and its child."""

    slot: int


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell the client of a worker."""

    worker: int
    slot: int


@dataclass(frozen=True, slots=True)
class Retract:
    """Tell the client that a worker is gone."""

    worker: int
    why: str


@dataclass(frozen=True, slots=True)
class Complain:
    """Tell the client what is wrong."""

    text: str


@dataclass(frozen=True, slots=True)
class ComplainOfQueue:
    """Tell the client that Ray does not start these actors."""

    slots: int


Action = Create | StartChild | Destroy | Announce | Retract | Complain | ComplainOfQueue


def on_event(fleet: Fleet, event: Event, at_s: float) -> list[Action]:
    """Advance `fleet` and say what the gateway must do."""
    match event:
        case Want(workers):
            return _want(fleet, workers, at_s)
        case FleetTick():
            return _tick(fleet, at_s)
    slot = fleet.slots.get(event.slot)
    if slot is None:
        return []
    match event:
        case Arrived(node=node):
            slot.node, slot.phase, slot.since_s = node, Phase.STARTING, at_s
            return [StartChild(slot.number)]
        case Answered():
            slot.worker, slot.phase, slot.since_s = fleet.next_worker, Phase.RUNNING, at_s
            fleet.next_worker += 1
            return [Announce(slot.worker, slot.number)]
        case Ended(why=why, in_order=in_order):
            return _ended(fleet, slot, why, at_s, in_order=in_order)
        case ActorLost(why=why):
            return _lost(fleet, slot, why, at_s)


def next_due_s(fleet: Fleet) -> float | None:
    """Return when a `FleetTick` is due next."""
    due = [slot.due_s for slot in fleet.slots.values() if slot.phase == Phase.PAUSED]
    if fleet.told_of_queue_s is None:
        due += [
            slot.since_s + fleet.patience_s for slot in fleet.slots.values() if slot.phase == Phase.QUEUED
        ]
    return min(due, default=None)


def _want(fleet: Fleet, workers: int, at_s: float) -> list[Action]:
    fleet.wanted, fleet.spent = workers, 0
    surplus = len(fleet.slots) - workers
    if surplus <= 0:
        return [_create(fleet, at_s) for _ in range(-surplus)]
    # Those that do nothing yet go first, then the youngest.
    order = sorted(fleet.slots.values(), key=lambda slot: (slot.phase == Phase.RUNNING, -slot.number))
    actions: list[Action] = []
    for slot in order[:surplus]:
        actions += _retract(slot, "it is no longer wanted")
        actions += _remove(fleet, slot)
    return actions


def _tick(fleet: Fleet, at_s: float) -> list[Action]:
    actions: list[Action] = []
    for slot in list(fleet.slots.values()):
        if slot.phase == Phase.PAUSED and slot.due_s <= at_s:
            slot.since_s = at_s
            if slot.has_actor:
                slot.phase = Phase.STARTING
                actions.append(StartChild(slot.number))
            else:
                del fleet.slots[slot.number]
                actions.append(_create(fleet, at_s, slot.failures))
    queued = [slot.since_s for slot in fleet.slots.values() if slot.phase == Phase.QUEUED]
    if not queued:
        fleet.told_of_queue_s = None
    elif fleet.told_of_queue_s is None and min(queued) + fleet.patience_s <= at_s:
        fleet.told_of_queue_s = at_s
        actions.append(ComplainOfQueue(len(queued)))
    return actions


def _create(fleet: Fleet, at_s: float, failures: int = 0) -> Create:
    slot = Slot(fleet.next_slot, Phase.QUEUED, at_s, failures)
    fleet.slots[slot.number] = slot
    fleet.next_slot += 1
    return Create(slot.number)


def _ended(fleet: Fleet, slot: Slot, why: str, at_s: float, *, in_order: bool) -> list[Action]:
    actions = _retract(slot, why)
    stable = slot.phase == Phase.RUNNING and at_s - slot.since_s >= STABLE_S
    slot.failures = 0 if in_order else 1 if stable else slot.failures + 1
    if slot.failures >= fleet.max_failures:
        return actions + _give_up(fleet, slot, why)
    slot.phase, slot.due_s = Phase.PAUSED, at_s + _pause_s(fleet, slot)
    return actions


def _lost(fleet: Fleet, slot: Slot, why: str, at_s: float) -> list[Action]:
    ended = _ended(fleet, slot, why, at_s, in_order=False)
    if slot.number not in fleet.slots:
        return ended
    slot.has_actor = False
    return [*ended, Destroy(slot.number)]


def _give_up(fleet: Fleet, slot: Slot, why: str) -> list[Action]:
    fleet.spent += 1
    text = (
        f"a remote worker{f' on {slot.node}' if slot.node else ''} failed {slot.failures} times in a row and is not started "
        f"again until the number of workers changes; the last time: {why}"
    )
    return [*_remove(fleet, slot), Complain(text)]


def _retract(slot: Slot, why: str) -> list[Action]:
    worker, slot.worker = slot.worker, None
    return [] if worker is None else [Retract(worker, why)]


def _remove(fleet: Fleet, slot: Slot) -> list[Action]:
    del fleet.slots[slot.number]
    return [Destroy(slot.number)] if slot.has_actor else []


def _pause_s(fleet: Fleet, slot: Slot) -> float:
    return min(LONGEST_PAUSE_S, fleet.pause_s * 2.0 ** max(0, slot.failures - 1)) if slot.failures else 0.0
