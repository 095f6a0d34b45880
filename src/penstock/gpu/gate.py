"""When stations may work: always, or only while training pauses."""

from __future__ import annotations

import time
from typing import Any

LOOK_S = 0.0003


class Gate:
    """In idle mode, open while training waits for a batch and the device has finished all its work. An event on training's stream is polled for
    that: a loop that has come back for a batch may still have a step queued."""

    def __init__(self) -> None:
        self.idle_only = False
        self._asker: Any = None
        self.ending = False
        """Nobody will ask for a batch any more: finish what is in flight."""
        self._pause: Any = None

    def asked_by(self, asker: Any) -> None:
        self._asker, self.ending = asker, False

    def left_by(self, asker: Any) -> None:
        if self._asker is asker:
            self._asker, self.ending = None, True

    def opens_after(self, event: Any) -> None:
        """Training waits from now on; `event` ends the work it has queued."""
        self._pause = event

    def shuts(self) -> None:
        self._pause = None

    def is_open(self) -> bool:
        pause = self._pause
        return not self.idle_only or self.ending or (pause is not None and pause.query())

    def wait(self) -> None:
        while not self.is_open():
            time.sleep(LOOK_S)
