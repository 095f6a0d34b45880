"""Samples of another machine's cache beside a bare loop: scripts/bench cache_peers [--samples N] [--out JSON]

One process sends from a memory file, one receives into another, over a loopback connection. Sizes are spread as those of photos, about 110 KB; a round
brings every sample once with each subject, in requests of `--task` samples, the subjects taking turns to be first. Counted is CPU time of either process.
Ratios are taken inside a round.

*bare*: 8 bytes per request one way; `os.sendfile` of each sample's bytes; `recv_into` of each, into a memory file too, and its crc32. Sizes are known beforehand.
*peers*: `PeerPort` on both sides with the memory tier: the requests as JSON with each sample's range, heads, checksums, reservations, leases, events.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import queue
import random
import signal
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from _machine import describe

from penstock.accel import crc32
from penstock.cache.keys import sample_key, scope_of
from penstock.cache.memory import MemoryTier
from penstock.cache.peer_events import Came, PeerBack, PeerEvent, PeerWants
from penstock.cache.peers import PeerPort
from penstock.remote.handshake import new_key
from penstock.wire.arena import anonymous_file

ROOT = Path(__file__).resolve().parent.parent
SCOPE = scope_of("benchmark")
MEAN, SPREAD = 11.45, 0.55
"""Of the logarithm of a size: 110 KB on average."""
Bring = Callable[[Sequence[int]], None]


def size_of(sample: int) -> int:
    return min(1 << 20, max(2_000, int(random.Random(sample).lognormvariate(MEAN, SPREAD))))


def filled(samples: int) -> MemoryTier:
    tier = MemoryTier(2 * sum(map(size_of, range(samples))) + (64 << 20))
    for sample in range(samples):
        view = tier.reserve(sample_key(SCOPE, sample), size_of(sample))
        assert view is not None
        view[:] = random.Random(sample).randbytes(size_of(sample))
        tier.commit(sample_key(SCOPE, sample))
    return tier


class Sender:
    """The other machine: a process that serves both subjects."""

    def __init__(self, samples: int, secret: str) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.bare_address = listener.getsockname()
        told, tells = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            tier = filled(samples)
            port = PeerPort(
                "127.0.0.1", secret, node=1, room=tier, post=lambda event: self.answer(tier, event)
            )
            os.write(tells, port.address.encode())
            self.serve_bare(listener, tier, samples)
        listener.close()
        self.address = os.read(told, 100).decode()

    @staticmethod
    def answer(tier: MemoryTier, event: PeerEvent) -> None:
        """Serve a sample as the service does: lease its bytes, send them, and end the lease once they are received."""
        if not isinstance(event, PeerWants):
            return
        for sample, _ in event.samples:
            key, owner = sample_key(event.scope, sample), object()
            (place,) = tier.lookup([key], owner)
            assert place is not None
            over = partial(tier.leave, owner)
            check = tier.check_of(key) or 0
            event.link.give(event.scope, sample, (place.size,), check, tier.fd, place.offset, over)

    @staticmethod
    def serve_bare(listener: socket.socket, tier: MemoryTier, samples: int) -> None:
        places = [
            place for place in tier.lookup([sample_key(SCOPE, n) for n in range(samples)], None) if place
        ]
        sock, _ = listener.accept()
        while request := sock.recv(8, socket.MSG_WAITALL):
            first, count = request[:4], request[4:]
            at = int.from_bytes(first, "little")
            for offset, size in places[at : at + int.from_bytes(count, "little")]:
                sent = 0
                while sent < size:
                    sent += os.sendfile(sock.fileno(), tier.fd, offset + sent, size - sent)
        os._exit(0)

    def cpu_s(self) -> float:
        """CPU time of all its threads."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def bare(sender: Sender, samples: int) -> Bring:
    sock = socket.create_connection(sender.bare_address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sizes = [size_of(sample) for sample in range(samples)]
    starts = [sum(sizes[:sample]) for sample in range(samples)]
    file = anonymous_file()
    os.ftruncate(file, sum(sizes))
    room = memoryview(mmap.mmap(file, sum(sizes)))

    def bring(some: Sequence[int]) -> None:
        sock.sendall(some[0].to_bytes(4, "little") + len(some).to_bytes(4, "little"))
        for sample in some:
            part = room[starts[sample] : starts[sample] + sizes[sample]]
            got = 0
            while got < len(part):
                got += sock.recv_into(part[got:])
            crc32(part)

    return bring


def peers(sender: Sender, samples: int, secret: str) -> tuple[Bring, Callable[[], None]]:
    tier = MemoryTier(2 * sum(map(size_of, range(samples))) + (64 << 20))
    events: queue.SimpleQueue[PeerEvent] = queue.SimpleQueue()
    port = PeerPort("127.0.0.1", secret, node=0, room=tier, post=events.put)
    port.join(1, sender.address)
    assert isinstance(events.get(timeout=10.0), PeerBack)
    ranges = [[(f"/data/train/n0144{n % 1000:04}/n0144{n}.JPEG", 0, size_of(n))] for n in range(samples)]

    def bring(some: Sequence[int]) -> None:
        port.ask(1, SCOPE, [(sample, ranges[sample]) for sample in some])
        for _ in some:
            event = events.get(timeout=10.0)
            assert isinstance(event, Came), event

    def forget() -> None:
        for sample in range(samples):
            tier.evict(sample_key(SCOPE, sample))

    return bring, forget


def measured(asked: argparse.Namespace) -> dict[str, list[float]]:
    """CPU microseconds per sample of each side, and samples per second, of each round."""
    secret = new_key()
    sender = Sender(asked.samples, secret)
    try:
        over_peers, forget = peers(sender, asked.samples, secret)
        subjects: dict[str, Bring] = {"bare": bare(sender, asked.samples), "peers": over_peers}
        found: dict[str, list[float]] = {}
        for turn in range(asked.rounds + 1):
            for name in list(subjects)[:: 1 if turn % 2 else -1]:
                mine_s, theirs_s, began_s = time.process_time(), sender.cpu_s(), time.monotonic()
                for at in range(0, asked.samples, asked.task):
                    subjects[name](range(at, min(at + asked.task, asked.samples)))
                spent = {
                    "asker us": 1e6 * (time.process_time() - mine_s) / asked.samples,
                    "home us": 1e6 * (sender.cpu_s() - theirs_s) / asked.samples,
                    "per s": asked.samples / (time.monotonic() - began_s),
                }
                forget()
                if turn:  # the first round warms everything up
                    for figure, value in spent.items():
                        found.setdefault(f"{name} {figure}", []).append(value)
        return found
    finally:
        os.kill(sender.pid, signal.SIGKILL)
        os.waitpid(sender.pid, 0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=1600)
    parser.add_argument("--task", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    found = measured(asked)
    for name in ("bare", "peers"):
        found[f"{name} both us"] = [
            sum(pair) for pair in zip(found[f"{name} asker us"], found[f"{name} home us"], strict=True)
        ]
    ratios = {
        figure: [
            mine / theirs
            for mine, theirs in zip(found[f"peers {figure}"], found[f"bare {figure}"], strict=True)
        ]
        for figure in ("asker us", "home us", "both us", "per s")
    }
    print(f"{'':18} median (least-most)")
    for name, values in sorted(found.items()):
        print(f"{name:18} {statistics.median(values):9.1f} ({min(values):.1f}-{max(values):.1f})")
    for name, values in ratios.items():
        print(f"ratio {name:12} {statistics.median(values):9.2f} ({min(values):.2f}-{max(values):.2f})")
    facts = describe(ROOT)
    print("\n" + ", ".join(f"{name} {value}" for name, value in facts.items()))
    if asked.out:
        asked.out.write_text(json.dumps({"figures": found, "ratios": ratios, **facts}, indent=1))


if __name__ == "__main__":
    main()
