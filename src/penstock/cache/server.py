"""The service's side of the cache: it leases places of the memory tier to clients. One thread; fetchers of the same process write beside it.

Rule 1: a client that is gone holds nothing: its leases end with its stream.
Rule 2: a client that does not read its answers delays no other client; its requests wait until it does. A client that sends an invalid message is
        dropped.
"""

from __future__ import annotations

import json
import logging
import os
import selectors

from penstock.cache.memory import MemoryTier
from penstock.cache.messages import (
    MAX_REQUEST,
    READ_BYTES,
    VERSION,
    WELCOME,
    BadRequest,
    CacheMsg,
    pack_places,
    split_lookup,
)
from penstock.node.messages import NodeMsg, close_all, send
from penstock.node.service import Opening, Openings
from penstock.wire.frames import Channel

log = logging.getLogger(__name__)


class CacheServer:
    """Serves one memory tier. The tier belongs to its caller."""

    def __init__(self, tier: MemoryTier) -> None:
        self._tier = tier
        self._selector = selectors.DefaultSelector()
        self._clients: set[Channel] = set()

    def run(self, openings: Openings) -> None:
        """Serve streams as they are opened, until the node is gone."""
        with self._selector:
            self._selector.register(openings, selectors.EVENT_READ)
            try:
                while self._step(openings):
                    pass
            finally:
                for client in list(self._clients):
                    self._drop(client)

    def _step(self, openings: Openings) -> bool:
        for ready, _ in self._selector.select():
            if ready.data is not None:
                self._serve(ready.data)
                continue
            opening = openings.take()
            if opening is None:
                return False
            self._welcome(opening)
        return True

    def _welcome(self, opening: Opening) -> None:
        close_all(opening.fds)
        client = Channel(opening.stream, MAX_REQUEST)
        client.read_bytes = READ_BYTES
        try:
            fd = self._tier.open_for_reading()
            try:
                send(opening.stream, NodeMsg.WELCOME, WELCOME.pack(VERSION, self._tier.size), [fd])
            finally:
                os.close(fd)
        except OSError as exc:  # it is gone already, or there is no descriptor left
            log.debug("a client of the cache was not welcomed: %s", exc)
            client.close()
            return
        opening.stream.setblocking(False)
        self._clients.add(client)
        self._selector.register(client, selectors.EVENT_READ, client)

    def _serve(self, client: Channel) -> None:
        """Answer a client, or send it more of its answers (Rule 2)."""
        was_clogged = client.clogged
        try:
            if client.flush():
                frames = client.receive(wait=False)
                if frames is None:
                    self._drop(client)
                    return
                for kind, payload in frames:
                    self._answer(client, kind, payload)
        except (OSError, ValueError) as exc:  # guard: cache-nonsense
            log.warning("cache: a client is dropped: %s", exc)
            self._drop(client)
            return
        if client.clogged != was_clogged:
            wanted = selectors.EVENT_WRITE if client.clogged else selectors.EVENT_READ
            self._selector.modify(client, wanted, client)

    def _answer(self, client: Channel, kind: int, payload: bytes) -> None:
        released, keys = split_lookup(payload)
        self._tier.release(released, client)
        if kind == CacheMsg.LOOKUP:
            client.post(CacheMsg.FOUND, pack_places(self._tier.lookup(keys, client)))
        elif kind == CacheMsg.STATS:
            client.post(CacheMsg.STATED, json.dumps(self._tier.stats()).encode())
        elif kind != CacheMsg.RELEASE:
            raise BadRequest(f"a message has kind {kind}")

    def _drop(self, client: Channel) -> None:
        self._clients.discard(client)
        self._selector.unregister(client)
        client.close()
        self._tier.leave(client)  # guard: leases-of-the-dead
