"""The other half of the states after a power cut (`test_disk_store_power_cut`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.test_disk_store_power_cut import FULL, PARTS, STATES, examine, folder, record

__all__ = ["folder"]


@pytest.mark.timeout(0 if FULL else 240)
@pytest.mark.parametrize("part", range(PARTS // 2, PARTS))
def test_no_power_cut_costs_a_synced_entry_or_gives_wrong_bytes(
    part: int,
    tmp_path: Path,
    folder: str,
) -> None:
    run, states = record(tmp_path), STATES // PARTS
    found = examine(run, states, folder, part)
    assert found > 5 * states
