"""One measurement in this process: `python _measures.py '{"measure": …, "module": …, "params": …}'`.

The result is a JSON object of figures, alone on the last line of stdout. `module` is where DataLoader is imported from; nothing
else differs between the subjects: same dataset, same parameters, same loop. Samplers are sequential, since shuffling is not what
is measured here.
"""

from __future__ import annotations

import importlib
import json
import mmap
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import _machine

if TYPE_CHECKING:
    from torch.utils.data import DataLoader, Dataset

    LoaderType = type[DataLoader[Any]]

Figures = dict[str, float]


def steady(
    loader_type: LoaderType, *, data: str, batch_size: int, workers: int, epoch_samples: int, seconds: float
) -> Figures:
    """Epochs of persistent workers after one that does not count: starting up is measured elsewhere."""
    loader = loader_type(
        _dataset(data, epoch_samples),
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=_collate(data),
        multiprocessing_context="fork",
        persistent_workers=True,
    )
    _check(loader, epoch_samples)
    samples = 0
    with _metered() as used:
        end_s = time.perf_counter() + seconds
        while time.perf_counter() < end_s:
            for _, labels in loader:
                samples += len(labels)
    return {
        "samples_per_s": samples / used["wall_s"],
        "training_cpu_s_per_1000": used["training_cpu_s"] / samples * 1000,
        "tree_cpu_s_per_1000": used["tree_cpu_s"] / samples * 1000,
    }


def cold_epoch(
    loader_type: LoaderType, *, data: str, batch_size: int, workers: int, epoch_samples: int
) -> Figures:
    """One whole epoch, from building the loader to the last worker's end."""
    dataset = _dataset(data, epoch_samples)
    started_s = time.perf_counter()
    loader = loader_type(dataset, batch_size=batch_size, num_workers=workers, multiprocessing_context="fork")
    samples = sum(len(labels) for _, labels in loader)
    return {"samples_per_s": samples / (time.perf_counter() - started_s)}


def efficiency(
    loader_type: LoaderType, *, cpu_ms: float, batch_size: int, epoch_samples: int, seconds: float
) -> Figures:
    """How near all cores come to doing nothing but preparing; and how much CPU there is beside preparing."""
    cores = _machine.cores()
    figures = steady(
        loader_type,
        data=f"burn:{cpu_ms}",
        batch_size=batch_size,
        workers=cores,
        epoch_samples=epoch_samples,
        seconds=seconds,
    )
    return {
        **figures,
        "efficiency": figures["samples_per_s"] * cpu_ms / 1000 / cores,
        "cpu_per_useful_cpu": figures["tree_cpu_s_per_1000"] / cpu_ms,
    }


def first_batch(
    loader_type: LoaderType, *, cpu_ms: float, batch_size: int, workers: int, batches: int
) -> Figures:
    """From `iter()` to the first batch, in a first and a second epoch, workers started anew for each."""
    loader = loader_type(
        _dataset(f"burn:{cpu_ms}", batch_size * batches),
        batch_size=batch_size,
        num_workers=workers,
        multiprocessing_context="fork",
    )
    figures = {}
    for epoch in ("first", "second"):
        started_s = time.perf_counter()
        iterator = iter(loader)
        next(iterator)
        figures[f"{epoch}_epoch_ms"] = (time.perf_counter() - started_s) * 1000
        rest = sum(1 for _ in iterator)
        _require(rest == batches - 1, f"{rest + 1} batches instead of {batches}")
        del iterator
    return figures


def memory(loader_type: LoaderType, *, data: str, batch_size: int, workers: int, total_bytes: int) -> Figures:
    """PSS of the process tree a moment after the last batch of an epoch came, the workers still alive."""
    dataset = _dataset(data, total_bytes)
    alone_mib = _machine.pss_mib([os.getpid()])
    loader = loader_type(dataset, batch_size=batch_size, num_workers=workers, multiprocessing_context="fork")
    iterator, batch = iter(loader), None
    for _ in range(len(loader)):
        batch = next(iterator)
    time.sleep(0.5)  # what a loader frees when it runs out of work, it may free now
    tree = _machine.process_tree(os.getpid())
    _require(len(tree) > workers, f"only {len(tree)} processes were left at the last batch")
    pss_mib = _machine.pss_mib(tree)
    del batch, iterator
    return {"pss_mib": pss_mib, "alone_mib": alone_mib, "processes": len(tree)}


