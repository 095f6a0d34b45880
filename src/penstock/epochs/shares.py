"""Places of an iterable dataset's workers, in memory and in a checkpoint.

Each worker has a share of the data, and shares may differ in length. So a checkpoint holds, for each worker, its delivered batches and the
state of its dataset and iterator at that point. Workers take turns, without those that have ended, so the last worker's number says whose
turn it is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import StateError
from penstock.wire.pickles import dumps_local, loads
from penstock.worker.streaming import StreamPlace, check_saved

OWN = ("dataset", "iterator", "itself")
"""Parts of a worker's entry that come from the dataset."""


@dataclass(slots=True)
class Told:
    """What workers report apart from batches."""

    started: dict[int, StreamPlace] = field(default_factory=dict)
    """Each worker's start of the epoch."""
    ended: dict[int, StreamPlace] = field(default_factory=dict)
    """Each worker's start of the next epoch."""

    def clear(self) -> None:
        self.started.clear()
        self.ended.clear()


@dataclass(slots=True)
class Shares:
    """Places of all workers, by batches delivered (or taken, if the owner counts so)."""

    workers: int = 1
    places: dict[int, StreamPlace] = field(default_factory=dict)
    last: int = -1
    """The worker of the last batch."""

    @property
    def next(self) -> int:
        """The worker whose turn it is."""
        return (self.last + 1) % self.workers

    @property
    def batches(self) -> int:
        return sum(place.batches for place in self.places.values())

    def advance(self, worker: int, place: StreamPlace) -> None:
        """Note a worker's new place; idempotent."""
        self.places[worker] = place.after(self.places.get(worker))
        self.last = worker

    def to_skip(self) -> int:
        """Return how many batches are prepared again because the dataset has no state."""
        return sum(place.since for place in self.places.values() if place.snapshot is None)


@dataclass(slots=True)
class Delivered:
    """The shares of one run, by delivered batches."""

    shares: Shares = field(default_factory=Shares)
    told: Told = field(default_factory=Told)
    carries: bool = False
    """Whether workers keep their dataset for the next epoch."""
    began: int = 0
    """Batches delivered before this run began."""
    keyed: bool = False
    base_seed: int | None = None
    hear_out: Callable[[], None] = lambda: None
    """Waits until all workers have reported their start."""

    def follow(self, engine: Any, *, carries: bool, base_seed: int | None) -> None:
        """Listen to this engine's workers, without keeping the engine alive."""
        held = weakref.ref(engine)

        def hear_out() -> None:
            engine = held()
            if engine is not None:
                engine.hear_out()

        self.told, self.hear_out, self.carries, self.base_seed = engine.told, hear_out, carries, base_seed

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy without the engine: a loader's copy has none to listen to."""
        return Delivered, (self.shares, self.told, self.carries, self.began, self.keyed, self.base_seed)

    def state(self) -> dict[str, Any]:
        shares, told = self.shares, self.told
        is_first = shares.batches == self.began
        if (is_first or self.carries) and len(told.started) < shares.workers:
            self.hear_out()  # a worker that has not begun yet may carry its dataset's state from the last epoch
        places = told.started | shares.places
        state: dict[str, Any] = {
            "workers": {str(worker): entry_of(places[worker]) for worker in sorted(places)},
            "num_workers": shares.workers,
            "last_worker": shares.last,
            "keyed": self.keyed,
        }
        if self.base_seed is not None and not self.keyed:
            state["base_seed"] = self.base_seed
        return state

    def between(self) -> dict[str, Any]:
        """Return what the next epoch begins with."""
        state: dict[str, Any] = {"keyed": self.keyed}
        ended = self.told.ended if self.carries else {}
        if any(place.snapshot is not None for place in ended.values()):
            state["workers"] = {str(worker): entry_of(ended[worker]) for worker in sorted(ended)}
            state["num_workers"] = self.shares.workers
        return state


def entry_of(place: StreamPlace) -> dict[str, Any]:
    """Return a place as a checkpoint entry. The dataset's part is unpickled anew each time, so nothing is shared."""
    own: dict[str, Any] = loads(place.snapshot) if place.snapshot is not None else {}
    check_saved(own)
    if place.carried:
        own.pop("iterator", None)
        return {"carried": True, **own}
    return {"batches": place.batches, "ended": place.ended, "since": place.since, **own}


def place_of(entry: Mapping[str, Any]) -> StreamPlace:
    """Return the place of a checkpoint entry; an older penstock's entry holds only the dataset's state and `ended`."""
    own = {key: entry[key] for key in OWN if key in entry}
    return StreamPlace(
        batches=entry.get("batches", 0),
        ended=bool(entry.get("ended", False)),
        since=entry.get("since", 0),
        snapshot=dumps_local(own) if own else None,
        carried=bool(entry.get("carried", False)),
    )


def places_of(state: Mapping[str, Any] | None, workers: int) -> Shares:
    """Return the shares of a loaded state for `workers` workers."""
    workers = max(1, workers)
    if state is None or not state.get("workers"):
        return Shares(workers)
    places = {int(worker): place_of(entry) for worker, entry in state["workers"].items()}
    saved = state.get("num_workers", 0)
    if saved == workers or (not saved and max(places) < workers):
        return Shares(workers, places, state.get("last_worker", -1))
    if not any(place.carried or place.batches or place.since for place in places.values()) and saved:
        return Shares(workers)  # nothing delivered yet: any worker count can begin the epoch
    if len(places) == 1 and places[0].carried:
        return Shares(workers, dict.fromkeys(range(workers), places[0]))  # one dataset served all
    raise StateError(
        f"the state holds an iterable dataset's place in {saved or len(places)} workers, this loader has {workers}: "
        f"give it as many workers, since each has its own share of the data"
    )
