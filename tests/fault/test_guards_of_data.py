"""Remove each guard against damaged data in turn: its test must fail."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fault.guards import FAILED, PASSED, Guard, mutate
from tests.fault.guards_of_data import DATA_GUARDS
from tests.fault.programs import Zygote
from tests.fault.test_guards import bare, copied, run_mutant  # noqa: F401 - a fixture

pytest.importorskip("PIL.Image")
pytest.importorskip("simplejpeg")


@pytest.mark.parametrize("removed", DATA_GUARDS, ids=lambda guard: guard.name.replace(" ", "_"))
def test_a_guard_that_is_gone_is_missed(removed: Guard, bare: Zygote, tmp_path: Path) -> None:  # noqa: F811
    sources = copied(tmp_path)
    mutate(sources / "penstock", removed)
    code, said = run_mutant(removed, bare, sources)
    assert code == FAILED, (
        "the test passes without the guard" if code == PASSED else f"it did not run: {said}"
    )
    assert not re.search(r"^E +(NameError|SyntaxError|ImportError)", said, re.MULTILINE), f"no mutant: {said}"
