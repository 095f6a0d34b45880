"""One measurement in this process: `python _prepare_measure.py '{"module": "PYTHON::SUBJECT", "params": …}'`.

The process becomes the peer's own interpreter first. The result is a JSON object of figures, alone on the last line of stdout.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _machine

SOURCE = Path(__file__).resolve().parent.parent / "src"
ENOUGH = 3
"""Batches that must have come before time is taken, however long they took."""


def throughput(subject: str, *, warmup_s: float, seconds: float, **setting: Any) -> dict[str, float]:
    """Batches for some seconds, from the arrival of one to the arrival of another, with what the process tree used meanwhile."""
    from _prepare_subjects import Setting

    made = Setting(**setting)
    for file in made.files:
        Path(file).read_bytes()  # from here on the files are in memory
    started_s = time.perf_counter()
    batches = _batches(subject, made)
    check(next(batches), made)
    first_s = time.perf_counter() - started_s
    end_s, seen = time.perf_counter() + warmup_s, 0
    while time.perf_counter() < end_s or seen < ENOUGH:
        next(batches)
        seen += 1
    before = _machine.cpu_clocks(_machine.process_tree(os.getpid()))
    samples, started_s = 0, time.perf_counter()
    while time.perf_counter() < started_s + seconds:
        next(batches)
        samples += made.batch_size
    wall_s = time.perf_counter() - started_s
    after = _machine.cpu_clocks(_machine.process_tree(os.getpid()))
    cpu_s = sum(used - before.get(pid, 0.0) for pid, used in after.items())
    check(next(batches), made)
    if hasattr(batches, "close"):
        batches.close()
    return {
        "samples_per_s": samples / wall_s,
        "cpu_ms_per_sample": cpu_s / samples * 1000,
        "cores_busy": cpu_s / wall_s,
        "first_batch_s": first_s,
    }


def _batches(subject: str, setting: Any) -> Iterator[Any]:
    import _prepare_peers
    import _prepare_subjects

    make = getattr(_prepare_subjects, subject, None) or getattr(_prepare_peers, subject)
    return iter(make(setting))


def check(batch: Any, setting: Any) -> None:
    """Fast and wrong is not a result: shape, type, and values that normalised photos have."""
    import numpy as np

    array = np.asarray(batch)
    if array.shape != (setting.batch_size, 3, 224, 224) or array.dtype != np.float32:
        raise RuntimeError(f"a batch of {array.shape}, {array.dtype}")
    least, most, spread = array.min(), array.max(), array.std(axis=(1, 2, 3))
    if not (-2.2 < least < -1 and 1 < most < 2.7 and 0.4 < np.median(spread) < 1.8):
        raise RuntimeError(f"values from {least} to {most} with a deviation of {np.median(spread)}")
    if np.array_equal(array[0], array[1]):
        raise RuntimeError("two samples are the same")


def main() -> None:
    spec = json.loads(sys.argv[1])
    python, _, subject = spec["module"].partition("::")
    if python:
        os.execv(python, [python, __file__, json.dumps({**spec, "module": f"::{subject}"})])
    sys.path.insert(0, str(SOURCE))
    figures = throughput(subject, **spec["params"])
    for child in multiprocessing.active_children():
        child.terminate()
        child.join()
    print(json.dumps(figures), flush=True)
    os._exit(0)  # some peers' threads never end


if __name__ == "__main__":
    main()
