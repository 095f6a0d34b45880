"""The client's side of a gateway, for tests."""

from __future__ import annotations

import json
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock.remote.gateway_config import GatewayConfig, gateway_command
from tests.on_ray.cluster import Cluster

STAND_IN = str(Path(__file__).with_name("stand_in.py"))
GATEWAY = "penstock.remote.gateway"
ACTOR = "ray::ChildKeeper"
HOLDER = "penstock.remote.holder"
PATIENCE_S = 90.0
"""A busy machine is no failure."""
TALK = """
import socket, sys
host, port, what = sys.argv[1:]
with socket.create_connection((host, int(port)), 10) as sock:
    sock.sendall(what.encode() + b"\\n")
    print(sock.makefile().readline())
"""


class Driver:
    """A gateway in a host, and what it has said."""

    def __init__(
        self,
        cluster: Cluster,
        *way: str,
        env: Mapping[str, str] | None = None,
        host: str = "h0",
        **config: Any,
    ) -> None:
        config = {"address": cluster.address, "command": (STAND_IN, *way), "connect_s": PATIENCE_S, **config}
        self.cluster = cluster
        self.sock, theirs = socket.socketpair()
        with theirs:
            self.process = cluster.popen(
                host,
                gateway_command(GatewayConfig(**config), theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                env=cluster.environment(env),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self.workers: dict[int, dict[str, Any]] = {}
        self.gone: dict[int, str] = {}
        self.troubles: list[dict[str, Any]] = []
        self.state: dict[str, int] = {}
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with self.sock.makefile("rb") as lines:
            for line in lines:
                self._said.put(json.loads(line))
        self._said.put(None)

    def want(self, workers: int, **more: Any) -> None:
        self.sock.sendall(json.dumps({"want": workers, **more}).encode() + b"\n")

    def until(self, true: Callable[[Driver], object], within_s: float = PATIENCE_S) -> None:
        """Read what the gateway says until `true` holds."""
        deadline = time.monotonic() + within_s
        while not true(self):
            try:
                said = self._said.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"not within {within_s:g} s: {self}") from None
            if said is None:
                assert true(self), f"the gateway ended: {self}"
                return
            self._note(said)

    def _note(self, said: dict[str, Any]) -> None:
        if "worker" in said:
            self.workers[said["worker"]] = said
        elif "gone" in said:
            self.gone[said["gone"]] = said["why"]
            del self.workers[said["gone"]]
        elif "trouble" in said:
            self.troubles.append(said)
        else:
            self.state = said["state"]

    def has(self, workers: int) -> None:
        """Wait until so many workers are there."""
        self.until(lambda driver: len(driver.workers) == workers)

    def fatal(self) -> str:
        """Wait for the reason why the gateway ends."""
        self.until(lambda driver: any(trouble["fatal"] for trouble in driver.troubles))
        self.process.wait(10)
        (found,) = [trouble["trouble"] for trouble in self.troubles if trouble["fatal"]]
        return str(found)

    def complaint(self, part: str) -> str:
        """Wait for a trouble whose text has this part."""
        self.until(lambda driver: any(part in trouble["trouble"] for trouble in driver.troubles))
        return next(str(trouble["trouble"]) for trouble in self.troubles if part in trouble["trouble"])

    def talk(self, worker: int, what: str) -> list[str]:
        """Send a line to a worker, from the head's host; return the words of its answer: key, host name, pid."""
        told = self.workers[worker]
        argv = [sys.executable, "-S", "-c", TALK, told["host"], str(told["port"]), what]
        return self.cluster.run("h0", argv).split()

    def close(self, *, last: bool = True) -> None:
        """Go away: the gateway must end within 5 s, and if it is the last one, all that any has started."""
        if self.sock.fileno() < 0:
            return
        self.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self.sock.close()
        self.process.wait(5.0)
        if last:
            until_gone(self.cluster)

    def __str__(self) -> str:
        return f"workers {self.workers}, gone {self.gone}, troubles {self.troubles}, state {self.state}"


def left(cluster: Cluster) -> dict[str, list[int]]:
    """Return the processes of gateways, actors and children in each host."""
    return {host: cluster.pids(host, f"{GATEWAY}|{ACTOR}|{HOLDER}|{STAND_IN}") for host in cluster.hosts}


def until_gone(cluster: Cluster, within_s: float = 5.0) -> None:
    """Wait until nothing of any gateway is left."""
    deadline = time.monotonic() + within_s
    while any(left(cluster).values()):
        assert time.monotonic() < deadline, f"left behind: {left(cluster)}"
        time.sleep(0.05)
