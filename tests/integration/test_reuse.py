"""`reuse=`: partly prepared samples are used several times, and nobody can tell from the batches whether any was kept."""

from __future__ import annotations

import json
import mmap
import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from penstock import ConfigError, DataLoader, ImageFolder, Reuse, StagedDataset, StateError
from penstock import transforms as T
from penstock.plan.renewal import Renewal
from tests.deaths import kill_all
from tests.integration.groups import facts_of_ranks
from tests.unit.test_jpeg_parts import jpeg_of, photo

pytest.importorskip("cv2")
SAMPLES = 30
OPS = [
    T.RandAugment(),
    T.RandomResizedCrop(24),
    T.RandomHorizontalFlip(),
    T.ToDtype(torch.float32, scale=True),
]
WORKERS = pytest.mark.parametrize("workers", [0, 2])
SMALL = 1 << 20
"""The least memory there is: two or three of the photos fit."""


@pytest.fixture(scope="module")
def files() -> list[bytes]:
    return [jpeg_of(photo(60 + 3 * (at % 7), 80, at), quality=70) for at in range(SAMPLES)]


class Reads:
    """Samples of which it is counted, in all processes, how often each was read."""

    def __init__(self, files: list[bytes]) -> None:
        self.files = files
        self.counts = np.frombuffer(mmap.mmap(-1, 4 * len(files)), np.int32)

    def __call__(self, index: int) -> tuple[bytes, Any]:
        self.counts[index] += 1
        return self.files[index], {"label": index}

    def taken(self) -> list[int]:
        found: list[int] = self.counts.tolist()
        self.counts[:] = 0
        return found


def dataset_of(files: list[bytes], ops: Any = None, reads: Any = None) -> StagedDataset:
    return StagedDataset(reads or Reads(files), T.Compose(OPS if ops is None else ops), len(files))


def loader_of(dataset: Any, reuse: Reuse | None = None, workers: int = 0, **options: Any) -> DataLoader[Any]:
    reuse = reuse or Reuse(times=3, split=1)
    return DataLoader(dataset, 4, shuffle=True, seed=5, num_workers=workers, reuse=reuse, **options)


def plain(batch: Any) -> tuple[Any, list[int]]:
    images, targets = batch
    return images.clone(), targets["label"].tolist()


def epochs(loader: DataLoader[Any], count: int) -> list[list[Any]]:
    return [[plain(batch) for batch in loader] for _ in range(count)]


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a[0], b[0]) and a[1] == b[1] for a, b in zip(one, other, strict=True)
    )


def by_sample(batches: list[Any]) -> dict[int, torch.Tensor]:
    return {key: image for images, keys in batches for image, key in zip(images, keys, strict=True)}


# ---- bytes


@WORKERS
@pytest.mark.parametrize("split", [0, 1, 2, 3])
def test_batches_are_those_of_loaders_that_never_kept_anything(
    files: list[bytes], workers: int, split: int
) -> None:
    found = epochs(loader_of(dataset_of(files), Reuse(times=3, split=split), workers), 6)
    for epoch, batches in enumerate(found):
        fresh = loader_of(dataset_of(files), Reuse(times=3, split=split))
        fresh.set_epoch(epoch)
        assert same(batches, epochs(fresh, 1)[0]), epoch


@WORKERS
def test_each_sample_comes_once_per_epoch_and_is_read_once_in_three(files: list[bytes], workers: int) -> None:
    reads = Reads(files)
    loader = loader_of(dataset_of(files, reads=reads), workers=workers)
    reads.taken()
    renewal, total = Renewal(SAMPLES, SAMPLES, 3, 5), np.zeros(SAMPLES, int)
    for epoch in range(7):
        batches = epochs(loader, 1)[0]
        assert sorted(key for _, keys in batches for key in keys) == list(range(SAMPLES))
        counts = reads.taken()
        assert sum(counts) == renewal.misses(epoch)
        assert max(counts) == 1
        if epoch:
            total += counts
    assert total.tolist() == [2] * SAMPLES


