"""`penstock.DataLoader`: torch's DataLoader, with batches that do not depend on who prepares them.

The class is the façade: it takes torch's arguments and ours, decides which order and which iterator an epoch gets, and
keeps what must survive between epochs (seed, position, counters). The work is done in `engine/`.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.multiprocessing
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe

from penstock.config import Options
from penstock.engine.build import blueprint_of
from penstock.engine.device import DeviceIterator, check_device
from penstock.engine.feed import Ask, planned, streamed
from penstock.engine.inline import InlineIterator, prepare_keyed, prepare_next
from penstock.engine.iterator import EngineIterator
from penstock.engine.progress import Run, check_state, fresh_state, resume_plan
from penstock.engine.replay import SamplerReplay, epoch_of, set_generator
from penstock.engine.shard import ShardSampler, resolve_shard, shared_seed
from penstock.engine.streams import resumed_streams
from penstock.errors import ConfigError
from penstock.lanes.prepare import Preparer, Recipe, Stopped, Streamer, Where
from penstock.measure import host
from penstock.measure.counters import Counters, as_stats
from penstock.measure.skips import Skips
from penstock.plan.epoch import EpochPlan
from penstock.policy.diagnosis import diagnose
from penstock.policy.workers import auto_workers

EXTRAS = ("generator", "sampler", "sampler_epoch", "samples", "workers", "last_worker")
"""Parts of a state that belong to the user's sampler or dataset."""
T_co = TypeVar("T_co", covariant=True)


