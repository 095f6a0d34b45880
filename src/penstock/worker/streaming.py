"""One worker's share of an iterable dataset: its batches, and its place after each.

Rule 1 (torchdata's): load the dataset's state before `iter(dataset)`, its iterator's after. A dataset that returns itself from `__iter__`
        counts as an iterator, since `__iter__` may start over.
Rule 2: a place is a snapshot. Later changes of the dataset do not affect it.
Rule 3: with a seed, the global generators are seeded before each sample from (seed, epoch, worker, batch, sample), so draws are the same
        after a resume. A generator function runs up to its first `yield` only for its first sample, and may draw an order there: so a
        generator's first sample after `iter()` uses the seed of the share's start.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from inspect import isgenerator
from typing import Any, NamedTuple

from torch.utils.data import default_collate, default_convert

from penstock.dataset.seeding import seed_all
from penstock.errors import StateError
from penstock.plan.seeds import ShareSeeds
from penstock.wire.pickles import dumps_local, loads
from penstock.worker.prepare import Recipe


class StreamPlace(NamedTuple):
    """The place of one worker's share."""

    batches: int = 0
    """Batches of this epoch yielded so far."""
    ended: bool = False
    """Whether the dataset is exhausted, as far as is known."""
    since: int = 0
    """Batches yielded since `snapshot`; all of them if the dataset has no state."""
    snapshot: bytes | None = None
    """Pickled state of the dataset and its iterator. None: there is none, or the previous one is still the newest."""
    carried: bool = False
    """Whether this is an epoch's final state, with which the next begins."""

    def after(self, before: StreamPlace | None) -> StreamPlace:
        """Return this place with the newest snapshot."""
        if self.snapshot is not None or before is None or before.carried:
            return self
        return self._replace(snapshot=before.snapshot)


class Share(NamedTuple):
    """One worker's share, and how to iterate it."""

    worker: int = 0
    epoch: int = 0
    keyed: bool = False
    """Whether random draws depend on the loader's seed."""
    every: int = 1
    """Batches between snapshots; 0: only at the start."""


def is_stateful(thing: Any) -> bool:
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


class Streamer:
    """Makes batches as torch's fetcher does."""

    def __init__(
        self,
        recipe: Recipe,
        drop_last: bool,
        share: Share,
        place: StreamPlace | None = None,
        on_batch: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin the share, at `place` if given. `on_batch` is called at each batch, discarded ones included."""
        self._recipe, self._drop_last, self._on_batch = recipe, drop_last, on_batch
        self._every = share.every
        self._seeds = ShareSeeds(recipe.seed, share.epoch, share.worker) if share.keyed else None
        if self._seeds is not None:
            seed_all(self._seeds.start)
        resumed = place is not None and not place.carried
        place = place or StreamPlace()
        self._iterator: Any = restored(recipe.dataset, place)
        self._stateful = is_stateful(self._iterator) or is_stateful(recipe.dataset)
        self._to_skip = place.since if resumed else 0
        self._batches = place.batches - self._to_skip if resumed else 0
        self._ended = resumed and place.ended and not self._to_skip
        self._since = 0
        self._starts = isgenerator(self._iterator)
        self.started = place if resumed else StreamPlace(snapshot=self._snapshot())

    # ---- place

    def place(self) -> StreamPlace:
        """Return the place after the newest batch."""
        due = bool(self._every) and self._batches % self._every == 0
        snapshot = self._snapshot() if due else None
        self._since = 0 if snapshot is not None else self._since
        return StreamPlace(self._batches, self._ended, self._since, snapshot)

    def end(self) -> StreamPlace:
        """Return what the next epoch begins with."""
        return StreamPlace(snapshot=self._snapshot(), carried=True)

    def _snapshot(self) -> bytes | None:
        if not self._stateful:
            return None
        dataset, parts = self._recipe.dataset, dict[str, Any]()
        if self._iterator is dataset:
            parts["itself"] = True
        elif is_stateful(self._iterator):
            parts["iterator"] = self._iterator.state_dict()
        if is_stateful(dataset):
            parts["dataset"] = dataset.state_dict()
        try:
            return dumps_local(parts)
        except Exception as exc:  # noqa: BLE001 - only who asks for the state needs to know
            return dumps_local({"unsaved": f"{type(exc).__name__}: {exc}"})

    # ---- batches

    def next_batch(self, size: int) -> Any:
        """Return the next batch; raise StopIteration at the end."""
        while self._to_skip:
            self._to_skip -= 1
            try:
                # A batch that failed before fails again; it was skipped then, too.
                with suppress(Exception):
                    self._counted(size)
            except _Ended:
                self._to_skip = 0
        try:
            return self._counted(size)
        except _Ended:
            raise StopIteration from None

    def _counted(self, size: int) -> Any:
        self._on_batch()
        try:
            batch = self._batch(size)
        except StopIteration:
            self._ended = True
            raise _Ended from None
        except Exception:
            self._passed()
            raise
        self._passed()
        return batch

    def _passed(self) -> None:
        self._batches += 1
        self._since += 1

    def _batch(self, size: int) -> Any:
        if self._ended:
            raise StopIteration
        if not self._recipe.auto_collation:
            return self._collated(self._sample(0))
        samples: list[Any] = []
        for ordinal in range(size):
            try:
                samples.append(self._sample(ordinal))
            except StopIteration:
                self._ended = True
                break
        if not samples or (self._drop_last and len(samples) < size):
            raise StopIteration
        return self._collated(samples)

    def _sample(self, ordinal: int) -> Any:
        if self._seeds is not None:
            seed_all(self._seeds.start if self._starts else self._seeds.sample(self._batches, ordinal))
        self._starts = False
        return next(self._iterator)

    def _collated(self, samples: Any) -> Any:
        collate = self._recipe.collate_fn
        if self._seeds is not None and collate is not default_collate and collate is not default_convert:
            seed_all(self._seeds.collate(self._batches))
        return collate(samples)


class _Ended(BaseException):
    """The end of the share: cannot be mistaken for the user's exception or StopIteration."""


def restored(dataset: Any, place: StreamPlace) -> Any:
    """Return the dataset's iterator at `place`."""
    parts: dict[str, Any] = loads(place.snapshot) if place.snapshot is not None else {}
    check_saved(parts)
    own, inner = parts.get("dataset"), parts.get("iterator")
    if own is not None and not is_stateful(dataset):
        raise StateError(without(dataset, "dataset"))
    if own is not None and (place.carried or not parts.get("itself")):
        dataset.load_state_dict(own)
    iterator = iter(dataset)
    if place.carried:
        return iterator
    if own is not None and iterator is dataset:
        dataset.load_state_dict(own)
    if inner is not None:
        if not is_stateful(iterator):
            raise StateError(without(iterator, "dataset's iterator"))
        iterator.load_state_dict(inner)
    return iterator


def check_saved(parts: dict[str, Any]) -> None:
    if "unsaved" in parts:
        raise StateError(
            f"what the dataset's state_dict() returns cannot be pickled ({parts['unsaved']}), so it cannot be saved: let it "
            f"return numbers, texts, lists, dicts and tensors"
        )


def without(thing: Any, what: str) -> str:
    return (
        f"the state holds the {what}'s own state, but {type(thing).__name__} has no state_dict() and load_state_dict(): give the "
        f"loader the same kind of dataset"
    )
