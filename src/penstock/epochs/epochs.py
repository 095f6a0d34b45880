"""Which epoch a loader runs next, in which order, and from where.

`OrderSource` is fixed: what decides the order. `Epochs` changes: the seed, the next epoch's number, the newest iterator's run, a state to
resume. Neither refers to the loader, so dropping a loader ends its workers at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler

from penstock.epochs.costs import check_agreed, check_costs, check_unchanged, read_costs
from penstock.epochs.feed import Ask, planned, streamed
from penstock.epochs.fitting import Identity, fitted, warn_of_seed
from penstock.epochs.progress import Run, after_end, fresh_state, resume_plan, reuse_of
from penstock.epochs.replay import SamplerReplay, chain_of, epoch_of, length_of, set_generator
from penstock.epochs.shares import Shares, places_of
from penstock.errors import ConfigError
from penstock.plan.deal_cost import SampleCosts
from penstock.plan.epoch import EpochPlan
from penstock.policy.homes import Ownership
from penstock.worker.prepare import Where

EXTRAS = ("generator", "sampler", "sampler_epoch", "samples")
"""Parts of a state that belong to the user's sampler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSource:
    """What decides the order of a loader's samples."""

    dataset: Any
    sampler: Any
    batch_sampler: Any
    own: bool
    """Whether the order is ours (sequential, or shuffle=True alone), not that of the user's sampler."""
    shuffles: bool
    rank: int
    world: int
    batch_size: int
    """For an iterable dataset."""
    times: int = 1
    """How often each partly prepared sample is used."""
    evens: bool = False
    """Whether samples that no node keeps are spread evenly over ranks and batches."""
    deal: str = "as_is"
    """Who gets which sample of a global batch: as the keyword `deal` says."""

    def __post_init__(self) -> None:
        if self.evens and not (self.own and self.shuffles):
            raise ConfigError(
                "order='even' is an order of ours: it needs shuffle=True, and no sampler or generator of yours"
            )
        if self.evens and self.times > 1:
            raise ConfigError(
                "order='even' spreads samples that must be read, reuse= spreads samples that must be prepared anew; an order cannot do both: "
                "leave order='even' out"
            )
        if self.deal == "cost":
            if self.evens or self.times > 1:
                other = "order='even' of the cache" if self.evens else "reuse="
                raise ConfigError(
                    f"deal='cost' cannot be combined with {other}: each spreads samples over ranks in its own way; leave one of them out"
                )
            check_costs(self.dataset)

    @property
    def streams(self) -> bool:
        return isinstance(self.dataset, IterableDataset)

    @property
    def index_sampler(self) -> Any:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    @property
    def order(self) -> str:
        """`planned`, `sampled` or `streamed`. Follows the batch sampler if the user has changed it since."""
        if self.streams:
            return "streamed"
        batches = self.batch_sampler
        untouched = batches is None or (type(batches) is BatchSampler and batches.sampler is self.sampler)
        return "planned" if self.own and untouched else "sampled"

    @property
    def identity(self) -> Identity:
        order = self.order
        if order == "streamed":
            return Identity(order, "iterable", None)
        length = length_of(self.dataset)
        *_, sampler = chain_of(self.index_sampler)
        own = "shuffled" if self.shuffles else "sequential"
        return Identity(
            order, own if order == "planned" else type(sampler).__name__, length if length >= 0 else None
        )

    def following(self, sampler: Any, batch_sampler: Any) -> OrderSource:
        """Return the source with the loader's current samplers: a subclass may have replaced them, as timm's loader does."""
        if sampler is self.sampler and batch_sampler is self.batch_sampler:
            return self
        own = self.own and sampler is self.sampler
        return replace(self, sampler=sampler, batch_sampler=batch_sampler, own=own)

    @property
    def deals_by_cost(self) -> bool:
        return self.deal == "cost" and self.world > 1

    def plan(
        self,
        epoch: int,
        seed: int,
        kept: int,
        owners: Ownership | None = None,
        costs: SampleCosts | None = None,
    ) -> EpochPlan:
        cut = next((link for link in chain_of(self.batch_sampler) if hasattr(link, "batch_size")), None)
        return EpochPlan(
            length=len(self.dataset),
            batch_size=getattr(cut, "batch_size", 1),
            drop_last=getattr(cut, "drop_last", False),
            shuffle=self.shuffles,
            seed=seed,
            epoch=epoch,
            rank=self.rank,
            world=self.world,
            times=self.times,
            kept=kept,
            even=owners if self.evens else None,
            deal={"owner": owners, "cost": costs}.get(self.deal) if self.world > 1 else None,
        )


