"""The engine against torch's DataLoader, in one interleaved run: scripts/bench engine [--quick] [--only a,b] ...

Lines of the table:
  a  zero-cost samples of 3 x 224 x 224, 2 workers: what the loader itself costs
  b  samples that burn 1 ms of CPU, a worker per core: how much of the machine reaches preparation
  c  CPU seconds of the training process per 1,000 samples of line a
  d  iter() to the first batch of 64 samples of 5 ms of CPU each, 2 forked workers, not persistent
  e  memory (PSS of the process tree) with a data set of 1 GB in memory and 8 workers, at an epoch's last batch
  f  ragged images through collate_fn=lambda b: tuple(zip(*b))
  g  events per second of the pure core

"limit" is what as many processes reach without any loader, each only preparing samples (line b) and copying them into its own
warm shared memory. Goals are judged by the median; "n of m" says how many rounds met them one by one.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import _machine
from _harness import OURS, PEER, Case, FreshProcess, Goal, Row, as_json, progress, run_all, sharing, table

HERE = Path(__file__).resolve().parent
MEASUREMENT_TIMEOUT_S = 300.0

DTYPES = ("uint8", "float32")
BATCH_SIZES = (64, 256)
ZERO_COST = [(dtype, batch_size) for dtype in DTYPES for batch_size in BATCH_SIZES]
SPEED_UP = {"uint8": Goal("ratio", ">=", 3), "float32": Goal("ratio", ">=", 4)}
CORE = {"SLOTS": "default collate", "PARTS": "custom collate"}
IN_MEMORY = {"arrays": "NumPy arrays", "objects": "small Python objects"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is measured; the shape of every workload stays the same."""

    repeats: int
    seconds: float
    epoch_samples: int
    burn_batches: int
    """Of an epoch of line b, per core."""


FULL = Size(repeats=5, seconds=3.0, epoch_samples=16_384, burn_batches=32)
QUICK = Size(repeats=3, seconds=1.0, epoch_samples=8_192, burn_batches=16)


def cases(size: Size) -> list[Case]:
    """Every measurement; several rows of the table may come from one."""

    def steady(name: str, data: str, batch_size: int) -> Case:
        params = {"data": data, "batch_size": batch_size, "workers": 2, "epoch_samples": size.epoch_samples}
        params["seconds"] = size.seconds
        return Case(name=name, measure="steady", limit_measure="bare_copies", params=params)

    def cold(dtype: str) -> Case:
        params = {
            "data": f"zero:{dtype}",
            "batch_size": 64,
            "workers": 2,
            "epoch_samples": size.epoch_samples,
        }
        return Case(name=f"cold {dtype}", measure="cold_epoch", params=params)

    def memory(kind: str) -> Case:
        params = {"data": kind, "batch_size": 64, "workers": 8, "total_bytes": 10**9}
        return Case(name=f"memory {kind}", measure="memory", params=params)

    def core(kind: str) -> Case:
        params = {"kind": kind, "workers": 8, "seconds": size.seconds}
        return Case(name=f"core {kind}", measure="core_events", params=params, with_peer=False)

    burn_samples = _machine.cores() * 64 * size.burn_batches
    burn = {"cpu_ms": 1.0, "batch_size": 64, "epoch_samples": burn_samples, "seconds": size.seconds}
    first = {"cpu_ms": 5.0, "batch_size": 64, "workers": 2, "batches": 4}
    return [
        *(steady(f"zero-cost {dtype} {batch}", f"zero:{dtype}", batch) for dtype, batch in ZERO_COST),
        *(cold(dtype) for dtype in DTYPES),
        Case(name="burn", measure="efficiency", limit_measure="bare_work", params=burn),
        Case(name="first batch", measure="first_batch", params=first),
        *(memory(kind) for kind in IN_MEMORY),
        steady("ragged", "ragged", 64),
        *(core(kind) for kind in CORE),
    ]


