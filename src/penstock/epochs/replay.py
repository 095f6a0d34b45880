"""Follow a user's sampler exactly as torch does, and resume it from a checkpoint.

The state records the sampler's generator at the start of the epoch. To resume, reset it, iterate the sampler again, and discard the
delivered batches. A sampler with its own `state_dict` saves its state after each batch instead.
"""

from __future__ import annotations

import base64
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from torch.utils.data import DistributedSampler

from penstock.epochs.feed import Ask, sampled
from penstock.epochs.progress import Run

REPEAT = ("torch.utils.data.", "accelerate.data_loader", "penstock.")
"""Modules whose samplers repeat their batches if generator and epoch are reset."""


class SamplerReplay:
    """One epoch of a sampler."""

    def __init__(self, index_sampler: Any, generator: torch.Generator | None, run: Run) -> None:
        self._index_sampler, self._run = index_sampler, run
        links = list(chain_of(index_sampler))
        self._source = links[-1]
        self._generator = generator_of(self._source, generator)
        self._repeats = all(type(link).__module__.startswith(REPEAT) for link in links)
        self._stateful = next(
            (one for one in links if hasattr(one, "state_dict") and hasattr(one, "load_state_dict")), None
        )

    def asks(self, *, auto_collation: bool) -> Iterator[Ask]:
        run = self._run
        skip, beyond = run.delivered, frozenset(index - run.delivered for index in run.beyond)
        snapshot: Callable[[], Any] | None = None
        if self._stateful is not None:
            if "sampler" in run.extra:
                self._stateful.load_state_dict(deepcopy(run.extra["sampler"]))
                skip = 0
            snapshot = self._snapshot
        batches = self._replayed() if run.delivered or run.beyond else self._from_start()
        batches, epoch = self._to_its_end(batches, run.delivered - skip), run.epoch
        asks = sampled(
            batches, epoch=epoch, auto_collation=auto_collation, skip=skip, beyond=beyond, snapshot=snapshot
        )
        if self._stateful is not None and run.delivered:
            # Number the asks of a sampler resumed from its own state after those delivered before.
            before, samples = run.delivered, run.extra.get("samples", 0)
            return (ask._replace(batch=ask.batch + before, first=ask.first + samples) for ask in asks)
        return asks

    def _snapshot(self) -> Any:
        assert self._stateful is not None
        return deepcopy(self._stateful.state_dict())

    def _from_start(self) -> Iterator[Any]:
        extra = self._run.extra
        if isinstance(epoch := getattr(self._source, "epoch", None), int):
            extra["sampler_epoch"] = epoch
        if type(self._source) is not DistributedSampler:
            extra["generator"] = encode_state(self._generator)
        batches = iter(self._index_sampler)
        if "sampler" in extra:
            # A state taken with the last batch in hand may stand at the end of the previous epoch.
            first = list(next_or_none(batches))
            batches = chain(first, batches) if first else iter(self._index_sampler)
        yield from batches

    def _to_its_end(self, batches: Iterator[Any], passed: int) -> Iterator[Any]:
        """Yield the batches; with the last, tell the run their number and the next epoch's start.

        A known sampler is asked for its end together with its last batch, since a trainer that counts batches never asks. A stateful
        sampler would then be a step too far: its length is trusted until it yields more.
        """
        last = length_of(self._index_sampler) - passed if self._repeats or self._stateful is not None else -1
        if self._stateful is not None and last >= 0:
            self._run.total = passed + last
        number = 0
        for number, batch in enumerate(batches, 1):
            if self._stateful is not None or number != last:
                if number > last:
                    self._run.total = None
                yield batch
                continue
            more = list(next_or_none(batches))
            if not more:
                self._ended(passed + number)
            yield batch
            yield from more
        self._ended(passed + number)

    def _ended(self, batches: int) -> None:
        self._run.total = batches
        if self._generator is not torch.default_generator and type(self._source) is not DistributedSampler:
            self._run.after["generator"] = encode_state(self._generator)

    def _replayed(self) -> Iterator[Any]:
        extra = self._run.extra
        if "sampler_epoch" in extra and hasattr(self._source, "set_epoch"):
            self._source.set_epoch(extra["sampler_epoch"])
        if self._stateful is not None or "generator" not in extra:
            return iter(self._index_sampler)
        if not self._repeats:
            warnings.warn(
                f"resuming {type(self._index_sampler).__name__}: the {self._run.delivered} delivered batches are drawn "
                f"again and passed over. This is exact only if the sampler repeats itself; give it state_dict() and "
                f"load_state_dict() to be sure.",
                stacklevel=2,
            )
        return self._drawn_again()

    def _drawn_again(self) -> Iterator[Any]:
        """Iterate the sampler as at the start of the epoch, without disturbing the program's own generator."""
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


def set_generator(index_sampler: Any, generator: torch.Generator | None, state: str) -> None:
    """Set a sampler's generator to a state between epochs, before `iter()` draws from it."""
    *_, source = chain_of(index_sampler)
    generator_of(source, generator).set_state(decode_state(state))


def epoch_of(index_sampler: Any) -> int | None:
    """Return the epoch set on a DistributedSampler."""
    *_, source = chain_of(index_sampler)
    return int(source.epoch) if isinstance(source, DistributedSampler) else None


def generator_of(source: Any, generator: torch.Generator | None) -> torch.Generator:
    return getattr(source, "generator", None) or generator or torch.default_generator


def chain_of(sampler: Any) -> Iterator[Any]:
    """Yield a batch sampler, the sampler it wraps, and so on; the last decides the order."""
    while sampler is not None:
        yield sampler
        inner = getattr(sampler, "batch_sampler", None)
        sampler = getattr(sampler, "sampler", None) if inner is None else inner


def length_of(sampler: Any) -> int:
    """Return a sampler's length; -1 if it has none."""
    try:
        return len(sampler)
    except TypeError:
        return -1


def next_or_none(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch
        return


def encode_state(generator: torch.Generator) -> str:
    return base64.b64encode(generator.get_state().numpy().tobytes()).decode()


def decode_state(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
