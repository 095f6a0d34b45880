"""Plans: whatever part of a sample's way remote workers go, batches are those of local workers."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, get_worker_info

pytest.importorskip("cloudpickle")
pytest.importorskip("PIL.Image")
pytest.importorskip("soundfile")

import penstock
from penstock import transforms as T
from penstock.remote.plans import possible
from penstock.worker.prepare import Recipe
from remote_here import FerryHere, Server, can_hide, remote_workers
from tests.conftest import FULL
from tests.integration.test_remote_workers import Busy, flat, local
from tests.unit.test_jpeg_parts import jpeg_of, photo

soundfile = pytest.importorskip("soundfile")
COUNT = 96
CHAIN = [
    T.RandomResizedCrop(64),
    T.RandomHorizontalFlip(),
    T.ToDtype(torch.float32, scale=True),
    T.Normalize([0.5, 0.4, 0.3], [0.2, 0.25, 0.3]),
]
HELPED: set[tuple[int, str]] = set()
Remote = tuple[Any, FerryHere, list[Server]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same images in folders and in a tar shard, and recordings."""
    root = tmp_path_factory.mktemp("only here")
    with tarfile.open(root / "shard.tar", "w") as tar:
        for number in range(COUNT):
            image = jpeg_of(photo(500, 600 + number, number))
            path = root / "photos" / "ab"[number % 2] / f"{number:03}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image)
            for name, content in (
                (f"{number:03}.jpg", image),
                (f"{number:03}.cls", str(number % 2).encode()),
            ):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            sound = root / "sounds" / "ab"[number % 2] / f"{number:03}.wav"
            sound.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(sound, np.sin(np.arange(40_000) * (0.01 + number / 1000)), 16_000)
    return root


def slow(value: Any) -> Any:
    """Takes a while, so that every worker gets some."""
    until = time.perf_counter() + 0.003
    while time.perf_counter() < until:
        pass
    return value


def who(target: int) -> int:
    info = get_worker_info()
    return slow(0 if info is None else info.id)


def dataset_of(form: str, data: Path) -> Any:
    if form == "folder":
        return penstock.ImageFolder(data / "photos", CHAIN)
    if form == "shard":
        return penstock.TarDataset(data / "shard.tar", CHAIN, index_dir=False)
    if form == "subset":
        return Subset(penstock.ImageFolder(data / "photos", CHAIN, slow), list(range(COUNT - 1, 8, -1)))
    return penstock.AudioFolder(data / "sounds", [T.PadOrCut(16_000), T.LogMel(16_000)], slow)


def batches(dataset: Any, remote: Remote | None = None, plan: str = "auto", **options: Any) -> list[Any]:
    options = {"batch_size": 16, "shuffle": True, "seed": 7, "num_workers": 1, **options}
    loader: Any = penstock.DataLoader(dataset, **options)
    if remote is not None:
        loader._remote = replace(remote[0], plan=plan)
    return list(loader)


@pytest.fixture(scope="module")
def remote() -> Iterator[Remote]:
    with remote_workers(2) as found:
        yield found


@pytest.fixture(scope="module")
def blind(data: Path) -> Iterator[Remote]:
    """Remote workers that cannot see the data."""
    if not can_hide():
        pytest.skip("mount namespaces are not allowed here")
    with remote_workers(2, blind_to=data) as found:
        yield found


def until_both_help(data: Path, remote: Remote, plan: str) -> None:
    """Remote workers may still be starting. Once is enough for each plan."""
    if (id(remote[1]), plan) in HELPED:
        return
    HELPED.add((id(remote[1]), plan))
    dataset = penstock.ImageFolder(data / "photos", CHAIN, who)
    dataset.samples *= 700  # one epoch: to connect takes longer than a short one lasts
    dataset.length = len(dataset.samples)
    loader: Any = penstock.DataLoader(dataset, batch_size=16, seed=7, num_workers=1)
    loader._remote = replace(remote[0], plan=plan)
    seen: set[int] = set()
    for _, workers in loader:
        seen |= set(workers.tolist())
        if seen == {0, 1, 2}:
            return
    raise AssertionError("remote workers never came")


@pytest.mark.parametrize(
    ("plan", "form"),
    [
        (plan, form)
        for at, plan in enumerate(["samples", "bytes", "batches", "cut"])
        for number, form in enumerate(["folder", "shard", "subset", "sounds"])
        if FULL or not number or number == at or (plan, form) == ("cut", "sounds")
    ],
)
def test_batches_are_the_same_for_every_plan(data: Path, remote: Remote, form: str, plan: str) -> None:
    dataset = dataset_of(form, data)
    if plan == "cut" and form == "sounds":
        with pytest.raises(penstock.ConfigError, match="only image chains"):
            batches(dataset, remote, plan)
        return
    until_both_help(data, remote, plan)
    assert flat(batches(dataset, remote, plan)) == flat(batches(dataset))


@pytest.mark.parametrize("form", ["folder", "shard", "subset", "sounds"] if FULL else ["folder", "shard"])
def test_bytes_are_read_here_for_workers_that_cannot_see_them(data: Path, blind: Remote, form: str) -> None:
    until_both_help(data, blind, "bytes")
    dataset = dataset_of(form, data)
    assert flat(batches(dataset, blind, "bytes")) == flat(batches(dataset))


