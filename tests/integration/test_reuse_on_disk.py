"""`Reuse(store="disk")`: the same batches as from memory and from nowhere, whatever happens to the folder; and what lasts beyond a run."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock import ConfigError, DataLoader, ImageFolder, Reuse, StagedDataset, TarDataset
from penstock import transforms as T
from penstock.pipeline import plain_targets
from penstock.plan.renewal import Renewal
from penstock.store.disk_listing import Listed, listing
from tests.integration.test_reuse import (
    OPS,
    SAMPLES,
    Reads,
    by_sample,
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
    for epoch in range(5):
        epochs(loader, 1)
        due += renewal.misses(epoch)
        assert sum(reads.taken()) == renewal.misses(epoch)
    said = kept(loader)
    assert said["entries"] == SAMPLES
    assert (said["found"], said["missed"]) == (5 * SAMPLES - due, due)
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


def test_files_that_are_overwritten_with_rubbish_cost_time_only(files: list[bytes], folder: Path) -> None:
    loader, expected = loader_of(dataset_of(files), on_disk(folder), 2), loader_of(dataset_of(files))
    rng = np.random.default_rng(4)
    for epoch in range(5):
        found = []
        for number, batch in enumerate(loader):
            found.append(plain(batch))
            if epoch and number % 2:
                for file in folder.rglob("*"):
                    if {"segments", "large"} & set(file.parts) and file.is_file() and file.stat().st_size:
                        with open(file, "r+b") as raw:
                            raw.seek(int(rng.integers(file.stat().st_size)))
                            raw.write(rng.bytes(300))
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
        found = []
        for number, batch in enumerate(loader):
            found.append(plain(batch))
            if number % 3 == 1:
                for pid in loader.stats()["worker_pids"]:
                    os.kill(pid, signal.SIGKILL)
        assert same(found, epochs(expected, 1)[0])
    assert kept(loader)["found"] > 0
    assert kept(loader)["damaged"] == 0


# ---- later runs


PHOTO_BYTES = 10_000
"""All files are as large, so that only their content tells them apart."""


@pytest.fixture
def photos(files: list[bytes], tmp_path: Path) -> Path:
    for at, data in enumerate(files):
        path = tmp_path / "photos" / f"{at % 3}" / f"{at:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.ljust(PHOTO_BYTES, b"\0"))
    return tmp_path / "photos"


def images(loader: DataLoader[Any], count: int = 1) -> list[list[Any]]:
    return [[(batch[0].clone(), batch[1].tolist()) for batch in loader] for _ in range(count)]


def photo_loader(photos: Path, reuse: Reuse, workers: int = 0, seed: int = 5, **options: Any) -> Any:
    dataset = ImageFolder(photos, T.Compose(options.pop("ops", OPS)), **options)
    return DataLoader(dataset, 4, shuffle=True, seed=seed, num_workers=workers, reuse=reuse)


@pytest.mark.parametrize("after", [0, 5])
def test_a_run_that_goes_on_finds_what_was_kept_before(photos: Path, folder: Path, after: int) -> None:
    lasting = on_disk(folder, persistent=True)
    loader = photo_loader(photos, lasting, 2)
    images(loader, 4)
    iterator = iter(loader)
    for _ in range(after):
        next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [(batch[0].clone(), batch[1].tolist()) for batch in iterator]
    del iterator, loader
    resumed = photo_loader(photos, lasting, 1)
    resumed.load_state_dict(state)
    assert same(images(resumed)[0], rest)
    assert kept(resumed)["missed"] == 0  # it has all been kept in the epoch that goes on here
    assert kept(resumed)["found"] > 0


def test_a_second_run_finds_what_the_first_has_kept(photos: Path, folder: Path) -> None:
    lasting = on_disk(folder, persistent=True)
    first = images(photo_loader(photos, lasting, 2))
    again = photo_loader(photos, lasting)
    assert same(images(again)[0], first[0])
    assert (kept(again)["found"], kept(again)["missed"]) == (SAMPLES, 0)


def test_a_photo_that_was_changed_between_runs_is_prepared_anew(photos: Path, folder: Path) -> None:
    """Its size is the same, and its time was set back."""
    lasting = on_disk(folder, persistent=True)
    before = by_sample(label_by_sample(images(photo_loader(photos, lasting, 2))[0]))
    changed = photos / "0" / "03.jpg"
    was = changed.stat()
    changed.write_bytes(jpeg_of(photo(69, 80, 99), quality=70).ljust(PHOTO_BYTES, b"\0"))
    assert changed.stat().st_size == was.st_size
    os.utime(changed, ns=(was.st_atime_ns, was.st_mtime_ns))
    again = photo_loader(photos, lasting, 2)
    after = images(again)
    assert same(after[0], images(photo_loader(photos, Reuse(times=3, split=1)))[0])
    assert kept(again)["found"] == 0
    assert any(
        not torch.equal(a, b)
        for a, b in zip(before.values(), by_sample(label_by_sample(after[0])).values(), strict=True)
    )


def label_by_sample(batches: list[Any]) -> list[Any]:
    """Numbered by their place in the epoch, which is that of the sample."""
    return [(each, range(4 * at, 4 * at + len(each))) for at, (each, _) in enumerate(batches)]


def test_what_makes_other_pixels_has_a_store_of_its_own(photos: Path, folder: Path) -> None:
    lasting = on_disk(folder, persistent=True)
    images(photo_loader(photos, lasting))
    others: list[dict[str, Any]] = [
        {"seed": 6},
        {"ops": [T.RandAugment(num_ops=3), *OPS[1:]]},
        {"ops": [T.RandAugment(fill=3), *OPS[1:]]},
        {"ops": [T.RandomResizedCrop(30), *OPS[1:]]},
        {"fast_decode": True},
        {"max_pixels": 10_000_000},
    ]
    for at, options in enumerate(others):
        other = photo_loader(photos, lasting, **options)
        images(other)
        assert kept(other)["found"] == 0, options
        assert len(listing(folder)) == at + 2
    same_ops = photo_loader(
        photos, lasting, ops=[OPS[0], T.RandomResizedCrop(30), T.RandomVerticalFlip(), *OPS[3:]]
    )
    images(same_ops)
    assert kept(same_ops)["found"] == SAMPLES  # what follows the split is drawn anew


def shard_of(path: Path, files: list[bytes], targets: list[int]) -> None:
    with tarfile.open(path, "w") as shard:
        for at, (data, target) in enumerate(zip(files, targets, strict=True)):
            for name, body in ((f"{at:03}.jpg", data), (f"{at:03}.cls", str(target).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(body)
                shard.addfile(member, io.BytesIO(body))


def test_shards_last_too_until_they_are_changed(files: list[bytes], tmp_path: Path, folder: Path) -> None:
    shard = tmp_path / "shard.tar"

    def loader() -> DataLoader[Any]:
        return DataLoader(
            TarDataset(shard, T.Compose(OPS)),
            4,
            seed=5,
            num_workers=1,
            reuse=on_disk(folder, persistent=True),
        )

    shard_of(shard, files, [3] * SAMPLES)
    first, again = loader(), loader()
    expected = images(first)[0]
    assert same(images(again)[0], expected)
    assert kept(again)["found"] == SAMPLES
    shard_of(shard, files, [4] * SAMPLES)
    changed = loader()
    assert {target for _, targets in images(changed)[0] for target in targets} == {4}


class Numbered(StagedDataset):
    def contents(self) -> str:
        return "numbers, version 1"


def test_what_cannot_be_told_apart_is_kept_for_the_run_only_and_that_is_said(
    files: list[bytes], photos: Path, folder: Path
) -> None:
    lasting = on_disk(folder, persistent=True)
    own = Numbered(Reads(files), T.Compose(OPS), SAMPLES)
    for dataset, why in (
        (dataset_of(files), "StagedDataset cannot say when its samples change"),
        (
            StagedDataset(Reads(files), T.Compose(OPS), SAMPLES, decoder=decoded),
            "the dataset has a decoder of its own",
        ),
        (own, ""),
    ):
        loader = loader_of(dataset, lasting)
        epochs(loader, 1)
        said = loader.explain()
        assert (f"for this run only: {why}" if why else "for later runs with the same data") in said
        assert [each.temporary for each in listing(folder)] == [bool(why)]
        del loader
    assert [each.temporary for each in listing(folder)] == [False]
    assert f"in {folder}, for this run" in photo_loader(photos, on_disk(folder)).explain()


def decoded(data: bytes) -> Any:
    from penstock.pipeline.decode import decode

    return decode(data)


# ---- the end of a run


@WORKERS
def test_what_was_kept_goes_with_the_loader(files: list[bytes], folder: Path, workers: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    loader = loader_of(dataset_of(files), on_disk(folder), workers)
    epochs(loader, 2)
    (found,) = listing(folder)
    assert found.in_use
    assert found.temporary
    assert "RandAugment; seed 5" in found.about
    del loader
    assert os.listdir(folder) == []
    assert len(os.listdir("/proc/self/fd")) <= before


PROGRAM = """
import sys
from penstock import DataLoader, ImageFolder, Reuse, transforms as T
if __name__ == "__main__":
    photos, kept = sys.argv[1:]
    reuse = Reuse(split=1, store="disk", path=kept)
    loader = DataLoader(ImageFolder(photos, [T.RandAugment(), T.Resize((9, 9))]), 4, seed=1, num_workers=1, reuse=reuse)
    for batch in loader:
        pass
    print(loader.stats()["reuse"]["entries"])
