"""When the GPU helps to prepare, and how: memory first, then measured contests, held again when the rate drifts."""

from __future__ import annotations

import pytest

from penstock.policy.sharing import (
    LONGEST_TURN,
    LOOK_AGAIN,
    RECENT,
    ROUNDS,
    SHORTEST_REST,
    SHORTEST_TURN,
    TURN,
    Choice,
    Measured,
    Memory,
    Sharing,
    after_block,
    first_choice,
)

ROOM, TIGHT = Memory(50, 20, 100), Memory(90, 20, 100)
OFF, IDLE, CONCURRENT = Sharing.OFF, Sharing.IDLE, Sharing.CONCURRENT
Job = dict[Sharing, Measured]


def job(off: float, idle: float, concurrent: float, *, step_s: float = 0.1, inflated_s: float = 0.0) -> Job:
    """A job by its seconds per batch in each mode. Training's own step is `step_s`, beside the lane longer by `inflated_s`."""
    steps = {OFF: step_s, IDLE: step_s, CONCURRENT: step_s + inflated_s}
    times = {OFF: off, IDLE: idle, CONCURRENT: concurrent}
    return {mode: Measured(times[mode], max(0.0, times[mode] - steps[mode])) for mode in Sharing}


def run(
    choice: Choice, times: Job, *, blocks: int, memory: Memory = ROOM, factors: tuple[float, ...] = (1.0,)
) -> tuple[Choice, list[Sharing]]:
    """`factors`: what blocks take longer by, one after the other."""
    modes = []
    for at in range(blocks):
        modes.append(choice.mode)
        one, factor = times[choice.mode], factors[at % len(factors)]
        measured = Measured(one.batch_s * factor, one.wait_s * factor, one.lane_worked)
        choice = after_block(choice, measured, asked="auto", memory=memory)
    return choice, modes


def test_a_job_that_does_not_wait_is_measured_once_and_never_disturbed() -> None:
    choice, modes = run(first_choice("auto"), job(0.1, 0.1, 0.12), blocks=2000)
    assert set(modes) == {OFF}
    assert not choice.trying


def test_a_job_that_waits_is_helped_beside_training_without_trying_idle_time() -> None:
    choice, modes = run(first_choice("auto"), job(0.4, 0.3, 0.2), blocks=1000)
    assert modes == [OFF] * SHORTEST_TURN + [CONCURRENT] * (1000 - SHORTEST_TURN)
    assert (choice.mode, choice.trying) == (CONCURRENT, False)


@pytest.mark.parametrize(
    ("times", "mode"),
    [
        (job(0.4, 0.3, 0.39, inflated_s=0.2), IDLE),  # what it gains, training loses
        (job(0.4, 0.3, 0.5), IDLE),
        (job(0.4, 0.35, 0.3, inflated_s=0.15), CONCURRENT),
        (job(0.4, 0.399, 0.5), OFF),
        (job(0.4, 0.5, 0.398), OFF),
    ],
)
def test_idle_time_is_tried_where_concurrent_slows_training_more_than_it_gains(
    times: Job, mode: Sharing
) -> None:
    choice, modes = run(first_choice("auto"), times, blocks=3 * TURN)
    assert list(dict.fromkeys(modes)) == [OFF, CONCURRENT, IDLE]
    assert (choice.mode, choice.trying) == (mode, False)


def test_a_job_that_waits_a_little_is_measured_for_a_whole_turn() -> None:
    _, modes = run(first_choice("auto"), job(0.12, 0.115, 0.11), blocks=2 * TURN)
    assert modes == [OFF] * TURN + [CONCURRENT] * TURN


def test_a_difference_within_its_error_is_measured_again_in_turns() -> None:
    noise = (0.85, 1.2, 0.9, 1.1)
    _, modes = run(
        first_choice("auto"), job(0.2, 0.2, 0.196, step_s=0.18), blocks=2 * ROUNDS * TURN, factors=noise
    )
    assert modes == ([OFF] * TURN + [CONCURRENT] * TURN) * ROUNDS


def test_a_contest_without_a_clear_winner_ends_with_the_gentler_mode() -> None:
    noise = (0.85, 1.2, 0.9, 1.1)
    choice, modes = run(first_choice("auto"), job(0.2, 0.2, 0.199, step_s=0.18), blocks=60, factors=noise)
    assert not choice.trying
    assert choice.mode is OFF
    assert modes[-1] is OFF


