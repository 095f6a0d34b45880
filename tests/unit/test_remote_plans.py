"""A remote worker that follows a plan, over a real socket: what it cannot read goes home, and bytes come from home."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import default_collate

from penstock.remote.frames import BYTES, HEAD, READ, Net, framed
from penstock.remote.outlet import Outlet
from penstock.remote.send_buffers import SendBuffers
from penstock.remote.worker import RemoteWorker
from penstock.wire import frames as wire
from penstock.wire.frames import Msg
from penstock.wire.kinds import Kind
from penstock.worker.loop import WorkerSpec
from penstock.worker.prepare import Recipe

pytest.importorskip("PIL.Image")


class FarWorker:
    """A remote worker in this process, and the ferry's end of its socket."""

    def __init__(self, dataset: Any, **recipe: Any) -> None:
        theirs, self.ferry = socket.socketpair()
        self.ferry.settimeout(10)
        self.outlet = Outlet(theirs, lambda: b"")
        made = Recipe(dataset=dataset, collate_fn=default_collate, auto_collation=True, seed=1, **recipe)
        spec = WorkerSpec(
            recipe=made, workers=1, base_seed=1, init_fn=None, streams=False, drop_last=False, keyed=True
        )
        self.worker = RemoteWorker(spec, 1, self.outlet, SendBuffers())
        self._data = b""

    def told(self) -> tuple[int, bytes]:
        """The next frame that is no beat; what follows a value is thrown away."""
        while True:
            size, kind = HEAD.unpack(self._take(HEAD.size))
            payload = self._take(size)
            if kind == Net.VALUE:
                self._take(sum(json.loads(payload[wire.TASK.size :])["lengths"]))
            if kind != Net.BEAT:
                return kind, payload

    def _take(self, count: int) -> bytes:
        while len(self._data) < count:
            self._data += self.ferry.recv(1 << 16)
        found, self._data = self._data[:count], self._data[count:]
        return found

    def close(self) -> None:
        self.outlet.drain(5)
        self.outlet.sock.close()
        self.ferry.close()


def assigned(task: int, *keys: int, kind: Kind = Kind.PARTS) -> bytes:
    head = wire.ASSIGN.pack(task, 0, 0, 0, 1, -1, 0, 0, len(keys), -1, kind, wire.INTS, 0)
    return head + b"".join(key.to_bytes(8, "little") for key in keys)


class Unreadable:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        raise PermissionError(errno.EACCES, "not for you", f"/data/{index}")


@pytest.fixture
def made() -> Iterator[list[FarWorker]]:
    found: list[FarWorker] = []
    yield found
    for far in found:
        far.close()


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_what_a_remote_worker_cannot_read_is_not_skipped_but_goes_home(
    made: list[FarWorker], on_error: str
) -> None:
    far = FarWorker(Unreadable(), on_error=on_error)
    made.append(far)
    far.worker._on_frame(Msg.ASSIGN, assigned(5, 2, 3))
    far.worker._run(far.worker.jobs.popleft())
    kind, payload = far.told()
    assert (kind, wire.TASK.unpack_from(payload)) == (Net.UNREACHED, (5,))
    assert payload[wire.TASK.size :].startswith(b"PermissionError: [Errno 13] not for you: '/data/2'")


def folder_of(tmp_path: Path) -> Any:
    from penstock import ImageFolder
    from tests.unit.test_jpeg_parts import jpeg_of, photo

    (tmp_path / "a").mkdir()
    for number in range(3):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(jpeg_of(photo(20, 30, number)))
    return ImageFolder(tmp_path)


def test_all_bytes_of_a_task_are_asked_for_when_it_arrives_and_come_from_home(
    made: list[FarWorker], tmp_path: Path
) -> None:
    dataset = folder_of(tmp_path)
    files = [Path(path).read_bytes() for path, _ in dataset.samples]
    far = FarWorker(dataset)
    made.append(far)
    for path, _ in dataset.samples:
        Path(path).unlink()
    far.worker._on_frame(Net.PLAN, b"bytes")
    far.worker._on_frame(Msg.ASSIGN, assigned(5, 2, 0))
    kind, payload = far.told()
    assert kind == Net.READ
    assert READ.unpack_from(payload) == (5, 0)
    far.ferry.sendall(framed(Net.BYTES, BYTES.pack(99, 0, 0), b"nobody asked"))
    far.ferry.sendall(framed(Net.BYTES, BYTES.pack(5, 9, 0), b"nobody asked"))
    for number, key in ((1, 0), (0, 2)):  # in any order
        far.ferry.sendall(framed(Net.BYTES, BYTES.pack(5, number, 0), files[key]))
    far.worker._run(far.worker.jobs.popleft())
    assert far.told()[0] == Net.VALUE
    far.worker._on_frame(Net.PLAN, b"samples")
    far.worker._on_frame(Msg.ASSIGN, assigned(6, 1))
    far.worker._run(far.worker.jobs.popleft())
    assert far.told()[0] == Net.UNREACHED  # its own disk has nothing any more


def test_frames_that_come_while_bytes_are_awaited_are_not_lost(made: list[FarWorker], tmp_path: Path) -> None:
    dataset = folder_of(tmp_path)
    far = FarWorker(dataset)
    made.append(far)
    far.worker._on_frame(Net.PLAN, b"bytes")
    far.worker._on_frame(Msg.ASSIGN, assigned(5, 0))
    far.ferry.sendall(framed(Msg.ASSIGN, assigned(6, 1)) + framed(Msg.CANCEL, wire.TASK.pack(6)))
    far.ferry.sendall(framed(Net.BYTES, BYTES.pack(5, 0, errno.ENOENT)))
    far.worker._run(far.worker.jobs.popleft())
    assert far.told()[0] == Net.READ
    assert far.told() == (
        Net.UNREACHED,
        wire.TASK.pack(5)
        + f"FileNotFoundError: [Errno 2] No such file or directory: {str(tmp_path / 'a/0.jpg')!r}".encode(),
    )
    frames = far.outlet.receive(wait=False)
    assert frames is not None
    assert [kind for kind, _ in frames] == [Msg.ASSIGN, Msg.CANCEL]


def test_a_ferry_that_is_gone_ends_the_wait(made: list[FarWorker], tmp_path: Path) -> None:
    far = FarWorker(folder_of(tmp_path))
    made.append(far)
    far.worker._on_frame(Net.PLAN, b"bytes")
    far.worker._on_frame(Msg.ASSIGN, assigned(5, 0))
    far.ferry.close()
    with contextlib.suppress(BrokenPipeError):
        far.worker._run(far.worker.jobs.popleft())