def test_every_batch_has_as_many_that_are_read(files: list[bytes]) -> None:
    reads = Reads(files)
    loader = loader_of(dataset_of(files, reads=reads))
    epochs(loader, 1)
    for _ in range(4):
        reads.taken()
        for images, _ in loader:
            assert abs(sum(reads.taken()) - len(images) / 3) < 1


def test_the_final_part_is_drawn_anew_and_the_partial_part_is_not(files: list[bytes]) -> None:
    """Split behind all ops, a sample is the same until it is renewed (data echoing); split before the last, it flips."""
    renewal = Renewal(SAMPLES, SAMPLES, 3, 5)
    for split, most in ((3, 1), (2, 2)):
        seen: dict[tuple[int, int], set[bytes]] = defaultdict(set)
        for epoch, batches in enumerate(
            epochs(loader_of(dataset_of(files), Reuse(times=3, split=split)), 10)
        ):
            for key, image in by_sample(batches).items():
                renewed = int(renewal.renewed(np.array([key]), epoch)[0])
                seen[key, renewed].add(image.numpy().tobytes())
        sizes = Counter(len(images) for images in seen.values())
        assert max(sizes) == most
        assert len({image for images in seen.values() for image in images}) > 0.9 * len(seen)


def test_used_once_it_is_a_loader_without_reuse(files: list[bytes]) -> None:
    standard = DataLoader(dataset_of(files), 4, shuffle=True, seed=5)
    found = epochs(loader_of(dataset_of(files), Reuse(times=1)), 2)
    assert all(same(a, b) for a, b in zip(found, epochs(standard, 2), strict=True))


def test_image_folders_and_their_targets(files: list[bytes], tmp_path: Path) -> None:
    for at, data in enumerate(files):
        path = tmp_path / f"{at % 3}" / f"{at:02}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    dataset = ImageFolder(tmp_path, T.Compose(OPS), target_transform=lambda target: target * 10)
    loader = DataLoader(dataset, 4, shuffle=True, seed=5, num_workers=2, reuse=Reuse(times=2, split=1))
    for _ in range(3):
        targets = Counter(target for _, each in loader for target in each.tolist())
        assert targets == {0: 10, 10: 10, 20: 10}


# ---- memory


@WORKERS
def test_where_not_all_fit_the_others_are_prepared_anew(files: list[bytes], workers: int) -> None:
    reads = Reads(files)
    dataset = StagedDataset(reads, T.Compose([T.Resize((200, 200)), *OPS]), SAMPLES)
    loader = loader_of(dataset, Reuse(times=3, split=1, max_bytes=SMALL), workers=workers)
    kept = loader.stats()["reuse"]["kept"]
    assert kept == int(0.85 * SMALL) // (64 + 200 * 200 * 3)
    epochs(loader, 1)
    for _ in range(4):
        reads.taken()
        batches = epochs(loader, 1)[0]
        assert sorted(key for _, keys in batches for key in keys) == list(range(SAMPLES))
        # Chunks are shared by few here: with two workers not all that should be kept is.
        assert SAMPLES - kept + kept // 3 <= sum(reads.taken()) <= SAMPLES
    assert loader.stats()["reuse"]["held_bytes"] < 2 * SMALL


