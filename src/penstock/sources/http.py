"""Files on http(s) servers, read by byte ranges over pooled connections.

Rule 1: check the response head before reading the body: a server that ignores the range is an error, not a download.
Rule 2: retry transient failures within limits (`penstock.sources.retries`): 408, 429, 5xx, lost connections, timeouts. All else fails at once. If
        the server closed a pooled connection before answering, reconnect; that is no failure.
Rule 3: every wait has a deadline, including a body that trickles.

This uses the standard library's client. obstore takes less CPU per read, but tells no Retry-After, takes a query only as part of a store (presigned
links would need a store, and connections, for each file), needs the extra, and has to live in another process. fsspec's runs in a thread, accepts any
body, and in a forked worker its finalizer removes the parent's sockets from the shared event loop.
"""

from __future__ import annotations

import base64
import errno
import http.client
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from penstock.errors import ConfigError
from penstock.policy.retry import RetryLimits
from penstock.sources.retries import Fleeting, persistently, retry_after_s
from penstock.sources.sources import BadRead, PerProcess, RemoteFiles, changed, shown

MOST_IDLE = 8
"""Idle connections pooled per process."""
MOST_REDIRECTS = 5
TIMEOUT_S = 60.0
WHOLE_BYTES = 1 << 20
"""What is asked for first of a file of unknown size."""
BUSY = (429, 503)
"""Answers of a server that asks for fewer requests."""
LEAST_BYTES_PER_S = 16 << 10
"""Abort slower responses, some time after `TIMEOUT_S`."""
PIECE = 1 << 20

RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)")


class Known(NamedTuple):
    """Size and stamp of a file as the server reported them."""

    size: int
    stamp: str


