"""Which pools and orders keep ranks even: 64 GPUs here, 1,024 with PENSTOCK_FULL=1 or `scripts/bench cache_balance`."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.sim.cache_balance import balance
from penstock.sim.fetch_pace import pace
from tests.conftest import FULL

NODES = 128 if FULL else 8


@pytest.mark.parametrize("misses", [0.05, 0.3])
def test_a_pool_per_node_that_looks_ahead_keeps_ranks_even(misses: float) -> None:
    found = balance(nodes=NODES, misses=misses, steps=200 if FULL else 40)
    assert found["pool per rank"].over_ideal > 1.2  # the baseline
    assert found["pool per rank"].uneven > 0.5
    for good in ("pool per node, 8 ahead", "even order, pool per node, 4 ahead"):
        assert found[good].over_ideal <= 1.01
        assert found[good].uneven <= 0.01


def test_the_slowest_rank_sets_the_pace() -> None:
    fetch = np.array([[0.5, 3.0]] * 40)
    alone = pace([fetch], train_s=1.0, ahead=1, pool_ranks=1)
    assert alone.step_s == pytest.approx(3.0, rel=0.05)
    assert alone.uneven == 1.0
    shared = pace([fetch], train_s=1.0, ahead=1, pool_ranks=2)
    assert shared.step_s == pytest.approx(1.75, rel=0.05)
    assert shared.uneven == 0.0


def test_look_ahead_absorbs_a_burst() -> None:
    fetch = np.full((80, 1), 0.5)
    fetch[::8] = 3.0
    assert pace([fetch], train_s=1.0, ahead=1, pool_ranks=1).over_ideal > 1.2
    assert pace([fetch], train_s=1.0, ahead=8, pool_ranks=1).over_ideal == pytest.approx(1.0, abs=0.01)


def test_links_work_beside_each_other() -> None:
    fetch = np.full((20, 4), 0.9)
    assert pace([fetch, fetch], train_s=1.0, ahead=2, pool_ranks=4).step_s == pytest.approx(1.0)
    assert pace([fetch, 2 * fetch], train_s=1.0, ahead=2, pool_ranks=4).step_s == pytest.approx(1.8, rel=0.1)
