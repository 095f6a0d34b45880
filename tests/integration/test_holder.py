"""The process that holds a remote worker's child on its node, without Ray: it ends the child with the actor, unless the head is gone too."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

STAND_IN = str(Path(__file__).parents[1] / "on_ray" / "stand_in.py")
SRC = str(Path(__file__).parents[2] / "src")


class Actor:
    """What an actor does with a holder."""

    def __init__(self, head: str, *way: str, start_s: float = 30.0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock.remote.holder"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": SRC},
        )
        facts = {"command": [STAND_IN, *way], "settings": {"key": "abc", "host": "127.0.0.1"}}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({**facts, "start_s": start_s, "head": head}).encode() + b"\n")
        self.process.stdin.flush()
        assert self.process.wait(30) == 0  # the holder has left us

    def hears(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def dies(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def head() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def name(listener: socket.socket) -> str:
    host, port = listener.getsockname()
    return f"{host}:{port}"


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as sock:
            sock.sendall(b"ping\n")
            return sock.makefile().readline().startswith("abc ")
    except OSError:
        return False


def until_silent(port: int, within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while answers(port):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_child_ends_when_the_actor_says_stop(head: socket.socket) -> None:
    actor = Actor(name(head))
    port = actor.hears()["port"]
    assert answers(port)
    assert actor.process.stdin is not None
    actor.process.stdin.write(b"stop\n")
    actor.process.stdin.flush()
    assert actor.hears() == {"why": "it ended with exit code 0", "in_order": True}
    assert not answers(port)
    actor.close()


def test_a_child_ends_with_its_actor_while_the_head_answers(head: socket.socket) -> None:
    actor = Actor(name(head))
    port = actor.hears()["port"]
    actor.dies()
    until_silent(port)
    actor.close()


def test_a_child_goes_on_without_actor_and_head_until_the_head_is_back(head: socket.socket) -> None:
    place = head.getsockname()
    head.close()
    actor = Actor(f"{place[0]}:{place[1]}")
    port = actor.hears()["port"]
    actor.dies()
    time.sleep(1.0)
    assert answers(port)
    with socket.create_server(place):
        until_silent(port)
    actor.close()


@pytest.mark.parametrize(
    ("way", "why"),
    [
        ("broken", "it ended with exit code 1; its last words: stand-in: broken as asked"),
        ("mute", "it did not say its port within 1 s"),
    ],
)
def test_a_child_that_does_not_start_says_why(head: socket.socket, way: str, why: str) -> None:
    actor = Actor(name(head), way, start_s=1.0 if way == "mute" else 30.0)
    assert actor.hears() == {"failed": why}
    actor.close()
