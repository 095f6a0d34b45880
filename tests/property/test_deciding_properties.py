"""Loaders come, report, fall silent and go in any order: nobody who is heard is left without a core that it needs, and no core is made up."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.deciding import BEAT_S, PAUSE_S, SILENT_S, Deciding, are_mostly_the_same, owned, pools
from penstock.policy.lending import RankView, evened, in_step

CORES = st.sampled_from([frozenset(range(4)), frozenset(range(4, 8)), frozenset(range(8)), frozenset({0})])


def view_of(rng: random.Random) -> RankView:
    home = rng.randint(1, 8)
    return RankView(
        home=home,
        allowed=home,
        crew=rng.choice("ab"),
        taken=rng.randint(0, 9),
        ahead=rng.choice((0.0, 0.5, 2.5, 5.0)),
        batch_s=rng.choice((0.0, 0.1, 3.0)),
        waiting=rng.choice((0, 3, 200)),
        busy=rng.randint(0, home),
        window=rng.choice((0, 1, 6)),
    )


class History:
    """A manager's life, as a seed draws it."""

    def __init__(self, seed: int, cores: list[frozenset[int]]) -> None:
        self.rng, self.cores = random.Random(seed), cores
        self.now_s, self.number = 0.0, 0
        self.deciding = Deciding(evened, 0.0, quota=self.rng.choice((None, 1.0, 3.5)))

    def step(self) -> dict[int, int]:
        """Let something happen, then decide; return what is told."""
        rng, deciding = self.rng, self.deciding
        here = list(deciding.lenders)
        match rng.choice(("join", "report", "report", "leave", "silence", "other cores", "quota")):
            case "join":
                self.number = (self.number + 1) % 9  # some that have left come back
                deciding.join(self.number, auto=rng.random() < 0.6, cores=rng.choice(self.cores))
                deciding.hear(self.number, self.now_s)
                deciding.report(self.number, view_of(rng), self.now_s)
            case "report" if here:
                one = rng.choice(here)
                deciding.hear(one, self.now_s)
                deciding.report(one, view_of(rng), self.now_s)
            case "leave" if here:
                deciding.leave(rng.choice(here))
            case "silence":
                self.now_s += SILENT_S
            case "other cores" if here:
                deciding.join(rng.choice(here), auto=True, cores=rng.choice(self.cores))
            case _:
                deciding.quota = rng.choice((None, 1.0, 3.5))
        self.now_s += PAUSE_S
        told = deciding.decide(self.now_s)
        for number, workers in told.items():
            if rng.random() < 0.9:  # else its stream was clogged
                deciding.told(number, workers, self.now_s)
        return told


@given(st.integers(0, 1 << 30), st.lists(CORES, min_size=1, max_size=3))
def test_whoever_is_heard_and_has_work_gets_a_core_and_no_core_is_made_up(
    seed: int, cores: list[frozenset[int]]
) -> None:
    history = History(seed, cores)
    for _ in range(60):
        told = history.step()
        heard = history.deciding.heard(history.now_s)
        allowed = {number: told.get(number, one.granted) for number, one in heard.items()}
        for pool in pools({number: one.cores for number, one in heard.items()}):
            members = [heard[number] for number in pool]
            has = [allowed[number] for number in pool]
            assert sum(has) <= sum(owned(members, history.deciding.quota))
            views = [one.as_seen(history.now_s) for one in members]
            for crew in in_step(views):
                wanted, own = sum(views[i].wants for i in crew), sum(views[i].home for i in crew)
                assert sum(has[i] for i in crew) >= min(wanted, own)
                assert own >= len(crew)


@given(st.integers(0, 1 << 30), st.lists(CORES, min_size=1, max_size=3))
def test_who_has_not_its_own_number_of_workers_is_told_so_again(
    seed: int, cores: list[frozenset[int]]
) -> None:
    history = History(seed, cores)
    for _ in range(30):
        history.step()
    history.deciding.decide(history.now_s)
    told = history.deciding.decide(history.now_s + 1.5 * BEAT_S)
    for number, one in history.deciding.reported.items():
        assert number in told or one.granted == one.workers


def test_one_that_comes_back_as_it_was_has_its_own_cores_again() -> None:
    deciding = Deciding(evened, 0.0)
    view = RankView(home=1, allowed=1, waiting=9, window=2)
    for at_s in (1.0, 2.0):
        deciding.join(0, auto=True, cores=frozenset({0}))
        deciding.hear(0, at_s)
        deciding.report(0, view, at_s)
        assert deciding.decide(at_s) == {0: 1}
        deciding.leave(0)


@given(st.dictionaries(st.integers(0, 9), CORES, max_size=9))
def test_pools_divide_the_loaders_and_only_mostly_equal_cores_are_together(
    cores: dict[int, frozenset[int]],
) -> None:
    found = pools(cores)
    assert sorted(number for pool in found for number in pool) == sorted(cores)
    for pool in found:
        for one in pool:
            assert len(pool) == 1 or any(
                are_mostly_the_same(cores[one], cores[other]) for other in pool if other != one
            )
