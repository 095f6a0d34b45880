"""The gateway: the one process that imports Ray. It keeps as many workers on the cluster as its client wants.

It speaks JSON lines over one socket. Client: {"want": n, "cpus": 1, "options": {…}}, as often as it likes; `options` are Ray's for
an actor and hold for actors created from then on. Gateway:

    {"worker": id, "host": ip, "port": p, "key": hex, "fingerprint": hex, "node": hostname}   a worker listens there
    {"gone": id, "why": text}                                             it does so no longer
    {"trouble": text, "fatal": bool}                                      what is wrong and what to do; fatal: the gateway ends
    {"state": {"wanted": n, "queued": n, "starting": n, "running": n, "paused": n, "given_up": n, "head": 0 or 1}}

Rule 1: `fleet` decides, this obeys. Whatever may block (Ray, when its head is gone) runs in other threads.
Rule 2: when the socket closes, everything started here ends within `CLOSING_S`.
Rule 3: when Ray's head is gone, nothing is ended: workers that run go on. Ray would end this process after a minute without a
        word, so it says goodbye and ends itself before.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import select
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock import __version__
from penstock.measure.host import name_process
from penstock.remote import fleet as fleets
from penstock.remote.actors import Actors, Reply
from penstock.remote.fleet import Action, Event, Fleet, on_event
from penstock.remote.gateway_config import GatewayConfig
from penstock.remote.joining import CannotJoin, Joined, join
from penstock.remote.probe import knock

CLOSING_S = 4.0
SEND_S = 5.0
LONGEST_LINE = 1 << 16
KNOCK_EVERY_S = 2.0
START_HERE_S = 120.0
"""Time for a cluster that is started here."""
OPTIONS = frozenset({"label_selector", "memory", "resources", "runtime_env", "scheduling_strategy"})
"""Ray's options of an actor that a client may set."""
TOLD = ("host", "port", "key", "fingerprint", "node")
"""What a client must know of a worker."""


def main() -> None:
    """Run the gateway; its one argument holds its configuration and the number of its socket."""
    facts = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    name_process("penstock gateway")
    config = GatewayConfig(**facts["config"])
    client = Client(socket.socket(fileno=facts["fd"]))
    joined_in_time = threading.Event()
    folder = tempfile.mkdtemp(prefix="penstock-ray-") if config.address == "local" else ""
    threading.Thread(target=_end_early, args=(client, config, joined_in_time, folder), daemon=True).start()
    try:
        joined = join(
            config.address,
            allow_unauthenticated=config.allow_unauthenticated,
            within_s=config.connect_s,
            folder=folder,
        )
    except (CannotJoin, ImportError) as exc:
        joined_in_time.set()
        client.say({"trouble": str(exc), "fatal": True})
        _remove(folder)
        sys.exit(1)
    joined_in_time.set()
    Gateway(config, client, joined).run()
    sys.stdout.flush()
    os._exit(0)  # threads that wait for a dead Ray would hold up the end


def _end_early(client: Client, config: GatewayConfig, joined_in_time: threading.Event, folder: str) -> None:
    """End this process if Ray takes too long, or if the client goes away meanwhile."""
    within_s = START_HERE_S if config.address == "local" else config.connect_s
    deadline = time.monotonic() + within_s + 1.0  # the probe has a deadline of its own
    while not joined_in_time.wait(0.1):
        late = time.monotonic() > deadline
        if late:
            client.say(
                {
                    "trouble": f"Ray did not connect to the cluster at {config.address} within {within_s:g} s: check "
                    f"`ray status` there, and that this machine is a node of it",
                    "fatal": True,
                }
            )
        if late or client.is_gone():
            _remove(folder)
            os._exit(1)


def _remove(folder: str) -> None:
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


