"""When the GPU helps to prepare, and how: memory first, then measured trials, looked at again when things change."""

from __future__ import annotations

from itertools import pairwise

import pytest

from penstock.policy.sharing import (
    DOUBTS,
    SOONEST,
    Choice,
    Measured,
    Memory,
    Sharing,
    after_window,
    first_choice,
    reconsidered,
)

ROOM, TIGHT = Memory(50, 20, 100), Memory(90, 20, 100)
OFF, IDLE, CONCURRENT = Sharing.OFF, Sharing.IDLE, Sharing.CONCURRENT


def job(off: float, idle: float, concurrent: float, *, step_s: float = 0.1) -> dict[Sharing, Measured]:
    """A job by its seconds per batch in each mode; what is more than its step is waiting."""
    return {
        mode: Measured(batch_s, max(0.0, batch_s - step_s), step_s)
        for mode, batch_s in ((OFF, off), (IDLE, idle), (CONCURRENT, concurrent))
    }


def run(
    choice: Choice, times: dict[Sharing, Measured], *, windows: int, memory: Memory = ROOM
) -> tuple[Choice, list[Sharing]]:
    modes = []
    for _ in range(windows):
        modes.append(choice.mode)
        choice = after_window(choice, times[choice.mode], asked="auto", memory=memory)
    return choice, modes


def test_a_job_that_does_not_wait_is_measured_once_and_never_disturbed() -> None:
    choice, modes = run(first_choice("auto"), job(0.1, 0.1, 0.12), windows=2000)
    assert set(modes) == {OFF}
    assert not choice.trying


@pytest.mark.parametrize(
    ("times", "mode"),
    [
        (job(0.4, 0.3, 0.2), CONCURRENT),
        (job(0.4, 0.2, 0.3), IDLE),
        (job(0.4, 0.3, 0.299), IDLE),
        (job(0.4, 0.399, 0.5), OFF),
    ],
)
def test_the_fastest_way_is_chosen_and_the_gentler_of_those_alike(
    times: dict[Sharing, Measured], mode: Sharing
) -> None:
    choice, modes = run(first_choice("auto"), times, windows=3)
    assert modes == [OFF, IDLE, CONCURRENT]
    assert (choice.mode, choice.trying) == (mode, False)


def test_where_memory_does_not_fit_concurrent_is_not_even_tried() -> None:
    choice, modes = run(first_choice("auto"), job(0.4, 0.3, 0.1), windows=20, memory=TIGHT)
    assert CONCURRENT not in modes
    assert choice.mode is IDLE


def test_memory_that_grows_ends_concurrent_sharing_at_once() -> None:
    choice, _ = run(first_choice("auto"), job(0.4, 0.3, 0.1), windows=5)
    assert choice.mode is CONCURRENT
    assert after_window(choice, job(0.4, 0.3, 0.1)[CONCURRENT], asked="auto", memory=TIGHT).mode is OFF


@pytest.mark.parametrize("mode", ["off", "idle", "concurrent"])
def test_the_users_word_is_not_tried_or_changed(mode: str) -> None:
    choice = first_choice(mode)
    for memory in (ROOM, TIGHT):
        choice = after_window(choice, Measured(1.0, 0.9, 0.1), asked=mode, memory=memory)
    assert choice == Choice(Sharing(mode))


def test_a_choice_is_tried_again_when_its_measure_has_changed_for_good() -> None:
    choice, _ = run(first_choice("auto"), job(0.4, 0.3, 0.2), windows=5)
    changed = job(0.4, 0.2, 0.3)
    after, modes = run(choice, changed, windows=DOUBTS + 3)
    assert modes == [CONCURRENT] * DOUBTS + [OFF, IDLE, CONCURRENT]
    assert after.mode is IDLE


def test_one_odd_window_changes_nothing() -> None:
    choice, _ = run(first_choice("auto"), job(0.4, 0.3, 0.2), windows=5)
    choice = after_window(choice, Measured(2.0, 1.9, 0.1), asked="auto", memory=ROOM)
    _, modes = run(choice, job(0.4, 0.3, 0.2), windows=10)
    assert set(modes) == {CONCURRENT}


def test_a_job_that_begins_to_wait_is_helped() -> None:
    choice, _ = run(first_choice("auto"), job(0.1, 0.1, 0.1), windows=100)
    choice, _ = run(choice, job(0.2, 0.15, 0.12), windows=DOUBTS + 3)
    assert choice.mode is CONCURRENT


def test_a_choice_that_stands_is_looked_at_ever_more_rarely() -> None:
    _, modes = run(first_choice("auto"), job(0.4, 0.3, 0.2), windows=16 * SOONEST)
    looks = [at for at, mode in enumerate(modes) if mode is OFF]
    gaps = [b - a for a, b in pairwise(looks)]
    assert gaps == sorted(gaps)
    assert len(looks) <= 6


def test_other_workers_are_a_reason_to_measure_anew() -> None:
    choice, _ = run(first_choice("auto"), job(0.4, 0.3, 0.2), windows=5)
    assert reconsidered(choice, asked="auto") == first_choice("auto")
    assert reconsidered(Choice(IDLE), asked="idle") == Choice(IDLE)


def test_the_inflation_of_a_step_is_that_of_the_mode_beside_none() -> None:
    times = {
        OFF: Measured(0.4, 0.3, 0.1),
        IDLE: Measured(0.3, 0.2, 0.1),
        CONCURRENT: Measured(0.2, 0.1, 0.103),
    }
    choice, _ = run(first_choice("auto"), times, windows=3)
    assert choice.inflation == pytest.approx(0.03)
