"""What the lane does now: its mode (off, in training's pauses, beside it) and what workers leave to it, from what is seen of batches as
they are taken."""

from __future__ import annotations

from collections.abc import Callable

from penstock.policy.backlog import Backlog, Seen
from penstock.policy.sharing import (
    WINDOW,
    Choice,
    Measured,
    Memory,
    Sharing,
    after_window,
    first_choice,
)

SETTLE = 16
"""Batches after a change of mode that are not counted: some were prepared before it, and the limit is searched first."""


class Modes:
    def __init__(
        self,
        asked: str,
        *,
        fixed_share: float | None = None,
        finishes: bool | None = None,
        memory: Callable[[], Memory] | None = None,
    ) -> None:
        self._asked, self._fixed, self._finishes = asked, fixed_share, finishes
        self._choice: Choice = first_choice(asked)
        self._memory = memory or (lambda: Memory(0, 0, 1))
        self._backlogs = {mode: Backlog() for mode in Sharing}
        self._unsettled = SETTLE
        self._batches, self._time_s, self._wait_s = 0, 0.0, 0.0

    @property
    def fixed_share(self) -> float | None:
        return self._fixed

    @property
    def mode(self) -> Sharing:
        return self._choice.mode

    @property
    def is_idle(self) -> bool:
        return self.mode is Sharing.IDLE

    @property
    def limit(self) -> float:
        """Files that may be on their way to the lane, in batches."""
        return 0.0 if self.mode is Sharing.OFF else self._backlogs[self.mode].limit

    @property
    def finishes(self) -> bool:
        """Whether the kernels finish what workers decode."""
        if self._finishes is not None:
            return self._finishes
        if self._fixed is not None:
            return self._asked != "off"
        return self.mode is not Sharing.OFF and self._backlogs[self.mode].finishes

    def on_batch(self, seen: Seen) -> None:
        if self._fixed is not None:
            return
        if self.mode is not Sharing.OFF:
            self._backlogs[self.mode].on_batch(seen)
        if self._asked != "auto":
            return
        if self._unsettled:
            self._unsettled -= 1
            return
        self._batches += 1
        self._time_s += seen.period_s
        self._wait_s += seen.wait_s
        if self._batches == WINDOW:
            self._on_window()

    def _on_window(self) -> None:
        batch_s, wait_s = self._time_s / WINDOW, self._wait_s / WINDOW
        mode = self.mode
        self._choice = after_window(
            self._choice,
            Measured(batch_s, wait_s, max(0.0, batch_s - wait_s)),
            asked=self._asked,
            memory=self._memory(),
        )
        self._batches, self._time_s, self._wait_s = 0, 0.0, 0.0
        if self.mode is not mode:
            self._unsettled = SETTLE
