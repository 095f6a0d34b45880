"""Progress of an epoch in a form for checkpoints: small, JSON-able, versioned.

Rule 1: only batches that `next()` has returned count. Prefetched batches are prepared again after a resume.
Rule 2: our own order resumes at a global position, at no cost, with any batch size, worker count or world. A sampler's order is replayed:
        its generator is reset and the delivered batches are drawn again, without loading anything.
Rule 3: a state is a snapshot. It shares nothing with the run, the sampler or the dataset.
Rule 4: the last batch does not end an epoch; asking for one more does (as in torchdata). A state taken with the last batch in hand resumes
        into no batches; the next `iter()` then runs the next epoch.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.epochs.feed import Ask
from penstock.epochs.shares import Delivered
from penstock.errors import StateError
from penstock.plan.deal_cost import SampleCosts
from penstock.plan.epoch import EpochPlan
from penstock.policy.homes import Ownership

VERSION = 1


@dataclass(frozen=True, slots=True)
class Promise:
    """The length that `len(loader)` gave for an iterable dataset; torch warns, in these words, if it was too small."""

    length: int
    dataset: Any
    workers: int

    def check(self, batches: int) -> None:
        if batches <= self.length:
            return
        text = (
            f"Length of IterableDataset {self.dataset} was reported to be {self.length}"
            f"(when accessing len(dataloader)), but {batches} samples have been fetched. "
        )
        if self.workers:
            text += (
                "For multiprocessing data-loading, this could be caused by not properly configuring the "
                "IterableDataset replica at each worker. Please see "
                "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
            )
        warnings.warn(text, stacklevel=5)


@dataclass(slots=True)
class Run:
    """One epoch of one iterator."""

    order: str
    """`planned`, `sampled` or `streamed`."""
    seed: int
    epoch: int
    plan: EpochPlan | None = None
    base: int = 0
    """Batches of this epoch delivered before this run resumed it."""
    total: int | None = None
    """Batches this run will deliver, if known."""
    delivered: int = 0
    """Batches delivered in order, without a gap."""
    beyond: set[int] = field(default_factory=set)
    """Batches delivered ahead of a gap (`in_order=False`)."""
    extra: dict[str, Any] = field(default_factory=dict)
    """State of the user's sampler and its generator."""
    after: dict[str, Any] = field(default_factory=dict)
    """What the next epoch starts from, once the sampler has ended."""
    streams: Delivered = field(default_factory=Delivered)
    """The shares of an iterable dataset's workers."""
    passed: int = 0
    """Batches counted without workers by an older penstock's state: they are drawn again and discarded."""
    over: dict[str, Any] | None = None
    """The state this run resumed from, if that had the last batch in hand: no batches are left."""
    promise: Promise | None = None
    finished: bool = False
    hand: Ask | None = None
    """The batch that `next()` returned last. Setting it is the moment of delivery: one store, which no interrupt can split. It is counted
    on the next look."""

    def count(self) -> None:
        """Count the batch in the caller's hand. Safe to repeat after an interrupt."""
        if self.hand is not None:
            self.deliver(self.hand)
            self.hand = None

    def check_promise(self) -> None:
        """Warn if the batch about to be returned exceeds the promised length."""
        if self.promise is not None:
            self.promise.check(self.delivered + len(self.beyond) + 1)

    def deliver(self, ask: Ask) -> None:
        if self.order == "streamed":
            if ask.state is not None:
                self.streams.shares.advance(*ask.state)
                self.delivered = self.streams.shares.batches
            return
        if ask.batch - self.base >= self.delivered:
            self.beyond.add(ask.batch - self.base)
        while self.delivered in self.beyond:
            self.beyond.discard(self.delivered)
            self.delivered += 1
        if ask.state is not None:
            self.extra["sampler"] = ask.state
            self.extra["samples"] = ask.first + ask.size

    @property
    def exhausted(self) -> bool:
        """Whether the last batch is delivered, as far as is known."""
        return self.finished or (self.total is not None and self.delivered >= self.total)

    def state(self) -> dict[str, Any]:
        self.count()
        if self.over is not None and not self.finished:
            return deepcopy(self.over)
        if self.exhausted:
            between = fresh_state(self.order, self.seed, self.epoch + 1, self.extra_between())
            return between if self.finished else in_hand(between, self.base + self.delivered)
        state = {
            "version": VERSION,
            "order": self.order,
            "seed": self.seed,
            "epoch": self.epoch,
            "batches": self.base + self.delivered,
            "beyond": sorted(ahead - self.delivered for ahead in self.beyond),
            **deepcopy(self.extra),
        }
        if self.order == "streamed":
            state |= self.streams.state()
        if self.plan is not None:
            state["position"] = self.plan.after(self.delivered)
            state["cut"] = cut_of(self.plan)
            if self.plan.times > 1 or self.plan.even is not None:
                state["order_world"] = self.plan.order_world or self.plan.world
            if self.plan.even is not None:
                state["even"] = self.plan.even.facts()
            if isinstance(self.plan.deal, SampleCosts):
                state |= self.plan.deal.facts()
        return state

    def extra_between(self) -> dict[str, Any]:
        """Return what outlives the epoch: a stateful sampler's state, the generator's, a dataset that carries over."""
        if self.order == "streamed":
            return self.streams.between()
        return deepcopy({key: value for key, value in self.extra.items() if key == "sampler"} | self.after)


