"""`shard`: each rank its stripe of one global order, equal batch counts, and a rest that another world can take over."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler, IterableDataset, SequentialSampler

from penstock import ConfigError, DataLoader
from tests.integration.groups import facts_of_ranks
from tests.integration.noisy import SIZE, Noisy, epoch, order_of


def make(rank: int, world: int, workers: int = 0, **settings: Any) -> DataLoader[Any]:
    settings = {"batch_size": 3, "shuffle": True, "seed": 9, "shard": (rank, world), **settings}
    return DataLoader(Noisy(), num_workers=workers, **settings)


# ---- stripes


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_stripes_cover_the_order_in_equally_many_equal_batches(
    world: int, drop_last: bool, shuffle: bool
) -> None:
    ranks = [list(make(rank, world, drop_last=drop_last, shuffle=shuffle)) for rank in range(world)]
    sizes = [[len(batch) for batch in batches] for batches in ranks]
    assert all(one == sizes[0] == [len(batch) for batch in ranks[0]] for one in sizes)
    assert len(make(0, world, drop_last=drop_last, shuffle=shuffle)) == len(sizes[0])
    seen = Counter(key for batches in ranks for key in order_of(batches))
    if drop_last:
        assert max(seen.values()) == 1
        assert sum(seen.values()) == world * 3 * (SIZE // world // 3)
    else:
        assert set(seen) == set(range(SIZE))
        assert sum(seen.values()) == world * -(-SIZE // world), "padding only fills the last round"


def test_a_world_of_one_is_no_world() -> None:
    assert epoch(make(0, 1)) == epoch(make(0, 1, shard=None))


def test_a_sample_is_augmented_alike_in_any_world() -> None:
    whole = {row[0].item(): row.tolist() for batch in make(0, 1) for row in batch}
    for rank in range(2):
        rows = [row for batch in make(rank, 2, drop_last=True) for row in batch]
        assert all(row.tolist() == whole[row[0].item()] for row in rows)


@pytest.mark.parametrize("rank", [0, 1])
def test_stripes_do_not_depend_on_workers(rank: int) -> None:
    inline, forked = make(rank, 2), make(rank, 2, 2, persistent_workers=True)
    for _ in range(2):
        assert epoch(inline) == epoch(forked)


# ---- the sampler that trainers see


def test_the_sampler_is_a_distributed_sampler_that_gives_the_stripe() -> None:
    loader = make(1, 2)
    sampler = loader.sampler
    assert isinstance(sampler, DistributedSampler)
    assert (sampler.rank, sampler.num_replicas) == (1, 2)
    delivered = order_of(loader)
    assert list(sampler) == delivered
    assert len(sampler) == len(delivered)


@pytest.mark.parametrize("workers", [0, 2])
def test_set_epoch_changes_the_order_and_repeats_it(workers: int) -> None:
    loader = make(0, 2, workers)
    orders = []
    for number in (0, 1, 0):
        loader.sampler.set_epoch(number)  # type: ignore[attr-defined]
        orders.append(epoch(loader))
    assert orders[0] == orders[2] != orders[1]


# ---- resume


def resumed(state: Any, rank: int, world: int, workers: int = 0, **settings: Any) -> DataLoader[Any]:
    loader = make(rank, world, workers, **settings)
    loader.load_state_dict(json.loads(json.dumps(state)))
    return loader


def run_until(world: int, batches: int, workers: int = 0) -> tuple[Any, list[Any]]:
    """All ranks deliver `batches`; rank 0's state, and what was delivered."""
    loaders = [make(rank, world, workers) for rank in range(world)]
    delivered = []
    for loader in loaders:
        iterator = iter(loader)
        delivered += [next(iterator) for _ in range(batches)]
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states), "any rank's state will do"
    return states[0], delivered


