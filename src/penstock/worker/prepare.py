"""From keys to samples to a batch: run the user's dataset and collate function, in a worker or inline.

Randomness is seeded before each sample from (seed, epoch, position, key), and before batch-level code (`__getitems__`, a custom collate)
from the batch's position. So the result does not depend on who runs it, or how often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from operator import getitem
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset, default_collate

from penstock.dataset.offers import DrawnFirst, Offer, offered, path_of
from penstock.dataset.seeding import seed_all, seed_sample
from penstock.errors import MissingExtra, SampleError, every_sample_failed
from penstock.measure import host
from penstock.plan.seeds import Company, SeedStream, op_seed
from penstock.torch_private import private_collate
from penstock.wire.kinds import COLLATING, FETCHING
from penstock.worker.misfits import odd_one

REPLACEMENTS = 8
"""Other samples tried in place of a failed one, before its error is raised."""


class Where(NamedTuple):
    """Samples `start`, `start + 1`, … of one batch, and their place in the epoch."""

    epoch: int
    batch: int
    first: int
    stride: int
    start: int
    dealt: Sequence[int] | None = None
    """Their positions, if these are not equidistant; `first` still names the batch."""

    def position(self, ordinal: int) -> int:
        if self.dealt is not None:
            return self.dealt[max(0, ordinal - self.start)]
        return self.first + ordinal * self.stride

    def positions(self) -> Iterable[int]:
        """Yield the positions from `start` on; without dealing, they do not end."""
        return count(self.position(self.start), self.stride) if self.dealt is None else self.dealt


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The user's code and settings to run."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    auto_collation: bool
    seed: int
    on_error: str = "raise"

    @property
    def shown(self) -> Any:
        """The user's own dataset; `dataset` may be one that reads it for us."""
        return offered(self.dataset).shown

    @property
    def batched(self) -> bool:
        """Whether the dataset fetches a whole batch at once."""
        return self.auto_collation and wants_batches(self.dataset)

    @property
    def stacks(self) -> bool:
        """Whether torch's default collate makes the batches; slabs replace it."""
        return self.auto_collation and self.collate_fn is default_collate

    @property
    def sample_bytes(self) -> int:
        return offered(self.dataset).sample_bytes

    @property
    def repeatable(self) -> bool:
        return offered(self.dataset).repeatable

    def load_libraries(self) -> None:
        offered(self.dataset).load()


def is_inert(dataset: Any) -> bool:
    """Return whether getting a sample runs no user code: a list, or tensors. Seeding would cost more than such samples do."""
    if type(dataset) is Subset:
        return is_inert(dataset.dataset) and type(dataset.indices) in (list, range)
    if type(dataset) is TensorDataset:
        return all(type(tensor) is torch.Tensor for tensor in dataset.tensors)
    return type(dataset) in (list, tuple, range, torch.Tensor, np.ndarray)


def wants_batches(dataset: Any) -> bool:
    if type(dataset) is Subset:
        # Subset's own __getitems__ only loops over samples unless the inner dataset has a real one.
        return wants_batches(dataset.dataset)
    return bool(getattr(dataset, "__getitems__", None))


class Stopped(Exception):
    """A StopIteration from user code, wrapped because it must not pass through our generators (PEP 479)."""

    def __init__(self, original: StopIteration) -> None:
        super().__init__()
        self.original = original


class Unfit(Exception):
    """`__getitems__` did not return one sample per key: only the collate function knows what to do with that."""


