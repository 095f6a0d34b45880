"""A process that reads for the cache service: `Readers`, writing into the service's memory. One interpreter reads some thousand samples a second at most.

Rule 1: it writes only where the service has placed a sample, and says so once the bytes are there.
Rule 2: it ends with the service: its end of the socket closes, and the kernel kills it with the thread that started it.
Rule 3: while it works it is heard several times a second. It ends itself if a read hangs.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import select
import socket
import sys
import threading
import time
from typing import Any

from penstock import accel
from penstock.cache.read_jobs import Token
from penstock.cache.readers import Outcome, Readers, StuckRead
from penstock.cache.reading_frames import (
    NOWHERE,
    PLACE,
    ReadMsg,
    pack_failed,
    pack_written,
    split_jobs,
)
from penstock.measure.host import name_process
from penstock.node.service import die_with
from penstock.sources.fetch import keep_memory
from penstock.wire.frames import Channel

BEAT_S = 0.5


class PlaceAnswer:
    """Where a reading thread waits for its sample's place."""

    def __init__(self) -> None:
        self.there = threading.Event()
        self.offset = NOWHERE


class ReadingProcess:
    def __init__(self, channel: Channel, facts: dict[str, Any], memory: memoryview) -> None:
        self._channel, self._memory, self._checks = channel, memory, facts["checks"]
        self._sending = threading.Lock()
        self._answers: dict[int, PlaceAnswer] = {}
        self._places: dict[int, tuple[int, int]] = {}
        """Offset and size of samples that are being written."""
        self._readers = Readers(
            place=self._place,
            done=self._done,
            settings=facts["settings"],
            cwd=facts["cwd"],
            most=facts["most"],
            most_bytes=facts["most_bytes"],
        )
        for name, stamp in facts["stamps"].items():
            self._readers.expect(name, stamp)

    def run(self) -> None:
        """Read until the service is gone."""
        self._send(ReadMsg.READY)
        beat_s = 0.0
        poll = select.poll()
        poll.register(self._channel.sock, select.POLLIN)
        while True:
            frames = self._channel.receive(wait=False) if poll.poll(1000 * BEAT_S) else []
            if frames is None:
                return
            for kind, payload in frames:
                if kind == ReadMsg.PLACED:
                    sample, offset = PLACE.unpack(payload)
                    answer = self._answers.pop(sample)
                    answer.offset = offset
                    answer.there.set()
                elif kind == ReadMsg.JOBS:
                    self._readers.submit_many(split_jobs(payload))
            if time.monotonic() - beat_s >= BEAT_S:
                beat_s = time.monotonic()
                self._send(ReadMsg.BEAT, json.dumps(self._readers.stats()).encode())

    def _send(self, kind: ReadMsg, payload: bytes = b"") -> None:
        try:
            with self._sending:
                self._channel.send(kind, payload)
        except OSError:
            os._exit(0)  # the service is gone

    # ---- in reading threads

    def _place(self, token: Token, nbytes: int) -> memoryview | None:
        assert isinstance(token, int)
        answer = self._answers[token] = PlaceAnswer()
        self._send(ReadMsg.PLACE, PLACE.pack(token, nbytes))
        answer.there.wait()
        if answer.offset == NOWHERE:
            return None
        self._places[token] = answer.offset, nbytes
        return self._memory[answer.offset : answer.offset + nbytes]

    def _done(self, token: Token, outcome: Outcome) -> None:
        assert isinstance(token, int)
        if isinstance(outcome, StuckRead):
            os._exit(1)  # it may still write: its memory is free once it is dead
        offset, nbytes = self._places.pop(token, (0, 0))
        if isinstance(outcome, tuple):
            check = accel.crc32(self._memory[offset : offset + nbytes]) if self._checks else 0
            self._send(ReadMsg.WRITTEN, pack_written(token, check, outcome))
        else:
            self._send(ReadMsg.FAILED, pack_failed(token, outcome))


def main() -> None:
    """Be told what to do by a socket, and map the service's memory."""
    started = json.loads(sys.argv[1])
    die_with(started["parent"])
    faulthandler.enable()
    name_process("penstock reads")
    keep_memory()
    sock, fd = socket.socket(fileno=started["control"]), started["memory"]
    memory = memoryview(mmap.mmap(fd, started["nbytes"]))
    os.close(fd)
    channel = Channel(sock)
    frames = channel.receive()
    if frames:
        (_, payload), *_ = frames
        ReadingProcess(channel, json.loads(payload), memory).run()
    os._exit(0)  # threads may wait in a read, and a normal exit would wait for them
