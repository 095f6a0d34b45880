"""`deal="cost"`: the same global batches and augmentations with even sums of costs, exactly once, through resumes, on real ranks too."""

from __future__ import annotations

import json
import logging
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from torch.utils.data import Subset

from penstock import Cache, ConfigError, DataLoader, ImageFolder, Reuse, StagedDataset, StateError, TarDataset
from penstock.dataset.offers import known_costs
from penstock.epochs.costs import read_costs
from tests.integration.dealt import resumed_by, rows, run_by
from tests.integration.groups import RANKS, facts_of_ranks
from tests.integration.noisy import Noisy, epoch, order_of
from tests.integration.test_tar_dataset import folder, images, shards  # noqa: F401 - fixtures
from tests.torchvision_here import torchvision

SIZE, BATCH = 90, 4
COSTS = np.random.default_rng(5).lognormal(0, 0.7, SIZE)


class Priced(Noisy):
    """Knows what its samples cost."""

    def __init__(self, size: int = SIZE, *, dearer: float = 0.0) -> None:
        super().__init__(size)
        self.dearer, self.asked = dearer, 0

    def cost(self, key: int) -> float:
        self.asked += 1
        return float(COSTS[key]) + (self.dearer if key == 7 else 0)


class PricedAtOnce(Noisy):
    def costs(self) -> list[float]:
        return COSTS[: self.size].tolist()


def make(rank: int, world: int, workers: int = 0, *, dataset: Any = None, **settings: Any) -> DataLoader[Any]:
    settings = {
        "batch_size": BATCH,
        "shuffle": True,
        "seed": 9,
        "shard": (rank, world),
        "deal": "cost",
        **settings,
    }
    return DataLoader(dataset or Priced(), num_workers=workers, **settings)


resumed, run_until = partial(resumed_by, make), partial(run_by, make)


def unevenness(steps: Any) -> float:
    """The dearest rank of a step / the mean, in the mean of all steps."""
    sums = np.array([[COSTS[order_of([batch])].sum() for batch in step] for step in steps])
    return float((sums.max(axis=1) / sums.mean(axis=1)).mean())


# ---- dealing


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_dealing_changes_who_gets_a_sample_and_nothing_else(shuffle: bool, drop_last: bool) -> None:
    settings = {"shuffle": shuffle, "drop_last": drop_last}
    dealt = [list(make(rank, 4, **settings)) for rank in range(4)]
    as_is = [list(make(rank, 4, deal="as_is", **settings)) for rank in range(4)]
    steps, steps_as_is = list(zip(*dealt, strict=True)), list(zip(*as_is, strict=True))
    for here, there in zip(steps, steps_as_is, strict=True):
        assert [len(batch) for batch in here] == [len(batch) for batch in there]
        assert rows(here) == rows(there), "augmented alike, too"
    assert unevenness(steps) - 1 < 0.4 * (unevenness(steps_as_is) - 1), "batches of 4 are small"


def test_dealt_batches_do_not_depend_on_workers() -> None:
    inline, forked = make(1, 4), make(1, 4, 2, persistent_workers=True)
    for _ in range(2):
        assert epoch(inline) == epoch(forked)


def test_costs_given_one_by_one_or_all_at_once_deal_alike() -> None:
    assert epoch(make(1, 3)) == epoch(make(1, 3, dataset=PricedAtOnce(SIZE)))


def test_the_sampler_that_trainers_see_gives_the_dealt_samples() -> None:
    loader = make(3, 4)
    assert list(loader.sampler) == order_of(loader)


def test_a_sample_looked_at_alone_is_the_one_of_its_batch() -> None:
    loader = make(2, 4, drop_last=True)
    for batch in make(1, 4, drop_last=True):
        for row in batch:
            assert loader.debug(int(row[0])).tolist() == row.tolist()


def test_a_world_of_one_has_nobody_to_deal_to_and_reads_no_costs() -> None:
    dataset = Priced()
    assert epoch(make(0, 1, dataset=dataset)) == epoch(make(0, 1, deal="as_is"))
    assert dataset.asked == 0


def test_costs_are_read_once_at_the_first_epoch() -> None:
    dataset = Priced()
    loader = make(0, 2, dataset=dataset)
    assert dataset.asked == 0
    for _ in range(3):
        list(loader)
    assert dataset.asked == SIZE


# ---- resume


