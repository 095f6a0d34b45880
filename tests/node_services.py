"""Services and members of a node process, for its tests. Imported by bare interpreters: nothing heavy here."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from typing import Any

from penstock.node.config import NodeConfig
from penstock.node.link import NodeLink
from penstock.node.service import Openings

SERVICES = {
    name: f"tests.node_services:{name}" for name in ("echo", "stubborn", "deaf", "broken", "missing", "short")
}


attached: list[int] = []
"""Nodes that this process has known."""


def config(**times: float) -> NodeConfig:
    return NodeConfig(**{"services": SERVICES, "linger_s": 0.2, **times})  # type: ignore[arg-type]


def attach(job: str | None = None, **times: float) -> NodeLink:
    """With patience: the machine may be busy with other tests."""
    link = NodeLink.attach(job, 40.0, config=config(**times))
    attached.append(link.pid)
    return link


# ---- services


def echo(openings: Openings) -> None:
    """Says what it was given, and holds each stream."""
    held: list[socket.socket] = []
    while (opening := openings.take()) is not None:
        facts = {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "hello": opening.hello.decode(),
            "fds": [os.pread(fd, 64, 0).decode() for fd in opening.fds],
            "inherited": [fd for fd in opening.fds if os.get_inheritable(fd)],
        }
        with contextlib.suppress(BrokenPipeError):  # the caller may have left
            opening.stream.sendall(json.dumps(facts).encode() + b"\n")
        for fd in opening.fds:
            os.close(fd)
        held.append(opening.stream)


def stubborn(openings: Openings) -> None:
    """Does not notice that the node ends."""
    opening = openings.take()
    assert opening is not None
    opening.stream.sendall(json.dumps({"pid": os.getpid()}).encode() + b"\n")
    time.sleep(600)


def deaf(openings: Openings) -> None:
    """Takes nothing."""
    time.sleep(600)


def broken(openings: Openings) -> None:
    raise RuntimeError("there is no cluster")


def short(openings: Openings) -> None:
    """Ends after its first stream."""
    opening = openings.take()
    assert opening is not None
    opening.stream.sendall(json.dumps({"pid": os.getpid()}).encode() + b"\n")
    sys.exit(7)


def heard(stream: socket.socket) -> dict[str, Any]:
    """What such a service says first."""
    stream.settimeout(20)
    data = b""
    while not data.endswith(b"\n"):
        chunk = stream.recv(1 << 17)
        assert chunk, "the service is gone"
        data += chunk
    found: dict[str, Any] = json.loads(data)
    return found


# ---- members


def member(job: str) -> None:
    """A program: attach, say who serves us, stay until standard input ends."""
    link = attach(job)
    with link.open("echo") as stream:
        print(json.dumps({"node": link.pid, "service": heard(stream)["pid"]}), flush=True)
        sys.stdin.read()
    link.close()


def forker(job: str) -> None:
    """A program: attach, fork a child that lives on, and end."""
    link = attach(job)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            link.open("echo")
            said = "opened"
        except Exception as exc:
            said = f"{type(exc).__name__}: {exc}"
        os.write(write, json.dumps({"alive": link.alive(), "said": said}).encode())
        os.close(write)
        os.close(1)
        time.sleep(600)
        os._exit(0)
    os.close(write)
    facts = json.loads(os.read(read, 1 << 12))
    print(json.dumps({"node": link.pid, "child": pid, **facts}), flush=True)
    os._exit(0)
