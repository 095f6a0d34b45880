"""Say in one sentence whether a torchvision dataset is adopted."""

from __future__ import annotations

import sys
from typing import Any

from torch.utils.data import Subset

from penstock.pipeline.adopt import verdict
from penstock.transforms.libs import without_loops


def adoption(dataset: Any) -> str:
    """Return one sentence: whether a torchvision dataset is adopted, and why not or why slowly. "" for other datasets."""
    folder = sys.modules.get("torchvision.datasets.folder")
    inner = dataset.dataset if type(dataset) is Subset else dataset
    if folder is None or not isinstance(inner, folder.DatasetFolder):
        return ""
    found, reason = verdict(dataset)
    if found is not None:
        slow = f", but {said}" if (said := without_loops()) else ""
        return f"torchvision's {type(inner).__name__} is adopted: penstock prepares the same pixels{slow}"
    if inner is not dataset:
        reason = "It is a Subset, and only whole datasets are adopted."
    elif type(inner) not in (folder.ImageFolder, folder.DatasetFolder):
        reason = "It is a subclass of torchvision's, which may mean anything."
    return f"{type(inner).__name__} is not adopted, so its samples are prepared by calling it. {reason}"
