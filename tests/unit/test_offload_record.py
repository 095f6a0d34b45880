"""What the training process remembers of remote workers."""

from __future__ import annotations

import json

import pytest

from penstock.client.remote_side import OffloadRecord


@pytest.mark.parametrize(
    ("stage", "workers"), [("local", 0), ("hiring", 3), ("trial", 3), ("refining", 3), ("fixed", 3)]
)
def test_batches_are_prefetched_for_remote_workers_unless_local_ones_do_everything(
    stage: str, workers: int
) -> None:
    record = OffloadRecord()
    assert record.workers == 0
    told = {"course": "", "kept": None, "stats": {"stage": stage, "workers_had": 3}}
    record.note(json.dumps(told).encode())
    assert record.workers == workers
