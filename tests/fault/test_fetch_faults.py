"""The fetch service killed, stopped or asked nonsense, at any moment: the right bytes, or an error in time that names the file."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import DataLoader, ImageFolder
from penstock.node.job import job_name
from penstock.node.link import NodeLink
from penstock.sources.cloud import CloudFiles
from penstock.sources.fetch_frames import HEAD, MOST_REQUEST, PID, Fetch, StreamLost, receive_head
from penstock.sources.retries import TALLY
from penstock.sources.sources import BadRead
from tests.fault.programs import until
from tests.integration.test_tar_dataset import CHAIN, folder, images, same  # noqa: F401 - fixtures
from tests.node_faults import gone, stopped
from tests.s3 import S3Apart
from tests.stores_here import DATA, NAME, NEVER, SOON, needs_obstore, service_pid, store_here

pytestmark = needs_obstore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[S3Apart]:
    with store_here(tmp_path / "store") as server:
        yield server


@pytest.fixture
def files(store: S3Apart) -> Iterator[CloudFiles]:
    files = CloudFiles(timeout_s=20, limits=SOON)
    yield files
    files.close()


def killed(pid: int) -> None:
    """Kill a service, and wait until its node has noticed."""
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists(), within_s=20, why="the node did not notice the end")


def test_a_service_that_was_killed_is_started_again_and_costs_no_retry(files: CloudFiles) -> None:
    assert files.read(NAME, 0, 5) == DATA[:5]
    first, tries = service_pid(files), TALLY.count
    killed(first)
    assert files.read(NAME, 5, 15) == DATA[5:15]
    assert service_pid(files) != first
    assert TALLY.count == tries


def test_a_service_that_is_killed_in_a_read_is_asked_again(store: S3Apart, files: CloudFiles) -> None:
    assert files.read(NAME, 0, 5) == DATA[:5]
    pid, found = service_pid(files), list[bytes]()
    store.busy("stall")
    reader = threading.Thread(target=lambda: found.append(files.read(NAME, 0, 5_000)))
    reader.start()
    until(lambda: not list(store.folder.glob("BUSY-*")), within_s=20, why="the read did not begin")
    os.kill(pid, signal.SIGKILL)
    reader.join()
    assert found == [DATA[:5_000]]


def test_a_node_that_was_killed_is_started_again(files: CloudFiles) -> None:
    assert files.read(NAME, 0, 5) == DATA[:5]
    link = files._streams.get().link
    assert link is not None
    os.kill(link.pid, signal.SIGKILL)
    gone(link.pid)
    assert files.read(NAME, 5, 15) == DATA[5:15]
    again = files._streams.get().link
    assert again is not None
    files.close()
    gone(again.pid)


def test_a_stopped_service_costs_a_deadline_and_is_named(store: S3Apart) -> None:
    with contextlib.closing(CloudFiles(timeout_s=0.2, limits=NEVER)) as files:
        assert files.read(NAME, 0, 5) == DATA[:5]
        pid = service_pid(files)
        late = threading.Timer(10, os.kill, (pid, signal.SIGCONT))  # without a deadline this test would hang
        late.start()
        try:
            with (
                stopped(pid),
                pytest.raises(BadRead, match=r"s3://bucket/data.bin failed: .* it is stopped \(SIGSTOP"),
            ):
                files.read(NAME, 5, 15)
        finally:
            late.cancel()
            late.join()
        assert files.read(NAME, 5, 15) == DATA[5:15]


def test_epochs_in_which_the_service_is_killed_have_the_batches_of_local_files(
    store: S3Apart,
    folder: Path,  # noqa: F811
) -> None:
    (store.folder / "bucket" / "train").symlink_to(folder)
    killer, kills = CloudFiles(timeout_s=20), list[int]()

    def kill() -> None:
        while len(kills) < 3:
            killer.read(NAME, 0, 5)
            kills.append(service_pid(killer))
            os.kill(kills[-1], signal.SIGKILL)

    local: DataLoader[Any] = DataLoader(ImageFolder(folder, CHAIN), 2, shuffle=True, num_workers=0, seed=1)
    remote: DataLoader[Any] = DataLoader(
        ImageFolder("s3://bucket/train", CHAIN), 2, shuffle=True, num_workers=2, seed=1
    )
    thread = threading.Thread(target=kill)
    thread.start()
    try:
        while thread.is_alive():
            assert same(list(remote), list(local))
    finally:
        thread.join()
    assert len(set(kills)) == 3
    killer.close()


def test_a_stream_that_speaks_another_language_is_closed_and_costs_no_other(files: CloudFiles) -> None:
    link = NodeLink.attach(job_name())
    for nonsense in (
        HEAD.pack(Fetch.READ, MOST_REQUEST + 1),
        HEAD.pack(Fetch.READ, 3) + b"[[,",
        HEAD.pack(Fetch.READ, 3) + b"[1]",
        HEAD.pack(99, 11) + b'["s3://",1]',
    ):
        with link.open("fetch", b"{}") as stream, contextlib.suppress(ConnectionResetError):
            stream.settimeout(20)
            assert len(stream.recv(PID.size)) == PID.size
            stream.sendall(nonsense)
            assert stream.recv(1) == b""
    link.close()
    assert files.read(NAME, 0, 5) == DATA[:5]


def test_a_frame_above_the_limit_is_refused_before_memory_is_taken_for_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(HEAD.pack(Fetch.BYTES, 1 << 50))
        with pytest.raises(StreamLost, match="a frame of 1,125,899,906,842,624 bytes"):
            receive_head(ours, 1 << 36)