class Epochs:
    def __init__(self, source: OrderSource, seed: int | None, kept: int = 0) -> None:
        self.source, self.seed, self.kept = source, seed, kept
        self.given = seed
        """The user's seed, if any."""
        self.keyed = seed is not None
        """Whether an iterable dataset draws by the seed; if not, it draws as with torch."""
        self.base_seed: int | None = None
        """Base seed of an iterable dataset's workers."""
        self.next = 0
        self.run: Run | None = None
        self.resume: dict[str, Any] | None = None
        self._told: int | None = None
        self._ahead: dict[int, EpochPlan] = {}
        """Plans of epochs prefetched before they begin."""
        self._sampler_epoch: int | None = 0
        self.owners: Ownership | None = None
        """Where samples are kept; None: not known, so nothing is spread or dealt. An epoch keeps those that it began with. All ranks must
        have the same when it begins: who gets which sample follows from it."""
        self._costs: SampleCosts | None = None
        self._agreed = False
        """Whether ranks have compared their costs, at the first epoch. From then on these costs stay."""

    @property
    def epoch(self) -> int:
        """The newest iterator's epoch, or the next one if there is none."""
        return self.next if self.run is None else self.run.epoch

    @property
    def upcoming(self) -> int:
        """The epoch that the next `iter()` runs."""
        if self.resume is not None:
            return int(self.resume["epoch"])
        return self.next if self._told is None else self._told

    @property
    def is_over(self) -> bool:
        """Whether the next `iter()` resumes an epoch whose last batch was delivered."""
        state = self.resume
        return state is not None and "over" in state and self._newly_told()[0] in (None, state["epoch"])

    def based_on(self, drawn: int) -> int:
        """Return the base seed of new workers; on resume, an iterable dataset's workers get their old one."""
        self.base_seed = (self.resume or {}).get("base_seed", drawn)
        assert self.base_seed is not None
        return self.base_seed

    def shares(self, workers: int) -> Shares:
        """Return where the workers of an iterable dataset begin."""
        return places_of(self.resume, workers)

    def plan(self, epoch: int) -> EpochPlan:
        return self.source.plan(epoch, self.seed or 0, self.kept, self.owners, self.costs())

    def costs(self) -> SampleCosts | None:
        """Return what samples cost, if batches are dealt by that. Read at the first call; before the first epoch also if the dataset's length
        changes, which is an error later."""
        source, costs = self.source, self._costs
        if not source.deals_by_cost:
            return None
        if costs is not None and self._agreed:
            check_unchanged(len(costs.values), len(source.dataset))  # guard: costs-stay
        elif costs is None or len(costs.values) != len(source.dataset):
            costs = self._costs = read_costs(source.dataset)
        return costs

    def where(self, index: Any, epoch: int) -> Where:
        """Return a sample's place in that epoch, as far as it is known beforehand."""
        if self.source.order != "planned" or not isinstance(index, int):
            return Where(epoch, 0, index if isinstance(index, int) else 0, 1, 0)
        plan = self.plan(epoch)
        position = int(plan.find(np.array([index]))[0])
        first, ordinal = plan.seat(position)
        return Where(epoch, 0, first, plan.world, ordinal, [position])

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch for the next `iter()`, or for the current one if it has not delivered a batch."""
        self.next = self._told = epoch

    def burn_draw(self) -> None:
        """Make the draw that torch's RandomSampler makes at its start, so that generators stay in step; our order does not use it."""
        if self.source.shuffles and type(self.source.sampler) is RandomSampler:
            torch.empty((), dtype=torch.int64).random_().item()

    # ---- runs

    @contextmanager
    def begun_or_not(self) -> Iterator[None]:
        """Have all as it was if an iterator cannot begin: it has used up no epoch and no state."""
        before = self.run, self.next, self.resume, self._told, self._sampler_epoch
        try:
            yield
        except BaseException:
            self.run, self.next, self.resume, self._told, self._sampler_epoch = before  # guard: begun-or-not
            raise

    def _agree_on_costs(self) -> None:
        """At the first epoch, read what samples cost, and see that all ranks found the same. Later epochs wait for nobody: ranks need not begin
        them equally often (an agent dies on one, another looks at a batch alone), and a rank does not know whether the others have new costs."""
        if self._agreed or not self.source.deals_by_cost:
            return
        try:
            costs = self.costs()
        except Exception:
            check_agreed(None, self.source.world)  # the others wait for what we found
            raise
        check_agreed(costs, self.source.world)  # guard: costs-agreed
        self._agreed = True

    def new_run(self, workers: int = 0) -> Run:
        """Begin the next epoch, from its start or from a loaded state. If that raises, nothing has changed: the next call does the same."""
        shares = self.shares(workers)
        self._agree_on_costs()
        state = self.resume
        assert self.seed is not None
        told, sampler_epoch = self._newly_told()
        if state is not None and "over" in state:
            if told is None or told == state["epoch"]:
                run = Run(self.source.order, self.seed, state["epoch"], total=0, over=state)
                return self._begun(run, sampler_epoch, after_end(state))
            state = after_end(state) | {"epoch": told}
        if state is not None:
            epoch, sampler_epoch = state["epoch"], state.get("sampler_epoch", sampler_epoch)
        else:
            epoch = self.next if told is None else told
        run = Run(self.source.order, self.seed, epoch)
        if run.order == "planned":
            run.plan = self.plan(epoch)
            if state is not None:
                run.plan = resume_plan(run.plan, state)
                run.base, run.beyond = state["batches"], set(state["beyond"])
            run.total = run.plan.batches
        elif run.order == "streamed":
            run.streams.shares, run.delivered, run.streams.keyed = shares, shares.batches, self.keyed
            run.streams.began = shares.batches
            run.passed = 0 if shares.places or state is None else state["batches"]
        elif state is not None:
            run.delivered = state["batches"]
            run.beyond = {run.delivered + ahead for ahead in state["beyond"]}
            run.extra = {key: state[key] for key in EXTRAS if key in state}
        return self._begun(run, sampler_epoch)

    def _begun(self, run: Run, sampler_epoch: int | None, resume: dict[str, Any] | None = None) -> Run:
        """Make it the newest run; `resume`: the state that the one after it begins from."""
        self.run, self.next, self.resume = run, run.epoch + 1, resume
        self._told, self._sampler_epoch = None, sampler_epoch
        return run

    def asks(self, run: Run, generator: torch.Generator | None, *, into_next: bool) -> Iterator[Ask]:
        """Yield the run's asks; with `into_next`, our own order continues into later epochs."""
        if run.order == "planned":
            return self._planned(run, into_next)
        if run.order == "streamed":
            return streamed(self.source.batch_size, epoch=run.epoch, start=run.delivered)
        replay = SamplerReplay(self.source.index_sampler, generator, run)
        return replay.asks(auto_collation=self.source.batch_sampler is not None)

    def _planned(self, run: Run, into_next: bool) -> Iterator[Ask]:
        assert run.plan is not None
        self.burn_draw()
        yield from planned(run.plan, base=run.base, skip=frozenset(run.beyond))
        ahead = self._ahead = dict[int, EpochPlan]()
        for epoch in count(run.epoch + 1) if into_next else ():
            try:
                plan = self.plan(epoch)
            except ConfigError:
                return  # its `iter()` says why, not this epoch's `next()`
            if not plan.batches:
                return  # later epochs are empty, too
            ahead[plan.epoch] = plan
            yield from planned(plan)

    def is_asked_for(self, run: Run) -> bool:
        """Return whether the prefetched batches are this run's: batch size or dataset may have changed since."""
        return self._ahead.pop(run.epoch, None) == run.plan

    def retold(self, run: Run) -> bool:
        """Return whether another epoch was set between `iter()` and the first batch, as Lightning does on resume."""
        if run.base or run.delivered or run.beyond or run.over is not None:
            return False
        told, sampler_epoch = self._newly_told()
        if told is None or told == run.epoch == run.extra.get("sampler_epoch", told):
            self._told, self._sampler_epoch = None, sampler_epoch
            return False
        return True  # `new_run` begins it

    def _newly_told(self) -> tuple[int | None, int | None]:
        """Return the epoch set since the last one began, on the loader or on a DistributedSampler, and the latter's."""
        on_sampler = epoch_of(self.source.index_sampler)
        is_new = self._told is None and on_sampler != self._sampler_epoch
        return on_sampler if is_new else self._told, on_sampler

    # ---- states

    def state(self) -> dict[str, Any]:
        source, run = self.source, self.run
        at_end = run is not None and run.over is not None and not run.finished
        if self.resume is not None and not at_end:
            return deepcopy(self.resume)
        state = fresh_state(source.order, self.seed, self.next) if run is None else run.state()
        state |= source.identity.facts()
        if source.times > 1:
            state["reuse"] = {"times": source.times, "kept": self.kept}
        if hasattr(source.dataset, "state_dict") and not source.streams:
            state["dataset"] = deepcopy(source.dataset.state_dict())
        return state

    def load(self, state: dict[str, Any], generator: torch.Generator | None, *, strict: bool = True) -> bool:
        """Load a state; return whether existing workers cannot continue with it."""
        source, before = self.source, (self.seed, self.kept)
        state = fitted(deepcopy(state), source.identity, strict=strict)
        self.kept = reuse_of(state, source.times, self.kept)
        warn_of_seed(state["seed"], self.given)
        if "dataset" in state and hasattr(source.dataset, "load_state_dict"):
            source.dataset.load_state_dict(deepcopy(state["dataset"]))
        if (not state["batches"] or "over" in state) and "generator" in state:
            set_generator(source.index_sampler, generator, state["generator"])
        self.resume = state
        self.run = None
        self.next = state["epoch"]
        self.keyed = state.get("keyed", self.keyed)
        if state["seed"] is not None:
            self.seed = state["seed"]
        return source.streams or (self.seed, self.kept) != before