def held_back(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except StopIteration as exc:
        raise Stopped(exc) from exc


class Skip(NamedTuple):
    """A sample that `on_error` dropped or replaced."""

    ordinal: int
    epoch: int
    position: int
    key: str
    error: str
    replaced_by: str | None
    path: str | None = None
    """The sample's file, if the dataset knows it."""


@dataclass(slots=True)
class Preparer:
    recipe: Recipe
    on_sample: Callable[[int], None] = lambda _: None
    """Called with the sample that begins, or COLLATING or FETCHING, so that a crash can be blamed on it. Called again for a sample drawn in
    the first phase when its pixels are made."""
    lane: str = "this process"
    unforgiven: tuple[type[Exception], ...] = (MissingExtra,)
    """Errors that `on_error` does not forgive: the machine is to blame, the sample is fine."""
    two_phases: bool = True
    """Whether samples may be drawn before their pixels are made."""
    skips: list[Skip] = field(default_factory=list)
    """Samples dropped or replaced since the owner last took the list."""
    _streams: dict[int, SeedStream] = field(default_factory=dict)
    _offer: Offer | None = None

    def stream(self, epoch: int) -> SeedStream:
        stream = self._streams.get(epoch)
        if stream is None:
            self._streams.clear()
            stream = self._streams[epoch] = SeedStream(self.recipe.seed, epoch)
        return stream

    def samples(
        self, where: Where, keys: list[Any], *, poisoned: bool = False, unfinished: bool = False
    ) -> Iterator[tuple[int, Any]]:
        """Yield (ordinal, sample) for each key that can be prepared. `unfinished`: the caller can finish samples itself."""
        if self.recipe.batched and not poisoned:
            self.on_sample(FETCHING)
            batch = self.stream(where.epoch).batch(where.first)
            seed_all(batch, Company(batch, where.start))
            samples = held_back(self.recipe.dataset.__getitems__, keys)
            if type(samples) is not list or len(samples) != len(keys):
                raise Unfit
            yield from ((where.start + i, sample) for i, sample in enumerate(samples))
            return
        sample_seed, dataset, offer = self.stream(where.epoch).sample, self.recipe.dataset, self.offer()
        seed = seed_sample if offer.draws_alone() else seed_all
        deferred = self._deferred() if unfinished and not poisoned else None
        get = offer.get if unfinished else partial(getitem, dataset)
        if deferred is not None:
            get = deferred.sample
        offer.begin(where.epoch, keys)
        batch = self.stream(where.epoch).batch(where.first)
        ordinal = where.start
        # If no user code runs, only code after the last sample can notice the seeding: seed just that one.
        unseeded = where.start + len(keys) - 1 if self.recipe.on_error == "raise" and is_inert(dataset) else 0
        for key, position in zip(keys, where.positions(), strict=False):
            self.on_sample(ordinal)
            if ordinal >= unseeded:
                seed(sample_seed(position, key), Company(batch, ordinal))
            if self.recipe.on_error != "raise":
                yield from self._forgiving(where, ordinal, position, key, poisoned, get)
            else:
                yield ordinal, self._prepared(get, key, ordinal, deferred)
            ordinal += 1
        self._finish(deferred)

    def offer(self) -> Offer:
        """Return the dataset's offer, read at the first sample: the user's worker_init_fn may change the dataset."""
        if self._offer is None:
            self._offer = offered(self.recipe.dataset)
        return self._offer

    def _deferred(self) -> DrawnFirst | None:
        """Return the two-phase preparer, which draws all samples of a task before making pixels, if possible."""
        offer = self.offer()
        may = self.two_phases and self.recipe.on_error == "raise"
        return offer.drawn_first() if may and offer.draws_alone() else None

    def _prepared(
        self, get: Callable[[Any], Any], key: Any, ordinal: int, deferred: DrawnFirst | None
    ) -> Any:
        try:
            return held_back(get, key)
        except Exception as exc:  # noqa: BLE001 - raised below, where it is not the reason of another
            failed = exc
        try:
            self._finish(deferred)  # an earlier sample may fail too: then that is the error
            self.on_sample(ordinal)
            raise failed
        finally:
            del failed

    def _finish(self, deferred: DrawnFirst | None) -> None:
        if deferred is not None:
            for ordinal, finish in deferred.rest():
                self.on_sample(ordinal)
                held_back(finish)

    def _forgiving(
        self, where: Where, ordinal: int, position: int, key: Any, poisoned: bool, get: Callable[[Any], Any]
    ) -> Iterator[tuple[int, Any]]:
        try:
            if poisoned:
                raise SampleError(key, "prepare", self.lane, "its worker died each time it was prepared")
            sample = held_back(get, key)
        except self.unforgiven:
            raise
        except Exception as exc:
            replaces = self.recipe.on_error == "replace"
            other = self._replacement(where, ordinal, position, key) if replaces else None
            if replaces and other is None:
                raise
            error, instead = f"{type(exc).__name__}: {exc}", other and repr(other[0])
            path = path_of(self.offer(), key)
            self.skips.append(Skip(ordinal, where.epoch, position, repr(key), error, instead, path))
            if other is not None:
                yield ordinal, other[1]
            return
        yield ordinal, sample

    def _replacement(self, where: Where, ordinal: int, position: int, key: Any) -> tuple[int, Any] | None:
        """Return another sample, drawn from the failed sample's seed, so that every worker picks the same."""
        if type(key) is not int:
            return None
        length = len(self.recipe.dataset)
        seed = self.stream(where.epoch).sample(position, key)
        for attempt in range(REPLACEMENTS):
            other = op_seed(seed, "replace", attempt) % length
            company = Company(self.stream(where.epoch).batch(where.first), ordinal)
            seed_all(self.stream(where.epoch).sample(position, other), company)
            try:
                return other, self.recipe.dataset[other]
            except self.unforgiven:
                raise
            except Exception:  # noqa: BLE001, S112 - a replacement that fails too is not worth a report of its own
                continue
        return None

    def collate(self, where: Where, samples: Any) -> Any:
        """Run the collate function on the whole ordered batch."""
        self.on_sample(COLLATING)
        if self.recipe.collate_fn is default_collate:
            # In a worker, torch's collate uses shared memory, and its errors depend on that; with hardly any it
            # would end in SIGBUS.
            with private_collate() if host.shm_is_scarce() else nullcontext():
                return default_collate(samples)
        seed_all(self.stream(where.epoch).batch(where.first))
        return self.recipe.collate_fn(samples)

    def whole(self, where: Where, keys: list[Any]) -> Any:
        """Prepare one batch from start to end, as with `num_workers=0`."""
        if not self.recipe.auto_collation:
            return self.collate(where, next(sample for _, sample in self.samples(where, keys)))
        if self.recipe.batched:
            self.on_sample(FETCHING)
            batch = self.stream(where.epoch).batch(where.first)
            seed_all(batch, Company(batch, where.start))
            return self.collate(where, self.recipe.dataset.__getitems__(keys))
        pairs = list(self.samples(where, keys))
        if not pairs and keys:
            raise every_sample_failed(keys[0], self.lane, batch=where.batch, epoch=where.epoch)
        samples = [sample for _, sample in pairs]
        try:
            return self.collate(where, samples)
        except Exception as exc:
            if self.recipe.stacks:
                with suppress(Exception):  # samples that cannot be inspected: the error says enough
                    exc.add_note(odd_one(samples, [keys[at - where.start] for at, _ in pairs]))
            raise
