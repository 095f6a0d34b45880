"""The leak check sees each kind of leak, and nothing else."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.leaks import SHM, Snapshot, descendants, shm_inodes

pytestmark = pytest.mark.xdist_group("leaks")  # one after the other: each makes what the others would find

NO_PATIENCE_S = 0.0
LIVES_ON = "import time; time.sleep(60)"


def with_tests() -> dict[str, str]:
    """An environment in which a child can import this suite's modules."""
    path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


@pytest.fixture
def before() -> Iterator[Snapshot]:
    snapshot = Snapshot.take()
    yield snapshot
    assert snapshot.leaks() == [], "the test itself must clean up"


def test_a_test_that_cleans_up_leaves_nothing(before: Snapshot, tmp_path: Path) -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    subprocess.run([sys.executable, "-c", ""], check=True)
    (tmp_path / "file").write_text("closed again")
    assert before.leaks(patience_s=NO_PATIENCE_S) == []


def test_a_living_child_is_a_leak(before: Snapshot) -> None:
    with subprocess.Popen([sys.executable, "-c", LIVES_ON]) as child:
        assert [line for line in before.leaks(patience_s=NO_PATIENCE_S) if str(child.pid) in line]
        child.kill()


def test_a_child_that_nobody_waited_for_is_a_leak(before: Snapshot) -> None:
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert [line for line in before.leaks(patience_s=NO_PATIENCE_S) if f"process {pid} (zombie)" in line]
    os.waitpid(pid, 0)


def test_a_process_whose_parent_is_gone_is_still_a_leak(before: Snapshot) -> None:
    orphan = int(subprocess.check_output(["sh", "-c", "sleep 60 >/dev/null & echo $!"]))
    assert psutil.Process(orphan).ppid() != os.getpid()
    assert [line for line in before.leaks(patience_s=NO_PATIENCE_S) if str(orphan) in line]
    before.kill_new_processes()
    assert orphan not in descendants()


def test_leftover_processes_are_ended_and_older_ones_are_not() -> None:
    with subprocess.Popen([sys.executable, "-c", LIVES_ON]) as older:
        before = Snapshot.take()
        with subprocess.Popen([sys.executable, "-c", LIVES_ON]) as newer:
            before.kill_new_processes()
            assert newer.pid not in descendants()
        assert older.poll() is None
        older.kill()


def test_a_thread_that_runs_on_is_a_leak(before: Snapshot) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="left-over")
    thread.start()
    assert before.leaks(patience_s=NO_PATIENCE_S) == ["thread 'left-over' (daemon=False)"]
    done.set()
    thread.join()


def test_an_open_descriptor_is_a_leak(before: Snapshot) -> None:
    reader, writer = os.pipe()
    leaks = before.leaks(patience_s=NO_PATIENCE_S)
    os.close(reader)
    os.close(writer)
    assert len(leaks) == 2
    assert all(line.startswith("descriptor ") for line in leaks)


@pytest.mark.skipif(not SHM.is_dir(), reason="no /dev/shm here")
def test_a_name_in_shared_memory_is_a_leak(before: Snapshot) -> None:
    fd, path = tempfile.mkstemp(dir=SHM)
    os.close(fd)
    leaks = before.leaks(patience_s=NO_PATIENCE_S)
    os.unlink(path)
    assert leaks == [f"shared memory {path}"]


@pytest.mark.skipif(not SHM.is_dir(), reason="no /dev/shm here")
def test_a_name_that_our_own_child_holds_is_a_leak(before: Snapshot) -> None:
    with tempfile.NamedTemporaryFile(dir=SHM) as file:
        held = subprocess.Popen([sys.executable, "-c", LIVES_ON], pass_fds=[file.fileno()])
        leaks = before.leaks(patience_s=NO_PATIENCE_S)
        held.kill()
        held.wait()
    assert f"shared memory {file.name}" in leaks


@pytest.mark.skipif(not SHM.is_dir(), reason="no /dev/shm here")
def test_a_semaphore_is_found_with_the_process_that_holds_it(before: Snapshot) -> None:
    names = set(os.listdir(SHM))
    lock = multiprocessing.get_context("spawn").Lock()
    inodes = shm_inodes(os.getpid())
    mine = [entry.name for entry in os.scandir(SHM) if entry.name not in names and entry.inode() in inodes]
    del lock
    assert len(mine) == 1


def test_what_goes_away_in_time_is_no_leak(before: Snapshot) -> None:
    child = subprocess.Popen(["sleep", "0.2"])
    threading.Thread(target=child.wait).start()
    assert before.leaks(patience_s=NO_PATIENCE_S) != []
    assert before.leaks() == []


def test_the_interpreters_own_helpers_are_no_leak() -> None:
    script = """
import multiprocessing
import multiprocessing.forkserver
from multiprocessing import resource_tracker
from tests.leaks import Snapshot, brand_this_process

brand_this_process()
before = Snapshot.take()
resource_tracker.ensure_running()
multiprocessing.forkserver.ensure_running()
assert before.leaks(patience_s=0.0) == [], before.leaks(patience_s=0.0)
"""
    subprocess.run([sys.executable, "-c", script], check=True, env=with_tests(), timeout=60)
