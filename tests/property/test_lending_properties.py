"""Whatever ranks say: cores are neither made nor lost, nobody is robbed, and none is idle while it is wanted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.lending import RULES, RankView, apportioned, by_waiting, evened, in_step

VIEWS = st.builds(
    RankView,
    home=st.integers(0, 16),
    allowed=st.integers(0, 64),
    crew=st.sampled_from(["a", "b"]),
    epoch=st.integers(0, 1),
    taken=st.integers(0, 3),
    ahead=st.floats(0, 6),
    batch_s=st.sampled_from([0.0, 1e-6, 0.01, 1.0, 3.0, 1e4]),
    waiting=st.integers(0, 300),
    waiting_due=st.integers(0, 40),
    soon=st.integers(0, 16),
    busy=st.integers(0, 64),
    window=st.integers(0, 8),
    most=st.sampled_from([0, 0, 1, 100]),
)
RANKS = st.lists(VIEWS, min_size=1, max_size=9)


@given(RANKS, st.integers(1, 80), st.sampled_from(["evened", "paper"]))
def test_nobody_gets_cores_that_are_not_there(ranks: list[RankView], cores: int, rule: str) -> None:
    allowed = RULES[rule](ranks, cores)
    assert len(allowed) == len(ranks)
    assert min(allowed) >= 0
    assert sum(allowed) <= cores


@given(RANKS, st.integers(1, 80))
def test_no_core_is_idle_while_a_rank_wants_it(ranks: list[RankView], cores: int) -> None:
    allowed = evened(ranks, cores)
    unmet = sum(max(0, rank.wants - has) for rank, has in zip(ranks, allowed, strict=True))
    assert sum(allowed) == cores or not unmet


@given(RANKS)
def test_a_crew_that_has_work_for_its_cores_has_them(ranks: list[RankView]) -> None:
    allowed = evened(ranks, sum(rank.home for rank in ranks))
    for crew in in_step(ranks):
        own, wanted = sum(ranks[i].home for i in crew), sum(ranks[i].wants for i in crew)
        assert sum(allowed[i] for i in crew) >= min(own, wanted)


@given(RANKS)
def test_without_anything_to_do_everything_is_home(ranks: list[RankView]) -> None:
    idle = [rank._replace(waiting=0, busy=0) for rank in ranks]
    assert evened(idle, sum(rank.home for rank in idle)) == [rank.home for rank in idle]


@given(RANKS)
def test_crews_divide_the_ranks(ranks: list[RankView]) -> None:
    crews = in_step(ranks)
    assert sorted(i for crew in crews for i in crew) == list(range(len(ranks)))
    assert all(len({ranks[i].crew for i in crew}) == 1 for crew in crews)


@given(RANKS)
def test_the_paper_takes_only_from_ranks_that_have_finished(ranks: list[RankView]) -> None:
    for rank, has in zip(ranks, by_waiting(ranks, sum(rank.home for rank in ranks)), strict=True):
        assert (
            has >= rank.home
            or rank.ahead >= 1
            or (rank.epoch, rank.taken) > min((one.epoch, one.taken) for one in ranks)
        )


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.integers(0, 400))
def test_parts_are_proportional_and_add_up(weights: list[int], total: int) -> None:
    parts = apportioned(total, weights)
    assert sum(parts) == (total if sum(weights) else 0)
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - total * weight / max(1, sum(weights))) < 1
