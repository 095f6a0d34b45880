"""How many batches are asked for ahead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.engine.crew import AHEAD_BYTES, FEWEST, window_of


def window(workers: int, *, sample_bytes: int = 0, **options: Any) -> int:
    loader = SimpleNamespace(
        **{
            "prefetch_batches": None,
            "prefetch_factor": 2,
            "batch_size": 512,
            "batch_sampler": None,
            **options,
        }
    )
    recipe: Any = SimpleNamespace(sample_bytes=sample_bytes)
    return window_of(loader, recipe)(workers)


def test_as_torch_has_it_or_as_asked() -> None:
    assert window(15) == 30
    assert window(15, prefetch_factor=4) == 60
    assert window(15, prefetch_batches=7) == 7
    with pytest.raises(AssertionError, match="greater than 0"):
        window(1, prefetch_factor=0)


@pytest.mark.parametrize("sampler", [None, SimpleNamespace(batch_size=512)])
def test_large_batches_for_a_gpu_are_fewer(sampler: Any) -> None:
    size = {"batch_size": 512} if sampler is None else {"batch_size": None, "batch_sampler": sampler}
    assert window(15, sample_bytes=600_000, **size) == AHEAD_BYTES // (600_000 * 512)
    assert window(15, sample_bytes=60_000_000, **size) == FEWEST
    assert window(1, sample_bytes=600_000, **size) == 2
    assert window(15, sample_bytes=60_000_000, prefetch_batches=40, **size) == 40