def local_world() -> int:
    """Training processes on this machine, by torchrun's word."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1))


def count_workers() -> int:
    return auto_workers(
        affinity=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        quota=host.cpu_quota(),
        local_world=local_world(),
    )


class DataLoader(TorchDataLoader[T_co]):
    """Drop-in for `torch.utils.data.DataLoader`: the same parameters in the same order, then keywords of ours.

    seed: every random draw is a function of (seed, epoch, position, sample); default: torch's base-seed draw.
    shard: None, "auto" (torch.distributed or torchrun) or (rank, world): this rank's stripe of the global order.
    device: batches arrive there, copied in the background; dtype, memory_format: of its image (4-D) tensors.
    task_size: samples per task, or "auto".  prefetch_batches: batches prepared ahead.
    hang_timeout: seconds after which a silent worker is replaced; default: warn every minute.
    on_error: "raise", "skip" or "replace" a sample that fails; max_skipped: how many before it is an error after all.
    worker_memory: private bytes above which a worker is replaced ("2GiB").  slab_bytes: shared memory for batches.
    trace: file for a Chrome/Perfetto trace of the run.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int | str = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        shard: Any = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
        task_size: int | str = "auto",
        prefetch_batches: int | None = None,
        hang_timeout: float | None = None,
        on_error: str = "raise",
        max_skipped: int = 100,
        worker_memory: int | str | None = None,
        slab_bytes: int | str = "auto",
        trace: str | os.PathLike[str] | None = None,
    ) -> None:
        self._options = Options.checked(
            seed=seed,
            task_size=task_size,
            prefetch_batches=prefetch_batches,
            hang_timeout=hang_timeout,
            on_error=on_error,
            max_skipped=max_skipped,
            worker_memory=worker_memory,
            slab_bytes=slab_bytes,
        )
        check_device(device, dtype, memory_format)
        if isinstance(num_workers, str):
            if num_workers != "auto":
                raise ConfigError(f"num_workers must be a number or 'auto', got {num_workers!r}")
            num_workers = count_workers()
        self._own_order = sampler is None and batch_sampler is None and generator is None
        self._shuffles = bool(shuffle)
        self._rank, self._world = 0, 1
        if shard is not None:
            sampler, shuffle = self._sharded(dataset, shard, shuffle, sampler, batch_sampler, drop_last), None
        super().__init__(
            dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory, drop_last, timeout,
            worker_init_fn, multiprocessing_context, generator, prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers, pin_memory_device=pin_memory_device, in_order=in_order,
        )  # fmt: skip
        self.seed, self.shard, self.device, self.dtype, self.memory_format = (
            seed,
            shard,
            device,
            dtype,
            memory_format,
        )
        self.task_size, self.prefetch_batches, self.hang_timeout = task_size, prefetch_batches, hang_timeout
        self.on_error, self.max_skipped, self.trace = on_error, max_skipped, trace
        self.worker_memory, self.slab_bytes = worker_memory, slab_bytes
        self._seed: int | None = seed
        self._next_epoch = 0
        self._told: int | None = None
        self._sampler_epoch: int | None = 0
        self._run: Run | None = None
        self._resume: dict[str, Any] | None = None
        self._skips = Skips(max_skipped)
        self._counters = Counters(workers=self.num_workers, trace=trace is not None)
        if isinstance(self.sampler, ShardSampler):
            self.sampler.plan_of = self._plan
            self.sampler.on_set_epoch = self.set_epoch
        elif (
            type(self.sampler) is SequentialSampler
            and batch_sampler is None
            and self.sampler.data_source is dataset
        ):
            self._own_order = True

    def _sharded(
        self,
        dataset: Any,
        shard: Any,
        shuffle: bool | None,
        sampler: Any,
        batch_sampler: Any,
        drop_last: bool,
    ) -> ShardSampler:
        if sampler is not None or batch_sampler is not None:
            raise ConfigError(
                "shard together with a sampler or batch_sampler would shard twice: give one of them"
            )
        if isinstance(dataset, IterableDataset):
            raise ConfigError(
                "shard needs a map-style dataset: an iterable one shards itself, by get_worker_info()"
            )
        self._own_order = True
        self._rank, self._world = resolve_shard(shard)
        return ShardSampler(dataset, self._rank, self._world, shuffle=bool(shuffle), drop_last=drop_last)

    # ---- iteration

    def __iter__(self) -> Any:
        reason = self._not_ours()
        if reason is not None:
            return super().__iter__()
        self._counters.begin(time.monotonic())
        if self.num_workers == 0:
            return self._iterate_inline()
        if not self.persistent_workers:
            return self._iterate_workers(self._new_engine(), fresh=True)
        kept: Any = self._iterator
        if kept is not None and not kept.closed:
            return self._iterate_workers(kept, fresh=False)
        self._iterator = self._new_engine()
        return self._iterate_workers(self._iterator, fresh=True)

    def _not_ours(self) -> str | None:
        """Why torch's own iterator runs instead of ours, or None."""
        if os.environ.get("PENSTOCK_DISABLE", "") not in ("", "0"):
            return "PENSTOCK_DISABLE is set"
        if isinstance(self.dataset, (IterDataPipe, MapDataPipe)):
            return "DataPipes are torch's own"
        if sys.platform != "linux" and self.num_workers:
            warnings.warn(
                f"penstock's engine needs Linux; on {sys.platform} torch's workers are used", stacklevel=3
            )
            return "not Linux"
        return None

    def _iterate_inline(self) -> Any:
        if self.timeout:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        if self.on_error != "raise" and self._streams:
            raise ConfigError(
                "on_error needs a map-style dataset: an iterable one cannot go on behind a failure"
            )
        states, _ = resumed_streams(self._resume, 0)
        run, asks = self._begin(lazily=True)
        recipe = self._recipe(run.seed)
        if self._streams:
            prepare = prepare_next(Streamer(recipe, self.drop_last, (states or {}).get(0)))
        else:
            prepare = prepare_keyed(recipe, self._skips.add)
        iterator = self._to_device(InlineIterator(prepare, asks, self._counters))
        self._bind(iterator, run)
        self._fast_forward(iterator, run)
        return iterator

    def _fast_forward(self, iterator: Any, run: Run) -> None:
        """An iterable dataset that cannot say where it stood is iterated again; what was delivered is thrown away."""
        skip = run.delivered if self._streams and "workers" not in run.extra else 0
        if skip:
            warnings.warn(
                f"resuming an iterable dataset without state_dict(): {skip} batches are prepared again and thrown away",
                stacklevel=3,
            )
        for _ in range(skip):
            if iterator.pull() is None:
                break

    def _new_engine(self) -> Any:
        self.check_worker_number_rationality()
        base_seed = self._draw()
        self._settle_seed(base_seed)
        iter(self._index_sampler)  # torch's iterator asks twice, and a user's sampler may count or draw there
        engine = EngineIterator(
            blueprint_of(
                self,
                self._options,
                self._recipe(self._seed),
                base_seed=base_seed,
                local_world=local_world(),
                resume=self._resume,
            ),
            window=self._window,
            timeout_s=self.timeout,
            counters=self._counters,
            on_skip=self._skips.add,
        )
        return self._to_device(engine)

    def _iterate_workers(self, engine: Any, *, fresh: bool) -> Any:
        if not fresh and self._resume is None and self._prefetches_next:
            run = self._new_run()
            if engine.proceed(run.epoch):
                self._burn_sampler_draw()
                self._bind(engine, run)
                return engine
            self._next_epoch -= 1
        try:
            run, asks = self._begin(lazily=False)
            self._bind(engine, run)
            engine.begin(asks, run.epoch)
            self._fast_forward(engine, run)
        except BaseException:
            engine.close()
            raise
        return engine

    def _bind(self, engine: Any, run: Run) -> None:
        keep, held = self.persistent_workers, weakref.ref(engine)
        # No cycles: a dropped iterator, or a dropped loader that keeps its workers, ends its processes at once. Without
        # persistent workers the loader does not refer to the iterator, so the iterator may keep the loader.
        loader: Callable[[], Any] = weakref.ref(self) if keep else lambda: self

        def end() -> None:
            run.finished = True
            owner, ended = loader(), held()
            if owner is not None:
                owner._write_trace()
            if ended is not None and not keep and hasattr(ended, "close"):
                ended.close()

        def settle() -> None:
            owner = loader()
            if owner is not None:
                owner._settle_epoch(held(), run)

        engine.on_delivered, engine.on_end, engine.before_first = run.deliver, end, settle
        sampler = self._index_sampler
        engine.length = lambda: len(sampler)

    def _settle_epoch(self, engine: Any, run: Run) -> None:
        """The epoch is settled with its first batch: Lightning, when it resumes, sets it only after `iter()`."""
        if run.base or run.delivered or run.beyond:
            return
        told = self._told_epoch()
        if told is None or told == run.epoch == run.extra.get("sampler_epoch", told):
            return
        self._next_epoch = told
        run, asks = self._begin(lazily=False)
        self._bind(engine, run)
        engine.begin(asks, run.epoch)

    def _told_epoch(self) -> int | None:
        """The epoch set since an epoch last began, on us or on a DistributedSampler."""
        told, self._told = self._told, None
        before, self._sampler_epoch = self._sampler_epoch, epoch_of(self._index_sampler)
        return self._sampler_epoch if told is None and self._sampler_epoch != before else told

    def _to_device(self, iterator: Any) -> Any:
        pins = self.pin_memory and torch.accelerator.is_available()
        if self.pin_memory and not pins:
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory won't be used.",
                stacklevel=4,
            )
        if self.device is None and not pins:
            return iterator
        return DeviceIterator(iterator, self.device, self.dtype, self.memory_format, pin=pins)

    # ---- order

    @property
    def _streams(self) -> bool:
        return isinstance(self.dataset, IterableDataset)

    @property
    def _order(self) -> str:
        if self._streams:
            return "streamed"
        batches = self.batch_sampler
        untouched = batches is None or (type(batches) is BatchSampler and batches.sampler is self.sampler)
        return "planned" if self._own_order and untouched else "sampled"

    @property
    def _window(self) -> int:
        if self.prefetch_batches is not None:
            return self.prefetch_batches
        assert self.prefetch_factor is not None
        if self.prefetch_factor <= 0:
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        return self.prefetch_factor * self.num_workers

    @property
    def _prefetches_next(self) -> bool:
        """Whether the next epoch is asked for before this one has ended."""
        return self.persistent_workers and self.in_order and self._order == "planned" and self.num_workers > 0

    def _recipe(self, seed: int | None) -> Recipe:
        assert seed is not None
        assert self.collate_fn is not None
        return Recipe(
            dataset=self.dataset,
            collate_fn=self.collate_fn,
            auto_collation=self._auto_collation,
            seed=seed,
            on_error=self.on_error,
        )

    def _draw(self) -> int:
        """The draw that torch's iterator makes for its base seed."""
        return int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())

    def _burn_sampler_draw(self) -> None:
        """The draw that torch's RandomSampler would make when it starts; our order does not need it."""
        if self._shuffles and type(self.sampler) is RandomSampler:
            torch.empty((), dtype=torch.int64).random_().item()

    def _settle_seed(self, drawn: int) -> None:
        if self._resume is not None and self._resume["seed"] is not None:
            self._seed = self._resume["seed"]
        if self._seed is None:
            self._seed = drawn if self.shard is None else shared_seed(drawn)

    def _plan(self, epoch: int) -> EpochPlan:
        return EpochPlan(
            length=len(self.dataset),  # type: ignore[arg-type]
            batch_size=getattr(self.batch_sampler, "batch_size", 1),
            drop_last=getattr(self.batch_sampler, "drop_last", False),
            shuffle=self._shuffles,
            seed=self._seed or 0,
            epoch=epoch,
            rank=self._rank,
            world=self._world,
        )

    def _new_run(self) -> Run:
        """The next epoch, from its start or from where a loaded state left it."""
        state, self._resume = self._resume, None
        assert self._seed is not None
        told = self._told_epoch()
        if state is not None:
            epoch, self._sampler_epoch = state["epoch"], state.get("sampler_epoch", self._sampler_epoch)
        else:
            epoch = self._next_epoch if told is None else told
        self._next_epoch = epoch + 1
        run = Run(self._order, self._seed, epoch)
        if run.order == "planned":
            run.plan = self._plan(epoch)
            if state is not None:
                run.plan = resume_plan(run.plan, state)
                run.base, run.beyond = state["batches"], set(state["beyond"])
            run.total = run.plan.batches
        elif state is not None:
            run.delivered, run.beyond = state["batches"], set(state["beyond"])
            run.extra = {key: state[key] for key in EXTRAS if key in state}
        self._run = run
        return run

    def _begin(self, *, lazily: bool) -> tuple[Run, Iterator[Ask]]:
        """The next epoch and its asks; `lazily` delays what torch does at the first `next()` until then."""
        if lazily:
            iter(self._index_sampler)
            self._settle_seed(self._draw())
        run = self._new_run()
        if run.order == "planned":
            return run, self._planned_asks(run)
        if run.order == "streamed":
            start = run.delivered if "workers" in run.extra else 0
            return run, streamed(self.batch_size or 1, epoch=run.epoch, start=start)
        replay = SamplerReplay(self._index_sampler, self.generator, run)
        return run, replay.asks(auto_collation=self._auto_collation)

    def _planned_asks(self, run: Run) -> Iterator[Ask]:
        assert run.plan is not None
        self._burn_sampler_draw()
        yield from planned(run.plan, base=run.base, skip=frozenset(run.beyond))
        epoch = run.epoch
        while self._prefetches_next and len(self.dataset):  # type: ignore[arg-type]
            epoch += 1
            yield from planned(self._plan(epoch))

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next `iter()` runs, or the last one did, if it has not delivered a batch yet."""
        self._next_epoch = self._told = epoch

    # ---- resume

    def state_dict(self) -> dict[str, Any]:
        """Where the newest iterator stands: small, JSON-able, counting batches that were delivered."""
        if self._resume is not None:
            return dict(self._resume)
        if self._run is None:
            state = fresh_state(self._order, self._seed, self._next_epoch)
        else:
            state = self._run.state()
        if hasattr(self.dataset, "state_dict") and not self._streams:
            state["dataset"] = self.dataset.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next `iter()` continues where `state` was taken."""
        check_state(state, self._order)
        if "dataset" in state and hasattr(self.dataset, "load_state_dict"):
            self.dataset.load_state_dict(state["dataset"])
        if not state["batches"] and "generator" in state:
            set_generator(self._index_sampler, self.generator, state["generator"])
        self._resume = dict(state)
        self._next_epoch = state["epoch"]

    # ---- looking in

    def stats(self) -> dict[str, Any]:
        """Numbers of this loader's life so far."""
        engine = "torch" if self._not_ours() else "workers" if self.num_workers else "inline"
        self._counters.skipped = len(self._skips)
        return as_stats(
            self._counters, engine=engine, epoch=self._run.epoch if self._run else self._next_epoch
        )

    def diagnose(self) -> str:
        """One sentence: what limits this run, and what would help."""
        return diagnose(self.stats(), cores=count_workers())

    def skipped(self) -> list[dict[str, Any]]:
        """Samples that `on_error` left out or replaced, with their errors."""
        return self._skips.report()

    def debug(self, index: Any, epoch: int = 0) -> Any:
        """One sample, prepared in this process with the randomness it has in `epoch`, so that a debugger can step in."""
        if self._streams:
            raise ConfigError("debug needs a map-style dataset")
        if self._seed is None:
            self._seed = self._draw()
        position = int(index) if isinstance(index, int) else 0
        if self._order == "planned" and isinstance(index, int):
            import numpy as np

            position = int(self._plan(epoch).find(np.array([index]))[0])
        preparer = Preparer(self._recipe(self._seed))
        try:
            return next(sample for _, sample in preparer.samples(Where(epoch, 0, position, 1, 0), [index]))
        except Stopped as stopped:
            raise stopped.original from None

    def _write_trace(self) -> None:
        if self.trace is not None:
            from penstock.measure.trace import write_trace

            write_trace(self.trace, self._counters)
