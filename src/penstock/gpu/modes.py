"""What the lane does now: its mode (off, in training's pauses, beside it) and its share, from what is seen of batches as they are taken."""

from __future__ import annotations

from collections.abc import Callable

from penstock.policy.share import Seen, ShareSearch
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
"""Batches after a change of mode that are not counted: some were prepared before it, and the share is searched first."""


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
        self._searches = {mode: ShareSearch() for mode in Sharing}
        self._taken_s, self._workers = 0.0, 0
        self._unsettled = SETTLE
        self._batches, self._time_s, self._wait_s = 0, 0.0, 0.0

    @property
    def fixed(self) -> bool:
        return self._fixed is not None

    @property
    def mode(self) -> Sharing:
        return self._choice.mode

    @property
    def is_idle(self) -> bool:
        return self.mode is Sharing.IDLE

    @property
    def share(self) -> float:
        if self._fixed is not None:
            return self._fixed
        return 0.0 if self.mode is Sharing.OFF else self._searches[self.mode].share

    @property
    def finishes(self) -> bool:
        """Whether the kernels finish what workers decode."""
        if self._finishes is not None:
            return self._finishes
        if self._fixed is not None and self._asked == "off":
            return False
        return self.mode is not Sharing.OFF and self._searches[self.mode].finishes

    def on_workers(self, workers: int) -> None:
        """So many there are now."""
        before, self._workers = self._workers, workers
        if before not in (0, workers):
            for search in self._searches.values():
                search.on_workers(before, workers)

    def on_batch(self, seen: Seen, asked_s: float, taken_s: float) -> None:
        """A batch that was asked for at `asked_s` was had at `taken_s`."""
        if self.mode is not Sharing.OFF and not self.fixed:
            self._searches[self.mode].on_batch(seen)
        before, self._taken_s = self._taken_s, taken_s
        if not before or self._asked != "auto":
            return
        if self._unsettled:
            self._unsettled -= 1
            return
        self._batches += 1
        self._time_s += taken_s - before
        self._wait_s += taken_s - asked_s
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
