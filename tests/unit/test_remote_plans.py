"""A remote worker that follows a plan, over a real socket: what it cannot read goes home, and bytes come from home."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import selectors
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from penstock import ImageFolder
from penstock import transforms as T
from penstock.dataset.unfinished import finished
from penstock.pipeline.chain import Chain
from penstock.remote.cut import cut_layout, finish_rows, tail_of, tail_text
from penstock.remote.frames import BYTES, DONE, HEAD, READ, ROWS, Net, framed
from penstock.remote.frames import NUMBER as LINK_NUMBER
from penstock.remote.handles import FerryLink
from penstock.remote.outlet import Outlet
from penstock.remote.send_buffers import SendBuffers
from penstock.remote.worker import RemoteWorker
from penstock.transforms.tail import Tail
from penstock.wire import frames as wire
from penstock.wire.frames import Channel, Msg
from penstock.wire.kinds import Kind
from penstock.wire.layout import Layout, Leaf, Node, describe
from penstock.worker.loop import WorkerSpec
from penstock.worker.prepare import Recipe
from tests.unit.test_boat import OFFSET, STARTS, Crossing

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


# ---- samples that are cut


def layout_of(*leaves: Leaf) -> Layout:
    return Layout(Node(tuple, (), leaves))


def image_leaf(dtype: torch.dtype, *shape: int) -> Leaf:
    return Leaf("tensor", torch.Tensor, dtype, shape, math.prod(shape) * dtype.itemsize)


NUMBER = Leaf("scalar", int, torch.int64, (), 8)
TAILS = [
    Tail(torch.float32, "multiply", (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
    Tail(torch.float32, "divide"),
    Tail(torch.float16, "multiply"),
    Tail(torch.float64, "", (1.0,), (3.0,)),
]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("shape", [(5, 7, 3), (4, 4, 1)])
def test_the_last_step_here_gives_the_bits_of_the_last_step_there(
    tail: Tail, shape: tuple[int, int, int]
) -> None:
    height, width, channels = shape
    if len(tail.mean) > channels:
        pytest.skip("no such chain")
    images = np.random.default_rng(3).integers(0, 256, (4, *shape), np.uint8)
    slots = bytearray(4 * math.prod(shape) * tail.dtype.itemsize)
    finish_rows(tail_of(tail_text(tail)), memoryview(images.tobytes()), shape, memoryview(slots))
    expected = torch.stack([tail.finish(image) for image in images])
    found = torch.frombuffer(slots, dtype=tail.dtype).view(4, channels, height, width)
    assert torch.equal(found, expected)


def test_only_an_image_of_floats_at_the_head_of_a_tuple_is_cut() -> None:
    cut = cut_layout(layout_of(image_leaf(torch.float32, 3, 5, 7), NUMBER), torch.float32)
    assert cut == layout_of(image_leaf(torch.uint8, 5, 7, 3), NUMBER)
    assert cut_layout(layout_of(image_leaf(torch.float16, 3, 5, 7), NUMBER), torch.float32) is None
    assert cut_layout(layout_of(image_leaf(torch.float32, 5, 7), NUMBER), torch.float32) is None
    assert cut_layout(layout_of(NUMBER, image_leaf(torch.float32, 3, 5, 7)), torch.float32) is None
    assert cut_layout(Layout(image_leaf(torch.float32, 3, 5, 7)), torch.float32) is None


def test_cut_rows_of_a_layout_that_is_not_cut_end_the_connection() -> None:
    crossing = Crossing()
    crossing.assign(11, start=0, count=1)
    rows = framed(Net.CUT_ROWS, ROWS.pack(20), DONE.pack(11, 9, 0, 0, 0)) + bytes(20)
    crossing.arrives(rows)
    assert crossing.ended == "it broke the protocol: it sent cut samples that are not to be cut"
    crossing.close()


def test_cut_rows_get_their_last_step_in_their_slots() -> None:
    crossing = Crossing()
    crossing.quay.tail, crossing.quay.cuts = Tail(torch.float32), {5: (1, 1, 3)}  # lanes of 12 and 8 bytes
    crossing.assign(11, start=2, count=2)
    rows = (
        framed(Net.CUT_ROWS, ROWS.pack(22), DONE.pack(11, 9, 0, 0, 0)) + bytes([1, 2, 3, 4, 5, 6]) + b"n" * 16
    )
    crossing.arrives(rows)
    lane = torch.frombuffer(crossing.quay.view[OFFSET + STARTS[0] :][: 4 * 12], dtype=torch.float32)
    assert lane.tolist() == [0] * 6 + [1, 2, 3, 4, 5, 6]
    assert crossing.quay.told == [(Msg.DONE, DONE.pack(11, 9, 0, 0, 0))]
    crossing.close()


def test_a_worker_sends_pixels_if_that_is_the_plan_and_the_sample_is_not_finished(
    made: list[FarWorker], tmp_path: Path
) -> None:
    dataset = folder_of(tmp_path)
    dataset.chain = Chain.of([T.Resize((4, 6)), T.ToTensor()])
    layout = describe(dataset[0])
    assert layout is not None

    def sent(dataset: Any, plan: bytes) -> tuple[int, int]:
        far = FarWorker(dataset)
        made.append(far)
        far.worker.layouts[0] = layout
        far.worker._on_frame(Net.PLAN, plan)
        head = wire.ASSIGN.pack(5, 0, 0, 0, 1, 4096, 0, 0, 2, 0, Kind.SLOTS, wire.INTS, 0)
        far.worker._on_frame(Msg.ASSIGN, head + bytes(8) + (1).to_bytes(8, "little"))
        far.worker._run(far.worker.jobs.popleft())
        kind, payload = far.told()
        return kind, *ROWS.unpack_from(payload)

    assert sent(dataset, b"cut") == (Net.CUT_ROWS, 2 * (4 * 6 * 3 + 8))
    assert sent(dataset, b"samples") == (Net.ROWS, 2 * (4 * 4 * 6 * 3 + 8))

    class Second(ImageFolder):
        """Finishes one sample itself."""

        def _unfinished(self, index: int) -> Any:
            found = super()._unfinished(index)
            return finished(found) if index else found

    second = Second(tmp_path)
    second.chain = dataset.chain
    assert sent(second, b"cut") == (Net.ROWS, 2 * (4 * 4 * 6 * 3 + 8))


# ---- switching


class TellsCore:
    def __init__(self) -> None:
        self.whole: list[bool] = []

    def take_whole(self, whole: bool) -> None:
        self.whole.append(whole)


def test_another_plan_is_told_to_the_ferry_and_the_core() -> None:
    ours, theirs = socket.socketpair()
    link, selector, agent = FerryLink(Channel(ours)), selectors.DefaultSelector(), TellsCore()
    link.bind(selector, agent)  # type: ignore[arg-type]  # no worker is asked for
    for plan in ("bytes", "batches", "cut"):
        link.use_plan(plan)
    expected = b"".join(
        framed(Net.PLAN, LINK_NUMBER.pack(-1), plan) for plan in (b"bytes", b"batches", b"cut")
    )
    assert theirs.recv(1 << 10) == expected
    assert agent.whole == [False, True, False]
    link.close()
    theirs.close()
    selector.close()
