"""Runs a training script in several processes, as torchrun does, and collects what each of them reports."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SRC = HERE.parents[2] / "src"
WORLD = 2
LIMIT_S = 110
"""They need a tenth of that when the machine is not busy."""
Facts = dict[str, Any]


def run_ranks(script: str, folder: Path, *args: str, world: int = WORLD) -> list[Facts]:
    """What `report()` was given in each rank of `script`."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE / script), str(folder), *args],
            env=environment(rank, port, world),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for port in [free_port()]
        for rank in range(world)
    ]
    try:
        outputs = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    except subprocess.TimeoutExpired:
        for process in processes:
            process.send_signal(signal.SIGABRT)  # faulthandler answers with the stacks
        outputs = [process.communicate()[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for rank, (process, output) in enumerate(zip(processes, outputs, strict=True)):
        assert process.returncode == 0, f"rank {rank} ended with {process.returncode}:\n{output[-6000:]}"
    return [json.loads(report_file(folder, rank).read_text()) for rank in range(world)]


def environment(rank: int, port: int, world: int = WORLD) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return kept | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "NODE_RANK": "0",
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONPATH": os.pathsep.join([str(SRC), str(HERE)]),
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def report(folder: str, facts: Facts) -> None:
    """Called by the scripts, once in each rank."""
    report_file(Path(folder), int(os.environ["RANK"])).write_text(json.dumps(facts))


def report_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.json"


def check_epochs(whole: list[list[Any]], *, samples: int) -> None:
    """Every index exactly once per epoch over all ranks, but for what fills up the last batches.

    `whole` holds, for each rank, [epoch, indices, noise] of each step.
    """
    epochs = sorted({step[0] for step in whole[0]})
    for epoch in epochs:
        steps = [[step for step in rank if step[0] == epoch] for rank in whole]
        assert len({len(rank) for rank in steps}) == 1, "all ranks have the same number of batches"
        met = Counter(index for rank in steps for step in rank for index in step[1])
        assert set(met) == set(range(samples))
        assert met.total() - samples < WORLD * len(steps[0][0][1]), "more than padding came twice"
    assert len(epochs) > 1
    assert [step[1:] for step in whole[0] if step[0] == epochs[0]] != [
        step[1:] for step in whole[0] if step[0] == epochs[1]
    ], "epochs differ"
