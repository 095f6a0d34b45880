"""torchvision as the reference for our ops, also beside a CPU build of torch, for which it publishes no wheel of its own.

Its wheel then cannot load its compiled ops, and its import fails for want of two of them: their schemas alone are enough for
transforms, which use none. `scripts/test` installs it in a folder of its own, where nobody else finds it.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import library

REFERENCE = Path(sys.prefix) / "reference"
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@cache
def torchvision() -> ModuleType:
    pytest.importorskip("PIL")
    if REFERENCE.is_dir() and str(REFERENCE) not in sys.path:
        sys.path.append(str(REFERENCE))
    try:
        import torchvision
    except ImportError:
        pytest.skip("torchvision is not installed")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        _define_ops()
        import torchvision
    return torchvision


@cache
def use_convolutions() -> None:
    """torchvision's AugMix and GaussianBlur use torch's convolutions, which on some machines open a file of their own when the first of them
    is compiled, and keep it: before any test looks at what is open."""
    torch.nn.functional.conv2d(torch.zeros(1, 3, 48, 48), torch.zeros(3, 1, 3, 3), groups=3)


@cache
def _define_ops() -> library.Library:
    schemas = library.Library("torchvision", "DEF")
    for op in ("nms", "qnms"):
        schemas.define(f"{op}{SCHEMA}")
    return schemas
