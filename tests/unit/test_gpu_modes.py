"""Which mode the lane is in, by what batches tell: off until training waits, then what a trial found."""

from __future__ import annotations

import pytest

from penstock.gpu.modes import SETTLE, Modes
from penstock.policy.backlog import FIRST, Seen
from penstock.policy.sharing import WINDOW, Memory, Sharing


def run(modes: Modes, batches: int, batch_s: dict[Sharing, float], step_s: float = 0.1) -> list[Sharing]:
    """Batches whose time depends on the mode; what is more than a step is waiting."""
    found = []
    for _ in range(batches):
        period = batch_s[modes.mode]
        modes.on_batch(Seen(0, 8, max(0.0, period - step_s), period, 0.1, full=True))
        found.append(modes.mode)
    return found


TRIAL = 4 * (SETTLE + WINDOW + 1)


@pytest.mark.parametrize(
    ("times", "best"),
    [
        ({Sharing.OFF: 0.4, Sharing.IDLE: 0.3, Sharing.CONCURRENT: 0.2}, Sharing.CONCURRENT),
        ({Sharing.OFF: 0.4, Sharing.IDLE: 0.2, Sharing.CONCURRENT: 0.3}, Sharing.IDLE),
        ({Sharing.OFF: 0.2, Sharing.IDLE: 0.3, Sharing.CONCURRENT: 0.4}, Sharing.OFF),
    ],
)
def test_a_trial_of_each_way_decides(times: dict[Sharing, float], best: Sharing) -> None:
    modes = Modes("auto")
    tried = run(modes, TRIAL, times)
    assert set(tried) == set(Sharing)
    assert modes.mode is best


def test_a_job_that_does_not_wait_is_never_tried_on() -> None:
    modes = Modes("auto")
    assert set(run(modes, 3 * TRIAL, dict.fromkeys(Sharing, 0.1))) == {Sharing.OFF}
    assert modes.limit == 0.0


def test_without_room_for_both_only_idle_time_is_tried() -> None:
    modes = Modes("auto", memory=lambda: Memory(90, 20, 100))
    tried = run(modes, TRIAL, {Sharing.OFF: 0.4, Sharing.IDLE: 0.3, Sharing.CONCURRENT: 0.2})
    assert set(tried) == {Sharing.OFF, Sharing.IDLE}


@pytest.mark.parametrize("asked", ["idle", "concurrent"])
def test_a_mode_that_was_asked_for_stays(asked: str) -> None:
    modes = Modes(asked)
    assert set(run(modes, TRIAL, dict.fromkeys(Sharing, 0.4))) == {Sharing(asked)}
    assert modes.limit > FIRST


def test_a_fixed_share_stays() -> None:
    modes = Modes("concurrent", fixed_share=0.25)
    run(modes, TRIAL, dict.fromkeys(Sharing, 0.4))
    assert modes.fixed_share == 0.25
    assert modes.limit == FIRST
