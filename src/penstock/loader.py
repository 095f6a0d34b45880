"""`penstock.DataLoader`: torch's DataLoader, with batches that do not depend on who prepares them.

The class is the façade: it takes torch's arguments and ours, decides which order and which iterator an epoch gets, and
keeps what must survive between epochs (seed, position, counters). The work is done in `engine/`.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import SequentialSampler
from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe

from penstock.config import GpuPrep, Options, Reuse
from penstock.engine.advice import advice, explanation
from penstock.engine.arguments import check_adopt, check_lane, check_num_workers, say_once
from penstock.engine.device import brought
from penstock.engine.epochs import Epochs, Source
from penstock.engine.feed import Ask
from penstock.engine.fitting import checked_interval
from penstock.engine.gpu_choice import helped, lane_stats, refuse_without_workers, reusing_of
from penstock.engine.inline import InlineIterator, InlineStream, prepare_keyed
from penstock.engine.looking import debugged, in_words
from penstock.engine.mover import check_device, moved, mover_for
from penstock.engine.portable import over_torchs_workers
from penstock.engine.progress import Promise, Run, fast_forward
from penstock.engine.replay import length_of
from penstock.engine.shard import ShardSampler, check_still_alone, dealt, shared_seed
from penstock.engine.trainers import AskedByAccelerate, as_trainers_mean, keywords_of
from penstock.engine.worker_count import AUTO, WorkerCount, auto_number, check_workers, window_of
from penstock.errors import ConfigError
from penstock.lanes.prepare import Recipe
from penstock.measure.counters import Counters, as_stats
from penstock.measure.skips import Skips
from penstock.measure.trace import check_trace, trace_writer

T_co = TypeVar("T_co", covariant=True)


class DataLoader(TorchDataLoader[T_co]):
    """Drop-in for `torch.utils.data.DataLoader`: the same parameters in the same order, then keywords of ours.

    seed: every random draw is a function of (seed, epoch, position, sample); default: torch's base-seed draw.
    shard: None, "auto" (torch.distributed or torchrun) or (rank, world): this rank's stripe of the global order.
    device: batches arrive there, copied in the background; dtype, memory_format: of its image (4-D) tensors.
    task_size: samples per task, or "auto".  prefetch_batches: batches prepared ahead.
    hang_timeout: seconds after which a silent worker is replaced; default: warn every minute.
    snapshot_every_n_steps: batches after which an iterable dataset is asked for its state again, as torchdata's loader does.
    on_error: "raise", "skip" or "replace" a sample that fails; max_skipped: how many before it is an error after all.
    worker_memory: private bytes above which a worker is replaced ("2GiB").  slab_bytes: shared memory for batches.
    trace: file for a Chrome/Perfetto trace of the run.
    gpu_prep: "auto": the GPU prepares a share of each batch where that makes training faster (docs/gpu.md); "concurrent", "idle", "off".
    deterministic: fixes who prepares which sample.
    reuse: a `penstock.Reuse`: partly prepared samples are kept and used several times (docs/reuse.md).
    adopt: prepare torchvision's ImageFolder by our own ops, with the same pixels; "fast_decode": with near ones; False: not.
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
        snapshot_every_n_steps: int | None = 1,
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
        gpu_prep: str | GpuPrep = "auto",
        deterministic: bool | None = None,
        reuse: Reuse | None = None,
        adopt: bool | str = True,
    ) -> None:
        check_adopt(adopt)
        GpuPrep.of(gpu_prep)
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
        check_trace(trace)
        auto = 0
        if isinstance(num_workers, str):
            if num_workers != AUTO:
                raise ConfigError(f"num_workers must be a number or 'auto', got {num_workers!r}")
            num_workers = auto = auto_number(device, gpu_prep)
        check_num_workers(num_workers)
        given = sampler, batch_sampler, generator
        sampler, shuffle, rank, world, shuffles, own = dealt(
            dataset, shuffle, given, shard, drop_last=drop_last
        )
        super().__init__(
            dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory, drop_last, timeout,
            worker_init_fn, multiprocessing_context, generator, prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers, pin_memory_device=pin_memory_device, in_order=in_order,
        )  # fmt: skip
        self.seed, self.shard, self.device = seed, shard, device
        self.snapshot_every_n_steps = checked_interval(snapshot_every_n_steps)
        self.dtype, self.memory_format = dtype, memory_format
        self.task_size, self.prefetch_batches, self.hang_timeout = task_size, prefetch_batches, hang_timeout
        self.on_error, self.max_skipped, self.trace = on_error, max_skipped, trace
        self.worker_memory, self.slab_bytes, self.adopt = worker_memory, slab_bytes, adopt
        self.gpu_prep, self.deterministic, self.reuse = gpu_prep, deterministic, reuse
        self._reusing = reusing_of(self)
        check_lane(device, gpu_prep)
        if type(self.sampler) is SequentialSampler and batch_sampler is None:
            own = self.sampler.data_source is dataset
        source = Source(
            dataset=self.dataset,
            sampler=self.sampler,
            batch_sampler=self.batch_sampler,
            own=own,
            shuffles=shuffles,
            rank=rank,
            world=world,
            batch_size=self.batch_size or 1,
            times=1 if reuse is None else reuse.times,
        )
        self._epochs = Epochs(source, self._options.seed, self._reusing.kept if self._reusing else 0)
        if isinstance(self.sampler, ShardSampler):
            self.sampler.plan_of = self._epochs.plan
            self.sampler.on_set_epoch = self._epochs.set_epoch
        if self.num_workers and sys.platform == "linux":
            import penstock.engine.build
            import penstock.engine.iterator  # noqa: F401 - here, so that the first iter() does not wait for it

        self._skips, self._crew = Skips(max_skipped), WorkerCount(auto)
        self._counters = Counters(workers=self.num_workers, trace=trace is not None)

    # ---- iteration

    def __iter__(self) -> Any:
        return super().__iter__() if self._not_ours() else self._iterate(keep=self.persistent_workers)

    def _get_iterator(self) -> Any:
        """torch's way to an iterator of one's own, for subclasses that call it (ultralytics' InfiniteDataLoader)."""
        return super()._get_iterator() if self._not_ours() else self._iterate(keep=False)

    def _iterate(self, *, keep: bool) -> Any:
        self._follow_samplers()
        check_still_alone(self.shard, self._epochs.source.world)
        self._counters.begin(time.monotonic())
        if self._epochs.is_over:
            return self._iterate_nothing()
        if self.num_workers == 0:
            return self._iterate_inline()
        if sys.platform != "linux":
            return self._iterate_portable()
        if not keep:
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
        if sys.platform != "linux" and self._epochs.source.streams:
            return "only Linux has our engine"
        return None

    def _iterate_inline(self) -> Any:
        if self.timeout:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        streams = self._epochs.source.streams
        if self.on_error != "raise" and streams:
            raise ConfigError(
                "on_error needs a map-style dataset: an iterable one cannot go on behind a failure"
            )
        refuse_without_workers(self)
        iter(self._index_sampler)
        self._draw()
        run, asks = self._begin()
        prepare: Any = prepare_keyed(self._recipe(), self._skips.add)
        if streams:
            prepare = InlineStream(self._recipe(), self.drop_last, self.snapshot_every_n_steps or 0, run)
        iterator = InlineIterator(moved(prepare, mover_for(self)), asks, self._counters)
        iterator.told = getattr(prepare, "told", iterator.told)
        self._bind(iterator, run)
        fast_forward(iterator, run)
        return iterator

    def _iterate_nothing(self) -> Any:
        """A loaded state has the last batch in hand: of its epoch there are none left."""
        run = self._epochs.new_run()
        iterator = InlineIterator(prepare_keyed(self._recipe(), self._skips.add), iter(()), self._counters)
        self._bind(iterator, run)
        return iterator

    def _iterate_portable(self) -> Any:
        """Where our engine cannot run: the same order and randomness, over torch's own workers."""
        self._draw()
        iter(self._index_sampler)
        run, asks = self._begin()
        prepare, asks = over_torchs_workers(self, self._recipe(), asks, self._skips.add)
        iterator = InlineIterator(moved(prepare, mover_for(self)), asks, self._counters)
        self._bind(iterator, run)
        return iterator

    def _new_engine(self) -> Any:
        from penstock.engine.build import blueprint_of  # Linux only, as all that these import
        from penstock.engine.iterator import EngineIterator

        crew, follows = self._crew, self._crew.auto == self.num_workers and not self._epochs.source.streams
        if follows:
            crew.auto = self.num_workers = auto_number(self.device, self.gpu_prep)
        self._counters.workers = self.num_workers
        self.check_worker_number_rationality()
        base_seed = self._epochs.based_on(self._draw())
        iter(self._index_sampler)  # torch's iterator asks twice, and a user's sampler may count or draw there
        recipe, helper = helped(self, self._recipe(), shuffles=self._epochs.source.shuffles)
        engine = EngineIterator(
            blueprint_of(
                self,
                self._options,
                recipe,
                base_seed=base_seed,
                follows=follows,
                epochs=self._epochs,
            ),
            window=window_of(self, recipe),
            timeout_s=self.timeout,
            counters=self._counters,
            on_skip=self._skips.add,
        )
        try:
            engine.on_workers = crew.follower(self)
            return crew.joined_by(brought(engine, mover_for(self, helper), self._counters))
        except BaseException:
            engine.close()
            raise

    def check_worker_number_rationality(self) -> None:
        say_once(self.num_workers, super().check_worker_number_rationality)

    def _iterate_workers(self, engine: Any, *, fresh: bool) -> Any:
        if not fresh and self._epochs.resume is None and self._prefetches_next:
            run = self._epochs.new_run()
            if self._epochs.is_asked_for(run) and engine.proceed(run.epoch):
                self._epochs.burn_draw()
                self._bind(engine, run)
                return engine
            self._epochs.next -= 1
        try:
            run, asks = self._begin()
            self._bind(engine, run)
            engine.begin(asks, run.epoch)
            fast_forward(engine, run)
        except BaseException:
            engine.close()
            raise
        return engine

    def _bind(self, engine: Any, run: Run) -> None:
        keep, held = self.persistent_workers, weakref.ref(engine)
        # No cycles: a dropped iterator, or a dropped loader that keeps its workers, ends its processes at once. Without
        # persistent workers the loader does not refer to the iterator, so the iterator may keep the loader.
        loader: Callable[[], Any] = weakref.ref(self) if keep else lambda: self

        save = trace_writer(self.trace, self._counters, loader)
        if self.trace is not None and not keep:
            weakref.finalize(engine, save)  # an epoch that is broken off has no other end

        def end() -> None:
            run.finished = True
            ended = held()
            save()
            if ended is not None and not keep and hasattr(ended, "close"):
                ended.close()

        def settle() -> None:
            owner = loader()
            if owner is not None:
                owner._settle_epoch(held(), run)

        run.streams.follow(engine, carries=keep or not self.num_workers, base_seed=self._epochs.base_seed)
        engine.run, engine.on_end, engine.before_first = run, end, settle
        sampler = self._index_sampler
        engine.length = lambda: len(sampler)

    def _settle_epoch(self, engine: Any, run: Run) -> None:
        """The epoch is settled with its first batch: Lightning, when it resumes, sets it only after `iter()`."""
        if self._epochs.retold(run):
            run, asks = self._begin()
            self._bind(engine, run)
            engine.begin(asks, run.epoch)

    # ---- order

    def _follow_samplers(self) -> None:
        self._epochs.source = self._epochs.source.following(self.sampler, self.batch_sampler)

    @property
    def _prefetches_next(self) -> bool:
        """Whether the next epoch is asked for before this one has ended."""
        planned = self._epochs.source.order == "planned"
        return self.persistent_workers and self.in_order and planned and self.num_workers > 0

    def _recipe(self) -> Recipe:
        assert self._epochs.seed is not None
        assert self.collate_fn is not None
        dataset = (self._adopted() if self.adopt else None) or self.dataset
        if self._reusing is not None:
            shared = self.shard is not None
            dataset = self._reusing.dataset(dataset, self._epochs.seed, self._epochs.kept, shared=shared)
        return Recipe(
            dataset=dataset,
            collate_fn=self.collate_fn,
            auto_collation=self._auto_collation,
            seed=self._epochs.seed,
            on_error=self.on_error,
        )

    def _adopted(self) -> Any:
        """A dataset of ours that reads the user's, where theirs is torchvision's: nobody else has loaded torchvision."""
        if "torchvision.datasets" not in sys.modules:
            return None
        from penstock.pipeline.adopt import adopted

        return adopted(self.dataset, fast=self.adopt == "fast_decode")

    def _draw(self) -> int:
        """The draw that torch's iterator makes for its base seed; the first one is our seed, if none was given."""
        drawn = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())
        if self._epochs.seed is None:
            alone = self.shard is None
            self._epochs.seed = drawn if alone else shared_seed(drawn, self._epochs.source.world)
        return drawn

    def _begin(self) -> tuple[Run, Iterator[Ask]]:
        run = self._epochs.new_run(self.num_workers)
        said: int | None = getattr(self, "_IterableDataset_len_called", None)
        if said is not None:
            run.promise = Promise(said, self.dataset, self.num_workers)
        return run, self._epochs.asks(run, self.generator, into_next=self._prefetches_next)

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next `iter()` runs, or the last one did, if it has not delivered a batch yet."""
        self._epochs.set_epoch(epoch)

    def set_workers(self, workers: int | str) -> None:
        """There are to be so many workers from now on, or "auto": at once in an epoch that runs, without a pause. New ones start in
        the background, surplus ones finish what they have and leave; batches do not change."""
        streams, auto = self._epochs.source.streams, workers == AUTO
        number = auto_number(self.device, self.gpu_prep) if auto else check_workers(workers)
        engines = self._crew.engines(self.num_workers, streams=streams)
        self.num_workers = self._counters.workers = number
        self._crew.auto = number if auto else 0
        for engine in engines:
            engine.close() if streams else engine.set_workers(number, follows=auto)

    # ---- resume

    def state_dict(self) -> dict[str, Any]:
        """Where the newest iterator stands: small, JSON-able, counting batches that were delivered."""
        self._follow_samplers()
        return self._epochs.state()

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """The next `iter()` continues where `state` was taken. With another dataset or order it is a `StateError`; `strict=False` keeps
        the seed and the epoch, and starts the epoch over."""
        self._follow_samplers()
        kept: Any = self._iterator if self.persistent_workers else None
        state = as_trainers_mean(state, sys._getframe(1), lambda: length_of(self))
        if self._epochs.load(state, self.generator, strict=strict) and kept is not None:
            kept.close()  # its workers draw as they did

    # ---- trainers

    _is_accelerate_prepared = AskedByAccelerate()

    @property
    def penstock_keywords(self) -> dict[str, Any]:
        """The keywords that torch's DataLoader does not have, as they were given."""
        return keywords_of(self)

    # ---- looking in

    def stats(self) -> dict[str, Any]:
        """Numbers of this loader's life so far."""
        engine = "torch" if self._not_ours() else "workers" if self.num_workers else "inline"
        self._counters.skipped = len(self._skips)
        kept = self._reusing.stats(self._epochs.kept) if self._reusing is not None else None
        epoch = self._epochs.epoch
        return as_stats(self._counters, engine=engine, epoch=epoch, gpu=lane_stats(self), reuse=kept)

    def diagnose(self) -> str:
        """One sentence: what limits this run, and what would help."""
        return advice(self)

    def explain(self) -> str:
        """What is done to a sample, piece by piece, with its cost here and where it could run; a few samples are prepared for it."""
        return explanation(self)

    def skipped(self) -> list[dict[str, Any]]:
        """Samples that `on_error` left out or replaced, with their errors."""
        return self._skips.report()

    def debug(self, index: Any, epoch: int = 0) -> Any:
        """One sample, prepared in this process with the randomness it has in `epoch`, so that a debugger can step in."""
        return debugged(self, index, epoch)

    def __repr__(self) -> str:
        return in_words(self)
