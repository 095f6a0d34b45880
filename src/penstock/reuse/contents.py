"""What samples are, and what the first ops of a chain make of them, as texts: equal only where the bytes are, also in another run.

Rule 1: whoever reads a file does so after it was looked at: what is kept for a text is never older than that text says.
Rule 2: where any part is not known for sure, there is no text, but a reason. A guess would give someone else's pixels.
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
    """A text that is another where any sample's bytes are; or nothing, and why not."""
    if not isinstance(dataset, StagedDataset):
        return "", f"{type(dataset).__name__} cannot say when its samples change"
    if dataset.decoder is not None:  # guard: own-decoder
        return "", "the dataset has a decoder of its own, and nobody can say when that changes"
    found = dataset.contents()
    if not found:
        return "", f"{type(dataset).__name__} cannot say when its samples change (contents())"
    return found, ""


def partial_identity(dataset: Any, split: int) -> tuple[str, str]:
    """A text that is another where the first ops, the decoder or the libraries would make other pixels; or nothing, and why not."""
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
    """Whether a parameter's text says all of it; that of an array, for one, leaves digits out."""
    return all(map(is_exact, value)) if type(value) is tuple else type(value) in PLAIN


def versions() -> list[str]:
    found = []
    for name in LIBRARIES:
        with suppress(ImportError):
            found.append(f"{name} {getattr(import_module(name), '__version__', '')}")
    return found
