"""Ctrl-C at any moment: the program is gone within two seconds and leaves nothing; a caller who goes on loses nothing."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import penstock.engine
from penstock import DataLoader, PenstockError
from tests.conftest import FULL
from tests.fault.datasets import Drawn, expected, same
from tests.fault.programs import Zygote, fair

OPTIONS: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 11, "num_workers": 2}
POINTS = 1000 if FULL else 100
PER_TEST = 10
ENGINE = str(Path(penstock.engine.__file__).parent)


@pytest.mark.parametrize("first", range(0, POINTS, PER_TEST))
def test_ctrl_c_at_random_times_ends_the_program_within_two_seconds(first: int, programs: Zygote) -> None:
    for point in range(first, first + PER_TEST):
        rng = random.Random(point)
        program = programs.start(
            "tests.fault.jobs:loop",
            num_workers=2,
            batch_size=4,
            length=24,
            pause_s=rng.choice([0.0, 0.002]),
            persistent_workers=rng.random() < 0.5,
        )
        if rng.random() < 0.7:
            program.line()  # else: it is still starting
        time.sleep(rng.random() * 0.2)
        os.killpg(program.pid, signal.SIGINT)  # as a terminal does: to all of the program's processes
        if rng.random() < 0.3:
            time.sleep(rng.random() * 0.02)
            os.killpg(program.pid, signal.SIGINT)
        assert program.wait(within_s=fair(2.0)) in (-signal.SIGINT, 1)
        assert program.left(within_s=0.5) == []
        assert only_the_interrupt(program.errors()), program.errors()
        programs.end_programs()


def only_the_interrupt(text: str) -> bool:
    """Tracebacks of nothing but KeyboardInterrupts (a second one may fall into the shutdown); no word from agent or workers."""
    plain = (" ", "Traceback", "During handling", "Exception ignored", "KeyboardInterrupt", "object ", "lost sys.stderr")
    return all(line.startswith(plain) for line in text.splitlines() if line)


# ---- a caller who goes on


def test_a_caller_who_catches_the_interrupt_and_goes_on_loses_nothing() -> None:
    loader = DataLoader(Drawn(64, pause_s=0.002), **OPTIONS)
    batches: list[Any] = []
    iterator, rng = iter(loader), random.Random(0)
    with interrupts(rng):
        while len(batches) < 16:
            try:
                for batch in iterator:
                    batches.append(batch)
            except KeyboardInterrupt:
                pass
    assert same(batches, expected(Drawn(64), **OPTIONS)[0])


class interrupts:
    """SIGINT to this process at random times, meanwhile."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._over = rng, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.wait(0.02 + self._rng.random() * 0.05):
            os.kill(os.getpid(), signal.SIGINT)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        while self._thread.is_alive():
            try:
                self._over.set()
                self._thread.join()
                time.sleep(0.01)
            except KeyboardInterrupt:
                pass


class Tracer:
    """Raises KeyboardInterrupt at the nth line that runs in the engine."""

    def __init__(self, at: int) -> None:
        self.left, self.where = at, ""

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(ENGINE):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                sys.settrace(None)
                raise KeyboardInterrupt
        return self
