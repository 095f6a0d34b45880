"""Helpers of the node process's tests: members as programs, raw connections, and what a process has open."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ServiceFailed
from penstock.node.job import address
from penstock.node.link import NodeLink
from penstock.node.messages import NodeMessage, NodeMsg, receive
from tests.fault.programs import ROOT, is_alive, sources, until
from tests.node_services import attached, heard

END_S = 5.0


def new_job() -> str:
    return f"test {uuid.uuid4()}"


def gone(*pids: int) -> None:
    """Wait until these have ended."""
    for pid in pids:
        until(lambda pid=pid: not is_alive(pid), within_s=END_S, why=f"process {pid} is still there")


@contextmanager
def program(call: str, *, path: str = "", **popen: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A bare interpreter that runs a call of `tests.node_services`."""
    places = os.pathsep.join(filter(None, [path, *sources(), str(ROOT)]))
    process = subprocess.Popen(
        [sys.executable, "-c", f"from tests.node_services import *; {call}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": places},
        **popen,
    )
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


def line(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What a member says when it is there."""
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def raw(job: str) -> socket.socket:
    """A connection that keeps no rules; its welcome is read."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(20)
    sock.connect(address(job, os.geteuid()))
    assert heard_last(sock, wait_for_end=False).kind == NodeMsg.WELCOME
    return sock


def heard_last(sock: socket.socket, *, wait_for_end: bool = True) -> NodeMessage:
    """The next message; with `wait_for_end` the last before the connection ends."""
    last = None
    with contextlib.suppress(ConnectionResetError):
        while (message := receive(sock, fds=1)) is not None:
            last = message
            if not wait_for_end:
                break
    return last or NodeMessage(0, b"", [])


def open_files(pid: int) -> list[str]:
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return sorted(found)


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        until(
            lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T",
            within_s=END_S,
            why="it does not stop",
        )
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def served(link: NodeLink) -> int:
    """The pid of the service that answers."""
    with link.open("echo") as stream:
        pid: int = heard(stream)["pid"]
        return pid


def served_or_none(link: NodeLink) -> int | None:
    try:
        return served(link)
    except ServiceFailed:  # asked for before its end was noticed
        return None


@pytest.fixture(autouse=True)
def nodes_end() -> Iterator[None]:
    """Nodes of a test end with it; on a busy machine they need more time than is given to what else is left."""
    attached.clear()
    yield
    gone(*attached)
