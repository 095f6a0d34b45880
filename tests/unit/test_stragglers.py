"""Who holds up the others: from the sums of ranks to a name, a reason and a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.policy.straggler_text import straggler_remark
from penstock.policy.stragglers import (
    CrewBook,
    CrewMember,
    RankRecent,
    RankSums,
    Slowest,
    Why,
    slowest_of,
)


def rank(
    number: int,
    waited_s: float,
    *,
    sample_s: float = 0.01,
    blocked: float = 0.0,
    cores: float = 2.0,
    delayed: float = 0.0,
    batches: int = 100,
) -> RankRecent:
    """A rank in ten seconds of steady training; `blocked`: share of its work."""
    return RankRecent(
        number, batches, 10.0, waited_s, cores, sample_s, sample_s * (1 - blocked), delayed_share=delayed
    )


def found(*ranks: RankRecent) -> Slowest:
    last = slowest_of(ranks)
    assert last is not None
    return last


def remark(*ranks: RankRecent) -> str:
    last = found(*ranks)
    return straggler_remark({"slowest": {**last._asdict(), "share": last.share}})


# ---- who


def test_the_rank_that_waits_longest_holds_up_the_others_for_what_it_waits_more() -> None:
    last = found(rank(0, 6.0), rank(1, 1.0), rank(2, 2.0), rank(3, 1.0))
    assert (last.rank, last.ranks, last.held_s, last.share) == (0, (0,), 5.0, 0.5)


def test_ranks_that_wait_alike_hold_up_nobody() -> None:
    assert slowest_of([rank(0, 6.0), rank(1, 5.9)]) is None


def test_a_rank_that_is_nearly_as_slow_is_named_with_the_slowest() -> None:
    assert found(rank(0, 5.0), rank(1, 0.0), rank(2, 0.0), rank(3, 4.0)).ranks == (0, 3)


def test_ranks_out_of_step_do_not_wait_for_each_other() -> None:
    assert slowest_of([rank(0, 9.0, batches=100), rank(1, 0.0, batches=300)]) is None


def test_a_few_batches_of_difference_are_copies_to_a_device() -> None:
    assert found(rank(0, 9.0, batches=100), rank(1, 0.0, batches=104)).rank == 0


def test_two_loaders_of_one_rank_are_not_compared() -> None:
    assert slowest_of([rank(0, 9.0), rank(0, 0.0)]) is None


@pytest.mark.parametrize("ranks", [[], [rank(0, 5.0)], [rank(0, 5.0, batches=9), rank(1, 0.0, batches=9)]])
def test_too_little_says_nothing(ranks: list[RankRecent]) -> None:
    assert slowest_of(ranks) is None


# ---- why


@pytest.mark.parametrize(
    ("slow", "reason"),
    [
        (rank(0, 5.0, sample_s=0.03), Why.SAMPLES),
        (rank(0, 5.0, sample_s=0.03, blocked=0.7), Why.SOURCE),
        (rank(0, 5.0, sample_s=0.03, cores=4.0), Why.SAMPLES),
        (rank(0, 5.0, cores=1.0), Why.CORES),
        (rank(0, 5.0, sample_s=0.013, cores=1.0), Why.CORES),
        (rank(0, 5.0, sample_s=0.04, cores=1.0), Why.SAMPLES),
        (rank(0, 5.0, cores=0.0), Why.SINGLE),
        (rank(0, 5.0, delayed=0.3), Why.CROWD),
        (rank(0, 5.0), Why.SINGLE),
        (rank(0, 5.0, sample_s=0.0), Why.SINGLE),
    ],
)
def test_the_reason_is_what_differs_most(slow: RankRecent, reason: Why) -> None:
    assert found(slow, rank(1, 0.0), rank(2, 0.1)).why is reason


# ---- the sentence


def test_dearer_samples_are_named_with_what_would_help() -> None:
    assert remark(rank(0, 5.0, sample_s=0.03), rank(1, 0.0)) == (
        " Rank 0 holds up the others 50% of the time: its samples take 3.0 times as much work. Cheaper samples would help, or "
        'deal="cost" if the dataset knows what samples cost.'
    )


def test_a_slow_source_is_told_apart_from_computing_and_lending_is_mentioned() -> None:
    said = remark(rank(1, 5.0, sample_s=0.03, blocked=0.9, cores=3.0), rank(0, 0.0, cores=1.0))
    assert said.startswith(" Rank 1 holds up the others 50% of the time: its samples take 3.0 times as long")
    assert "mostly blocked" in said
    assert "although they have 3.0 cores and the others' 1.0" in said


def test_fewer_cores_are_counted() -> None:
    said = remark(rank(0, 5.0, cores=1.0), rank(1, 0.0, cores=3.0))
    assert "it has 1.0 cores, the others 3.0" in said


def test_several_ranks_are_named_together() -> None:
    said = remark(rank(0, 5.0, delayed=0.4), rank(3, 5.0, delayed=0.4), *(rank(n, 0.0) for n in (4, 5, 6)))
    assert said.startswith(
        " Ranks 0 and 3 hold up the others 50% of the time: their workers wait for a core 40%"
    )


@pytest.mark.parametrize("node", [None, {}, {"slowest": None}])
def test_without_a_manager_or_a_slow_rank_nothing_is_said(node: dict[str, Any] | None) -> None:
    assert straggler_remark(node) == ""


def test_what_costs_little_is_not_worth_a_word() -> None:
    assert remark(rank(0, 0.3), rank(1, 0.0)) == ""


# ---- the book


def told(number: int, batches: int, waited_s: float, *, before: int = 0) -> CrewMember:
    """A rank that takes ten batches a second."""
    count = before + batches
    return CrewMember(
        number, 2, RankSums(count, count / 10, waited_s, 8 * count, count / 5, count / 10, 0.0, 0.0)
    )


def played(book: CrewBook, batches: range, *, before: int = 0) -> None:
    """Rank 0 waits all the time, rank 1 never."""
    for count in batches:
        book.note({7: told(0, count, count / 10, before=before), 8: told(1, count, 0.0, before=before)})


def test_what_was_before_the_first_look_does_not_count() -> None:
    book = CrewBook()
    played(book, range(1, 52), before=1000)
    assert [one.batches for one in book.recent()] == [50, 50]
    assert found(*book.recent()).held_s == pytest.approx(5.0)


def test_the_window_slides() -> None:
    book = CrewBook()
    played(book, range(1, 2_000))
    assert found(*book.recent()).of_s == pytest.approx(30.0, abs=1.2)
    assert len(book.marks) < 40


def test_slow_steps_make_the_window_longer() -> None:
    book = CrewBook()
    for count in range(1, 100):
        book.note({one: CrewMember(one, 2, RankSums(count, 5.0 * count)) for one in (0, 1)})
    assert 40 <= book.recent()[0].batches <= 41


def test_who_has_left_stays_until_somebody_joins() -> None:
    book = CrewBook()
    played(book, range(1, 50))
    book.note({8: told(1, 50, 0.0)})
    book.note({})
    assert found(*book.recent()).rank == 0
    book.note({9: told(0, 1, 0.0)})
    assert [one.rank for one in book.recent()] == [0]


def test_a_loader_that_has_taken_nothing_has_not_joined() -> None:
    book = CrewBook()
    book.note({7: CrewMember(0, 2, RankSums())})
    assert book.recent() == []


def test_borrowed_and_lent_cores_count() -> None:
    book = CrewBook()
    book.note({0: CrewMember(0, 2, RankSums(1)), 1: CrewMember(1, 2, RankSums(1))})
    book.note(
        {
            0: CrewMember(0, 2, RankSums(11, 10.0, extra_s=15.0)),
            1: CrewMember(1, 2, RankSums(11, 10.0, extra_s=-15.0)),
        }
    )
    assert [one.cores for one in book.recent()] == [3.5, 0.5]
