"""`Reuse(store="disk")`: the same batches as from memory and from nowhere, whatever happens to the folder."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock import ConfigError, DataLoader, Reuse, StagedDataset
from penstock import transforms as T
from penstock.plan.renewal import Renewal
from penstock.reuse.stores.contract import Entry, Wanted
from penstock.reuse.stores.disk import DiskStore
from penstock.reuse.stores.disk_listing import listing
from tests.deaths import kill_all
from tests.integration.groups import facts_of_ranks
from tests.integration.test_reuse import (
    OPS,
    SAMPLES,
    Reads,
    dataset_of,
    epochs,
    loader_of,
    plain,
    same,
)
from tests.unit.test_jpeg_parts import jpeg_of, photo

pytest.importorskip("cv2")
WORKERS = pytest.mark.parametrize("workers", [0, 2])
KEPT = {"segments": OPS, "large files": [T.Resize((100, 100)), *OPS]}
"""What is kept behind the first op: photos of 14 to 19 KB, of which most are small, and of 30 KB."""
SRC = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module")
def files() -> list[bytes]:
    return [jpeg_of(photo(60 + 3 * (at % 7), 80, at), quality=70) for at in range(SAMPLES)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept"


def on_disk(folder: Path, **options: Any) -> Reuse:
    return Reuse(**{"times": 3, "split": 1, "store": "disk", "path": folder, **options})


def kept(loader: DataLoader[Any]) -> dict[str, Any]:
    found: dict[str, Any] = loader.stats()["reuse"]
    return found


# ---- bytes


@WORKERS
@pytest.mark.parametrize("ops", KEPT.values(), ids=KEPT)
def test_batches_are_those_of_memory_and_of_loaders_that_never_kept_anything(
    files: list[bytes], folder: Path, workers: int, ops: Any
) -> None:
    loader = loader_of(dataset_of(files, ops), on_disk(folder), workers)
    found, from_memory = epochs(loader, 5), epochs(loader_of(dataset_of(files, ops)), 5)
    for epoch, batches in enumerate(found):
        fresh = loader_of(dataset_of(files, ops))
        fresh.set_epoch(epoch)
        assert same(batches, epochs(fresh, 1)[0]), epoch
        assert same(batches, from_memory[epoch]), epoch


@WORKERS
@pytest.mark.parametrize("ops", KEPT.values(), ids=KEPT)
def test_each_sample_is_read_once_in_three_epochs(
    files: list[bytes], folder: Path, workers: int, ops: Any
) -> None:
    """So nothing that was put is lost with the workers of an epoch."""
    reads = Reads(files)
    loader = loader_of(dataset_of(files, ops, reads), on_disk(folder), workers)
    reads.taken()
    renewal, due = Renewal(SAMPLES, SAMPLES, 3, 5), 0
    twice = 4 if workers else 0  # samples of a slow task may be prepared twice
    for epoch in range(5):
        epochs(loader, 1)
        due += renewal.misses(epoch)
        assert 0 <= sum(reads.taken()) - renewal.misses(epoch) <= twice
    said = kept(loader)
    assert said["entries"] == SAMPLES
    assert 0 <= said["found"] - (5 * SAMPLES - due) <= 5 * twice
    assert 0 <= said["missed"] - due <= 5 * twice
    assert said["refused"] == said["damaged"] == 0
    assert said["held_bytes"] > said["bytes"] > 1000 * SAMPLES


def test_everything_may_be_kept_and_is_not_changed_by_what_follows(files: list[bytes], folder: Path) -> None:
    """Data echoing: a batch is made of what is kept as it lies there."""
    for tail in ([], [T.ToDtype(torch.float32, scale=True)]):
        ops = [T.RandomResizedCrop(24), *tail]
        found = epochs(loader_of(dataset_of(files, ops), on_disk(folder, split=1), 2), 4)
        expected = epochs(loader_of(dataset_of(files, ops), Reuse(times=3, split=1)), 4)
        assert all(map(same, found, expected))


# ---- faults


def test_a_folder_that_is_destroyed_in_the_middle_of_an_epoch_costs_time_only(
    files: list[bytes], folder: Path
) -> None:
    loader, expected = loader_of(dataset_of(files), on_disk(folder), 2), loader_of(dataset_of(files))
    for epoch in range(5):
        found = []
        for number, batch in enumerate(loader):
            found.append(plain(batch))
            if epoch and number == 3:
                shutil.rmtree(folder, ignore_errors=True)
        assert same(found, epochs(expected, 1)[0])
    assert kept(loader)["found"] > 0


def overwrite(file: Path, rng: np.random.Generator) -> None:
    """Some of it, with rubbish; a worker may remove it meanwhile, or may not have written to it yet."""
    with contextlib.suppress(FileNotFoundError), open(file, "r+b") as raw:
        size = os.fstat(raw.fileno()).st_size
        os.pwrite(raw.fileno(), rng.bytes(300), int(rng.integers(size)) if size else 0)


def test_files_that_are_overwritten_with_rubbish_cost_time_only(files: list[bytes], folder: Path) -> None:
    loader, expected = loader_of(dataset_of(files), on_disk(folder), 2), loader_of(dataset_of(files))
    rng = np.random.default_rng(4)
    for epoch in range(5):
        found = []
        for number, batch in enumerate(loader):
            found.append(plain(batch))
            if epoch and number % 2:
                for file in folder.rglob("?" * 16):
                    overwrite(file, rng)
        assert same(found, epochs(expected, 1)[0])
    assert kept(loader)["damaged"] > 0
    assert kept(loader)["found"] > 0


def test_what_a_worker_has_put_is_there_for_the_others_at_once(files: list[bytes], folder: Path) -> None:
    reads = Reads(files)
    loader = loader_of(dataset_of(files, reads=reads), on_disk(folder), 2, persistent_workers=True)
    reads.taken()
    epochs(loader, 6)
    renewal = Renewal(SAMPLES, SAMPLES, 3, 5)
    due = [renewal.misses(epoch) for epoch in range(7)]  # the last has been begun
    assert sum(due[:6]) <= sum(reads.taken()) <= sum(due) + 4


@WORKERS
@pytest.mark.parametrize("ops", KEPT.values(), ids=KEPT)
def test_a_budget_that_is_too_small_costs_time_only(
    files: list[bytes], folder: Path, workers: int, ops: Any
) -> None:
    reuse = on_disk(folder, max_bytes=200_000)
    loader, expected = (
        loader_of(dataset_of(files, ops), reuse, workers),
        loader_of(dataset_of(files, ops), Reuse(times=3, split=1)),
    )
    # As many as all have room are to be kept, though they have not: what is kept decides on bytes, and is in the state.
    loader.load_state_dict({**loader.state_dict(), "reuse": {"times": 3, "kept": SAMPLES}})
    for _ in range(4):
        assert same(epochs(loader, 1)[0], epochs(expected, 1)[0])
        assert kept(loader)["held_bytes"] <= 200_000
    assert kept(loader)["refused"] > 0
    assert kept(loader)["found"] > 0


def test_workers_that_are_killed_leave_no_trace(files: list[bytes], folder: Path) -> None:
    loader, expected = loader_of(dataset_of(files), on_disk(folder), 2), loader_of(dataset_of(files))
    for _ in range(5):
        found, killed = [], 0
        for number, batch in enumerate(loader):
            found.append(plain(batch))
            if number % 3 == 1:
                killed += kill_all(loader.stats()["worker_pids"])
        assert killed
        assert same(found, epochs(expected, 1)[0])
    assert kept(loader)["found"] > 0
    assert kept(loader)["damaged"] == 0


# ---- what cannot be


def test_a_path_that_cannot_be_used_is_refused_at_once(files: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path, says in ((tmp_path / "file", "not a folder"), (Path("/proc/nowhere/kept"), "may write to")):
        with pytest.raises(ConfigError, match=says):
            loader_of(dataset_of(files), on_disk(path))
    with pytest.raises(ConfigError, match="at least 65,536"):
        loader_of(dataset_of(files), on_disk(tmp_path / "new", max_bytes=1000))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"store": "disk"}, "needs path="),
        ({"store": "disk", "path": ""}, "path= is empty"),
        ({"store": "disk", "path": "~nobody-here/kept"}, "without '~'"),
        ({"path": "somewhere"}, "is for store='disk'"),
        ({"persistent": True}, "is for store='disk'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Reuse(**options)


def test_a_path_is_meant_as_it_was_when_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    paths = [on_disk(Path(path)).path for path in ("kept", "~/kept", "/scratch/kept")]
    assert paths == [str(tmp_path / "kept"), str(tmp_path / "home" / "kept"), "/scratch/kept"]


def test_a_store_that_is_sent_to_a_process_elsewhere_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = DiskStore("kept", "ab" * 8, 5, 1 << 20, upkeep_s=0)
    assert store.put(Wanted(1, 0), Entry(np.arange(9, dtype=np.uint8)))
    store.flush()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    sent: DiskStore = pickle.loads(pickle.dumps(store))
    assert sent.get(Wanted(1, 0)) is not None
    assert os.listdir(tmp_path / "elsewhere") == []
    sent.close()
    store.close()


# ---- targets


def read_with_a_set(index: int) -> tuple[bytes, Any]:
    return jpeg_of(photo(60, 80, index), quality=70), frozenset({index})


def test_samples_with_other_targets_are_prepared_each_time(folder: Path) -> None:
    dataset = StagedDataset(read_with_a_set, T.Compose(OPS), 8)
    loader = DataLoader(dataset, 4, seed=5, reuse=on_disk(folder), collate_fn=lambda samples: samples)
    for _ in range(2):
        assert [target for batch in loader for _, target in batch] == [frozenset({at}) for at in range(8)]
    assert kept(loader)["entries"] == 0


@WORKERS
@pytest.mark.parametrize("store", ["memory", "disk"])
def test_an_empty_dataset_gives_no_batches(folder: Path, workers: int, store: str) -> None:
    reuse = on_disk(folder) if store == "disk" else Reuse(times=3, split=1)
    dataset = StagedDataset(read_with_a_set, T.Compose(OPS), 0)
    loader: DataLoader[Any] = DataLoader(dataset, 4, seed=5, num_workers=workers, reuse=reuse)
    assert [list(loader), list(loader)] == [[], []]
    assert kept(loader)["entries"] == 0


# ---- several ranks


def rank_of_a_group(rank: int, meeting: str, folder: str, files: list[bytes]) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    loader: DataLoader[Any] = DataLoader(
        dataset_of(files),
        3,
        shuffle=True,
        seed=5,
        shard="auto",
        num_workers=1,
        reuse=on_disk(Path(folder) / "kept"),
    )
    facts: dict[str, Any] = {"sums": [], "keys": [], "found": []}
    for _ in range(4):
        found = [plain(batch) for batch in loader]
        facts["keys"].append([key for _, keys in found for key in keys])
        facts["sums"].append([float(image.double().sum()) for each, _ in found for image in each])
        dist.barrier()
        facts["found"].append(kept(loader)["found"])
        facts["names"] = [each.namespace for each in listing(Path(folder) / "kept")]
        dist.barrier()
    Path(folder, f"{rank}.json").write_text(json.dumps(facts))
    del loader
    dist.destroy_process_group()


def test_ranks_of_one_machine_share_one_store(files: list[bytes], tmp_path: Path) -> None:
    facts = facts_of_ranks(rank_of_a_group, tmp_path, files)
    assert len(facts[0]["names"]) == 1
    expected = [
        DataLoader(dataset_of(files), 3, shuffle=True, seed=5, shard=(rank, 2), reuse=Reuse(times=3, split=1))
        for rank in range(2)
    ]
    renewal, found = Renewal(SAMPLES, SAMPLES, 3, 5), 0
    for epoch in range(4):
        for rank, fact in enumerate(facts):
            right = [plain(batch) for batch in expected[rank]]
            assert fact["keys"][epoch] == [key for _, keys in right for key in keys]
            assert fact["sums"][epoch] == [float(image.double().sum()) for each, _ in right for image in each]
        # A sample is met by another rank in each epoch, and found all the same.
        found += SAMPLES - renewal.misses(epoch)
        assert 0 <= sum(fact["found"][epoch] for fact in facts) - found <= 6
    assert os.listdir(tmp_path / "kept") == []
