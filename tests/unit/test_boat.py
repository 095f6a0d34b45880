"""The ferry's side of a remote worker, over a real socket: rows go into their slots, and only what belongs there."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.measure.host import process_state
from penstock.remote import boat as boats
from penstock.remote.boat import Boat
from penstock.remote.cargo import cargo_of
from penstock.remote.connect import compare
from penstock.remote.ferry import Berth
from penstock.remote.fingerprint import fingerprint
from penstock.remote.frames import DONE, HEAD, LARGEST, NUMBER, ROWS, Net, framed
from penstock.remote.handles import FERRY_SILENT_S, FerryLink
from penstock.remote.permits import Permit
from penstock.remote.server import STRANGERS, Door
from penstock.wire import frames as wire
from penstock.wire.arena import FIELDS, Arena, Board
from penstock.wire.extents import lane_offsets
from penstock.wire.frames import Channel, Msg
from penstock.wire.pickles import pack_keys

ITEMS = (12, 8)
SIZE = 4
STARTS, SLAB = lane_offsets(ITEMS, SIZE)
OFFSET = 4096


class Quay:
    """A loader's arena and what its agent is told."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(OFFSET + SLAB))
        self.layouts = {5: ITEMS}
        self.told: list[tuple[int, bytes]] = []
        self.rows = memoryview(bytearray(8 * FIELDS)).cast("q")
        self.refused = ""
        self.permit: Permit | None = None
        self.cuts: dict[int, tuple[int, ...]] = {}
        self.tail: Any = None
        self.away: list[str] = []

    def tell(self, worker: int, kind: int, *chunks: bytes) -> None:
        assert worker == 3
        self.told.append((kind, b"".join(chunks)))

    def row(self, _: int) -> memoryview:
        return self.rows

    def refuse(self, worker: int, why: str) -> None:
        self.refused = why

    def unreached(self, worker: int, why: str) -> None:
        self.away.append(why)


class Crossing:
    """A boat with its loader on one side, and the worker's socket on the other."""

    def __init__(self) -> None:
        ours, self.worker = socket.socketpair()
        self.worker.settimeout(5)
        self.selector = selectors.DefaultSelector()
        self.quay, self.ended = Quay(), ""
        self.boat = Boat(ours, {"node": "elsewhere"}, self.selector)
        self.boat.on_end = lambda _, why: setattr(self, "ended", why)
        self.boat.board(self.quay, 3, b"settings", b"d" * 32)

    def close(self) -> None:
        self.boat.end("over")
        self.worker.close()
        self.selector.close()

    def assign(self, task: int, start: int, count: int) -> None:
        keys = b"".join(key.to_bytes(8, "little") for key in range(count))
        head = wire.ASSIGN.pack(task, 0, 0, 0, 1, OFFSET, 0, start, SIZE, 5, 0, wire.INTS, 0)
        self.boat.deliver(Msg.ASSIGN, head + keys)

    def arrives(self, *data: bytes) -> None:
        self.worker.sendall(b"".join(data))
        while ready := self.selector.select(0.05):
            for key, mask in ready:
                key.data(mask)


def test_a_task_of_a_dealt_batch_has_a_row_for_each_key() -> None:
    head = wire.ASSIGN.pack(7, 0, 0, 0, 1, OFFSET, 0, 2, SIZE, 5, 0, wire.DEALT, 0)
    cargo = cargo_of(head + pack_keys([5, 6], [40, 43])[1])
    assert (cargo.start, cargo.count) == (2, 2)


@pytest.fixture
def crossing() -> Any:
    found = Crossing()
    yield found
    found.close()


def rows_of(task: int, count: int, fill: int = 7) -> bytes:
    nbytes = count * sum(ITEMS)
    return framed(Net.ROWS, ROWS.pack(nbytes), DONE.pack(task, 9, 0, 0, 0)) + bytes([fill]) * nbytes


def test_rows_go_into_their_slots_and_nowhere_else(crossing: Crossing) -> None:
    crossing.assign(11, start=1, count=2)
    crossing.arrives(rows_of(11, 2))
    slab = crossing.quay.view[OFFSET:].tolist()
    assert [slab[STARTS[0] + 12 * row] for row in range(SIZE)] == [0, 7, 7, 0]
    assert [slab[STARTS[1] + 8 * row] for row in range(SIZE)] == [0, 7, 7, 0]
    assert sum(slab) == 7 * 2 * sum(ITEMS)
    assert crossing.quay.told == [(Msg.DONE, DONE.pack(11, 9, 0, 0, 0))]


