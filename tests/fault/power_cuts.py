"""A power cut at any moment: what a disk may then hold, made from the store's own writes, and opened again.

Rule 1: the calls of a real run, compaction included, are recorded. A state is a moment of it, and what the disk has of the calls before:
        what was synced is there. Of the rest any part may be: each write, or some of its 512-byte sectors; each creation, renaming and removal
        by itself. Writes to one place keep their order.
Rule 2: in every state the store opens, gives the right bytes or none, and takes new entries.
Rule 3: an entry that was synced, and that nothing has replaced since, is there.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from penstock.reuse.stores.contract import Entry, Wanted
from penstock.reuse.stores.disk import DiskStore
from penstock.reuse.stores.disk_files import Files
from tests.fault.rewritten import AnotherBoot, write_over

STATES = 100
"""Of each seed."""
NAMESPACE = "feedfeedfeedfeed"
SAMPLES = 40
SECTOR = 512


class Call(NamedTuple):
    what: str
    file: int = 0
    """Which file, whatever its name."""
    path: str = ""
    other: str = ""
    offset: int = 0
    data: bytes = b""


class Recorder(Files):
    """Passes everything on, and remembers what changes the disk."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._files: dict[int, int] = {}
        self._names: dict[str, int] = {}

    def boot(self) -> bytes:
        return b"before the cut".ljust(16)

    def open(self, path: str, flags: int) -> int:
        is_new = flags & os.O_CREAT and not os.path.exists(path)
        fd = super().open(path, flags)
        if is_new:
            self._names[path] = len(self.calls) + 1
            self.calls.append(Call("create", self._names[path], path))
        self._files[fd] = self._names[path]
        return fd

    def write(self, fd: int, pieces: Sequence[bytes | memoryview], offset: int) -> None:
        data = b"".join(pieces)
        self.calls.append(Call("write", self._files[fd], offset=offset, data=data))
        super().write(fd, [data], offset)

    def reserve(self, fd: int, start: int, nbytes: int) -> None:
        self.calls.append(Call("reserve", self._files[fd], offset=start + nbytes))
        super().reserve(fd, start, nbytes)

    def cut(self, fd: int, nbytes: int) -> None:
        self.calls.append(Call("cut", self._files[fd], offset=nbytes))
        super().cut(fd, nbytes)

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self.calls.append(Call("sync", self._files[fd]))

    def rename(self, old: str, new: str) -> None:
        self.calls.append(Call("rename", self._names[old], old, new))
        super().rename(old, new)
        self._names[new] = self._names.pop(old)

    def unlink(self, path: str) -> None:
        self.calls.append(Call("unlink", self._names.pop(path), path))
        super().unlink(path)

    def make_folder(self, path: str) -> bool:
        is_new = super().make_folder(path)
        if is_new:
            self.calls.append(Call("folder", path=path))
        return is_new

    def sync_folder(self, path: str) -> None:
        super().sync_folder(path)
        self.calls.append(Call("sync_folder", path=path))


def entry(sample: int, epoch: int) -> Entry:
    rng = np.random.default_rng((sample, epoch))
    size = 6000 if sample % 13 == 12 else int(rng.integers(0, 1500))
    return Entry(rng.integers(0, 256, size, np.uint8), b"%d" % sample)


@dataclass
class Run:
    """What was recorded."""

    folder: str
    calls: list[Call]
    puts: list[tuple[int, Wanted]] = field(default_factory=list)
    """When each began, as a number of calls."""
    synced: list[tuple[int, Wanted]] = field(default_factory=list)
    """When each was known to be on the disk."""


def record(path: Path) -> Run:
    files = Recorder()

    def make() -> DiskStore:
        return DiskStore(
            path, NAMESPACE, SAMPLES, 1 << 18, small_bytes=4096, segment_bytes=8192, upkeep_s=0, files=files
        )

    store = make()
    run = Run(store.folder, files.calls)
    rng, latest = random.Random(5), dict[int, int]()
    for epoch in range(6):
        for sample in rng.sample(range(SAMPLES), 16 if epoch else SAMPLES):
            run.puts.append((len(files.calls), Wanted(sample, epoch)))
            assert store.put(Wanted(sample, epoch), entry(sample, epoch))
            latest[sample] = epoch
            if rng.random() < 0.1:
                store.flush()
        store.compact()
        if epoch in (0, 2):
            store.close()
            small = [Wanted(sample, of) for sample, of in latest.items() if sample % 13 != 12]
            run.synced += [(len(files.calls), wanted) for wanted in small]
            store = make()
    store.close()
    kinds = {call.what for call in files.calls}
    assert kinds == {"create", "write", "reserve", "cut", "sync", "rename", "unlink", "folder", "sync_folder"}
    return run


def folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def state_of(run: Run, cut_at: int, rng: random.Random) -> dict[str, bytes]:
    """What a disk may hold when the power goes after so many calls: names and contents of files (Rule 1)."""
    calls = run.calls[:cut_at]
    file_synced: dict[int, int] = {}
    folder_synced: dict[str, int] = {}
    for at, call in enumerate(calls):
        if call.what == "sync":
            file_synced[call.file] = at
        elif call.what == "sync_folder":
            folder_synced[call.path] = at
    kept_share = rng.choice([0.0, 1.0, 0.5, 0.9, 0.1])
    torn_share = rng.choice([0.0, 0.0, 0.3])

    def survives(at: int, synced_at: int) -> bool:
        return at < synced_at or rng.random() < kept_share

    contents: dict[int, bytearray] = {}
    names: dict[str, int] = {}
    folders: set[str] = {folder_of(run.folder)}
    for at, call in enumerate(calls):
        data = contents.setdefault(call.file, bytearray())
        safe_at = file_synced.get(call.file, -1)
        if call.what in ("write", "reserve", "cut"):
            if survives(at, safe_at):
                tear = at >= safe_at and rng.random() < torn_share
                change(data, call, rng if tear else None)
        elif call.what == "folder":
            if survives(at, folder_synced.get(folder_of(call.path), -1)):
                folders.add(call.path)
        elif call.what in ("create", "rename", "unlink"):
            safe_at = folder_synced.get(folder_of(call.path), -1)
            # A renaming is one change of a journal, which never leaves a file under both of its names here.
            if survives(at, safe_at):
                if call.what != "create":
                    names.pop(call.path, None)
                if call.what != "unlink":
                    names[call.other or call.path] = call.file
    return {
        path: bytes(contents[file])
        for path, file in names.items()
        if all(str(up) in folders for up in Path(path).parents if str(up).startswith(run.folder))
    }


def change(data: bytearray, call: Call, torn: random.Random | None) -> None:
    end = call.offset + len(call.data)
    if call.what == "cut":
        del data[call.offset :]
    if len(data) < end:
        data.extend(bytes(end - len(data)))
    if call.what == "write":
        for start in range(call.offset - call.offset % SECTOR, end, SECTOR):
            if torn is None or torn.random() < 0.5:
                first, last = max(start, call.offset), min(start + SECTOR, end)
                data[first:last] = call.data[first - call.offset : last - call.offset]


def put_down(state: dict[str, bytes], run: Run, root: str) -> None:
    """Make a folder what it was in this state. What is there from the last one is written over: to remove and make it costs the most."""
    places = {root + path.removeprefix(folder_of(run.folder)): data for path, data in state.items()}
    folders = {root, f"{root}/{NAMESPACE}"}
    for place in places:
        folder = folder_of(place)
        while folder not in folders:
            folders.add(folder)
            folder = folder_of(folder)
    for folder, _, files in os.walk(root, topdown=False):
        for name in files:
            if f"{folder}/{name}" not in places:
                os.unlink(f"{folder}/{name}")
        if folder not in folders:
            os.rmdir(folder)
    for folder in sorted(folders):
        os.makedirs(folder, 0o700, exist_ok=True)
    for place, data in places.items():
        write_over(place, data)


def check(run: Run, cut_at: int, root: str, right: dict[Wanted, Entry]) -> int:
    """Open it and look at everything; how many entries there are."""
    store = DiskStore(
        root,
        NAMESPACE,
        SAMPLES,
        1 << 18,
        small_bytes=4096,
        segment_bytes=8192,
        upkeep_s=0,
        files=AnotherBoot(),
    )
    try:
        return look(run, cut_at, store, right)
    finally:
        store.close()


def look(run: Run, cut_at: int, store: DiskStore, right: dict[Wanted, Entry]) -> int:
    begun = {wanted for at, wanted in run.puts if at < cut_at}
    found = dict(zip(right, store.get_many(list(right)), strict=True))
    for wanted, got in found.items():
        if got is not None:
            assert wanted in begun
            assert got.values.tobytes() == right[wanted].values.tobytes(), wanted
            assert got.extra == right[wanted].extra
    latest = {wanted.sample: wanted for at, wanted in run.puts if at < cut_at}
    for at, wanted in run.synced:
        if at <= cut_at and latest[wanted.sample] == wanted:
            assert found[wanted] is not None, f"{wanted} was synced"
    new = Wanted(3, 99)
    assert store.put(new, entry(3, 99))
    store.compact()
    again = store.get(new)
    assert again is not None
    assert again.values.tobytes() == entry(3, 99).values.tobytes()
    return sum(got is not None for got in found.values())


def examine(run: Run, states: int, root: str, seed: int = 0) -> int:
    right = {wanted: entry(*wanted) for _, wanted in run.puts}
    rng, found = random.Random(seed), 0
    for _ in range(states):
        cut_at = rng.randrange(len(run.calls) + 1)
        put_down(state_of(run, cut_at, rng), run, root)
        found += check(run, cut_at, root, right)
    return found


@cache
def recorded() -> Run:
    with TemporaryDirectory() as folder:
        return record(Path(folder))


def run(seed: int) -> dict[str, Any]:
    """A row of a campaign."""
    with TemporaryDirectory() as folder:
        try:
            found = examine(recorded(), STATES, folder, seed)
        except AssertionError as exc:
            return {"seed": seed, "ok": False, "why": str(exc)}
    return {"seed": seed, "ok": True, "states": STATES, "entries": found}
