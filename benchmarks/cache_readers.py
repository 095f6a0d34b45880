"""CPU per read of the byte cache's readers, beside bare obstore: scripts/bench cache_readers [--reads N] [--rounds N] [--in-flight N] [--kb N]

A server on this machine answers every range at once, with zeros. Subjects read the same ranges of `--kb` KB, `--in-flight` at a time, in one process each:

  bare   obstore alone: `get_range` in a pool of threads, each answer made `bytes`; it checks neither etag nor length
  ours   `Readers`: deadlines, checks, order of steps, and bytes in memory that the caller gave

Both keep freed memory, as the service does. A round measures both, in turns; ratios are taken inside a round.
"""

from __future__ import annotations

import json
import mmap
import os
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from _machine import describe
from fetch import WARM, compared, in_threads

from penstock.cache.read_jobs import ReadJob, Token
from penstock.cache.readers import Outcome, Readers
from penstock.sources.fetch import keep_memory
from penstock.sources.fetch_frames import settings_in

ROOT = Path(__file__).resolve().parent.parent
SUBJECTS = ("bare", "ours")
NAME = "s3://bucket/data"
BATCH = 64
"""Samples that one step needs."""


class BenchMemory:
    """Places for so many samples, one behind the other, and a count of what came."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.places = nbytes, 1024
        self.memory = memoryview(mmap.mmap(-1, nbytes * self.places))
        self.memory[:] = bytes(len(self.memory))  # as memory that was used before
        self.left, self.over, self.lock = 0, threading.Event(), threading.Lock()

    def place(self, token: Token, nbytes: int) -> memoryview:
        assert isinstance(token, int)
        at = token % self.places * self.nbytes
        return self.memory[at : at + nbytes]

    def done(self, token: Token, outcome: Outcome) -> None:  # noqa: ARG002
        assert isinstance(outcome, tuple), outcome
        with self.lock:
            self.left -= 1
            if not self.left:
                self.over.set()


def measure(subject: str, reads: int, in_flight: int, nbytes: int) -> None:
    """Read in this process; print CPU ms and wall ms per read."""
    keep_memory()
    settings = settings_in(os.environ)
    if subject == "bare":
        import obstore
        from obstore.store import from_url

        store = from_url("s3://bucket", client_options={"allow_http": True}, retry_config={"max_retries": 0})
        pool = ThreadPoolExecutor(in_flight)

        def bare(number: int) -> None:
            bytes(obstore.get_range(store, "data", start=number * 1_000_000, length=nbytes))

        def run(count: int) -> None:
            in_threads(bare, pool, count)
    else:
        memory = BenchMemory(nbytes)
        readers = Readers(
            place=memory.place, done=memory.done, settings=settings, cwd="/", most=in_flight, first=in_flight
        )

        def run(count: int) -> None:
            memory.left = count
            memory.over.clear()
            for first in range(0, count, BATCH):
                readers.submit_many(
                    ReadJob(first, 0, ((at, ((NAME, at * 1_000_000, at * 1_000_000 + nbytes),)),))
                    for at in range(first, min(count, first + BATCH))
                )
            assert memory.over.wait(600)

    run(max(WARM, 4 * in_flight))
    began_s, was = time.monotonic(), time.process_time()
    run(reads)
    used, wall_s = time.process_time() - was, time.monotonic() - began_s
    print(json.dumps({"cpu_ms": 1e3 * used / reads, "wall_ms": 1e3 * wall_s / reads}), flush=True)
    os._exit(0)  # obstore's own threads sometimes abort in the interpreter's end


def main() -> None:
    rows = compared(__file__, __doc__ or "", SUBJECTS, measure)
    for subject, found in rows.items():
        cpu = [row["cpu_ms"] for row in found]
        print(
            f"{subject:5} CPU ms per read {statistics.median(cpu):.3f} ({min(cpu):.3f} to {max(cpu):.3f}), "
            f"wall ms per read {statistics.median(row['wall_ms'] for row in found):.3f}"
        )
    ratios = [ours["cpu_ms"] / bare["cpu_ms"] for ours, bare in zip(rows["ours"], rows["bare"], strict=True)]
    print(
        f"CPU, ours of bare: median {statistics.median(ratios):.2f} (rounds: {', '.join(f'{one:.2f}' for one in ratios)})"
    )
    print(json.dumps(describe(ROOT)))


if __name__ == "__main__":
    main()
