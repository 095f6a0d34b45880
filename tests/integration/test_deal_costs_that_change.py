"""`deal="cost"` where costs are not those that ranks agreed on, or those of the state: an error, again each time, and nothing changes."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from penstock import ConfigError, StateError
from tests.integration.groups import RANKS, facts_of_ranks
from tests.integration.noisy import epoch, order_of
from tests.integration.test_deal_by_cost import SIZE, Priced, make, resumed, run_until


def test_costs_are_read_again_if_the_length_changes_before_the_first_epoch() -> None:
    dataset = Priced()
    loader = make(0, 2, dataset=dataset)
    list(loader.sampler)
    dataset.size = SIZE - 20
    assert epoch(loader) == epoch(make(0, 2, dataset=Priced(SIZE - 20)))


def test_once_an_epoch_has_begun_another_length_is_an_error_that_changes_nothing() -> None:
    dataset = Priced()
    loader = make(0, 2, dataset=dataset)
    list(loader)
    loader.set_epoch(5)
    before = loader.state_dict()
    dataset.size = SIZE - 20
    for _ in range(2):
        with pytest.raises(
            ConfigError, match=r"had 90 samples when .* has 70 now.* build a new loader, on all ranks"
        ):
            iter(loader)
    dataset.size = SIZE
    assert loader.state_dict() == before
    fresh = make(0, 2)
    fresh.set_epoch(5)
    assert epoch(loader) == epoch(fresh), "the epoch that was set is not forgotten"


def test_an_epoch_set_after_iter_is_not_forgotten_if_it_cannot_begin() -> None:
    dataset = Priced()
    loader = make(0, 2, dataset=dataset)
    batches = iter(loader)
    loader.set_epoch(5)
    dataset.size = SIZE - 20
    for _ in range(2):
        with pytest.raises(ConfigError, match="has 70 now"):
            next(batches)
    dataset.size = SIZE
    fresh = make(0, 2)
    fresh.set_epoch(5)
    assert epoch(batches) == epoch(fresh)


def test_prefetching_does_not_fail_an_epoch_by_what_the_next_one_lacks() -> None:
    dataset = Priced()
    loader = make(0, 2, 1, dataset=dataset, persistent_workers=True)
    batches = iter(loader)
    first = next(batches)
    dataset.size = SIZE - 20
    assert epoch([first, *batches]) == epoch(make(0, 2))
    for _ in range(2):
        with pytest.raises(ConfigError, match="has 70 now"):
            iter(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iter_that_fails_changes_nothing_and_fails_again(workers: int) -> None:
    state, delivered = run_until(2, 1)
    loaders = [
        resumed(state, rank, 2, workers, dataset=Priced(dearer=2.0), persistent_workers=workers > 0)
        for rank in range(2)
    ]
    for loader in loaders:
        before = loader.state_dict()
        for _ in range(2):
            with pytest.raises(StateError, match="other costs of samples"):
                iter(loader)
            assert loader.state_dict() == before
    mended = [resumed(loader.state_dict(), rank, 2, deal="as_is") for rank, loader in enumerate(loaders)]
    seen = order_of([*delivered, *(batch for loader in mended for batch in loader)])
    assert sorted(seen) == list(range(SIZE))


def rank_whose_dataset_changes(rank: int, meeting: str, out: str, size: int) -> None:
    within = timedelta(seconds=20)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS, timeout=within
    )
    dataset, said = Priced(), ""
    loader = make(0, 1, shard="auto", dataset=dataset)
    list(loader)
    if rank:
        dataset.size = size
    try:
        iter(loader)
    except ConfigError as exc:
        said = str(exc)
    failed = torch.tensor([float(bool(said))])
    dist.all_reduce(failed)  # training's own: it must not meet one of ours
    Path(out, f"{rank}.json").write_text(json.dumps([said, failed.item()]))
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [SIZE - 20, SIZE + 20], ids=["shrinks", "grows, and costs cannot be read"])
def test_a_rank_whose_dataset_changes_says_so_and_waits_for_nobody(tmp_path: Path, size: int) -> None:
    said, failed = zip(*facts_of_ranks(rank_whose_dataset_changes, tmp_path, size, within_s=40), strict=True)
    assert said[0] == ""
    assert f"had {SIZE} samples when the first epoch began, and has {size} now" in said[1]
    assert failed == (1.0, 1.0), "ranks can tell each other"
