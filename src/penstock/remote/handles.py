"""Remote workers as the agent sees them (`agent.handles.WorkerHandle`). All their frames travel over one socket to the ferry."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.measure.host import CoreWaits
from penstock.remote.frames import NUMBER, Net
from penstock.wire import frames as wire
from penstock.wire.arena import Board
from penstock.wire.frames import Channel, Msg

Hear = Callable[[int, bytes], None]
FERRY_SILENT_S = 5.0
"""A ferry says several times a second that it lives, if it has a core."""
BATCHES = "batches"
LOST_FERRY = "the ferry, which connects remote workers, has ended"
NO_FERRY = f"remote workers are not used until the next epoch: {LOST_FERRY}"


class LinkUser(Protocol):
    """The agent, as far as its link to the ferry knows it."""

    def adopt(self, handle: Any) -> None: ...

    def items(self, layout: int) -> tuple[int, ...]: ...

    def warn(self, text: str) -> None: ...

    def retire(self, worker: int) -> None: ...

    def take_whole(self, whole: bool) -> None: ...


class FerryLink:
    """The agent's socket to the ferry."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._handles: dict[int, RemoteHandle] = {}
        self._selector: selectors.BaseSelector | None = None
        self._agent: Any = None
        self.gone = False
        self._pidfd, self._heard_s = -1, 0.0
        self._core_waits: CoreWaits | None = None
        self._waited_s = 0.0
        """How long the ferry had waited for a core, at the first look since it was heard."""
        self._looked_s = 0.0
        self._wanted = -1
        self.account: dict[str, Any] = {"cpu_ns": 0, "bytes": 0, "workers": {}}
        """The ferry's CPU time, all it has received, and bytes by worker of this loader."""

    @property
    def handles(self) -> dict[int, RemoteHandle]:
        return self._handles

    def want(self, workers: int) -> None:
        """Say how many remote workers the cluster should give."""
        if workers != self._wanted:
            self._wanted = workers
            self.post(Net.WANT, -1, NUMBER.pack(workers))

    def bind(self, selector: selectors.BaseSelector, agent: LinkUser) -> None:
        """Serve this agent from now on."""
        self._selector, self._agent = selector, agent
        self.channel.sock.setblocking(False)
        selector.register(self.channel.sock, selectors.EVENT_READ, self._on_ready)

    def start(self, worker: int) -> None:
        """Ask for a remote worker; the agent gets its handle when the ferry has one, which may be never."""
        self.post(Net.START, worker)

    def use_plan(self, name: str) -> None:
        """Have all remote workers of this loader, and those to come, follow a plan (`remote.plans`) that is possible."""
        self.post(Net.PLAN, -1, name.encode())
        self._agent.take_whole(name == BATCHES)

    def items(self, layout: int) -> tuple[int, ...]:
        """Return the item sizes of a layout."""
        sizes: tuple[int, ...] = self._agent.items(layout)
        return sizes

    def post(self, kind: int, worker: int, *chunks: bytes) -> None:
        if self.gone:
            return
        self.channel.post(kind, NUMBER.pack(worker), *chunks)  # type: ignore[arg-type]
        if self.channel.clogged and self._selector is not None:
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(self.channel.sock, both, self._on_ready)

    def _on_ready(self, mask: int) -> None:
        assert self._selector is not None
        if mask & selectors.EVENT_WRITE and self.channel.flush():
            self._selector.modify(self.channel.sock, selectors.EVENT_READ, self._on_ready)
        if not mask & selectors.EVENT_READ:
            return
        frames = self.channel.receive(wait=False)
        if frames is None:
            self._lose()
            return
        self._heard_s = time.monotonic()
        for kind, payload in frames:
            (worker,) = NUMBER.unpack_from(payload)
            self._on_frame(kind, worker, payload[NUMBER.size :])

    def _on_frame(self, kind: int, worker: int, payload: bytes) -> None:
        handle = self._handles.get(worker)
        if kind == Net.ALIVE:
            self.account = json.loads(payload)
            if self._pidfd < 0:
                with contextlib.suppress(OSError, AttributeError):  # denied: then only its end is noticed
                    self._pidfd = os.pidfd_open(self.account["pid"])
                    self._core_waits = CoreWaits(self.account["pid"])
        elif worker < 0:
            self._agent.warn(payload.decode(errors="replace"))
        elif kind == Net.BOARDED:
            handle = self._handles[worker] = RemoteHandle(worker, self, payload.decode(errors="replace"))
            self._agent.adopt(handle)
        elif handle is None or handle.ended:
            return
        elif kind == Net.PLAN:
            handle.plan = payload.decode(errors="replace")
        elif kind == Net.UNFIT:
            self._agent.retire(worker)
        elif kind == Net.ENDED:
            handle.why = payload.decode(errors="replace")
            handle.on_end()
        else:
            handle.hear(kind, payload)

    def look_after(self, now_s: float) -> None:
        """Kill a ferry that is stopped or stuck. It must be dead before its tasks are given to others: it could write late.

        Waiting for a core does not count: the ferry imports torch for some plans, beside local workers that keep all cores busy.
        """
        if self.gone or self._core_waits is None:
            return
        waited_s = self._core_waits.seconds(now_s)
        if self._heard_s > self._looked_s:
            self._waited_s = waited_s
        self._looked_s = now_s
        silent_s = now_s - self._heard_s
        silent_s -= waited_s - self._waited_s  # guard: ferry-core
        if silent_s > FERRY_SILENT_S:  # guard: silent-ferry
            self._heard_s = now_s
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _lose(self) -> None:
        """The ferry is gone, and with it all remote workers."""
        self.gone = True
        if self._selector is not None:
            self._selector.unregister(self.channel.sock)
        self.channel.close()
        lost = [handle for handle in self._handles.values() if not handle.ended]
        for handle in lost:
            handle.why = LOST_FERRY
            handle.on_end()
        if not lost:
            self._agent.warn(NO_FERRY)

    def close(self) -> None:
        self.channel.close()
        if self._core_waits is not None:
            self._core_waits.close()
            self._core_waits = None
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