"""


def test_a_program_that_ends_takes_along_what_it_kept(photos: Path, folder: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(photos), str(folder)]
    environment = os.environ | {"PYTHONPATH": str(SRC)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stdout) == (0, f"{SAMPLES}\n"), done.stderr
    assert os.listdir(folder) == []


def killed_in_an_epoch(photos: Path, folder: Path) -> None:
    loader = photo_loader(photos, on_disk(folder), 1)
    images(loader)
    for _ in loader:
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_run_has_left_is_removed_by_the_next(photos: Path, folder: Path) -> None:
    images(photo_loader(photos, on_disk(folder, persistent=True)))
    (lasting,) = listing(folder)
    process = multiprocessing.get_context("fork").Process(target=killed_in_an_epoch, args=(photos, folder))
    process.start()
    process.join(90)
    assert process.exitcode == -signal.SIGKILL
    left = {each.namespace for each in wait_until_unused(folder)} - {lasting.namespace}
    assert len(left) == 1
    loader = photo_loader(photos, on_disk(folder))
    images(loader)
    names = {each.namespace for each in listing(folder)}
    assert not names & left
    assert lasting.namespace in names


def wait_until_unused(folder: Path) -> list[Listed]:
    """Workers of a killed run end with it, but not in the same moment."""
    until_s = time.monotonic() + 10
    while any(each.in_use for each in listing(folder)):
        assert time.monotonic() < until_s
        time.sleep(0.01)
    return listing(folder)


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
        ({"path": "somewhere"}, "is for store='disk'"),
        ({"persistent": True}, "is for store='disk'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Reuse(**options)


# ---- targets


@pytest.mark.parametrize(
    "target",
    [
        None,
        True,
        -(2**70),
        1e-300,
        float("inf"),
        "wörd\ud800",
        b"\0\xff",
        [1, (2, "x"), {"a": [None], 3: (4.5,), (1, 2): {}}],
        np.float32(1.5),
        np.arange(6, dtype=">i4").reshape(2, 3)[:, ::2],
        torch.arange(6.0).reshape(2, 3).T,
        torch.tensor(7),
    ],
    ids=str,
)
def test_targets_come_back_as_they_were(target: Any) -> None:
    found = plain_targets.loads(plain_targets.dumps(target))
    assert type(found) is type(target)
    if isinstance(target, (np.ndarray, torch.Tensor)):
        assert found.dtype == target.dtype
        assert found.shape == target.shape
        assert bool((found == target).all())
    else:
        assert found == target


@pytest.mark.parametrize(
    "target", [object(), {1, 2}, np.array([object()]), [torch.zeros(2, requires_grad=True)]]
)
def test_other_targets_are_not_written(target: Any) -> None:
    with pytest.raises(plain_targets.Unwritable):
        plain_targets.dumps(target)


def read_with_a_set(index: int) -> tuple[bytes, Any]:
    return jpeg_of(photo(60, 80, index), quality=70), frozenset({index})


def test_samples_with_other_targets_are_prepared_each_time(folder: Path) -> None:
    dataset = StagedDataset(read_with_a_set, T.Compose(OPS), 8)
    loader = DataLoader(dataset, 4, seed=5, reuse=on_disk(folder), collate_fn=lambda samples: samples)
    for _ in range(2):
        assert [target for batch in loader for _, target in batch] == [frozenset({at}) for at in range(8)]
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
    context = multiprocessing.get_context("fork")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    arguments = [(rank, str(tmp_path / "meeting"), str(tmp_path), files) for rank in range(2)]
    ranks = [context.Process(target=rank_of_a_group, args=each) for each in arguments]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(90)
        assert process.exitcode == 0
    facts = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
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
        assert sum(fact["found"][epoch] for fact in facts) == found
    assert os.listdir(tmp_path / "kept") == []
