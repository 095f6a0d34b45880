"""Identity texts of samples and of the first ops of a chain: equal only if the bytes are equal, also across runs.

Rule 1: a file's identity is taken before the file is read, so stored bytes are never older than their identity.
Rule 2: if any part is uncertain, return no text but a reason. A guess could return other pixels.
"""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib import import_module
from typing import Any

from penstock import __version__, accel
from penstock.pipeline.chain import Chain
from penstock.pipeline.staged import StagedDataset

LIBRARIES = ("cv2", "PIL", "simplejpeg", "numpy")
PLAIN = (str, int, float, bool, bytes, type(None))


def contents_of(dataset: Any) -> tuple[str, str]:
    """Return a text that changes with any sample's bytes; or "" and the reason."""
    if not isinstance(dataset, StagedDataset):
        return "", f"{type(dataset).__name__} cannot say when its samples change"
    if dataset.decoder is not None:  # guard: own-decoder
        return "", "the dataset has a decoder of its own, and nobody can say when that changes"
    found = dataset.contents()
    if not found:
        return "", f"{type(dataset).__name__} cannot say when its samples change (contents())"
    return found, ""


def partial_identity(dataset: Any, split: int) -> tuple[str, str]:
    """Return a text that changes if the first ops, the decoder or the libraries would make other pixels; or "" and the reason."""
    if not isinstance(dataset, StagedDataset):
        return "", f"{type(dataset).__name__} cannot say what its first ops make"
    if inexact := [op.name for op in dataset.chain.ops[:split] if not is_exact(op.identity())]:
        return "", f"{', '.join(inexact)} has parameters that cannot be written down exactly"
    pixels = (dataset.fast_decode, dataset.max_pixels, dataset.knows_targets)
    made_by = (__version__, platform.machine(), accel.compiled() is not None, versions())
    return repr((first_ops(dataset.chain, split), pixels, made_by)), ""  # guard: store-of-ops


def first_ops(chain: Chain, split: int) -> str:
    return Chain(chain.ops[:split], type(chain.tail)()).identity


def is_exact(value: Any) -> bool:
    """Return whether the value's repr is complete; an array's repr, for one, omits digits."""
    return all(map(is_exact, value)) if type(value) is tuple else type(value) in PLAIN


def versions() -> list[str]:
    found = []
    for name in LIBRARIES:
        with suppress(ImportError):
            found.append(f"{name} {getattr(import_module(name), '__version__', '')}")
    return found
