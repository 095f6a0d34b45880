"""Forks around a loader: threads and locks in the training process, and children of its own that inherit a loader."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock import DataLoader
from tests.fault.datasets import Drawn, Large, expected, same
from tests.fault.programs import is_alive, sources

OPTIONS: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 11, "num_workers": 2}


def in_child(run: Any) -> int:
    """Exit code of a forked child that runs this and ends through the interpreter's hooks for children."""
    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(20)
    if process.exitcode is None:
        process.kill()
        process.join()
        return -999
    return process.exitcode


def test_workers_do_not_wait_for_locks_that_other_threads_held_at_the_fork() -> None:
    log, handler = logging.getLogger("penstock"), logging.StreamHandler()
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        handler.acquire()
        held.set()
        over.wait(30)
        handler.release()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        held.wait()
        log.addHandler(handler)
        assert same(list(DataLoader(Drawn(), **OPTIONS)), expected(Drawn(), **OPTIONS)[0])
    finally:
        log.removeHandler(handler)
        over.set()
        thread.join()


def test_a_loader_works_beside_busy_torch_threads() -> None:
    over = threading.Event()

    def burn() -> None:
        a = torch.rand(64, 64)
        while not over.is_set():
            a @ a

    threads = [threading.Thread(target=burn) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            assert same(list(DataLoader(Products(), **OPTIONS)), expected(Products(), **OPTIONS)[0])
    finally:
        over.set()
        for thread in threads:
            thread.join()


class Products(Drawn):
    """Tensors, but no matrix product: a fork beside threads in the middle of one may leave the BLAS's locks taken for ever.
    torch's own loader hung so once in some 3,000 starts."""

    def __init__(self) -> None:
        super().__init__(16)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(80, 80).sum() * index


def test_a_forked_child_that_ends_leaves_the_parents_loader_alone() -> None:
    loader = DataLoader(Drawn(), **OPTIONS)
    batches = iter(loader)
    kept = [next(batches)]
    for leave in (lambda: None, lambda: sys.exit(3), lambda: os._exit(0)):
        in_child(leave)
        assert is_alive(loader.stats()["agent_pid"])
    assert same(kept + list(batches), expected(Drawn(), **OPTIONS)[0])


def test_a_forked_child_that_drops_the_loader_does_not_end_the_parents_workers() -> None:
    holder = {"loader": DataLoader(Drawn(), **{**OPTIONS, "persistent_workers": True})}
    batches = iter(holder["loader"])
    kept = [next(batches)]

    def drop() -> None:
        batches.close()
        holder.clear()

    assert in_child(drop) == 0
    assert same(kept + list(batches), expected(Drawn(), **OPTIONS)[0])
    assert holder["loader"].stats()["agent_restarts"] == 0


def test_a_forked_child_can_iterate_a_loader_of_its_own_anew() -> None:
    loader = DataLoader(Drawn(), **OPTIONS)
    next(iter(loader))
    whole = expected(Drawn(), epochs=2, **OPTIONS)[1]
    assert in_child(lambda: sys.exit(0 if same(list(loader), whole) else 4)) == 0


def test_a_batch_that_a_forked_child_sees_does_not_change_under_it(tmp_path: Path) -> None:
    loader = DataLoader(Large(200, 64 << 10), batch_size=4, num_workers=2, slab_bytes="2MiB")
    batches = iter(loader)
    batch = next(batches).numpy()  # torch's own threads do not survive a fork
    pid = os.fork()
    if pid == 0:
        deadline = time.monotonic() + 10
        while not (tmp_path / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os._exit(0 if all((row == number).all() for number, row in enumerate(batch)) else 5)
    del batch
    for _ in batches:  # the ring goes round many times
        pass
    (tmp_path / "go").touch()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_signal_handler_of_the_training_process_does_not_run_in_its_workers(tmp_path: Path) -> None:
    def note(*_: Any) -> None:
        (tmp_path / f"{os.getpid()}").touch()

    before = signal.signal(signal.SIGUSR1, note)
    try:
        loader = DataLoader(Drawn(pause_s=0.002), **OPTIONS)
        batches = iter(loader)
        kept = [next(batches)]
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(loader.stats()["worker_pids"][0], signal.SIGUSR1)  # by default: deadly
        kept += list(batches)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [path.name for path in tmp_path.iterdir()] == [str(os.getpid())]
    assert same(kept, expected(Drawn(), **OPTIONS)[0])


def test_a_loader_used_from_a_thread_works_and_ends_there() -> None:
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.extend(DataLoader(Drawn(), **OPTIONS)))
    thread.start()
    thread.join(30)
    assert same(got, expected(Drawn(), **OPTIONS)[0])


def test_workers_outlive_the_thread_that_started_them() -> None:
    loader = DataLoader(Drawn(pause_s=0.002), **OPTIONS)
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(iter(loader)))
    thread.start()
    thread.join()
    time.sleep(0.2)
    assert same(list(made[0]), expected(Drawn(), **OPTIONS)[0])


FORKS = """
import os, signal, threading, time
from penstock.forks import no_forks

def hold():
    with no_forks():
        held.set()
        time.sleep(60)

def interrupt(*_):
    raise KeyboardInterrupt

held = threading.Event()
threading.Thread(target=hold, daemon=True).start()
held.wait()
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.2)
child = os.fork()  # the interrupt ends its wait; the interpreter forks all the same
if child == 0:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(5)
    if os.fork() == 0:
        os._exit(0)
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
"""


def test_a_child_can_fork_though_its_parent_may_not() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKS],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sources())},
    )
    assert ran.returncode == 0, ran.stderr
    assert "KeyboardInterrupt" in ran.stderr, "the wait was not interrupted"
