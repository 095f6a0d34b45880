"""The store on disk: random batches of small samples, beside one file per sample and LMDB: scripts/bench store [--samples N] [--out JSON]

All hold the same samples of 4 to 12 KB, and every sample that is read is copied into the place of a batch, as a loader does. A round reads
batches of 256 with each subject in turn, the subjects rotating; no sample is read twice in a round. *Cold*: their files' pages were
dropped from memory before (posix_fadvise; names and inodes of single files stay warm, which favours them). *Warm*: they
were read just before. Ratios are taken inside a round.

Only our store checks what it reads. So peers are measured as they are, and again with the same checksum: "checked".
LMDB is no dependency: pip install --target /tmp/lmdb lmdb, then PYTHONPATH=/tmp/lmdb scripts/bench store.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import numpy as np
from _machine import describe
from numpy.typing import NDArray

from penstock.reuse.stores.contract import Entry, Wanted
from penstock.reuse.stores.disk import DiskStore

ROOT = Path(__file__).resolve().parent.parent
BATCH = 256
LEAST, MOST = 4 << 10, 12 << 10
Slab = NDArray[np.uint8]


class Subject(Protocol):
    """One way of keeping samples. `read` puts a batch into a slab, a row each."""

    def write(self, sample: int, values: NDArray[np.uint8]) -> None: ...
    def written(self) -> None: ...
    def read(self, samples: Sequence[int], slab: Slab) -> None: ...
    def drop(self) -> None: ...
    def close(self) -> None: ...


def drop_pages(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            fd = os.open(file, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


class Ours:
    def __init__(self, folder: Path, samples: int) -> None:
        self.folder = folder
        self.store = DiskStore(folder, "0" * 16, samples, 1 << 40)

    def write(self, sample: int, values: NDArray[np.uint8]) -> None:
        assert self.store.put(Wanted(sample, 0), Entry(values))

    def written(self) -> None:
        self.store.flush()

    def read(self, samples: Sequence[int], slab: Slab) -> None:
        for row, entry in zip(
            slab, self.store.get_many([Wanted(sample, 0) for sample in samples]), strict=True
        ):
            assert entry is not None
            row[: entry.values.size] = entry.values

    def drop(self) -> None:
        drop_pages(self.folder / ("0" * 16) / "segments")

    def close(self) -> None:
        self.store.close()


class SingleFiles:
    """A file for each sample, in 256 folders; `checked`: with a checksum in front."""

    def __init__(self, folder: Path, *, checked: bool) -> None:
        self.folder, self.checked = folder, checked
        self.skip = 4 if checked else 0
        for number in range(256):
            (folder / f"{number:02x}").mkdir()

    def path(self, sample: int) -> str:
        return f"{self.folder}/{sample % 256:02x}/{sample}"

    def write(self, sample: int, values: NDArray[np.uint8]) -> None:
        check = crc32(values).to_bytes(4, "little") if self.checked else b""
        Path(self.path(sample)).write_bytes(check + values.tobytes())

    def written(self) -> None: ...

    def read(self, samples: Sequence[int], slab: Slab) -> None:
        for row, sample in zip(slab, samples, strict=True):
            fd = os.open(self.path(sample), os.O_RDONLY)
            data = os.read(fd, MOST + 4)
            os.close(fd)
            assert not self.checked or crc32(memoryview(data)[4:]) == int.from_bytes(data[:4], "little")
            row[: len(data) - self.skip] = np.frombuffer(data, np.uint8, offset=self.skip)

    def drop(self) -> None:
        drop_pages(self.folder)

    def close(self) -> None: ...


class Lmdb:
    """In one transaction for each batch, without copies before the slab."""

    def __init__(self, folder: Path, *, checked: bool) -> None:
        self.folder, self.checked = folder, checked
        self.skip = 4 if checked else 0
        self.open()

    def open(self) -> None:
        import lmdb

        options: dict[str, Any] = {"sync": False, "lock": True}
        self.env = lmdb.open(str(self.folder), map_size=1 << 40, **options)

    def write(self, sample: int, values: NDArray[np.uint8]) -> None:
        check = crc32(values).to_bytes(4, "little") if self.checked else b""
        with self.env.begin(write=True) as writing:
            writing.put(sample.to_bytes(8, "big"), check + values.tobytes())

    def written(self) -> None:
        self.env.sync(True)

    def read(self, samples: Sequence[int], slab: Slab) -> None:
        with self.env.begin(buffers=True) as reading:
            for row, sample in zip(slab, samples, strict=True):
                data = reading.get(sample.to_bytes(8, "big"))
                assert not self.checked or crc32(data[4:]) == int.from_bytes(data[:4], "little")
                row[: len(data) - self.skip] = np.frombuffer(data, np.uint8, offset=self.skip)

    def drop(self) -> None:
        self.env.close()  # pages that are mapped are not dropped
        drop_pages(self.folder)
        self.open()

    def close(self) -> None:
        self.env.close()


Make = Callable[[Path, int], Subject]
SUBJECTS: dict[str, Make] = {
    "ours": Ours,
    "one file each": lambda folder, _: SingleFiles(folder, checked=False),
    "one file each, checked": lambda folder, _: SingleFiles(folder, checked=True),
    "LMDB": lambda folder, _: Lmdb(folder, checked=False),
    "LMDB, checked": lambda folder, _: Lmdb(folder, checked=True),
}


def filled(folder: Path, samples: int) -> dict[str, Subject]:
    rng, made = np.random.default_rng(0), dict[str, Subject]()
    noise = rng.integers(0, 256, 1 << 22, np.uint8)
    for name, make in SUBJECTS.items():
        place = folder / name.replace(" ", "-").replace(",", "")
        place.mkdir()
        try:
            made[name] = make(place, samples)
        except ImportError:
            print(f"({name} is left out: it is not installed, see --help)")
    for sample in range(samples):
        size, at = int(rng.integers(LEAST, MOST + 1)), int(rng.integers(0, noise.size - MOST))
        for subject in made.values():
            subject.write(sample, noise[at : at + size])
    for subject in made.values():
        subject.written()
    os.sync()
    return made


def check_alike(made: dict[str, Subject], samples: int) -> None:
    """Fast and wrong is no result."""
    some = np.random.default_rng(9).choice(samples, BATCH, replace=False).tolist()
    slabs = []
    for subject in made.values():
        slabs.append(np.zeros((BATCH, MOST), np.uint8))
        subject.read(some, slabs[-1])
    assert all(np.array_equal(slab, slabs[0]) for slab in slabs)


def measure(
    made: dict[str, Subject], samples: int, rounds: int, batches: int
) -> dict[str, dict[str, list[float]]]:
    """Samples a second, of each subject in each round."""
    rates: dict[str, dict[str, list[float]]] = {
        mode: {name: [] for name in made} for mode in ("cold", "warm")
    }
    slab = np.zeros((BATCH, MOST), np.uint8)
    names = list(made)
    for number in range(rounds):
        chosen = np.random.default_rng(number).choice(samples, (batches, BATCH), replace=False).tolist()
        for name in names[number % len(names) :] + names[: number % len(names)]:
            subject = made[name]
            for mode in rates:
                if mode == "cold":
                    subject.drop()
                started_s = time.perf_counter()
                for batch in chosen:
                    subject.read(batch, slab)
                rates[mode][name].append(batches * BATCH / (time.perf_counter() - started_s))
    return rates


def spread(values: Sequence[float], form: str) -> str:
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"


def report(rates: dict[str, dict[str, list[float]]]) -> list[str]:
    lines = ["| | subject | samples/s | ours is faster by |", "|---|---|---:|---:|"]
    for mode, by_name in rates.items():
        for name, values in by_name.items():
            ratios = [mine / theirs for mine, theirs in zip(by_name["ours"], values, strict=True)]
            faster = "" if name == "ours" else f"{spread(ratios, '.2f')}"
            lines.append(f"| {mode} | {name} | {spread(values, ',.0f')} | {faster} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=32_768)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=16, help="of 256, per round and subject")
    parser.add_argument("--dir", type=Path, help="where the samples are written; on the disk to be measured")
    parser.add_argument("--out", type=Path, help="all figures, as JSON")
    options = parser.parse_args()
    if options.batches * BATCH > options.samples:
        parser.error("--samples must be at least 256 for each of --batches")
    folder = Path(tempfile.mkdtemp(prefix="penstock-store-", dir=options.dir))
    with contextlib.ExitStack() as after:
        after.callback(shutil.rmtree, folder)
        made = filled(folder, options.samples)
        for subject in made.values():
            after.callback(subject.close)
        check_alike(made, options.samples)
        rates = measure(made, options.samples, options.rounds, options.batches)
    machine = describe(ROOT)
    print(
        f"{options.samples:,} samples of {LEAST >> 10} to {MOST >> 10} KB, batches of {BATCH} at random; ",
        end="",
    )
    print(f"median (least to most) of {options.rounds} rounds of {options.batches} batches")
    print(", ".join(f"{name} {value}" for name, value in machine.items()), end="\n\n")
    print("\n".join(report(rates)))
    if options.out:
        said = {"machine": machine, "samples_per_s": rates, "options": vars(options)}
        options.out.write_text(json.dumps(said, indent=1, default=str))


if __name__ == "__main__":
    main()