class HttpFiles(RemoteFiles):
    """Read files by URL."""

    def __init__(
        self,
        *,
        timeout_s: float = TIMEOUT_S,
        limits: RetryLimits = RetryLimits(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.monotonic,
        most_idle: int = MOST_IDLE,
    ) -> None:
        if timeout_s <= 0:
            raise ConfigError(f"timeout_s must be positive, got {timeout_s}")
        self.timeout_s, self.limits, self.clock = timeout_s, limits, clock
        self._known: dict[str, Known] = {}
        self._pool = PerProcess(partial(Pool, most_idle))

    def _fetch(self, name: str, start: int, end: int) -> bytes:
        data, found = self._get(name, start, end)
        if len(data) != end - start:
            raise BadRead(
                f"{shown(name)} has {found.size:,} bytes, and bytes [{start:,}, {end:,}) were asked for: is it cut off?"
            )
        self._check(name, found)
        return data

    def whole(self, name: str) -> bytes:
        """Return all of a file, mostly by one request: its size is not asked for."""
        data, found = self._get(name, 0, WHOLE_BYTES)
        self._check(name, found)
        if found.size > len(data):
            more, again = self._get(name, len(data), found.size)
            if again != found:
                raise changed(name, found.stamp, again.stamp)
            data += more
        return data

    def _check(self, name: str, found: Known) -> None:
        was = self._known.get(name)
        if was is not None and was != found:
            raise changed(name, was.stamp, found.stamp)

    def expect(self, name: str, stamp: str) -> None:
        """From now on, the file having another stamp is an error."""
        self._known[name] = Known(int(stamp.partition("-")[0]), stamp)

    def size(self, name: str) -> int:
        return self._ask(name).size

    def stamp(self, name: str) -> str:
        return self._ask(name).stamp

    def identity(self, name: str) -> str | None:
        """Return the stamp if its etag is strong; a modification time only has one-second resolution."""
        known = self._ask(name).stamp
        return known if known.endswith('"') and "W/" not in known else None

    def close(self) -> None:
        self._pool.close()

    def _ask(self, name: str) -> Known:
        if name not in self._known:
            self._known[name] = self._get(name, 0, 1)[1]
        return self._known[name]

    def _get(self, name: str, start: int, end: int) -> tuple[bytes, Known]:
        """Return bytes [start, end), clipped to the file, and the file's size and stamp."""
        return persistently(partial(self._get_once, name, start, end), name, self.limits)

    def _get_once(self, name: str, start: int, end: int) -> tuple[bytes, Known]:
        url = name
        for _ in range(MOST_REDIRECTS + 1):
            try:
                answer = self._exchange(url, name, start, end)
            except (OSError, http.client.HTTPException, ValueError) as exc:
                if isinstance(exc, (BadRead, FileNotFoundError)):
                    raise
                kind = Fleeting if may_pass(exc) else BadRead
                raise kind(f"reading {shown(name)} failed: {type(exc).__name__}: {exc}") from exc
            if not isinstance(answer, str):
                return answer
            was, url = urlsplit(url).scheme, urljoin(url, answer)
            if urlsplit(url).scheme not in ("https", was):
                raise BadRead(f"{shown(name)} redirects to {shown(url)}, which is not followed")
        raise BadRead(f"{shown(name)} redirects more than {MOST_REDIRECTS} times")

    def _exchange(self, url: str, name: str, start: int, end: int) -> tuple[bytes, Known] | str:
        """Send one request; return its answer, or the redirect location."""
        pool, place = self._pool.get(), urlsplit(url)
        connection, response = self._send(pool, place, start, end)
        sound = False
        try:
            with response:
                where = response.getheader("Location")
                if response.status in (301, 302, 303, 307, 308) and where is not None:
                    return where
                count, known = judged(response, name, start, end)
                announced = response.length
                if response.status == 206 and announced not in (None, count):  # guard: whole-for-range
                    raise BadRead(
                        f"{shown(name)}: the server announced {announced} bytes where {count:,} are due"
                    )
                data = self._body(response, name, count)
                sound = response.status == 206 and announced is not None and not response.will_close
                return data, known
        finally:
            if sound:
                pool.give(place, connection)
            else:
                connection.close()

    def _send(
        self, pool: Pool, place: SplitResult, start: int, end: int
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Send a request and wait for the response head."""
        connection, kept = pool.take(place, self.timeout_s)
        while True:
            try:
                connection.request("GET", target(place, connection), headers=headers(place, start, end))
                return connection, connection.getresponse()
            except BaseException as exc:
                connection.close()
                if not kept or not isinstance(exc, (ConnectionError, http.client.BadStatusLine)):
                    raise
            connection, kept = pool.connect(place, self.timeout_s), False

    def _body(self, response: http.client.HTTPResponse, name: str, count: int) -> bytes:
        latest_s = self.clock() + self.timeout_s + count / LEAST_BYTES_PER_S
        parts, got = [], 0
        while got < count and (part := response.read1(min(PIECE, count - got))):
            parts.append(part)
            got += len(part)
            if self.clock() > latest_s:
                raise Fleeting(f"{shown(name)}: the server gave {got:,} of {count:,} bytes in time")
        if got < count:  # guard: short-body
            raise Fleeting(f"{shown(name)}: the connection ended after {got:,} of {count:,} bytes")
        if response.length is None and count and response.read1(1):
            raise BadRead(f"{shown(name)}: the server gave more than {count:,} bytes")
        return b"".join(parts)


def judged(response: http.client.HTTPResponse, name: str, start: int, end: int) -> tuple[int, Known]:
    """Return the due body length and the file's facts; raise if the response answers another request."""
    status, said = response.status, response.getheader("Content-Range", "")
    if status in (404, 410):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), shown(name))
    if status == 200:
        raise BadRead(
            f"the server of {shown(name)} ignores byte ranges: it answered with the whole file. Random access needs a server "
            f"that honours the Range header, or a local copy"
        )
    found = RANGE.fullmatch(said.strip())
    if status in (408, 429) or status >= 500:
        busy = Fleeting(f"the server of {shown(name)} answered {status} {response.reason}")
        busy.busy = status in BUSY
        busy.asked_s = retry_after_s(response.getheader("Retry-After"), response.getheader("Date"))
        raise busy
    if status not in (206, 416) or (status == 416 and found is None):
        raise BadRead(f"the server of {shown(name)} answered {status} {response.reason}")
    encoding = response.getheader("Content-Encoding", "identity")
    if found is None or encoding != "identity":
        raise BadRead(
            f"the server of {shown(name)} gave no usable byte range (Content-Range: {said!r}, Content-Encoding: {encoding!r})"
        )
    size = int(found[3])
    known = Known(size, f"{size}-{response.getheader('ETag') or response.getheader('Last-Modified') or ''}")
    if status == 416:
        if start < size:
            raise BadRead(f"the server of {shown(name)} refuses bytes [{start:,}, {end:,}) of {size:,}")
        return 0, known
    # guard: other-range
    if found[1] is None or (int(found[1]), int(found[2])) != (start, min(end, size) - 1):
        raise BadRead(
            f"the server of {shown(name)} was asked for bytes [{start:,}, {end:,}) and gave others (Content-Range: {said!r})"
        )
    return min(end, size) - start, known


