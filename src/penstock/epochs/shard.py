"""One rank's share of our order, as trainers expect it: a `DistributedSampler` with `set_epoch`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler, IterableDataset

from penstock.errors import ConfigError
from penstock.plan.epoch import EpochPlan


def check_shardable(dataset: Any, sampler: Any, batch_sampler: Any) -> None:
    if sampler is not None or batch_sampler is not None:
        raise ConfigError(
            "shard together with a sampler or batch_sampler would shard twice: give one of them"
        )
    if isinstance(dataset, IterableDataset):
        raise ConfigError(
            "shard needs a map-style dataset: an iterable one shards itself, by get_worker_info()"
        )


def is_sharded(batch_sampler: Any) -> bool:
    """Return whether a trainer has wrapped the sampler of a loader with `shard` in this batch sampler."""
    return isinstance(getattr(batch_sampler, "sampler", None), ShardSampler)


def resolve_shard(shard: Any) -> tuple[int, int]:
    """Return (rank, world) of the given pair or of "auto": torch.distributed, else torchrun's environment, else one rank."""
    if shard == "auto":
        if has_group():
            return dist.get_rank(), dist.get_world_size()
        if not os.environ.keys() & {"RANK", "WORLD_SIZE"}:
            return 0, 1
        try:
            shard = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        except (KeyError, ValueError):
            raise ConfigError(
                f"shard='auto' needs RANK and WORLD_SIZE as torchrun sets them, both or neither; there is "
                f"RANK={os.environ.get('RANK')!r}, WORLD_SIZE={os.environ.get('WORLD_SIZE')!r}: give shard=(rank, world)"
            ) from None
    try:
        rank, world = (int(number) for number in shard)
    except (TypeError, ValueError):
        raise ConfigError(f"shard must be None, 'auto' or (rank, world), got {shard!r}") from None
    if not 0 <= rank < world:
        raise ConfigError(f"shard=(rank, world) needs 0 <= rank < world, got {shard!r}")
    return rank, world


def check_still_alone(shard: Any, world: int) -> None:
    """Refuse a loader that was built before the process group and took itself for the only rank: every rank would read all data."""
    if shard == "auto" and world == 1 and has_group() and dist.get_world_size() > 1:
        raise ConfigError(
            f"this loader was built with shard='auto' before there was a process group, so it has all of the data; now there are "
            f"{dist.get_world_size()} ranks: build it after init_process_group(), or give shard=(rank, world)"
        )


def has_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def shared_seed(seed: int, world: int | None = None) -> int:
    """Return rank 0's seed on every rank; in a world of one, `seed` itself."""
    if world == 1:
        return seed
    if not has_group():
        raise ConfigError(
            "shard without a torch.distributed process group needs seed=: all ranks must share one order"
        )
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    box = torch.tensor([seed], dtype=torch.int64, device=device)
    dist.broadcast(box, src=0)
    return int(box.item())


def gathered(numbers: Sequence[int]) -> list[list[int]]:
    """Gather every rank's numbers on every rank; all must give equally many."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    own = torch.tensor(numbers, dtype=torch.int64, device=device)
    boxes = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(boxes, own)
    return [box.tolist() for box in boxes]


class ShardSampler(DistributedSampler[Any]):
    """Yields the keys of this rank's stripe; the loader sets `plan_of(epoch)`."""

    def __init__(self, dataset: Any, rank: int, world: int, *, shuffle: bool, drop_last: bool) -> None:
        super().__init__(dataset, num_replicas=world, rank=rank, shuffle=shuffle, drop_last=drop_last)
        self.plan_of: Callable[[int], EpochPlan] | None = None
        self.on_set_epoch: Callable[[int], None] = lambda _: None

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.on_set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        if self.plan_of is None:
            yield from super().__iter__()
            return
        plan = self.plan_of(self.epoch)
        for batch in range(plan.batches):
            yield from plan.keys(plan.positions(batch)).tolist()


class Dealt(NamedTuple):
    """The resolved order, for the constructor."""

    sampler: Any
    shuffle: bool | None
    rank: int
    world: int
    shuffles: bool
    own: bool
    """Whether the order is ours: no sampler or generator of the user decides it."""


def dealt(dataset: Any, shuffle: Any, given: tuple[Any, Any, Any], shard: Any, *, drop_last: bool) -> Dealt:
    """Resolve the order from these arguments; `given`: the user's sampler, batch_sampler and generator."""
    sampler, batch_sampler, _ = given
    if shard is not None and isinstance(sampler, ShardSampler):  # a trainer rebuilds the loader
        given, shuffle, sampler = (None, *given[1:]), sampler.shuffle, None
    shuffles, own = bool(shuffle), all(part is None for part in given)
    if shard is None or is_sharded(batch_sampler):
        return Dealt(sampler, shuffle, 0, 1, shuffles, own)
    check_shardable(dataset, sampler, batch_sampler)
    rank, world = resolve_shard(shard)
    sampler = ShardSampler(dataset, rank, world, shuffle=shuffles, drop_last=drop_last)
    return Dealt(sampler, None, rank, world, shuffles, own=True)
