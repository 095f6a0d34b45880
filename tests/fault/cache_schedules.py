"""A training with a cache through faults at random moments, drawn from a seed, with real processes and signals.

The service, its reading processes, the node process, agents and workers are killed, or stopped and continued; the folder of the disk tier is removed, cut or
rots; epochs are left early; the loader is saved and resumed with other workers; another rank of the machine is killed. What is delivered must be, batch for
batch and bit for bit, what one process alone delivers, and no batch may take long.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from penstock import Cache, DataLoader, ImageFolder
from penstock.cache.reading_pool import COUNT_SETTING
from tests.cache_jobs import CHAIN, Batches, named, photos, reference
from tests.deaths import kill_all
from tests.fault.kill_schedules import AGENT_KILLS, WORKER_KILLS, digest
from tests.fault.programs import fair, until
from tests.forks import start
from tests.leaks import GONE, brand_this_process

WAIT_S = 20.0
SAMPLES, BATCH, EPOCHS = 160, 4, 3
MOST_FAULTS = 12
BACK_S = 10.0
FAULTS = (
    ["kill cache"] * 4
    + ["kill node"] * 2
    + ["stop cache"] * 3
    + ["stop node"]
    + ["kill agent", "kill worker", "stop worker"]
    + ["kill other rank"] * 2
    + ["kill reads", "stop reads"]
    + ["remove folder", "cut files", "rot"]
    + ["leave the epoch", "resume"]
)


@dataclass(slots=True)
class Played:
    """A run so far."""

    rng: random.Random
    folder: Path
    faults: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0
    timers: list[threading.Timer] = field(default_factory=list)
    served: Counter[str] = field(default_factory=Counter)
    """Where samples came from, as far as services that were there at the end have counted."""
    living: int = 0
    """Faults before which the cache was seen to work."""
    rank: int = 0
    """Process of the other rank; 0: there is none."""

    def later(self, seconds: float, act: Callable[[], Any]) -> None:
        def quietly() -> None:
            with contextlib.suppress(*GONE):
                act()

        timer = threading.Timer(seconds, quietly)
        self.timers.append(timer)
        timer.start()


def run(seed: int) -> dict[str, Any]:
    """Play one schedule; a row of what came of it."""
    rng, began_s = random.Random(seed), time.monotonic()
    brand_this_process()  # to know the node process and its services as ours
    os.environ["PENSTOCK_GROUP"] = f"cache schedule {os.getpid()} {seed}"
    os.environ[COUNT_SETTING] = str(rng.choice([0, 2]))
    with tempfile.TemporaryDirectory() as folder:
        played = Played(rng, Path(folder))
        row: dict[str, Any] = {"seed": seed, "ok": True}
        try:
            row["cache"] = play(played)
        except Exception as exc:
            row |= {"ok": False, "why": f"{type(exc).__name__}: {exc}"}
        finally:
            del os.environ["PENSTOCK_GROUP"], os.environ[COUNT_SETTING]
            clean(played)
        gc.collect()
        row["left"] = left()
        row["ok"] &= not row["left"]
    return row | {
        "faults": sum(played.faults.values()),
        "kinds": dict(played.faults),
        "living": played.living,
        "served": dict(played.served),
        "longest_s": round(played.longest_s, 2),
        "took_s": round(time.monotonic() - began_s, 1),
    }


def left() -> list[str]:
    """What is still there of a run that is over."""

    def there() -> list[str]:
        return [
            f"penstock {name} {process.pid}"
            for name in ("node", "cache", "reads")
            for process in named(f"penstock {name}")
        ]

    with contextlib.suppress(AssertionError):
        until(lambda: not there(), within_s=15.0, why="it is there")
    return there()


def wait_for_timers(played: Played) -> None:
    for timer in played.timers:
        timer.join()
    played.timers.clear()


def clean(played: Played) -> None:
    wait_for_timers(played)
    if played.rank:
        end_rank(played)


def end_rank(played: Played) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(played.rank, signal.SIGKILL)
    os.waitpid(played.rank, 0)
    played.rank = 0


def play(played: Played) -> dict[str, Any]:
    """Train, with faults; raises AssertionError if anything is not as it must be."""
    rng = played.rng
    photos(played.folder / "data", SAMPLES, side=rng.choice([40, 120]))
    dataset = ImageFolder(played.folder / "data", CHAIN)
    settings: dict[str, Any] = {
        "memory": rng.choice(["1MiB", "16MiB"]),
        "policy": rng.choice(["auto", "auto", "lru", "no-evict"]),
    }
    if rng.random() < 0.5:
        settings |= {"disk": rng.choice(["1MiB", "64MiB"]), "path": str(played.folder / "disk")}
    options = {"shard": (0, 2), "batch_size": BATCH}
    expected = [digests for epoch in reference(dataset, EPOCHS, **options) for digests in epoch]
    if rng.random() < 0.4:
        played.rank = start(lambda: other_rank(dataset, Cache(**settings), options))
    found = trained(played, dataset, settings, options)
    wrong = [at for at, (one, other) in enumerate(zip(found, expected, strict=False)) if one != other]
    assert not wrong, f"batches {wrong} are others"
    assert len(found) == len(expected), f"{len(found)} batches for {len(expected)}"
    return settings


def other_rank(dataset: Any, cache: Cache, options: dict[str, Any]) -> None:
    made = DataLoader(
        dataset, cache=cache, shuffle=True, seed=3, num_workers=1, **options | {"shard": (1, 2)}
    )
    while True:
        for _ in made:
            pass


def trained(played: Played, dataset: Any, settings: dict[str, Any], options: dict[str, Any]) -> Batches:
    """All batches of all epochs, each once."""
    rng, found, steps = played.rng, Batches(), -(-SAMPLES // (2 * BATCH))
    state: Any = None
    while len(found) < EPOCHS * steps:
        keeps = rng.random() < 0.5
        made: DataLoader[Any] = DataLoader(
            dataset,
            cache=Cache(**settings),
            shuffle=True,
            seed=3,
            num_workers=rng.randint(1, 3),
            persistent_workers=keeps,
            **options,
        )
        if state is not None:
            made.load_state_dict(state)
        limits = Counter({"kill worker": WORKER_KILLS, "kill agent": AGENT_KILLS})
        found += epochs(played, made, limits, EPOCHS * steps - len(found))
        state = made.state_dict()
        wait_for_timers(played)
        for where, samples in ((made.stats()["cache"] or {}).get("samples") or {}).items():
            played.served[where] += samples
    return found


def epochs(played: Played, made: Any, limits: Counter[str], wanted: int) -> Batches:
    """Return what a loader delivers, until all is there or it is to be resumed by another one."""
    rng, found = played.rng, Batches()
    while len(found) < wanted:
        ending = ""
        batches, before_s = iter(made), time.monotonic()
        for batch in batches:
            waited_s = time.monotonic() - before_s
            played.longest_s = max(played.longest_s, waited_s)
            assert waited_s < fair(WAIT_S), f"a batch took {waited_s:.1f} s, after {dict(played.faults)}"
            found.append(digest(batch))
            time.sleep(rng.random() * 0.02)
            if sum(played.faults.values()) < MOST_FAULTS and rng.random() < 0.25:
                if rng.random() < 0.6:
                    wait_for_cache(played, made)
                ending = inject(played, made, limits)
            if ending:
                break
            before_s = time.monotonic()
        del batches
        if ending == "resume":
            break
        if ending:
            made.load_state_dict(made.state_dict())
    return found


def wait_for_cache(played: Played, made: Any) -> None:
    """Else most faults would come to a training whose cache is not back yet from the last one."""
    until_s = time.monotonic() + BACK_S
    while not made.stats()["cache"] and time.monotonic() < until_s:
        time.sleep(0.05)
    played.living += bool(made.stats()["cache"])


def inject(played: Played, made: Any, limits: Counter[str]) -> str:
    """Do some harm, now or soon; return what ends the epoch here, if anything does."""
    rng = played.rng
    what, soon_s = rng.choice(FAULTS), rng.random() * 0.03
    verb, _, whom = what.partition(" ")
    if what in ("leave the epoch", "resume"):
        played.faults[what] += 1
        return what
    if what in limits:
        if not limits[what]:
            return ""
        limits[what] -= 1
    if whom in ("cache", "node", "reads"):
        processes = named(f"penstock {whom}")
        if not processes:
            return ""
        pid = rng.choice(processes).pid
        if verb == "kill":
            played.later(soon_s, lambda: os.kill(pid, signal.SIGKILL))
        else:
            paused(played, pid, soon_s, rng.choice([0.1, 1.0, 2.5, 6.0]))
    elif whom in ("agent", "worker"):
        stats = made.stats()
        pids = [stats["agent_pid"]] if whom == "agent" else stats["worker_pids"]
        if not any(pids):
            return ""
        pid = rng.choice(pids)
        if verb == "kill":
            played.later(soon_s, lambda: kill_all([pid]))
        else:
            paused(played, pid, soon_s, 0.5)
    elif what == "kill other rank":
        if not played.rank:
            return ""
        end_rank(played)
    else:
        files = [
            path for path in (played.folder / "disk").rglob("*") if path.is_file() and path.stat().st_size
        ]
        if not files:
            return ""
        {"remove folder": removed, "cut files": cut, "rot": rotten}[what](played, files)
    played.faults[what] += 1
    return ""


def paused(played: Played, pid: int, soon_s: float, for_s: float) -> None:
    """Stop a process, and continue it; a number that is another process's by now is left alone."""
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return
    played.later(soon_s, process.suspend)
    played.later(soon_s + for_s, process.resume)


def removed(played: Played, _: list[Path]) -> None:
    shutil.rmtree(played.folder / "disk", ignore_errors=True)


def cut(played: Played, files: list[Path]) -> None:
    with contextlib.suppress(OSError):
        path = played.rng.choice(files)
        os.truncate(path, played.rng.randrange(path.stat().st_size))


def rotten(played: Played, files: list[Path]) -> None:
    with contextlib.suppress(OSError):
        path = played.rng.choice(files)
        with path.open("r+b") as raw:
            for _ in range(30):
                raw.seek(played.rng.randrange(path.stat().st_size))
                raw.write(played.rng.randbytes(1))
