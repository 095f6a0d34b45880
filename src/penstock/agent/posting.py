"""What the agent shows to the training process: its numbers on the board, and spans for the trace."""

from __future__ import annotations

import time
from collections.abc import Mapping

from penstock.core.state import State
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