def test_data_out_of_reach_is_noticed_and_its_bytes_are_sent(
    data: Path, blind: Remote, caplog: pytest.LogCaptureFixture
) -> None:
    until_both_help(data, blind, "auto")
    dataset = dataset_of("folder", data)
    expected, deadline = flat(batches(dataset)), time.monotonic() + 200
    caplog.clear()
    while not caplog.records:  # on a busy machine local workers may do everything
        assert flat(batches(dataset, blind)) == expected
        assert time.monotonic() < deadline, "data out of reach was not noticed"
    (line,) = {record.message for record in caplog.records}
    assert "the data is not reachable from " in line
    assert "(FileNotFoundError: " in line
    assert line.endswith("): bytes are read here instead")


def test_a_worker_that_dies_while_it_is_sent_bytes(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset = dataset_of("folder", data)
    expected = flat(batches(dataset, num_workers=1))
    with remote_workers(2) as found:
        until_both_help(data, found, "bytes")
        loader: Any = penstock.DataLoader(dataset, batch_size=16, shuffle=True, seed=7, num_workers=1)
        loader._remote = replace(found[0], plan="bytes")
        taken = []
        for at, batch in enumerate(loader):
            taken.append(batch)
            if at == 1:
                for server in found[2]:
                    server.process.kill()
        assert flat(taken) == expected
        assert flat(batches(dataset, found, "bytes")) == expected
    assert "was lost: " in caplog.text


class Opener(Dataset[Any]):
    """Reads files in its own way."""

    def __init__(self, root: Path, *, missing: int = -1) -> None:
        self.paths = sorted(str(path) for path in root.glob("photos/*/*.jpg"))
        if missing >= 0:
            self.paths[missing] += ".gone"

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        data = np.frombuffer(Path(self.paths[index]).read_bytes(), np.uint8)
        return slow(int(data.sum())), torch.randn(3)


def test_a_dataset_that_reads_in_its_own_way_is_then_prepared_here(
    data: Path, blind: Remote, caplog: pytest.LogCaptureFixture
) -> None:
    until_both_help(data, blind, "bytes")
    caplog.clear()
    for _ in range(10):
        assert flat(batches(Opener(data), blind)) == flat(batches(Opener(data)))
        if caplog.records:
            break
    assert {record.message.rpartition(": ")[2] for record in caplog.records} == {"samples are prepared here"}


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_a_file_that_is_missing_here_too_is_the_users_error(
    data: Path, remote: Remote, blind: Remote, on_error: str
) -> None:
    def found(dataset: Any, used: Remote | None, plan: str = "auto") -> Any:
        try:
            return flat(batches(dataset, used, plan, on_error=on_error))
        except FileNotFoundError as exc:
            return exc.errno, str(exc).splitlines()[-1], [*exc.__notes__]

    until_both_help(data, remote, "samples")
    folder = dataset_of("folder", data)
    folder.samples[40] = folder.samples[40][0] + ".png", 0
    for dataset, plan in ((Opener(data, missing=40), "samples"), (folder, "samples"), (folder, "bytes")):
        expected = found(dataset, None)
        assert found(dataset, remote, plan) == expected
        assert found(dataset, blind, plan) == expected


class WithNothing(Busy):
    """Samples with an empty tensor have no layout: torch's own collate makes their batches."""

    def __init__(self, *, busy_s: float = 0.004) -> None:
        super().__init__("pair", busy_s=busy_s)

    def __getitem__(self, index: int) -> Any:
        image, _ = super().__getitem__(index)
        return image, torch.empty(0), index


@pytest.mark.parametrize("form", ["pair", "dict", "growing text"])
def test_whole_batches_of_any_form(remote: Remote, form: str) -> None:
    assert flat(batches(Busy(form), remote, "batches")) == local(form)


def test_whole_batches_that_have_no_layout_are_collated_there(remote: Remote) -> None:
    class Who(WithNothing):
        def __getitem__(self, index: int) -> Any:
            return *super().__getitem__(index), get_worker_info().id

    assert flat(batches(WithNothing(), remote, "batches")) == flat(batches(WithNothing(busy_s=0.0)))
    deadline = time.monotonic() + 300
    while True:
        found = [workers.tolist() for *_, workers in batches(Who(), remote, "batches")]
        if {worker for workers in found for worker in workers} == {0, 1, 2}:
            break
        assert time.monotonic() < deadline


def test_what_is_impossible_is_said(data: Path, remote: Remote) -> None:
    def reasons(dataset: Any, collate: Any = torch.utils.data.default_collate) -> Any:
        return possible(Recipe(dataset=dataset, collate_fn=collate, auto_collation=True, seed=1))

    assert not reasons(dataset_of("folder", data))["bytes"]
    assert "does not say which files" in reasons(Busy("pair"))["bytes"]
    assert "collate_fn of your own" in reasons(Busy("pair"), list)["batches"]
    with pytest.raises(
        penstock.ConfigError, match=r"plan='bytes'\) is impossible here: the dataset does not say"
    ):
        batches(Busy("pair"), remote, "bytes")
