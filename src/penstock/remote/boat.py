"""The ferry's side of one remote worker: tasks go there, rows come back into their slots.

Only the ferry writes into the arena for remote workers. So a worker that was cut off, or whose task was cancelled, cannot write late: its
task is void here, and what still comes of it is thrown away.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from math import prod
from typing import Any, Protocol

from penstock.remote.cargo import Cargo, cargo_of, lanes_of
from penstock.remote.file_desk import FileDesk, FileSpan
from penstock.remote.frames import DONE, ROWS, SPEC, Msg, Net, framed
from penstock.remote.inlet import MOST_BYTES, Hostile, Inlet
from penstock.remote.permits import Permit
from penstock.remote.reads import Readings
from penstock.wire import frames as wire
from penstock.wire.arena import FIELDS, Board

SILENT_S = 5.0
"""A worker that sends nothing for so long, not even a beat, is given up: its process or its link hangs."""
TRIES = 3
"""Tasks in a row that a worker cannot read data for, until it is believed that it cannot."""
MOST_SAID = 400
STREAMED = frozenset({Msg.UP, Msg.REFUSED, Msg.DROPPED, Msg.DONE})
"""Frames passed on to the agent as they are."""
TEXTS = frozenset({Msg.SKIPPED, Msg.FAILED})


def failure_line(payload: bytes) -> str:
    """Return the last line of an error's text: its type and message."""
    try:
        lines = [line for line in str(json.loads(payload[1:])["text"]).splitlines() if line.strip()]
        return lines[-1].strip()
    except (ValueError, KeyError, TypeError, IndexError):
        return "an error without a text"


class Shore(Protocol):
    """The loader that a boat works for."""

    @property
    def view(self) -> memoryview: ...

    layouts: dict[int, tuple[int, ...]]
    cuts: dict[int, tuple[int, ...]]

    @property
    def tail(self) -> Any: ...

    permit: Permit | None
    """The files that its workers may ask for."""

    def tell(self, worker: int, kind: int, *chunks: bytes) -> None: ...

    def row(self, worker: int) -> memoryview: ...

    def refuse(self, worker: int, why: str) -> None:
        """The dataset cannot be loaded there."""

    def unreached(self, worker: int, why: str) -> None:
        """The data could not be read there, several times in a row."""