@pytest.mark.parametrize(
    ("before", "after", "workers"), [(2, 1, 0), (1, 2, 0), (2, 3, 0), (3, 2, 0), (4, 4, 0), (2, 3, 2)]
)
def test_another_world_takes_the_rest_over_exactly_once(before: int, after: int, workers: int) -> None:
    state, delivered = run_until(before, 1, workers)
    rest = [batch for rank in range(after) for batch in resumed(state, rank, after, workers)]
    left = SIZE - before * 3
    seen = Counter(order_of(delivered) + order_of(rest))
    assert set(seen) == set(range(SIZE))
    assert sum(seen.values()) == before * 3 + after * -(-left // after)
    whole = {row[0].item(): row.tolist() for batch in make(0, 1) for row in batch}
    firsts = {row[0].item(): row.tolist() for batch in [*rest, *delivered][::-1] for row in batch}
    padded = {key for key, count in seen.items() if count > 1}
    assert all(firsts[key] == whole[key] for key in whole if key not in padded)


def test_the_world_may_change_twice_in_one_epoch() -> None:
    state, delivered = run_until(2, 1)
    loaders = [resumed(state, rank, 3) for rank in range(3)]
    for loader in loaders:
        delivered.append(next(iter(loader)))
    rest = list(resumed(loaders[2].state_dict(), 0, 1))
    assert sorted(order_of([*delivered, *rest])) == list(range(SIZE))


def test_the_next_epoch_is_the_new_worlds() -> None:
    state, _ = run_until(2, 1)
    loader = resumed(state, 0, 3)
    list(loader)
    uninterrupted = make(0, 3)
    list(uninterrupted)
    assert epoch(loader) == epoch(uninterrupted)


# ---- what cannot work


@pytest.mark.parametrize(
    "given",
    [{"sampler": SequentialSampler(range(SIZE))}, {"batch_sampler": [[0]], "batch_size": 1}],
)
def test_a_sampler_of_the_users_together_with_shard_would_shard_twice(given: Any) -> None:
    with pytest.raises(ConfigError, match="would shard twice"):
        make(0, 2, shuffle=None, **given)


def test_an_iterable_dataset_shards_itself() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

    with pytest.raises(ConfigError, match="shard needs a map-style dataset"):
        DataLoader(Stream(), shard=(0, 2), seed=1)


@pytest.mark.parametrize("shard", ["all", 3, (0,), (2, 2), (-1, 2), ("a", "b")])
def test_other_words_for_a_shard_are_refused(shard: Any) -> None:
    with pytest.raises(ConfigError, match="shard"):
        make(0, 1, shard=shard)


def test_without_group_and_seed_ranks_would_not_agree() -> None:
    loader = make(0, 2, seed=None)
    with pytest.raises(ConfigError, match="needs seed="):
        iter(loader)


@pytest.mark.parametrize("given", [{"RANK": "1"}, {"WORLD_SIZE": "2"}, {"RANK": "first", "WORLD_SIZE": "2"}])
def test_half_of_torchruns_environment_is_refused(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone(monkeypatch)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="RANK and WORLD_SIZE"):
        make(0, 1, shard="auto")


# ---- auto


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("workers", [0, 2])
def test_auto_on_one_machine_is_one_rank_and_needs_no_seed(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone(monkeypatch)
    torch.manual_seed(3)
    loader = make(0, 1, workers, shard="auto", seed=None)
    seen = epoch(loader)
    torch.manual_seed(3)
    assert seen == epoch(make(0, 1, workers, shard=None, seed=None)), "as without shard="
    assert isinstance(loader.sampler, DistributedSampler)


def test_a_pair_of_one_rank_needs_no_seed_either() -> None:
    assert sorted(order_of(make(0, 1, seed=None))) == list(range(SIZE))


def rank_that_builds_its_loader_too_early(rank: int, meeting: str, out: str) -> None:
    loader: DataLoader[Any] = DataLoader(Noisy(), 3, shard="auto")
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    try:
        iter(loader)
        said = ""
    except ConfigError as exc:
        said = str(exc)
    Path(out, f"{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()


def test_a_loader_built_before_its_process_group_does_not_give_all_data_to_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone(monkeypatch)
    for said in facts_of_ranks(rank_that_builds_its_loader_too_early, tmp_path):
        assert "build it after init_process_group()" in said


def test_auto_reads_torchruns_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = make(0, 1, shard="auto")
    assert loader.shard == "auto"
    assert epoch(loader) == epoch(make(1, 2))


def rank_of_a_group(rank: int, meeting: str, out: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    torch.manual_seed(100 + rank)
    loader: DataLoader[Any] = DataLoader(Noisy(), 3, shuffle=True, shard="auto", num_workers=rank)
    facts = {
        "orders": [order_of(loader) for _ in range(2)],
        "seed": loader.state_dict()["seed"],
        "drawn": torch.rand(1).item(),
    }
    Path(out, f"{rank}.json").write_text(json.dumps(facts))
    dist.destroy_process_group()


def test_ranks_of_a_process_group_share_rank_zeros_seed(tmp_path: Path) -> None:
    facts = facts_of_ranks(rank_of_a_group, tmp_path)
    torch.manual_seed(100)
    alone: DataLoader[Any] = DataLoader(Noisy(), 3, shuffle=True)
    iter(alone)
    assert facts[0]["seed"] == facts[1]["seed"] == alone.state_dict()["seed"]
    for orders in zip(*(rank["orders"] for rank in facts), strict=True):
        assert set(orders[0]) | set(orders[1]) == set(range(SIZE))
        assert len(orders[0]) == len(orders[1]) == SIZE // 2 + 1
    assert facts[0]["drawn"] != facts[1]["drawn"], "each rank's own generator goes on by itself"
