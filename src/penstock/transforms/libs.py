"""Libraries for pixels and sound, loaded at first use; the error for a missing one says how to install it.

Photos need the compiled loops (`penstock.accel`) and Pillow, which torchvision needs too. OpenCV and simplejpeg, the rest of the extra
`image`, serve a few ops and unusual JPEG files.
"""

from __future__ import annotations

import json
import os
import shlex
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module, metadata
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from penstock import accel
from penstock.errors import MissingExtra, SlowPathWarning

IMAGE_LIBRARIES = ("PIL.ImageEnhance", "PIL.ImageOps")
AUDIO_LIBRARIES = ("soundfile", "soxr")
"""Slow imports that most chains need."""
PATH = "LD_LIBRARY_PATH"


@cache
def opencv(what: str) -> Any:
    """Return OpenCV, any flavour, without its own threads: the cores belong to the workers. `what` needs it."""
    cv2 = _load("cv2", "image", "OpenCV", what)
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
def simplejpeg(what: str) -> Any:
    return _load("simplejpeg", "image", "simplejpeg", what)


@cache
def has_simplejpeg() -> bool:
    try:
        simplejpeg("")
    except MissingExtra:
        return False
    return True


@cache
def warn_without_loops() -> None:
    """Warn once if images will be slow."""
    if slow := without_loops():
        warnings.warn(
            f"penstock prepares images with the same pixels, but {slow}", SlowPathWarning, stacklevel=2
        )


def without_loops() -> str:
    """Say why images are slow and what to do about it; "" if they are not."""
    reason = accel.missing()
    return f"by slower code: {reason}. {how_to_get_loops()}" if reason else ""


def how_to_get_loops() -> str:
    """Return the shell command that reinstalls penstock from its original source."""
    source = "penstock"
    with suppress(metadata.PackageNotFoundError, KeyError, ValueError):
        said = json.loads(metadata.distribution("penstock").read_text("direct_url.json") or "{}")
        source = url2pathname(urlsplit(said["url"]).path) if said["url"].startswith("file:") else said["url"]
    return (
        f"Install a C compiler (Debian, Ubuntu: apt install gcc libc6-dev), then: "
        f"pip install --force-reinstall --no-deps {shlex.quote(source)}"
    )


@cache
def soundfile() -> Any:
    return _load("soundfile", "audio", "soundfile")


@cache
def soxr() -> Any:
    return _load("soxr", "audio", "soxr")


@cache
def torchvision_v2() -> Any:
    """Only for ops that we lack; nothing else needs torchvision."""
    try:
        return import_module("torchvision.transforms.v2")
    except ImportError as exc:
        raise MissingExtra(
            "this needs torchvision, for want of an op of ours: pip install torchvision"
        ) from exc


def preload(names: Sequence[str]) -> None:
    """Load modules before workers fork. A failed import is reported where the module is needed."""
    for name in names:
        with suppress(Exception):
            _imported(name)


def _load(name: str, extra: str, title: str, what: str = "this") -> ModuleType:
    try:
        return _imported(name)
    except ImportError as exc:
        raise MissingExtra(f"{what} needs {title}: pip install 'penstock[{extra}]'") from exc


def _imported(name: str) -> ModuleType:
    """Import a module and restore LD_LIBRARY_PATH: OpenCV adds its libraries and the current folder, which child processes would inherit."""
    before = os.environ.get(PATH)
    try:
        return import_module(name)
    finally:
        if before is not None:
            os.environ[PATH] = before
        else:
            os.environ.pop(PATH, None)
