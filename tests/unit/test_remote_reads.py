"""Bytes that a remote worker asks for, over a real socket: exactly its dataset's files, and nothing else of this machine."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.remote import reads
from penstock.remote.frames import BYTES, HEAD, READ, Net, framed
from penstock.remote.permits import Permit
from penstock.sources.sources import stamp_of
from penstock.wire import frames as wire
from penstock.wire.frames import Msg
from tests.unit.test_boat import Crossing


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data" / "a").mkdir(parents=True)
    (tmp_path / "data" / "a" / "1.jpg").write_bytes(b"first")
    (tmp_path / "data" / "a" / "2.jpg").write_bytes(os.urandom(3_000_000))
    (tmp_path / "data" / "a" / "secret.txt").write_bytes(b"secret")
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    os.mkfifo(tmp_path / "data" / "a" / "pipe.jpg")
    return tmp_path


@pytest.fixture
def crossing(folder: Path) -> Iterator[Crossing]:
    found = Crossing()
    found.quay.permit = Permit(cwd="/", folder=str(folder / "data"), suffixes=(".jpg",))
    found.assign(11, start=0, count=2)
    yield found
    found.close()


def asked(task: int, *ranges: Any, first: int = 0) -> bytes:
    return framed(Net.READ, READ.pack(task, first), json.dumps(ranges).encode())


def answers(crossing: Crossing, count: int) -> dict[int, bytes | int]:
    """So many of the answers, by number: bytes or an errno."""
    data, found = b"", dict[int, bytes | int]()
    crossing.worker.setblocking(False)
    for _ in range(2000):
        for key, mask in crossing.selector.select(0.01):
            key.data(mask)
        try:
            data += crossing.worker.recv(1 << 20)
        except BlockingIOError:
            continue
        while len(data) >= HEAD.size:
            size, kind = HEAD.unpack_from(data)
            if len(data) < HEAD.size + size:
                break
            payload, data = data[HEAD.size : HEAD.size + size], data[HEAD.size + size :]
            if kind == Net.BYTES:
                _, number, failed = BYTES.unpack_from(payload)
                found[number] = failed or payload[BYTES.size :]
        if len(found) >= count:
            return found
    raise AssertionError(f"{len(found)} answers of {count}")


def test_files_come_as_they_are(crossing: Crossing, folder: Path) -> None:
    big = folder / "data/a/2.jpg"
    crossing.arrives(
        asked(11, [f"{folder}/data/a/1.jpg", 0, None], [str(big), 0, None], [str(big), 5, 25], first=7)
    )
    content = big.read_bytes()
    assert answers(crossing, 3) == {7: b"first", 8: content, 9: content[5:25]}


TRICKS = {
    "another folder": "{}/secret.jpg",
    "a climb": "{}/data/../secret.jpg",
    "a climb from within": "{}/data/a/../../secret.jpg",
    "another ending": "{}/data/a/secret.txt",
    "a relative name": "data/a/1.jpg",
    "the folder's name as a beginning": "{}/data.jpg",
    "an end cut off": "{}/data/a/secret.txt\0.jpg",
    "not a name": 7,
    "the system's": "/etc/passwd",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_other_files_are_refused(crossing: Crossing, folder: Path, trick: str) -> None:
    name = TRICKS[trick]
    crossing.arrives(asked(11, [name.format(folder) if isinstance(name, str) else name, 0, None]))
    assert answers(crossing, 1) == {0: errno.EACCES}
    assert not crossing.ended


def test_nothing_is_read_for_a_loader_that_allows_nothing(crossing: Crossing, folder: Path) -> None:
    crossing.quay.permit = None
    crossing.arrives(asked(11, [f"{folder}/data/a/1.jpg", 0, None]))
    assert answers(crossing, 1) == {0: errno.EACCES}


def test_a_pipe_a_folder_and_a_missing_file_are_errors(crossing: Crossing, folder: Path) -> None:
    (folder / "data/a/dir.jpg").mkdir()
    names = [f"{folder}/data/a/{name}.jpg" for name in ("pipe", "dir", "missing")]
    crossing.arrives(asked(11, *([name, 0, None] for name in names)))
    assert answers(crossing, 3) == {0: errno.EINVAL, 1: errno.EINVAL, 2: errno.ENOENT}


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (0, 6), (4, 3), (9, None)])
def test_a_range_outside_of_the_file_is_an_error(
    crossing: Crossing, folder: Path, start: int, end: int | None
) -> None:
    crossing.arrives(asked(11, [f"{folder}/data/a/1.jpg", start, end]))
    assert answers(crossing, 1) == {0: errno.EIO}


def test_a_listed_file_that_has_changed_is_an_error(crossing: Crossing, folder: Path) -> None:
    shard = folder / "shard.tar"
    shard.write_bytes(b"0123456789")
    crossing.quay.permit = Permit(cwd="/", files={"file:shard": (str(shard), stamp_of(shard.stat()))})
    crossing.arrives(asked(11, ["file:shard", 2, 5]))
    assert answers(crossing, 1) == {0: b"234"}
    shard.write_bytes(b"9876543210987")
    crossing.arrives(asked(11, ["file:shard", 2, 5], first=1))
    assert answers(crossing, 1) == {1: errno.ESTALE}


def test_what_a_cancelled_task_has_asked_for_is_not_sent(crossing: Crossing, folder: Path) -> None:
    crossing.boat.deliver(Msg.CANCEL, wire.TASK.pack(11))
    crossing.arrives(asked(11, [f"{folder}/data/a/1.jpg", 0, None]))
    assert answers(crossing, 1) == {0: errno.ECANCELED}


def test_a_worker_that_ends_while_files_are_sent_leaves_none_open(crossing: Crossing, folder: Path) -> None:
    big = f"{folder}/data/a/2.jpg"
    open_before = len(os.listdir("/proc/self/fd"))
    crossing.arrives(asked(11, *([big, 0, None] for _ in range(40))))
    crossing.boat.end("killed")
    for _ in range(20):
        for key, mask in crossing.selector.select(0.02):
            key.data(mask)
    assert len(os.listdir("/proc/self/fd")) < open_before


@pytest.mark.parametrize("said", [b"", b"{", b"[[1]]", b'[["a", "b", 1]]', b"7"])
def test_words_that_are_none_end_the_connection(crossing: Crossing, said: bytes) -> None:
    crossing.arrives(framed(Net.READ, READ.pack(11, 0), said))
    assert crossing.ended == "it broke the protocol: it asked for bytes in words that are none"


def test_too_many_requests_end_the_connection(crossing: Crossing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "MOST_ASKED", 100)
    crossing.arrives(asked(11, *(["/x", 0, None] for _ in range(200))))
    assert crossing.ended == "it broke the protocol: it asked for more than 100 ranges of bytes at a time"


def unreached(task: int) -> bytes:
    return framed(Net.UNREACHED, wire.TASK.pack(task), b"FileNotFoundError: no\nsuch file")


def test_a_task_whose_data_is_out_of_reach_goes_back_and_the_third_in_a_row_tells(crossing: Crossing) -> None:
    for task in (11, 12, 13):
        assert not crossing.quay.away
        if task > 11:
            crossing.assign(task, start=0, count=1)
        crossing.arrives(unreached(task))
        assert crossing.quay.told[-1] == (Msg.UNREACHED, wire.TASK.pack(task))
    assert crossing.quay.away == ["FileNotFoundError: no such file"]
