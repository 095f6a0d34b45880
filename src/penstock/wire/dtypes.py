"""Number types by name: what a description from elsewhere may name. Fixed tables, so that a name never leads anywhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

IN_BOTH = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
)  # fmt: skip
ONLY_TORCH = (
    "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip
"""Older versions of torch lack the last. None has complex32 in earnest: torch warns at its use."""

TORCH: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in (*IN_BOTH, *ONLY_TORCH) if hasattr(torch, name)
}
TORCH_NAMES = {dtype: name for name, dtype in TORCH.items()}

# C's `long long` is a type of its own beside int64, with the same bytes. `long double` is missing: its bytes differ between machines.
NUMPY: dict[str, type[Any]] = {
    "longlong": np.longlong,
    "ulonglong": np.ulonglong,
    "bool": np.bool_,
    **{name: getattr(np, name) for name in IN_BOTH[1:]},
}
NUMPY_NAMES = {kind: name for name, kind in NUMPY.items()}

AS_TORCH = {name: TORCH[{"longlong": "int64", "ulonglong": "uint64"}.get(name, name)] for name in NUMPY}
"""The dtype of a batch of NumPy numbers."""
