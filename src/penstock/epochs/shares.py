"""Where the workers of an iterable dataset stand, in memory and in a checkpoint.

Each worker has a share of the data, and shares may differ in length. So a checkpoint says of each worker how many batches of
its were delivered, and what its dataset and iterator said of themselves then. Workers take turns and pass over those that have
ended, so the number of the last one says whose turn it is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import StateError
from penstock.wire.pickles import dumps_local, loads
from penstock.worker.streaming import Place, check_saved

OWN = ("dataset", "iterator", "itself")
"""Parts of a worker's entry that come from the dataset."""


@dataclass(slots=True)
class Told:
    """What workers say beside their batches."""

    started: dict[int, Place] = field(default_factory=dict)
    """Where they began the epoch."""
    ended: dict[int, Place] = field(default_factory=dict)
    """With what they would begin the next."""

    def clear(self) -> None:
        self.started.clear()
        self.ended.clear()


@dataclass(slots=True)
class Shares:
    """The places of all workers, by batches that were delivered (or taken, where its owner says so)."""

    workers: int = 1
    places: dict[int, Place] = field(default_factory=dict)
    last: int = -1
    """The worker whose batch was the last."""

    @property
    def next(self) -> int:
        """The worker whose turn it is."""
        return (self.last + 1) % self.workers

    @property
    def batches(self) -> int:
        return sum(place.batches for place in self.places.values())

    def advance(self, worker: int, place: Place) -> None:
        """To do this twice is to do it once."""
        self.places[worker] = place.after(self.places.get(worker))
        self.last = worker

    def to_skip(self) -> int:
        """Batches that are prepared again because the dataset keeps no state."""
        return sum(place.since for place in self.places.values() if place.snapshot is None)


@dataclass(slots=True)
class Delivered:
    """The shares of one run, as its caller has got them."""

    shares: Shares = field(default_factory=Shares)
    told: Told = field(default_factory=Told)
    hear_out: Callable[[], None] = lambda: None
    """Wait until all workers have said where they began."""
    carries: bool = False
    """Whether workers take their dataset along into the next epoch."""
    began: int = 0
    """Batches that were delivered before this run began."""
    keyed: bool = False
    base_seed: int | None = None

    def follow(self, engine: Any, *, carries: bool, base_seed: int | None) -> None:
        """Listen to the workers of this engine; no longer than others hold it."""
        held = weakref.ref(engine)

        def hear_out() -> None:
            engine = held()
            if engine is not None:
                engine.hear_out()

        self.told, self.hear_out, self.carries, self.base_seed = engine.told, hear_out, carries, base_seed

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of a loader has no engine to listen to."""
        parts = self.shares, self.told, self.carries, self.began, self.keyed, self.base_seed
        return unheard, parts

    def state(self) -> dict[str, Any]:
        shares, told = self.shares, self.told
        if shares.batches == self.began and len(told.started) < shares.workers:
            self.hear_out()
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
        """What the next epoch begins with."""
        state: dict[str, Any] = {"keyed": self.keyed}
        ended = self.told.ended if self.carries else {}
        if any(place.snapshot is not None for place in ended.values()):
            state["workers"] = {str(worker): entry_of(ended[worker]) for worker in sorted(ended)}
            state["num_workers"] = self.shares.workers
        return state


def unheard(
    shares: Shares, told: Told, carries: bool, began: int, keyed: bool, base_seed: int | None
) -> Delivered:
    """Shares as another process, or a copy, knows them."""
    return Delivered(shares, told, carries=carries, began=began, keyed=keyed, base_seed=base_seed)


def entry_of(place: Place) -> dict[str, Any]:
    """A place as a checkpoint has it. The dataset's own part is made anew each time: nobody else has it."""
    own: dict[str, Any] = loads(place.snapshot) if place.snapshot is not None else {}
    check_saved(own)
    if place.carried:
        own.pop("iterator", None)
        return {"carried": True, **own}
    return {"batches": place.batches, "ended": place.ended, "since": place.since, **own}


def place_of(entry: Mapping[str, Any]) -> Place:
    """The place that a checkpoint's entry means; one of an older penstock has the dataset's state and `ended` only."""
    own = {key: entry[key] for key in OWN if key in entry}
    return Place(
        batches=entry.get("batches", 0),
        ended=bool(entry.get("ended", False)),
        since=entry.get("since", 0),
        snapshot=dumps_local(own) if own else None,
        carried=bool(entry.get("carried", False)),
    )


def places_of(state: Mapping[str, Any] | None, workers: int) -> Shares:
    """The shares that a loaded state says, for a loader with so many workers."""
    workers = max(1, workers)
    if state is None or not state.get("workers"):
        return Shares(workers)
    places = {int(worker): place_of(entry) for worker, entry in state["workers"].items()}
    saved = state.get("num_workers", 0)
    if saved == workers or (not saved and max(places) < workers):
        return Shares(workers, places, state.get("last_worker", -1))
    if not any(place.carried or place.batches or place.since for place in places.values()) and saved:
        return Shares(workers)  # nothing was delivered yet: the epoch begins with any number of workers
    if len(places) == 1 and places[0].carried:
        return Shares(workers, dict.fromkeys(range(workers), places[0]))  # there was one dataset for all
    raise StateError(
        f"the state holds an iterable dataset's place in {saved or len(places)} workers, this loader has {workers}: "
        f"give it as many workers, since each has its own share of the data"
    )
