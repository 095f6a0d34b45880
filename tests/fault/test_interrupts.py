"""Ctrl-C at any moment: the program is gone within two seconds and leaves nothing; a caller who goes on loses nothing."""

from __future__ import annotations

import contextlib
import itertools
import linecache
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Self

import pytest

import penstock.client
import penstock.epochs
from penstock import DataLoader, PenstockError
from tests.conftest import FULL
from tests.fault.datasets import Drawn, expected, same
from tests.fault.programs import Program, Zygote, fair
from tests.leaks import Snapshot

pytestmark = [
    # An interrupt may fall between a socket's making and its owner's knowing of it: the collector closes it, and says so.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
OPTIONS: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 11, "num_workers": 2}
POINTS = 1000 if FULL else 40
PER_TEST = 10
ENGINE = tuple(str(Path(str(room.__file__)).parent) for room in (penstock.client, penstock.epochs))


@pytest.mark.parametrize("first", range(0, POINTS, PER_TEST))
def test_ctrl_c_at_random_times_ends_the_program_within_two_seconds(first: int, programs: Zygote) -> None:
    for point in range(first, first + PER_TEST):
        rng = random.Random(point)
        program = programs.start(
            f"tests.fault.jobs:{rng.choice(['loop', 'loop_until_interrupted'])}",
            num_workers=2,
            batch_size=4,
            length=24,
            pause_s=rng.choice([0.0, 0.002]),
            persistent_workers=rng.random() < 0.5,
        )
        if rng.random() < 0.7:
            program.line()  # else: it is still starting
        time.sleep(rng.random() * 0.2)
        interrupt(program.pid)
        if rng.random() < 0.3:
            time.sleep(rng.random() * 0.02)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGINT)
        assert code_of(program) in (-signal.SIGINT, 1)
        assert program.left(within_s=0.5) == []
        assert only_the_interrupt(program.errors()), program.errors()
        programs.end_programs()


def code_of(program: Program) -> int:
    """Of an interrupt that falls into a callback of its own imports the interpreter leaves nothing but a word; people press again then."""
    try:
        return program.wait(within_s=fair(2.0))
    except AssertionError:
        if "Exception ignored in: <function _get_module_lock" not in program.errors():
            raise
        interrupt(program.pid)
        return program.wait(within_s=fair(2.0))


def interrupt(group: int) -> None:
    """As a terminal does: to all of the program's processes, as soon as it has a group of its own."""
    deadline = time.monotonic() + fair(2.0)
    while True:
        try:
            os.killpg(group, signal.SIGINT)
        except ProcessLookupError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return


def only_the_interrupt(text: str) -> bool:
    """Tracebacks of nothing but KeyboardInterrupts (a second one may fall into the shutdown); no word from agent or workers."""
    plain = (
        " ",
        "Traceback",
        "During handling",
        "Exception ignored",
        "KeyboardInterrupt",
        "object ",
        "lost sys.stderr",
        "The above exception was the direct cause",  # by Python 3.11, of an interrupt while it makes a class
        "RuntimeError: Error calling __set_name__",
    )
    lines = text.splitlines()
    torchs = {
        at + 1 for at, line in enumerate(lines) if "torch/library.py" in line and "_del_library" in line
    }  # a second interrupt has kept it from being ended in time
    return all(line.startswith(plain) or at in torchs for at, line in enumerate(lines) if line)


def test_agent_and_workers_ignore_the_terminals_ctrl_c() -> None:
    loader = DataLoader(Drawn(pause_s=0.002), **OPTIONS)
    batches = iter(loader)
    kept = [next(batches)]
    for pid in [loader.stats()["agent_pid"], *loader.stats()["worker_pids"]]:
        os.kill(pid, signal.SIGINT)
    kept += list(batches)
    assert same(kept, expected(Drawn(), **OPTIONS)[0])
    assert loader.stats()["agent_restarts"] == loader.stats()["restarts"] == 0


ARMED: list[int] = []
"""Signals for the next fork."""


def _interrupt_this_fork() -> None:
    for number in ARMED.copy():
        os.kill(os.getpid(), number)


os.register_at_fork(before=_interrupt_this_fork, after_in_parent=ARMED.clear, after_in_child=ARMED.clear)


class Asked(Exception):
    """By a signal."""


@pytest.fixture
def asked() -> Iterator[list[int]]:
    """Signals that were heard: handlers of these raise `Asked`."""

    def ask(number: int, _: object) -> None:
        heard.append(number)
        raise Asked

    heard: list[int] = []
    before = {
        number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    }
    yield heard
    assert [signal.signal(number, handler) for number, handler in before.items()] == [ask] * 3


