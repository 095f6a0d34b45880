"""One node process for all training processes of a job: shared, passed descriptors, gone with the last."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import ExitStack

import pytest

from penstock.errors import NodeUnavailable, ServiceFailed
from penstock.node import link as client
from penstock.node.job import address
from penstock.node.link import NodeLink, TryAgain
from penstock.node.messages import MAX_FDS, MAX_HELLO
from penstock.node.process import bound
from tests.fault.programs import is_alive
from tests.node_faults import gone, line, new_job, nodes_end, open_files, program  # noqa: F401 - a fixture
from tests.node_services import attach, config, heard

RANKS = 8


def test_ranks_that_attach_at_once_share_one_node_and_its_services() -> None:
    job = new_job()
    with ExitStack() as ranks:
        members = [ranks.enter_context(program(f"member({job!r})")) for _ in range(RANKS)]
        said = [line(member) for member in members]
        assert len({one["node"] for one in said}) == 1
        assert len({one["service"] for one in said}) == 1
        for member in members[1:]:
            assert member.stdin is not None
            member.stdin.close()
            assert member.wait(20) == 0
        time.sleep(0.5)  # more than it lingers
        assert is_alive(said[0]["node"]), "one member is still there"
        assert is_alive(said[0]["service"])
        assert members[0].stdin is not None
        members[0].stdin.close()
        gone(said[0]["node"], said[0]["service"])


def test_threads_of_one_process_attach_at_once_and_use_one_link() -> None:
    job, pids, links = new_job(), set[int](), list[NodeLink]()

    def rank() -> None:
        link = attach(job)
        links.append(link)
        with links[0].open("echo") as stream:
            pids.add(heard(stream)["parent"])

    threads = [threading.Thread(target=rank) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pids == {link.pid for link in links} == {links[0].pid}
    assert len(links) == 4
    for link in links:
        link.close()


def test_jobs_have_nodes_of_their_own() -> None:
    one, other = (attach(new_job()) for _ in range(2))
    assert one.pid != other.pid
    one.close()
    gone(one.pid)
    assert other.alive()
    other.close()


def test_a_job_is_that_of_the_environment_unless_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_GROUP", new_job())
    by_environment = attach()
    by_name = attach(f"group {os.environ['PENSTOCK_GROUP']}")
    assert by_environment.pid == by_name.pid
    by_environment.close()
    by_name.close()


def test_descriptors_and_a_hello_arrive_and_are_not_inherited_by_programs() -> None:
    link = attach(new_job())
    memory = os.memfd_create("words")
    os.write(memory, b"from the caller")
    with link.open("echo", b"good morning", [memory, memory]) as stream:
        said = heard(stream)
        assert not os.get_inheritable(stream.fileno())
    assert said["hello"] == "good morning"
    assert said["fds"] == ["from the caller"] * 2
    assert said["inherited"] == []
    assert said["parent"] == link.pid
    os.close(memory)
    link.close()


def test_the_largest_hello_and_the_most_descriptors_fit_and_more_are_refused_before_they_are_sent() -> None:
    link = attach(new_job())
    memory = os.memfd_create("words")
    with link.open("echo", b"x" * MAX_HELLO, [memory] * MAX_FDS) as stream:
        said = heard(stream)
    assert len(said["hello"]) == MAX_HELLO
    assert len(said["fds"]) == MAX_FDS
    with pytest.raises(ValueError, match="may have 65536 bytes and 16 descriptors, got 65537 and 0"):
        link.open("echo", b"x" * (MAX_HELLO + 1))
    with pytest.raises(ValueError, match="got 0 and 17"):
        link.open("echo", b"", [memory] * (MAX_FDS + 1))
    assert link.alive()
    os.close(memory)
    link.close()


def test_a_service_that_is_not_in_the_table_is_refused_by_name() -> None:
    link = attach(new_job())
    for name in ("ferry", "x" * 65, ""):
        with pytest.raises(
            (ServiceFailed, NodeUnavailable), match=r"service 'ferry'; there is: broken|names none"
        ):
            link.open(name)
        if not link.alive():
            link.close()
            link = attach(new_job())
    link.close()


def test_a_node_waits_a_moment_for_the_next_loader_and_then_ends() -> None:
    job = new_job()
    first = attach(job, linger_s=1.0)
    first.close()
    assert not first.alive()
    with pytest.raises(NodeUnavailable, match="is closed"):
        first.open("echo")
    second = NodeLink.attach(job)
    assert second.pid == first.pid
    second.close()
    second.close()
    began = time.monotonic()
    gone(second.pid)
    assert time.monotonic() - began > 0.7


def test_a_process_that_finds_the_address_taken_is_not_the_node() -> None:
    where = address(new_job(), os.geteuid())
    taken = bound(where)
    assert taken is not None
    with taken, pytest.raises(TryAgain, match="another process is about to be the node"):
        client.start(where, config(), time.monotonic() + 40)


def test_a_node_to_which_nobody_comes_ends() -> None:
    client.start(address(new_job(), os.geteuid()), config(first_s=0.3), time.monotonic() + 40)
    # It is a child of nobody: that it is gone soon is what every test here is asked for.


def test_loaders_that_come_as_the_node_ends_always_get_one() -> None:
    job = new_job()
    for _ in range(12):
        link = attach(job, linger_s=0.0)
        with link.open("echo") as stream:
            assert heard(stream)["parent"] == link.pid
        link.close()


def test_a_node_has_nothing_open_that_was_its_starters_and_no_torch() -> None:
    with open(__file__) as ours:
        os.set_inheritable(ours.fileno(), True)
        link = attach(new_job())
        with link.open("echo") as stream:
            for pid in (link.pid, heard(stream)["pid"]):
                known = ("/dev/null", "socket:", "pipe:", "anon_inode:")
                assert [name for name in open_files(pid) if not name.startswith(known)] == []
                with open(f"/proc/{pid}/maps") as maps:
                    assert "torch" not in maps.read()
        link.close()


def test_a_forked_child_does_not_keep_its_parents_node() -> None:
    with program(f"forker({new_job()!r})") as parent:
        said = line(parent)
        assert said["alive"] is False
        assert said["said"].startswith("NodeUnavailable: this link to the node process is its parent's")
        assert parent.wait(20) == 0
        gone(said["node"])
        assert is_alive(said["child"])
        os.kill(said["child"], 9)


def test_a_closed_link_counts_no_more_whoever_has_a_copy_of_its_socket() -> None:
    link = attach(new_job())
    copy = os.dup(link.fileno())
    link.close()
    gone(link.pid)
    os.close(copy)


def test_elsewhere_than_on_linux_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(NodeUnavailable, match="needs Linux: abstract unix sockets"):
        NodeLink.attach()