class Client:
    """The other end of the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.settimeout(SEND_S)
        self._partial = b""

    def say(self, message: dict[str, Any]) -> bool:
        """Send a line; False if the client is gone or does not read."""
        try:
            self.sock.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def is_gone(self) -> bool:
        poll = select.poll()
        poll.register(self.sock, select.POLLRDHUP)
        return bool(poll.poll(0))

    def lines(self) -> list[bytes] | None:
        """Return the lines that have come; None at the end."""
        try:
            data = self.sock.recv(LONGEST_LINE)
        except OSError:
            return None
        if not data or len(self._partial) > LONGEST_LINE:
            return None
        *whole, self._partial = (self._partial + data).split(b"\n")
        return whole


class Gateway:
    """Obeys the client and `fleet`, in one thread."""

    def __init__(self, config: GatewayConfig, client: Client, joined: Joined) -> None:
        self._config, self._client, self._joined = config, client, joined
        self._fleet = Fleet(
            max_failures=config.max_failures, pause_s=config.pause_s, patience_s=config.patience_s
        )
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._actors = Actors(joined, list(config.command), config.child_start_s, self._post)
        self._options: dict[str, Any] = {"num_cpus": 1, "scheduling_strategy": "SPREAD"}
        self._places: dict[int, Reply] = {}
        """Of each slot: its node's host and name; its child's port, key and fingerprint."""
        self._said: dict[str, Any] = {}
        self._unfit: set[str] = set()
        self._headless_since_s: float | None = None
        self._open, self._farewell = True, False

    def run(self) -> None:
        threading.Thread(target=self._watch_head, daemon=True).start()
        with selectors.DefaultSelector() as selector:
            selector.register(self._client.sock, selectors.EVENT_READ, self._read)
            selector.register(self._woken, selectors.EVENT_READ, self._empty_inbox)
            while self._open:
                self._say_state()
                for key, _ in selector.select(self._wait_s()):
                    key.data()
                self._feed(fleets.FleetTick())
                self._mind_the_head()
        self._client.sock.close()
        if not self._farewell:
            self._actors.close(CLOSING_S)

    def _wait_s(self) -> float | None:
        due = [fleets.next_due_s(self._fleet)]
        if self._headless_since_s is not None:
            due.append(self._headless_since_s + self._config.headless_s)
        known = [at_s for at_s in due if at_s is not None]
        return max(0.0, min(known) - time.monotonic()) if known else None

    def _post(self, chore: Callable[[], None]) -> None:
        """Have `chore` done in the gateway's thread. Called from any thread."""
        self._inbox.put(chore)
        self._wake.send(b"x")

    def _empty_inbox(self) -> None:
        self._woken.recv(4096)
        while not self._inbox.empty():
            self._inbox.get()()

    def _say(self, message: dict[str, Any]) -> None:
        if not self._client.say(message):
            self._open = False

    def _say_state(self) -> None:
        state = {**self._fleet.counts(), "head": int(self._headless_since_s is None)}
        if state != self._said:
            self._said = state
            self._say({"state": state})

    def _read(self) -> None:
        lines = self._client.lines()
        if lines is None:
            self._open = False
            return
        for line in lines:
            self._wanted(line)

    def _wanted(self, line: bytes) -> None:
        try:
            wish = json.loads(line)
            workers, cpus, more = (
                int(wish["want"]),
                float(wish.get("cpus", 1)),
                dict(wish.get("options") or {}),
            )
            if workers < 0 or cpus < 0 or not more.keys() <= OPTIONS:
                raise ValueError("no such number or option")
        except (ValueError, KeyError, TypeError) as exc:
            self._say({"trouble": f"the gateway does not understand {line[:200]!r}: {exc}", "fatal": False})
            return
        self._options = {"num_cpus": cpus, "scheduling_strategy": "SPREAD", **more}
        self._feed(fleets.Want(workers))

    def _feed(self, event: Event) -> None:
        for action in on_event(self._fleet, event, time.monotonic()):
            self._perform(action)

    def _perform(self, action: Action) -> None:
        match action:
            case fleets.Create(slot):
                self._actors.create(slot, self._options, partial(self._arrived, slot))
            case fleets.StartChild(slot):
                place = self._places[slot]
                place["key"] = secrets.token_hex(32)
                settings = {"key": place["key"], "host": place["host"], "tls": self._config.tls}
                self._actors.call(slot, "start", (settings,), partial(self._started, slot))
            case fleets.Destroy(slot):
                self._places.pop(slot, None)
                self._actors.destroy(slot)
            case fleets.Announce(worker, slot):
                place = self._places[slot]
                self._say({"worker": worker, **{name: place[name] for name in TOLD}})
                self._actors.call(slot, "wait", (), partial(self._ended, slot))
            case fleets.Retract(worker, why):
                self._say({"gone": worker, "why": why})
            case fleets.Complain(text):
                self._say({"trouble": text, "fatal": False})
            case fleets.ComplainOfQueue(slots):
                self._actors.free_cpus(partial(self._complain_of_queue, slots))

    def _arrived(self, slot: int, reply: Reply | str) -> None:
        if isinstance(reply, str):
            self._feed(fleets.ActorLost(slot, reply))
            return
        node, found = f"{reply['node']} ({reply['host']})", reply["penstock"]
        if found == __version__:
            self._places[slot] = reply
            self._feed(fleets.Arrived(slot, node))
            return
        there = (
            f"{found} is there"
            if found
            else f"none is there ({reply['trouble']})"
            if reply["trouble"]
            else "none is there"
        )
        text = f"penstock {__version__} is needed on {node}, and {there}: pip install penstock=={__version__} on that node"
        if node not in self._unfit:
            self._unfit.add(node)
            self._say({"trouble": text, "fatal": False})
        self._feed(fleets.ActorLost(slot, text))

    def _started(self, slot: int, reply: Reply | str) -> None:
        if isinstance(reply, str):
            self._feed(fleets.ActorLost(slot, reply))
        elif "failed" in reply:
            self._feed(fleets.Ended(slot, reply["failed"]))
        elif slot in self._places:
            self._places[slot].update(reply)
            self._feed(fleets.Answered(slot))

    def _ended(self, slot: int, reply: Reply | str) -> None:
        if isinstance(reply, str):
            self._feed(fleets.ActorLost(slot, reply))
        else:
            self._feed(fleets.Ended(slot, reply["why"], reply["in_order"]))

    def _complain_of_queue(self, slots: int, reply: Reply | str) -> None:
        text = f"{slots} of {self._fleet.wanted} remote workers are not started after {self._config.patience_s:g} s: "
        if isinstance(reply, str):
            text += f"Ray does not say why ({reply}); check `ray status`"
        elif reply["free"] >= self._options["num_cpus"]:
            more = sorted(self._options.keys() & OPTIONS - {"scheduling_strategy"})
            text += f"{reply['free']:g} of {reply['total']:g} CPUs of the cluster are free, so see {'the options ' + ', '.join(more) + ' and ' if more else ''}`ray status`"
        else:
            text += (
                f"{reply['free']:g} of {reply['total']:g} CPUs of the cluster are free; they start when CPUs become free: add "
                f"nodes, end other jobs there, or ask for fewer workers"
            )
        self._say({"trouble": text, "fatal": False})

    def _watch_head(self) -> None:
        """Knock at Ray's head, in a thread: Ray itself says nothing for a minute."""
        host, _, port = self._joined.head.rpartition(":")
        silences = 0
        while True:
            time.sleep(KNOCK_EVERY_S)
            why = knock(host.strip("[]"), int(port))
            before, silences = silences, silences + 1 if why else 0
            if silences == 2 or (before >= 2 and not why):
                self._post(partial(self._head, why))

    def _head(self, why: str) -> None:
        if not why:
            self._headless_since_s = None
        elif self._headless_since_s is None:
            self._headless_since_s = time.monotonic()
            self._say(
                {
                    "trouble": f"Ray's head at {self._joined.head} does not answer ({why}): no new remote workers start; those "
                    f"that run go on",
                    "fatal": False,
                }
            )

    def _mind_the_head(self) -> None:
        since_s = self._headless_since_s
        if since_s is not None and time.monotonic() - since_s >= self._config.headless_s:
            self._say(
                {
                    "trouble": f"Ray's head at {self._joined.head} has not answered for {self._config.headless_s:g} s: the gateway "
                    f"ends; start it again when the cluster is back",
                    "fatal": True,
                }
            )
            self._open, self._farewell = False, True
