"""The guards of the store on the device (see `guards`)."""

from __future__ import annotations

from tests.fault.guards import guard
from tests.fault.markers import changed, removed, replaced

UNIT, LANE = "unit/test_kept_device.py::test_", "unit/test_residents.py::test_"

DEVICE_GUARDS = [
    guard(
        "a write to a chunk is noted before it is begun",
        f"{UNIT}what_was_read_counts_until_something_else_is_written_there",
        removed("write-noted"),
    ),
    guard(
        "a place that was given away is not written",
        f"{UNIT}a_place_that_was_given_away_is_not_written",
        changed("may-write", "self._is_of(chunk, place)", "True"),
    ),
    guard(
        "two generations are not written at once",
        f"{UNIT}two_generations_of_a_chunk_are_not_written_at_once",
        changed("may-write", "(others is None or others[0] == place.generation)", "True"),
    ),
    guard(
        "what lies in a chunk that was given away has no row",
        f"{UNIT}what_was_written_to_a_chunk_that_is_given_away_has_no_row",
        changed("row-of-chunk", " and self._is_of(chunk, place)", ""),
    ),
    guard(
        "a sample whose place was written meanwhile is made again",
        f"{LANE}a_sample_whose_place_was_given_away_is_made_again",
        replaced("place-still-held", "right[~new] = True"),
    ),
]
