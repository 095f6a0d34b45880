"""The libraries that pixels are changed with, loaded at first use; a missing one says how to get it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from penstock.errors import MissingExtra

IMAGE_LIBRARIES = ("cv2", "PIL.ImageEnhance", "PIL.ImageOps")
AUDIO_LIBRARIES = ("soundfile", "soxr")
"""Modules that take long to load and that most chains need."""
PATH = "LD_LIBRARY_PATH"


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
    try:
        return import_module("torchvision.transforms.v2")
    except ImportError as exc:
        raise MissingExtra(
            "this needs torchvision, for want of an op of ours: pip install torchvision"
        ) from exc


def preload(names: Sequence[str]) -> None:
    """Load modules for processes that will be forked. Who needs one that cannot be loaded says so."""
    for name in names:
        with suppress(Exception):
            _imported(name)


def _load(name: str, extra: str, title: str) -> ModuleType:
    try:
        return _imported(name)
    except ImportError as exc:
        raise MissingExtra(f"this needs {title}: pip install 'penstock[{extra}]'") from exc


def _imported(name: str) -> ModuleType:
    """The module. OpenCV leaves a path to its own libraries, and with it the current folder, to all programs that this one starts: that is
    put back."""
    before = os.environ.get(PATH)
    try:
        return import_module(name)
    finally:
        if before is not None:
            os.environ[PATH] = before
        else:
            os.environ.pop(PATH, None)
