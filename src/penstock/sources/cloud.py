"""Files in object stores (s3://, gs://, az://, …), read by the fetch service of this machine's node process (`penstock.sources.fetch`).

Rule 1: this process never imports obstore: it may fork.
Rule 2: ranges of one call are fetched side by side. Each read has a deadline, and transient failures are tried again (`penstock.sources.retries`).
Rule 3: if the service or the node has died, a new one is started, and what was asked is asked again. If that fails, it is a transient failure too.
Rule 4: once an object's stamp was taken, every read says which etag it must have.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from struct import pack as packed
from typing import Any, NamedTuple, TypeVar

from penstock.errors import ConfigError, MissingExtra, NodeUnavailable, ServiceFailed
from penstock.measure.host import process_state
from penstock.node.job import job_name
from penstock.node.link import NodeLink
from penstock.policy.retry import RetryLimits
from penstock.sources.fetch_frames import (
    MOST_BYTES,
    MOST_RANGES,
    PID,
    REGION_BYTES,
    AskedBytes,
    Fetch,
    FetchTrouble,
    StreamLost,
    StreamSilent,
    pack,
    receive_exactly,
    receive_head,
    settings_in,
)
from penstock.sources.retries import Fleeting, persistently
from penstock.sources.sources import BadRead, ByteRange, PerProcess, Source, changed, joined, parted, shown

KINDS = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss")
TIMEOUT_S = 60.0
LEAST_BYTES_PER_S = 16 << 10
"""Slower answers fail, some time after `TIMEOUT_S`."""
WHOLE_BYTES = 4 << 20
"""What an object of unknown size is taken for, when its time is measured out."""
MOST_IDLE = 8
"""Idle streams per process."""

T = TypeVar("T")


class ObjectFacts(NamedTuple):
    """An object as its store describes it."""

    size: int
    etag: str
    time: str

    @property
    def stamp(self) -> str:
        return f"{self.size}-{self.etag or self.time}"


class ListedObject(NamedTuple):
    name: str
    size: int
    etag: str


class CloudFiles(Source):
    """Read objects by URL, with the settings that a process has in its environment when it first reads."""

    chunk_bytes = 4 << 20

    def __init__(
        self,
        *,
        timeout_s: float = TIMEOUT_S,
        limits: RetryLimits = RetryLimits(),  # noqa: B008 - frozen
    ) -> None:
        if timeout_s <= 0:
            raise ConfigError(f"timeout_s must be positive, got {timeout_s}")
        self.timeout_s, self.limits = timeout_s, limits
        self._known: dict[str, ObjectFacts] = {}
        # A worker's own job would be another one, with a node process of its own.
        self._streams = PerProcess(partial(FetchStreams, job_name()))

    def is_local(self, name: str) -> bool:  # noqa: ARG002 - none is
        return False

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        return self.read_many([(name, start, end)])[0]

    def read_many(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        runs = joined([self._bounded(one) for one in ranges], self.near_bytes)
        wanted = [run for run, _ in runs if run[2] is None or run[1] < run[2]]
        found: list[bytes] = []
        for at in range(0, len(wanted), MOST_RANGES):
            some = wanted[at : at + MOST_RANGES]
            found += persistently(partial(self._fetch, some), some[0][0], self.limits)
        got = iter(found)
        return [
            data
            for run, members in runs
            for data in parted(b"" if run[1] == run[2] else next(got), run, members)
        ]

    def size(self, name: str) -> int:
        return self._ask(name).size

    def stamp(self, name: str) -> str:
        return self._ask(name).stamp

    def identity(self, name: str) -> str | None:
        """Return the stamp if its etag is strong; a modification time only has one-second resolution."""
        facts = self._ask(name)
        return facts.stamp if facts.etag and not facts.etag.startswith("W/") else None

    def below(self, name: str) -> list[ListedObject]:
        """Return all objects whose names go on behind this one and a slash, in no particular order."""
        return persistently(partial(self._list, name.rstrip("/")), name, self.limits)

    def close(self) -> None:
        self._streams.close()

    def _bounded(self, one: ByteRange) -> ByteRange:
        name, start, end = one
        if end is None and start > 0:
            end = max(start, self.size(name))
        if start < 0 or (end is not None and end < start):
            raise ConfigError(f"bytes [{start}, {end}) of {shown(name)} were asked for")
        return name, start, end

    def _ask(self, name: str) -> ObjectFacts:
        if name not in self._known:
            self._known[name] = persistently(partial(self._head, name), name, self.limits)
        return self._known[name]

    # ---- one try

    def _fetch(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        total = sum(WHOLE_BYTES if end is None else end - start for _, start, end in ranges)
        within_s = self.timeout_s + total / LEAST_BYTES_PER_S
        deadline_s = time.monotonic() + within_s
        asked = [
            AskedBytes(*one, deadline_s, known.etag if (known := self._known.get(one[0])) else "")
            for one in ranges
        ]

        def answers(stream: FetchStream) -> list[bytes | BadRead | FileNotFoundError]:
            return [stream.bytes_of(one) for one in asked]

        found = self._exchange(pack(Fetch.READ, asked), ranges[0][0], within_s, answers)
        failed = next((one for one in found if not isinstance(one, bytes)), None)
        if failed is not None:
            raise failed
        return [one for one in found if isinstance(one, bytes)]

    def _head(self, name: str) -> ObjectFacts:
        deadline_s = time.monotonic() + self.timeout_s
        return self._exchange(
            pack(Fetch.HEAD, (name, deadline_s)), name, self.timeout_s, lambda stream: stream.facts_of(name)
        )

    def _list(self, name: str) -> list[ListedObject]:
        kind, _, rest = name.partition("://")
        bucket = f"{kind}://{rest.partition('/')[0]}"
        request = pack(Fetch.LIST, (name, time.monotonic() + self.timeout_s))
        # Its time is that of each page: there may be thousands.
        return self._exchange(
            request, name, self.timeout_s, lambda stream: list(stream.names_of(name, bucket))
        )

    def _exchange(self, request: bytes, name: str, within_s: float, answer: Callable[[FetchStream], T]) -> T:
        """Send a request; return what `answer` makes of the stream."""
        streams = self._streams.get()
        while True:
            stream, kept = None, False
            try:
                stream, kept = streams.take()
                found = stream.exchange(request, within_s, answer)
            except (StreamLost, ServiceFailed, NodeUnavailable, ConnectionError) as exc:
                if stream is not None:
                    stream.close()
                if sys.platform != "linux":
                    raise
                # guard: asked-again
                if not kept or isinstance(exc, StreamSilent):
                    raise Fleeting(f"reading {shown(name)} failed: {exc}") from exc
                streams.forget()
            except BaseException:
                if stream is not None:
                    stream.close()
                raise
            else:
                streams.give(stream)
                return found


# ---- streams


class FetchStream:
    """A stream to the fetch service. One thread uses it at a time."""

    def __init__(self, sock: socket.socket, region: mmap.mmap | None, within_s: float) -> None:
        self._sock, self.pid, self._limit_s = sock, 0, 0
        self._region, self._at = region, 0
        sock.settimeout(
            None
        )  # the kernel limits waits: a time limit of Python's would cut a large read into many
        self._limit(within_s)
        try:
            (self.pid,) = PID.unpack(receive_exactly(sock, PID.size))
        except OSError as exc:
            sock.close()
            raise self._lost(exc) from exc

    def exchange(self, request: bytes, within_s: float, answer: Callable[[FetchStream], T]) -> T:
        self._limit(within_s + 1.0)  # its own time limit says more than our silence
        try:
            self._at = 0
            self._sock.sendall(request)
            return answer(self)
        except (BlockingIOError, ConnectionError, StreamLost) as exc:
            raise self._lost(exc) from exc

    def bytes_of(self, asked: AskedBytes) -> bytes | BadRead | FileNotFoundError:
        kind, length = receive_head(self._sock, MOST_BYTES)
        if kind == Fetch.ERROR:
            return self._error(asked.name, length, asked.etag)
        due = length if asked.end is None else asked.end - asked.start
        if kind not in (Fetch.BYTES, Fetch.PLACED) or length != due:
            raise StreamLost(f"it answered with {length:,} bytes of kind {kind} where {due:,} are due")
        if kind == Fetch.BYTES:
            return receive_exactly(self._sock, length)
        start, self._at = self._at, self._at + length
        if self._region is None or self._at > len(self._region):
            raise StreamLost("it placed bytes where there is no room")
        return self._region[start : self._at]

    def facts_of(self, name: str) -> ObjectFacts:
        return ObjectFacts(*self._json(name, Fetch.FACTS))

    def names_of(self, name: str, bucket: str) -> Iterator[ListedObject]:
        while found := self._json(name, Fetch.NAMES):
            for key, size, etag in found:
                yield ListedObject(f"{bucket}/{key}", size, etag)

    def _json(self, name: str, due: Fetch) -> Any:
        kind, length = receive_head(self._sock, MOST_BYTES)
        if kind == Fetch.ERROR:
            raise self._error(name, length)
        if kind != due:
            raise StreamLost(f"it answered with kind {kind}")
        return json.loads(receive_exactly(self._sock, length))

    def _error(self, name: str, length: int, etag: str = "") -> BadRead | FileNotFoundError:
        trouble, text = json.loads(receive_exactly(self._sock, length))
        return error_of(name, trouble, text, etag)

    def _limit(self, within_s: float) -> None:
        """Wait no longer than this, in whole seconds: reads of similar sizes need no other limit."""
        limit_s = math.ceil(within_s)
        if limit_s != self._limit_s:
            self._limit_s, limit = limit_s, packed("@ll", limit_s, 0)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)  # guard: fetch-deadline
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def _lost(self, exc: OSError) -> StreamLost:
        who = f"the fetch service of the node process (pid {self.pid or 'unknown'})"
        if not isinstance(exc, BlockingIOError):
            return StreamLost(f"{who} is gone or failed: {exc}")
        state = process_state(self.pid) if self.pid else ""
        stopped = ": it is stopped (SIGSTOP?). Continue or kill it" if state in ("T", "t") else ""
        return StreamSilent(f"{who} did not answer in time{stopped}")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # a forked process may have a copy
        self._sock.close()
        if self._region is not None:
            self._region.close()


@dataclass(slots=True)
class FetchStreams:
    """A process's membership in its job's node, and its idle streams to the fetch service."""

    job: str
    hello: bytes = field(default_factory=lambda: json.dumps(settings_in(os.environ)).encode())
    link: NodeLink | None = None
    idle: list[FetchStream] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> tuple[FetchStream, bool]:
        """Return a stream, and whether it was an idle one."""
        with self.lock:
            if self.idle:
                return self.idle.pop(), True
            if self.link is None or not self.link.alive():
                require_obstore()
                if self.link is not None:
                    self.link.close()
                    self.link = None
                self.link = NodeLink.attach(self.job)
            link = self.link
        return opened(link, self.hello), False

    def give(self, stream: FetchStream) -> None:
        with self.lock:
            if len(self.idle) < MOST_IDLE:
                self.idle.append(stream)
                return
        stream.close()

    def forget(self) -> None:
        """Close idle streams: the service at their other end has died."""
        with self.lock:
            idle, self.idle = self.idle, []
        for stream in idle:
            stream.close()

    def close(self) -> None:
        self.forget()
        with self.lock:
            link, self.link = self.link, None
        if link is not None:
            link.close()


def opened(link: NodeLink, hello: bytes) -> FetchStream:
    """Open a stream, with memory that the service writes into: to send bytes over the stream would copy them twice through the kernel."""
    fd, region = -1, None
    try:
        with contextlib.suppress(OSError):  # no memfd here, or no memory for one
            fd = os.memfd_create("penstock fetch")
            os.ftruncate(fd, REGION_BYTES)
            region = mmap.mmap(fd, REGION_BYTES)
        return FetchStream(link.open("fetch", hello, [] if region is None else [fd]), region, TIMEOUT_S)
    except BaseException:
        if region is not None:
            region.close()  # it holds a descriptor, and the error may be kept
        raise
    finally:
        if fd >= 0:
            os.close(fd)


def error_of(name: str, trouble: int, text: str, etag: str = "") -> BadRead | FileNotFoundError:
    """Return the error for an object that was not read; `etag`: what it should have had."""
    if trouble == FetchTrouble.MISSING:
        return FileNotFoundError(2, os.strerror(2), shown(name))
    if trouble == FetchTrouble.CHANGED:
        return changed(name, etag, text)
    kind = Fleeting if trouble == FetchTrouble.FLEETING else BadRead
    return kind(f"reading {shown(name)} failed: {text}")


def require_obstore() -> None:
    if find_spec("obstore") is None:
        raise MissingExtra("object stores need obstore: pip install 'penstock[cloud]'")
