"""Epochs by each subject that reads from a store: ours, torch's loader, MosaicML Streaming, LitData. Imports are inside: a subject needs only its own.

All prepare photos by the same code (`photo_chain`); samples are checked instead (`_cache_samples.py`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _cache_reading import Epoch, Reading

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = 224


def photo_chain() -> Any:
    import torch

    from penstock import transforms as T  # noqa: N812

    tail = [T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)]
    return T.Compose([T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip(), *tail])


def located(reading: Reading) -> Any:
    """Return the staged dataset of a measurement: samples, tar shards, or a folder of photos."""
    import penstock

    if reading.samples:
        from _cache_samples import Samples

        return Samples(reading.where, reading.samples, reading.mean)
    if ".tar" in reading.where:
        return penstock.TarDataset(reading.where, photo_chain(), index_dir=reading.local or None)
    return penstock.ImageFolder(reading.where, photo_chain())


def counts(batches: Any) -> Iterator[int]:
    for images, _ in batches:
        yield len(images)


# ---- ours


def ours(reading: Reading) -> Epoch:
    import torch

    import penstock

    torch.set_num_threads(1)
    loader = penstock.DataLoader(
        located(reading),
        batch_size=reading.batch,
        shuffle=True,
        seed=1,
        num_workers=reading.workers,
        drop_last=True,
        cache=penstock.Cache(memory=reading.cache_bytes) if reading.cache_bytes else None,
    )

    def epoch(number: int) -> Iterator[int]:
        loader.set_epoch(number)
        return counts(loader)

    return epoch


# ---- torch


def torch_epochs(dataset: Any, reading: Reading) -> Epoch:
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    loader: Any = DataLoader(
        dataset, batch_size=reading.batch, shuffle=True, num_workers=reading.workers, drop_last=True
    )
    return lambda _: counts(loader)


def torch_same(reading: Reading) -> Epoch:
    """torch's loader over our dataset: the same code reads and prepares a sample."""
    return torch_epochs(located(reading), reading)


def torch_blocking(reading: Reading) -> Epoch:
    """torch's loader over a dataset that opens a URL for each sample."""
    from _cache_samples import Blocking

    return torch_epochs(Blocking(reading.where, reading.samples), reading)


# ---- others, in environments of their own


def prepared(data: Any) -> Any:
    """Return a photo's tensor by the same code as ours."""
    global _decode
    if _decode is None:
        _decode = decoder()
    return _decode(data)


_decode: Callable[[bytes], Any] | None = None


def decoder() -> Callable[[bytes], Any]:
    import penstock

    now: list[bytes] = [b""]
    staged = penstock.StagedDataset(lambda _: (now[0], 0), photo_chain(), 1)

    def decode(data: bytes) -> Any:
        now[0] = bytes(data)
        return staged[0][0]

    return decode


PHOTO_BYTES = 100_000
"""About."""


def streaming_blocks(reading: Reading) -> Epoch:
    """MosaicML Streaming, shuffled inside blocks of a quarter of its cache: over all samples it drops shards that it needs again."""
    block = max(1, reading.cache_bytes // PHOTO_BYTES // 4)
    return streaming(reading, shuffle_block_size=block, num_canonical_nodes=1)


def streaming(reading: Reading, **more: Any) -> Epoch:
    """MosaicML Streaming: shards in MDS format, cached on disk."""
    from _prepare_subjects import import_torchvision

    import_torchvision()  # beside a CPU build of torch it wants help
    import torch
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    torch.set_num_threads(1)
    shutil.rmtree(reading.local, ignore_errors=True)

    class Photos(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, at: int) -> Any:
            sample = super().__getitem__(at)
            return prepared(sample["jpg"]), sample["cls"]

    dataset = Photos(
        remote=f"{reading.where}/mds",
        local=reading.local,
        cache_limit=reading.cache_bytes or None,
        shuffle=True,
        batch_size=reading.batch,
        download_timeout=120,
        **more,
    )
    for stream in dataset.streams:  # forked workers would share a connection: over plain http they take each other's answers for their own
        stream._downloader.clean_up()
    loader = StreamingDataLoader(
        dataset, batch_size=reading.batch, num_workers=reading.workers, drop_last=True
    )
    return lambda _: counts(loader)


def litdata(reading: Reading) -> Epoch:
    """LitData: chunks in its own format, cached on disk."""
    import litdata as ld
    import torch
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # there is no option for it
    torch.set_num_threads(1)
    shutil.rmtree(reading.local, ignore_errors=True)
    Path(reading.local).mkdir(parents=True)
    dataset = ld.StreamingDataset(
        f"{reading.where}/litdata",
        cache_dir=reading.local,
        max_cache_size=reading.cache_bytes,
        shuffle=True,
        drop_last=True,
        storage_options={"endpoint_url": os.environ["AWS_ENDPOINT_URL"]},
        transform=photo_of,
    )
    loader = ld.StreamingDataLoader(
        dataset, batch_size=reading.batch, num_workers=reading.workers, drop_last=True
    )
    return lambda _: counts(loader)


def photo_of(sample: Any) -> Any:
    return prepared(sample["jpg"]), sample["cls"]
