"""A worker as the agent holds it, wherever it runs. `processes.LocalWorker` is a process of this machine."""

from __future__ import annotations

from collections.abc import Callable
from selectors import BaseSelector
from typing import Protocol

from penstock.wire.frames import Msg

Hear = Callable[[int, bytes], None]
"""Takes a frame that a worker has sent: its kind and its payload."""


class WorkerHandle(Protocol):
    """Called only from the agent's loop. Nothing blocks, but `reap` for a moment and `end_by` until its deadline."""

    id: int
    layouts: set[int]
    """Layouts the worker has been told."""
    ended: bool
    hung: bool
    """It was killed by us for its silence."""
    exit_code: int | None
    """How it ended; None: nobody knows, or nobody has said."""

    @property
    def name(self) -> str:
        """What messages call it."""

    def show(self, row: memoryview) -> None:
        """Write on its row of the board who it is."""

    def watch(self, selector: BaseSelector, hear: Hear, on_end: Callable[[], None]) -> None:
        """From now on: pass on what it says, and say when it seems to have ended."""

    def post(self, kind: Msg, *chunks: bytes) -> None: ...

    def stop(self) -> None:
        """Ask it to end."""

    def hear_out(self) -> None:
        """It has ended: pass on what it still had to say, and watch it no longer."""

    def ask_stack(self, now_s: float, silent_s: float) -> None:
        """Have it write down where it is; reported when it has had time to."""

    def condemn(self, now_s: float) -> None:
        """It hangs: kill it when it has had time to say where."""

    def look_after(self, now_s: float) -> str:
        """What became of `ask_stack` and `condemn` by now: a text to report, or nothing."""

    def waited_s(self, now_s: float) -> float:
        """Seconds in which it wanted a core and had none, where that is known."""

    def private_bytes(self) -> int:
        """Memory that nobody shares with it; 0 where that is not known."""

    def follow_cores(self, before: frozenset[int], cores: frozenset[int]) -> None:
        """The training process may use other cores now."""

    def reap(self) -> bool:
        """Find out how it ended; False: the training process is asked, and will say so."""

    def cause(self, *, oom: bool) -> str:
        """How it ended and why; `oom`: the kernel has ended processes for their memory since the last one ended."""

    def end_by(self, deadline_s: float) -> None:
        """Wait for its end until the deadline, then kill it."""

    def disinherit(self) -> None:
        """In a process that was forked from the agent: let go of what only the agent may hold."""

    def close(self) -> None: ...
