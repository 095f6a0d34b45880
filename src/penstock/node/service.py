"""A service's own process: what it runs, and how it is given streams."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import socket
import sys
from importlib import import_module
from typing import NamedTuple

from penstock.measure.host import name_process
from penstock.node.messages import MAX_FDS, NodeMsg, receive, send

PR_SET_PDEATHSIG = 1


class Opening(NamedTuple):
    """A stream that somebody opened, now the service's to close, like the descriptors."""

    stream: socket.socket
    hello: bytes
    fds: list[int]


class Openings:
    """Streams as they are opened. Readable when there is one to take, or the node is gone."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def fileno(self) -> int:
        return self._control.fileno()

    def take(self) -> Opening | None:
        """Wait for the next stream; None: the node has ended or ends, and so must this process."""
        try:
            message = receive(self._control, fds=1 + MAX_FDS)
        except ConnectionResetError:
            message = None
        if message is None:
            return None
        stream, *fds = message.fds
        with contextlib.suppress(BrokenPipeError):  # the next call tells that the node is gone
            send(self._control, NodeMsg.TAKEN)
        return Opening(socket.socket(fileno=stream), message.payload, fds)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the node ends, in case it does not look at its socket."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # guard: service-lifeline
    if os.getppid() != parent:
        os._exit(1)  # it had ended before


def main() -> None:
    """Run one service until the node is gone."""
    facts = json.loads(sys.argv[1])
    die_with(facts["parent"])
    faulthandler.enable()
    name_process(f"penstock {facts['name']}")
    control = socket.socket(fileno=facts["control"])
    os.set_inheritable(control.fileno(), False)
    module, _, function = facts["run"].partition(":")
    with control:
        getattr(import_module(module), function)(Openings(control))