def test_a_cancelled_task_is_dropped_at_once_and_cannot_write_late(crossing: Crossing) -> None:
    crossing.assign(11, start=0, count=2)
    crossing.boat.deliver(Msg.CANCEL, wire.TASK.pack(11))
    crossing.arrives(rows_of(11, 2))
    assert crossing.quay.told == [(Msg.DROPPED, wire.TASK.pack(11))]
    assert not any(crossing.quay.view)
    crossing.assign(12, start=0, count=1)
    crossing.arrives(rows_of(12, 1))
    assert crossing.quay.told[-1][0] == Msg.DONE


def test_rows_that_are_arriving_when_the_cancel_comes_are_done(crossing: Crossing) -> None:
    crossing.assign(11, start=0, count=2)
    data = rows_of(11, 2)
    crossing.arrives(data[:-5])
    crossing.boat.deliver(Msg.CANCEL, wire.TASK.pack(11))
    crossing.arrives(data[-5:])
    assert [kind for kind, _ in crossing.quay.told] == [Msg.DONE]


@pytest.mark.parametrize("count", [1, 3])
def test_rows_of_another_length_end_the_connection(crossing: Crossing, count: int) -> None:
    crossing.assign(11, start=2, count=2)
    crossing.arrives(rows_of(11, count))
    assert crossing.ended == f"it broke the protocol: it sent {count * 20} bytes where 40 belong"
    assert not any(crossing.quay.view)


def test_a_frame_that_is_too_long_ends_the_connection(crossing: Crossing) -> None:
    crossing.arrives(HEAD.pack(LARGEST + 1, Msg.UP))
    assert crossing.ended == f"it broke the protocol: it sent a frame of {LARGEST + 1:,} bytes"


def test_an_error_that_is_no_text_ends_the_connection(crossing: Crossing) -> None:
    crossing.assign(11, start=0, count=1)
    crossing.arrives(framed(Msg.FAILED, wire.FAILED.pack(11, 0), b'P{"type": 1}'))
    assert crossing.ended == "it broke the protocol: it sent an error that is no text"
    assert not crossing.quay.told


def test_a_layout_that_is_a_pickle_is_not_loaded(crossing: Crossing) -> None:
    crossing.assign(11, start=0, count=1)
    crossing.arrives(framed(Msg.MISMATCH, wire.TASK.pack(11), wire.pack_sizes(()), b"Pcos\nsystem\n."))
    assert crossing.quay.told == [(Msg.REFUSED, wire.TASK.pack(11))]


def test_a_value_waits_for_its_place(crossing: Crossing) -> None:
    pytest.importorskip("torch")
    from penstock.remote.values import encode

    crossing.assign(11, start=0, count=1)
    skeleton, buffers = encode([1, "two"])
    told = {"lengths": [len(skeleton), *map(len, buffers)], "dropped": [], "took_ns": 4}
    crossing.arrives(framed(Net.VALUE, wire.TASK.pack(11), json.dumps(told).encode()), skeleton, *buffers)
    ((kind, payload),) = crossing.quay.told
    assert kind == Msg.PREPARED
    crossing.boat.deliver(Msg.PLACE, wire.PLACE.pack(11, OFFSET, -1))
    assert crossing.quay.told[-1] == (Msg.DONE, DONE.pack(11, 4, 0, 0, 0))
    assert any(crossing.quay.view[OFFSET : OFFSET + wire.PREPARED.unpack(payload)[1]])


def test_a_beat_is_shown_on_the_board(crossing: Crossing) -> None:
    row = list(range(FIELDS))
    crossing.arrives(framed(Net.BEAT, b"".join(number.to_bytes(8, "little") for number in row)))
    assert crossing.quay.rows[Board.BEAT] == Board.BEAT


def test_a_worker_that_is_silent_is_given_up(crossing: Crossing) -> None:
    crossing.boat.look_after(time.monotonic() + boats.SILENT_S / 2)
    assert not crossing.ended
    crossing.boat.look_after(time.monotonic() + boats.SILENT_S + 1)
    assert crossing.ended == f"it has been silent for {boats.SILENT_S + 1:.0f} s"


