"""One measurement in this process: `python _cache_measure.py '{"module": "PYTHON::SUBJECT", "params": …}'`.

The process becomes the subject's own interpreter first, on the cores that it may have. Epochs are timed from the arrival of their first batch to that of
their last, so starting workers does not count. The result is a JSON object of figures, alone on the last line of stdout.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from _cache_reading import Epoch, Reading
from _store_control import asked

ROOT = Path(__file__).resolve().parent.parent


def measured(make: Callable[[Reading], Epoch], reading: Reading) -> dict[str, float]:
    served = counted(reading)
    found: dict[str, list[float]] = {"per_s": [], "first_batch_s": [], "served": [], "samples": []}
    epoch = make(reading)
    for number in range(reading.epochs):
        began_s, first_s, samples, last_s = time.perf_counter(), 0.0, 0, 0.0
        total = 0
        for count in epoch(number):
            last_s = time.perf_counter()
            samples += count if first_s else 0
            first_s, total = first_s or last_s, total + count
            if reading.seconds and last_s - first_s > reading.seconds:
                break
        now = counted(reading)
        found["per_s"].append(samples / max(1e-9, last_s - first_s))
        found["first_batch_s"].append(first_s - began_s)
        found["served"].append(now - served)
        found["samples"].append(total)
        served = now
    return {
        f"{which}_{name}": statistics.fmean(part)
        for name, values in found.items()
        for which, part in (("cold", values[:1]), ("warm", values[1:]))
        if part
    }


def counted(reading: Reading) -> float:
    return float(asked(reading.control, "count")["bytes"]) if reading.control else 0.0


def main() -> None:
    spec = json.loads(sys.argv[1])
    python, _, subject = spec["module"].partition("::")
    if python:
        os.execv(python, [python, __file__, json.dumps({**spec, "module": f"::{subject}"})])
    sys.path[:0] = [str(ROOT / "src")]
    reading = Reading(**{**spec["params"], "cores": tuple(spec["params"].get("cores", ()))})
    if reading.cores:
        os.sched_setaffinity(0, reading.cores)
    import _cache_subjects

    figures = measured(getattr(_cache_subjects, subject), reading)
    for child in multiprocessing.active_children():
        child.terminate()
        child.join()
    print(json.dumps(figures), flush=True)
    os._exit(0)  # some peers' threads never end


if __name__ == "__main__":
    main()
