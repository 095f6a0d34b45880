"""Machines that die, stop, lie or are cut off while their samples are asked for. Every sample comes whole or is told not to come, once and soon."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from penstock.cache.keys import sample_key
from penstock.cache.peer_events import Came, NotCame, PeerBack, PeerLimits, PeerLost, PeerWants
from penstock.cache.peer_frames import (
    ANSWER_BYTES,
    PeerMsg,
    pack_answer,
    pack_answers,
    pack_message,
    pack_requests,
    split_request,
)
from penstock.cache.peer_link import read_message
from penstock.remote.handshake import Role, greet
from tests.fault.programs import until
from tests.peers_here import (
    QUICK,
    SCOPE,
    SECRET,
    SOON_S,
    Between,
    ForkedHome,
    Machine,
    content,
    lengths_of,
    machines,
    patient_kernel,
    raw_asker,
    seconds,
    wanted,
)


@pytest.fixture
def asker() -> Iterator[Machine]:
    made = Machine(0)
    yield made
    made.close()


def reach(asker: Machine, home: ForkedHome) -> None:
    asker.port.join(1, home.address)
    asker.told(PeerBack)


def check_refuses(asker: Machine) -> None:
    """A machine that is down is not asked: its samples have not come, at once."""
    asker.forget()
    assert seconds(lambda: asker.ask(1, 15, 16)) < 0.5
    assert asker.fates([15, 16]).keys() == {15, 16}
    asker.forget()


def test_samples_of_a_killed_home_have_not_come_and_its_successor_is_asked(asker: Machine) -> None:
    home = ForkedHome(answers=False)
    try:
        reach(asker, home)
        asker.ask(1, *range(20))
        home.kill()
        fates = asker.fates(range(20))
        assert all(fates.values())
        assert len(asker.told(PeerLost)) == 1
        assert asker.tier.stats()["reserved"] == 0
        check_refuses(asker)
        home = ForkedHome(port=int(home.address.rpartition(":")[2]))
        asker.told(PeerBack)
        asker.ask(1, *range(20))
        asker.told(Came, 20)
        assert all(asker.has(sample) for sample in range(20))
    finally:
        home.kill()


def test_a_stopped_home_is_given_up_in_time_and_asked_again_when_it_goes_on(asker: Machine) -> None:
    home = ForkedHome()
    try:
        reach(asker, home)
        os.kill(home.pid, signal.SIGSTOP)
        asker.ask(1, *range(20))
        assert seconds(lambda: asker.fates(range(20))) < QUICK.silent_s + 5.0
        assert "sent nothing" in asker.told(PeerLost)[0].why
        check_refuses(asker)
        os.kill(home.pid, signal.SIGCONT)
        asker.told(PeerBack)
        asker.ask(1, *range(20))
        asker.told(Came, 20)
        assert all(asker.has(sample) for sample in range(20))
    finally:
        os.kill(home.pid, signal.SIGCONT)
        home.kill()


def test_a_home_that_waits_for_its_source_is_waited_for() -> None:
    with machines() as (asker, home):
        home.answers = False
        home.bring(*range(3))
        asker.ask(1, *range(3))
        (event,) = home.told(PeerWants)
        waited_s = time.monotonic() + 4 * QUICK.silent_s
        until(lambda: time.monotonic() > waited_s or asker.events, within_s=SOON_S, why="time stands still")
        assert asker.events == []
        home.answer(event)
        asker.told(Came, 3)


def test_a_home_that_stops_in_the_middle_of_its_last_sample_is_given_up(asker: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        asker.port.join(1, address)
        home, _ = listener.accept()
        with home:
            greet(home, SECRET, role=Role.HOME, address=address, within_s=SOON_S)
            assert read_message(home)[0] == PeerMsg.HELLO
            asker.told(PeerBack)
            asker.ask(1, 1)
            assert read_message(home)[0] == PeerMsg.ASK
            answer = pack_answer(PeerMsg.SAMPLE, sample_key(SCOPE, 1), 0, lengths_of(1))
            home.sendall(pack_answers([answer]) + content(1)[:-1])
            assert "sent nothing" in asker.fates([1])[1]
            assert asker.tier.stats()["reserved"] == 0


def test_a_sample_that_takes_too_long_is_told_of_and_its_late_bytes_harm_nothing() -> None:
    with machines(limits=PeerLimits(answer_s=0.3)) as (asker, home):
        home.answers = False
        home.bring(*range(5))
        asker.ask(1, 1, 2)
        assert len(asker.told(NotCame)[0].samples) == 2
        asker.forget()
        home.answers = True
        home.answer(home.told(PeerWants)[0])
        asker.ask(1, 3)
        asker.told(Came)
        assert [asker.has(sample) for sample in (1, 2, 3)] == [False, False, True]
        until(lambda: not home.leased(), within_s=5.0, why="leases did not end")


def test_a_pause_of_the_askers_own_does_not_cost_it_its_homes() -> None:
    with machines() as (asker, home):
        home.answers = False
        asker.ask(1, 1)
        home.told(PeerWants)
        link = asker.port._homes[1]
        link.check(time.monotonic() + 100.0, paused=True)
        assert asker.events == []
        link.check(time.monotonic() + 200.0, paused=False)
        asker.told(PeerLost)


@pytest.mark.parametrize("at", [0, 1, ANSWER_BYTES - 1, ANSWER_BYTES, ANSWER_BYTES + 1, 20_000])
def test_a_connection_cut_at_any_place_loses_what_is_open_and_nothing_else(asker: Machine, at: int) -> None:
    home = Machine(1)
    between = Between(home.port)
    passed = 0

    def cut(to_asker: bool, data: bytes) -> bytes | None:
        nonlocal passed
        if not to_asker:
            return data
        left, passed = at - passed, passed + len(data)
        return data[: max(0, left)] if left > 0 else None

    try:
        home.bring(*range(20))
        asker.port.join(1, home.port.address)
        asker.told(PeerBack)
        between.change = cut
        asker.ask(1, *range(20))
        fates = asker.fates(range(20))
        assert any(fates.values())
        assert [asker.has(sample) for sample in range(20)] == [not fates[sample] for sample in range(20)]
        assert asker.tier.stats()["reserved"] == 0
        between.change = lambda _, data: data
        asker.told(PeerBack, 2)
        missing = [sample for sample in range(20) if fates[sample]]
        asker.forget()
        asker.ask(1, *missing)
        asker.told(Came, len(missing))
        assert all(asker.has(sample) for sample in range(20))
        until(lambda: not home.leased(), within_s=5.0, why="leases did not end")
    finally:
        asker.port.close()
        between.close()
        home.close()


def test_a_home_that_lies_is_asked_for_nothing_more_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with machines() as (asker, home), caplog.at_level(logging.WARNING, "penstock"):
        home.answers = False
        home.bring(*range(10))
        asker.ask(1, *range(10))
        (event,) = home.told(PeerWants)
        home.give(event, 0)
        for sample in (1, 2, 3):
            home.give(event, sample, crc=1)
        fates = asker.fates(range(10))
        assert [sample for sample in range(10) if not fates[sample]] == [0]
        assert not any(asker.has(sample) for sample in range(1, 10))
        asker.told(PeerLost)
        asker.port._homes[1].thread.join(SOON_S)  # it does not connect again
        assert not asker.port._homes[1].thread.is_alive()
        check_refuses(asker)
        assert [record.message.count("wrong checksum") for record in caplog.records] == [1]
        assert asker.port.stats()[1]["mismatches"] == 3


def test_a_sample_of_another_length_than_was_asked_for_is_refused() -> None:
    with machines() as (asker, home):
        home.answers = False
        home.bring(1)
        asker.port.ask(1, SCOPE, [(1, [("photo", 10, 15)])])
        home.give(home.told(PeerWants)[0], 1)
        assert asker.fates([1]) == {1: "it sent a sample of another length"}
        assert not asker.has(1)


def test_an_asker_that_takes_nothing_is_dropped_and_keeps_no_memory() -> None:
    home = Machine(1)
    try:
        home.bring(*range(200))
        with raw_asker(home, receives=4096) as sock:
            (frame,), _ = pack_requests(SCOPE, 0, wanted(*range(200)))
            sock.sendall(frame)
            home.told(PeerWants)
            patient_kernel(home)
            until(lambda: home.leased() == 200, within_s=SOON_S, why="nothing is being sent")
            until(lambda: not home.leased(), within_s=QUICK.silent_s + 5.0, why="it is not dropped")
    finally:
        home.close()


def test_memory_stays_until_its_asker_says_that_it_took_the_bytes() -> None:
    home = Machine(1)
    try:
        home.bring(1)
        with raw_asker(home) as sock:
            (frame,), _ = pack_requests(SCOPE, 0, wanted(1))
            sock.sendall(frame)
            data = sock.recv(ANSWER_BYTES, socket.MSG_WAITALL)
            assert len(data) == ANSWER_BYTES
            assert home.leased() == 1
            assert sock.recv(len(content(1)), socket.MSG_WAITALL) == content(1)
            assert home.leased() == 1
            sock.sendall(pack_message(PeerMsg.GOT, 1))
            until(lambda: not home.leased(), within_s=5.0, why="its lease did not end")
    finally:
        home.close()


def test_an_asker_that_connects_again_replaces_its_old_connection() -> None:
    home = Machine(1)
    try:
        home.answers = False
        with raw_asker(home) as old:
            (frame,), _ = pack_requests(SCOPE, 0, wanted(1))
            old.sendall(frame)
            home.told(PeerWants)
            with raw_asker(home) as new:
                new.sendall(frame)
                home.told(PeerWants, 2)
                while old.recv(4096):  # it was told that the home lives; then it ends
                    pass
    finally:
        home.close()


def test_requests_that_their_home_does_not_read_at_once_wait_and_arrive_whole() -> None:
    asker = Machine(0, limits=PeerLimits(silent_s=30.0))
    many = [(sample, [("x" * 400, sample, None)]) for sample in range(20_000)]
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            asker.port.join(1, address)
            home, _ = listener.accept()
            with home:
                greet(home, SECRET, role=Role.HOME, address=address, within_s=SOON_S)
                assert read_message(home)[0] == PeerMsg.HELLO
                asker.told(PeerBack)
                assert seconds(lambda: asker.port.ask(1, SCOPE, many)) < 5.0
                assert asker.port._homes[1].unsent() is not None
                asked = []
                while len(asked) < len(many):
                    asked += split_request(read_message(home)[2])[2]
                assert asked == many
                asker.port.ask(1, SCOPE, [(90_000, [("y", 0, 1)])])
                assert split_request(read_message(home)[2])[2][0][0] == 90_000
        assert asker.fates([90_000])[0] != ""
    finally:
        asker.close()
