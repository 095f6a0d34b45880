"""The demo's child processes: training scripts that are watched step by step, and the worker that is killed.

The seven scripts are forked from the demo, so that torch and torchvision are imported once.
"""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from penstock.measure.tree import parent_of, process_tree

DEADLINE_S = 90.0
"""A script that takes longer is ended: torch may hang where it should fail."""


@dataclass(slots=True)
class Ended:
    """What came of a script."""

    code: int = 0
    weights: str = ""
    samples: list[str] = field(default_factory=list)
    errors: str = ""

    def last_words(self) -> str:
        """Why it ended, in a line."""
        said = [line.strip() for line in self.errors.splitlines() if line.strip()]
        errors = [line for line in said if line.partition(":")[0].endswith(("Error", "Exception"))]
        return f"ended with exit code {self.code}: {(errors or said or [''])[-1]}" if self.code else "ended"


def run_script(path: Path, *arguments: str) -> None:
    """As `python path arguments…` does."""
    sys.argv = [str(path), *arguments]
    runpy.run_path(str(path), run_name="__main__")


class Script:
    """A process that prints `step N …`, `samples HASH …` and, at its end, `weights HASH`."""

    def __init__(self, act: Callable[[], Any], *, kill_after: int = 0) -> None:
        """kill_after: the step after which one of its workers is killed, while it stands still; 0 for none."""
        sys.stdout.flush()
        sys.stderr.flush()
        ours, theirs = os.pipe()
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `follow`
        facts = (act, theirs, self._errors.fileno(), kill_after)
        self._process = multiprocessing.get_context("fork").Process(target=in_child, args=facts)
        self._process.start()
        os.close(theirs)
        self._lines = os.fdopen(ours)

    def follow(
        self, on_step: Callable[[int], None], on_kill: Callable[[int], None] = lambda _: None
    ) -> Ended:
        """Read what it prints until it ends."""
        ended = Ended()
        alarm = threading.Timer(DEADLINE_S, self._process.kill)
        alarm.start()
        with self._lines, self._errors:
            for line in self._lines:
                what, *facts = line.split() or [""]
                if what == "step":
                    on_step(int(facts[0]))
                elif what == "killed":
                    on_kill(int(facts[0]))
                elif what == "samples":
                    ended.samples += facts
                elif what == "weights":
                    ended.weights = facts[0]
            self._process.join()
            alarm.cancel()
            self._errors.seek(0)
            ended.errors, ended.code = self._errors.read(), self._process.exitcode or 0
        return ended


def in_child(act: Callable[[], Any], output: int, errors: int, kill_after: int) -> None:
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.close(output)
    logging.getLogger("penstock").handlers.clear()  # those of the demo's display
    sys.stdout, sys.stderr = Told(kill_after), os.fdopen(2, "w", 1, closefd=False)
    code = act()
    sys.stdout.flush()
    sys.exit(code)


class Told(io.TextIOWrapper):
    """Standard output of a script. With the line `step N` one of its workers is killed before the script goes on."""

    def __init__(self, kill_after: int) -> None:
        super().__init__(os.fdopen(1, "wb", closefd=False), write_through=True)
        self._mark = f"step {kill_after} " if kill_after else ""

    def write(self, text: str) -> int:
        done = super().write(text)
        if self._mark and text.startswith(self._mark):
            self._mark = ""
            super().write(f"\nkilled {kill_a_worker_of(os.getpid())}")
        return done


def kill_a_worker_of(pid: int) -> int:
    """SIGKILL to a process under this one that has no children itself: a worker, whichever loader started it."""
    tree = process_tree(pid)
    parents = {parent_of(one) for one in tree}
    victim = min(one for one in tree if one not in parents and one != pid)
    os.kill(victim, signal.SIGKILL)
    return victim


def lines_of(text: str, part: str) -> list[str]:
    return [line for line in text.splitlines() if part in line]
