"""The diversity that a loader with `reuse=` measures is what Theorem 1 expects of it, whoever prepares samples and from whenever it counts."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import DataLoader, Reuse, StagedDataset
from penstock import transforms as T
from tests.deaths import kill_all
from tests.scheduled import scheduled_unique
from tests.unit.test_jpeg_parts import jpeg_of, photo

pytest.importorskip("cv2")
WORKERS = pytest.mark.parametrize("workers", [0, 2])


def run(loader: DataLoader[Any], epochs: int) -> None:
    for _ in range(epochs):
        for _ in loader:
            pass


METERED = [T.RandAugment(1), T.RandomCrop((22, 30)), T.RandomHorizontalFlip()]


def metered(**options: Any) -> DataLoader[Any]:
    """Many samples, of few files of one size."""
    few = [jpeg_of(photo(24, 32, at), quality=60) for at in range(4)]
    dataset = StagedDataset(lambda index: (few[index % 4], {"label": index}), T.Compose(METERED), 160)
    return DataLoader(dataset, 16, shuffle=True, seed=5, reuse=Reuse(times=3, split=2), **options)


@WORKERS
def test_measured_diversity_is_what_theorem_1_expects(workers: int) -> None:
    loader = metered(num_workers=workers)
    assert loader.stats()["reuse"]["diversity"] is None
    run(loader, 12)
    found = loader.stats()["reuse"]["diversity"]
    assert (found["samples"], found["uses"], found["since_epoch"], found["epochs"]) == (128, 12, 0, 12)
    assert found["expected"] == pytest.approx(scheduled_unique(14 * 9 * 2, 2, 3, 12), rel=0.01)
    assert abs(found["measured"] - found["expected"]) < 5 * found["error"] < 0.1 * found["measured"]
    assert found["measured"] < 0.7 * found["standard"]
    assert "different draws in 12.0 uses of a sample" in loader.explain()


def test_killed_workers_and_all_ways_to_prepare_count_the_same() -> None:
    found = []
    for workers in (0, 2):
        loader = metered(num_workers=workers)
        for _ in range(4):
            for number, _ in enumerate(loader):
                if number == 5:
                    assert bool(kill_all(loader.stats()["worker_pids"])) == bool(workers)
        found.append(loader.stats()["reuse"]["diversity"])
    assert found[0] == found[1]


def test_after_a_resume_it_says_from_when_it_counts() -> None:
    loader = metered()
    run(loader, 4)
    resumed = metered()
    resumed.load_state_dict(loader.state_dict())
    run(resumed, 6)
    found = resumed.stats()["reuse"]["diversity"]
    assert (found["since_epoch"], found["epochs"]) == (4, 6)
    assert abs(found["measured"] - found["expected"]) < 5 * found["error"]


def test_each_rank_counts_what_it_sees() -> None:
    for rank in range(2):
        loader = metered(shard=(rank, 2))
        run(loader, 10)
        found = loader.stats()["reuse"]["diversity"]
        assert found["uses"] == pytest.approx(5, abs=0.5)
        assert abs(found["measured"] - found["expected"]) < 5 * found["error"]