class Boat:
    """A connection to a remote worker."""

    def __init__(
        self,
        sock: socket.socket,
        about: dict[str, Any],
        selector: selectors.BaseSelector,
        desk: FileDesk | None = None,
    ) -> None:
        self.sock, self.about, self._selector = sock, about, selector
        self.node = str(about.get("node", "?"))
        self.reads = Readings(desk or FileDesk(selector), self._post_bytes, self._is_wanted)
        self._unreached = 0
        """Tasks in a row whose data it could not read."""
        self.host = f"{about.get('node', '?')} ({about.get('address', '?')})"
        self.shore: Shore | None = None
        self.worker = -1
        self.digest = b""
        """Of the settings it has."""
        self._before = 0
        """Bytes received when it joined its present loader."""
        self.heard_s = time.monotonic()
        self.on_end: Callable[[Boat, str], None] = lambda *_: None
        self._cargo: dict[int, Cargo] = {}
        self._out: deque[memoryview | FileSpan] = deque()
        self._filling: Cargo | None = None
        """The task whose raw bytes are arriving."""
        self._inlet = Inlet(sock, self._on_frame)
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ, self._on_ready)

    @property
    def received(self) -> int:
        return self._inlet.nbytes

    @property
    def brought(self) -> int:
        """Bytes for its present loader."""
        return self.received - self._before

    # ---- to the worker

    def board(self, shore: Shore, worker: int, settings: bytes, digest: bytes) -> None:
        """Work for a loader as its worker `worker`, with these pickled settings."""
        self.shore, self.worker, self._before = shore, worker, self.received
        self._void_all()
        known = digest == self.digest
        self.digest = digest
        self._unreached = 0
        head = SPEC.pack(worker, digest, 0 if known else len(settings))
        self._post(framed(Net.SPEC, head, b"" if known else settings))

    def use(self, plan: str) -> None:
        """Follow a plan from now on."""
        self._unreached = 0
        self._post(framed(Net.PLAN, plan.encode()))

    def leave(self) -> None:
        """Stop working for a loader; the connection stays, for the next."""
        self.shore, self.worker = None, -1
        self._void_all()

    def _void_all(self) -> None:
        for cargo in self._cargo.values():
            cargo.void = True
        self.reads.go_on()

    def deliver(self, kind: int, payload: bytes) -> None:
        """Pass on the agent's frame."""
        if kind == Msg.ASSIGN:
            cargo = cargo_of(payload)
            self._cargo[cargo.task] = cargo
        elif kind == Msg.PLACE:
            task, offset, layout = wire.PLACE.unpack(payload)
            cargo = self._cargo[task]
            cargo.offset, cargo.layout = offset, layout
            if cargo.held is not None:
                self._write_held(cargo)
                return
        elif kind == Msg.CANCEL and not self._cancel(*wire.TASK.unpack(payload)):
            return
        self._post(framed(kind, payload))

    def _cancel(self, task: int) -> bool:
        """Void a task, and tell the agent at once that nothing more will be written. Not if its rows are arriving right now: DONE is near."""
        cargo = self._cargo.get(task)
        if cargo is None or cargo.void or self._filling is cargo:
            return False
        cargo.void = True  # guard: ferry-voids
        self.reads.go_on()
        self._tell(Msg.DROPPED, wire.TASK.pack(task))
        if cargo.held is not None:
            del self._cargo[task]
            return False
        return True

    def _post(self, data: bytes) -> None:
        self._out.append(memoryview(data))
        self._flush()

    def _post_bytes(self, head: bytes, span: FileSpan | None) -> None:
        self._out.append(memoryview(head))
        if span is not None:
            self._out.append(span)
        if self.sock.fileno() >= 0:
            self._flush()
        else:
            self._forget_bytes()

    def _flush(self) -> None:
        try:
            while self._out:
                self._send(self._out[0])
        except BlockingIOError:
            pass
        except OSError as exc:
            self.end(f"the connection broke ({exc})")
            return
        if self.sock.fileno() < 0:  # a file could not be sent
            return
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
        if self._selector.get_key(self.sock).events != mask:
            self._selector.modify(self.sock, mask, self._on_ready)

    def _send(self, item: memoryview | FileSpan) -> None:
        if isinstance(item, FileSpan):
            item.send(self.sock.fileno())
            self._out.popleft()
            self.reads.sent()
            return
        more = socket.MSG_MORE if len(self._out) > 1 else 0
        sent = self.sock.send(item, more)
        if sent < len(item):
            self._out[0] = item[sent:]
        else:
            self._out.popleft()

    def _is_wanted(self, task: int) -> bool:
        cargo = self._cargo.get(task)
        return cargo is not None and not cargo.void

    # ---- from the worker

    def _on_ready(self, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._flush()
        if not mask & selectors.EVENT_READ or self.sock.fileno() < 0:
            return
        self.heard_s = time.monotonic()
        try:
            if not self._inlet.read():
                self.end("the connection ended")
        except Hostile as exc:
            self.end(f"it broke the protocol: {exc}")

    def look_after(self, now_s: float) -> None:
        if now_s - self.heard_s > SILENT_S:  # guard: silent-remote
            self.end(f"it has been silent for {now_s - self.heard_s:.0f} s")

    def _on_frame(self, kind: int, payload: bytes) -> None:
        if kind == Net.BEAT:
            self._beat(payload)
        elif kind in (Net.ROWS, Net.CUT_ROWS):
            self._rows(payload, cut=kind == Net.CUT_ROWS)
        elif kind == Net.VALUE:
            self._value(payload)
        elif kind == Net.READ:
            self.reads.on_frame(payload, None if self.shore is None else self.shore.permit)
        elif kind == Net.UNREACHED:
            self._not_reached(payload)
        elif kind in (Msg.PREPARED, Msg.MISMATCH):
            self._layout(kind, payload)
        elif kind in STREAMED:
            self._answer(kind, payload)
        elif kind == Msg.INIT_FAILED:
            if self.shore is not None:
                self.shore.refuse(self.worker, failure_line(payload))
        elif kind in TEXTS:
            self._text(kind, payload)
        else:
            raise Hostile(f"it sent a frame of kind {kind}")

    def _tell(self, kind: int, *chunks: bytes) -> None:
        if self.shore is not None:
            self.shore.tell(self.worker, kind, *chunks)

    def _beat(self, payload: bytes) -> None:
        if len(payload) != 8 * FIELDS:
            raise Hostile("its row of counters has another length")
        if self.shore is not None:
            row = self.shore.row(self.worker)
            row[: Board.POOL] = memoryview(payload).cast("q")[: Board.POOL]

    def _not_reached(self, payload: bytes) -> None:
        """Have a task done elsewhere; count how often in a row."""
        (task,) = wire.TASK.unpack_from(payload)
        void = self._known(task).void
        del self._cargo[task]
        if void:
            return
        self._tell(Msg.UNREACHED, wire.TASK.pack(task))
        self._unreached += 1
        if self._unreached == TRIES and self.shore is not None:
            why = payload[wire.TASK.size :].decode("utf-8", "replace")
            self.shore.unreached(self.worker, " ".join(why.split())[:MOST_SAID])

    def _known(self, task: int) -> Cargo:
        cargo = self._cargo.get(task)
        if cargo is None:
            raise Hostile("it answered a task that it does not have")
        return cargo

    def _answer(self, kind: int, payload: bytes) -> None:
        if kind == Msg.UP:
            self._tell(kind)
            return
        (task,) = wire.TASK.unpack_from(payload)
        if not self._known(task).void:
            self._tell(kind, payload)
        del self._cargo[task]

    def _rows(self, payload: bytes, *, cut: bool) -> None:
        """Receive a task's rows into its slots, then pass on its end. Cut ones get their last step on the way."""
        (nbytes,) = ROWS.unpack_from(payload)
        done = payload[ROWS.size :]
        cargo = self._known(DONE.unpack_from(done)[0])
        self._filling = cargo
        if nbytes > MOST_BYTES:
            raise Hostile(f"it sent {nbytes:,} bytes for a task")
        if cargo.void or self.shore is None:
            self._inlet.fill([memoryview(bytearray(nbytes))], lambda: self._void(cargo))
            return
        items = self.shore.layouts.get(cargo.layout)
        if items is None or cargo.offset < 0:
            raise Hostile("it sent rows before it knew where they go")
        lanes, then = lanes_of(cargo, items, self.shore.view), lambda: self._filled(cargo, done)
        if cut:
            lanes, then = self._cut(cargo, lanes, then)
        if sum(map(len, lanes)) != nbytes:  # guard: rows-fit
            raise Hostile(f"it sent {nbytes:,} bytes where {sum(map(len, lanes)):,} belong")
        self._inlet.fill(lanes, then)

    def _cut(
        self, cargo: Cargo, lanes: list[memoryview], then: Callable[[], None]
    ) -> tuple[list[memoryview], Callable[[], None]]:
        """Return where cut rows go first, and what to do when they are there."""
        from penstock.remote.cut import finish_rows

        assert self.shore is not None
        shape = self.shore.cuts.get(cargo.layout)
        if shape is None:  # guard: cut-known
            raise Hostile("it sent cut samples that are not to be cut")
        pixels, tail = memoryview(bytearray(cargo.count * prod(shape))), self.shore.tail

        def arrived() -> None:
            finish_rows(tail, pixels, shape, lanes[0])
            then()

        return [pixels, *lanes[1:]], arrived

    def _void(self, cargo: Cargo) -> None:
        self._filling = None
        self._cargo.pop(cargo.task, None)

    def _filled(self, cargo: Cargo, done: bytes) -> None:
        self._void(cargo)
        self._unreached = 0
        self._tell(Msg.DONE, done)

    def _layout(self, kind: int, payload: bytes) -> None:
        from penstock.remote.checks import checked_layout

        head = wire.TASK if kind == Msg.MISMATCH else wire.PREPARED
        task = head.unpack_from(payload)[0]
        cargo = self._known(task)
        layout = checked_layout(payload[head.size :])
        if kind == Msg.MISMATCH or layout is None:
            del self._cargo[task]
        if cargo.void:
            return
        if layout is None:
            self._tell(Msg.REFUSED, wire.TASK.pack(task))
        else:
            self._tell(kind, payload[: head.size], layout)

    def _text(self, kind: int, payload: bytes) -> None:
        head = 0 if kind == Msg.SKIPPED else wire.FAILED.size
        data = payload[head:] if kind == Msg.SKIPPED else payload[head + 1 :]
        try:
            if not isinstance(json.loads(data), dict):
                raise ValueError
        except ValueError:
            raise Hostile("it sent a text that is none") from None
        if kind == Msg.SKIPPED:
            self._tell(kind, payload)
            return
        if payload[head : head + 1] != b"T":  # guard: remote-errors-are-text
            raise Hostile("it sent an error that is no text")
        (task, _) = wire.FAILED.unpack_from(payload)
        if not self._known(task).void:
            self._tell(kind, payload)
        del self._cargo[task]

    # ---- values without a layout

    def _value(self, payload: bytes) -> None:
        """Receive a value, check it, and ask the agent for memory."""
        from penstock.remote.checks import ValueHead, packed_value

        (task,) = wire.TASK.unpack_from(payload)
        cargo = self._known(task)
        head = ValueHead.of(payload[wire.TASK.size :])
        buffer = memoryview(bytearray(head.nbytes))

        def arrived() -> None:
            self._filling = None
            if cargo.void:
                self._void(cargo)
                return
            packed = packed_value(head, buffer)
            done = DONE.pack(task, head.took_ns, False, False, len(head.dropped))
            cargo.held = packed, done + b"".join(ordinal.to_bytes(4, "little") for ordinal in head.dropped)
            self._tell(Msg.PREPARED, wire.PREPARED.pack(task, packed.nbytes, 0))

        self._filling = cargo
        self._inlet.fill([buffer], arrived)

    def _write_held(self, cargo: Cargo) -> None:
        assert self.shore is not None
        packed, done = cargo.held
        packed.write(self.shore.view[cargo.offset : cargo.offset + packed.nbytes])
        self._filled(cargo, done)

    def end(self, why: str) -> None:
        """Close the connection and say why."""
        if self.sock.fileno() < 0:
            return
        self._selector.unregister(self.sock)
        self.sock.close()
        self._forget_bytes()
        self.on_end(self, why)

    def _forget_bytes(self) -> None:
        self._cargo.clear()
        while self._out:
            if isinstance(item := self._out.popleft(), FileSpan):
                item.close()
