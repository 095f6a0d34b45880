"""One draw for a batch, or for each part of it: the same whoever prepares it, however it is cut, wherever it was resumed."""

from __future__ import annotations

import functools
import io
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

from penstock import AnnotatedDataset, ConfigError, DataLoader, StagedDataset
from penstock import transforms as T
from penstock.pipeline.chain import Chain
from penstock.plan.seeds import Company, SeedStream
from penstock.transforms.steps import Code
from tests.integration.noisy import epoch, frozen

pytest.importorskip("cv2")
SIZE, BATCH = 23, 6
EDGE = 32


@functools.cache
def read(index: int) -> tuple[bytes, int]:
    """A ramp across and one down, so that every step leaves a trace; all of one size."""
    from PIL import Image

    ramp = np.arange(EDGE, dtype=np.uint8) * 7
    pixels = np.stack(
        [np.tile(ramp, (EDGE, 1)), np.tile(ramp[:, None], (1, EDGE)), np.full((EDGE, EDGE), 40)], 2
    )
    out = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(out, "PNG")
    return out.getvalue(), index


def make(op: Any, workers: int = 0, **settings: Any) -> DataLoader[Any]:
    settings = {"batch_size": BATCH, "shuffle": True, "seed": 9, **settings}
    return DataLoader(StagedDataset(read, op, SIZE), num_workers=workers, **settings)


def kinds(images: Any) -> list[bytes]:
    return [image.numpy().tobytes() for image in images]


AUGMENT = T.TrivialAugmentWide()
CHAINS: dict[str, Any] = {
    "all of a batch": T.PerBatch(AUGMENT),
    "parts of 4": T.PerBatch(AUGMENT, samples=4),
    "and draws of its own": [T.PerBatch([T.RandomResizedCrop(20), AUGMENT]), T.RandomHorizontalFlip()],
    "several crops": T.MultiCrop(
        [(T.PerBatch(T.RandomResizedCrop(20)), 2), (T.PerBatch(T.RandomCrop(9)), 1)]
    ),
}
ENGINES: dict[str, dict[str, Any]] = {
    "1 worker": {"workers": 1},
    "2 workers, tasks of 1": {"workers": 2, "task_size": 1},
    "3 workers, tasks of 4": {"workers": 3, "task_size": 4},
}


@functools.cache
def alone(what: str) -> list[Any]:
    loader = make(CHAINS[what])
    return [epoch(loader) for _ in range(2)]


def test_samples_of_a_batch_are_treated_alike_and_batches_are_not() -> None:
    loader = make(T.PerBatch(AUGMENT))
    batches = [images for _ in range(3) for images, _ in loader]
    assert all(len(set(kinds(images))) == 1 for images in batches)
    assert len({kinds(images)[0] for images in batches}) > 5
    own = [images for images, _ in make(AUGMENT)]
    assert all(len(set(kinds(images))) > 1 for images in own), "by default each sample has draws of its own"


def test_parts_of_a_batch_are_treated_alike_as_far_as_asked() -> None:
    crops = [T.PerBatch(T.RandomCrop(16), samples=4)]
    for images, _ in make(crops):
        found = kinds(images)
        assert all(len(set(found[at : at + 4])) == 1 for at in range(0, len(found), 4))
    first = [kinds(images) for images, _ in make(crops) if len(images) == BATCH]
    assert any(found[0] != found[4] for found in first)


def test_each_epoch_and_each_batch_draws_anew() -> None:
    loader = make(T.PerBatch(T.RandomCrop(8)))
    seen = Counter(kinds(images)[0] for _ in range(10) for images, _ in loader)
    assert len(seen) > 30, "of 40 batches, in 625 places"


@pytest.mark.parametrize("what", CHAINS)
@pytest.mark.parametrize("how", ENGINES)
def test_batches_are_the_same_whoever_prepares_them(what: str, how: str) -> None:
    loader = make(CHAINS[what], **ENGINES[how])
    assert [epoch(loader) for _ in range(2)] == alone(what)


@pytest.mark.parametrize("what", ["all of a batch", "parts of 4"])
@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0)])
def test_a_resumed_run_goes_on_as_if_nothing_had_been(what: str, before: int, after: int) -> None:
    loader = make(CHAINS[what], before)
    iterator = iter(loader)
    begun = [frozen(next(iterator)) for _ in range(2)]
    state = json.loads(json.dumps(loader.state_dict()))
    del iterator
    resumed = make(CHAINS[what], after)
    resumed.load_state_dict(state)
    assert [[*begun, *epoch(resumed)], epoch(resumed)] == alone(what)


