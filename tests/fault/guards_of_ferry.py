"""The guards of the ferry and of remote workers (see `guards`)."""

from __future__ import annotations

from tests.fault.guards import guard
from tests.fault.markers import changed, never, removed

BOAT = "unit/test_boat.py::test_"

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
]
