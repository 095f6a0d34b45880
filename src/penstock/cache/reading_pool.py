"""Processes that read for the cache service, so that its own interpreter has only decisions to make. On machines of few cores there are none.

Rule 1: a job goes to the process with the fewest samples to read.
Rule 2: a process that ends, or is silent while it has samples to read, is killed and not replaced: the service's memory is sealed by then, and nobody new
        can write there. Its samples have failed: whoever needs them reads them. The last one's successor are threads of the service.
Rule 3: memory that a process was given is nobody else's until the process has written it, or is dead.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import socket
import subprocess
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from penstock.cache.read_jobs import ReadJob
from penstock.cache.readers import MOST, MOST_BYTES, Outcome, StuckRead
from penstock.cache.reading_frames import (
    NOWHERE,
    PLACE,
    ReadFailed,
    ReadMsg,
    pack_jobs,
    split_failed,
    split_written,
)
from penstock.measure.endings import exit_text
from penstock.node import interpreter
from penstock.wire.frames import Channel

log = logging.getLogger("penstock")

CORES_EACH, MOST_PROCESSES = 4, 4
COUNT_SETTING = "PENSTOCK_READ_PROCESSES"
PROCESS = "penstock.cache.reading_process:main"
READY_S = 20.0
SILENT_S = 3.0
CLOSE_S = 10.0
DEAD_S = 5.0
"""A killed process that takes longer waits in the kernel, for a file system that does not answer."""
LOOK_S = 0.5
PAUSE_S = 2.0
"""Time in which we did not look ourselves does not count as its silence."""


def processes_for(cores: float, environment: Mapping[str, str]) -> int:
    """Return how many processes read on a machine; 0: threads of the service do. One keeps up with about ten preparing cores."""
    said = environment.get(COUNT_SETTING, "")
    if said.isdigit():
        return min(int(said), MOST_PROCESSES)
    return 0 if cores < 2 * CORES_EACH else min(MOST_PROCESSES, int(cores // CORES_EACH))


class PoolUser(Protocol):
    """The dataset, as reading processes know it. Called from their threads."""

    def lend(self, sample: int, nbytes: int) -> int | None:
        """Return the offset of memory for a sample, or None."""
        ...

    def was_read(
        self, sample: Any, outcome: Outcome, check: int | None = None, lent_at: int | None = None
    ) -> None:
        """A sample was read, or not; `lent_at`: the offset of the memory that the process had for it."""
        ...

    def released(self, sample: Any, lent_at: int | None = None) -> None:
        """The memory of a sample that was a StuckRead is written no more."""
        ...


class ProcessAtWork:
    """One process, and the thread that started it and speaks with it."""

    def __init__(self, fd: int, nbytes: int, begin: bytes) -> None:
        self._fd, self._nbytes, self._begin = fd, nbytes, begin
        self._user: PoolUser | None = None
        self._lock = threading.Lock()
        """Guards what is below."""
        self.open: set[int] = set()
        """Samples that it has to read."""
        self._lent: dict[int, int] = {}
        """Offsets of memory that it was given. Of its thread alone."""
        self._jobs: deque[bytes] = deque()
        self._over = False
        self.stats: dict[str, Any] = {}
        """As it said last."""
        self.is_ready = threading.Event()
        """Set when it has mapped the memory, or has ended."""
        self._bell, self._rope = socket.socketpair()
        """Readable when there is something to do; where it is rung."""
        self._rope.setblocking(False)
        self.thread = threading.Thread(target=self._run, name="penstock cache reads", daemon=True)
        try:
            self.thread.start()
        except RuntimeError:
            self._bell.close()
            self._rope.close()
            raise

    @property
    def alive(self) -> bool:
        return not self._over

    def serve(self, user: PoolUser) -> None:
        self._user = user

    def give(self, jobs: Sequence[ReadJob]) -> bool:
        """Have it read; False if it has ended."""
        with self._lock:
            if self._over:
                return False
            self.open.update(sample for job in jobs for sample, _ in job.samples)  # type: ignore[misc]
            self._jobs.append(pack_jobs(jobs))
        self._ring()
        return True

    def end(self) -> None:
        """Have it killed."""
        with self._lock:
            self._over = True
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # it is full, so it rings; or closed
            self._rope.send(b"!")

    # ---- its thread

    def _run(self) -> None:
        process: subprocess.Popen[bytes] | None = None
        why = ""
        try:
            ours, theirs = socket.socketpair()
            with ours, theirs:
                facts = {"control": theirs.fileno(), "memory": self._fd, "nbytes": self._nbytes}
                facts["parent"] = os.getpid()
                process = interpreter.start(PROCESS, facts, fds=(theirs.fileno(), self._fd), output=2)
                theirs.close()
                ours.setblocking(False)
                why = self._speak(Channel(ours))
        except (OSError, ValueError) as exc:
            why = f"{type(exc).__name__}: {exc}"
        finally:
            self._end(process, why)

    def _end(self, process: subprocess.Popen[bytes] | None, why: str) -> None:
        """Have it dead, and say that what it had to read has failed."""
        if process is not None:
            process.kill()
            try:
                code = process.wait(DEAD_S)
                why = why or f"it {exit_text(code)}"
            except subprocess.TimeoutExpired:  # it waits in the kernel, and may still write
                lost = self._settle(StuckRead("a reading process does not die"), why)
                process.wait()
                for sample in lost & self._lent.keys():
                    self._told().released(sample, self._lent[sample])
        self._settle(ReadFailed(why), why)
        self._user = None  # its memory ends with it, not with the next garbage collection
        self._bell.close()
        self._rope.close()

    def _settle(self, error: Exception, why: str) -> set[int]:
        with self._lock:
            asked, self._over = self._over, True
            lost, self.open = self.open, set()
        self.stats |= dict.fromkeys(NOW, 0) if self.stats else {}
        self.is_ready.set()
        if not asked:
            log.warning("cache: a reading process has ended (%s): fewer read from now on", why)
        for sample in lost:
            self._told().was_read(sample, error, None, self._lent.get(sample))  # guard: lost-samples-told
        return lost

    def _told(self) -> PoolUser:
        assert self._user is not None, "samples come after their dataset"
        return self._user

    def _speak(self, channel: Channel) -> str:
        """Serve it until one side ends; return why it must be killed, if it must."""
        channel.post(ReadMsg.BEGIN, self._begin)
        with selectors.DefaultSelector() as selector:
            selector.register(self._bell, selectors.EVENT_READ)
            selector.register(channel.sock, selectors.EVENT_READ)
            heard_s = looked_s = time.monotonic()
            while not self._over:
                events = {key.fileobj: mask for key, mask in selector.select(LOOK_S)}
                if self._bell in events:
                    self._bell.recv(4096)
                if channel.sock in events:
                    if not self._hear(channel):
                        return ""
                    heard_s = time.monotonic()
                with self._lock:
                    jobs, self._jobs = self._jobs, deque()
                for job in jobs:
                    channel.post(ReadMsg.JOBS, job)
                channel.flush()
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.clogged else 0)
                selector.modify(channel.sock, wanted)
                now_s = time.monotonic()
                if not self.open or now_s - looked_s > PAUSE_S:
                    heard_s = now_s
                looked_s = now_s
                if now_s - heard_s > SILENT_S:  # guard: silent-process
                    return f"it was silent for {SILENT_S:g} s"
        return ""

    def _hear(self, channel: Channel) -> bool:
        frames = channel.receive(wait=False)
        for kind, payload in frames or ():
            if kind == ReadMsg.PLACE:
                self._place(channel, *PLACE.unpack(payload))
            elif kind == ReadMsg.WRITTEN:
                written = split_written(payload)
                self._finish(written.sample, written.lengths, written.check)
            elif kind == ReadMsg.FAILED:
                self._finish(*split_failed(payload))
            elif kind == ReadMsg.BEAT:
                self.stats = json.loads(payload)
            elif kind == ReadMsg.READY:
                self.is_ready.set()
        return frames is not None

    def _place(self, channel: Channel, sample: int, nbytes: int) -> None:
        offset = self._told().lend(sample, nbytes)
        if offset is not None:
            self._lent[sample] = offset
        channel.post(ReadMsg.PLACED, PLACE.pack(sample, NOWHERE if offset is None else offset))

    def _finish(self, sample: int, outcome: Outcome, check: int | None = None) -> None:
        lent_at = self._lent.pop(sample, None)
        with self._lock:
            self.open.discard(sample)
        self._told().was_read(sample, outcome, check, lent_at)


class ReadingPool:
    """Processes that have the service's memory mapped. Start them before it is sealed; then `serve`."""

    def __init__(self, count: int, fd: int, nbytes: int, facts: Mapping[str, Any]) -> None:
        """`facts`: settings, cwd, stamps and checks, as `reading_process` wants them. Those that do not come up in time are left out."""
        limits = {"most": max(1, MOST // count), "most_bytes": MOST_BYTES // count}
        begin = json.dumps({**facts, **limits}).encode()
        self._processes: list[ProcessAtWork] = []
        try:
            for _ in range(count):
                self._processes.append(ProcessAtWork(fd, nbytes, begin))
        except (OSError, RuntimeError) as exc:  # no descriptor or thread to be had
            log.warning("cache: a reading process cannot be started (%s): fewer read", exc)
        until_s = time.monotonic() + READY_S
        for process in self._processes:
            if not process.is_ready.wait(max(0.0, until_s - time.monotonic())):
                log.warning("cache: a reading process was not ready within %g s", READY_S)
                process.end()

    def serve(self, user: PoolUser) -> None:
        for process in self._processes:
            process.serve(user)

    def submit_many(self, jobs: Iterable[ReadJob]) -> list[ReadJob]:
        """Have samples read; return the jobs that no process is there for."""
        living = [process for process in self._processes if process.alive]
        shares: list[list[ReadJob]] = [[] for _ in living]
        loads = [len(process.open) for process in living]
        left: list[ReadJob] = []
        for job in jobs:
            if not living:
                left.append(job)
                continue
            least = loads.index(min(loads))
            loads[least] += len(job.samples)
            shares[least].append(job)
        for process, share in zip(living, shares, strict=True):
            if share and not process.give(share):
                left += share
        return left

    def stats(self) -> list[dict[str, Any]]:
        """Return what each process said last, those included that have ended."""
        return [process.stats for process in self._processes if process.stats]

    def close(self) -> None:
        for process in self._processes:
            process.end()
        until_s = time.monotonic() + CLOSE_S
        for process in self._processes:
            process.thread.join(max(0.0, until_s - time.monotonic()))


NOW = ("in_flight", "queued", "paused", "allowed")
SUMMED = (*NOW, "retries", "refusals", "failures")


def together(stats: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the statistics of several `Readers` as one's."""
    kinds: dict[str, Counter[str]] = {}
    for one in stats:
        for kind, totals in one["kinds"].items():
            kinds.setdefault(kind, Counter()).update(totals)
    rates = [one["latest_bytes_per_s"] for one in stats if one["latest_bytes_per_s"] is not None]
    return {
        **{name: sum(one[name] for one in stats) for name in SUMMED},
        "latest_bytes_per_s": sum(rates) if rates else None,
        "kinds": {kind: dict(totals) for kind, totals in kinds.items()},
    }