def rows() -> list[Row]:
    """The lines of the table, in order, with their goals."""

    def zero_cost(dtype: str, batch: int) -> Row:
        title = f"zero-cost {dtype}, batch {batch}"
        case = f"zero-cost {dtype} {batch}"
        goal = SPEED_UP[dtype]
        return Row("a", title, case, "samples_per_s", "samples/s", goal, has_limit=True)

    def cold(dtype: str) -> Row:
        title = f"... {dtype}, batch 64, one epoch with start and stop"
        return Row("a", title, f"cold {dtype}", "samples_per_s", "samples/s")

    def cpu(dtype: str, batch: int) -> list[Row]:
        title = f"CPU of training process, {dtype}, batch {batch}"
        case, goal = f"zero-cost {dtype} {batch}", Goal("ratio", "<=", 0.2)
        return [
            Row("c", title, case, "training_cpu_s_per_1000", "s/1,000", goal),
            Row("c", "... of all processes together", case, "tree_cpu_s_per_1000", "s/1,000"),
        ]

    def first(epoch: str) -> Row:
        title = f"iter() to first batch, {epoch} epoch (ideal: 160)"
        return Row("d", title, "first batch", f"{epoch}_epoch_ms", "ms", Goal("ratio", "<=", 0.6))

    def memory(kind: str, title: str) -> Row:
        title = f"1 GB of {title}, 8 workers: PSS"
        return Row("e", title, f"memory {kind}", "pss_mib", "MiB", Goal("ratio", "<=", 1.0))

    def core(kind: str, title: str) -> Row:
        goal = Goal("value", ">=", 50_000)
        return Row(
            "g", f"the pure core, 8 workers, {title}", f"core {kind}", "events_per_s", "events/s", goal
        )

    return [
        *(zero_cost(dtype, batch) for dtype, batch in ZERO_COST),
        *(cold(dtype) for dtype in DTYPES),
        Row(
            "b",
            "1 ms of CPU per sample: efficiency",
            "burn",
            "efficiency",
            "of ideal",
            Goal("value", ">=", 0.93),
            has_limit=True,
        ),
        Row("b", "... CPU of all processes per useful CPU", "burn", "cpu_per_useful_cpu", "s/s"),
        *(row for dtype, batch in ZERO_COST for row in cpu(dtype, batch)),
        *(first(epoch) for epoch in ("first", "second")),
        *(memory(kind, title) for kind, title in IN_MEMORY.items()),
        Row(
            "f",
            "ragged, batch 64",
            "ragged",
            "samples_per_s",
            "samples/s",
            Goal("ratio", ">=", 2),
            has_limit=True,
        ),
        *(core(kind, title) for kind, title in CORE.items()),
    ]


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    size = QUICK if options.quick else FULL
    repeats = options.repeats or size.repeats
    chosen = [row for row in rows() if not options.only or row.line in options.only.split(",")]
    needed = {row.case for row in chosen}
    modules = {OURS: options.subject, PEER: "torch.utils.data"}
    run = FreshProcess(HERE / "_measures.py", modules, MEASUREMENT_TIMEOUT_S, options.settle)
    machine = _machine.describe(HERE.parent)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started_s = time.monotonic()
    results = run_all([case for case in cases(size) if case.name in needed], repeats, run, progress)
    progress(f"{len(results.others_cpu_share)} measurements in {time.monotonic() - started_s:.0f} s\n")

    command = shlex.join(["scripts/bench", "engine", *(sys.argv[1:] if argv is None else argv)])
    print(table(chosen, results))
    print(f"\n{command}\n{repeats} rounds, each measurement in a fresh process; median [least-greatest].")
    print(f"ours = DataLoader of {options.subject}, torch = DataLoader of torch.utils.data")
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(sharing(results.others_cpu_share))
    for failure, times in Counter(results.failures).items():
        print(f"FAILED {f'{times} times: ' if times > 1 else ''}{failure}")
    if options.json:
        facts = {"command": command, "repeats": repeats, "subject": options.subject, "machine": machine}
        Path(options.json).write_text(json.dumps(as_json(results, **facts), indent=1) + "\n")
    return 1 if results.failures else 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--quick", action="store_true", help="shorter and fewer rounds of the same workloads")
    parser.add_argument("--repeats", type=int, help="rounds; 5, or 3 with --quick")
    parser.add_argument("--only", metavar="a,b", help="only these lines")
    parser.add_argument("--json", metavar="PATH", help="write everything measured there")
    parser.add_argument(
        "--settle", type=float, default=0.0, metavar="S", help="wait up to S s for a quiet machine each time"
    )
    parser.add_argument("--subject", metavar="MODULE", default="penstock", help="whose DataLoader is 'ours'")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
