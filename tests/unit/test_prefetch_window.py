"""How many batches are asked for ahead."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader as TorchDataLoader

from penstock.client.arguments import TorchArguments
from penstock.client.worker_count import AHEAD_BYTES, BY_STATIONS, FEWEST, enough_of, window_of
from penstock.config import LoaderConfig


def asked(
    sample_bytes: int = 0, prefetch_batches: int | None = None, **options: Any
) -> tuple[LoaderConfig, TorchArguments, Any]:
    given = TorchArguments.of(TorchDataLoader(range(1), 512, num_workers=1))  # type: ignore[arg-type]
    config = LoaderConfig(prefetch_batches=prefetch_batches)
    return config, replace(given, **options), SimpleNamespace(sample_bytes=sample_bytes)


def window(workers: int, **options: Any) -> int:
    return window_of(*asked(**options))(workers)


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


def test_memory_that_is_pinned_is_bounded_by_what_can_be_under_way() -> None:
    assert enough_of(*asked()) == 0, "ordinary batches may take what they need"
    assert enough_of(*asked(sample_bytes=60_000_000)) == FEWEST + BY_STATIONS
    assert enough_of(*asked(sample_bytes=60_000_000, prefetch_batches=40)) == 40 + BY_STATIONS