@pytest.mark.parametrize(("before", "after"), [(4, 4), (4, 3), (2, 5), (3, 1)])
def test_another_world_takes_the_rest_over_exactly_once(before: int, after: int) -> None:
    state, delivered = run_until(before, 2)
    rest = [batch for rank in range(after) for batch in resumed(state, rank, after)]
    seen = Counter(order_of([*delivered, *rest]))
    assert set(seen) == set(range(SIZE))
    assert sum(seen.values()) == before * 2 * BATCH + after * -(-(SIZE - before * 2 * BATCH) // after)
    uninterrupted = rows(batch for rank in range(before) for batch in make(rank, before))
    once = {key for key, count in seen.items() if count == 1}
    assert all(row in uninterrupted for row in rows([*delivered, *rest]) if row[0] in once)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_world_goes_on_with_the_batches_that_were_to_come(workers: int) -> None:
    state, _ = run_until(3, 2)
    for rank in range(3):
        loader = resumed(state, rank, 3, workers)
        assert epoch(loader) == epoch(make(rank, 3))[2:]
        fresh = make(rank, 3)
        fresh.set_epoch(1)
        assert epoch(loader) == epoch(fresh), "and so does the next epoch"


def test_the_state_holds_a_digest_of_the_costs_and_not_the_costs() -> None:
    state, _ = run_until(2, 1)
    assert state["costs"] == read_costs(Priced()).digest
    assert len(json.dumps(state)) < 400
    loader = make(0, 2)
    list(loader)
    assert "costs" not in loader.state_dict(), "between epochs"


def test_other_costs_do_not_go_on_with_the_epoch_but_begin_the_next() -> None:
    state, _ = run_until(2, 1)
    with pytest.raises(StateError, match=r"other costs of samples .* deal='as_is'"):
        iter(resumed(state, 0, 2, dataset=Priced(dearer=2.0)))
    as_is = [batch for rank in range(2) for batch in resumed(state, rank, 2, deal="as_is")]
    assert len(as_is) == 2 * (len(make(0, 2)) - 1)
    between = make(0, 2)
    list(between)
    assert len(list(resumed(between.state_dict(), 0, 2, dataset=Priced(dearer=2.0)))) == len(between)


def test_batches_out_of_order_go_on_in_the_same_world_only() -> None:
    loader = make(0, 4)
    next(iter(loader))
    state = loader.state_dict() | {"beyond": [1]}
    assert len(list(resumed(state, 0, 4))) == len(loader) - 2
    for settings in ({"world": 3}, {"world": 4, "deal": "as_is"}):
        with pytest.raises(StateError, match="owners or costs"):
            list(resumed(state, 0, **settings))


# ---- real ranks


def rank_that_trains(rank: int, meeting: str, out: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    loader = make(0, 1, rank, shard="auto")
    found = [[order_of([batch]) for batch in loader] for _ in range(2)]
    Path(out, f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def test_real_ranks_deal_alike_and_evenly(tmp_path: Path) -> None:
    ranks = facts_of_ranks(rank_that_trains, tmp_path)
    alone = [make(rank, RANKS) for rank in range(RANKS)]
    for number in range(2):
        found = [rank[number] for rank in ranks]
        assert found == [[order_of([batch]) for batch in loader] for loader in alone]
        assert sorted(key for batches in found for batch in batches for key in batch) == list(range(SIZE))
        sums = np.array([[COSTS[batch].sum() for batch in step] for step in zip(*found, strict=True)])
        assert (sums.max(axis=1) / sums.mean(axis=1)).mean() < 1.1


def rank_with_other_files(rank: int, meeting: str, out: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    said = ""
    try:
        iter(make(0, 1, shard="auto", dataset=Priced(dearer=float(rank))))
    except ConfigError as exc:
        said = str(exc)
    Path(out, f"{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()


def test_ranks_that_found_other_costs_do_not_deal_by_them(tmp_path: Path) -> None:
    said = facts_of_ranks(rank_with_other_files, tmp_path)
    assert [f"ranks [{1 - rank}] found other costs" in said[rank] for rank in range(RANKS)] == [True, True]


def rank_that_cannot_read(rank: int, meeting: str, out: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    said = ""
    try:
        iter(make(0, 1, shard="auto", dataset=Said("heavy" if rank else 1.0)))
    except ConfigError as exc:
        said = str(exc)
    Path(out, f"{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()


def test_if_one_rank_cannot_read_its_costs_all_say_so(tmp_path: Path) -> None:
    said = facts_of_ranks(rank_that_cannot_read, tmp_path)
    assert "ranks [1] cannot read what samples cost" in said[0]
    assert "sample 5 is 'heavy'" in said[1]


# ---- what costs are


def test_a_folder_and_a_shard_know_the_bytes_of_their_images(folder: Path, shards: Path) -> None:  # noqa: F811
    photos = ImageFolder(folder)
    sizes = [Path(path).stat().st_size for path, _ in photos.samples]
    for dataset in (photos, torchvision().datasets.ImageFolder(folder)):
        known = known_costs(dataset)
        assert known is not None
        assert list(known.of(range(len(dataset)))) == sizes
    tar = TarDataset(sorted(shards.glob("*.tar")), index_dir=False)
    known = known_costs(tar)
    assert known is not None
    assert list(known.of(range(len(tar)))) == [len(tar.read(at)[0]) for at in range(len(tar))]
    assert "the cost of a sample is the bytes of its image" in make(0, 2, dataset=tar).explain()


def test_a_subset_passes_costs_on() -> None:
    known = known_costs(Subset(Subset(Priced(), range(50)), [3, 1]))
    assert known is not None
    assert list(known.of([1, 0])) == [COSTS[1], COSTS[3]]


def test_the_users_costs_come_first() -> None:
    class Own(StagedDataset):
        def cost(self, index: int) -> float:
            return 2.0 + index

    dataset = Own(lambda index: (b"", index), None, 3)
    assert read_costs(dataset).values.tolist() == [1 << 39, 3 << 38, 1 << 40]
    assert "the cost of a sample is Priced.cost(index)" in make(0, 2).explain()


class Many(Noisy):
    def cost(self, key: int) -> int:
        return key


def test_progress_is_logged_where_reading_takes_long(caplog: pytest.LogCaptureFixture) -> None:
    now = iter(range(0, 10_000, 6))  # seconds between looks at the clock
    with caplog.at_level(logging.INFO, "penstock"):
        read_costs(Many(3000), clock=lambda: float(next(now)))
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "deal='cost': costs of 1024 of 3000 samples are read"
    assert said[-1].startswith("deal='cost': costs of 3000 samples (Many.cost(index)) known after")


# ---- what cannot work


class Ruined(Priced):
    def cost(self, key: int) -> float:
        return float("nan") if key == 5 else 1.0


class Said(Noisy):
    """`cost(5)` says something that is no number; so does `costs()`, for a data set of one."""

    def __init__(self, said: Any) -> None:
        super().__init__(SIZE)
        self.said = said

    def cost(self, key: int) -> Any:
        return self.said if key == 5 else 1.0


class Short(Noisy):
    def costs(self) -> Any:
        return [1.0, 2.0]


class Mapped(Noisy):
    def costs(self) -> Any:
        return dict.fromkeys(range(SIZE), 1.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dataset": Noisy(SIZE)}, r"Noisy does not say: give it a method cost\(index\)"),
        ({"dataset": StagedDataset(lambda index: (b"", index), None, 9)}, "StagedDataset does not say"),
        ({"shard": None}, "deal='cost' deals the batches of all ranks, so it needs shard="),
        ({"num_workers": 2, "cache": Cache(order="even")}, "order='even' of the cache"),
    ],
)
def test_what_is_missing_is_said_when_the_loader_is_made(given: Any, message: str) -> None:
    settings = {"dataset": Priced(), "shard": (0, 2), "seed": 1, "shuffle": True, **given}
    with pytest.raises(ConfigError, match=message):
        DataLoader(deal="cost", **settings)


def test_reused_samples_have_other_costs(folder: Path) -> None:  # noqa: F811
    from penstock import transforms as T

    with pytest.raises(ConfigError, match="cannot be combined with reuse="):
        make(0, 2, 1, dataset=ImageFolder(folder, [T.RandomResizedCrop(8)]), reuse=Reuse(split=0))


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Ruined(), r"the cost of sample 5 is nan \(Ruined.cost\(index\)\); it must be a finite number"),
        (Said("3.5"), r"the cost of sample 5 is '3.5' \(Said.cost\(index\)\), not a number"),
        (Said(None), "sample 5 is None"),
        (Said(10**400), "not a number"),
        (Said(-1), "sample 5 is -1.0"),
        (Short(SIZE), r"one number for each of 90 samples, it gave an array of shape \(2,\)"),
        (Mapped(SIZE), "it gave a dict that is no array of numbers"),
    ],
)
def test_wrong_costs_are_an_error_of_the_first_epoch(dataset: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        iter(make(0, 2, dataset=dataset))
