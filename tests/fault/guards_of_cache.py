"""The guards of the byte cache (see `guards`)."""

from __future__ import annotations

from tests.fault.guards import guard
from tests.fault.markers import always, changed, never, removed, replaced

MEMORY, DISK = "unit/test_cache_memory.py::test_", "unit/test_cache_disk.py::test_"
MESSAGES, PLACED = "unit/test_cache_messages.py::test_", "unit/test_cache_placed.py::test_"
FAULT, ON_DISK = "fault/test_cache_faults.py::test_", "fault/test_cache_disk_faults.py::test_"
IN_JOBS = "fault/test_cache_in_jobs.py::test_"

CACHE_GUARDS = [
    guard(
        "leased bytes stay when they are evicted",
        f"{MEMORY}leased_bytes_stay_when_they_are_evicted",
        always("leased-memory"),
    ),
    guard(
        "leases of a dead reader end",
        f"{IN_JOBS}leases_of_the_dead_end",
        changed("leases-of-the-dead", "list(stream.open)", "()"),
    ),
    guard(
        "a lease is ended by its owner alone",
        f"{MEMORY}an_owner_ends_only_its_own_leases",
        changed("own-leases", "pop(owner, {})", "pop(next(iter(self._leases)), {})"),
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
        "who sends nonsense is dropped alone",
        f"{MESSAGES}a_rank_who_sends_nonsense_is_dropped_with_its_leases[kind]",
        changed(
            "cache-nonsense", "except (OSError, ValueError, MemoryError, PenstockError)", "except OSError"
        ),
    ),
    guard(
        "a batch is asked for once",
        f"{MESSAGES}a_rank_who_sends_nonsense_is_dropped_with_its_leases[twice]",
        never("asked-once"),
    ),
    guard(
        "requests of who does not read wait",
        f"{MESSAGES}who_asks_and_never_reads_holds_up_nobody",
        always("deaf-ranks-wait"),
        changed("deaf-ranks-unheard", "EVENT_WRITE if stream.writes else selectors.EVENT_READ", "EVENT_READ"),
    ),
    guard(
        "a batch is asked for with the ranges of each sample",
        f"{MESSAGES}a_batch_without_the_ranges_of_each_sample_is_refused[0]",
        never("ranges-of-each"),
    ),
    guard(
        "the end of a batch is told whole",
        f"{MESSAGES}cut_off_messages_are_refused[over]",
        changed("over-whole", "except struct.error", "except ZeroDivisionError"),
    ),
    guard(
        "places are told whole",
        f"{MESSAGES}cut_off_messages_are_refused[landed]",
        changed("landed-whole", "except (ValueError, struct.error)", "except struct.error"),
    ),
    guard(
        "a place has the lengths that it says",
        f"{MESSAGES}places_of_other_lengths_are_refused[no length]",
        never("places-whole"),
    ),
    guard(
        "facts of another kind are refused",
        f"{MESSAGES}a_value_of_another_kind_is_refused_or_means_the_same_to_all[GroupPlan]",
        changed("facts-of-their-kind", "WRONG", "PenstockError"),
    ),
    guard(
        "numbers fit where they are used",
        f"{MESSAGES}numbers_that_would_not_fit_are_refused[GroupPlan-batch_size]",
        never("numbers-that-fit"),
    ),
    guard(
        "an agent leaves a cache that talks nonsense",
        f"{PLACED}an_agent_that_hears_nonsense_has_its_workers_read[landed]",
        changed("cache-talks-nonsense", "except (OSError, ValueError)", "except OSError"),
    ),
    guard(
        "a sample that lands is of its batch",
        f"{PLACED}an_agent_that_hears_nonsense_has_its_workers_read[behind the batch]",
        never("of-the-batch"),
    ),
    guard(
        "a place lies in the memory file",
        f"{PLACED}places_outside_of_the_memory_are_read_from_the_source[huge]",
        always("place-in-file"),
    ),
    guard(
        "batches that a dead service owes are read without it",
        f"{IN_JOBS}a_service_that_dies_while_it_owes_batches",
        removed("cache-gone"),
    ),
    guard(
        "a service that hangs is given up",
        f"{IN_JOBS}a_service_that_hangs_is_given_up_and_used_again_when_it_goes_on",
        changed("silent-cache", "silent_s > SILENT_S", "False"),
    ),
    guard(
        "ranks that cannot agree what is kept have no order that follows from it",
        "integration/test_cache_ranks.py::test_ranks_that_cannot_meet_have_no_order_that_follows_from_what_machines_keep",
        never("owners-agreed"),
    ),
    guard(
        "machines for themselves agree on one room",
        "integration/test_cache_ranks.py::test_machines_with_different_room_that_share_nothing_deliver_each_sample_once",
        replaced("one-room-for-all", "firsts = [own]"),
    ),
    guard(
        "lent memory is given up by whoever has it",
        "unit/test_cache_memory.py::test_lent_memory_is_given_up_by_whoever_it_was_lent_to",
        never("lent-to-another"),
    ),
    guard(
        "bytes in use are not moved",
        "unit/test_cache_memory.py::test_bytes_that_are_in_use_are_not_moved_for_others",
        changed("leases-stay", " or extent.leases", ""),
    ),
    guard(
        "a service that brings nothing is given up",
        "unit/test_cache_placed.py::test_a_service_that_works_and_brings_nothing_is_given_up_some_time",
        changed("late-cache", "self._late_s(now_s) > LATE_S", "False"),
    ),
    guard(
        "memory of another process is not taken for the cache's",
        "unit/test_cache_places.py::test_memory_of_another_process_with_the_same_number_is_not_read",
        never("same-memory"),
    ),
    guard(
        "a dataset is cached in one way",
        "integration/test_cache.py::test_two_loaders_at_a_time_must_agree_on_the_cache_of_a_dataset",
        never("same-cache"),
    ),
    guard(
        "bytes of other ranges are not taken for a sample's",
        "integration/test_cache.py::test_a_dataset_that_changed_where_no_probe_looked_is_another_one",
        never("other-ranges"),
    ),
    guard(
        "bytes on disk are of the whole key",
        f"{DISK}keys_that_differ_in_a_bit_that_the_index_does_not_hold_are_told_apart",
        changed("whole-key", " and entry.extra == keys[at]", ""),
    ),
    guard(
        "keys that come at once have a slot each",
        f"{DISK}keys_that_come_at_once_get_a_slot_each",
        changed("one-slot-one-key", "with self._putting:", "if True:"),
    ),
    guard(
        "what is on disk is not read again",
        "integration/test_cache_warm.py::test_messages_of_a_run_that_keeps_all_and_of_the_next",
        never("warm-resumes"),
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
