"""Batches are the caller's: kept, changed, saved, copied, sent on, or made into arrays, with nothing else affected."""

from __future__ import annotations

import copy
import gc
import io
import multiprocessing
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from .datasets import Made, Picked, Scaled, Tagged, pairs
from .harness import Loader, assert_same, describe, drain

WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


def image(key: int) -> tuple[torch.Tensor, int]:
    return torch.full((3, 8, 8), key % 251, dtype=torch.uint8), key


@WORKERS
def test_a_list_of_all_batches_is_torchs(num_workers: int) -> None:
    assert_same(lambda L: list(L(Made(60, image), 4, num_workers=num_workers)))


@WORKERS
def test_batches_outlive_their_loader(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        loader = loader_class(Made(40, image), 4, num_workers=num_workers)
        kept = list(loader)
        for _ in loader:
            pass
        del loader
        gc.collect()
        return kept

    assert_same(case)


@WORKERS
def test_parts_of_a_batch_outlive_the_rest(num_workers: int) -> None:
    """A view, an array or a row is all the caller keeps; what it shows must not be reused."""

    def case(loader_class: Loader) -> object:
        loader = loader_class(Made(60, image), 4, num_workers=num_workers)
        kept: list[Any] = []
        for at, (images, labels) in enumerate(loader):
            kept.append([images[1:2], images.numpy(), labels.detach(), images.view(-1).numpy().data][at % 4])
        return kept

    assert_same(case)


HELD: dict[str, Any] = {
    "array": lambda samples: np.stack([pixels.numpy() for pixels, _ in samples]),
    "arrays": lambda samples: [np.full((label % 5 + 1, 3), label) for _, label in samples],
    "ragged tensors": lambda samples: tuple(torch.full((label % 5 + 1,), label) for _, label in samples),
    "pairs": pairs,
    "array in a dict": lambda samples: {"a": {"b": np.array([label for _, label in samples])}, "c": "text"},
    "custom class": lambda samples: Picked([label for _, label in samples]),
    "subclass": lambda samples: torch.stack([pixels for pixels, _ in samples]).as_subclass(Tagged),
    "texts": lambda samples: [f"sample {label}" * 50 for _, label in samples],
}


@pytest.mark.parametrize("name", HELD)
def test_what_a_collate_function_made_in_a_worker_can_be_kept(name: str) -> None:
    """Eighty batches, so that memory let go too early has been written again when they are compared."""
    assert_same(lambda L: drain(L(Made(160, image), 2, collate_fn=HELD[name], num_workers=2), limit=100))


@WORKERS
def test_changing_a_batch_in_place_changes_nothing_else(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        loader = loader_class(Made(24, image), 4, num_workers=num_workers)
        kept = []
        for _ in range(2):
            for images, labels in loader:
                kept.append(describe([images, labels]))
                images.fill_(99)
                labels.mul_(-1)
        return kept

    assert_same(case)


def test_without_batching_or_workers_a_change_in_place_is_the_datasets_too() -> None:
    def case(loader_class: Loader) -> object:
        data = [torch.zeros(2), torch.zeros(2)]
        for sample in loader_class(data, None):  # type: ignore[arg-type]
            sample.add_(1)
        return data

    assert_same(case)


@WORKERS
def test_a_saved_batch_is_no_larger_than_torchs(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        images, labels = next(iter(loader_class(Made(60, image), 4, num_workers=num_workers)))
        sizes = []
        for tensor in (images, labels):
            file = io.BytesIO()
            torch.save(tensor, file)
            file.seek(0)
            assert torch.equal(torch.load(file), tensor)
            sizes.append(len(file.getvalue()) // 1024)
        return [
            sizes,
            [t.untyped_storage().nbytes() for t in (images, labels)],
            [t.storage_offset() for t in (images, labels)],
        ]

    assert_same(case)


@WORKERS
@pytest.mark.parametrize(
    "name", ["pickle", "deepcopy", "clone", "numpy", "share_memory_", "to", "resize smaller"]
)
def test_a_batch_can_be_copied_and_converted_like_any_tensor(name: str, num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        images, _ = next(iter(loader_class(Made(8, image), 4, num_workers=num_workers)))
        convert: dict[str, Any] = {
            "pickle": lambda: pickle.loads(pickle.dumps(images)),
            "deepcopy": lambda: copy.deepcopy(images),
            "clone": images.clone,
            "numpy": images.numpy,
            "share_memory_": images.share_memory_,
            "to": lambda: images.to(torch.float32),
            "resize smaller": lambda: images.resize_(2, 3),
        }
        return convert[name]()

    assert_same(case)


@WORKERS
def test_a_batch_can_be_trained_on(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        weight = torch.ones(2, requires_grad=True)
        inputs = batch = torch.empty(0)
        for batch in loader_class(Scaled(6), 2, num_workers=num_workers):
            inputs = batch.float().requires_grad_()
            (inputs @ weight).sum().backward()
        return [weight.grad, inputs.grad, inputs.is_leaf, batch.is_contiguous(), batch.is_inference()]

    assert_same(case)


@WORKERS
def test_batches_are_there_in_a_forked_process(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        loader = loader_class(Made(12, image), 4, num_workers=num_workers)
        kept = list(loader)

        def work() -> None:
            sender.send([int(images.long().sum()) for images, _ in kept])

        process = context.Process(target=work)
        process.start()
        sums = receiver.recv() if receiver.poll(30) else "no answer"
        process.join(10)
        receiver.close()
        sender.close()
        return sums

    assert_same(case)


@WORKERS
def test_a_batch_can_go_through_torchs_queues(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        queue = torch.multiprocessing.get_context("fork").SimpleQueue()
        images, _ = next(iter(loader_class(Made(12, image), 4, num_workers=num_workers)))
        queue.put(images)
        received = queue.get()
        queue.close()
        return received

    assert_same(case)