def test_settings_travel_once(crossing: Crossing) -> None:
    first = crossing.worker.recv(1 << 16)
    assert first.endswith(b"settings")
    crossing.boat.leave()
    crossing.boat.board(crossing.quay, 3, b"settings", b"d" * 32)
    assert not crossing.worker.recv(1 << 16).endswith(b"settings")


def test_a_machine_whose_bytes_may_differ_is_refused() -> None:
    there = {**fingerprint(), "torch": "1.0"}
    with pytest.raises(
        ConnectionError, match=r"may differ .*torch .* here, 1\.0 there.*Remote\(on_difference='warn'\)"
    ):
        compare(there, "error")
    compare(there, "warn")
    compare({**fingerprint(), "node": "another"}, "error")


def test_strangers_at_the_door_are_bounded() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    place = listener.getsockname()[:2]
    door = Door(listener, "00" * 32, "127.0.0.1:1")
    strangers = [socket.create_connection(place, timeout=5) for _ in range(STRANGERS + 1)]
    try:
        assert door.first_welcome(1.0) is None
        strangers[-1].settimeout(0.5)
        assert strangers[-1].recv(1) == b""  # closed at once; the others have their seconds
        strangers[0].settimeout(0.1)
        with pytest.raises(TimeoutError):
            strangers[0].recv(1)
    finally:
        for stranger in strangers:
            stranger.close()


@contextlib.contextmanager
def linked(code: str) -> Iterator[tuple[FerryLink, subprocess.Popen[bytes]]]:
    """An agent's link to a process that has said once that it is a living ferry."""
    ferry = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    ours, theirs = socket.socketpair()
    link, selector = FerryLink(Channel(ours)), selectors.DefaultSelector()
    try:
        assert ferry.stdout is not None
        ferry.stdout.read()  # it closes it when it is ready
        link.bind(selector, None)  # type: ignore[arg-type]  # no worker is asked for
        theirs.sendall(
            framed(Net.ALIVE, NUMBER.pack(-1), json.dumps({"pid": ferry.pid, "cpu_ns": 0}).encode())
        )
        for key, mask in selector.select(5):
            key.data(mask)
        yield link, ferry
    finally:
        ferry.kill()
        ferry.communicate()
        link.close()
        theirs.close()
        selector.close()


def test_a_ferry_that_hangs_is_killed_before_its_tasks_are_given_to_others() -> None:
    with linked("import os, time; os.close(1); time.sleep(60)") as (link, ferry):
        while process_state(ferry.pid) != "S":
            time.sleep(0.01)
        link.look_after(time.monotonic())
        assert ferry.poll() is None
        link.look_after(time.monotonic() + FERRY_SILENT_S + 1)
        assert ferry.wait(5) == -signal.SIGKILL


def test_a_ferry_that_waits_for_a_core_is_not_killed() -> None:
    """Local workers may keep all cores busy while it imports torch."""
    core = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})"
    last = "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))"
    busy = subprocess.Popen([sys.executable, "-c", f"{core}\nwhile True: pass"])
    try:
        with linked(f"{core}; {last}; os.close(1)\nwhile True: pass") as (link, ferry):
            end_s = time.monotonic() + FERRY_SILENT_S + 1
            while time.monotonic() < end_s:
                link.look_after(time.monotonic())
                time.sleep(0.05)
            busy.kill()  # a process that was killed needs a core to end
            os.sched_setaffinity(ferry.pid, os.sched_getaffinity(0))
            os.sched_setscheduler(ferry.pid, os.SCHED_OTHER, os.sched_param(0))
            with pytest.raises(subprocess.TimeoutExpired):
                ferry.wait(2)
    finally:
        busy.kill()
        busy.wait()


@pytest.mark.parametrize("tls", [True, False])
def test_loaders_with_tls_and_without_have_workers_of_their_own(crossing: Crossing, tls: bool) -> None:
    """They share a ferry: a worker that is idle there is not given to a loader that wants the other kind."""
    crossing.boat.about["tls"] = tls
    arena, channel = Arena.create(1 << 20, 1), Channel(crossing.worker)
    berths = [
        Berth(channel, arena, crossing.selector, settings=b"s", tls=wanted) for wanted in (tls, not tls)
    ]
    for berth in berths:
        berth.wanted.append(0)
    assert [berth.may_use(crossing.boat) for berth in berths] == [True, False]
    arena.close()