def test_ctrl_c_at_the_moment_of_a_fork_is_not_lost() -> None:
    """What the interpreter's hooks around a fork raise is ignored, and an interrupt would be raised there."""
    loader = DataLoader(Drawn(), **OPTIONS)
    ARMED.append(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        iter(loader)
    assert same(list(loader), expected(Drawn(), epochs=2, **OPTIONS)[0])


@pytest.mark.parametrize("sent", [[signal.SIGTERM], [signal.SIGHUP, signal.SIGUSR1]], ids=["one", "two"])
def test_what_other_handlers_raise_at_the_moment_of_a_fork_is_not_lost(
    sent: list[int], asked: list[int]
) -> None:
    loader = DataLoader(Drawn(), **OPTIONS)
    ARMED.extend(sent)
    with pytest.raises(Asked):
        iter(loader)
    assert sorted(asked) == sorted(sent)
    assert same(list(loader), expected(Drawn(), epochs=2, **OPTIONS)[0])


# ---- a caller who goes on


def test_a_caller_who_catches_the_interrupt_and_goes_on_loses_nothing() -> None:
    loader = DataLoader(Drawn(64, pause_s=0.002), **OPTIONS)
    batches: list[Any] = []
    iterator = iter(loader)
    with Interrupts(batches) as interrupts:
        while len(batches) < 16:
            try:
                for batch in iterator:
                    batches.append(batch)
            except KeyboardInterrupt:
                pass
    assert same(batches, expected(Drawn(64), **OPTIONS)[0])
    assert interrupts.sent >= 4


class Interrupts:
    """SIGINT to this process at random times, meanwhile; the next one when `progress` has grown since the last."""

    def __init__(self, progress: list[Any]) -> None:
        self._progress, self._over, self.sent = progress, threading.Event(), 0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        rng, seen = random.Random(0), 0
        while not self._over.wait(rng.random() * 0.01):
            if len(self._progress) > seen:
                seen = len(self._progress)
                time.sleep(rng.random() * 0.01)
                self.sent += 1
                os.kill(os.getpid(), signal.SIGINT)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        while self._thread.is_alive():
            try:
                self._over.set()
                self._thread.join()
                time.sleep(0.01)
            except KeyboardInterrupt:
                pass


# ---- at every line


@pytest.fixture(autouse=True)
def interrupts_are_heard() -> Iterator[None]:
    """Also where a shell has started the tests in the background: it has them ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Tracer:
    """Raises KeyboardInterrupt at the nth line that runs in the engine, of those where an interrupt is not held back."""

    def __init__(self, at: int) -> None:
        self.left, self.where, self.pid = at, "", os.getpid()

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        name, line = frame.f_code.co_filename, frame.f_lineno
        if not name.startswith(ENGINE) or os.getpid() != self.pid:
            return None
        held = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        if event == "line" and not held and linecache.getline(name, line).strip() not in NEVER:
            self.left -= 1
            if self.left == 0:
                self.where = f"{Path(name).name}:{line}"
                raise KeyboardInterrupt
        return self


NEVER = ("return batch",)
"""The interpreter does not look for signals between the delivery's store and its return; a tracer would."""


def interrupted_at(point: int, iterator: Iterator[Any], batches: list[Any]) -> str:
    """Where the interrupt fell; "" when `next()` has fewer lines than that."""
    tracer, before = Tracer(point), sys.gettrace()
    sys.settrace(tracer)
    try:
        batches.append(next(iterator))
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return tracer.where


@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupt_at_any_line_of_next_loses_no_batch_and_counts_none_twice(workers: int) -> None:
    options = {**OPTIONS, "num_workers": workers, "timeout": 5 if workers else 0}
    whole = expected(Drawn(32), **OPTIONS)[0]
    step = 1 if FULL or not workers else 5
    for point in itertools.count(1, step):
        loader = DataLoader(Drawn(32), **options)
        iterator = iter(loader)
        batches = [next(iterator)]
        where = interrupted_at(point, iterator, batches)
        if not where:
            break
        assert loader.state_dict()["batches"] == len(batches), where
        try:
            batches.extend(iterator)
        except PenstockError as error:
            if "its place is lost: start a new one" not in str(error):
                raise
            loader.load_state_dict(loader.state_dict())
            batches.extend(loader)
        assert same(batches, whole), where
    assert point > 20, "the engine's lines were traced"


@pytest.mark.filterwarnings("ignore:Exception ignored.*socket:pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_while_an_iterator_starts_leaves_nothing_and_the_next_one_is_right() -> None:
    whole = expected(Drawn(32), **OPTIONS)[0]
    for point in range(1, 10_000, 1 if FULL else 7):
        loader = DataLoader(Drawn(32), **OPTIONS)
        before = Snapshot.take()
        tracer = Tracer(point)
        sys.settrace(tracer)
        try:
            batches = iter(loader)
            sys.settrace(None)
            assert not tracer.where, f"lost at {tracer.where}"
            break
        except KeyboardInterrupt:
            sys.settrace(None)
        assert before.leaks() == [], tracer.where
        if FULL or point % 4 == 1:
            loader.set_epoch(0)
            assert same(list(loader), whole), tracer.where
    assert same(list(batches), whole)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_after_an_interrupt_the_next_epoch_of_persistent_workers_is_right() -> None:
    options = {**OPTIONS, "persistent_workers": True}
    whole = expected(Drawn(32), epochs=2, **options)
    for point in range(1, 10_000, 1 if FULL else 17):
        loader = DataLoader(Drawn(32), **options)
        iterator = iter(loader)
        where = interrupted_at(point, iterator, [next(iterator)])
        assert same(list(loader), whole[1]), where
        if not where:
            break
