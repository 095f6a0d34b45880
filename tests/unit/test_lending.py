"""How cores move between ranks: by our rule, and by the paper's."""

from __future__ import annotations

import pytest

from penstock.policy.lending import APART, MOST, RULES, RankView, by_waiting, evened, in_step

BUSY = RankView(home=2, allowed=2, batch_s=1.0, waiting=100, waiting_due=20, busy=2)
FULL = BUSY._replace(ahead=4.0, waiting=0, waiting_due=0, busy=0)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("view", [BUSY, FULL])
def test_equal_ranks_keep_what_they_have(rule: str, view: RankView) -> None:
    assert RULES[rule]([view] * 3, 6) == [2, 2, 2]


@pytest.mark.parametrize("rule", ["evened", "paper"])
def test_a_rank_whose_batches_are_complete_lends_to_the_one_that_is_behind(rule: str) -> None:
    assert RULES[rule]([BUSY, FULL], 4) == [4, 0]


def test_no_core_goes_to_a_rank_that_has_no_worker_for_it() -> None:
    alone = BUSY._replace(home=1, allowed=1)
    idle = FULL._replace(home=1, allowed=1)
    assert evened([alone, *[idle] * 7], 8) == [MOST, 1, 1, 1, 1, 0, 0, 0]


def test_nobody_borrows_while_training_need_not_wait() -> None:
    ahead = BUSY._replace(ahead=2.0)
    assert evened([ahead, FULL], 4) == [2, 2]


def test_a_borrower_keeps_the_cores_until_it_is_four_batches_ahead() -> None:
    borrower = BUSY._replace(allowed=4, ahead=3.9)
    assert evened([borrower, FULL], 4) == [4, 0]
    assert evened([borrower._replace(ahead=4.0), FULL], 4) == [2, 2]


def test_dear_samples_get_cores_in_proportion() -> None:
    dear, cheap = BUSY._replace(home=4, allowed=4, batch_s=3.0), BUSY._replace(home=4, allowed=4)
    assert evened([dear, cheap], 8) == [6, 2]


def test_a_rank_that_is_ahead_gets_less_than_one_that_is_behind() -> None:
    behind, ahead = BUSY._replace(ahead=0.1), BUSY._replace(ahead=0.9)
    assert evened([behind, ahead], 4) == [3, 1]


def test_a_rank_past_the_barrier_is_ahead_although_it_has_nothing_complete() -> None:
    behind, past = BUSY._replace(taken=6, ahead=0.1), BUSY._replace(taken=7)
    assert evened([behind, past], 4) == [3, 1]


def test_loaders_out_of_step_get_what_is_theirs_first() -> None:
    far_behind, far_ahead = BUSY._replace(taken=3), BUSY._replace(taken=900)
    assert in_step([far_behind, far_ahead]) == [[0], [1]]
    assert evened([far_behind, far_ahead], 4) == [2, 2]
    assert evened([far_behind, FULL._replace(crew="another")], 4) == [4, 0]


def test_the_last_batch_of_an_epoch_is_one_step_before_the_first_of_the_next() -> None:
    last, first = BUSY._replace(taken=99), BUSY._replace(epoch=1, taken=0)
    assert in_step([last, first]) == [[0, 1]]
    assert in_step([last, first._replace(taken=APART)]) == [[0], [1]]


def test_a_shared_budget_below_the_sum_of_workers_is_divided() -> None:
    assert evened([BUSY, BUSY._replace(crew="another")], 2) == [1, 1]
    assert evened([BUSY, FULL._replace(crew="another")], 2) == [2, 0]


def test_the_paper_counts_workers_that_are_soon_free() -> None:
    done = FULL._replace(home=3)
    many, few = BUSY._replace(waiting_due=6), BUSY._replace(waiting_due=6, soon=3)
    assert by_waiting([done, many, few], 7) == [0, 4, 3]


def test_the_paper_has_all_workers_home_when_the_step_is_complete() -> None:
    assert by_waiting([FULL, FULL._replace(allowed=0)], 4) == [2, 2]


def test_with_two_batches_ahead_a_rank_is_not_short_because_one_was_taken() -> None:
    one_left = BUSY._replace(ahead=1.0, window=2)
    assert not one_left.is_short
    assert one_left._replace(ahead=0.9).is_short
    assert one_left._replace(window=8).is_short
    assert evened([one_left, FULL], 4) == [2, 2]


def test_with_short_steps_and_few_batches_ahead_a_rank_keeps_the_cores_that_idle_at_the_end_of_its_batch() -> (
    None
):
    ending = BUSY._replace(ahead=0.9, window=1, batch_s=0.04, waiting=0, waiting_due=0, busy=1)
    assert ending.wants == 2
    assert evened([ending, BUSY._replace(batch_s=0.04, window=1)], 4) == [2, 2]
    for lends in (
        ending._replace(batch_s=0.4),  # a moved core is in time
        ending._replace(window=8, ahead=1.9),  # so much has been asked for that it would have work
        ending._replace(window=0),  # nothing has been asked for
        ending._replace(ahead=1.0, busy=0),  # it is through
    ):
        assert lends.wants == lends.busy
