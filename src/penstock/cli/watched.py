"""Measure one run of a program in its own process, from outside."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from penstock.cli.display import Display
from penstock.cli.program import Program
from penstock.measure.tree import process_tree, pss_bytes

TICK_S = 0.25
LOOK_SHARE = 0.05
"""Most of the time to spend on reading memory: it is slow for large processes and stops them."""
TAIL_LINES = 20
END_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRun:
    """One run to measure."""

    engine: str
    """Loader to use: penstock or torch."""
    run: int = 0
    """Number of this run within the command, from 0."""
    steps: int | None = None
    """Stop the program after this many batches."""
    trace: str | None = None
    """Path of the busiest loader's trace, if wanted."""


@dataclass(slots=True)
class Result:
    """The outcome of one run."""

    engine: str
    facts: dict[str, float]
    peak_bytes: int = 0
    """Peak memory of the whole process tree, as PSS."""
    diagnosis: str = ""
    adoption: str = ""
    """Whether the busiest loader's torchvision dataset is adopted."""
    code: int = 0
    output_tail: str = ""


@dataclass(slots=True)
class Watch:
    """Tracks the peak memory of a process tree."""

    pid: int
    peak_bytes: int = 0
    next_s: float = field(default_factory=time.monotonic)

    def look(self) -> None:
        began_s = time.monotonic()
        if began_s >= self.next_s:
            self.peak_bytes = max(self.peak_bytes, pss_bytes(process_tree(self.pid)))
            now_s = time.monotonic()
            self.next_s = now_s + max(TICK_S, (now_s - began_s) / LOOK_SHARE)


def measure(program: Program, job: WatchedRun, display: Display) -> Result:
    """Run the program until it ends or has taken its steps."""
    result = Result(job.engine, facts={"batches": 0})
    with tempfile.TemporaryFile("w+") as output, child(program, job, output) as (process, messages):
        watch = Watch(process.pid)
        for message in lines(messages, watch):
            result.facts, result.diagnosis = message["facts"], message.get("diagnosis", "")
            result.adoption = message.get("adoption", "")
            display.show(job.engine, result.facts, watch.peak_bytes)
        result.code, result.peak_bytes = process.wait(), watch.peak_bytes
        output.seek(0)
        result.output_tail = "".join(output.readlines()[-TAIL_LINES:]).rstrip()
    display.finish(job.engine, result.facts, result.peak_bytes)
    return result


@contextlib.contextmanager
def child(
    program: Program, job: Any, output: IO[str], module: str = "penstock.cli.child"
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start the program's process, `module` with the job's fields; yield it and the pipe of its reports."""
    messages, theirs = os.pipe()
    told = json.dumps({**asdict(job), "descriptor": theirs})
    words = [sys.executable, "-m", module, told, *program.words()]
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, pass_fds=[theirs]
        )
    except BaseException:
        os.close(messages)
        raise
    finally:
        os.close(theirs)
    try:
        yield process, messages
    finally:
        os.close(messages)
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            process.kill()
            process.wait()


def lines(messages: int, watch: Watch) -> Iterator[Any]:
    """Yield messages until the program closes the pipe, and check its memory meanwhile."""
    rest = b""
    while True:
        watch.look()
        if not select.select([messages], [], [], TICK_S)[0]:
            continue
        data = os.read(messages, 1 << 16)
        if not data:
            return
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield json.loads(line)
