"""Schedules of real kills and restores: nothing lost, nothing doubled, nothing different."""

from __future__ import annotations

import logging

import pytest

from tests.conftest import FULL
from tests.fault.kill_schedules import run

SCHEDULES = 100 if FULL else 40
GROUP = 10
REGRESSIONS = (180, 438)
"""Seeds that once failed: a stream's end that came with the loss of its worker; an epoch that began where the last ended."""


@pytest.mark.parametrize("first", range(0, SCHEDULES, GROUP))
def test_whatever_is_killed_and_restored_the_batches_are_those_of_one_process(
    first: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="penstock")
    failed = [result for seed in range(first, first + GROUP) if not (result := run(seed))["ok"]]
    assert failed == []


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_a_schedule_that_failed_once_does_not_fail_again(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="penstock")
    assert run(seed)["ok"]


def test_the_schedules_do_kill() -> None:
    assert sum(run(seed).get("kills", 0) for seed in range(1000, 1006)) > 0
