"""Real jobs whose ranks lend cores to one another, for tests and campaigns that do harm to them.

Rule 1: a rank is a training process with torchrun's environment, in a job of its own. Rank 0's samples take three times as long, so the others lend.
Rule 2: the parent is the barrier of every step: no rank goes on before all that live have their batch. So it sees who died, and nothing else waits.
Rule 3: a rank says what every batch is, by digest. The batches must be those of a loader without workers.
Rule 4: processes are found by name among our descendants: no other job on the machine is touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import psutil

from penstock import DataLoader
from penstock.errors import PenstockError
from penstock.lending.frames import SERVICE, LendMsg
from penstock.node.job import address, job_name
from penstock.node.link import NodeLink, TryAgain, connect
from penstock.wire.frames import Channel
from tests.cache_jobs import named
from tests.fault.kill_schedules import Noisy, digest
from tests.fault.programs import Program, Zygote, fair, until
from tests.leaks import GONE

BATCH = 8
SAMPLE_S = 0.002
SLOWER = 3
"""So much longer does a sample of rank 0 take."""
MOST_EPOCHS = 1000
STEP_S = 20.0
"""No step takes longer, whatever happens."""
END_S = 15.0
ANSWER_S = 1.0
MANAGER, NODE = "penstock lendin", "penstock node"
"""Names of processes, as the kernel cuts them."""
GO, LAST = b"go", b"last"
"""Answers to ranks at the barrier; the second one says that the epoch is the last."""
Stats = dict[str, Any]


def loader(rank: int, world: int, steps: int, *, pause_s: float, **options: Any) -> DataLoader[Any]:
    """One rank's loader of `steps` batches an epoch."""
    dataset = Noisy(world * BATCH * steps, pause_s * (1 if rank else SLOWER))
    options = {"batch_size": BATCH, "shuffle": True, "seed": 5, "shard": (rank, world)} | options
    return DataLoader(dataset, **options)


def alone(rank: int, world: int, steps: int, epochs: int) -> list[str]:
    """What a rank gets, as one process alone makes it."""
    made = loader(rank, world, steps, pause_s=0.0, num_workers=0)
    return [digest(batch) for _ in range(epochs) for batch in made]


# ---- a rank


