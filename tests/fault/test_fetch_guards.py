"""Remove each guard of object stores in turn: its test must fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.guards import Guard, played
from tests.fault.guards_of_fetch import FETCH_GUARDS
from tests.fault.programs import Zygote
from tests.fault.test_guards import check_missed
from tests.stores_here import needs_obstore

pytestmark = needs_obstore


@pytest.mark.parametrize("removed", played(FETCH_GUARDS), ids=lambda guard: guard.name.replace(" ", "_"))
def test_a_guard_that_is_gone_is_missed(removed: Guard, bare: Zygote, tmp_path: Path) -> None:
    check_missed(removed, bare, tmp_path, patience_s=40.0)