def test_every_rank_has_draws_of_its_own_and_debugging_gives_them_again() -> None:
    loaders = [make(T.PerBatch(T.RandomCrop(8)), shard=(rank, 2)) for rank in range(2)]
    firsts = []
    for loader in loaders:
        images, numbers = next(iter(loader))
        firsts.append(kinds(images)[0])
        for image, number in zip(images, numbers, strict=True):
            assert kinds([loader.debug(int(number))[0]]) == kinds([image])
    assert firsts[0] != firsts[1]


def test_a_sample_in_the_place_of_a_bad_one_is_treated_as_its_neighbours() -> None:
    def failing(index: int) -> tuple[bytes, int]:
        return (b"no image", index) if index % 5 == 0 else read(index)

    for mode in ("skip", "replace"):
        dataset = StagedDataset(failing, T.PerBatch(AUGMENT), SIZE)
        loader: DataLoader[Any] = DataLoader(dataset, BATCH, shuffle=True, seed=9, on_error=mode)
        plain = make(T.PerBatch(AUGMENT))
        for (images, _), (expected, _) in zip(loader, plain, strict=True):
            assert set(kinds(images)) == set(kinds(expected))


def test_masks_move_with_their_batch() -> None:
    mask = np.arange(EDGE * EDGE, dtype=np.int32).reshape(EDGE, EDGE)
    dataset = AnnotatedDataset(
        lambda index: (read(index)[0], {"masks": mask}), T.PerBatch(T.RandomCrop(8)), 12
    )
    for images, targets in DataLoader(dataset, BATCH, seed=1):
        assert len(set(kinds(images))) == 1
        assert len(set(kinds(targets["masks"]))) == 1


def test_ops_are_the_same_for_images_of_any_size() -> None:
    """A crop may need more or fewer draws for a long image: what follows must not notice."""
    chain = Chain.of(T.PerBatch([T.RandomResizedCrop(20, scale=(0.5, 1.0)), T.RandAugment()]))
    stream = SeedStream(3, 0)
    for batch in range(200):
        codes = {
            tuple(step.code for step in chain.draw(seed, size, Company(stream.batch(batch), seed)))
            for seed, size in enumerate([(40, 40), (20, 200), (333, 50)])
        }
        assert len(codes) == 1
        assert next(iter(codes))[0] is Code.CROP


def test_draws_of_batches_are_distributed_as_those_of_samples() -> None:
    chain, stream = Chain.of(T.PerBatch(T.RandomHorizontalFlip(0.3), samples=2)), SeedStream(3, 0)
    found = Counter(
        bool(chain.draw(0, (4, 4), Company(stream.batch(batch), ordinal)))
        for batch in range(5000)
        for ordinal in (0, 2)
    )
    assert found[True] == pytest.approx(3000, abs=200)


def test_without_a_loader_each_call_draws_anew() -> None:
    dataset = StagedDataset(read, T.PerBatch(T.RandomCrop(8)), SIZE)
    assert len({kinds([dataset[0][0]])[0] for _ in range(20)}) > 5


def test_identity_and_randomness_are_those_of_its_ops() -> None:
    assert Chain.of(T.PerBatch(AUGMENT)).identity == Chain.of(T.PerBatch([T.Compose([AUGMENT])])).identity
    assert len({Chain.of(op).identity for op in (AUGMENT, T.PerBatch(AUGMENT), T.PerBatch(AUGMENT, 4))}) == 3
    assert Chain.of(T.PerBatch(AUGMENT)).is_random
    assert not Chain.of(T.PerBatch(T.CenterCrop(8))).is_random


@pytest.mark.parametrize(
    "build",
    [
        lambda: T.PerBatch(AUGMENT, samples=0),
        lambda: T.PerBatch(len),
        lambda: T.PerBatch(T.PerBatch(AUGMENT)),
        lambda: T.PerBatch(T.RandomApply([T.PerBatch(AUGMENT)])),
        lambda: Chain.of(T.RandomChoice([T.PerBatch(AUGMENT), AUGMENT])),
        lambda: Chain.of([T.RandomApply([T.Compose([T.PerBatch(AUGMENT)])])]),
    ],
)
def test_what_cannot_be_shared_is_refused(build: Any) -> None:
    with pytest.raises(ConfigError):
        build()