def test_one_block_with_an_evaluation_in_it_does_not_decide() -> None:
    long_block = (1.0,) * TURN + (50.0,) + (1.0,) * 1000
    choice, _ = run(first_choice("auto"), job(0.4, 0.3, 0.2), blocks=500, factors=long_block)
    assert choice.mode is CONCURRENT


def test_a_turn_goes_on_while_workers_warm_up() -> None:
    """The first blocks are slow; a job that does not wait once it is warm is left alone."""
    warm, choice = job(0.1, 0.1, 0.1), first_choice("auto")
    for factor in (8.0, 6.0, 4.0, 3.0, 2.0, 1.5, 1.2):
        measured = Measured(0.1 * factor, 0.1 * (factor - 1.0))
        choice = after_block(choice, measured, asked="auto", memory=ROOM)
        assert choice.mode is OFF
    choice, modes = run(choice, warm, blocks=LONGEST_TURN)
    assert set(modes) == {OFF}
    assert not choice.trying


def test_where_memory_does_not_fit_concurrent_is_not_even_tried() -> None:
    choice, modes = run(first_choice("auto"), job(0.4, 0.3, 0.1), blocks=20, memory=TIGHT)
    assert CONCURRENT not in modes
    assert choice.mode is IDLE


def test_memory_that_grows_ends_concurrent_sharing_at_once() -> None:
    times = job(0.4, 0.3, 0.1)
    choice, _ = run(first_choice("auto"), times, blocks=20)
    assert choice.mode is CONCURRENT
    assert after_block(choice, times[CONCURRENT], asked="auto", memory=TIGHT).mode is OFF


@pytest.mark.parametrize("mode", ["off", "idle", "concurrent"])
def test_the_users_word_is_not_tried_or_changed(mode: str) -> None:
    choice = first_choice(mode)
    for memory in (ROOM, TIGHT):
        choice = after_block(choice, Measured(1.0, 0.9), asked=mode, memory=memory)
    assert choice == Choice(Sharing(mode))


def test_a_choice_is_questioned_when_batches_come_more_slowly_and_training_waits() -> None:
    choice, _ = run(first_choice("auto"), job(0.4, 0.3, 0.2), blocks=40)
    after, modes = run(choice, job(0.4, 0.3, 0.5), blocks=RECENT + 3 * TURN)
    assert OFF in modes[: RECENT + 1]
    assert after.mode is IDLE


def test_a_longer_step_of_trainings_own_questions_nothing() -> None:
    choice, _ = run(first_choice("auto"), job(0.4, 0.3, 0.2), blocks=40)
    _, modes = run(choice, job(0.5, 0.5, 0.5, step_s=0.5), blocks=1000)
    assert set(modes) == {CONCURRENT}


def test_a_few_odd_blocks_question_nothing() -> None:
    choice, _ = run(first_choice("auto"), job(0.4, 0.3, 0.2), blocks=40)
    odd = (1.0,) * 5 + (3.0,) * 3
    _, modes = run(choice, job(0.4, 0.3, 0.2), blocks=400, factors=odd)
    assert set(modes) == {CONCURRENT}


def test_a_job_that_begins_to_wait_is_helped() -> None:
    choice, _ = run(first_choice("auto"), job(0.1, 0.1, 0.1), blocks=100)
    choice, _ = run(choice, job(0.2, 0.15, 0.12), blocks=RECENT + 3 * TURN)
    assert choice.mode is CONCURRENT


def test_a_lane_with_nothing_to_do_is_turned_off_and_called_back_when_the_job_waits() -> None:
    choice, _ = run(first_choice("auto"), job(0.4, 0.3, 0.2), blocks=40)
    useless = {mode: Measured(0.1, 0.0, lane_worked=False) for mode in Sharing}
    choice, _ = run(choice, useless, blocks=RECENT)
    assert (choice.mode, choice.trying) == (OFF, False)
    choice, modes = run(choice, job(0.4, 0.3, 0.2), blocks=SHORTEST_REST + RECENT + 3 * TURN)
    assert modes[:SHORTEST_REST] == [OFF] * SHORTEST_REST
    assert choice.mode is CONCURRENT


def test_a_gentle_mode_that_leaves_training_waiting_is_questioned_ever_more_rarely() -> None:
    """Contests take a small share of the time, however long the job waits."""
    _, modes = run(first_choice("auto"), job(0.4, 0.4, 0.4), blocks=40 * LOOK_AGAIN)
    tried = [at for at, mode in enumerate(modes) if mode is not OFF]
    assert LOOK_AGAIN <= tried[2 * TURN] < LOOK_AGAIN + 5 * TURN
    assert len(tried) < 0.01 * len(modes)
