"""Jobs whose ranks lend cores to one another while something of them dies or is stopped: the same batches, each once, soon, and cores come home."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from penstock import DataLoader
from tests.deaths import kill_all
from tests.fault.datasets import Drawn
from tests.fault.programs import Zygote, fair, until
from tests.lending_jobs import MANAGER, NODE, Job, Rank, named_here, one_here
from tests.node_faults import stopped

SOON_S = 3.0
"""No step takes longer but where something of the rank itself is stopped; the manager's silence costs a second of it."""
WORKERS = 2
PAUSE_S = 0.6


@pytest.fixture
def job(programs: Zygote) -> Iterator[Job]:
    """A job in which cores are lent. Its batches, its cores and what it leaves are checked at its end."""
    with Job(programs, num_workers=WORKERS) as made:
        yield made
        made.check_batches()
        made.come_home()
        made.end()


@dataclass(frozen=True, slots=True)
class Harm:
    """What is done while all ranks wait at the barrier."""

    act: Callable[[], Any]
    behind: int = 4
    """Steps that must have been done since the last one."""
    lends: bool = True
    """Whether cores must be lent (again)."""


def harmed(job: Job, *harms: Harm, lends_at_the_end: bool = True) -> None:
    """Train until all is done, and the job lends once more, if it can."""
    todo, last = [*harms, Harm(lambda: None, lends=lends_at_the_end)], 0

    def act(step: int) -> None:
        nonlocal last
        if todo and step >= last + todo[0].behind and (job.lends() or not todo[0].lends):
            todo.pop(0).act()
            last = step

    job.run(act, lambda: not todo)


def kill(name: str) -> None:
    pid = one_here(name)
    os.kill(pid, signal.SIGKILL)
    until(lambda: pid not in named_here(name), within_s=5.0, why=f"{name} is still there")


def stop(name: str) -> None:
    os.kill(one_here(name), signal.SIGSTOP)


def go_on(name: str) -> None:
    os.kill(one_here(name), signal.SIGCONT)


def worker_of(rank: Rank, *, spare: bool) -> int:
    """One of its own workers, or one for borrowed cores."""
    pids: list[int] = until(
        lambda: [pid for number, pid in rank.workers() if (number >= WORKERS) is spare],
        within_s=5.0,
        why="there is no such worker",
    )
    return pids[0]


def test_batches_are_those_of_a_job_that_lends_nothing(programs: Zygote) -> None:
    found = []
    for lends in (True, False):
        with Job(programs, lends=lends) as job:
            job.run(
                lambda _: None, lambda job=job, lends=lends: job.epochs > 1 and (job.lends() or not lends)
            )  # type: ignore[misc]
            assert bool(job.stats()) is bool(named_here(NODE)) is lends
            job.check_batches()
            job.end()
            found.append([rank.digests[: 2 * job.steps] for rank in job.ranks])
    assert found[0] == found[1]


def test_a_manager_and_a_node_that_are_killed_are_replaced(job: Job) -> None:
    before: list[int] = []
    harmed(
        job,
        Harm(lambda: before.extend(rank.descriptors() for rank in job.ranks)),
        *(Harm(partial(kill, name)) for name in (MANAGER, NODE, MANAGER)),
    )
    assert len(job.moves) == 4, "each manager has lent"
    assert job.longest_s < fair(SOON_S)
    job.come_home()
    assert [rank.descriptors() for rank in job.ranks] == before


def test_ranks_use_their_own_cores_while_the_manager_is_stopped_and_lend_when_it_goes_on(job: Job) -> None:
    harmed(job, Harm(lambda: stop(MANAGER)), Harm(lambda: go_on(MANAGER), behind=3 * job.steps, lends=False))
    assert job.longest_s < fair(SOON_S)
    assert len(job.moves) == 1


def test_a_stopped_node_stops_no_lending_and_then_gives_another_manager(job: Job) -> None:
    harmed(
        job,
        Harm(lambda: stop(NODE)),
        Harm(lambda: os.kill(one_here(MANAGER), signal.SIGKILL), lends=False),
        Harm(lambda: go_on(NODE), behind=2 * job.steps, lends=False),
    )
    assert job.longest_s < fair(SOON_S)
    assert len(job.moves) == 2


def test_agents_and_workers_that_die(job: Job) -> None:
    borrower, lender = job.ranks
    harmed(
        job,
        *(Harm(lambda rank=rank: kill_all([rank.agent()])) for rank in (borrower, lender)),
        Harm(lambda: kill_all([worker_of(borrower, spare=True)])),
        *(Harm(lambda rank=rank: kill_all([worker_of(rank, spare=False)])) for rank in (borrower, lender)),
    )
    assert job.longest_s < fair(SOON_S)


def test_agents_and_ranks_that_are_stopped(job: Job) -> None:
    harms = []
    for rank in job.ranks:
        harms += [
            Harm(lambda rank=rank: job.pause(rank.agent(), PAUSE_S)),
            Harm(lambda rank=rank: job.pause(rank.pid, PAUSE_S)),
            Harm(lambda rank=rank: [job.pause(pid, PAUSE_S) for pid in rank.tree()]),
        ]
    harmed(job, *harms)
    assert job.longest_s < fair(PAUSE_S + SOON_S)


def test_the_cores_of_killed_ranks_go_and_the_others_have_their_own(programs: Zygote) -> None:
    with Job(programs, world=3, num_workers=WORKERS) as job:
        borrower, lender, last = job.ranks
        harmed(
            job,
            Harm(lambda: job.kill_rank(lender), behind=job.steps),
            Harm(lambda: job.kill_rank(borrower)),
            lends_at_the_end=False,
        )
        assert job.living == [last]
        assert job.longest_s < fair(SOON_S)
        job.check_batches()
        job.come_home()
        job.end()


def test_stats_are_there_again_behind_a_manager_that_was_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_LENDING", "1")
    monkeypatch.setenv("PENSTOCK_GROUP", f"silent {os.getpid()}")
    made = DataLoader(Drawn(), batch_size=4, num_workers=1)
    batches: Any = iter(made)
    next(batches)
    lending = batches._session.lending
    until(lending.stats, within_s=10.0, why="there is no manager")
    with stopped(one_here(MANAGER)):
        assert lending.stats() == {}
    until(lending.stats, within_s=5.0, why="the manager is not asked again")
    del batches, made, lending
    until(lambda: not named_here(NODE), within_s=10.0, why="the node process does not end")
