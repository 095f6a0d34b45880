"""Training with a cache while something of it dies, hangs, or is damaged: the same batches, each once, soon, and one warning that says what happened."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Cache, ImageFolder
from penstock.cache.frames import CacheMsg, pack_ask
from penstock.client.cache_side import opened
from penstock.wire.frames import Channel
from tests.cache_jobs import (
    CHAIN,
    ROOMY,
    SAMPLES,
    images,
    loader,
    named,
    one_named,
    own_node,  # noqa: F401 - a fixture
    photos,
    reference,
    taken,
    told,
)
from tests.conftest import FULL
from tests.deaths import kill_all
from tests.fault.kill_schedules import digest
from tests.fault.programs import fair, until
from tests.forks import start
from tests.node_faults import gone

pytestmark = pytest.mark.usefixtures("own_node")
WAIT_S = 20.0
"""No batch takes longer, whatever happens."""
LOST = "cache: its service has ended"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


def full_or(every: list[Any], *few: int) -> list[Any]:
    """All with PENSTOCK_FULL=1, else these few of them."""
    return every if FULL else [every[number] for number in few]


def during(made: Any, act: Callable[[int], None], epochs: int = 2) -> list[list[str]]:
    """All batches; `act` is called behind each with its number."""
    found, number, before = [], 0, time.monotonic()
    for _ in range(epochs):
        found.append([])
        for batch in made:
            assert time.monotonic() - before < fair(WAIT_S), f"batch {number} took too long"
            found[-1].append(digest(batch))
            act(number)
            number, before = number + 1, time.monotonic()
    return found


def at(number: int, act: Callable[[], Any]) -> Callable[[int], None]:
    return lambda now: act() if now == number else None


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def kill(name: str) -> None:
    process = one_named(name)
    process.kill()
    gone(process.pid)


# ---- processes


@pytest.mark.parametrize(
    ("name", "when"),
    full_or([(name, when) for name in ("penstock cache", "penstock node") for when in (0, 3, 10)], 1, 5),
)
def test_a_service_that_is_killed_costs_its_bytes_and_nothing_else(
    name: str, when: int, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = images(root)
    cached = loader(dataset)
    assert during(cached, at(when, lambda: kill(name)), 3) == reference(dataset, epochs=3)
    assert len([said for said in warned(caplog) if said.startswith(LOST)]) == 1
    until(lambda: cached.stats()["cache"], within_s=WAIT_S, why="there is no new service")
    assert taken(cached, 1) == reference(dataset, epochs=4)[3:]
    assert told(cached)["samples"]["memory"] > 0


def test_a_service_that_dies_while_it_owes_batches(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is stopped first, so that it owes some."""
    dataset = images(root)

    def act() -> None:
        process = one_named("penstock cache")
        process.suspend()
        threading.Timer(0.5, process.kill).start()

    began_s = time.monotonic()
    assert during(loader(dataset), at(2, act)) == reference(dataset)
    assert time.monotonic() - began_s < fair(WAIT_S)
    assert len(warned(caplog)) == 1


