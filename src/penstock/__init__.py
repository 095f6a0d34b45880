"""Penstock: a drop-in PyTorch `DataLoader`.

Names are imported when they are first asked for (PEP 562). The agent process imports parts of this package and must
start without importing torch, so nothing here may import a module that does.

CUDA_DEVICE_MAX_CONNECTIONS is set, unless it is: it counts only if it is there before CUDA starts (`penstock.gpu.queues` says what for).
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .gpu import queues as _queues  # noqa: F401 - for what it does
from .version import __version__

if TYPE_CHECKING:
    from .config import Cache, GpuPrep, Remote, Reuse
    from .errors import (
        AgentDied,
        ArenaFull,
        ConfigError,
        DeviceLost,
        MissingExtra,
        NodeUnavailable,
        PenstockError,
        SampleError,
        ServiceFailed,
        SlowPathWarning,
        StateError,
        TooManySkipped,
        WorkerDied,
        WorkerHung,
    )
    from .loader import DataLoader
    from .pipeline.annotated import AnnotatedDataset
    from .pipeline.audio import AudioFolder
    from .pipeline.staged import ImageFolder, StagedDataset
    from .pipeline.tar import TarDataset
    from .profiling.profile import Profile, profile
    from .report.display import progress


__all__ = [
    "AgentDied",
    "AnnotatedDataset",
    "ArenaFull",
    "AudioFolder",
    "Cache",
    "ConfigError",
    "DataLoader",
    "DeviceLost",
    "GpuPrep",
    "ImageFolder",
    "MissingExtra",
    "NodeUnavailable",
    "PenstockError",
    "Profile",
    "Remote",
    "Reuse",
    "SampleError",
    "ServiceFailed",
    "SlowPathWarning",
    "StagedDataset",
    "StateError",
    "TarDataset",
    "TooManySkipped",
    "WorkerDied",
    "WorkerHung",
    "__version__",
    "profile",
    "progress",
]

_MODULES = {"transforms"}
"""Modules that are there without an import of their own, as torchvision's are."""

_HOME = {
    **{name: ".errors" for name in __all__ if name != "__version__"},
    "AnnotatedDataset": ".pipeline.annotated",
    "AudioFolder": ".pipeline.audio",
    "Cache": ".config",
    "DataLoader": ".loader",
    "GpuPrep": ".config",
    "ImageFolder": ".pipeline.staged",
    "Profile": ".profiling.profile",
    "Remote": ".config",
    "Reuse": ".config",
    "StagedDataset": ".pipeline.staged",
    "TarDataset": ".pipeline.tar",
    "profile": ".profiling.profile",
    "progress": ".report.display",
}
"""Module of each name; all that are not listed are errors."""


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home, __name__), name)
    globals()[name] = value  # asked once, then an ordinary attribute
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
