"""The node process under fault: killed or stopped, it or its services. Nobody waits for ever, and nothing is left."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.errors import NodeUnavailable, ServiceFailed
from penstock.node.job import address
from penstock.node.link import NodeLink
from penstock.node.messages import NodeMsg, pack_open, receive, send
from penstock.node.process import NodeProcess, bound
from tests.fault.programs import fair, is_alive, until
from tests.forks import start as fork
from tests.node_faults import (
    gone,
    heard_last,
    line,
    new_job,
    nodes_end,  # noqa: F401 - a fixture
    open_files,
    program,
    raw,
    served,
    served_or_none,
    stopped,
)
from tests.node_services import attach, config, heard


@pytest.fixture
def job() -> str:
    return new_job()


@pytest.fixture
def link(job: str) -> Iterator[NodeLink]:
    link = attach(job)
    yield link
    link.close()


# ---- kills


def test_a_killed_node_is_noticed_its_services_end_and_the_next_attach_makes_a_new_one(
    job: str, link: NodeLink
) -> None:
    stream = link.open("echo")
    service = heard(stream)["pid"]
    os.kill(link.pid, signal.SIGKILL)
    gone(link.pid, service)
    assert stream.recv(1) == b""
    stream.close()
    until(lambda: not link.alive(), within_s=1.0, why="it is said to be alive")
    with pytest.raises(NodeUnavailable, match=rf"the node process \(pid {link.pid}\) (has ended|is gone)"):
        link.open("echo")
    again = attach(job)
    assert again.pid != link.pid
    assert served(again) != service
    again.close()


def test_a_killed_node_is_made_anew_once_for_all_who_attach_again(job: str, link: NodeLink) -> None:
    os.kill(link.pid, signal.SIGKILL)
    links: list[NodeLink] = []
    threads = [threading.Thread(target=lambda: links.append(attach(job))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.pid for one in links}) == 1
    assert len(links) == 4
    for one in links:
        one.close()


@pytest.mark.parametrize("end", ["killed", "left"])
def test_a_service_that_does_not_look_at_its_socket_ends_with_the_node(end: str, link: NodeLink) -> None:
    with link.open("stubborn") as stream:
        service = heard(stream)["pid"]
    if end == "killed":
        os.kill(link.pid, signal.SIGKILL)
    link.close()
    gone(link.pid, service)


def test_a_killed_service_ends_its_streams_and_is_started_again_when_asked_for(link: NodeLink) -> None:
    stream = link.open("echo")
    service = heard(stream)["pid"]
    os.kill(service, signal.SIGKILL)
    assert stream.recv(1) == b""
    stream.close()
    gone(service)
    again = until(lambda: served_or_none(link), within_s=5.0, why="it is not started again")
    assert again != service
    assert link.alive()


def test_who_waits_for_a_service_that_is_killed_is_told_how_it_ended(link: NodeLink) -> None:
    said: list[str] = []

    def ask() -> None:
        try:
            link.open("deaf")
        except ServiceFailed as exc:
            said.append(str(exc))

    thread = threading.Thread(target=ask)
    thread.start()
    service = until(lambda: child_of(link.pid), within_s=5.0, why="no service was started")
    os.kill(service, signal.SIGKILL)
    thread.join()
    assert said == [f"service 'deaf' does not run: its process (pid {service}) was killed by SIGKILL"]


def child_of(pid: int) -> int | None:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else None


def test_a_service_that_cannot_start_says_why_and_is_not_started_again_and_again(link: NodeLink) -> None:
    with pytest.raises(ServiceFailed, match=r"(?s)exited with code 1:.*RuntimeError: there is no cluster"):
        link.open("broken")
    paused = (
        r"(?s)ended \d times in a row soon after its start and is not started again for [.\d]+ s;.*no cluster"
    )
    said = ""
    for _ in range(5):  # a busy machine may take longer for the next question than the first pauses
        with pytest.raises(ServiceFailed) as told:
            link.open("broken")
        said = str(told.value)
        if re.search(paused, said):
            break
    assert re.search(paused, said)
    assert served(link)  # another service is not meant
    with pytest.raises(ServiceFailed, match=r"(?s)does not run.*has no attribute 'missing'"):
        link.open("missing")


def test_a_service_that_ends_by_itself_is_started_again(link: NodeLink) -> None:
    with link.open("short") as stream:
        first = heard(stream)["pid"]
        assert stream.recv(1) == b""
    gone(first)


def test_a_node_whose_starter_was_killed_meanwhile_is_in_nobodys_way(tmp_path: Path, job: str) -> None:
    slow_start(tmp_path, 0.7)
    call = f"attach({job!r}, first_s=0.5)"
    with program(call, path=str(tmp_path)) as starter:
        until((tmp_path / "begun").exists, within_s=20.0, why="no node was started")
        starter.kill()
        starter.wait()
        orphan = int((tmp_path / "begun").read_text())
    assert is_alive(orphan)
    link = attach(job)  # beside it: one of the two becomes the node
    assert served(link)
    link.close()
    gone(orphan)


def slow_start(folder: Path, pause_s: float) -> None:
    """Have the interpreter of a node process pause before it runs anything of ours."""
    (folder / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "if 'penstock.node.process' in ' '.join(sys.orig_argv):\n"
        f"    with open({str(folder / 'begun-')!r}, 'w') as f: f.write(str(os.getpid()))\n"
        f"    os.rename({str(folder / 'begun-')!r}, {str(folder / 'begun')!r})\n"
        f"    time.sleep({pause_s})\n"
    )


def test_a_start_that_takes_too_long_is_given_up_and_leaves_nothing(
    tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_start(tmp_path, 3.0)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(NodeUnavailable, match="did not start in time"):
        NodeLink.attach(job, 0.5, config=config())


def test_a_fork_while_a_node_is_started_does_not_hold_up_who_starts_it(
    job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its child must not have a copy of the pipe by which the start is awaited."""
    begins, forked, links = threading.Event(), threading.Event(), list[NodeLink]()
    starter = threading.Thread(target=lambda: links.append(attach(job)))
    pipe = os.pipe

    def opened() -> tuple[int, int]:
        ends = pipe()
        if threading.current_thread() is starter:
            begins.set()
            forked.wait(0.5)
        return ends

    monkeypatch.setattr(os, "pipe", opened)
    starter.start()
    assert begins.wait(fair(5.0))
    child = fork(lambda: time.sleep(60.0))
    forked.set()
    starter.join(fair(5.0))
    waits = starter.is_alive()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    starter.join()
    links[0].close()
    assert not waits, "it waits for the child's end"


