"""`penstock.DataLoader`: torch's DataLoader, with batches that do not depend on who prepares them.

The class is the façade: it takes torch's arguments and ours, picks each epoch's order and iterator, and keeps what survives between epochs
(seed, position, counters). `client/`, `agent/` and `worker/` do the work.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import SequentialSampler

from penstock.client import worker_count
from penstock.client.advice import advice_on, could_be_asked, explanation
from penstock.client.arguments import TorchArguments, check_lane, check_on_error, say_once
from penstock.client.description import in_words
from penstock.client.gpu_choice import adopted_of, helped, refuse_without_workers, reusing_of
from penstock.client.inline import InlineIterator, InlineStream, prepare_keyed, prepare_one
from penstock.client.mover import check_device, moved, mover_for
from penstock.client.places import DeviceSide
from penstock.client.portable import over_torchs_workers, why_torchs_own
from penstock.client.trainers import AskedByAccelerate, as_trainers_mean, keywords_of
from penstock.config import KEYWORDS, Cache, GpuPrep, LoaderConfig, Remote, Reuse
from penstock.dataset.seeding import generators_kept
from penstock.epochs.epochs import Epochs, OrderSource
from penstock.epochs.feed import Ask
from penstock.epochs.progress import Promise, Run, fast_forward
from penstock.epochs.replay import length_of
from penstock.epochs.shard import ShardSampler, check_still_alone, dealt, shared_seed
from penstock.errors import ConfigError
from penstock.measure.counters import Counters, as_stats
from penstock.measure.skips import Skips
from penstock.measure.trace import check_trace, described, trace_writer
from penstock.worker.prepare import Recipe

T_co = TypeVar("T_co", covariant=True)

# For type checkers: each of our keywords is an attribute of the same name.
if TYPE_CHECKING:
    Attributes = LoaderConfig
else:
    Attributes = object


class DataLoader(TorchDataLoader[T_co], Attributes):
    """Drop-in for `torch.utils.data.DataLoader`: the same parameters in the same order, then our own keywords.

    `penstock.config.LoaderConfig` and docs/api.md describe the keywords.
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
        remote: Remote | None = None,
        cache: Cache | None = None,
        deal: str = "as_is",
        adopt: bool | str = True,
    ) -> None:
        given = locals()  # so that each keyword is written once, in the signature
        config = self._checked = LoaderConfig(**{name: given[name] for name in KEYWORDS})
        check_device(config)
        check_trace(trace)
        num_workers, auto = worker_count.number_of(num_workers, config)
        sampler, shuffle, rank, world, shuffles, own = dealt(
            dataset, shuffle, (sampler, batch_sampler, generator), shard, drop_last=drop_last
        )
        super().__init__(
            dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory, drop_last, timeout,
            worker_init_fn, multiprocessing_context, generator, prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers, pin_memory_device=pin_memory_device, in_order=in_order,
        )  # fmt: skip
        for name in KEYWORDS:
            setattr(self, name, getattr(config, name))
        self._reusing = reusing_of(config, self.dataset)
        check_lane(config)
        if type(self.sampler) is SequentialSampler and batch_sampler is None:
            own = self.sampler.data_source is dataset
        source = OrderSource(
            dataset=self.dataset,
            sampler=self.sampler,
            batch_sampler=self.batch_sampler,
            own=own,
            shuffles=shuffles,
            rank=rank,
            world=world,
            batch_size=self.batch_size or 1,
            times=1 if reuse is None else reuse.times,
            evens=cache is not None and cache.order == "even",
            deal=deal,
        )
        self._epochs = Epochs(source, config.plain_seed, self._reusing.kept if self._reusing else 0)
        if isinstance(self.sampler, ShardSampler):
            self.sampler.plan_of = self._epochs.plan
            self.sampler.on_set_epoch = self._epochs.set_epoch
        if self.num_workers and sys.platform == "linux":
            import penstock.client.engine  # noqa: F401 - here, so that the first iter() does not wait for it

        self._skips, self._on_device = Skips(max_skipped), DeviceSide()
        self._worker_count = worker_count.WorkerCount(auto)
        self._counters = Counters(workers=self.num_workers, trace=trace is not None)
        self._remote: Any = None
        self._cache: Any = None

    @property
    def _config(self) -> LoaderConfig:
        """Our keywords as the attributes are now: a trainer or a subclass may have changed them."""
        now = {name: getattr(self, name) for name in KEYWORDS}
        if any(value is not getattr(self._checked, name) for name, value in now.items()):
            self._checked = LoaderConfig(**now)
        return self._checked

    # ---- iteration

    def __iter__(self) -> Any:
        if self._not_ours():
            return super().__iter__()
        with self._epochs.begun_or_not():
            return self._iterate(keep=self.persistent_workers)

    def _get_iterator(self) -> Any:
        """Return a new iterator, for subclasses that call torch's method (ultralytics' InfiniteDataLoader)."""
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
        return why_torchs_own(self.dataset, streams=self._epochs.source.streams)

    def _iterate_inline(self) -> Any:
        if self.timeout:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        config, streams = self._config, self._epochs.source.streams
        check_on_error(config, streams=streams)
        refuse_without_workers(config)
        iter(self._index_sampler)
        self._draw()
        run, asks = self._begin()
        prepare: Any = prepare_keyed(self._recipe(), self._skips.add)
        if streams:
            prepare = InlineStream(self._recipe(), self.drop_last, config.snapshot_every_n_steps or 0, run)
        mover = mover_for(config, TorchArguments.of(self), self._on_device)
        iterator = InlineIterator(moved(prepare, mover), asks, self._counters)
        iterator.told = getattr(prepare, "told", iterator.told)
        self._bind(iterator, run)
        fast_forward(iterator, run)
        return iterator

    def _iterate_nothing(self) -> Any:
        """Return an empty iterator: the loaded state has the epoch's last batch in hand."""
        run = self._epochs.new_run()
        iterator = InlineIterator(prepare_keyed(self._recipe(), self._skips.add), iter(()), self._counters)
        self._bind(iterator, run)
        return iterator

    def _iterate_portable(self) -> Any:
        """Use torch's workers where our engine cannot run, with the same order and randomness."""
        self._draw()
        iter(self._index_sampler)
        run, asks = self._begin()
        given = TorchArguments.of(self)
        prepare, asks = over_torchs_workers(given, self._recipe(), asks, self._skips.add)
        mover = mover_for(self._config, given, self._on_device)
        iterator = InlineIterator(moved(prepare, mover), asks, self._counters)
        self._bind(iterator, run)
        return iterator

    def _new_engine(self) -> Any:
        from penstock.client import engine  # Linux only, like all its imports

        config, count, source = self._config, self._worker_count, self._epochs.source
        if follows := count.auto == self.num_workers and not source.streams:
            self._follow(worker_count.auto_number(config))
        self._counters.workers = self.num_workers
        self.check_worker_number_rationality()
        base_seed = self._epochs.based_on(self._draw())
        iter(self._index_sampler)  # torch calls it twice, and a user's sampler may count or draw there
        recipe, lane = helped(config, self._recipe(), self._on_device, shuffles=source.shuffles)
        given = TorchArguments.of(self)
        self._remote = engine.remote_side_of(config, self._remote)
        self._cache = engine.cache_side_of(config, self._cache, recipe, self._epochs, given)
        blueprint = engine.blueprint_of(
            config,
            given,
            recipe,
            base_seed=base_seed,
            follows=follows,
            spans=self._counters.trace,
            epochs=self._epochs,
            remote=self._remote,
            cache=self._cache,
        )
        return engine.started(
            blueprint,
            worker_count.window_of(config, given, recipe),
            self.timeout,
            self._counters,
            self._skips.add,
            worker_count.weakly(self._follow),
            lambda: mover_for(config, given, self._on_device, lane),
            count.joined_by,
        )

    def _follow(self, workers: int) -> None:
        """Note the current worker count of "auto"."""
        self.num_workers = self._worker_count.auto = workers

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
        # No cycles: dropping the iterator, or a loader with persistent workers, ends its processes at once. Without
        # persistent workers the loader does not refer to the iterator, so the iterator may keep the loader.
        loader: Callable[[], Any] = weakref.ref(self) if keep else lambda: self

        def about() -> dict[str, Any] | None:
            owner = loader()
            return None if owner is None else described(owner.stats(), owner.diagnose())

        save = trace_writer(self.trace, self._counters, about)
        if self.trace is not None and not keep:
            weakref.finalize(engine, save)  # an abandoned epoch has no other end

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
        """Fix the epoch at its first batch: on resume, Lightning sets it only after `iter()`."""
        if self._epochs.retold(run):
            run, asks = self._begin()
            self._bind(engine, run)
            engine.begin(asks, run.epoch)

    # ---- order

    def _follow_samplers(self) -> None:
        self._epochs.source = self._epochs.source.following(self.sampler, self.batch_sampler)

    @property
    def _prefetches_next(self) -> bool:
        """Whether to prefetch the next epoch before this one ends."""
        planned = self._epochs.source.order == "planned"
        return self.persistent_workers and self.in_order and planned and self.num_workers > 0

    def _recipe(self) -> Recipe:
        assert self._epochs.seed is not None
        assert self.collate_fn is not None
        dataset = adopted_of(self._config, self.dataset) or self.dataset
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

    def _draw(self) -> int:
        """Make the draw that torch's iterator makes for its base seed. The first one is our seed, if none was given."""
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
        """Set the epoch for the next `iter()`, or for the current one if it has not delivered a batch."""
        self._epochs.set_epoch(epoch)

    def set_workers(self, workers: int | str) -> None:
        """Change the worker count, even mid-epoch, without a pause; "auto" follows the cores. New workers start in the background, surplus
        ones finish their tasks and leave; batches do not change."""
        streams, auto = self._epochs.source.streams, workers == worker_count.AUTO
        number = worker_count.auto_number(self._config) if auto else worker_count.check_workers(workers)
        engines = self._worker_count.engines(self.num_workers, streams=streams)
        self.num_workers = self._counters.workers = number
        self._worker_count.auto = number if auto else 0
        for engine in engines:
            engine.close() if streams else engine.set_workers(number, follows=auto)

    # ---- resume

    def state_dict(self) -> dict[str, Any]:
        """Return the newest iterator's position: small, JSON-able, counting delivered batches only."""
        self._follow_samplers()
        return self._epochs.state()

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """Make the next `iter()` continue where `state` was taken. Another dataset or order raises `StateError`; `strict=False` keeps the seed
        and the epoch, and starts the epoch over."""
        self._follow_samplers()
        kept: Any = self._iterator if self.persistent_workers else None
        state = as_trainers_mean(state, sys._getframe(1), lambda: length_of(self))
        if self._epochs.load(state, self.generator, strict=strict) and kept is not None:
            kept.close()  # its workers use the old seed or place

    # ---- trainers

    _is_accelerate_prepared = AskedByAccelerate()

    @property
    def penstock_keywords(self) -> dict[str, Any]:
        """Our keywords, which torch's DataLoader lacks, as given."""
        return keywords_of(self._config, self._epochs.source)

    # ---- looking in

    def stats(self) -> dict[str, Any]:
        """Return the numbers of this loader's life so far."""
        engine = "torch" if self._not_ours() else "workers" if self.num_workers else "inline"
        self._counters.skipped = len(self._skips)
        lane, epoch = self._on_device.stats(), self._epochs.epoch
        # After the lane: workers count a sample as found before the lane gets it, and the next epoch may be on its way already.
        kept = self._reusing.stats(self._epochs.kept) if self._reusing is not None else None
        cache = self._cache and self._cache.stats()
        told = {"gpu": lane, "reuse": kept, "remote": self._remote, "cache": cache}
        return as_stats(self._counters, engine=engine, epoch=epoch, **told)

    def diagnose(self) -> str:
        """Return one sentence: the bottleneck of this run, and what would help."""
        gpu = could_be_asked(self._config, TorchArguments.of(self), self._on_device)
        return advice_on(self.stats(), gpu=gpu)

    def explain(self) -> str:
        """Describe each step of preparing a sample, its cost here and where it could run. Prepares a few samples to measure."""
        reusing, shuffles = self._reusing, self._epochs.source.shuffles
        line = "" if reusing is None else reusing.line(reusing.source, self._epochs.kept)
        given, sides = TorchArguments.of(self), {"remote": self._remote, "cache": self._cache}
        return explanation(self._config, given, self._on_device, shuffles=shuffles, reused=line, **sides)

    def skipped(self) -> list[dict[str, Any]]:
        """Return the samples that `on_error` dropped or replaced, with their errors."""
        return self._skips.report()

    def debug(self, index: Any, epoch: int = 0) -> Any:
        """Prepare one sample in this process with its randomness in `epoch`, so that a debugger can step in."""
        if self._epochs.source.streams:
            raise ConfigError("debug needs a map-style dataset")
        with generators_kept():
            if self._epochs.seed is None:
                self._draw()
            return prepare_one(self._recipe(), self._epochs.where(index, epoch), index)

    def __repr__(self) -> str:
        """Describe the loader. Never raises: it is also called while an error is inspected."""
        with suppress(Exception):  # a loader whose constructor has failed lacks attributes
            said = in_words(self._config, TorchArguments.of(self), self._epochs, self._worker_count.auto)
            return f"{type(self).__name__}({said})"
        return object.__repr__(self)