def fast_forward(iterator: Any, run: Run) -> None:
    """Prepare and discard the delivered batches of an iterable dataset without a state."""
    again = run.streams.shares.to_skip() + run.passed
    if again:
        warnings.warn(
            f"resuming an iterable dataset without state_dict(): {again} batches are prepared again and thrown away",
            stacklevel=5,
        )
    for _ in range(run.passed):
        pulled = iterator.pull()
        if pulled is None:
            break
        run.deliver(pulled[0])


def in_hand(between: dict[str, Any], batches: int) -> dict[str, Any]:
    """Return the state of the epoch before `between` with its last batch delivered and no further request."""
    return between | {"epoch": between["epoch"] - 1, "batches": batches, "over": True}


def after_end(state: dict[str, Any]) -> dict[str, Any]:
    """Reverse `in_hand`: return the start of the next epoch."""
    between = {key: value for key, value in state.items() if key != "over"}
    return between | {"epoch": state["epoch"] + 1, "batches": 0}


def fresh_state(
    order: str, seed: int | None, epoch: int, extra: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return a state between epochs."""
    return {
        "version": VERSION, "order": order, "seed": seed, "epoch": epoch, "batches": 0, "beyond": [], "position": 0,
        **(extra or {}),
    }  # fmt: skip


def resume_plan(plan: EpochPlan, state: dict[str, Any]) -> EpochPlan:
    """Return the rest of the epoch, in the order that it began with, divided anew for this world, batch size and cache."""
    if isinstance(plan.deal, SampleCosts) and state.get("costs", plan.deal.digest) != plan.deal.digest:
        raise StateError(
            f"the state was saved with deal='cost' and other costs of samples (digest {state['costs']}, now {plan.deal.digest}), so the rest of the "
            "epoch would not be dealt as it was to be: give the dataset the same files or cost(index). Or finish this epoch with deal='as_is': each "
            "sample still comes once"
        )
    if state["beyond"] and state.get("cut") != cut_of(plan):
        raise StateError(
            f"the state was saved with in_order=False and batches out of order were delivered (batch size, world and, if dealt, a digest of "
            f"the owners or costs: {state.get('cut')}); it can only be resumed with the same, not {cut_of(plan)}"
        )
    even = plan.even
    if "cut" in state or state["position"]:  # the epoch has begun
        even = Ownership.of(state["even"]) if "even" in state else None
    return replace(plan, origin=state["position"], order_world=state.get("order_world", 0), even=even)


def cut_of(plan: EpochPlan) -> list[Any]:
    """Return what decides which samples a rank's batch has."""
    if plan.deal is None:
        return [plan.batch_size, plan.world]
    dealt_by = json.dumps(plan.deal.facts(), sort_keys=True).encode()
    return [plan.batch_size, plan.world, hashlib.sha256(dealt_by).hexdigest()[:16]]


def reuse_of(state: dict[str, Any], times: int, kept: int) -> int:
    """Return the number of samples to cache from now on: as when the state was saved, so that batches are the same."""
    saved = state.get("reuse", {"times": 1, "kept": kept})
    if saved["times"] != times:
        raise StateError(
            f"the state was saved with reuse {saved['times']} times, this loader has {times}: give it the same, or batches would not be "
            f"those that were to come"
        )
    return int(saved["kept"])
