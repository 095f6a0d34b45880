"""Remove each guard of the store on disk in turn: its test must fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.guards import Guard, played
from tests.fault.guards_of_disk_store import DISK_GUARDS
from tests.fault.programs import Zygote
from tests.fault.test_guards import check_missed


@pytest.mark.parametrize("removed", played(DISK_GUARDS), ids=lambda guard: guard.name.replace(" ", "_"))
def test_a_guard_that_is_gone_is_missed(removed: Guard, bare: Zygote, tmp_path: Path) -> None:
    said = check_missed(removed, bare, tmp_path, patience_s=40.0)  # the first one has everything to import
    assert "= FAILURES =" in said, f"it only hangs: {said}"
