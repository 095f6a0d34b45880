"""The lane's mode (off, in training's pauses, beside it) and what workers leave to it, learned from batches as training takes them."""

from __future__ import annotations

from collections.abc import Callable

from penstock.policy.backlog import Backlog, Seen
from penstock.policy.sharing import BLOCK, Choice, Measured, Memory, Sharing, after_block, first_choice

SETTLE = 16
"""Least number of batches ignored after a change of mode: the lane's limit is searched first."""
SETTLE_WINDOWS = 2
"""... and this multiple of the batches ahead: those were begun before the change."""


class Modes:
    def __init__(
        self,
        asked: str,
        *,
        fixed_share: float | None = None,
        finishes: bool | None = None,
        memory: Callable[[], Memory] | None = None,
        borrows_cores: bool = False,
    ) -> None:
        """`borrows_cores`: workers leave cores to the lane only while it works."""
        self._asked, self.fixed_share, self._finishes = asked, fixed_share, finishes
        self._borrows_cores = borrows_cores
        self._choice: Choice = first_choice(asked)
        self._memory = memory or (lambda: Memory(0, 0, 1))
        self._backlogs = {mode: Backlog() for mode in Sharing}
        self._settled, self._changed = 0, False
        """Batches since the mode changed, up to those ignored; and whether it ever changed."""
        self._batches, self._time_s, self._wait_s, self._worked = 0, 0.0, 0.0, False

    @property
    def mode(self) -> Sharing:
        return self._choice.mode

    @property
    def trying(self) -> bool:
        """Whether modes are still being compared."""
        return self._asked == "auto" and self._choice.trying

    @property
    def is_idle(self) -> bool:
        return self.mode is Sharing.IDLE

    @property
    def takes_cores(self) -> bool:
        """Whether workers must leave cores to the lane now."""
        return self._borrows_cores and self.mode is not Sharing.OFF

    @property
    def limit(self) -> float:
        """Files that may be in flight to the lane, in batches."""
        return 0.0 if self.mode is Sharing.OFF else self._backlogs[self.mode].limit

    @property
    def finishes(self) -> bool:
        """Whether the kernels finish what workers decode."""
        if self._finishes is not None:
            return self._finishes
        if self.fixed_share is not None:
            return self._asked != "off"
        return self.mode is not Sharing.OFF and self._backlogs[self.mode].finishes

    def on_batch(self, seen: Seen) -> None:
        if self.fixed_share is not None:
            return
        if self.mode is not Sharing.OFF:
            self._backlogs[self.mode].on_batch(seen)
        if self._asked != "auto":
            return
        if self._settled < (max(SETTLE, SETTLE_WINDOWS * seen.ahead) if self._changed else seen.ahead):
            self._settled += 1
            return
        self._batches += 1
        self._time_s += seen.period_s
        self._wait_s += seen.wait_s
        self._worked |= bool(self.limit or self.finishes)
        if self._batches == BLOCK:
            self._on_block()

    def _on_block(self) -> None:
        mode = self.mode
        self._choice = after_block(
            self._choice,
            Measured(self._time_s / BLOCK, self._wait_s / BLOCK, self._worked),
            asked=self._asked,
            memory=self._memory(),
        )
        self._batches, self._time_s, self._wait_s, self._worked = 0, 0.0, 0.0, False
        if self.mode is not mode:
            self._settled, self._changed = 0, True