def test_a_service_that_hangs_is_given_up_and_used_again_when_it_goes_on(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = images(root)
    cached, stopped = loader(dataset), []

    def act() -> None:
        stopped.append(one_named("penstock cache"))
        stopped[0].suspend()

    try:
        assert during(cached, at(2, act), 1) == reference(dataset, epochs=1)
    finally:
        stopped[0].resume()
    assert len(warned(caplog)) == 1
    until(lambda: cached.stats()["cache"], within_s=WAIT_S, why="the service is not used again")
    assert taken(cached, 2) == reference(dataset, epochs=3)[1:]
    assert told(cached)["samples"]["memory"] > 0


@pytest.mark.parametrize("name", full_or(["penstock cache", "penstock node"], 0))
def test_a_short_pause_is_no_death(name: str, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset = images(root)

    def act() -> None:
        process = one_named(name)
        process.suspend()
        threading.Timer(0.7, process.resume).start()

    assert during(loader(dataset), at(2, act)) == reference(dataset)
    assert not warned(caplog)


@pytest.mark.parametrize("whom", ["agent", "worker"])
def test_what_an_agent_or_worker_held_is_free_when_it_is_killed(whom: str, root: Path) -> None:
    photos(root, side=100)
    dataset = ImageFolder(root, CHAIN)
    cached = loader(dataset, Cache(memory="1MiB"), persistent_workers=True)

    def act() -> None:
        stats = cached.stats()
        assert kill_all([stats["agent_pid"]] if whom == "agent" else stats["worker_pids"])

    assert during(cached, at(4, act), 3) == reference(dataset, epochs=3)
    found = told(cached)
    assert found["memory_bytes"] <= found["memory_max_bytes"]
    assert found["samples"]["memory"] > SAMPLES // 2


def test_leases_of_the_dead_end(root: Path) -> None:
    """An agent that is gone with all samples asked for leaves them to be evicted."""
    dataset = images(root)
    cached = loader(dataset, shuffle=False)
    taken(cached, 1)
    side: Any = cached._cache
    with side.join().sock as stream:
        channel = Channel(stream)
        every = list(range(SAMPLES))
        channel.send(CacheMsg.ASK, pack_ask(10**6, 1, 0, every, [dataset.ranges(each) for each in every]))
        until(lambda: told(cached)["leased"] == SAMPLES, within_s=5.0, why="nothing was leased")
    until(lambda: told(cached)["leased"] == 0, within_s=5.0, why="a dead agent has leases")


@pytest.mark.parametrize(
    "said",
    full_or([b"\0" * 40, b"\xff" * 64, os.urandom(100)], 0),
    ids=full_or(["zeros", "huge", "random"], 0),
)
def test_who_sends_nonsense_to_the_service_is_dropped_alone(said: bytes, root: Path) -> None:
    dataset = images(root)
    cached = loader(dataset)

    pid: list[int] = []

    def act() -> None:
        pid.append(one_named("penstock cache").pid)
        with stranger(cached) as sock:
            sock.sendall(said)
            sock.shutdown(socket.SHUT_WR)
            assert not sock.recv(1)
        with stranger(cached) as sock, contextlib.suppress(ConnectionError):
            channel = Channel(sock)
            channel.send(CacheMsg.JOIN, b"[1, 2]")
            assert channel.receive() is None
        with stranger(cached) as sock:  # before it has joined
            channel = Channel(sock)
            channel.send(CacheMsg.ASK, said)
            assert channel.receive() is None

    pid: list[int] = []
    assert during(cached, at(3, act)) == reference(dataset)
    assert one_named("penstock cache").pid == pid[0]
    assert told(cached)["samples"] == {"source": SAMPLES, "memory": SAMPLES}


@contextlib.contextmanager
def stranger(cached: Any) -> Iterator[socket.socket]:
    with opened(cached._cache._ties, cached._cache._job) as sock:
        sock.settimeout(10.0)
        yield sock


def test_one_of_two_ranks_is_killed_and_the_other_goes_on(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_GROUP", f"two ranks {os.getpid()}")
    photos(root, side=100)
    dataset, tight = ImageFolder(root, CHAIN), Cache(memory="1MiB")
    told_, tells = os.pipe()

    def other() -> None:
        made = loader(dataset, tight, shard=(1, 2))
        for epoch in range(1000):
            made.set_epoch(epoch)
            for _ in made:
                os.write(tells, b"x")

    cached = loader(dataset, tight, shard=(0, 2))
    pid = start(other)
    os.read(told_, 1)

    def act() -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    assert during(cached, at(3, act), 4) == reference(dataset, epochs=4, shard=(0, 2))
    until(lambda: told(cached)["leased"] == 0, within_s=5.0, why="the killed rank has leases")
    os.close(told_)
    os.close(tells)


def test_kills_and_pauses_at_random_moments(root: Path) -> None:
    from tests.fault.cache_schedules import run

    for seed in range(60 if FULL else 1):
        row = run(seed)
        assert row["ok"], row


# ---- files


@pytest.mark.parametrize("how", full_or(["deleted", "truncated", "emptied"], 0))
def test_a_file_that_is_damaged_under_an_epoch_is_named_as_without_a_cache(how: str, root: Path) -> None:
    paths = photos(root)
    dataset, found = ImageFolder(root, CHAIN), []
    for cache in (ROOMY, None):
        made = loader(dataset, cache, shuffle=False, prefetch_factor=1)
        batches = iter(made)
        next(batches)
        victim = sorted(paths)[38]
        whole = victim.read_bytes()
        if how == "deleted":
            victim.unlink()
        else:
            victim.write_bytes(whole[: len(whole) // 2 if how == "truncated" else 0])
        with pytest.raises(Exception) as caught:
            for _ in batches:
                pass
        notes = [note.partition(" on worker")[0] for note in caught.value.__notes__]
        last = str(caught.value).strip().splitlines()[-1]  # the rest names lines of ours
        found.append((type(caught.value), last, notes))
        victim.write_bytes(whole)
        del batches, made, caught
        gc.collect()
    assert found[0] == found[1]
    assert "038.jpg" in str(found[0]) or "sample 38" in str(found[0])


# ---- the disk


DISK = {"memory": "1MiB", "disk": "64MiB"}


def remove(folder: Path) -> None:
    shutil.rmtree(folder)


def read_only(folder: Path) -> None:
    for place in (folder, *folder.rglob("*")):
        place.chmod(0o500 if place.is_dir() else 0o400)


def rot(folder: Path) -> None:
    rng = random.Random(1)
    for file in [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]:
        with file.open("r+b") as raw:
            size = file.stat().st_size
            for _ in range(40):
                raw.seek(rng.randrange(size))
                raw.write(rng.randbytes(1))


def cut(folder: Path) -> None:
    for file in [path for path in folder.rglob("*") if path.is_file() and "segments" in str(path)]:
        os.truncate(file, file.stat().st_size // 2)


@pytest.mark.parametrize("harm", full_or([remove, read_only, rot, cut], 0, 2))
def test_harm_to_the_disk_tier_changes_no_batch(
    harm: Callable[[Path], None], root: Path, tmp_path: Path
) -> None:
    photos(root, side=200)
    dataset, folder = ImageFolder(root, CHAIN), tmp_path / "disk"
    cached = loader(dataset, Cache(**DISK, path=folder))  # type: ignore[arg-type]
    assert during(cached, at(15, lambda: harm(folder)), 3) == reference(dataset, epochs=3)
    assert sum(told(cached)["samples"].values()) == 3 * SAMPLES


def test_a_disk_budget_that_is_far_too_small(root: Path, tmp_path: Path) -> None:
    photos(root, side=200)
    dataset = ImageFolder(root, CHAIN)
    cached = loader(dataset, Cache(memory="1MiB", disk="1MiB", path=tmp_path / "disk"))
    assert taken(cached, 3) == reference(dataset, epochs=3)
    held = sum(path.stat().st_blocks * 512 for path in (tmp_path / "disk").rglob("*"))
    assert held < 3 << 20


def test_a_folder_that_cannot_be_used_is_said_once(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = images(root)
    (tmp_path / "file").write_text("no folder")
    cached = loader(dataset, Cache(**DISK, path=tmp_path / "file"))  # type: ignore[arg-type]
    assert taken(cached) == reference(dataset)
    assert told(cached)["disk"] is None
    assert [str(tmp_path / "file") in said for said in warned(caplog)] == [True]
    assert told(cached)["warnings"] == warned(caplog)


def test_a_full_file_system(root: Path, tmp_path: Path) -> None:
    photos(root, side=200)
    (tmp_path / "disk").mkdir()
    mount = f"mount -t tmpfs -o size=2m none {tmp_path}/disk"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    program = f"""
from tests.cache_jobs import *
dataset = ImageFolder({str(root)!r}, CHAIN)
cached = loader(dataset, Cache(memory="1MiB", disk="64MiB", path={str(tmp_path / "disk")!r}))
assert taken(cached, 3) == reference(dataset, epochs=3)
assert sum(told(cached)["samples"].values()) == 3 * SAMPLES
print("fine")
"""
    command = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "fine\n", done.stderr
    until(lambda: not named("penstock node"), within_s=10.0, why="the node process does not end")