def may_pass(exc: BaseException) -> bool:
    """Return whether a retry may succeed after this failure."""
    if isinstance(exc, socket.gaierror):
        return exc.errno == socket.EAI_AGAIN
    cut = (http.client.BadStatusLine, http.client.IncompleteRead, ssl.SSLEOFError)
    lost = isinstance(exc, (ConnectionError, TimeoutError, *cut))
    return lost or getattr(exc, "errno", None) in (errno.ENETUNREACH, errno.EHOSTUNREACH)


# ---- connections


@dataclass(slots=True)
class Pool:
    """Idle connections of one process, longest idle first."""

    most_idle: int = MOST_IDLE
    idle: list[tuple[tuple[str, str], http.client.HTTPConnection]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    context: ssl.SSLContext | None = None

    def take(self, place: SplitResult, timeout_s: float) -> tuple[http.client.HTTPConnection, bool]:
        """Return a connection, and whether it came from the pool."""
        with self.lock:
            for at in range(len(self.idle) - 1, -1, -1):
                if self.idle[at][0] == (place.scheme, place.netloc):
                    return self.idle.pop(at)[1], True
        return self.connect(place, timeout_s), False

    def give(self, place: SplitResult, connection: http.client.HTTPConnection) -> None:
        with self.lock:
            self.idle.append(((place.scheme, place.netloc), connection))
            spare = self.idle[: -self.most_idle]
            del self.idle[: -self.most_idle]
        for _, old in spare:
            old.close()

    def connect(self, place: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
        """Open a connection, through the environment's proxy if one is set."""
        host, port = place.hostname or "", place.port
        proxy = "" if proxy_bypass(host) else getproxies().get(place.scheme, "")
        via = urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else None
        at = (via.hostname or "", via.port) if via else (host, port)
        if place.scheme != "https":
            return http.client.HTTPConnection(*at, timeout=timeout_s)
        self.context = self.context or ssl.create_default_context()
        connection = http.client.HTTPSConnection(*at, timeout=timeout_s, context=self.context)
        if via:
            connection.set_tunnel(host, port, headers=authorization(via, "Proxy-Authorization"))
        return connection

    def close(self) -> None:
        with self.lock:
            for _, connection in self.idle:
                connection.close()
            self.idle.clear()


def target(place: SplitResult, connection: http.client.HTTPConnection) -> str:
    """Return the request target: a path, or the whole URL for a proxy."""
    path = quote(
        place._replace(scheme="", netloc="", fragment="").geturl() or "/", safe="%/:=&?~+!$,;'@()*[]"
    )
    if place.scheme == "http" and connection.host != place.hostname:
        return f"http://{place.netloc.rpartition('@')[2]}{path}"
    return path


def headers(place: SplitResult, start: int, end: int) -> dict[str, str]:
    asked = {"Range": f"bytes={start}-{end - 1}", "Host": place.netloc.rpartition("@")[2]}
    return asked | authorization(place, "Authorization")


def authorization(place: SplitResult, header: str) -> dict[str, str]:
    if place.username is None:
        return {}
    pair = f"{unquote(place.username)}:{unquote(place.password or '')}".encode()
    return {header: "Basic " + base64.b64encode(pair).decode()}
