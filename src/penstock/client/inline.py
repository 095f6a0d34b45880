"""`num_workers=0`: prepare samples in the training process on request, as torch does.

Order and randomness are the engine's, so batches equal those of any number of workers. Each batch restores the process's random
generators, so loading does not disturb the program's random numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

from penstock.client.batches import Batches
from penstock.client.outcome import Outcome
from penstock.dataset.seeding import generators_kept
from penstock.epochs.feed import PLACE_LOST, Ask
from penstock.epochs.progress import Run
from penstock.epochs.shares import Told
from penstock.errors import PenstockError
from penstock.measure.counters import Counters
from penstock.sources.retries import TALLY
from penstock.worker.prepare import Preparer, Recipe, Stopped, Where
from penstock.worker.streaming import Share, Streamer, StreamPlace


class InlineIterator(Batches):
    """Prepares one batch in each `next()`, by `prepare`, and counts it."""

    def __init__(
        self, prepare: Callable[[Ask], tuple[Any, Any]], asks: Iterator[Ask], counters: Counters
    ) -> None:
        super().__init__()
        self._prepare, self._asks, self._counters = prepare, asks, counters
        self.told = Told()
        self._ask: Ask | None = None
        """The batch in preparation; prepared again after an interrupt."""
        self._drawing = False
        """True during a draw. If found true later, an interrupt hit the draw."""

    def hear_out(self) -> None:
        """Do nothing: there are no workers to wait for."""

    def begin(self, asks: Iterator[Ask], epoch: int) -> None:  # noqa: ARG002 - as EngineIterator
        self._asks, self._ask, self._drawing = asks, None, False

    def pull(self) -> tuple[Ask, Outcome] | None:
        taken = self._take()
        if taken is None:
            return None
        self._ask = None
        return taken[0], Outcome(taken[1], b"")

    def _take(self) -> tuple[Ask, Any] | None:
        began = time.monotonic()
        self._is_asked()
        if self._ask is None:
            self._draw()
        ask = self._ask
        if ask is None:
            return None
        retries = TALLY.count
        try:
            batch, state = self._prepare(ask)
        except StopIteration:
            self._ask = None
            return None
        except Exception:
            # A failed batch is done, as with workers: `next()` continues after it.
            self.run.hand, self._ask = ask, None
            raise
        finally:
            self._counters.source_retries += TALLY.count - retries
        self._counters.delivered(began, time.monotonic(), ask.size, 0)
        return ask if state is None else ask._replace(state=state), batch

    def _draw(self) -> None:
        if self._drawing:
            raise PenstockError(PLACE_LOST)
        self._drawing = True
        try:
            self._ask = next(self._asks, None)
        except Exception:
            self._drawing = False
            raise
        self._drawing = False

    def __next__(self) -> Any:
        taken = self._take()
        if taken is None:
            self.on_end()
            raise StopIteration
        self.run.check_promise()
        ask, batch = taken
        self.run.hand, self._ask = ask, None
        return batch


def prepare_keyed(
    recipe: Recipe, on_skip: Callable[[dict[str, Any]], None]
) -> Callable[[Ask], tuple[Any, Any]]:
    """Return a function that prepares batches of a map-style dataset."""
    preparer = Preparer(recipe)

    def prepare(ask: Ask) -> tuple[Any, Any]:
        where = Where(ask.epoch, ask.batch, ask.first, ask.stride, 0, ask.dealt)
        try:
            with generators_kept():  # guard: inline-generators
                return preparer.whole(where, ask.keys), None
        except Stopped as stopped:
            raise stopped.original from None
        finally:
            for skip in preparer.skips:
                on_skip(skip._asdict())
            preparer.skips.clear()

    return prepare


class InlineStream:
    """Takes batches and their places from an iterable dataset. Without a seed it draws from the process's generators, as torch does;
    with one it restores them."""

    def __init__(self, recipe: Recipe, drop_last: bool, every: int, run: Run) -> None:
        self._recipe, self._drop_last, self._every = recipe, drop_last, every
        self._keyed = run.streams.keyed
        self._kept = generators_kept if self._keyed else nullcontext
        self.told = Told()
        self._begin(run.epoch, run.streams.shares.places.get(0))

    def _begin(self, epoch: int, place: StreamPlace | None = None) -> None:
        share = Share(0, epoch, self._keyed, self._every)
        with self._kept():
            self._streamer = Streamer(self._recipe, self._drop_last, share, place)
        self._epoch = epoch
        self.told.started[0] = self._place = self._streamer.started

    def __call__(self, ask: Ask) -> tuple[Any, Any]:
        with self._kept():
            if ask.epoch != self._epoch:
                self._begin(ask.epoch)
            try:
                batch = self._streamer.next_batch(ask.size)
            except StopIteration:
                self.told.ended[0] = self._streamer.end()
                raise
            self._place = self._streamer.place().after(self._place)
            return batch, (0, self._place)


def prepare_one(recipe: Recipe, where: Where, key: Any) -> Any:
    """Prepare one sample as any worker would."""
    try:
        return next(sample for _, sample in Preparer(recipe).samples(where, [key]))
    except Stopped as stopped:
        raise stopped.original from None
