"""A loader's engine: agent, workers, and the way of their batches to the training loop. Linux only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.client.build import blueprint_of
from penstock.client.cache_group import side_of as cache_side_of
from penstock.client.device import DeviceIterator
from penstock.client.iterator import EngineIterator
from penstock.client.mover import Mover
from penstock.client.remote_side import side_of as remote_side_of
from penstock.client.session import Blueprint
from penstock.measure.counters import Counters

__all__ = ["blueprint_of", "cache_side_of", "remote_side_of", "started"]


def started(
    blueprint: Blueprint,
    window: Callable[[int], int],
    timeout_s: float,
    counters: Counters,
    on_skip: Callable[[dict[str, Any]], None],
    on_workers: Callable[[int], None],
    made_mover: Callable[[], Mover | None],
    joined: Callable[[Any], Any],
) -> Any:
    """Start an engine. `window`: batches ahead, by the worker count; `made_mover` makes what brings batches to a device, after processes were forked;
    `joined` takes note of the engine, in time for an interrupt to end it."""
    engine: EngineIterator | None = None
    try:  # from the start: an engine that is dropped unclosed stays mapped, because the counters read its board
        engine = EngineIterator(
            blueprint, window=window, timeout_s=timeout_s, counters=counters, on_skip=on_skip
        )
        engine.on_workers = on_workers
        mover = made_mover()
        return joined(engine if mover is None else DeviceIterator(engine, mover, counters))
    except BaseException:
        if engine is not None:
            engine.close()
        raise