def bare_copies(*, data: str, batch_size: int, workers: int, seconds: float, **_: object) -> Figures:
    """What no loader can beat: as many processes, each only copying samples round its own warm shared memory.

    Each has two batches of room, as many as torch prefetches per worker: less would stay in a core's cache.
    """
    fork = multiprocessing.get_context("fork")
    counts = fork.Array("q", workers, lock=False)
    start = fork.Barrier(workers)
    args = (_dataset(data, 2 * batch_size), 2 * batch_size, seconds, start, counts)
    processes = [fork.Process(target=_copy_samples, args=(i, *args)) for i in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        _require(process.exitcode == 0, "a copying process failed")
    return {"samples_per_s": sum(counts) / seconds}


def bare_work(*, cpu_ms: float, batch_size: int, seconds: float, **_: object) -> Figures:
    """The same for samples that cost something: each process prepares them and copies them, and does nothing else."""
    cores = _machine.cores()
    figures = bare_copies(data=f"burn:{cpu_ms}", batch_size=batch_size, workers=cores, seconds=seconds)
    return {"efficiency": figures["samples_per_s"] * cpu_ms / 1000 / cores}


def core_events(*, kind: str, workers: int, seconds: float) -> Figures:
    """Events per second through the pure core: those of one simulated run, told again to fresh states."""
    from penstock.core.events import Kind
    from penstock.sim import Scenario, events_per_s, record, replay

    scenario = Scenario(
        seed=0,
        kind=Kind[kind],
        workers=workers,
        batches=200,
        batch_size=64,
        window=2 * workers,
        sample_s=0.001,
    )
    config, run = record(scenario)
    _require(replay(config, run) is None, "the replay went another way")
    rate = events_per_s(config, run, seconds=seconds, clock=time.process_time)
    return {"events_per_s": rate, "events_per_batch": len(run) / scenario.batches}


def _copy_samples(me: int, dataset: Any, room: int, seconds: float, start: Any, counts: Any) -> None:
    import torch

    torch.set_num_threads(1)
    slots = []
    for index in range(room):
        image, _ = dataset[index]
        memory = mmap.mmap(-1, image.nbytes)
        slots.append(torch.frombuffer(memory, dtype=image.dtype).reshape(image.shape).copy_(image))
    start.wait()
    copied, started_s = 0, time.perf_counter()
    while time.perf_counter() < started_s + seconds:
        for index, slot in enumerate(slots):
            slot.copy_(dataset[index][0])
        copied += room
    counts[me] = round(copied * seconds / (time.perf_counter() - started_s))


def _dataset(data: str, size: int) -> Dataset[Any]:
    import _workloads

    kind, _, argument = data.partition(":")
    make: dict[str, Callable[[], Dataset[Any]]] = {
        "zero": lambda: _workloads.ZeroCost(size, argument),
        "burn": lambda: _workloads.Burning(size, float(argument) / 1000),
        "ragged": lambda: _workloads.Ragged(size),
        "arrays": lambda: _workloads.ArraysInMemory(size),
        "objects": lambda: _workloads.ObjectsInMemory(size),
    }
    return make[kind]()


def _collate(data: str) -> Callable[[list[Any]], Any] | None:
    return (lambda b: tuple(zip(*b))) if data == "ragged" else None  # noqa: B905, as in the tutorials


def _check(loader: DataLoader[Any], samples: int) -> None:
    """The epoch that does not count, and a look at what it delivers: fast and wrong is not a result."""
    import torch

    seen = 0
    for images, labels in loader:
        for i in (0, len(labels) - 1):
            expected, label = loader.dataset[int(labels[i])]
            _require(label == seen + i, f"sample {label} stands in place {seen + i}")
            _require(torch.equal(images[i], expected), f"sample {label} has wrong bytes")
        seen += len(labels)
    _require(seen == samples, f"{seen} samples instead of {samples}")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RuntimeError(otherwise)


@contextmanager
def _metered() -> Iterator[Figures]:
    """Time and CPU used inside the block; the processes it counts must be alive at both ends."""
    used: Figures = {}
    before = _machine.cpu_clocks(_machine.process_tree(os.getpid()))
    training_cpu_s, wall_s = time.process_time(), time.perf_counter()
    yield used
    used["wall_s"] = time.perf_counter() - wall_s
    used["training_cpu_s"] = time.process_time() - training_cpu_s
    after = _machine.cpu_clocks(_machine.process_tree(os.getpid()))
    used["tree_cpu_s"] = sum(cpu_s - before.get(pid, 0.0) for pid, cpu_s in after.items())


WITH_A_LOADER: dict[str, Callable[..., Figures]] = {
    "steady": steady,
    "cold_epoch": cold_epoch,
    "efficiency": efficiency,
    "first_batch": first_batch,
    "memory": memory,
}
WITHOUT: dict[str, Callable[..., Figures]] = {
    "bare_copies": bare_copies,
    "bare_work": bare_work,
    "core_events": core_events,
}


def main() -> None:
    spec = json.loads(sys.argv[1])
    if spec["measure"] in WITHOUT:
        figures = WITHOUT[spec["measure"]](**spec["params"])
    else:
        loader_type = importlib.import_module(spec["module"]).DataLoader
        figures = WITH_A_LOADER[spec["measure"]](loader_type, **spec["params"])
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
