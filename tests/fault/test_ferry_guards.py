"""Remove each guard of the ferry in turn: its test must fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fault.guards import Guard
from tests.fault.guards_of_ferry import FERRY_GUARDS
from tests.fault.programs import Zygote
from tests.fault.test_guards import bare, check_missed  # noqa: F401 - a fixture

FULL = os.environ.get("PENSTOCK_FULL") == "1"
"""Without it every fourth."""


@pytest.mark.parametrize(
    "removed", FERRY_GUARDS[:: 1 if FULL else 4], ids=lambda guard: guard.name.replace(" ", "_")
)
def test_a_guard_that_is_gone_is_missed(removed: Guard, bare: Zygote, tmp_path: Path) -> None:  # noqa: F811
    check_missed(removed, bare, tmp_path)
