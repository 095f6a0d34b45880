"""The guards of the ferry and of remote workers (see `guards`)."""

from __future__ import annotations

from tests.fault.guards import guard
from tests.fault.markers import always, changed, never, removed, replaced

BOAT = "unit/test_boat.py::test_"

READS = "unit/test_remote_reads.py::test_"
REFUSED = f"{READS}other_files_are_refused"
AWAY = "unit/test_remote_plans.py::test_"

FERRY_GUARDS = [
    guard(
        "a cancelled task cannot write late",
        f"{BOAT}a_cancelled_task_is_dropped_at_once_and_cannot_write_late",
        removed("ferry-voids"),
    ),
    guard(
        "rows fill exactly their slots",
        f"{BOAT}rows_of_another_length_end_the_connection[1]",
        never("rows-fit"),
    ),
    guard(
        "frames from the network are bounded",
        f"{BOAT}a_frame_that_is_too_long_ends_the_connection",
        never("remote-frame-size"),
    ),
    guard(
        "an error from the network is a text",
        f"{BOAT}an_error_that_is_no_text_ends_the_connection",
        never("remote-errors-are-text"),
    ),
    guard(
        "a layout from the network is a text",
        f"{BOAT}a_layout_that_is_a_pickle_is_not_loaded",
        changed("layouts-are-text", "unpack(blob[1:]) if blob[:1] == TEXT else None", "from_blob(blob)"),
    ),
    guard(
        "a silent worker is given up",
        f"{BOAT}a_worker_that_is_silent_is_given_up",
        never("silent-remote"),
    ),
    guard(
        "a machine with other versions is refused",
        f"{BOAT}a_machine_whose_bytes_may_differ_is_refused",
        never("same-bytes"),
    ),
    guard(
        "strangers at a worker's door are bounded",
        f"{BOAT}strangers_at_the_door_are_bounded",
        never("strangers-bounded"),
    ),
    guard(
        "a ferry that hangs is killed",
        f"{BOAT}a_ferry_that_hangs_is_killed_before_its_tasks_are_given_to_others",
        never("silent-ferry"),
    ),
    guard(
        "a ferry that waits for a core is not killed",
        f"{BOAT}a_ferry_that_waits_for_a_core_is_not_killed",
        replaced("ferry-core", "pass"),
    ),
    # ---- files that are read here for others
    guard("a name is a text of one file", f"{REFUSED}[an end cut off]", never("permit-text")),
    guard(
        "only files below the dataset's folder are read", f"{REFUSED}[another folder]", never("permit-folder")
    ),
    guard(
        "only files with the dataset's endings are read", f"{REFUSED}[another ending]", never("permit-suffix")
    ),
    guard(
        "no name climbs out of the folder", f"{REFUSED}[a climb]", replaced("permit-climbs", "return True")
    ),
    guard(
        "only regular files are read",
        f"{READS}a_pipe_a_folder_and_a_missing_file_are_errors",
        never("read-regular"),
    ),
    guard(
        "a shard that has changed is not read",
        f"{READS}a_listed_file_that_has_changed_is_an_error",
        never("read-stamp"),
    ),
    guard(
        "only bytes that a file has are read",
        f"{READS}a_range_outside_of_the_file_is_an_error[0-6]",
        always("read-span"),
    ),
    guard(
        "only samples that are to be cut come cut",
        f"{AWAY}cut_rows_of_a_layout_that_is_not_cut_end_the_connection",
        replaced("cut-known", "shape = shape or (2, 2, 3)"),
    ),
    guard("requests are bounded", f"{READS}too_many_requests_end_the_connection", never("reads-bounded")),
    guard(
        "what cannot be read elsewhere is not skipped there",
        f"{AWAY}what_a_remote_worker_cannot_read_is_not_skipped_but_goes_home",
        removed("reads-unforgiven"),
    ),
    guard(
        "what cannot be read elsewhere is prepared here",
        "unit/test_core_plans.py::test_what_a_remote_worker_cannot_read_is_done_here",
        removed("unreached-at-home"),
    ),
    guard(
        "a batch that cannot leave its machine is made here",
        "unit/test_core_plans.py::test_a_whole_batch_that_cannot_leave_its_machine_is_made_here",
        removed("whole-at-home"),
    ),
]
