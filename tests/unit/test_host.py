"""Facts about the machine: limits of cgroups of both versions, read from files that the test makes up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.measure import host

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
Tree = Callable[..., None]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Makes a cgroup file system of the given files, with this process in the cgroup that `own` says."""
    root = tmp_path / "cgroup"
    root.mkdir()
    monkeypatch.setattr(host, "CGROUP", root)
    monkeypatch.setattr(host, "OWN_CGROUP", tmp_path / "own")

    def make(own: str, files: dict[str, str]) -> None:
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return make


V2 = {"cgroup.controllers": "cpu memory\n"}
V1 = "12:memory:/docker/abc\n11:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n0::/system.slice\n"


# ---- memory


def test_the_tightest_limit_on_the_way_to_the_root_counts(tree: Tree) -> None:
    tree(
        "0::/a/b\n",
        {**V2, "a/b/memory.max": "3000000\n", "a/memory.max": "2000000\n", "memory.max": "max\n"},
    )
    assert host.memory_limit() == 2_000_000


def test_a_limit_above_the_machines_memory_is_none(tree: Tree) -> None:
    tree(V1, {"memory/memory.limit_in_bytes": "9223372036854771712\n"})
    assert host.memory_limit() == MACHINE


def test_version_one_reads_its_own_controllers_folder(tree: Tree) -> None:
    tree(
        V1,
        {
            "memory/docker/abc/memory.limit_in_bytes": "5000000\n",
            "memory/docker/abc/memory.usage_in_bytes": "4000000\n",
            "cpu/docker/abc/memory.limit_in_bytes": "1\n",
        },
    )
    assert host.memory_limit() == 5_000_000
    assert host.memory_used() == 4_000_000


def test_inside_a_container_the_mounted_root_is_ones_own_group(tree: Tree) -> None:
    tree(V1, {"memory/memory.limit_in_bytes": "7000000\n"})
    assert host.memory_limit() == 7_000_000


def test_what_is_left_is_that_of_the_group_that_has_least(tree: Tree) -> None:
    """Of a limit what is not used, and what is used for files that can be read again."""
    tree(
        "0::/a/b\n",
        {
            **V2,
            "a/b/memory.max": "5000000\n",
            "a/b/memory.current": "1000000\n",
            "a/memory.max": "3000000\n",
            "a/memory.current": "2500000\n",
            "a/memory.stat": "anon 900\ninactive_file 300000\nactive_file 40000\nshmem 7\n",
        },
    )
    assert host.memory_left() == 840_000


def test_what_is_left_in_version_one_counts_files_of_groups_within(tree: Tree) -> None:
    files = {
        "memory.limit_in_bytes": "5000000\n",
        "memory.usage_in_bytes": "5000000\n",
        "memory.stat": "inactive_file 1\nactive_file 2\ntotal_inactive_file 3000\ntotal_active_file 400\n",
    }
    tree(V1, {f"memory/docker/abc/{name}": text for name, text in files.items()})
    assert host.memory_left() == 3400


def test_without_groups_what_is_left_is_what_the_machine_has(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree("", {})
    assert 0 < host.memory_left() < MACHINE
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable: 4000 kB\n")
    monkeypatch.setattr(host, "MEMINFO", tmp_path / "meminfo")
    assert host.memory_left() == 4000 << 10
    monkeypatch.setattr(host, "MEMINFO", tmp_path / "nothing")
    assert host.memory_left() == MACHINE


@pytest.mark.parametrize("own", ["", "0::/\n", "0::/../outside\n"])
def test_without_limits_the_machines_memory_counts(tree: Tree, own: str) -> None:
    tree(own, V2)
    assert host.memory_limit() == MACHINE
    assert host.memory_used() == 0
    assert host.oom_kills() == 0
    assert host.cpu_quota() is None


def test_where_there_is_no_proc_there_are_no_limits(tree: Tree) -> None:
    assert host.own_cgroup("memory") == []
    assert host.memory_limit() == MACHINE


def test_usage_is_the_innermost_groups(tree: Tree) -> None:
    tree("0::/a/b\n", {**V2, "a/b/memory.current": "11\n", "a/memory.current": "99\n"})
    assert host.memory_used() == 11


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a/memory.events", "low 0\nhigh 0\nmax 4\noom 3\noom_kill 2\noom_group_kill 0\n"),
        ("memory/docker/abc/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
    ],
)
def test_kills_by_the_kernel_for_memory_are_counted(tree: Tree, name: str, text: str) -> None:
    tree(V1 if "docker" in name else "0::/a\n", {**({} if "docker" in name else V2), name: text})
    assert host.oom_kills() == 2


