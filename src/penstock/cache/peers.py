"""Samples between the caches of the machines of a job, over TCP.

Every machine has a port. It asks others for samples (`HomeLink`: a connection and a thread for each), and others ask it (`PeerLink`: two threads for each).
It decides nothing: what happens is posted as an event (`peer_events`), and the service answers by `ask`, `link.give` and `link.refuse`.

Rule 1: it listens on the one address that it is given. Who connects must prove the job's secret, in time; until then it costs a thread at most, and
        of such connections only so many live.
Rule 2: who holds the secret is trusted not to attack, and not to be well: its frames are bounded and checked, its bytes verified, its silence noticed.
Rule 3: nothing here makes an error of a training run. What does not come is read from the source.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

from penstock.cache.peer_events import (
    NotCame,
    PeerCounters,
    PeerEvent,
    PeerLimits,
    PeerRoom,
    PeerSetting,
    end,
)
from penstock.cache.peer_frames import (
    HELLO,
    MAX_NODE,
    VERSION,
    AskedSample,
    BadPeerFrame,
    PeerMsg,
    pack_holds,
)
from penstock.cache.peer_home import HomeLink
from penstock.cache.peer_link import PeerLink, read_message
from penstock.errors import ConfigError
from penstock.remote.handshake import Role, greet, unhexed_key
from penstock.remote.outlet import steady

log = logging.getLogger("penstock")

TICK_S = 0.25
"""Between looks at who is silent."""
PAUSE_S = 1.0
"""A look that is so much too late shows that this process did not run."""
CLOSE_S = 5.0


class PeerPort:
    """One machine's part in it. Thread-safe. Close it before the memory that it sends from."""

    def __init__(
        self,
        host: str,
        secret: str,
        *,
        node: int,
        room: PeerRoom,
        post: Callable[[PeerEvent], None],
        port: int = 0,
        tls: bool = False,
        limits: PeerLimits | None = None,
    ) -> None:
        """Listen on `host`, an IP address of this machine. `secret`: the job's, as `handshake.new_key` makes one. `node`: this machine's number.
        `post` takes events from many threads, and must not wait."""
        if ipaddress.ip_address(host).is_unspecified:  # guard: one-interface
            raise ConfigError(
                f"caches of other machines are listened for on one address of this machine, not on {host}"
            )
        unhexed_key(secret)
        self.limits = limits or PeerLimits()
        self._post_on, self._closed = post, threading.Event()
        self._context: ssl.SSLContext | None = None
        print_ = ""
        if tls:
            from penstock.remote.tls import one_time_certificate

            self._context, print_ = one_time_certificate()
        self._listener = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128
        )
        self.address = f"{host}:{self._listener.getsockname()[1]}{print_ and '#'}{print_}"
        """For `join` on other machines."""
        self._lock = threading.Lock()
        self._homes: dict[int, HomeLink] = {}
        self._links: dict[int, PeerLink] = {}
        self._counters: dict[int, PeerCounters] = {}
        """Of askers."""
        self._strangers: dict[socket.socket, None] = {}
        """Handles of connections that did not prove the secret yet, the oldest first."""
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        os.set_blocking(self._woken, False)
        self._setting = PeerSetting(
            node=node, secret=secret, room=room, post=self._post, wake=self._wake, limits=self.limits
        )
        self._threads = [
            threading.Thread(target=self._listen, name="penstock peers", daemon=True),
            threading.Thread(target=self._watch, name="penstock peers watch", daemon=True),
        ]
        for thread in list(self._threads):
            thread.start()

    def join(self, node: int, address: str) -> None:
        """Ask the machine `node` from now on, once it is reached: `PeerBack` tells."""
        with self._lock:
            if not self._closed.is_set() and node not in self._homes:
                self._homes[node] = HomeLink(node, address, self._setting)

    def ask(self, node: int, scope: bytes, wanted: Sequence[AskedSample], step: int = 0) -> None:
        """Ask a machine for samples, each with its ranges. Does not wait. Of each sample one event tells, `Came` or `NotCame`."""
        home = self._homes.get(node)
        if home is not None:
            home.ask(scope, wanted, step)
        else:
            self._post(NotCame(node, scope, [sample for sample, _ in wanted], "it has not joined"))

    def announce(
        self, scope: bytes, holds: Sequence[int], drops: Sequence[int], *, to: int | None = None
    ) -> None:
        """Tell all other machines what this one holds from now on, and what no more; or tell one (`to`) that it holds just that."""
        frames = pack_holds(scope, holds, drops, anew=to is not None)
        with self._lock:
            homes = [home for node, home in self._homes.items() if to in (None, node)]
        for home in homes:
            home.tell(frames)

    def stats(self) -> dict[int, dict[str, float]]:
        """Return counters by machine: what came from it as a home and went to it as an asker."""
        with self._lock:
            homes, askers = dict(self._homes), dict(self._counters)
        found: dict[int, dict[str, float]] = {}
        for node in sorted({*homes, *askers}):
            both = [asdict(each.counters) for each in (homes.get(node),) if each is not None]
            both += [asdict(askers[node])] if node in askers else []
            found[node] = {name: sum(one[name] for one in both) for name in both[0]}
        return found

    def close(self) -> None:
        """End all connections and threads. No event is posted afterwards, and every `done` was called."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            homes, threads = list(self._homes.values()), list(self._threads)
            for handle in self._strangers:
                end(handle)
            for link in self._links.values():
                link.end()
        end(self._listener)
        self._listener.close()
        for home in homes:
            home.close()
        self._wake()
        threads += [home.thread for home in homes]
        until_s = time.monotonic() + CLOSE_S
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        left = [thread.name for thread in threads if thread.is_alive()]
        if left:
            log.warning("cache: threads for other machines did not end: %s", ", ".join(left))
            return  # they may still use the pipe
        os.close(self._woken)
        os.close(self._waker)

    def _post(self, event: PeerEvent) -> None:
        if not self._closed.is_set():
            self._post_on(event)

    # ---- others that ask

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                sock, _ = self._listener.accept()
                handle = sock.dup()  # TLS takes the other one over
            except OSError:
                self._closed.wait(TICK_S)  # no descriptors left: others may close some
                continue
            thread = threading.Thread(
                target=self._meet, args=(sock, handle), name="penstock peer", daemon=True
            )
            with self._lock:
                if self._closed.is_set():
                    sock.close()
                    handle.close()
                    return
                self._strangers[handle] = None
                if len(self._strangers) > self.limits.strangers:  # guard: peer-strangers
                    oldest = next(iter(self._strangers))
                    del self._strangers[oldest]
                    end(oldest)
                self._threads = [each for each in self._threads if each.is_alive()] + [thread]
                thread.start()

    def _meet(self, sock: socket.socket, handle: socket.socket) -> None:
        """Let one in who knows the secret, and serve it."""
        link: PeerLink | None = None
        inner = sock
        try:
            inner, node = self._greeted(sock)
            with self._lock:
                if handle not in self._strangers or self._closed.is_set():
                    return
                del self._strangers[handle]
                handle.close()
                counters = self._counters.setdefault(node, PeerCounters())
                link = PeerLink(node, inner, self._setting, counters)
                old, self._links[node] = self._links.get(node), link
            if old is not None:  # guard: one-link-per-asker
                old.end()
            link.run()
        except OSError as exc:
            log.debug("cache: a connection from another machine ended: %s", exc)
        finally:
            with self._lock:
                self._strangers.pop(handle, None)
                if link is not None and self._links.get(link.node) is link:
                    del self._links[link.node]
            for each in (inner, sock, handle):
                each.close()

    def _greeted(self, sock: socket.socket) -> tuple[socket.socket, int]:
        """Return what stands for a connection of one who knows the secret, and its number."""
        until_s = time.monotonic() + self.limits.greeting_s
        steady(sock)
        inner = sock
        if self._context is not None:
            from penstock.remote.tls import accept_tls
            from penstock.remote.tunnel import tunnelled

            inner = tunnelled(accept_tls(sock, self._context, within_s=self.limits.greeting_s))
        try:
            left_s = until_s - time.monotonic()
            greet(inner, self._setting.secret, role=Role.HOME, address=self.address, within_s=left_s)
            inner.settimeout(max(0.01, until_s - time.monotonic()))
            kind, _, payload = read_message(inner)
            if kind != PeerMsg.HELLO:
                raise BadPeerFrame("it did not say who it is")
            version, asker, home = HELLO.unpack(payload)
            if (version, home) != (VERSION, self._setting.node) or asker >= MAX_NODE:  # guard: peer-hello
                raise BadPeerFrame(f"it speaks version {version} to machine {home}")
            inner.settimeout(None)
        except BaseException:
            inner.close()
            raise
        return inner, asker

    # ---- the watch

    def _watch(self) -> None:
        """Send what could not be sent at once, and give up who is silent."""
        last_s = time.monotonic()
        while not self._closed.is_set():
            with self._lock:
                homes, links = list(self._homes.values()), list(self._links.values())
            poll = select.poll()
            poll.register(self._woken, select.POLLIN)
            for home in homes:
                fd = home.unsent()
                if fd is not None:
                    poll.register(fd, select.POLLOUT)
            ready = poll.poll(1000 * TICK_S)
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 4096)
            if ready:
                for home in homes:
                    home.flush()
            now_s = time.monotonic()
            if now_s - last_s < TICK_S:
                continue
            paused, last_s = now_s - last_s > TICK_S + PAUSE_S, now_s
            for home in homes:
                home.check(now_s, paused=paused)
            for link in links:
                link.check(now_s, paused=paused)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b".")
