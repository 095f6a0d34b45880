"""The store on disk after a power cut at any moment (`power_cuts`): 3,000 states, or with `PENSTOCK_FULL=1` a million by a campaign."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FULL
from tests.fault.guards import ROOT
from tests.fault.power_cuts import STATES, Call, Run, examine, record, run

SEEDS, CAMPAIGN = 30, 10_000
PARTS = 6
"""One test each: none takes longer than a test may."""


@pytest.mark.parametrize("part", range(PARTS))
def test_no_power_cut_costs_a_synced_entry_or_gives_wrong_bytes(part: int) -> None:
    rows = [run(seed) for seed in range(part, SEEDS, PARTS)]
    assert all(row["ok"] for row in rows), rows
    assert sum(row["entries"] for row in rows) > 5 * STATES * len(rows)  # there was something to be wrong


@pytest.mark.skipif(not FULL, reason="the full campaign needs PENSTOCK_FULL=1")
def test_a_million_power_cuts() -> None:
    command = [sys.executable, "benchmarks/power_cut_campaign.py", "--schedules", str(CAMPAIGN)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("what", ["sync", "sync_folder"])
def test_the_states_tell_a_sync_that_is_missing(what: str, tmp_path: Path) -> None:
    """Guards the test above: of a disk that ignores syncs, synced entries are lost."""
    found = record(tmp_path / "run")
    calls = [call if call.what != what else Call("folder", path=found.folder) for call in found.calls]
    with pytest.raises(AssertionError, match="was synced"):
        examine(Run(found.folder, calls, found.puts, found.synced), 300, str(tmp_path / "states"))
