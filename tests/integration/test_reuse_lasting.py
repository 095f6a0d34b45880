"""`Reuse(store="disk", persistent=True)`: what lasts beyond a run, what must not, and what goes with a run."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tarfile
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock import DataLoader, ImageFolder, Reuse, StagedDataset, TarDataset
from penstock import transforms as T
from penstock.reuse.stores.disk_listing import Listed, listing
from tests.integration.test_reuse import (
    OPS,
    SAMPLES,
    Reads,
    by_sample,
    dataset_of,
    epochs,
    loader_of,
    same,
)
from tests.integration.test_reuse_on_disk import SRC, WORKERS, kept, on_disk
from tests.unit.test_jpeg_parts import jpeg_of, photo

pytest.importorskip("cv2")


@pytest.fixture(scope="module")
def files() -> list[bytes]:
    return [jpeg_of(photo(60 + 3 * (at % 7), 80, at), quality=70) for at in range(SAMPLES)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept"


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
    assert kept(again)["found"] >= SAMPLES
    shard_of(shard, files, [4] * SAMPLES)
    changed = loader()
    assert {target for _, targets in images(changed)[0] for target in targets} == {4}


def test_to_last_without_a_seed_is_warned_of_when_the_loader_is_made(photos: Path, folder: Path) -> None:
    dataset, lasting = ImageFolder(photos, T.Compose(OPS)), on_disk(folder, persistent=True)
    with pytest.warns(UserWarning, match="without seed=.*Give seed=") as said:
        DataLoader(dataset, 4, reuse=lasting)
    assert [each.filename for each in said] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DataLoader(dataset, 4, seed=5, reuse=lasting)
        DataLoader(dataset, 4, reuse=on_disk(folder))
        DataLoader(dataset, 4, reuse=on_disk(folder, persistent=True, times=1))


class Numbered(StagedDataset):
    def contents(self) -> str:
        return "numbers, version 1"


def test_what_cannot_be_told_apart_is_kept_for_the_run_only_and_that_is_said(
    files: list[bytes], photos: Path, folder: Path, caplog: pytest.LogCaptureFixture
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
        caplog.clear()
        loader = loader_of(dataset, lasting)
        epochs(loader, 2)
        said = loader.explain()
        assert [why in each.getMessage() for each in caplog.records] == ([True] if why else [])
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
