"""Readers of the byte cache under test: what they placed and told, in this process, or in one of its own where obstore may be imported."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import penstock
from penstock.cache.read_jobs import ReadJob, Token
from penstock.cache.readers import Outcome, Readers
from penstock.policy.retry import RetryLimits
from penstock.sources.fetch_frames import settings_in
from penstock.sources.sources import ByteRange

ROOT = Path(__file__).parents[1]
SOURCES = str(Path(penstock.__file__).parents[1])
"""The package as this process has it: it may lack a guard."""
WITHIN_S = 60.0
SOON = RetryLimits(total_s=20, tries=6, first_s=0.02, most_s=0.05)


class Told:
    """Memory for samples, and what became of them."""

    def __init__(self, *, room: int | None = None) -> None:
        """`room`: samples that get memory."""
        self.memory: dict[Token, memoryview] = {}
        self.over: queue.Queue[tuple[Token, Outcome]] = queue.Queue()
        self.outcomes: dict[Token, Outcome] = {}
        self._room = room

    def place(self, token: Token, nbytes: int) -> memoryview | None:
        if self._room is not None and len(self.memory) >= self._room:
            return None
        assert token not in self.memory, "memory was asked for twice"
        # A released view could be written no more; resizing shows that no slice of it is left.
        self.memory[token] = memoryview(bytearray(nbytes))
        return self.memory[token]

    def done(self, token: Token, outcome: Outcome) -> None:
        memory = self.memory.get(token)
        if memory is not None:
            base, data = memory.obj, bytes(memory)
            memory.release()
            base.append(0)  # type: ignore[attr-defined] # BufferError if anything refers to it
            self.memory[token] = memoryview(data)
        self.over.put((token, outcome))

    def wait(self, count: int) -> dict[Token, Outcome]:
        """Wait until so many samples more are over; return the outcomes of all."""
        until_s = time.monotonic() + WITHIN_S
        for _ in range(count):
            token, outcome = self.over.get(timeout=max(0.01, until_s - time.monotonic()))
            assert token not in self.outcomes, "told twice"
            self.outcomes[token] = outcome
        return self.outcomes

    def bytes(self, token: Token) -> bytes:
        outcome = self.outcomes[token]
        if isinstance(outcome, Exception):
            raise outcome
        assert sum(outcome) == len(self.memory[token])
        return bytes(self.memory[token])


@contextlib.contextmanager
def readers_here(told: Told, cwd: Path | str = "/", **options: Any) -> Iterator[Readers]:
    """Readers in this process: for all but object stores."""
    options = {"place": told.place, "most": 4, "limits": SOON, "try_s": 5.0} | options
    readers = Readers(done=told.done, settings={}, cwd=str(cwd), **options)
    try:
        yield readers
    finally:
        readers.close()


def job(token: Token, *ranges: ByteRange, step: int = 0, rank: int = 0) -> ReadJob:
    return ReadJob(step, rank, ((token, ranges),))


class ReadersApart:
    """Readers in a process of their own, with this one's environment."""

    def __init__(self, **options: Any) -> None:
        command = [sys.executable, "-m", "tests.readers_here", json.dumps(options)]
        path = os.pathsep.join([SOURCES, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, what: str, **said: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"what": what, **said}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def read(self, *ranges: Sequence[ByteRange]) -> list[bytes | str]:
        """Read samples, each a job of its own; return the bytes or the error of each."""
        found = self.ask("read", jobs=[[[number, one]] for number, one in enumerate(ranges)])
        return [bytes.fromhex(said) if ok else said for ok, said in found]

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(WITHIN_S)


@contextlib.contextmanager
def readers_apart(**options: Any) -> Iterator[ReadersApart]:
    readers = ReadersApart(**options)
    try:
        yield readers
    finally:
        readers.close()


def _outcome(told: Told, token: Token) -> tuple[bool, str]:
    try:
        return True, told.bytes(token).hex()
    except Exception as exc:
        return False, f"{type(exc).__name__}: {exc}"


def _serve(options: dict[str, Any]) -> None:
    told = Told()
    limits = RetryLimits(**options.pop("limits")) if "limits" in options else SOON
    readers = Readers(
        place=lambda token, nbytes: told.place(token, nbytes),  # noqa: PLW0108 - another one for each request
        done=lambda token, outcome: told.done(token, outcome),  # noqa: PLW0108 - as above
        settings=settings_in(os.environ),
        cwd="/",
        **{"most": 4, "try_s": 5.0, "limits": limits, **options},
    )
    for line in sys.stdin:
        said = json.loads(line)
        answer: Any = None
        if said["what"] in ("read", "begin"):
            told = Told()
            jobs = [
                ReadJob(0, 0, tuple((token, tuple(map(tuple, ranges))) for token, ranges in samples))
                for samples in said["jobs"]
            ]
            readers.submit_many(jobs)
            tokens = [token for one in jobs for token, _ in one.samples]
            if said["what"] == "read":
                told.wait(len(tokens))
                answer = [_outcome(told, token) for token in tokens]
        elif said["what"] == "expect":
            readers.expect(said["name"], said["stamp"])
        elif said["what"] == "stats":
            answer = readers.stats()
        elif said["what"] == "close":
            began_s = time.monotonic()
            readers.close()
            answer = time.monotonic() - began_s
        print(json.dumps(answer), flush=True)
    readers.close(within_s=0.0)
    os._exit(0)  # threads may still wait in obstore


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
