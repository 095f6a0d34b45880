"""The ferry's side of a gateway: it says how many workers are wanted, and hears where they listen."""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from penstock.remote.connect import WorkerAddress
from penstock.remote.gateway_config import GatewayConfig, exec_gateway

LONGEST_LINE = 1 << 20
END_S = 5.0


class Hire:
    """Workers of one cluster."""

    def __init__(
        self,
        config: GatewayConfig,
        selector: selectors.BaseSelector,
        found: Callable[[WorkerAddress], None],
        warn: Callable[[str], None],
        actors: Mapping[str, Any],
    ) -> None:
        """`actors`: CPUs and Ray's options of each worker's actor."""
        self._actors = actors
        self._config, self._selector, self._found, self._warn = config, selector, found, warn
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._data = b""
        self.wanted = 0
        self.state: dict[str, Any] = {}
        """The gateway's last account of its workers."""

    def want(self, workers: int) -> None:
        """Ask for so many workers in all. Starts the gateway when some are wanted; one that has ended is started again only here."""
        if self._sock is None and workers:
            self._start()
        if self._sock is not None and workers != self.wanted:
            self._say({"want": workers, **self._actors})
        self.wanted = workers

    def _start(self) -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            self._process, self._sock = exec_gateway(self._config, output=null)
        finally:
            os.close(null)
        self.wanted, self._data = 0, b""
        self._sock.setblocking(False)
        self._selector.register(self._sock, selectors.EVENT_READ, lambda _: self._on_ready())

    def _say(self, message: dict[str, Any]) -> None:
        assert self._sock is not None
        try:
            # A line is small: it fits, or the gateway is stuck.
            self._sock.send(json.dumps(message).encode() + b"\n")
        except OSError:
            self._lose()

    def _on_ready(self) -> None:
        assert self._sock is not None
        try:
            chunk = self._sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        self._data += chunk
        *lines, self._data = self._data.split(b"\n")
        for line in lines:
            self._on_message(json.loads(line))
        if not chunk or len(self._data) > LONGEST_LINE:
            self._lose()

    def _on_message(self, message: dict[str, Any]) -> None:
        if "worker" in message:
            self._worker(WorkerAddress(*(message[name] for name in ("host", "port", "key", "fingerprint"))))
        elif "trouble" in message:
            self._warn(f"remote workers: {message['trouble']}")
        elif "state" in message:
            self.state = message["state"]

    def _worker(self, address: WorkerAddress) -> None:
        if self._config.tls and not address.fingerprint:  # guard: tls-or-nothing
            self._warn(f"the remote worker at {address.place} is not used: it does not speak TLS")
        else:
            self._found(address)

    def _lose(self) -> None:
        """The gateway has ended: there are no new workers, and those that are there go on."""
        if self._sock is not None:
            self._selector.unregister(self._sock)
            self._sock.close()
            self._sock = None
        if self._process is not None:
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        self.wanted, self.state = 0, {}

    def close(self) -> None:
        self._lose()
