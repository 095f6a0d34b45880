"""Remove each guard of the caches of several machines in turn: its test must fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.guards import Guard, played
from tests.fault.guards_of_peers import PEER_GUARDS
from tests.fault.programs import Zygote
from tests.fault.test_guards import check_missed


@pytest.mark.parametrize("removed", played(PEER_GUARDS), ids=lambda guard: guard.name.replace(" ", "_"))
def test_a_guard_that_is_gone_is_missed(removed: Guard, bare: Zygote, tmp_path: Path) -> None:
    check_missed(removed, bare, tmp_path, patience_s=40.0)
