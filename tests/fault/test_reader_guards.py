"""Remove each guard of the byte cache's readers in turn: its test must fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.guards import Guard, played
from tests.fault.guards_of_readers import READER_GUARDS
from tests.fault.programs import Zygote
from tests.fault.test_guards import check_missed


@pytest.mark.parametrize("removed", played(READER_GUARDS), ids=lambda guard: guard.name.replace(" ", "_"))
def test_a_guard_that_is_gone_is_missed(removed: Guard, bare: Zygote, tmp_path: Path) -> None:
    check_missed(removed, bare, tmp_path, patience_s=60.0)
