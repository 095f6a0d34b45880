"""How even ranks wait for the source: pools per rank, one per node, an even order."""

from __future__ import annotations

import numpy as np

from penstock.sim.cache_group import CacheScenario, simulate_cache
from penstock.sim.fetch_pace import Pace, pace

STEPS_OF_AN_EPOCH = 10
SPREAD = 0.5
"""Of the logarithm of sizes: photos differ."""


def balance(
    *, nodes: int, misses: float, steps: int, gpus: int = 8, batch_size: int = 64, load: float = 0.9
) -> dict[str, Pace]:
    """Play steps of a group of nodes whose source serves a share `misses` and needs `load` of the training's time for it, in the mean."""
    paces: dict[str, Pace] = {}
    for order, pools in (
        ("as_is", (("pool per rank", 1, 1), ("pool per node, 8 ahead", gpus, 8))),
        ("even", (("even order", 1, 1), ("even order, pool per node, 4 ahead", gpus, 4))),
    ):
        samples = nodes * gpus * batch_size * STEPS_OF_AN_EPOCH
        scenario = CacheScenario(
            nodes=nodes,
            gpus=gpus,
            samples=samples,
            mean_bytes=1000,
            memory_bytes=int((1 - misses) * samples / nodes) * 1000,
            batch_size=batch_size,
            epochs=1 + -(-steps // STEPS_OF_AN_EPOCH),
            order=order,
            ring_batches=0,
            look_ahead=1,
            spread=SPREAD,
        )
        read = np.concatenate([epoch.source_bytes for epoch in simulate_cache(scenario)[1:]])
        for name, ranks, ahead in pools:
            paces[name] = pace([read * (load / read.mean())], train_s=1.0, ahead=ahead, pool_ranks=ranks)
    return paces
