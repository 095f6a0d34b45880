"""The lane's mode and limits, from batches as training takes them."""

from __future__ import annotations

import pytest

from penstock.gpu.modes import SETTLE, SETTLE_WINDOWS, Modes
from penstock.policy.backlog import FIRST, Seen
from penstock.policy.sharing import BLOCK, SHORTEST_TURN, TURN, Memory, Sharing

AHEAD = 8
TIMES = {Sharing.OFF: 0.4, Sharing.IDLE: 0.3, Sharing.CONCURRENT: 0.2}
TRIAL = 4 * (SETTLE + TURN * BLOCK)


def run(
    modes: Modes, batches: int, batch_s: dict[Sharing, float], step_s: float = 0.1, ahead: int = AHEAD
) -> list[Sharing]:
    """A job by its seconds per batch in each mode; more than a step is waiting."""
    found = []
    for _ in range(batches):
        period = batch_s[modes.mode]
        found.append(modes.mode)
        modes.on_batch(Seen(0, ahead, max(0.0, period - step_s), period, 0.1, full=True))
    return found


@pytest.mark.parametrize(
    ("times", "best"),
    [
        ({Sharing.OFF: 0.4, Sharing.IDLE: 0.3, Sharing.CONCURRENT: 0.2}, Sharing.CONCURRENT),
        ({Sharing.OFF: 0.4, Sharing.IDLE: 0.2, Sharing.CONCURRENT: 0.5}, Sharing.IDLE),
        ({Sharing.OFF: 0.2, Sharing.IDLE: 0.3, Sharing.CONCURRENT: 0.4}, Sharing.OFF),
    ],
)
def test_trials_decide(times: dict[Sharing, float], best: Sharing) -> None:
    modes = Modes("auto")
    tried = run(modes, TRIAL, times)
    assert {Sharing.OFF, Sharing.CONCURRENT} <= set(tried)
    assert (modes.mode, modes.trying) == (best, False)


@pytest.mark.parametrize("ahead", [2, 40])
def test_batches_that_were_begun_before_a_change_of_mode_do_not_count(ahead: int) -> None:
    modes = Modes("auto")
    tried = run(modes, ahead + SHORTEST_TURN * BLOCK + 1, TIMES, ahead=ahead)
    first = tried.index(Sharing.CONCURRENT)
    assert first == ahead + SHORTEST_TURN * BLOCK
    assert modes.trying
    run(modes, max(SETTLE, SETTLE_WINDOWS * ahead) - 1, TIMES, ahead=ahead)
    assert modes.trying
    run(modes, SHORTEST_TURN * BLOCK, TIMES, ahead=ahead)
    assert not modes.trying


def test_a_job_that_does_not_wait_is_never_tried_on() -> None:
    modes = Modes("auto")
    assert set(run(modes, 3 * TRIAL, dict.fromkeys(Sharing, 0.1))) == {Sharing.OFF}
    assert modes.limit == 0.0


def test_without_room_for_both_only_idle_time_is_tried() -> None:
    modes = Modes("auto", memory=lambda: Memory(90, 20, 100))
    tried = run(modes, TRIAL, {Sharing.OFF: 0.4, Sharing.IDLE: 0.3, Sharing.CONCURRENT: 0.2})
    assert set(tried) == {Sharing.OFF, Sharing.IDLE}


@pytest.mark.parametrize("asked", ["idle", "concurrent"])
def test_a_mode_that_was_asked_for_stays_and_has_its_cores_from_the_start(asked: str) -> None:
    modes = Modes(asked)
    assert set(run(modes, TRIAL, dict.fromkeys(Sharing, 0.4))) == {Sharing(asked)}
    assert modes.limit > FIRST
    assert not modes.takes_cores


def test_cores_are_borrowed_only_while_the_lane_works() -> None:
    modes = Modes("auto", borrows_cores=True)
    assert not modes.takes_cores
    run(modes, TRIAL, {Sharing.OFF: 0.4, Sharing.IDLE: 0.3, Sharing.CONCURRENT: 0.2})
    assert modes.takes_cores


def test_a_fixed_share_stays() -> None:
    modes = Modes("concurrent", fixed_share=0.25)
    run(modes, TRIAL, dict.fromkeys(Sharing, 0.4))
    assert modes.fixed_share == 0.25
    assert modes.limit == FIRST
