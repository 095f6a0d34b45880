"""The guards between the caches of machines (see `guards`)."""

from __future__ import annotations

from tests.fault.guards import guard
from tests.fault.markers import changed, never, replaced

UNIT = "unit/test_cache_peers.py::test_"
FAULT, STRANGE = "fault/test_peer_faults.py::test_", "fault/test_peer_strangers.py::test_"
DAMAGE, FRAMES = "fault/test_peer_damage.py::test_", "property/test_peer_frames.py::test_"

PEER_GUARDS = [
    guard(
        "a home that sends nothing is given up",
        f"{FAULT}a_stopped_home_is_given_up_in_time_and_asked_again_when_it_goes_on",
        never("silent-home"),
    ),
    guard(
        "a home that waits for its source says that it lives",
        f"{FAULT}a_home_that_waits_for_its_source_is_waited_for",
        never("alive-frames"),
    ),
    guard(
        "an asker that takes nothing is dropped",
        f"{FAULT}an_asker_that_takes_nothing_is_dropped_and_keeps_no_memory",
        never("silent-asker"),
    ),
    guard(
        "memory stays until its asker took the bytes",
        f"{FAULT}memory_stays_until_its_asker_says_that_it_took_the_bytes",
        replaced("kept-until-taken", "_all_done(some)"),
    ),
    guard(
        "a pause of one's own is no silence of others",
        f"{FAULT}a_pause_of_the_askers_own_does_not_cost_it_its_homes",
        never("own-pause"),
    ),
    guard(
        "a home that lies is not asked again",
        f"{FAULT}a_home_that_lies_is_asked_for_nothing_more_with_one_warning",
        never("lying-home"),
    ),
    guard(
        "a sample has the lengths that were asked for",
        f"{FAULT}a_sample_of_another_length_than_was_asked_for_is_refused",
        changed("peer-lengths", "not fits(lengths, asked)", "False"),
    ),
    guard(
        "an asker has one connection",
        f"{FAULT}an_asker_that_connects_again_replaces_its_old_connection",
        never("one-link-per-asker"),
    ),
    guard(
        "caches listen on one address", f"{UNIT}a_port_listens_on_one_address_only", never("one-interface")
    ),
    guard(
        "samples that wait for an asker are bounded",
        f"{UNIT}a_request_over_the_limits_is_refused_and_not_kept",
        never("peer-samples-bounded"),
    ),
    guard(
        "bytes that wait for an asker are bounded",
        f"{UNIT}what_exceeds_the_bytes_that_may_wait_is_refused",
        changed("peer-bytes-bounded", "not self._bytes or", "True or"),
    ),
    guard(
        "refusals that wait for an asker are bounded",
        f"{STRANGE}who_asks_without_end_and_takes_no_answers_is_dropped",
        never("peer-queue-bounded"),
    ),
    guard(
        "strangers that wait are bounded",
        f"{STRANGE}more_strangers_than_are_let_wait_close_the_oldest",
        never("peer-strangers"),
    ),
    guard(
        "who comes for another machine is dropped",
        f"{STRANGE}who_comes_for_another_machine_is_dropped[for another machine]",
        never("peer-hello"),
    ),
    guard(
        "a request has a length that is allowed",
        f"{STRANGE}a_request_of_any_length_is_dropped_before_memory_is_taken_for_it[1048577]",
        never("peer-request-size"),
    ),
    guard(
        "a request asks for what can be",
        f"{FRAMES}a_request_for_what_cannot_be_is_refused",
        never("peer-request-fields"),
    ),
    guard(
        "a damaged request asks for nothing",
        f"{FRAMES}a_damaged_request_is_refused",
        never("peer-request-checksum"),
    ),
    guard(
        "a damaged answer brings nothing",
        f"{FRAMES}a_damaged_answer_is_refused",
        never("peer-answer-checksum"),
    ),
    guard(
        "an answer has a length that is allowed",
        f"{FRAMES}an_answer_of_a_length_that_cannot_be_is_refused",
        never("peer-answer-size"),
    ),
]
