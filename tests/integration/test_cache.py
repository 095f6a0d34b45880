"""Loaders with `cache=`: the batches of a loader without one, bit for bit, and bytes that are read once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Subset

from penstock import Cache, DataLoader, ImageFolder, Reuse, StagedDataset
from penstock import transforms as T
from penstock.config import CACHE_POLICIES
from penstock.errors import ConfigError
from penstock.measure.host import say_once
from penstock.sources.anywhere import AnyFiles
from tests.cache_jobs import (
    BATCH,
    CHAIN,
    MAKES,
    SAMPLES,
    Pieces,
    adds_up,
    images,
    jpeg,
    loader,
    named,
    node,  # noqa: F401 - a fixture
    photos,
    pieces,
    reference,
    taken,
    told,
)
from tests.conftest import FULL
from tests.fault.kill_schedules import digest
from tests.fault.programs import until
from tests.web import served_apart

pytestmark = pytest.mark.usefixtures("node")
BATCHES = -(-SAMPLES // BATCH)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.mark.parametrize("make", MAKES)
def test_batches_are_those_without_a_cache_and_everything_is_read_once(make: str, root: Path) -> None:
    dataset = MAKES[make](root)
    cached = loader(dataset)
    assert taken(cached) == reference(dataset)
    found, samples = told(cached), len(dataset)
    adds_up(found, 2 * -(-samples // BATCH), 2 * samples)
    assert found["readers"]["failures"] == 0
    assert found["samples"]["source"] <= samples
    assert found["samples"]["memory"] >= samples


VARIANTS: dict[str, dict[str, Any]] = {
    "in order": {"shuffle": False},
    "a sampler": {"shuffle": False, "sampler": [*range(0, SAMPLES, 3), 5, 5, 5, -1]},
    "a batch sampler": {
        "shuffle": None,
        "batch_size": 1,
        "batch_sampler": [[3, 1], [2, 2, 2], list(range(20))],
    },
    "a generator": {"generator": 5},
    "a collate function": {"collate_fn": list},
    "persistent": {"persistent_workers": True},
    "skip": {"on_error": "skip"},
    "drop_last": {"drop_last": True},
    "no batches": {"batch_size": None},
    "one batch of all": {"batch_size": 2 * SAMPLES},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_loader_of_any_kind_delivers_what_it_does_without_a_cache(variant: str, root: Path) -> None:
    dataset, options = images(root), dict(VARIANTS[variant])
    plain = options | {"persistent_workers": False}
    if "generator" in options:
        options, plain = ({"generator": torch.Generator().manual_seed(5), "seed": None} for _ in range(2))
    cached = loader(dataset, **options)
    assert taken(cached) == reference(dataset, **plain)
    assert {"source", "memory"} >= told(cached)["samples"].keys()


def test_spawned_workers_find_the_bytes_too(root: Path) -> None:
    dataset = images(root)
    cached = loader(dataset, multiprocessing_context="spawn", num_workers=1)
    assert taken(cached, 1) == reference(dataset, epochs=1)
    adds_up(told(cached), BATCHES, SAMPLES)


@pytest.mark.parametrize("policy", CACHE_POLICIES if FULL else CACHE_POLICIES[::3])
def test_every_policy_delivers_the_same_and_keeps_to_its_room(policy: str, root: Path) -> None:
    """1.3 MB of data, for most of which there is no room."""
    photos(root, side=100)
    dataset = ImageFolder(root, CHAIN)
    cached = loader(dataset, Cache(memory="1MiB", policy=policy))
    assert taken(cached, 3) == reference(dataset, epochs=3)
    found = told(cached)
    assert sum(found["samples"].values()) == 3 * SAMPLES
    assert found["kept_bytes"] <= found["room_bytes"] < found["data_bytes"]
    assert found["memory_bytes"] <= found["memory_max_bytes"]


def test_memory_far_too_small_for_a_single_batch_costs_nothing_but_time(root: Path) -> None:
    photos(root, side=200)
    dataset = ImageFolder(root, CHAIN)
    cached = loader(dataset, Cache(memory="1MiB"), batch_size=21, prefetch_factor=4)
    assert taken(cached) == reference(dataset, batch_size=21)
    found = told(cached)
    adds_up(found, 4, 2 * SAMPLES)
    assert found["samples"]["unread"]


def test_ragged_samples_are_collated_as_without_a_cache(root: Path) -> None:
    photos(root)
    dataset = ImageFolder(root, [T.ToTensor()])
    cached = loader(dataset, collate_fn=as_is)
    assert taken(cached, 1) == reference(dataset, epochs=1, collate_fn=as_is)


def as_is(samples: list[Any]) -> Any:
    return tuple(image for image, _ in samples), [target for _, target in samples]


def test_bad_samples_are_left_out_and_named_as_without_a_cache(root: Path) -> None:
    paths = photos(root)
    dataset = ImageFolder(root, CHAIN)
    paths[4].write_bytes(b"no photo")
    paths[7].unlink()
    paths[8].write_bytes(b"")
    cached, plain = loader(dataset, on_error="skip"), loader(dataset, None, num_workers=0, on_error="skip")
    assert taken(cached, 2) == taken(plain, 2)
    assert reported(cached) == reported(plain)
    loud, told_of = loader(dataset), []
    for made in (loud, loader(dataset, None)):
        with pytest.raises(Exception) as caught:
            taken(made, 1)
        told_of.append(
            (type(caught.value), [line.partition(" on worker")[0] for line in caught.value.__notes__])
        )
    assert told_of[0] == told_of[1]


def reported(made: DataLoader[Any]) -> list[Any]:
    return sorted((row["key"], row["epoch"], row["error"].partition("(")[0]) for row in made.skipped())


# ---- epochs


def test_an_epoch_that_is_left_early_gives_its_bytes_back(root: Path) -> None:
    dataset = images(root)
    cached = loader(dataset, persistent_workers=True)
    for number, _ in enumerate(cached):
        if number == 2:
            break
    plain = reference(dataset, epochs=3)
    assert taken(cached, 2) == plain[1:]
    found = told(cached)
    assert found["samples"]["source"] == SAMPLES
    assert found["entries"] == SAMPLES


def test_a_state_goes_on_with_other_workers_and_another_cache(root: Path) -> None:
    dataset = images(root)
    first = loader(dataset, Cache(memory="1MiB"))
    batches, found = iter(first), []
    for _ in range(4):
        found.append(digest(next(batches)))
    state = first.state_dict()
    del batches, first
    second = loader(dataset, Cache(memory="8MiB", policy="lru"), num_workers=1)
    second.load_state_dict(state)
    found += taken(second, 1)[0]
    third = loader(dataset, None)
    third.load_state_dict(state)
    assert found[4:] == taken(third, 1)[0]
    assert [found] == reference(dataset, epochs=1)
    assert second.explain().count("8 MiB of memory") == 1


def test_a_training_and_a_validation_loader_share_the_service(root: Path, tmp_path: Path) -> None:
    train, val = images(root), pieces(tmp_path / "val")
    one, other = loader(train, persistent_workers=True), loader(val, Cache(memory="2MiB"), shuffle=False)
    for _ in range(2):
        first, second = iter(one), iter(other)
        for _ in range(BATCHES):
            next(first), next(second)
    del first, second
    assert taken(one, 1) == reference(train, epochs=3)[2:]
    assert taken(other, 1) == reference(val, epochs=3, shuffle=False)[2:]
    assert len(named("penstock cache")) == 1
    adds_up(told(other), 3 * BATCHES, 3 * SAMPLES)
    assert told(one)["samples"]["source"] == SAMPLES


def test_a_later_loader_finds_what_an_earlier_one_has_read(root: Path) -> None:
    dataset = images(root)
    assert taken(loader(dataset), 1) == taken(cached := loader(dataset), 1)
    assert told(cached)["samples"] == {"source": SAMPLES, "memory": SAMPLES}


def test_two_loaders_at_a_time_must_agree_on_the_cache_of_a_dataset(root: Path) -> None:
    dataset = images(root)
    one = loader(dataset)
    next(iter(one))
    with pytest.raises(ConfigError, match=r"different cache=: memory='16MiB' and '32MiB'"):
        next(iter(loader(dataset, Cache(memory="32MiB"))))


def test_the_number_of_workers_may_change(root: Path) -> None:
    dataset = images(root)
    cached, found = loader(dataset, num_workers=1), []
    for number, batch in enumerate(cached):
        found.append(digest(batch))
        if number in (1, 5):
            cached.set_workers(3 if number == 1 else 1)
    assert [found] == reference(dataset, epochs=1)


def test_order_even_spreads_what_is_not_kept(root: Path) -> None:
    photos(root, side=100)
    dataset = ImageFolder(root, CHAIN)
    cached = loader(dataset, Cache(memory="1MiB", order="even"), collate_fn=list)
    targets = [[target for batch in cached for _, target in batch] for _ in range(2)]
    assert all(sorted(epoch) == sorted(dataset.targets) for epoch in targets)


# ---- which bytes


def test_a_dataset_that_changed_where_no_probe_looked_is_another_one(root: Path) -> None:
    """Never other bytes: what is told of a sample holds for the ranges that were asked for."""
    photos(root)
    samples = [*range(SAMPLES)] * 50
    one, other = Subset(ImageFolder(root, CHAIN), samples), Subset(ImageFolder(root, CHAIN), list(samples))
    other.indices[7] = 33
    order = {"shuffle": False, "sampler": range(12)}
    cached = loader(one, **order)
    assert taken(cached, 1) == reference(one, epochs=1, **order)
    assert taken(loader(other, **order), 1) == reference(other, epochs=1, **order)
    assert told(cached)["samples"]["unread"] == 1


def test_names_mean_the_files_of_the_working_folder(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for number, folder in enumerate(("one", "two")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "all").write_bytes(b"".join(jpeg(at, 40 + 0) for at in range(SAMPLES)))
        if number:
            (tmp_path / folder / "all").write_bytes(
                b"".join(jpeg(at, 40) for at in (1, 0, *range(2, SAMPLES)))
            )
        monkeypatch.chdir(tmp_path / folder)
        dataset = Pieces(Path("all"))
        if number:
            dataset.ends[0] = len(jpeg(1))
        cached = loader(dataset)
        assert taken(cached, 1) == reference(dataset, epochs=1)
        found.append(told(cached)["samples"])
    assert found == [{"source": SAMPLES}] * 2


# ---- disk


def test_what_memory_has_no_room_for_goes_to_disk(root: Path, tmp_path: Path) -> None:
    photos(root, side=200)
    dataset = ImageFolder(root, CHAIN)
    cached = loader(dataset, Cache(memory="2MiB", disk="64MiB", path=tmp_path / "disk"))
    assert taken(cached, 3) == reference(dataset, epochs=3)
    found = told(cached)
    adds_up(found, 3 * BATCHES, 3 * SAMPLES)
    assert found["samples"]["disk"] > SAMPLES / 2
    assert found["samples"]["source"] + found["samples"].get("unread", 0) <= SAMPLES + 4


def test_a_later_run_reads_nothing_from_the_source(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = images(root)
    disk = Cache(memory="1MiB", disk="64MiB", path=tmp_path / "disk", persistent=True)
    plain = reference(dataset, epochs=1)
    for run, found_at in (("first", "source"), ("second", "disk")):
        monkeypatch.setenv("PENSTOCK_GROUP", f"{run} {os.getpid()}")  # another job: another service
        cached = loader(ImageFolder(root, CHAIN), disk)
        assert taken(cached, 1) == plain
        assert told(cached)["samples"] == {found_at: SAMPLES}
        assert (told(cached)["readers"]["kinds"] == {}) == (run == "second")
        del cached
        until(lambda: len(named("penstock node")) == 1, within_s=10.0, why="a node does not end")


# ---- what is said


def test_explain_stats_and_diagnose_tell_of_the_cache(root: Path) -> None:
    cached = loader(images(root), Cache(memory="1MiB"))
    assert cached.stats()["cache"] is None
    assert "cache: not in use yet" in cached.explain()
    taken(cached)
    said = cached.explain()
    assert "cache: 1 MiB of memory" in said
    assert "% at the source" in said
    assert "in memory" in said
    assert cached.diagnose()


@pytest.mark.parametrize("why", ["reuse", "no seam"])
def test_where_a_cache_is_of_no_use_there_is_one_warning_and_none(
    why: str, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = images(root)
    if why == "no seam":
        dataset = StagedDataset(lambda index: (jpeg(index), index), CHAIN, SAMPLES)
    say_once.cache_clear()
    options: dict[str, Any] = {"reuse": Reuse(times=2)} if why == "reuse" else {}
    cached = loader(dataset, **options)
    assert taken(cached, 1) == reference(dataset, epochs=1, **options)
    assert taken(cached, 1)
    said = [record.getMessage() for record in caplog.records if "cache" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("cache= is not used: ")
    assert cached.stats()["cache"] is None
    assert "cache: not in use yet, or not used" in cached.explain()


def test_bytes_come_over_http_once(root: Path) -> None:
    """A source that counts its requests."""
    pieces(root)
    with served_apart(root) as url:
        dataset = Pieces(Path("all"))
        dataset.path, dataset.bytes_from = f"{url}/ok/all", AnyFiles()
        cached = loader(dataset)
        local = pieces(root)
        assert taken(cached) == reference(local)
        found = told(cached)
    assert found["samples"] == {"source": SAMPLES, "memory": SAMPLES}
    assert sum(kind["bytes"] for kind in found["readers"]["kinds"].values()) == local.ends[-1]
