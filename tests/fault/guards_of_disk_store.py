"""The guards of the store on disk (see `guards`)."""

from __future__ import annotations

from tests.fault.guards import guard
from tests.fault.markers import always, changed, never, removed, replaced

UNIT, PARTS = "unit/test_disk_store.py::test_", "unit/test_disk_records.py::test_"
DAMAGE, KILLS = "fault/test_disk_store_damage.py::test_", "fault/test_disk_store_kills.py::test_"
LOADER = "integration/test_reuse_on_disk.py::test_"
LASTING = "integration/test_reuse_lasting.py::test_"
POWER = "fault/test_disk_store_power_cut.py::test_no_power_cut_costs_a_synced_entry_or_gives_wrong_bytes[0]"

DISK_GUARDS = [
    guard(
        "what is read has its checksum",
        f"{DAMAGE}every_bit_that_flips_in_a_record_is_noticed_at_the_next_read",
        changed("record-checksum", " or accel.crc32(data, _SUM_AT, total) != said", ""),
    ),
    guard(
        "a record is the one that is wanted",
        f"{PARTS}a_record_is_given_out_only_for_what_it_says",
        never("record-wanted"),
    ),
    guard(
        "a walk trusts no length without its checksum",
        f"{PARTS}changed_records_are_never_given_out_and_a_walk_finds_the_others",
        changed("record-length", "crc32(view[at + _HEAD_SUM_AT : at + HEAD.size]) != said[1] or ", ""),
    ),
    guard(
        "a type is a plain one",
        f"{PARTS}types_and_shapes_that_are_not_plain_are_refused[|O-1-shape0-8]",
        never("plain-type"),
    ),
    guard(
        "a row has its checksum",
        f"{PARTS}rows_are_kept_and_a_changed_one_is_none",
        removed("row-checksum"),
    ),
    guard(
        "a row that is read by itself has its checksum",
        "unit/test_disk_large.py::test_one_row_is_as_rows_are",
        never("one-row-checksum"),
    ),
    guard(
        "compaction does not undo what was put meanwhile",
        f"{UNIT}an_entry_put_during_compaction_is_not_undone",
        replaced("row-changed", "same = list(after)"),
    ),
    guard(
        "a segment that is being written is not removed",
        f"{UNIT}a_segment_that_is_being_written_is_let_be",
        always("segment-in-use"),
    ),
    guard(
        "copies are synced before rows lead to them",
        POWER,
        removed("sync-copies"),
    ),
    guard(
        "the name of a segment is synced too",
        POWER,
        removed("sync-folder"),
    ),
    guard(
        "after a power cut rows are found again",
        POWER,
        changed("power-cut", "alone and boot != self.files.boot()", "False"),
    ),
    guard(
        "nothing is removed while rows are missing",
        f"{UNIT}nothing_is_removed_while_the_index_is_not_whole",
        changed("stale-rows", " or self.shelf.index.is_stale", ""),
    ),
    guard(
        "one process compacts at a time",
        f"{UNIT}only_one_process_compacts_at_a_time",
        replaced("one-compacts", "yield True"),
    ),
    guard(
        "a record that has moved is looked for where it is",
        f"{UNIT}a_record_that_moves_while_it_is_looked_for_is_found",
        changed("moved-record", "range(2)", "range(1)"),
    ),
    guard(
        "files that were removed are let go of",
        f"{UNIT}a_reader_finds_what_compaction_moved_and_lets_go_of_the_old_file",
        removed("removed-files"),
    ),
    guard(
        "no more is held than may be",
        "contract/test_partial_stores.py::test_a_full_store_refuses_and_keeps_what_it_has[disk-900]",
        never("held-limit"),
    ),
    guard(
        "a full disk makes the store read-only",
        "fault/test_disk_store_errors.py::test_a_write_that_fails_makes_the_store_read_only_with_one_warning",
        removed("full-disk"),
    ),
    guard(
        "a forked child begins anew",
        f"{KILLS}a_forked_child_has_a_store_of_its_own",
        replaced("own-store", "mine = next(iter(self._by_process.values()), None)"),
    ),
    guard(
        "a lock is given up even if a child has the file",
        f"{KILLS}a_child_that_never_used_the_store_does_not_keep_the_locks_of_its_parent",
        removed("unlock-first"),
    ),
    guard(
        "links are not followed",
        f"{UNIT}a_link_in_the_place_of_a_segment_is_not_followed",
        changed("no-links", " | os.O_NOFOLLOW", ""),
    ),
    guard(
        "a store of another number of samples is refused",
        f"{UNIT}a_store_for_another_number_of_samples_says_what_to_do",
        never("other-length"),
    ),
    guard(
        "a store that is cleared while it is opened is not the one to use",
        "unit/test_disk_listing.py::test_a_store_that_is_cleared_while_it_is_opened_is_made_anew",
        changed("cleared-while-opened", " and is_at(fd, users)", ""),
    ),
    guard(
        "a store that is opened while it is cleared is made anew",
        "unit/test_disk_listing.py::test_a_store_that_is_opened_while_it_is_cleared_is_whole[users]",
        always("opened-while-cleared"),
    ),
    guard(
        "no link is followed in what is removed",
        "unit/test_disk_shared_path.py::test_links_in_a_store_are_not_followed[segments]",
        changed("no-links-removed", " | os.O_NOFOLLOW", ""),
    ),
    guard(
        "a mark that is a pipe is not waited for",
        "unit/test_disk_shared_path.py::test_a_mark_that_is_a_pipe_is_not_waited_for",
        changed("mark-is-pipe", " | os.O_NONBLOCK", ""),
    ),
    guard(
        "a new large file that a sweep took is not renamed",
        "fault/test_disk_store_errors.py::test_a_sweep_that_takes_a_new_large_file_for_a_dead_writers_costs_that_entry_only",
        changed("swept-file", " and not is_gone(fd)", ""),
    ),
    guard(
        "a large file that is read is not written over",
        "unit/test_disk_large.py::test_a_file_that_is_read_is_not_written_over",
        never("large-in-use"),
    ),
    guard(
        "a large file that is being written over is not read",
        "unit/test_disk_large.py::test_a_file_that_is_being_written_over_is_not_read",
        always("large-being-written"),
    ),
    guard(
        "a large file can be read as soon as its row leads to it",
        "unit/test_disk_large.py::test_what_has_its_row_can_be_read",
        removed("large-unlocked"),
    ),
    guard(
        "a reader that is given no lock finds nothing",
        "unit/test_disk_large.py::test_a_file_system_without_locks_costs_time_only",
        changed("no-locks", "with contextlib.suppress(OSError)", "if True"),
    ),
    guard(
        "an entry that another has replaced meanwhile is not replaced again",
        "unit/test_disk_large.py::test_a_file_that_another_has_taken_is_not_written_over",
        never("large-replaced"),
    ),
    guard(
        "what is to be read stays open until it was read",
        f"{UNIT}more_files_than_stay_open_can_be_read_at_once[1000]",
        changed(
            "open-while-read",
            "(runs[at : at + MOST_OPEN] for at in range(0, len(runs), MOST_OPEN))",
            "[runs]",
        ),
    ),
    guard(
        "memory that somebody refers to is not used again",
        f"{UNIT}what_was_given_stays_as_long_as_anything_refers_to_it",
        changed("buffer-in-use", " and sys.getrefcount(self._kept[at]) == 2", ""),
    ),
    guard(
        "a file is known by a time that nobody sets back",
        f"{LASTING}a_photo_that_was_changed_between_runs_is_prepared_anew",
        changed("change-time", ", status.st_ctime_ns", ""),
    ),
    guard(
        "other ops have another store",
        f"{LASTING}what_makes_other_pixels_has_a_store_of_its_own",
        changed("store-of-ops", "first_ops(dataset.chain, split), ", ""),
    ),
    guard(
        "another seed has another store",
        f"{LASTING}what_makes_other_pixels_has_a_store_of_its_own",
        changed("store-of-seed", "renewal.seed, ", ""),
    ),
    guard(
        "what cannot be told apart does not last",
        f"{LASTING}what_cannot_be_told_apart_is_kept_for_the_run_only_and_that_is_said",
        never("own-decoder"),
    ),
    guard(
        "what a task has put is seen when it has ended",
        f"{LOADER}what_a_worker_has_put_is_there_for_the_others_at_once",
        never("flush-last-put"),
        never("flush-last-found"),
        never("background-flush"),  # or it would, on a slow machine
    ),
    guard(
        "what killed runs have left is removed",
        f"{LASTING}what_a_killed_run_has_left_is_removed_by_the_next",
        removed("killed-runs"),
    ),
    guard(
        "a store of a run goes with it",
        f"{LASTING}what_was_kept_goes_with_the_loader[2]",
        never("run-store-removed"),
    ),
]
