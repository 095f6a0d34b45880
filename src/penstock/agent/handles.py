"""A worker as the agent sees it, wherever it runs. `processes.LocalWorker` is a process of this machine,
`remote.handles.RemoteHandle` one of another.

Local workers write results into the arena themselves. For a worker without the arena another process must have written them before its
handle passes on DONE.
"""

from __future__ import annotations

from collections.abc import Callable
from selectors import BaseSelector
from typing import Protocol

from penstock.core import events as ev
from penstock.core.events import Event
from penstock.wire.frames import Msg

ANSWERS: dict[Msg, Callable[[int, int], Event]] = {
    Msg.REFUSED: ev.Refused,
    Msg.UNREACHED: ev.Unreached,
    Msg.EXHAUSTED: ev.Exhausted,
    Msg.DROPPED: ev.Dropped,
}
"""Worker messages that carry a task id only, by what they tell the core."""
Hear = Callable[[int, bytes], None]
"""Takes a frame from a worker: kind and payload."""


class WorkerHandle(Protocol):
    """Called only from the agent's loop. Nothing blocks, except `reap` briefly and `end_by` until its deadline."""

    id: int
    layouts: set[int]
    """Layouts sent to the worker."""
    ended: bool
    hung: bool
    """We killed it for its silence."""
    exit_code: int | None
    """None: unknown, or not reported yet."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    def show(self, row: memoryview) -> None:
        """Write its pid, if it has one here, into its row of the board. The row's TASK, ORDINAL and BEAT must then follow the
        worker: the agent takes a worker without a beat for hung, and blames the sample at ORDINAL for a death. A local
        worker writes them itself."""

    def watch(self, selector: BaseSelector, hear: Hear, on_end: Callable[[], None]) -> None:
        """Start passing on its frames to `hear`, and call `on_end` when it seems to have ended."""

    def post(self, kind: Msg, *chunks: bytes) -> None: ...

    def stop(self) -> None:
        """Ask it to end."""

    def hear_out(self) -> None:
        """Pass on the last frames of an ended worker and stop watching it."""

    def ask_stack(self, now_s: float, silent_s: float) -> None:
        """Ask it to dump its stack; `look_after` reports it after a while."""

    def condemn(self, now_s: float) -> None:
        """Kill it, after it has had time to dump its stack."""

    def look_after(self, now_s: float) -> str:
        """Continue `ask_stack` and `condemn`; return a text to report, or an empty one."""

    def waited_s(self, now_s: float) -> float:
        """Return the seconds it has waited for a core, if known."""

    def private_bytes(self) -> int:
        """Return its unshared memory; 0 if unknown."""

    def follow_cores(self, before: frozenset[int], cores: frozenset[int]) -> None:
        """Follow the training process to other cores."""

    def reap(self) -> bool:
        """Find out how it ended; False: the training process is asked and will answer."""

    def cause(self, *, oom: bool) -> str:
        """Say how it ended and why; `oom`: the kernel's OOM killer has acted since the last end."""

    def end_by(self, deadline_s: float) -> None:
        """Wait until the deadline for its end, then kill it."""

    def disinherit(self) -> None:
        """Close what only the agent may hold, in a process forked from it."""

    def close(self) -> None: ...
