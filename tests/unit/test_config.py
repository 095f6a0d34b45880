"""Keywords of ours: what they may be, and what each error says."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from penstock import ConfigError, DataLoader
from penstock.config import LoaderConfig, parse_bytes


def test_defaults_mean_that_the_engine_chooses() -> None:
    config = LoaderConfig()
    assert (config.task_samples, config.hang_timeout, config.worker_bytes, config.arena_bytes) == (
        0,
        None,
        0,
        0,
    )
    assert (config.plain_seed, config.prefetch_batches) == (None, None)


def test_values_are_turned_into_plain_ones() -> None:
    given: dict[str, Any] = {"seed": np.int64(5), "task_size": np.int32(3)}
    config = LoaderConfig(**given, hang_timeout=2, worker_memory="2GiB", slab_bytes=5_000)
    assert (config.plain_seed, config.task_samples, config.hang_timeout) == (5, 3, 2)
    assert (config.worker_bytes, config.arena_bytes) == (2**31, 5_000)
    assert type(config.plain_seed) is int


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"seed": "abc"}, "seed must be a whole number or None, got 'abc'"),
    ({"seed": 1.5}, "seed must be a whole number or None, got 1.5"),
    ({"task_size": 0}, "task_size must be a whole number of at least 1 or 'auto', got 0"),
    ({"task_size": "large"}, "task_size must be a whole number of at least 1 or 'auto', got 'large'"),
    ({"task_size": 2.5}, "task_size must be a whole number of at least 1 or 'auto', got 2.5"),
    ({"prefetch_batches": 0}, "prefetch_batches must be a whole number of at least 1 or None, got 0"),
    ({"prefetch_batches": "4"}, "prefetch_batches must be a whole number of at least 1 or None, got '4'"),
    ({"hang_timeout": 0}, "hang_timeout must be above 0 seconds, or None to warn only, got 0"),
    ({"hang_timeout": -1.5}, "hang_timeout must be above 0 seconds, or None to warn only, got -1.5"),
    ({"on_error": "ignore"}, "on_error must be one of raise, skip, replace, got 'ignore'"),
    ({"max_skipped": -1}, "max_skipped must be a whole number of at least 0, got -1"),
    ({"max_skipped": None}, "max_skipped must be a whole number of at least 0, got None"),
    ({"worker_memory": 0}, "worker_memory must be above 0, got 0"),
    ({"worker_memory": "0GB"}, "worker_memory must be above 0, got '0GB'"),
    (
        {"worker_memory": "2 apples"},
        "worker_memory must be a number of bytes such as '8GiB' or '512MB', got '2 apples'",
    ),
    (
        {"worker_memory": 2e9},
        "worker_memory must be a whole number of bytes, or a text such as '8GiB', got 2000000000.0",
    ),
    ({"slab_bytes": -5}, "slab_bytes must be above 0, got -5"),
    ({"slab_bytes": "much"}, "slab_bytes must be a number of bytes such as '8GiB' or '512MB', got 'much'"),
    (
        {"snapshot_every_n_steps": -1},
        "snapshot_every_n_steps must be a number of batches, 0 or None, got -1",
    ),
    ({"deal": "evenly"}, "deal must be one of 'as_is', 'owner', 'cost', got 'evenly'"),
    (
        {"deal": "cost"},
        "deal='cost' deals the batches of all ranks, so it needs shard='auto' or (rank, world), and no sampler of yours",
    ),
    (
        {"deal": "owner"},
        "deal='owner' deals the batches of all ranks, so it needs shard='auto' or (rank, world), and no sampler of yours",
    ),
    ({"adopt": "slow"}, "adopt must be True, False or \"fast_decode\", got 'slow'"),
    ({"gpu_prep": 1}, "gpu_prep must be a mode or a GpuPrep, got 1"),
    ({"reuse": 3}, "reuse must be a penstock.Reuse, got 3"),
    ({"slab_bytes": None}, "slab_bytes must be a whole number of bytes, or a text such as '8GiB', got None"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_an_error_says_what_is_allowed_and_what_was_given(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LoaderConfig(**given)
    assert str(caught.value) == message
    assert isinstance(caught.value, ValueError), "as torch's errors about arguments are"


@pytest.mark.parametrize(("given", "message"), WRONG[::5])
def test_the_loader_raises_them_when_it_is_made(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DataLoader([1, 2], **given)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("10", 10),
        ("10B", 10),
        ("1k", 1000),
        ("1KiB", 1024),
        ("512MB", 512 * 10**6),
        (" 8 GiB ", 8 * 2**30),
        ("1.5gib", 3 * 2**29),
        ("2T", 2 * 10**12),
        (77, 77),
    ],
)
def test_bytes_are_read_in_both_kinds_of_units(text: int | str, nbytes: int) -> None:
    assert parse_bytes(text, "size") == nbytes


@pytest.mark.parametrize("text", ["", "GiB", "1.GiB", "-1", "1e9", "5i", "1PiB", "1 2"])
def test_other_texts_are_no_bytes(text: str) -> None:
    with pytest.raises(ConfigError, match="size must be a number of bytes"):
        parse_bytes(text, "size")


def test_a_seed_of_numpys_kind_does_not_spoil_the_checkpoint() -> None:
    loader: DataLoader[Any] = DataLoader(list(range(4)), seed=np.int64(3))
    iter(loader)
    assert json.loads(json.dumps(loader.state_dict()))["seed"] == 3
