"""Remove each guard in turn: its test must fail. With all guards in place the same tests pass."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path

import pytest

from tests.fault.guards import FAILED, GUARDS, PASSED, ROOT, Guard, mutate, played
from tests.fault.markers import find
from tests.fault.programs import Zygote, fair

TRIES = 3
"""Some guards are about moments: without them a test fails often, not always."""
MUTANT_S = 12.0
"""A mutant that hangs is caught; the tests themselves take a second or two."""


def copied(tmp_path: Path) -> Path:
    """A copy of the sources, compiled files included: they stay valid for all but the mutated one."""
    shutil.copytree(ROOT / "src", tmp_path / "src")
    return tmp_path / "src"


@pytest.mark.parametrize("removed", played(GUARDS), ids=lambda guard: guard.name.replace(" ", "_"))
def test_a_guard_that_is_gone_is_missed(removed: Guard, bare: Zygote, tmp_path: Path) -> None:
    check_missed(removed, bare, tmp_path, tries=TRIES)


def check_missed(
    removed: Guard, bare: Zygote, folder: Path, *, tries: int = 1, patience_s: float = MUTANT_S
) -> str:
    """Without the guard its test fails, and not for want of a name; what it said."""
    sources = copied(folder)
    mutate(sources / "penstock", removed)
    for _ in range(tries):
        code, said = run_mutant(removed, bare, sources, patience_s)
        if code != PASSED:
            break
    assert code == FAILED, (
        "the test passes without the guard" if code == PASSED else f"it did not run: {said}"
    )
    assert not re.search(r"^E +(NameError|SyntaxError|ImportError)", said, re.MULTILINE), f"no mutant: {said}"
    return said


def run_mutant(removed: Guard, bare: Zygote, sources: Path, patience_s: float) -> tuple[int, str]:
    program = bare.start(
        "tests.fault.guards:run_tests", path=[str(sources)], sources=str(sources), tests=[removed.test]
    )
    try:
        code = program.wait(within_s=fair(patience_s))
    except AssertionError:
        code = FAILED  # it hangs
        program.signal(signal.SIGKILL)
    said = "\n".join(program.rest()) + program.errors()
    bare.end_programs()
    return code, said


def test_with_all_guards_in_place_the_same_tests_pass(bare: Zygote, tmp_path: Path) -> None:
    """The quick ones, to show that it is not the copy that fails; all of them run in their own place as well."""
    sources = copied(tmp_path)
    tests = sorted({guard.test for guard in GUARDS if guard.test.startswith("tests/unit/")})
    program = bare.start(
        "tests.fault.guards:run_tests", path=[str(sources)], sources=str(sources), tests=tests
    )
    code = program.wait(within_s=fair(90.0))
    said = "\n".join(program.rest()) + program.errors()
    bare.end_programs()
    assert code == PASSED, said


def test_there_are_guards_of_every_kind() -> None:
    assert len(GUARDS) >= 20
    assert len({guard.name for guard in GUARDS}) == len(GUARDS)
    package = ROOT / "src" / "penstock"
    places = find(package)
    files = [places[edit.marker][0].relative_to(package) for guard in GUARDS for edit in guard.edits]
    assert len({file.parts[0] for file in files}) >= 4  # packages
