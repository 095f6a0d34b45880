"""Batches on a CUDA device: right bytes, pinned slabs, no reuse before the copy is complete. Needs a GPU."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from penstock import DataLoader

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Images(Dataset[Any]):
    def __init__(self, length: int = 256) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = torch.full((3, 64, 64), index % 251, dtype=torch.uint8)
        return {"image": image, "label": index, "name": f"n{index}"}


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_arrive_on_the_device_with_the_right_bytes(workers: int) -> None:
    loader = DataLoader(Images(), batch_size=16, shuffle=True, seed=3, num_workers=workers, device="cuda")
    plain = DataLoader(Images(), batch_size=16, shuffle=True, seed=3)
    for moved, kept in zip(loader, plain, strict=True):
        assert moved["image"].is_cuda
        assert torch.equal(moved["image"].cpu(), kept["image"])
        assert torch.equal(moved["label"].cpu(), kept["label"])
        assert moved["name"] == kept["name"]


def test_dtype_and_memory_format_apply_to_images_only() -> None:
    loader = DataLoader(
        Images(64),
        batch_size=16,
        num_workers=2,
        device="cuda",
        dtype=torch.bfloat16,
        memory_format=torch.channels_last,
    )
    batch = next(iter(loader))
    assert batch["image"].dtype is torch.bfloat16
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    assert batch["label"].dtype is torch.int64


def test_a_slow_consumer_stream_never_sees_reused_memory() -> None:
    loader = DataLoader(Images(2048), batch_size=64, num_workers=4, device="cuda", persistent_workers=True)
    for _ in range(3):
        sums = []
        for batch in loader:
            torch.cuda._sleep(2_000_000)
            sums.append((batch["image"].double().sum(), batch["label"]))
        for total, labels in sums:
            assert total.item() == float(((labels % 251).double() * 3 * 64 * 64).sum().item())


def test_slabs_are_pinned_and_copies_do_not_block_the_host() -> None:
    loader = DataLoader(Images(512), batch_size=64, num_workers=2, device="cuda")
    iterator = iter(loader)
    next(iterator)
    source = iterator._source
    assert source._session._pins.nbytes > 0
    iterator.close()


def test_pin_memory_without_device_gives_torchs_own_pinned_memory() -> None:
    loader = DataLoader(Images(64), batch_size=16, num_workers=2, pin_memory=True)
    for batch in loader:
        assert batch["image"].is_pinned()
        assert not batch["image"].is_cuda


def test_an_error_of_one_batch_is_raised_and_the_next_ones_come() -> None:
    class Fails(Images):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if index == 20:
                raise KeyError("twenty")
            return super().__getitem__(index)

    iterator = iter(DataLoader(Fails(64), batch_size=16, num_workers=2, device="cuda"))
    next(iterator)
    with pytest.raises(KeyError, match="twenty"):
        next(iterator)
    assert next(iterator)["label"].tolist() == list(range(32, 48))
    iterator.close()


def test_dropping_the_iterator_ends_its_thread_and_processes() -> None:
    import threading

    before = threading.active_count()
    iterator = iter(DataLoader(Images(512), batch_size=16, num_workers=2, device="cuda"))
    next(iterator)
    del iterator
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() == before


class Sizes:
    """Batches of many sizes, so that their memory is cut up in other ways again and again."""

    def __init__(self, batches: int) -> None:
        self.sizes = [1 + (7 * at * at) % 29 for at in range(batches)]

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Any:
        at = 0
        for size in self.sizes:
            yield list(range(at, at + size))
            at += size


def test_a_batch_across_the_seam_of_two_pinned_ranges_arrives() -> None:
    loader: DataLoader[Any] = DataLoader(
        Images(10_000), batch_sampler=Sizes(200), num_workers=2, device="cuda", prefetch_batches=8
    )
    at = 0
    for moved in loader:
        labels = moved["label"].cpu()
        assert labels.tolist() == list(range(at, at + len(labels)))
        assert torch.equal(moved["image"][:, 0, 0, 0].cpu(), (labels % 251).to(torch.uint8))
        at += len(labels)
        time.sleep(0.002)


def test_batches_on_the_device_are_bounded_from_the_beginning() -> None:
    """One while training is young, then as many as were taken at once; a loop that runs ahead of the device asks for nothing more."""
    loader: DataLoader[Any] = DataLoader(Images(32_768), batch_size=1024, num_workers=4, device="cuda")
    allocated = []
    slow = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    for at, batch in enumerate(loader):
        for _ in range(8):
            slow = torch.tanh(slow @ slow)
        batch["image"].float().sum()
        if at >= 8:
            allocated.append(torch.cuda.memory_stats()["num_device_alloc"])
    assert allocated[-1] == allocated[0]
