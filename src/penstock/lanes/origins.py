"""Which file a sample comes from, for reports: asked of datasets that know, through torch's own wrappers."""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from typing import Any

from torch.utils.data import ConcatDataset, Subset


def path_of(dataset: Any, key: Any) -> str | None:
    """The file of a sample; of one in a tar shard, the shard and its key in there. None where nobody knows."""
    with suppress(Exception):  # it is for a report of another error
        return _path(dataset, key)
    return None


def _path(dataset: Any, key: Any) -> str | None:
    if type(dataset) is Subset:
        return _path(dataset.dataset, dataset.indices[key])
    if type(dataset) is ConcatDataset:
        ends = dataset.cumulative_sizes
        key = key if key >= 0 else key + ends[-1]
        at = bisect_right(ends, key)
        return _path(dataset.datasets[at], key - (ends[at - 1] if at else 0))
    if hasattr(dataset, "_penstock_path"):
        return str(dataset._penstock_path(key))
    if hasattr(dataset, "users_dataset"):
        return _path(dataset.users_dataset, key)
    if any(kind.__module__ == "torchvision.datasets.folder" for kind in type(dataset).__mro__):
        return str(dataset.samples[key][0])
    return None
