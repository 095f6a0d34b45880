"""The guards of the byte cache (see `guards`)."""

from __future__ import annotations

from tests.fault.guards import guard
from tests.fault.markers import always, changed, never, removed, replaced

MEMORY, DISK = "unit/test_cache_memory.py::test_", "unit/test_cache_disk.py::test_"
FAULT, ON_DISK = "fault/test_cache_faults.py::test_", "fault/test_cache_disk_faults.py::test_"

CACHE_GUARDS = [
    guard(
        "leased bytes stay when they are evicted",
        f"{MEMORY}leased_bytes_stay_when_they_are_evicted",
        always("leased-memory"),
    ),
    guard(
        "leases of a dead reader end",
        f"{FAULT}leases_of_a_killed_reader_end",
        removed("leases-of-the-dead"),
    ),
    guard(
        "a lease is ended by its owner alone",
        f"{MEMORY}an_owner_ends_only_its_own_leases",
        changed("own-leases", "continue", "mine = next(iter(next(iter(self._leases.values())).values()))"),
    ),
    guard(
        "memory that may still be written is given to nobody",
        f"{MEMORY}memory_that_a_writer_may_still_write_is_not_given_to_others",
        changed("still-written", "reserved.let_go()", "(reserved.view.release() or True)"),
    ),
    guard(
        "bytes have the checksum of who sent them",
        f"{MEMORY}bytes_with_another_checksum_are_given_up",
        never("commit-checksum"),
    ),
    guard(
        "only the tier's process can write",
        f"{MEMORY}nobody_else_can_map_it_for_writing",
        removed("cache-sealed"),
    ),
    guard(
        "memory is there before it is written",
        f"{MEMORY}less_is_used_where_memory_ends_with_one_warning",
        removed("cache-backed"),
    ),
    guard(
        "a lease lasts while bytes are referred to",
        f"{MEMORY}a_lease_lasts_while_anything_refers_to_the_bytes",
        replaced("lease-while-viewed", "self._over.append(offset)"),
    ),
    guard(
        "a stream lasts while there is a lease",
        f"{FAULT}a_stopped_service_costs_a_deadline_and_what_was_read_stays_when_it_goes_on",
        always("stream-while-leased"),
    ),
    guard(
        "a forked child does not ask for its parent",
        f"{FAULT}a_forked_child_does_not_ask_with_its_parents_stream",
        changed("cache-of-the-parent", " and self._pid == os.getpid()", ""),
    ),
    guard(
        "a place lies in the memory file",
        f"{MEMORY}places_outside_of_the_memory_are_refused[place0]",
        never("place-in-file"),
    ),
    guard(
        "a lookup has the length that it says",
        f"{MEMORY}who_sends_nonsense_is_dropped_and_nobody_else_notices[cut off]",
        never("lookup-length"),
    ),
    guard(
        "who sends nonsense is dropped alone",
        f"{MEMORY}who_sends_nonsense_is_dropped_and_nobody_else_notices[kind]",
        changed("cache-nonsense", "except (OSError, ValueError)", "except OSError"),
    ),
    guard(
        "bytes on disk are of the whole key",
        f"{DISK}keys_that_differ_in_a_bit_that_the_index_does_not_hold_are_told_apart",
        changed("whole-key", " and entry.extra == keys[at]", ""),
    ),
    guard(
        "damaged bytes on disk are dropped",
        f"{ON_DISK}bytes_that_rot_are_dropped_with_one_warning_and_can_be_put_again",
        removed("damaged-dropped"),
    ),
    guard(
        "what a killed run cached is removed",
        f"{DISK}what_a_killed_run_left_is_removed_by_the_next_and_what_is_in_use_is_not",
        removed("killed-caches"),
    ),
    guard(
        "a run's cache is removed with it",
        f"{DISK}what_a_killed_run_left_is_removed_by_the_next_and_what_is_in_use_is_not",
        never("run-cache-removed"),
    ),
]
