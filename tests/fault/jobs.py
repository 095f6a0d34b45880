"""Programs that the fault tests start and then do harm to. Each says on standard output how far it has come."""

from __future__ import annotations

import io
import json
import logging
import os
import time
import warnings
from pathlib import Path
from typing import Any

from PIL import Image

from penstock import DataLoader, Reuse, StagedDataset
from penstock import transforms as T
from tests.fault.confinement import deny, shrink_shm
from tests.fault.datasets import Drawn, Harmful, Large, LongToLoad, Stream


def say(*words: object) -> None:
    print(*words, flush=True)


def make(
    dataset: str = "map",
    *,
    length: int = 64,
    pause_s: float = 0.0,
    folder: str = "",
    sample_bytes: int = 0,
    as_list: bool = False,
    **options: Any,
) -> DataLoader[Any]:
    if as_list:
        options["collate_fn"] = list
    if dataset == "map":
        return DataLoader(Drawn(length, pause_s), **options)
    if dataset == "iterable":
        return DataLoader(Stream(length, pause_s), **options)
    if dataset == "long to load":
        return DataLoader(LongToLoad(folder, length), **options)
    if dataset == "large":
        return DataLoader(Large(length, sample_bytes), **options)
    return DataLoader(Harmful(dataset, 9, folder, times=99, length=length, pause_s=pause_s), **options)


def wait_to_be_killed() -> None:
    time.sleep(3600)


def idle(**options: Any) -> None:
    """An epoch is over and the iterator is still referred to."""
    loader = make(**options)
    batches = iter(loader)
    for _ in batches:
        pass
    say("ready")
    wait_to_be_killed()


def in_the_middle(**options: Any) -> None:
    """Waits for a batch that workers prepare."""
    loader = make(**options)
    batches = iter(loader)
    next(batches)
    say("ready")
    for _ in batches:
        pass
    say("end of epoch")
    wait_to_be_killed()


def stuck_in_c(**options: Any) -> None:
    """Workers hold their interpreter lock for ever, in C, and the training process waits for them."""
    say("ready")
    for _ in make("spin", **options):
        pass


def training(**options: Any) -> None:
    """Works on a batch, with the next ones prepared."""
    loader = make(**options)
    batches = iter(loader)
    next(batches)
    say("ready")
    wait_to_be_killed()


def two_loaders(**options: Any) -> None:
    one, other = make(**options), make(**options)
    batches = iter(one), iter(other), iter(one)
    for each in batches:
        next(each)
    say("ready")
    wait_to_be_killed()


def starting(**options: Any) -> None:
    """Starts iterators without an end."""
    loader = make(**options)
    say("ready")
    while True:
        next(iter(loader))


def loop(**options: Any) -> None:
    """Epoch after epoch, for ever."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pin_memory without an accelerator
        loader = make(**options)
        for epoch in range(10**6):
            for number, _ in enumerate(loader):
                if (epoch, number) == (0, 1):
                    say(json.dumps(loader.stats()["worker_pids"]))


def loop_until_interrupted(**options: Any) -> None:
    """As `loop`, but leaves at once at Ctrl-C: without the interpreter's shutdown, and so without ours."""
    try:
        loop(**options)
    except KeyboardInterrupt:
        os._exit(1)


def resumable(state: str, log: str, epochs: int, **options: Any) -> None:
    """Trains `epochs` epochs, from the saved state if there is one; notes each batch, then saves where it is."""
    loader = make(**options)
    if Path(state).exists():
        loader.load_state_dict(json.loads(Path(state).read_text()))
    say("ready")
    with Path(log).open("a") as notes:
        while loader.state_dict()["epoch"] < epochs:
            for batch in loader:
                saved = loader.state_dict()
                entry = json.dumps(
                    {"epoch": saved["epoch"], "batches": saved["batches"], "batch": batch.tolist()}
                )
                commit(notes, Path(state), entry, json.dumps(saved))
    say("done")


def commit(notes: Any, state: Path, entry: str, saved: str) -> None:
    """Checkpoint and log as one: the log line is only valid if the state that follows it was written too."""
    notes.write(entry + "\n")
    notes.flush()
    fresh = state.with_suffix(".new")
    fresh.write_text(saved)
    fresh.rename(state)


def outcome(**options: Any) -> None:
    """One epoch: the number of its batches, or the error it came to."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        loader = make(**options)
        say("batches", sum(1 for _ in loader))
    except Exception as exc:
        say("error", type(exc).__name__, json.dumps(str(exc)))


def in_cgroup(folder: str, cgroup: str, **options: Any) -> None:
    Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
    outcome(dataset="hoard", folder=folder, **options)


def reusing_in_cgroup(cgroup: str, samples: int, **options: Any) -> None:
    """An epoch whose samples take more than the group has, if all are kept; what they took, and what is said of it."""
    Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    data = io.BytesIO()
    Image.new("RGB", (1000, 750)).save(data, "JPEG")
    ops = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip()])
    dataset = StagedDataset(lambda index: (data.getvalue(), index), ops, samples)
    loader = DataLoader(dataset, shuffle=True, seed=1, reuse=Reuse(times=3, split=0), **options)
    say("batches", sum(1 for _ in loader))
    say("kept", json.dumps(loader.stats()["reuse"]))
    say("explain", loader.explain().replace("\n", " "))


def with_little_shm(size_bytes: int, **options: Any) -> None:
    try:
        shrink_shm(size_bytes)
        deny("memfd_create")
    except OSError as exc:
        say("skip", exc)
        return
    outcome(**options)


def denied(calls: list[str], then: str, **options: Any) -> None:
    try:
        deny(*calls)
    except OSError as exc:
        say("skip", exc)
        return
    globals()[then](**options)
