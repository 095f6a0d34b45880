"""What must be alike on two machines so that they prepare the same bytes: versions, codecs, the kind of processor, a known answer."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import Any

import numpy as np
import torch

from penstock import __version__

CODECS = ("pillow", "simplejpeg", "opencv-python-headless", "torchvision", "soundfile", "soxr")
"""Packages that decode or resample: another version may round otherwise."""


def fingerprint() -> dict[str, Any]:
    """Return the facts of this machine, as JSON can hold them."""
    return {
        "penstock": __version__,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        **{name: version_of(name) for name in CODECS},
        "answer": known_answer(),
        "node": platform.node(),
    }


def version_of(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def known_answer() -> str:
    """Return a digest of draws and arithmetic that depends on the processor's vectors and on the libraries."""
    from hashlib import sha256

    generator = torch.Generator().manual_seed(20)
    draws = torch.randn(64, generator=generator), torch.rand(64, generator=generator)
    numbers = torch.cat([*draws, torch.sin(draws[0]), torch.exp(draws[1])])
    return sha256(numbers.numpy().tobytes()).hexdigest()[:16]


def differences(here: dict[str, Any], there: dict[str, Any]) -> list[str]:
    """Return what differs and may change bytes, a phrase each: "torch 2.13.0 here, 2.11.0 there"."""
    names = [name for name in here if name != "node"]
    return [
        f"{name} {here[name] or 'absent'} here, {there.get(name) or 'absent'} there"
        for name in names
        if there.get(name) != here[name]
    ]