def train(barrier: str, rank: int, world: int, steps: int, **options: Any) -> None:
    """Be a rank: take a batch, say what it is, wait until all have theirs; epoch after epoch until told that it was the last."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(f"\0{barrier}")
        say(sock, rank=rank)
        made, answer = loader(rank, world, steps, **options), GO
        while answer == GO:
            for batch in made:
                say(sock, digest=digest(batch))
                answer = sock.recv(8)
        say(sock, done=True)
        sock.recv(8)


def say(sock: socket.socket, **facts: Any) -> None:
    sock.send(json.dumps(facts).encode())


# ---- the job


@dataclass(slots=True, eq=False)
class Rank:
    """A rank as the parent sees it."""

    number: int
    program: Program
    sock: socket.socket | None = None
    """None: it has not come yet, or is gone."""
    digests: list[str] = field(default_factory=list)
    arrived: bool = False
    done: bool = False
    doomed: bool = False
    """It was killed, or soon will be."""

    @property
    def pid(self) -> int:
        return self.program.pid

    @property
    def gone(self) -> bool:
        return self.doomed and self.sock is None

    def agent(self) -> int:
        """Its agent's pid; 0: it has none now."""
        return next((pid for pid, name in self._below() if name == "penstock agent"), 0)

    def workers(self) -> list[tuple[int, int]]:
        """Its workers' numbers and pids."""
        found = [(name.removeprefix("penstock w"), pid) for pid, name in self._below()]
        return sorted((int(number), pid) for number, pid in found if number.isdigit())

    def worker_pids(self) -> list[int]:
        return [pid for _, pid in self.workers()]

    def tree(self) -> list[int]:
        """Itself, its agent and its workers."""
        return [self.pid, *filter(None, [self.agent()]), *self.worker_pids()]

    def descriptors(self) -> int:
        """How many it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def _below(self) -> list[tuple[int, str]]:
        found = []
        with contextlib.suppress(*GONE):
            for child in psutil.Process(self.pid).children(recursive=True):
                with contextlib.suppress(*GONE):
                    if child.status() != psutil.STATUS_ZOMBIE:
                        found.append((child.pid, child.name()))
        return found

    def answer(self, said: bytes) -> None:
        """Let it go on."""
        self.arrived = False
        if self.sock is not None:
            with contextlib.suppress(OSError):
                self.sock.send(said)

    def hang_up(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None


class Job:
    """`world` ranks, with epochs of `steps` batches."""

    def __init__(
        self, zygote: Zygote, *, world: int = 2, steps: int = 20, lends: bool = True, **options: Any
    ) -> None:
        self._zygote, self.world, self.steps, self.epochs = zygote, world, steps, 0
        options = {"pause_s": SAMPLE_S, "num_workers": 2, "persistent_workers": True} | options
        run = f"lending-{secrets.token_hex(6)}"
        self.name = job_name({"TORCHELASTIC_RUN_ID": run})
        self.moves: dict[int, int] = {}
        """Cores that have changed hands, by the manager's pid."""
        self.longest_s = 0.0
        """Longest step."""
        self._timers: list[threading.Timer] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(f"\0{run}")
        self._listener.listen(world)
        shape = {"barrier": run, "world": world, "steps": steps}
        self.ranks = [
            Rank(rank, zygote.start("tests.lending_jobs:train", env=environ(rank, world, run, lends=lends), rank=rank, **shape, **options))
            for rank in range(world)
        ]  # fmt: skip

    @property
    def living(self) -> list[Rank]:
        return [rank for rank in self.ranks if not rank.gone]

    def run(self, act: Callable[[int], Any], enough: Callable[[], bool]) -> None:
        """Let it train until it is `enough` at an epoch's end. `act` is called with each step's number when all have their batch and wait."""
        step, answer = 0, GO
        while True:
            self._gather(step)
            if answer == LAST:
                break
            act(step)
            step += 1
            if step % self.steps == 0:
                self.epochs += 1
                assert self.epochs < MOST_EPOCHS, f"it never is enough: {self.stats()}"
                answer = LAST if enough() else GO
            for rank in self.living:
                rank.answer(answer)
        for timer in self._timers:
            timer.join()
        for rank in self.living:
            if rank.doomed:  # just killed, behind its last batch
                rank.program.wait(within_s=fair(END_S))
                rank.hang_up()

    def _gather(self, step: int) -> None:
        """Wait until every living rank is at the barrier."""
        began_s = time.monotonic()
        with selectors.DefaultSelector() as selector:
            while any(rank.sock is None for rank in self.living):
                self._admit()
            for rank in self.living:
                assert rank.sock is not None
                selector.register(rank.sock, selectors.EVENT_READ, rank)
            while late := [rank for rank in self.living if not rank.arrived]:
                for key, _ in selector.select(0.1):
                    if not self._hear(key.data):
                        selector.unregister(key.fileobj)
                        key.data.hang_up()
                took_s = time.monotonic() - began_s
                assert took_s < fair(STEP_S), (
                    f"step {step} hangs: ranks {[rank.number for rank in late]} have no batch; {self.stats()}"
                )
        self.longest_s = max(self.longest_s, time.monotonic() - began_s)

    def _admit(self) -> None:
        self._listener.settimeout(fair(END_S))
        sock, _ = self._listener.accept()
        self.ranks[json.loads(sock.recv(1 << 16))["rank"]].sock = sock

    def _hear(self, rank: Rank) -> bool:
        """Take what a rank says; False: it is gone."""
        said = b""
        with contextlib.suppress(ConnectionResetError):
            assert rank.sock is not None
            said = rank.sock.recv(1 << 16)
        if not said:
            assert rank.doomed, f"rank {rank.number} ended:\n{rank.program.errors()}"
            return False
        facts = json.loads(said)
        rank.arrived, rank.done = True, facts.get("done", False)
        if not rank.done:
            rank.digests.append(facts["digest"])
        return True

    # ---- harm

    def later(self, seconds: float, act: Callable[[], Any]) -> None:
        """Do something while the job goes on."""

        def quietly() -> None:
            with contextlib.suppress(*GONE):
                act()

        self._timers.append(threading.Timer(seconds, quietly))
        self._timers[-1].start()

    def pause(self, pid: int, for_s: float, soon_s: float = 0.0) -> None:
        """Stop a process soon and continue it later, unless its number is another's by then."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            self.later(soon_s, process.suspend)
            self.later(soon_s + for_s, process.resume)

    def kill_rank(self, rank: Rank) -> None:
        rank.doomed = True
        os.kill(rank.pid, signal.SIGKILL)

    def is_calm(self) -> bool:
        """Whether all harm is done, and who was stopped goes on."""
        return not any(timer.is_alive() for timer in self._timers)

    # ---- what is known of it

    def stats(self) -> Stats:
        """What the manager says; empty without one."""
        found = told(self.name)
        if found:
            self.moves[found["manager_pid"]] = found["moves"]
        return found

    def is_joined(self) -> bool:
        """Whether the manager has heard all living ranks, and nobody else."""
        return self._numbers(self.stats()) == {rank.number for rank in self.living}

    def lends(self) -> bool:
        """Whether all living ranks have joined, and cores have moved since this manager began."""
        found = self.stats()
        return found.get("moves", 0) > 0 and self._numbers(found) == {rank.number for rank in self.living}

    def _numbers(self, found: Stats) -> set[int]:
        return {one["rank"] for one in found.get("loaders", [])}

    def are_home(self) -> bool:
        """Whether every living rank has joined and has its own number of cores."""
        found = self.stats()
        home = all(one["allowed"] == one["workers"] for one in found.get("loaders", []))
        return home and len(found.get("loaders", [])) == len(self._numbers(found)) == len(self.living)

    def come_home(self) -> float:
        """Wait until all cores are where they belong, with every rank at the barrier; return how long it took. They must have joined: a rank
        looks for another manager only while it takes batches."""
        began_s = time.monotonic()
        try:
            until(self.are_home, within_s=END_S, why="cores are not back where they belong")
        except AssertionError as exc:
            raise AssertionError(f"{exc}: {self.stats()}") from None
        return time.monotonic() - began_s

    def check_batches(self) -> None:
        """Every batch exactly once and in order, with the content it has without workers; of a killed rank, those it got."""
        for rank in self.ranks:
            expected = alone(rank.number, self.world, self.steps, self.epochs)
            if rank.doomed:
                expected = expected[: len(rank.digests)]
            assert rank.digests == expected, f"rank {rank.number} got other batches"

    def end(self) -> None:
        """Let the ranks end, and wait until nothing is left of the job."""
        for rank in self.living:
            rank.answer(GO)
        for rank in self.living:
            assert rank.program.wait(within_s=fair(END_S)) == 0, rank.program.errors()
        until(lambda: not left(), within_s=END_S, why="processes are left behind")

    def close(self) -> None:
        for timer in self._timers:
            timer.join()
        for rank in self.ranks:
            rank.hang_up()
        self._zygote.end_programs()
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def environ(rank: int, world: int, run: str, *, lends: bool) -> dict[str, str]:
    """What torchrun would set."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "TORCHELASTIC_RUN_ID": run,
        "PENSTOCK_LENDING": str(int(lends)),
    }


def told(job: str) -> Stats:
    """What a job's manager of cores says; empty without one. Starts nothing but the manager, and stays no member of the node."""
    with contextlib.suppress(OSError, ValueError, PenstockError, TryAgain):
        found = connect(address(job, os.geteuid()), os.geteuid(), time.monotonic() + ANSWER_S)
        if found is not None:
            with contextlib.closing(NodeLink(*found)) as link, link.open(SERVICE, within_s=ANSWER_S) as sock:
                sock.settimeout(ANSWER_S)
                channel = Channel(sock)
                channel.send(LendMsg.STATS)
                frames = channel.receive()
                return dict(json.loads(frames[0][1])) if frames else {}
    return {}


def named_here(name: str) -> list[int]:
    return [process.pid for process in named(name)]


def one_here(name: str) -> int:
    """The pid of the one process of that name, once it is there."""
    until(lambda: len(named_here(name)) == 1, within_s=END_S, why=f"there is no {name}, or more than one")
    return named_here(name)[0]


def left() -> list[str]:
    """Our processes of jobs that are over."""
    return [f"{name} {pid}" for name in (NODE, MANAGER, "penstock agent") for pid in named_here(name)]
