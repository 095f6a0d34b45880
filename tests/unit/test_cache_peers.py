"""Samples between machines: what is asked for comes, or is told not to, once."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from penstock.cache.keys import sample_key
from penstock.cache.peer_events import Came, NotCame, PeerLimits, PeerLost, PeerWants
from penstock.cache.peer_frames import MAX_REQUEST, pack_requests, split_request
from penstock.cache.peers import PeerPort
from penstock.errors import ConfigError
from tests.fault.programs import until
from tests.peers_here import SCOPE, SECRET, Machine, content, lengths_of, machines, seconds, wanted


@pytest.fixture
def pair() -> Iterator[list[Machine]]:
    with machines() as made:
        yield made


def test_samples_come_whole_with_the_lengths_of_their_ranges(pair: list[Machine]) -> None:
    asker, home = pair
    home.bring(*range(100))
    asker.ask(1, *range(100))
    came = {event.sample: event for event in asker.told(Came, 100)}
    assert all(asker.has(sample) for sample in range(100))
    assert {sample: event.lengths for sample, event in came.items()} == {n: lengths_of(n) for n in range(100)}
    (told,) = home.told(PeerWants)
    assert (told.link.node, told.scope, told.step, told.samples) == (0, SCOPE, 3, wanted(*range(100)))


def test_machines_ask_each_other_at_the_same_time() -> None:
    with machines(3) as made:
        for node, machine in enumerate(made):
            machine.bring(*range(100 * node, 100 * node + 50))
        for node, machine in enumerate(made):
            for other in {0, 1, 2} - {node}:
                machine.ask(other, *range(100 * other, 100 * other + 50))
        for machine in made:
            machine.told(Came, 100)
            assert all(machine.has(100 * other + n) for other in range(3) for n in range(50))


def test_samples_that_a_home_does_not_have_are_refused_and_the_others_come(pair: list[Machine]) -> None:
    asker, home = pair
    home.bring(1, 3)
    asker.ask(1, 0, 1, 2, 3)
    assert asker.fates(range(4)) == {0: "it was refused", 1: "", 2: "it was refused", 3: ""}


def test_a_sample_that_is_asked_for_twice_comes_once(pair: list[Machine]) -> None:
    asker, home = pair
    home.answers = False
    home.bring(1, 2)
    asker.ask(1, 1)
    asker.ask(1, 1, 2)
    for event in home.told(PeerWants, 2):
        home.answer(event)
    assert asker.fates([1, 2]) == {1: "", 2: ""}


def test_a_home_that_is_not_reached_is_asked_for_nothing() -> None:
    asker = Machine(0)
    try:
        asker.ask(1, 1, 2)
        with socket.create_server(("127.0.0.1", 0)) as other:
            asker.port.join(1, f"127.0.0.1:{other.getsockname()[1]}")
            assert seconds(lambda: asker.ask(1, 3)) < 1.0
        assert asker.fates([1, 2, 3]) == {
            1: "it has not joined",
            2: "it has not joined",
            3: "it was not reached yet",
        }
    finally:
        asker.close()


def test_bytes_that_find_no_room_are_told_of_and_those_behind_them_come(pair: list[Machine]) -> None:
    asker, home = pair
    home.bring(1, 2, 3)
    view = asker.tier.reserve(
        sample_key(SCOPE, 2), 5
    )  # somebody else is writing it: the same answer as of a full memory
    assert view is not None
    asker.ask(1, 1, 2, 3)
    assert asker.fates([1, 2, 3]) == {1: "", 2: "there is no room for it", 3: ""}
    del view


def test_memory_is_kept_until_the_asker_has_taken_the_bytes(pair: list[Machine]) -> None:
    """On one machine the asker's socket holds the very pages: a lease that ended with the last byte sent would let them change there."""
    asker, home = pair
    home.bring(*range(20))
    asker.ask(1, *range(20))
    asker.told(Came, 20)
    until(lambda: not home.leased(), within_s=5.0, why="leases did not end")


def test_a_request_over_the_limits_is_refused_and_not_kept() -> None:
    with machines(limits=PeerLimits(link_samples=4)) as (asker, home):
        home.answers = False
        home.bring(*range(10))
        asker.ask(1, *range(10))
        (event,) = home.told(PeerWants)
        assert [sample for sample, _ in event.samples] == [0, 1, 2, 3]
        assert len(asker.told(NotCame, 6)) == 6
        home.answer(event)
        asker.told(Came, 4)


