"""The node process among strangers: other users, nonsense, floods. Its members do not notice."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from penstock.errors import NodeUnavailable
from penstock.node import link as client
from penstock.node.job import address
from penstock.node.link import NodeLink
from penstock.node.messages import MAX_FDS, MAX_HELLO, MAX_MESSAGE, NodeMsg, pack_open, send
from penstock.node.process import NodeProcess, bound
from tests.fault.programs import until
from tests.node_faults import (
    cpu_ticks,
    heard_last,
    new_job,
    nodes_end,  # noqa: F401 - a fixture
    open_files,
    raw,
    served,
    served_or_none,
    stopped,
)
from tests.node_services import attach, config

STRANGER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def job() -> str:
    return new_job()


@pytest.fixture
def link(job: str) -> Iterator[NodeLink]:
    link = attach(job)
    yield link
    link.close()


# ---- strangers


def test_a_process_of_another_user_is_refused(job: str) -> None:
    listener = bound(address(job, os.geteuid()))
    assert listener is not None
    node = NodeProcess(listener, config(first_s=2.0), uid=os.geteuid() + 1)
    thread = threading.Thread(target=node.run)
    thread.start()
    with pytest.raises(NodeUnavailable, match="it was about to end"):
        NodeLink.attach(job, 0.3)
    thread.join()


def test_a_node_of_another_user_is_not_trusted(job: str, link: NodeLink) -> None:
    with pytest.raises(NodeUnavailable, match=f"process {link.pid} of user {os.geteuid()} holds the address"):
        client.connect(address(job, os.geteuid()), os.geteuid() + 1, time.monotonic() + 5)


def as_stranger(where: str) -> str:
    """What a process of another user is told at this address."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setuid(STRANGER)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(5)
        try:
            sock.connect(where)
            os.write(write, b"connected " + sock.recv(100))
        except OSError as exc:
            os.write(write, str(exc).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    said = os.read(read, 1000).decode()
    os.close(read)
    return said


@as_root
def test_another_user_who_knows_the_address_gets_nothing(job: str, link: NodeLink) -> None:
    before = open_files(link.pid)
    assert as_stranger(address(job, os.geteuid())) == "connected "
    assert served(link)
    until(lambda: len(open_files(link.pid)) <= len(before) + 3, within_s=2.0, why="it is a member")


@as_root
def test_an_address_that_another_user_holds_is_told(job: str) -> None:
    ready, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setuid(STRANGER)
        held = bound(address(job, 0))
        os.write(write, b"." if held else b"!")
        time.sleep(600)
    os.read(ready, 1)
    with pytest.raises(NodeUnavailable, match=f"process {pid} of user {STRANGER} holds the address"):
        NodeLink.attach(job, 2.0, config=config())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(ready)
    os.close(write)


# ---- nonsense


NONSENSE = {
    "nothing": b"",
    "one byte": b"\x01",
    "half a name": b"\x01\x09ech",
    "a name of none": b"\x01\x00echo",
    "a long name": b"\x01\xff" + b"x" * 300,
    "another kind": b"\x63echo",
    "a node's word": bytes([NodeMsg.OPENED]),
    "noise": bytes(range(255, 100, -1)) * 20,
    "too much": bytes([NodeMsg.OPEN]) + pack_open("echo", b"x" * MAX_HELLO) + b"x" * 100,
    "far too much": bytes([NodeMsg.OPEN]) + pack_open("echo", b"x" * (2 * MAX_MESSAGE)),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_who_sends_nonsense_is_dropped_and_nobody_else_notices(what: str, job: str, link: NodeLink) -> None:
    assert served(link)
    before = len(open_files(link.pid))
    with raw(job) as sock:
        sock.send(NONSENSE[what])
        last = heard_last(sock)
    assert last.kind == (0 if what == "nothing" else NodeMsg.GOODBYE)
    assert served(link)
    until(lambda: len(open_files(link.pid)) <= before, within_s=2.0, why="something is still open")


def test_too_many_descriptors_are_dropped_with_their_sender(job: str, link: NodeLink) -> None:
    assert served(link)
    before = len(open_files(link.pid))
    memory = os.memfd_create("words")
    with raw(job) as sock:
        send(sock, NodeMsg.OPEN, pack_open("echo", b""), [memory] * (MAX_FDS + 5))
        last = heard_last(sock)
    assert b"over the limit of 65536 bytes or 16 descriptors" in last.payload
    with raw(job) as sock:  # and those of a request that makes no sense
        send(sock, NodeMsg.OPEN, b"", [memory] * MAX_FDS)
        assert b"names none" in heard_last(sock).payload
    os.close(memory)
    assert served(link)
    until(lambda: len(open_files(link.pid)) <= before, within_s=2.0, why="descriptors are still open")


def test_a_second_request_before_the_answer_to_the_first_is_nonsense(job: str, link: NodeLink) -> None:
    with raw(job) as sock:
        for _ in range(2):
            send(sock, NodeMsg.OPEN, pack_open("deaf", b""))
        assert b"is not expected now" in heard_last(sock).payload
    assert served(link)


def test_who_asks_and_never_reads_holds_up_nobody(job: str, link: NodeLink) -> None:
    with raw(job) as sock:
        sock.settimeout(1.0)
        with contextlib.suppress(OSError):  # dropped; or, if nobody reads what we send, our time is up
            while True:
                send(sock, NodeMsg.OPEN, pack_open("unknown", b""))
        link_answers = attach(job)
        assert served(link_answers)
        link_answers.close()


def test_more_connections_than_descriptors_are_waited_for_without_haste(job: str, link: NodeLink) -> None:
    assert served(link)
    room = len(open_files(link.pid)) + 3
    _, most = resource.prlimit(link.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(link.pid, resource.RLIMIT_NOFILE, (room, most))
    crowd = []
    for _ in range(10):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(address(job, os.geteuid()))
        crowd.append(sock)
    before = cpu_ticks(link.pid)
    time.sleep(1.5)
    assert cpu_ticks(link.pid) - before < 5  # hundredths of a second: it tries ten times
    for sock in crowd:
        sock.close()
    until(lambda: served_or_none(link), within_s=5.0, why="it has no descriptors")
    late = attach(job)
    assert late.pid == link.pid
    late.close()


def test_an_attach_that_another_process_stops_in_the_middle_is_no_member(job: str, link: NodeLink) -> None:
    """Connections that end before they are accepted leave nothing."""
    assert served(link)
    before = len(open_files(link.pid))
    with stopped(link.pid):
        for _ in range(20):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                sock.connect(address(job, os.geteuid()))
    assert served(link)
    until(lambda: len(open_files(link.pid)) <= before, within_s=2.0, why="something is still open")
