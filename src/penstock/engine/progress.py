"""How far an epoch has come, in terms that a checkpoint can hold: small, JSON-able, versioned.

Rule 1: only batches that `next()` has returned count. What was prefetched is prepared again after a resume.
Rule 2: our own order is entered at a global position, so a resume costs nothing and may use another batch size, worker
count or world. A sampler's order is replayed: its generator is set back and the delivered batches are drawn again,
without loading anything.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.engine.feed import Ask
from penstock.errors import StateError
from penstock.plan.epoch import EpochPlan

VERSION = 1


@dataclass(frozen=True, slots=True)
class Promise:
    """What `len(loader)` said of an iterable dataset; torch warns when it turns out too small, in these words."""

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
    """Batches of this epoch that were delivered before the resume that this run began with."""
    total: int | None = None
    """Batches this run will deliver, where that is known."""
    delivered: int = 0
    """Batches delivered in order, without a gap."""
    beyond: set[int] = field(default_factory=set)
    """Batches delivered ahead of a gap (`in_order=False`)."""
    extra: dict[str, Any] = field(default_factory=dict)
    """State of the user's sampler, its generator or the dataset."""
    after: dict[str, Any] = field(default_factory=dict)
    """What the next epoch starts from, once the sampler has come to its end."""
    promise: Promise | None = None
    finished: bool = False
    hand: Ask | None = None
    """The batch that `next()` returned last. Setting it is the moment of delivery: one store, which no interrupt can
    halve; it is counted when someone looks."""

    def count(self) -> None:
        """Count the batch in the caller's hand. Doing half of this, and then all of it, comes to the same."""
        if self.hand is not None:
            self.deliver(self.hand)
            self.hand = None

    def check_promise(self) -> None:
        """One more batch is about to be handed out: is it one too many?"""
        if self.promise is not None:
            self.promise.check(self.delivered + len(self.beyond) + 1)

    def deliver(self, ask: Ask) -> None:
        if ask.batch - self.base >= self.delivered:
            self.beyond.add(ask.batch - self.base)
        while self.delivered in self.beyond:
            self.beyond.discard(self.delivered)
            self.delivered += 1
        if ask.state is None:
            return
        if self.order == "streamed":
            worker, state = ask.state
            self.extra.setdefault("workers", {})[str(worker)] = state
            self.extra["last_worker"] = worker
        else:
            self.extra["sampler"] = ask.state
            self.extra["samples"] = ask.first + ask.size

    @property
    def exhausted(self) -> bool:
        return self.finished or (self.total is not None and self.delivered >= self.total)

    def state(self) -> dict[str, Any]:
        self.count()
        if self.exhausted:
            return fresh_state(self.order, self.seed, self.epoch + 1, self.extra_between())
        state = {
            "version": VERSION,
            "order": self.order,
            "seed": self.seed,
            "epoch": self.epoch,
            "batches": self.base + self.delivered,
            "beyond": sorted(ahead - self.delivered for ahead in self.beyond),
            **self.extra,
        }
        if self.plan is not None:
            state["position"] = self.plan.after(self.delivered)
            state["cut"] = [self.plan.batch_size, self.plan.world]
            if self.plan.times > 1:
                state["order_world"] = self.plan.order_world or self.plan.world
        return state

    def extra_between(self) -> dict[str, Any]:
        """What outlives the epoch: a stateful sampler's own word, a generator as it stands."""
        return {key: value for key, value in self.extra.items() if key == "sampler"} | self.after


def fresh_state(
    order: str, seed: int | None, epoch: int, extra: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A state between epochs."""
    return {
        "version": VERSION, "order": order, "seed": seed, "epoch": epoch, "batches": 0, "beyond": [], "position": 0,
        **(extra or {}),
    }  # fmt: skip


def check_state(state: dict[str, Any], order: str) -> None:
    if "version" not in state:
        raise StateError("this is not a state of penstock's DataLoader: it has no version")
    if state["version"] > VERSION:
        raise StateError(
            f"the state has version {state['version']}; this penstock reads up to {VERSION}: upgrade it"
        )
    if state["order"] != order:
        raise StateError(
            f"the state was saved from a loader whose order was {state['order']}, this one's is {order}: give it the "
            f"same shuffle, sampler and kind of dataset"
        )


def resume_plan(plan: EpochPlan, state: dict[str, Any]) -> EpochPlan:
    """The rest of the epoch, cut anew for this world and batch size."""
    if state["beyond"] and state.get("cut") != [plan.batch_size, plan.world]:
        raise StateError(
            f"the state was saved with in_order=False and batches out of order were delivered (batch size and world "
            f"{state.get('cut')}); it can only be resumed with the same, not {[plan.batch_size, plan.world]}"
        )
    return replace(plan, origin=state["position"], order_world=state.get("order_world", 0))


def reuse_of(state: dict[str, Any], times: int, kept: int) -> int:
    """How many samples are kept from now on: as many as were when the state was saved, so that batches are the same."""
    saved = state.get("reuse", {"times": 1, "kept": kept})
    if saved["times"] != times:
        raise StateError(
            f"the state was saved with reuse {saved['times']} times, this loader has {times}: give it the same, or batches would not be "
            f"those that were to come"
        )
    return int(saved["kept"])


def resumed_streams(resume: dict[str, Any] | None, workers: int) -> tuple[dict[int, Any] | None, int]:
    """Each worker's dataset state, and which worker is next, of a loaded state of an iterable dataset."""
    states = (resume or {}).get("workers")
    if states is None or resume is None:
        return None, 0
    if max(map(int, states)) >= max(1, workers):
        raise StateError(
            f"the state holds an iterable dataset's place in {len(states)} workers, this loader has {workers}: "
            f"give it as many workers, since each has its own share of the data"
        )
    next_worker = (resume["last_worker"] + 1) % max(1, workers)
    return {int(worker): state for worker, state in states.items()}, next_worker
