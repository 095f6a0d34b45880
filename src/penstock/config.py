"""Options that are ours, checked and turned into plain values."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from operator import index
from pathlib import Path

from penstock.errors import ConfigError

UNITS = {
    "": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "KI": 2**10,
    "MI": 2**20,
    "GI": 2**30,
    "TI": 2**40,
}
ON_ERROR = ("raise", "skip", "replace")


def whole(value: object, name: str, *, least: int | None = None, word: str = "") -> int:
    """A whole number of any integer type, as a plain one; `word` says what else would have been fine."""
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        bound = "" if least is None else f" of at least {least}"
        raise ConfigError(f"{name} must be a whole number{bound}{word}, got {value!r}")
    return number


def share(value: object, name: str) -> float:
    """A number between 0 and 1."""
    if not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name} must be between 0 and 1, got {value!r}")
    return value


def parse_bytes(value: int | str, name: str) -> int:
    """A number of bytes, as such or as text: `"8GiB"`, `"512MB"`."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", value.upper())
        if match is None or match[2] not in UNITS:
            raise ConfigError(f"{name} must be a number of bytes such as '8GiB' or '512MB', got {value!r}")
        size = int(float(match[1]) * UNITS[match[2]])
    else:
        size = whole(value, name, word=" of bytes, or a text such as '8GiB'")
    if size <= 0:
        raise ConfigError(f"{name} must be above 0, got {value!r}")
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The keywords that torch's DataLoader does not have."""

    seed: int | None
    """Every random draw depends on it; None takes torch's base seed at the first `iter()`."""
    task_size: int
    """Samples per task; 0 chooses by measured cost."""
    prefetch_batches: int | None
    """Batches asked for ahead; None means prefetch_factor * num_workers, as in torch."""
    hang_s: float
    """Seconds of silence after which a worker is replaced; 0 only warns."""
    on_error: str
    max_skipped: int
    worker_memory: int
    """Private bytes above which a worker is replaced; 0 never."""
    slab_bytes: int
    """Shared memory that batches may occupy; 0 chooses by the memory limit."""

    @classmethod
    def checked(
        cls,
        *,
        seed: int | None,
        task_size: int | str,
        prefetch_batches: int | None,
        hang_timeout: float | None,
        on_error: str,
        max_skipped: int,
        worker_memory: int | str | None,
        slab_bytes: int | str,
    ) -> Options:
        if hang_timeout is not None and hang_timeout <= 0:
            raise ConfigError(
                f"hang_timeout must be above 0 seconds, or None to warn only, got {hang_timeout}"
            )
        if on_error not in ON_ERROR:
            raise ConfigError(f"on_error must be one of {', '.join(ON_ERROR)}, got {on_error!r}")
        return cls(
            seed=None if seed is None else whole(seed, "seed", word=" or None"),
            task_size=0 if task_size == "auto" else whole(task_size, "task_size", least=1, word=" or 'auto'"),
            prefetch_batches=None
            if prefetch_batches is None
            else whole(prefetch_batches, "prefetch_batches", least=1, word=" or None"),
            hang_s=hang_timeout or 0.0,
            on_error=on_error,
            max_skipped=whole(max_skipped, "max_skipped", least=0),
            worker_memory=0 if worker_memory is None else parse_bytes(worker_memory, "worker_memory"),
            slab_bytes=0 if slab_bytes == "auto" else parse_bytes(slab_bytes, "slab_bytes"),
        )


GPU_MODES = ("off", "auto", "idle", "concurrent")
CHOICES = ("dearest", "random")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPrep:
    """How the GPU helps to prepare batches; a word in its place is the mode.

    mode: "concurrent" beside training, "idle" in its pauses, "auto" as measured, "off".
    share: of samples that it makes from their files; None: as many as it can take.
    choice: it takes the "dearest" samples, by what they are thought to cost the CPU, or "random" ones.
    finish: whether it also finishes samples that workers have decoded; None: as it pays.
    task: files that it decodes together.
    """

    mode: str = "auto"
    share: float | None = None
    choice: str = "dearest"
    finish: bool | None = None
    task: int = 64

    def __post_init__(self) -> None:
        if self.mode not in GPU_MODES:
            raise ConfigError(f"gpu_prep must be one of {', '.join(map(repr, GPU_MODES))}, got {self.mode!r}")
        if self.choice not in CHOICES:
            raise ConfigError(f"choice must be one of {', '.join(map(repr, CHOICES))}, got {self.choice!r}")
        if self.share is not None and not 0.0 <= self.share <= 1.0:
            raise ConfigError(f"share must be between 0 and 1, got {self.share!r}")
        whole(self.task, "task", least=1)

    @classmethod
    def of(cls, wanted: object) -> GpuPrep:
        """As it is, or by a mode's name."""
        if isinstance(wanted, GpuPrep):
            return wanted
        if not isinstance(wanted, str):
            raise ConfigError(f"gpu_prep must be a mode or a GpuPrep, got {wanted!r}")
        return cls(mode=wanted)


def folder_at(path: str | os.PathLike[str]) -> str:
    """A folder as it is seen from here: workers may be elsewhere, and so may the program be later."""
    if not os.fspath(path):
        raise ConfigError("path= is empty: give the folder to keep samples in")
    try:
        return str(Path(path).expanduser().absolute())
    except RuntimeError as exc:
        raise ConfigError(f"path={os.fspath(path)!r}: {exc}; give the folder without '~'") from exc


STORES = ("memory", "disk", "device")
AUTO_SPLIT = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """Partly prepared samples are kept and used several times; only the final ops of the chain are done anew.

    times: how often each is used before it is prepared anew; 1 keeps nothing.
    split: where the final part begins: the number of an op, its name, or "auto": the cheapest final part that is diverse enough.
    store: where they are kept: "memory", shared by all workers; "disk", in the folder `path`, which any number of jobs may share; or
        "device", in the memory of the GPU that trains and, with `gpu_prep`, does the final part.
    path: for "disk": the folder; "~" is the user's own.
    persistent: what is kept on disk stays for later runs with the same data, ops and seed; else it goes with the run.
    max_bytes: that they may take. Where not all samples fit, the others are prepared anew in each epoch.
    min_diversity: for "auto", the share of different samples that must be left, of those that training would see without reuse.
    """

    times: int = 3
    split: int | str = AUTO_SPLIT
    store: str = "memory"
    max_bytes: int | str = "8GiB"
    min_diversity: float = 0.95
    path: str | os.PathLike[str] | None = None
    persistent: bool = False

    def __post_init__(self) -> None:
        for name in ("times", "split"):
            if isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is a number, got {getattr(self, name)!r}")
        whole(self.times, "times", least=1)
        if not isinstance(self.split, str):
            whole(self.split, "split", least=0, word=", the name of an op, or 'auto'")
        if self.store not in STORES:
            raise ConfigError(f"store must be one of {', '.join(map(repr, STORES))}, got {self.store!r}")
        if (self.store == "disk") != (self.path is not None):
            raise ConfigError(
                "store='disk' needs path=, the folder to keep samples in"
                if self.path is None
                else f"path= is for store='disk', the store is {self.store!r}: leave one of them out"
            )
        if self.path is not None:
            object.__setattr__(self, "path", folder_at(self.path))
        if self.persistent and self.store != "disk":
            raise ConfigError(
                f"persistent=True is for store='disk': what is in {self.store!r} ends with the run"
            )
        share(self.min_diversity, "min_diversity")
        parse_bytes(self.max_bytes, "max_bytes")

    @property
    def bytes(self) -> int:
        return parse_bytes(self.max_bytes, "max_bytes")
