"""A user's sampler, followed exactly as torch does, and brought back to where a checkpoint left it.

The generator that the sampler draws from is remembered as it was at the start of the epoch. To resume, it is set back,
the sampler is iterated anew, and the batches that were delivered are drawn and passed over. A sampler with a
`state_dict` of its own is asked instead, after each batch, since it knows best.
"""

from __future__ import annotations

import base64
import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from penstock.engine.feed import Ask, sampled
from penstock.engine.progress import Run

KNOWN = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)
"""torch's samplers, whose order is a function of their generator's state (or of their epoch)."""


class SamplerReplay:
    """One epoch of a sampler."""

    def __init__(self, index_sampler: Any, sampler: Any, generator: torch.Generator | None, run: Run) -> None:
        self._index_sampler, self._sampler, self._run = index_sampler, sampler, run
        self._generator = getattr(sampler, "generator", None) or generator or torch.default_generator
        self._stateful = next(
            (
                one
                for one in (index_sampler, sampler)
                if hasattr(one, "state_dict") and hasattr(one, "load_state_dict")
            ),
            None,
        )

    def asks(self, *, auto_collation: bool) -> Iterator[Ask]:
        run = self._run
        skip, beyond = run.delivered, frozenset(index - run.delivered for index in run.beyond)
        snapshot: Callable[[], Any] | None = None
        if self._stateful is not None:
            if "sampler" in run.extra:
                self._stateful.load_state_dict(run.extra["sampler"])
                skip = 0
            snapshot = self._stateful.state_dict
        batches = self._replayed() if run.delivered or run.beyond else self._from_start()
        asks = sampled(
            batches,
            epoch=run.epoch,
            auto_collation=auto_collation,
            skip=skip,
            beyond=beyond,
            snapshot=snapshot,
        )
        if self._stateful is not None and run.delivered:
            return renumbered(asks, run.delivered)
        return asks

    def _from_start(self) -> Iterator[Any]:
        if isinstance(self._sampler, DistributedSampler):
            self._run.extra["sampler_epoch"] = self._sampler.epoch
        else:
            self._run.extra["generator"] = encode_state(self._generator)
        yield from self._index_sampler

    def _replayed(self) -> Iterator[Any]:
        if "sampler_epoch" in self._run.extra and isinstance(self._sampler, DistributedSampler):
            self._sampler.set_epoch(self._run.extra["sampler_epoch"])
        if self._stateful is not None or "generator" not in self._run.extra:
            return iter(self._index_sampler)
        if not (
            isinstance(self._sampler, KNOWN)
            and type(self._index_sampler) in (BatchSampler, type(self._sampler))
        ):
            warnings.warn(
                f"resuming {type(self._index_sampler).__name__}: the {self._run.delivered} delivered batches are drawn "
                f"again and passed over. This is exact only if the sampler repeats itself; give it state_dict() and "
                f"load_state_dict() to be sure.",
                stacklevel=2,
            )
        return self._drawn_again()

    def _drawn_again(self) -> Iterator[Any]:
        """Iterate the sampler as at the start of the epoch; the program's own generator is not disturbed."""
        then = decode_state(self._run.extra["generator"])
        if self._generator is not torch.default_generator:
            self._generator.set_state(then)
            return iter(self._index_sampler)
        now = self._generator.get_state()
        self._generator.set_state(then)
        try:
            batches = iter(self._index_sampler)
            first = list(next_or_none(batches))
        finally:
            self._generator.set_state(now)
        return chain(first, batches)


def next_or_none(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch
        return


def renumbered(asks: Iterator[Ask], base: int) -> Iterator[Ask]:
    """Asks of a sampler that went on from its own state: numbered, and keyed, behind those delivered before."""
    for ask in asks:
        yield ask._replace(batch=ask.batch + base, first=ask.first + base * ask.size)


def encode_state(generator: torch.Generator) -> str:
    return base64.b64encode(generator.get_state().numpy().tobytes()).decode()


def decode_state(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