def test_what_was_kept_ends_with_the_loader(files: list[bytes]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    loader = loader_of(dataset_of(files), workers=2)
    epochs(loader, 2)
    assert loader.stats()["reuse"]["entries"] == SAMPLES
    del loader
    assert len(os.listdir("/proc/self/fd")) <= before


# ---- resume


@pytest.mark.parametrize("after", [0, 3, 7])
def test_a_resume_goes_on_with_the_same_batches_whatever_memory_it_has(
    files: list[bytes], after: int
) -> None:
    ops = [T.Resize((200, 200)), *OPS]
    loader = loader_of(dataset_of(files, ops), Reuse(times=3, split=1, max_bytes=SMALL))
    epochs(loader, 4)
    iterator = iter(loader)
    for _ in range(after):
        next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [plain(batch) for batch in iterator]
    following = epochs(loader, 1)[0]
    resumed = loader_of(dataset_of(files, ops), Reuse(times=3, split=1))
    resumed.load_state_dict(state)
    assert same(epochs(resumed, 1)[0], rest)
    assert same(epochs(resumed, 1)[0], following)


def test_a_state_of_another_reuse_is_refused(files: list[bytes]) -> None:
    state = loader_of(dataset_of(files)).state_dict()
    for other in (Reuse(times=2, split=1), Reuse(times=1)):
        with pytest.raises(StateError, match="saved with reuse 3 times"):
            loader_of(dataset_of(files), other).load_state_dict(state)


@pytest.mark.parametrize("world", [1, 3])
def test_the_rest_of_an_epoch_is_dealt_out_to_another_world(files: list[bytes], world: int) -> None:
    def ranks(count: int) -> list[DataLoader[Any]]:
        return [
            DataLoader(
                dataset_of(files),
                3,
                shuffle=True,
                seed=5,
                shard=(rank, count),
                drop_last=True,
                reuse=Reuse(times=3, split=1),
            )
            for rank in range(count)
        ]

    seen: list[int] = []
    two = ranks(2)
    for loader in two:
        loader.set_epoch(2)
        iterator = iter(loader)
        for _ in range(2):
            seen += plain(next(iterator))[1]
    state = two[0].state_dict()
    for loader in ranks(world):
        loader.load_state_dict(state)
        seen += [key for batch in loader for key in plain(batch)[1]]
    assert sorted(seen) == list(range(SAMPLES))


# ---- faults


def test_a_file_that_cannot_be_read_is_an_error_when_it_is_due_and_not_before(files: list[bytes]) -> None:
    broken = [b"no image" if at == 0 else data for at, data in enumerate(files)]
    loader = loader_of(dataset_of(broken), workers=2)
    assert loader.stats()["reuse"]["kept"] == SAMPLES
    for _ in range(2):
        with pytest.raises(Exception, match="sample 0"):
            epochs(loader, 1)
    skipping = loader_of(dataset_of(broken), workers=2, on_error="skip")
    for _ in range(4):
        assert sorted(key for _, keys in epochs(skipping, 1)[0] for key in keys) == list(range(1, SAMPLES))


def test_killed_workers_leave_no_trace(files: list[bytes]) -> None:
    loader, expected = loader_of(dataset_of(files), workers=2), loader_of(dataset_of(files))
    for _ in range(6):
        found, killed = [], 0
        for number, batch in enumerate(loader):
            found.append(plain(batch))
            if number % 3 == 1:
                killed += kill_all(loader.stats()["worker_pids"])
        assert killed
        assert same(found, epochs(expected, 1)[0])


def test_a_store_that_is_destroyed_costs_time_only(files: list[bytes]) -> None:
    loader, expected = loader_of(dataset_of(files), workers=2), loader_of(dataset_of(files))
    rng = np.random.default_rng(4)
    for _ in range(6):
        found = []
        for batch in loader:
            found.append(plain(batch))
            assert loader._reusing is not None
            store = loader._reusing._store
            assert store is not None
            store.rows[:] = rng.integers(-(2**62), 2**62, store.rows.shape)
        assert same(found, epochs(expected, 1)[0])


# ---- what cannot be


class Any_(Dataset[int]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("ops", "options", "says"),
    [
        (OPS, {"split": 9}, "the chain has 3 ops"),
        (OPS, {"split": "Rotate"}, "the chain has RandAugment, RandomResizedCrop, RandomHorizontalFlip"),
        ([T.PerBatch(T.RandAugment()), *OPS], {"split": 1}, "draw is that of a batch"),
        ([T.Lambda(lambda image: image), *OPS], {"split": 1}, "a function of yours"),
        ([*OPS[:2], T.Lambda(lambda image: image)], {"split": 3}, "may do something else each time"),
    ],
)
def test_chains_that_cannot_be_split_so_are_refused(
    files: list[bytes], ops: Any, options: Any, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        loader_of(dataset_of(files, ops), Reuse(times=3, **options))


def test_a_dataset_that_shows_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not show how its samples are prepared"):
        loader_of(Any_())


def test_a_dataset_that_adds_something_to_its_samples_is_refused(files: list[bytes]) -> None:
    plain = dataset_of(files)

    class More(type(plain)):  # type: ignore[misc]
        def __getitem__(self, index: int) -> Any:
            return (*super().__getitem__(index), index)

    plain.__class__ = More
    with pytest.raises(ConfigError, match="__getitem__ of its own"):
        loader_of(plain)


@pytest.mark.parametrize(
    "options",
    [
        {"times": 0},
        {"split": -1},
        {"store": "tape"},
        {"max_bytes": "much"},
        {"min_diversity": 1.5},
        {"min_diversity": "a"},
        {"times": True},
        {"split": False},
    ],
)
def test_options_are_checked(options: Any) -> None:
    with pytest.raises(ConfigError):
        Reuse(**options)


def test_a_name_that_two_ops_have_is_refused(files: list[bytes]) -> None:
    with pytest.raises(ConfigError, match=r"several: give a number, of 0, 1"):
        loader_of(dataset_of(files, [T.RandAugment(1), *OPS]), Reuse(times=3, split="RandAugment"))


def test_names_and_numbers_of_ops_mean_the_same(files: list[bytes]) -> None:
    found = [
        epochs(loader_of(dataset_of(files), Reuse(times=3, split=split)), 2)
        for split in (2, "RandomHorizontalFlip")
    ]
    assert all(same(a, b) for a, b in zip(*found, strict=True))


def test_by_itself_it_splits_before_the_crop(files: list[bytes]) -> None:
    """Of RandAugment, crop and flip, the last two are diverse enough; the flip alone is not."""
    assert loader_of(dataset_of(files), Reuse(times=3)).stats()["reuse"]["split"] == 1
    assert loader_of(dataset_of(files, OPS[:1]), Reuse(times=3)).stats()["reuse"]["split"] == 0


# ---- several ranks


def rank_of_a_group(rank: int, meeting: str, out: str, files: list[bytes]) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    reads = Reads(files)
    loader: DataLoader[Any] = DataLoader(
        dataset_of(files, reads=reads),
        3,
        shuffle=True,
        seed=5,
        shard="auto",
        num_workers=1,
        reuse=Reuse(times=3, split=1),
    )
    reads.taken()  # of some, to see how large they are
    facts: dict[str, Any] = {"reads": [], "keys": [], "entries": []}
    for _ in range(6):
        facts["keys"].append([key for batch in loader for key in plain(batch)[1]])
        dist.barrier()
        facts["reads"].append(sum(reads.taken()))
        facts["entries"].append((loader.stats()["reuse"] or {})["entries"])
        dist.barrier()
    Path(out, f"{rank}.json").write_text(json.dumps(facts))
    dist.destroy_process_group()


def test_ranks_of_one_machine_find_what_others_have_kept(files: list[bytes], tmp_path: Path) -> None:
    found = facts_of_ranks(rank_of_a_group, tmp_path, files)
    renewal = Renewal(SAMPLES, SAMPLES, 3, 5)
    for epoch in range(6):
        keys = [key for rank in found for key in rank["keys"][epoch]]
        assert sorted(keys) == list(range(SAMPLES))
        # A sample is met by another rank in each epoch, and found all the same; each rank reads as many.
        reads = [rank["reads"][epoch] for rank in found]
        assert sum(reads) == renewal.misses(epoch)
        assert abs(reads[0] - reads[1]) <= 1
        assert [rank["entries"][epoch] for rank in found] == [SAMPLES, SAMPLES]


def test_explain_says_what_is_done_anew(files: list[bytes]) -> None:
    text = loader_of(dataset_of(files), Reuse(times=3, split=1)).explain()
    assert (
        "all up to RandAugment is done for 3 uses (reuse), RandomResizedCrop, RandomHorizontalFlip anew"
        in text
    )
    assert "decoding is done for 3 uses" in loader_of(dataset_of(files), Reuse(times=3, split=0)).explain()