def test_what_exceeds_the_bytes_that_may_wait_is_refused() -> None:
    with machines(limits=PeerLimits(link_bytes=1)) as (asker, home):
        home.answers = False
        home.bring(1, 2)
        asker.ask(1, 1, 2)
        (event,) = home.told(PeerWants)
        home.answer(event)
        assert asker.fates([1, 2]) == {1: "", 2: "it was refused"}
        until(lambda: not home.leased(), within_s=5.0, why="leases did not end")


def test_an_empty_sample_and_one_over_many_chunks_come(pair: list[Machine]) -> None:
    asker, home = pair
    big = bytes(range(256)) * 8000
    view = home.tier.reserve(sample_key(SCOPE, 0), len(big))
    assert view is not None
    view[:] = big
    assert home.tier.commit(sample_key(SCOPE, 0))
    home.answers = False
    asker.port.ask(1, SCOPE, [(0, [("big", 0, None)]), (1, [("empty", 5, 5)]), (2, [])])
    (event,) = home.told(PeerWants)
    owner = object()
    (place,) = home.tier.lookup([sample_key(SCOPE, 0)], owner)
    assert place is not None
    over: list[int] = []
    event.link.give(
        SCOPE,
        0,
        [len(big)],
        home.tier.check_of(sample_key(SCOPE, 0)) or 0,
        home.tier.fd,
        place.offset,
        lambda: over.append(0),
    )
    event.link.give(SCOPE, 1, [0], 0, home.tier.fd, 0, lambda: over.append(1))
    event.link.give(SCOPE, 2, [], 0, home.tier.fd, 0, lambda: over.append(2))
    assert [one.sample for one in asker.told(Came, 3)] == [0, 1, 2]
    with asker.tier.reading(sample_key(SCOPE, 0)) as data:
        assert data == big
    until(lambda: over == [0, 1, 2], within_s=5.0, why="leases did not end")


def test_what_is_given_to_an_asker_that_is_gone_is_done_with_at_once(pair: list[Machine]) -> None:
    asker, home = pair
    home.answers = False
    home.bring(1)
    asker.ask(1, 1, 2)
    (event,) = home.told(PeerWants)
    asker.port.close()
    until(lambda: not home.port._links, within_s=5.0, why="the link is still there")
    home.answer(event)
    assert home.leased() == 0


def test_counters_say_what_went_where(pair: list[Machine]) -> None:
    asker, home = pair
    home.bring(1, 2)
    asker.ask(1, 1, 2, 3)
    asker.fates([1, 2, 3])
    nbytes = len(content(1)) + len(content(2))
    here, there = asker.port.stats()[1], home.port.stats()[0]
    assert (here["samples_in"], here["bytes_in"], here["not_in"], here["lost"]) == (2, nbytes, 1, 0)
    assert (there["samples_out"], there["bytes_out"], there["refused"]) == (2, nbytes, 1)
    assert here["in_s"] > 0
    assert there["out_s"] > 0


def test_closing_ends_all_and_may_be_repeated() -> None:
    with machines(3) as made:
        made[0].port.close()
        made[0].port.close()
        made[0].ask(1, 5)
        assert [event.node for event in made[1].told(PeerLost)] == [0]


def test_a_port_listens_on_one_address_only() -> None:
    for host in ("0.0.0.0", "::"):
        with pytest.raises(ConfigError, match="one address"):
            PeerPort(host, SECRET, node=0, room=Machine.__new__(Machine), post=print)  # type: ignore[arg-type]


def test_long_requests_are_parted_and_one_that_no_message_holds_is_told() -> None:
    long = [(n, [("x" * 3000, n, None)]) for n in range(1000)]
    frames, too_long = pack_requests(SCOPE, 0, [*long, (7000, [("y" * MAX_REQUEST, 0, None)])])
    assert [sample for sample, _ in too_long] == [7000]
    assert len(frames) > 2
    asked = [one for frame in frames for one in split_request(frame[12:])[2]]
    assert asked == long


def test_machines_speak_inside_tls() -> None:
    with machines(tls=True) as (asker, home):
        home.bring(*range(20))
        asker.ask(1, *range(20))
        asker.told(Came, 20)
        assert all(asker.has(sample) for sample in range(20))
