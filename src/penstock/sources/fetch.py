"""The fetch service: a process that reads object stores for all processes of a job on this machine, with obstore.

obstore hangs in a child that was forked after its parent had used it, so it lives here, in a process that is spawned and never forks.

Rule 1: one thread serves one stream; it waits in obstore without the interpreter's lock. (Per read that takes less CPU than obstore's asyncio.)
Rule 2: a read is tried once here. Whoever asked decides on another try: it can wait, count and say so.
Rule 3: an answer has exactly the bytes asked for, of the object asked for, or it is an error (`penstock.sources.objects`).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from penstock.node.service import Openings
from penstock.sources.fetch_frames import (
    HEAD,
    MOST_RANGES,
    PID,
    AskedBytes,
    Fetch,
    StreamLost,
    receive_request,
    send_frame,
)
from penstock.sources.objects import ObjectAnswer, head, time_left_s
from penstock.sources.stores import ObjectStores, Unreadable

LIST_CHUNK = 1000
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES, MOST_KEPT_BYTES = 64 << 20, 4 << 20
"""Free memory that each thread's heap keeps; larger pieces are returned at once."""


class FetchService:
    """Serves streams as they are opened."""

    def __init__(self) -> None:
        import obstore

        self.obstore: Any = obstore
        self.stores: dict[str, ObjectStores] = {}
        """By the settings of those who ask."""
        self.pool = ThreadPoolExecutor(MOST_RANGES, "penstock fetch")
        """For requests of several ranges, all streams together."""

    def serve(self, stream: socket.socket, settings: str, region: mmap.mmap | None) -> None:
        stores = self.stores.setdefault(settings, ObjectStores(json.loads(settings)))
        with stream:
            try:
                stream.sendall(PID.pack(os.getpid()))
                while True:
                    kind, request = receive_request(stream)
                    if kind == Fetch.READ:
                        self.give(stream, json.loads(request), stores, region)
                    else:
                        self.answer(stream, kind, json.loads(request), stores)
            except (OSError, TypeError, ValueError):
                return  # whoever asked has ended or given up, or speaks another language

    def give(self, stream: socket.socket, said: Any, stores: ObjectStores, region: mmap.mmap | None) -> None:
        """Answer a read."""
        if len(said) > MOST_RANGES:
            raise StreamLost(f"{len(said)} ranges were asked for")
        at, room = 0, 0 if region is None else len(region)
        for found in self.read_all([AskedBytes(*one) for one in said], stores):
            if isinstance(found, Unreadable):
                self.refuse(stream, found)
            elif region is not None and at + len(found) <= room:
                region[at : at + len(found)] = found
                at += len(found)
                stream.sendall(HEAD.pack(Fetch.PLACED, len(found)))
            else:
                send_frame(stream, Fetch.BYTES, found)

    def answer(self, stream: socket.socket, kind: int, said: Any, stores: ObjectStores) -> None:
        name, deadline_s = said
        try:
            if kind == Fetch.HEAD:
                send_frame(stream, Fetch.FACTS, json.dumps(head(name, deadline_s, stores)).encode())
            elif kind == Fetch.LIST:
                for names in self.names(name, deadline_s, stores):
                    send_frame(stream, Fetch.NAMES, json.dumps(names).encode())
                send_frame(stream, Fetch.NAMES, b"[]")
            else:
                raise StreamLost(f"a request of kind {kind} is not known")
        except Unreadable as exc:
            self.refuse(stream, exc)

    def refuse(self, stream: socket.socket, why: Unreadable) -> None:
        send_frame(stream, Fetch.ERROR, json.dumps([why.trouble, str(why)]).encode())

    # ---- object stores

    def read_all(self, asked: list[AskedBytes], stores: ObjectStores) -> Iterator[Any]:
        """Yield the bytes of each range, or why there are none; several are read side by side."""
        if len(asked) == 1:
            yield self.read(asked[0], stores)
            return
        reads: list[Future[Any]] = [self.pool.submit(self.read, one, stores) for one in asked]
        try:
            for read in reads:
                yield read.result()
        finally:
            for read in reads:
                read.cancel()

    def read(self, asked: AskedBytes, stores: ObjectStores) -> Any:
        try:
            return ObjectAnswer(asked, stores).bytes()
        except Unreadable as exc:
            return exc

    def names(
        self, name: str, deadline_s: float, stores: ObjectStores
    ) -> Iterator[list[tuple[str, int, str]]]:
        """Yield (key, size, etag) of all objects below a prefix."""
        try:
            store, prefix = stores.of(name, time_left_s(deadline_s))
            for chunk in self.obstore.list(store, prefix or None, chunk_size=LIST_CHUNK):
                if chunk:
                    yield [(one["path"], one["size"], one["e_tag"] or "") for one in chunk]
        except Exception as exc:
            raise stores.trouble(exc, name) from exc
        stores.worked(store)


def keep_memory() -> None:
    """Have the allocator keep what is freed: to return the pages of each answer and to get them again takes longer than to copy it."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        libc.mallopt(M_MMAP_THRESHOLD, MOST_KEPT_BYTES)


def main(openings: Openings) -> None:
    """Serve until the node process ends."""
    keep_memory()
    service = FetchService()
    while (opening := openings.take()) is not None:
        region = None
        for fd in opening.fds:
            region = mmap.mmap(fd, 0)
            os.close(fd)
        of = opening.stream, opening.hello.decode(), region
        threading.Thread(target=service.serve, args=of, daemon=True).start()
    os._exit(0)  # threads wait in obstore, and a normal exit would wait for them
