# ruff: noqa: F811 - fixtures are imported
"""Object stores, read through the fetch service: the bytes asked for or a clear error, signed requests, the same batches as from local files."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock import AudioFolder, ConfigError, DataLoader, ImageFolder, MissingExtra, TarDataset
from penstock.epochs.costs import read_costs
from penstock.pipeline.staged import StagedDataset
from penstock.sources import cloud
from penstock.sources.anywhere import AnyFiles
from penstock.sources.cloud import CloudFiles
from penstock.sources.retries import TALLY
from penstock.sources.sources import BadRead, ByteRange
from penstock.sources.stores import Unreadable, profile
from tests.integration.test_tar_dataset import CHAIN, PATTERN, batches, folder, images, same, shards  # noqa: F401 - fixtures
from tests.s3 import KEY, PAGE, SECRET, S3Apart, s3_served
from tests.stores_here import DATA, NAME, NEVER, SOON, needs_obstore, service_pid, store_here
from tests.unit.test_sources import check_source

pytestmark = needs_obstore


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Apart]:
    with store_here(tmp_path_factory.mktemp("store")) as server:
        yield server


@pytest.fixture
def files(store: S3Apart) -> Iterator[CloudFiles]:
    files = CloudFiles(timeout_s=20, limits=SOON)
    yield files
    files.close()


@pytest.fixture(autouse=True)
def _obstore_stays_out_of_this_process() -> Any:
    yield
    assert "obstore" not in sys.modules, "this process forks"


# ---- bytes


def test_source_contract_of_an_object_store(store: S3Apart) -> None:
    check_source(AnyFiles(), NAME)


def test_names_are_taken_as_they_are(store: S3Apart, files: CloudFiles) -> None:
    for key in ("a b/ü+1.bin", "50%25.bin", "what?.bin", "x#y=z&.bin"):
        path = store.folder / "bucket" / key
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(key.encode())
        assert files.read(f"s3://bucket/{key}") == key.encode()
    with pytest.raises(BadRead, match="empty path segment"):
        files.read("s3://bucket/a//b")


def test_a_prefix_is_listed_over_many_pages(store: S3Apart, files: CloudFiles) -> None:
    (store.folder / "bucket" / "many").mkdir()
    (store.folder / "bucket" / "many more").write_bytes(b"another")
    for number in range(2 * PAGE + 7):
        (store.folder / "bucket" / "many" / f"{number}").write_bytes(b"x" * number)
    found = {(one.name, one.size) for one in files.below("s3://bucket/many/")}
    assert found == {(f"s3://bucket/many/{number}", number) for number in range(2 * PAGE + 7)}
    assert files.below("s3://bucket/nothing") == []


def test_ranges_near_each_other_are_one_request_and_the_server_sends_no_more(
    store: S3Apart, files: CloudFiles
) -> None:
    (store.folder / "bucket" / "large.bin").write_bytes(DATA * 20)
    ranges: list[ByteRange] = [("s3://bucket/large.bin", at, at + 100) for at in (0, 200, 100, 100_000)]
    before = store.counts()
    assert files.read_many(ranges) == [(DATA * 20)[start:end] for _, start, end in ranges]
    after = store.counts()
    assert after["requests"] - before["requests"] == 2
    assert after["bytes"] - before["bytes"] == 400


def test_more_ranges_than_a_request_holds(store: S3Apart, files: CloudFiles) -> None:
    (store.folder / "bucket" / "large.bin").write_bytes(DATA * 160)
    ranges: list[ByteRange] = [("s3://bucket/large.bin", at * 17_000, at * 17_000 + 9) for at in range(90)]
    assert files.read_many(ranges) == [(DATA * 160)[start:end] for _, start, end in ranges]


def test_a_large_range_and_many_threads(store: S3Apart, files: CloudFiles) -> None:
    large = np.random.default_rng(0).bytes(9_000_000)
    (store.folder / "bucket" / "large.bin").write_bytes(large)
    wrong: list[object] = []

    def read(number: int) -> None:
        for at in range(number, 400_000, 50_000):
            if files.read("s3://bucket/large.bin", at, at + 8_000_000) != large[at : at + 8_000_000]:
                wrong.append(at)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def read_in_a_child(files: CloudFiles, pipe: Any) -> None:
    pipe.send((files.read(NAME, 5, 15), service_pid(files), "obstore" in sys.modules))
    files.close()


def test_a_forked_child_has_streams_of_its_own_to_the_same_service(files: CloudFiles) -> None:
    assert files.read(NAME, 0, 5) == DATA[:5]
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=read_in_a_child, args=(files, theirs))
    child.start()
    assert ours.recv() == (DATA[5:15], service_pid(files), False)
    child.join()
    assert files.read(NAME, 5, 9) == DATA[5:9]
    ours.close()
    theirs.close()
    child.close()


# ---- who we are


def test_a_wrong_secret_is_refused_and_is_in_no_message(
    store: S3Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a wrong secret")
    before = store.counts()["requests"]
    with pytest.raises(BadRead, match=r"s3://bucket/data.bin.*403.*SignatureDoesNotMatch") as caught:
        CloudFiles().read(NAME)
    assert "wrong secret" not in str(caught.value)
    assert store.counts()["requests"] == before + 1, "another try would end the same"


def test_a_request_without_a_signature_is_refused(store: S3Apart, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(key)
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    with pytest.raises(BadRead, match="AccessDenied"):
        CloudFiles().read(NAME)


def test_without_credentials_the_error_says_so_at_once(
    store: S3Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(key)
    with pytest.raises(BadRead, match="no credentials were found in the environment"):
        CloudFiles().read(NAME)


def test_credentials_come_from_the_files_of_the_aws_tools(
    store: S3Apart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in store.environ:
        monkeypatch.delenv(key)
    (tmp_path / ".aws").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws" / "credentials").write_text(
        f"[default]\naws_access_key_id=other\naws_secret_access_key=%x\n"
        f"[work]\naws_access_key_id={KEY}\naws_secret_access_key={SECRET}\n"
    )
    region = store.environ["AWS_REGION"]
    (tmp_path / ".aws" / "config").write_text(f"[profile work]\nregion={region}\nendpoint_url={store.url}\n")
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert CloudFiles().read(NAME, 0, 9) == DATA[:9]


def test_a_profile_that_cannot_be_used_says_what_to_do(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "AWS_PROFILE": "work"}
    with pytest.raises(Unreadable, match=r"no file of .* has such a profile"):
        profile(environ)
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text("[profile work]\nsso_session=x\nregion=r\n")
    with pytest.raises(Unreadable, match=r"by sso_session, .*aws configure export-credentials"):
        profile(environ)
    assert profile({**environ, "AWS_ACCESS_KEY_ID": "x", "AWS_REGION": "other"}) == {}
    assert profile({"HOME": str(tmp_path / "none")}) == {}


# ---- failures


@pytest.mark.parametrize("trouble", ["429", "503", "500", "reset", "short"])
def test_a_failure_that_passes_is_tried_again(store: S3Apart, files: CloudFiles, trouble: str) -> None:
    before = TALLY.count
    store.busy(trouble, trouble)
    assert files.read(NAME, 5, 15) == DATA[5:15]
    assert TALLY.count == before + 2


def test_a_failure_that_stays_is_an_error_that_names_the_file(store: S3Apart, files: CloudFiles) -> None:
    store.busy(*["503"] * 7)
    with pytest.raises(BadRead, match=r"reading s3://bucket/data.bin failed: 503.*SlowDown") as caught:
        files.read(NAME, 5, 15)
    assert "it was tried 7 times" in "".join(caught.value.__notes__)


def test_a_refusal_is_not_tried_again(store: S3Apart, files: CloudFiles) -> None:
    store.busy("400")
    before = store.counts()["requests"]
    with pytest.raises(BadRead, match="400"):
        files.read(NAME, 5, 15)
    assert store.counts()["requests"] == before + 1


def test_a_server_that_stalls_costs_a_deadline(store: S3Apart) -> None:
    files = CloudFiles(timeout_s=0.5, limits=NEVER)
    store.busy("stall")
    with pytest.raises(BadRead, match=r"reading s3://bucket/data.bin failed"):
        files.read(NAME, 0, 5_000)
    assert files.read(NAME, 0, 5_000) == DATA[:5_000]


def test_a_server_that_is_gone_is_an_error_and_one_that_returns_is_read(
    store: S3Apart, files: CloudFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_served(store.folder) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        assert files.read(NAME, 0, 5) == DATA[:5]
    with pytest.raises(BadRead, match=r"s3://bucket/data.bin failed: .*error sending request"):
        files.read(NAME, 0, 5)
    with s3_served(store.folder, "strict", server.url.rpartition(":")[2]):
        assert files.read(NAME, 0, 5) == DATA[:5]


@pytest.mark.parametrize("how", ["strict", "careless"])
def test_an_object_that_changes_after_its_stamp_was_taken_is_an_error(
    store: S3Apart, files: CloudFiles, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store.folder / "bucket" / "changing.bin"
    path.write_bytes(DATA)
    with s3_served(store.folder, how) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        assert files.stamp("s3://bucket/changing.bin").startswith("10240-")
        assert files.read("s3://bucket/changing.bin", 0, 5) == DATA[:5]
        path.write_bytes(DATA[::-1])
        with pytest.raises(BadRead, match="was changed while it was in use"):
            files.read("s3://bucket/changing.bin", 0, 5)


def test_without_obstore_the_error_names_the_extra(store: S3Apart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"pip install 'penstock\[cloud\]'"):
        AnyFiles().read(NAME)


# ---- datasets


@pytest.fixture
def train(store: S3Apart, folder: Path) -> Iterator[str]:
    link = store.folder / "bucket" / "train"
    link.symlink_to(folder)
    yield "s3://bucket/train"
    link.unlink()


@pytest.mark.parametrize("workers", [0, 2])
def test_folders_and_shards_in_a_store_give_the_batches_of_local_ones(
    store: S3Apart,
    train: str,
    folder: Path,
    shards: Path,
    tmp_path: Path,
    workers: int,
) -> None:
    (store.folder / f"shards-{workers}").symlink_to(shards)
    wanted = batches(ImageFolder(folder, CHAIN), 0)
    photos = ImageFolder(train, CHAIN)
    assert photos.classes == ImageFolder(folder).classes
    assert [name.removeprefix(train) for name, _ in photos.samples] == [
        name.removeprefix(str(folder)) for name, _ in ImageFolder(folder).samples
    ]
    assert same(batches(photos, workers), wanted)
    tars = TarDataset(f"s3://shards-{workers}/{PATTERN}", CHAIN, index_dir=tmp_path / "index")
    assert same(batches(tars, workers), wanted)
    assert photos.contents() is not None
    assert photos.contents() == ImageFolder(f"{train}/").contents()
    assert tars.contents() is not None
    tars.close()


def test_spawned_workers_read_from_a_store(train: str, folder: Path) -> None:
    wanted = batches(ImageFolder(folder, CHAIN), 0)
    loader: DataLoader[Any] = DataLoader(
        ImageFolder(train, CHAIN),
        5,
        shuffle=True,
        num_workers=1,
        seed=11,
        multiprocessing_context="spawn",
    )
    assert same(list(loader), wanted[: len(wanted) // 2])


def test_recordings_in_a_store_are_those_of_a_local_folder(store: S3Apart, tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    for number in range(6):
        path = store.folder / "bucket" / "speech" / ("no", "yes")[number % 2] / f"{number}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, np.linspace(-0.5, 0.5, 800), 8_000)
    local, remote = AudioFolder(store.folder / "bucket" / "speech"), AudioFolder("s3://bucket/speech")
    assert remote.targets == local.targets
    assert all(torch.equal(remote[at][0], local[at][0]) for at in range(6))
    assert read_costs(remote) == read_costs(local)
    named = AudioFolder("s3://bucket/speech", classes=lambda path: path.parent.name)
    assert named.classes == ["no", "yes"]


class Own(StagedDataset):
    """A user's dataset that says where its bytes are."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(None, CHAIN, len(names))
        self.names, self.bytes_from = names, AnyFiles()

    def locate(self, index: int) -> ByteRange:
        return self.names[index], 0, None

    def target_of(self, index: int) -> int:
        return index


def test_a_dataset_of_the_users_own_reads_from_a_store(train: str, folder: Path) -> None:
    local = [name for name, _ in ImageFolder(folder).samples]
    remote = [name for name, _ in ImageFolder(train).samples]
    assert same(batches(Own(remote), 2), batches(Own(local), 0))


def test_the_example_of_the_documents_runs(
    train: str, shards: Path, store: S3Apart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store.folder / "bucket" / "shards").symlink_to(shards)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text("utf-8")
    names: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], names)
    assert train in page
    assert len(names["shards"]) == len(names["photos"])
    assert names["shards"][0][0].shape == (3, 224, 224)


def test_roots_that_cannot_be_listed_or_hold_nothing_are_errors(store: S3Apart) -> None:
    with pytest.raises(ConfigError, match="cannot be listed"):
        ImageFolder("https://127.0.0.1:1/train")
    with pytest.raises(FileNotFoundError, match="any class folder in s3://bucket/none"):
        ImageFolder("s3://bucket/none")
    (store.folder / "bucket" / "a" / "b").mkdir(parents=True)
    (store.folder / "bucket" / "a" / "b" / "notes.txt").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="no valid file for the classes b"):
        ImageFolder("s3://bucket/a")
