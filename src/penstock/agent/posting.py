"""What the agent shows to the training process: its numbers on the board, and spans for the trace."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from penstock.core.state import State
from penstock.policy.stragglers import RankSums
from penstock.wire import frames as wire
from penstock.wire.arena import Board
from penstock.wire.frames import Fed


def post_numbers(row: memoryview, state: State, *, more: int = 0) -> None:
    """Show the engine's numbers. `more`: bytes of memory that the state does not count yet."""
    row[Board.LANES] = len(state.workers)
    row[Board.AGENT_BEAT] += 1
    row[Board.BACKED] = state.memory.used + state.memory.free + more
    row[Board.REISSUED] = state.reissued
    row[Board.TASK_SIZE] = state.task_size
    row[Board.SAMPLE_BYTES] = round(state.sample_bytes)
    row[Board.OFFLOADED] = sum(pool.done for pool in state.pools[1:])


def packed_span(state: State, worker: int, number: int, took_ns: int, fed: Mapping[int, Fed]) -> bytes:
    """Return a finished task for the trace; b"" if it is not known any more."""
    issued = state.workers[worker].tasks.get(number)
    if issued is None:
        return b""
    batch, task = fed.get(issued.task.seq), issued.task
    epoch, index = (batch.epoch, batch.batch) if batch is not None else (-1, -1)
    return wire.SPAN.pack(worker, task.kind, index, epoch, time.monotonic_ns(), took_ns, task.samples)


def training_of(row: memoryview) -> dict[str, Any]:
    """Return how training goes, as the training process shows it in the agent's row."""
    return {
        "batches": row[Board.BATCHES],
        "elapsed_s": row[Board.ELAPSED_NS] / 1e9,
        "waited_s": row[Board.WAITED_NS] / 1e9,
    }


def sums_of(board: Board, state: State) -> RankSums:
    """Sum up how training goes and what the workers of this machine have done."""
    rows = [board.row(worker.id) for worker in state.local.members]
    return RankSums(
        **training_of(board.agent),
        samples=sum(row[Board.SAMPLES] for row in rows),
        busy_s=sum(sum(row[Board.PREPARE_NS : Board.COLLATE_NS + 1]) for row in rows) / 1e9,
        cpu_s=sum(row[Board.CPU_NS] for row in rows) / 1e9,
        delayed_s=sum(row[Board.DELAYED_NS] for row in rows) / 1e9,
        extra_s=board.agent[Board.EXTRA_NS] / 1e9,
    )
