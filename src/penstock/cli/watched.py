"""One measured run of a program in a process of its own, watched from outside."""

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
"""Most of the time that looking at memory may take: it is slow for large processes, and they stand still for it."""
TAIL_LINES = 20
END_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run to measure."""

    engine: str
    """Whose loader: penstock or torch."""
    run: int = 0
    """Which run of this command it is, from 0."""
    steps: int | None = None
    """Batches after which the program is stopped."""
    trace: str | None = None
    """Where the trace of the busiest loader goes, if one is wanted."""


@dataclass(slots=True)
class Result:
    """What came of one run."""

    engine: str
    facts: dict[str, float]
    peak_bytes: int = 0
    """Of the whole process tree, as PSS."""
    diagnosis: str = ""
    adoption: str = ""
    """Of the busiest loader: whether its dataset of torchvision's is adopted."""
    code: int = 0
    output_tail: str = ""


@dataclass(slots=True)
class Watch:
    """Follows the peak of a process tree's memory."""

    pid: int
    peak_bytes: int = 0
    next_s: float = field(default_factory=time.monotonic)

    def look(self) -> None:
        began_s = time.monotonic()
        if began_s >= self.next_s:
            self.peak_bytes = max(self.peak_bytes, pss_bytes(process_tree(self.pid)))
            now_s = time.monotonic()
            self.next_s = now_s + max(TICK_S, (now_s - began_s) / LOOK_SHARE)


def measure(program: Program, job: Job, display: Display) -> Result:
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
def child(program: Program, job: Job, output: IO[str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The program's process, and the pipe on which it reports."""
    messages, theirs = os.pipe()
    told = json.dumps({**asdict(job), "descriptor": theirs})
    words = [sys.executable, "-m", "penstock.cli.child", told, *program.words()]
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
    """Messages as they come, looking at the memory meanwhile, until the program closes the pipe."""
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
