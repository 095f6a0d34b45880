"""Two ranks of one machine with `cache=`: one service for both, every byte read once, and one clear error if they want different caches."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from penstock import Cache, DataLoader, ImageFolder
from penstock.errors import ConfigError
from tests.cache_jobs import CHAIN, ROOMY, SAMPLES, Batches, jpeg, loader, named, photos, taken, told
from tests.conftest import FULL
from tests.fault.programs import until
from tests.integration.groups import RANKS, facts_of_ranks

CACHES = {
    "plain": {"memory": "16MiB"},
    "even": {"memory": "1MiB", "order": "even"},
    "lru": {"memory": "1MiB", "policy": "lru"},
}


def in_group(rank: int, meeting: str) -> None:
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=RANKS)


def sharded(dataset: Any, cache: Cache | None, **options: Any) -> DataLoader[Any]:
    return loader(dataset, cache, **{"shard": "auto", "num_workers": 1 if cache else 0} | options)


def written(folder: str, rank: int, found: Any) -> None:
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))


def training(rank: int, meeting: str, folder: str, settings: dict[str, Any], options: dict[str, Any]) -> None:
    in_group(rank, meeting)
    dataset = ImageFolder(Path(folder) / "data", CHAIN)
    cached = sharded(dataset, Cache(**settings), collate_fn=list, **options)
    plain = sharded(dataset, None, collate_fn=list, **options | {"deal": "as_is"})
    found = taken(cached, 3), taken(plain, 3)
    targets = [target for batch in cached for _, target in batch]
    dist.barrier()  # both are done
    written(folder, rank, [*found, targets, told(cached), cached._cache._ties.link.pid])
    dist.barrier()
    dist.destroy_process_group()


def unlike(rank: int, meeting: str, folder: str, settings: dict[str, Any], options: dict[str, Any]) -> None:
    """Be a rank on a machine of its own, with more or less memory for what passes through."""
    os.environ["PENSTOCK_GROUP"] = f"{folder} {rank}"
    in_group(rank, meeting)
    dataset = ImageFolder(Path(folder) / "data", CHAIN)
    cached = sharded(dataset, Cache(**settings), batch_size=1, prefetch_factor=(1, 20)[rank], **options)
    written(folder, rank, [targets.tolist() for _, targets in cached])
    dist.barrier()
    dist.destroy_process_group()


def different(rank: int, meeting: str, folder: str) -> None:
    in_group(rank, meeting)
    cached = sharded(ImageFolder(Path(folder) / "data", CHAIN), Cache(memory=f"{16 + rank}MiB"))
    with pytest.raises(ConfigError) as caught:
        next(iter(cached))
    written(folder, rank, str(caught.value))
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PENSTOCK_GROUP", str(uuid.uuid4()))
    yield
    until(
        lambda: not (named("penstock node") or named("penstock cache")),
        within_s=10.0,
        why="a node does not end",
    )


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "even": ("even", {"deal": "owner"}),
    "plain": ("plain", {}),
    "owner": ("plain", {"deal": "owner"}),
    "lru": ("lru", {"shuffle": False}),
}


@pytest.mark.parametrize("case", list(CASES)[: len(CASES) if FULL else 2])
def test_ranks_of_one_machine_share_a_service_and_read_each_byte_once(case: str, tmp_path: Path) -> None:
    settings, options = CASES[case]
    photos(tmp_path / "data", side=100)
    ranks = facts_of_ranks(training, tmp_path, CACHES[settings], options)
    found: list[list[Batches]] = [rank[0] for rank in ranks]
    if settings != "even":  # another order, by design
        assert found == [rank[1] for rank in ranks]
    assert sorted(ranks[0][2] + ranks[1][2]) == [
        at % 2 for at in sorted(range(SAMPLES), key=lambda at: at % 2)
    ]
    assert ranks[0][4] == ranks[1][4], "they have one node process"
    stats = ranks[0][3]
    assert stats["nodes"] == 1
    assert sum(stats["samples"].values()) == 4 * SAMPLES
    if settings == "plain":
        assert stats["samples"] == {"source": SAMPLES, "memory": 3 * SAMPLES}


def test_ranks_that_want_different_caches_are_all_told_so(tmp_path: Path) -> None:
    photos(tmp_path / "data")
    for said in facts_of_ranks(different, tmp_path):
        assert said.startswith("ranks of one job have different cache=: this one has Cache(memory='1")
        assert "Give all ranks the same, or none a cache" in said


def test_ranks_on_two_machines_give_each_other_samples(tmp_path: Path) -> None:
    """Of two machines here each has a node process of its own."""
    photos(tmp_path / "data")
    for cached, plain in facts_of_ranks(apart, tmp_path):
        assert cached == plain


def apart(rank: int, meeting: str, folder: str) -> None:
    os.environ["PENSTOCK_GROUP"] += f" {rank}"
    in_group(rank, meeting)
    dataset = ImageFolder(Path(folder) / "data", CHAIN)
    cached = sharded(dataset, ROOMY)
    found = taken(cached, 2)
    dist.barrier()
    assert told(cached)["nodes"] == RANKS
    assert told(cached)["samples"].get("peers")
    written(folder, rank, [found, taken(sharded(dataset, None), 2)])
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("what", ["even", "owner"])
def test_machines_with_different_room_that_share_nothing_deliver_each_sample_once(
    what: str, tmp_path: Path
) -> None:
    for number in range(SAMPLES):  # a class each
        path = tmp_path / "data" / f"{number:03}" / "photo.jpg"
        path.parent.mkdir(parents=True)
        path.write_bytes(jpeg(number, 140))
    settings = {"memory": "1900KiB", "peers": "off"} | ({"order": "even"} if what == "even" else {})
    options = {"deal": "owner"} if what == "owner" else {}
    found = facts_of_ranks(unlike, tmp_path, settings, options)
    assert sorted(target for rank in found for (target,) in rank) == list(range(SAMPLES))


@pytest.mark.parametrize("options", [{"cache": Cache(memory="1MiB", order="even")}, {"deal": "owner"}])
def test_ranks_that_cannot_meet_have_no_order_that_follows_from_what_machines_keep(
    options: dict[str, Any], tmp_path: Path
) -> None:
    photos(tmp_path / "data")
    dataset = ImageFolder(tmp_path / "data", CHAIN)
    cached = loader(dataset, **{"cache": ROOMY, "shard": (0, 2)} | options)
    with pytest.raises(ConfigError, match="init_process_group"):
        iter(cached)
