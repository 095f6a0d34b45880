"""The libraries that pixels are changed with, loaded at first use; a missing one says how to get it."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

from penstock.errors import MissingExtra

IMAGE_LIBRARIES = ("cv2", "PIL.ImageEnhance", "PIL.ImageOps")
AUDIO_LIBRARIES = ("soundfile", "soxr")
"""Modules that take long to load and that most chains need."""


@cache
def opencv() -> Any:
    """OpenCV, any flavour of it, without threads of its own: the cores are the workers'."""
    cv2 = _load("cv2", "image", "OpenCV")
    cv2.setNumThreads(0)
    return cv2


@cache
def pillow() -> Any:
    _load("PIL", "image", "Pillow")
    import PIL.Image
    import PIL.ImageEnhance
    import PIL.ImageFilter
    import PIL.ImageOps

    return PIL


@cache
def simplejpeg() -> Any:
    return _load("simplejpeg", "image", "simplejpeg")


@cache
def soundfile() -> Any:
    return _load("soundfile", "audio", "soundfile")


@cache
def soxr() -> Any:
    return _load("soxr", "audio", "soxr")


@cache
def torchvision_v2() -> Any:
    """Only for what ops of ours lack; nothing else asks for torchvision."""
    from importlib import import_module

    try:
        return import_module("torchvision.transforms.v2")
    except ImportError as exc:
        raise MissingExtra(
            "this needs torchvision, for want of an op of ours: pip install torchvision"
        ) from exc


def _load(name: str, extra: str, title: str) -> ModuleType:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as exc:
        raise MissingExtra(f"this needs {title}: pip install 'penstock[{extra}]'") from exc
