"""The guards of the byte cache's readers (see `guards`)."""

from __future__ import annotations

from tests.fault.guards import guard
from tests.fault.markers import always, changed, never, removed

READ = "integration/test_cache_readers.py::test_"
FAULT = "fault/test_cache_reader_faults.py::test_"
POOL = "fault/test_reading_pool_faults.py::test_"

READER_GUARDS = [
    guard(
        "a local file has the stamp that was expected",
        f"{READ}a_local_file_with_another_stamp_is_an_error",
        never("expected-stamp"),
    ),
    guard(
        "an object without an etag has the stamp that was expected",
        f"{FAULT}an_object_with_another_etag_is_an_error[careless]",
        never("expected-object"),
    ),
    guard(
        "a range of an object has its length",
        f"{READ}objects_that_cannot_be_read_are_errors_that_say_why",
        never("range-length"),
    ),
    guard(
        "a bad sample costs no other of its job",
        f"{READ}one_bad_sample_of_a_job_costs_no_other",
        never("samples-apart"),
    ),
    guard(
        "a busy server gets fewer requests",
        f"{FAULT}a_server_that_asks_for_fewer_requests_gets_fewer",
        removed("fewer-at-once"),
    ),
    guard(
        "bytes in flight are bounded",
        f"{FAULT}large_reads_are_not_in_flight_together",
        never("bytes-in-flight"),
    ),
    guard(
        "a sample keeps its size at another try",
        "unit/test_read_jobs.py::test_a_sample_that_has_another_size_at_another_try_is_an_error",
        never("size-at-retry"),
    ),
    guard(
        "a silent reading process is killed",
        f"{POOL}processes_that_are_stopped_with_reads_to_do_are_killed",
        never("silent-process"),
    ),
    guard(
        "what a dead process had to read has failed",
        f"{POOL}a_process_that_is_killed_loses_its_own_reads_alone",
        removed("lost-samples-told"),
    ),
    guard(
        "a read that hangs is given up",
        f"{FAULT}a_read_that_hangs_is_given_up_and_another_thread_reads_on",
        always("stuck-reads"),
    ),
    guard(
        "memory of a read that hangs is nobody else's",
        "unit/test_cached_dataset.py::test_memory_of_a_read_that_hangs_is_nobody_elses_until_it_has_ended",
        always("stuck-memory"),
    ),
    guard(
        "a read that hangs releases no memory that is another's",
        f"{FAULT}a_read_that_hangs_without_memory_releases_none",
        changed("released-its-own", "one.read.memory", "one.read.ranges"),
    ),
    guard(
        "reads go on where no more threads are to be had",
        f"{FAULT}reads_fail_where_no_thread_can_be_started",
        changed("no-more-threads", "RuntimeError", "KeyError"),
    ),
    guard(
        "whoever waits for memory gets a step of it",
        "unit/test_cache_backing.py::test_who_waits_for_a_step_gets_it_whatever_becomes_free_meanwhile",
        changed("waited-for", " or self._waited_for", ""),
    ),
    guard(
        "bytes that are read stay in memory",
        "unit/test_cache_placed.py::test_a_service_that_is_given_up_keeps_bytes_until_their_batches_are_over",
        never("bytes-in-use"),
    ),
]