@dataclass(slots=True, eq=False)
class RemoteHandle:
    """A worker on another machine."""

    id: int
    link: FerryLink
    host: str
    layouts: set[int] = field(default_factory=set)
    ended: bool = False
    hung: bool = False
    exit_code: int | None = None
    why: str = ""
    plan: str = ""
    """What it does of a sample."""
    hear: Hear = field(init=False)
    on_end: Callable[[], None] = field(init=False)
    _row: Any = None

    @property
    def name(self) -> str:
        return f"worker {self.id} on {self.host}"

    def show(self, row: memoryview) -> None:
        self._row = row
        row[Board.PID] = 0

    def watch(self, selector: selectors.BaseSelector, hear: Hear, on_end: Callable[[], None]) -> None:  # noqa: ARG002
        self.hear, self.on_end = hear, on_end

    def post(self, kind: Msg, *chunks: bytes) -> None:
        if kind is Msg.LAYOUT:  # the ferry needs the sizes, to place rows
            (number,) = wire.LAYOUT.unpack_from(chunks[0])
            chunks = (chunks[0], wire.pack_sizes(self.link.items(number)), *chunks[1:])
        self.link.post(kind, self.id, *chunks)

    def stop(self) -> None:
        self.link.post(Msg.STOP, self.id)

    def hear_out(self) -> None:
        if self._row is not None:  # a lost connection is no sample's fault
            self._row[Board.TASK] = self._row[Board.ORDINAL] = -1

    def ask_stack(self, now_s: float, silent_s: float) -> None:
        pass

    def condemn(self, now_s: float) -> None:  # noqa: ARG002
        self.hung, self.why = True, "it was silent for too long"
        self.stop()

    def look_after(self, now_s: float) -> str:  # noqa: ARG002
        return ""

    def waited_s(self, now_s: float) -> float:  # noqa: ARG002
        return 0.0

    def private_bytes(self) -> int:
        return 0

    def follow_cores(self, before: frozenset[int], cores: frozenset[int]) -> None:
        pass

    def reap(self) -> bool:
        return True

    def cause(self, *, oom: bool) -> str:  # noqa: ARG002
        return f"{self.name} was lost: {self.why or 'it has ended'}"

    def end_by(self, deadline_s: float) -> None:
        """Nothing to wait for: the ferry writes nothing more once our socket is closed."""

    def disinherit(self) -> None:
        with contextlib.suppress(OSError):
            self.link.close()

    def close(self) -> None:
        pass
