"""The guards of the store on the device: each is removed in turn, and its test must fail (see `guards`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.guards import Guard, guard
from tests.fault.programs import Zygote
from tests.fault.test_guards import bare, check_missed  # noqa: F401 - a fixture

pytest.importorskip("triton")
STORE, RESIDENTS = "store/kept_device.py", "gpu/residents.py"
UNIT, LANE = "unit/test_kept_device.py::test_", "unit/test_residents.py::test_"

DEVICE_GUARDS = [
    guard(
        "a write to a chunk is noted before it is begun",
        f"{UNIT}what_was_read_counts_until_something_else_is_written_there",
        (STORE, "                    self._written[chunk] = place.generation\n", ""),
    ),
    guard(
        "a place that was given away is not written",
        f"{UNIT}a_place_that_was_given_away_is_not_written",
        (STORE, "may = self._is_of(chunk, place) and (", "may = True and ("),
    ),
    guard(
        "two generations are not written at once",
        f"{UNIT}two_generations_of_a_chunk_are_not_written_at_once",
        (STORE, "(others is None or others[0] == place.generation)", "True"),
    ),
    guard(
        "what lies in a chunk that was given away has no row",
        f"{UNIT}what_was_written_to_a_chunk_that_is_given_away_has_no_row",
        (STORE, "if sizes is not None and self._is_of(chunk, place):", "if sizes is not None:"),
    ),
    guard(
        "a sample whose place was written meanwhile is made again",
        f"{LANE}a_sample_whose_place_was_given_away_is_made_again",
        (RESIDENTS, "        right[~new] = store.hold(places[~new])\n", "        right[~new] = True\n"),
    ),
]


@pytest.mark.parametrize("removed", DEVICE_GUARDS, ids=lambda guard: guard.name.replace(" ", "_"))
def test_a_guard_that_is_gone_is_missed(removed: Guard, bare: Zygote, tmp_path: Path) -> None:  # noqa: F811
    check_missed(removed, bare, tmp_path)