# ---- cores


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/a\n", {**V2, "a/cpu.max": "150000 100000\n", "cpu.max": "400000 100000\n"}, 1.5),
        ("0::/a\n", {**V2, "a/cpu.max": "max 100000\n"}, None),
        ("0::/a\n", {**V2, "a/cpu.max": "nonsense\n"}, None),
        (
            V1,
            {"cpu/docker/abc/cpu.cfs_quota_us": "50000\n", "cpu/docker/abc/cpu.cfs_period_us": "100000\n"},
            0.5,
        ),
        (V1, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
    ],
)
def test_a_quota_is_a_number_of_cores(
    tree: Tree, own: str, files: dict[str, str], quota: float | None
) -> None:
    tree(own, files)
    assert host.cpu_quota() == quota


# ---- processes


@pytest.mark.parametrize(
    ("text", "number"), [("5\n", 5), ("max\n", None), ("-1\n", None), ("", None), ("x", None)]
)
def test_numbers_of_the_kernels_files(tmp_path: Path, text: str, number: int | None) -> None:
    (tmp_path / "file").write_text(text)
    assert host.read_number(tmp_path / "file") == number
    assert host.read_number(tmp_path / "missing") is None


def test_private_memory_of_a_process() -> None:
    assert host.private_bytes(os.getpid()) > 1 << 20
    assert host.private_bytes(2**22 + 1) == 0


def test_the_state_of_a_process_is_found_behind_any_name() -> None:
    code = "import pathlib, sys; pathlib.Path('/proc/self/comm').write_text(') R ('); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        deadline = time.monotonic() + 10
        while host.process_state(process.pid) != "S" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert host.process_state(process.pid) == "S"
    assert host.process_state(process.pid) == "?"


def test_a_process_can_name_itself() -> None:
    before = Path("/proc/self/comm").read_text().strip()
    try:
        host.name_process("penstock worker of a long name")
        assert Path("/proc/self/comm").read_text().strip() == "penstock worker"
    finally:
        host.name_process(before)


def test_waiting_for_a_core_only_grows() -> None:
    delay = host.RunDelay()
    first = delay.read()
    assert 0 <= first <= delay.read()
    os.close(delay._fd)


# ---- a process that waits for a core

SPINS = "print(flush=True)\nwhile True: pass"
needs_schedstat = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists() or host.RunDelay().read() == 0,
    reason="the kernel does not count waits",
)


@contextmanager
def spinning(count: int, *, idly: bool = False) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that are always ready to run, all on one core; `idly`: when nobody else wants it."""
    place = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}}); "
    if idly:
        place += "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); "
    processes = [
        subprocess.Popen([sys.executable, "-c", place + SPINS], stdout=subprocess.PIPE) for _ in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()  # it has begun
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@needs_schedstat
def test_a_process_that_others_keep_from_its_core_waits_and_the_present_wait_counts() -> None:
    """One that runs only when nobody else wants to may wait for seconds, and the kernel counts that when it is over."""
    with spinning(1, idly=True) as (victim,), spinning(3):
        waits = host.CoreWaits(victim.pid)
        began_s, began = time.monotonic(), waits.seconds(time.monotonic())
        while time.monotonic() - began_s < 2.0:
            time.sleep(0.02)
            waited, passed = waits.seconds(time.monotonic()) - began, time.monotonic() - began_s
        assert waited > 0.5 * passed
        waits.close()


@needs_schedstat
def test_a_stopped_or_sleeping_process_does_not_wait_for_a_core() -> None:
    with spinning(1) as (process,):
        os.kill(process.pid, signal.SIGSTOP)
        deadline = time.monotonic() + 20
        while host.process_state(process.pid) != "T" and time.monotonic() < deadline:
            time.sleep(0.01)
        waits = host.CoreWaits(process.pid)
        before = waits.seconds(time.monotonic())
        time.sleep(0.3)
        assert waits.seconds(time.monotonic()) == before
        waits.close()


def test_of_a_process_that_is_gone_nothing_is_said() -> None:
    process = subprocess.Popen(["true"])
    waits = host.CoreWaits(process.pid)
    process.wait()
    assert waits.seconds(1.0) >= 0.0
    waits.close()
    assert host.CoreWaits(process.pid).seconds(1.0) == 0.0