def test_a_start_that_fails_says_why(tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "resource.py").write_text("raise ImportError('no limits here')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        NodeUnavailable, match=r"(?s)cannot be started: it exited with code 1.*no limits here"
    ):
        attach(job)


def test_the_end_of_its_starters_process_group_is_not_the_nodes(job: str) -> None:
    with program(f"member({job!r})", process_group=0) as starter:
        node = line(starter)["node"]
        link = attach(job)
        assert link.pid == node
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            os.killpg(starter.pid, number)
        starter.wait()
    assert served(link)
    link.close()


def test_signals_to_the_whole_job_do_not_end_the_node(link: NodeLink) -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(link.pid, number)
    assert served(link)


def test_an_attach_in_the_moment_in_which_the_node_ends_makes_a_new_one(job: str) -> None:
    ending = bound(address(job, os.geteuid()))
    assert ending is not None

    def end() -> None:
        ending.accept()[0].close()
        ending.close()

    thread = threading.Thread(target=end)
    thread.start()
    link = attach(job)
    thread.join()
    assert served(link)
    link.close()


def test_a_node_that_fails_tells_its_members_why(job: str) -> None:
    fails = threading.Event()

    def clock() -> float:
        if fails.is_set():
            raise ZeroDivisionError("no time left")
        return time.monotonic()

    listener = bound(address(job, os.geteuid()))
    assert listener is not None
    node = NodeProcess(listener, config(), uid=os.geteuid(), clock=clock)

    def run() -> None:
        with pytest.raises(ZeroDivisionError):
            node.run()

    thread = threading.Thread(target=run)
    thread.start()
    link = NodeLink.attach(job, 40.0)  # its pid is ours
    fails.set()
    with pytest.raises(NodeUnavailable, match=r"(?s)it failed:.*ZeroDivisionError: no time left"):
        link.open("echo")
    thread.join()


def test_last_words_are_heard_though_the_other_side_left_a_message_unread() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    send(here, NodeMsg.OPEN, pack_open("echo", b""))
    send(there, NodeMsg.GOODBYE, b"it failed")
    there.close()
    assert receive(here, fds=1) == (NodeMsg.GOODBYE, b"it failed", [])
    assert receive(here, fds=1) is None
    here.close()


# ---- stops


def test_a_stopped_node_costs_a_deadline_and_is_named(job: str, link: NodeLink) -> None:
    assert served(link)
    with stopped(link.pid):
        for ask in (
            lambda: link.open("echo", within_s=0.5),
            lambda: NodeLink.attach(job, 0.5, config=config()),
        ):
            began = time.monotonic()
            with pytest.raises(NodeUnavailable, match=rf"pid {link.pid}\) does not answer: it is stopped"):
                ask()
            assert time.monotonic() - began < 5.0
        assert not link.alive()  # its late answer would be taken for another one's
    again = attach(job)
    assert again.pid == link.pid
    assert served(again)
    again.close()


def test_a_stopped_service_costs_a_deadline_and_no_other_service(job: str) -> None:
    link = attach(job, open_s=fair(2.0))
    with link.open("stubborn") as stream:
        service = heard(stream)["pid"]
    assert served(link)
    memory = os.memfd_create("words")
    with stopped(service), ExitStack() as others:
        before = len(open_files(link.pid))
        asking = [others.enter_context(raw(job)) for _ in range(3)]
        for sock in asking:
            send(sock, NodeMsg.OPEN, pack_open("stubborn", b""), [memory] * 4)
        assert served(link)
        with pytest.raises(ServiceFailed, match=rf"took no stream in time.*pid {service}.*is stopped"):
            link.open("stubborn", b"", [memory] * 4, within_s=60)
        for sock in asking:
            assert heard_last(sock, wait_for_end=False).kind == NodeMsg.FAILED
            sock.close()
        # One request is on its way to the service, with its socket; of the others nothing is held.
        until(lambda: len(open_files(link.pid)) <= before + 1, within_s=2.0, why="more is held")
        assert link.alive()
    os.close(memory)
    link.close()
    gone(link.pid)


def test_a_stopped_member_holds_up_nobody_and_is_a_member_until_it_dies(job: str, link: NodeLink) -> None:
    with program(f"member({job!r})") as member:
        node = line(member)["node"]
        assert node == link.pid
        with stopped(member.pid):
            assert served(link)
            link.close()
            time.sleep(0.5)
            assert is_alive(node)
            member.kill()
    gone(node)
