"""Options that are ours, checked and turned into plain values."""

from __future__ import annotations

import re
from dataclasses import dataclass

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


def parse_bytes(value: int | str, name: str) -> int:
    """A number of bytes, as such or as text: `"8GiB"`, `"512MB"`."""
    if isinstance(value, int):
        size = value
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", value.upper())
        if match is None or match[2] not in UNITS:
            raise ConfigError(f"{name} must be a number of bytes such as '8GiB' or '512MB', got {value!r}")
        size = int(float(match[1]) * UNITS[match[2]])
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
        if isinstance(task_size, str) and task_size != "auto":
            raise ConfigError(f"task_size must be a positive number or 'auto', got {task_size!r}")
        if not isinstance(task_size, str) and task_size < 1:
            raise ConfigError(f"task_size must be a positive number or 'auto', got {task_size!r}")
        if prefetch_batches is not None and prefetch_batches < 1:
            raise ConfigError(f"prefetch_batches must be at least 1, got {prefetch_batches}")
        if hang_timeout is not None and hang_timeout <= 0:
            raise ConfigError(
                f"hang_timeout must be above 0 seconds, or None to warn only, got {hang_timeout}"
            )
        if on_error not in ON_ERROR:
            raise ConfigError(f"on_error must be one of {', '.join(ON_ERROR)}, got {on_error!r}")
        if max_skipped < 0:
            raise ConfigError(f"max_skipped must be at least 0, got {max_skipped}")
        return cls(
            seed=seed,
            task_size=0 if isinstance(task_size, str) else task_size,
            prefetch_batches=prefetch_batches,
            hang_s=hang_timeout or 0.0,
            on_error=on_error,
            max_skipped=max_skipped,
            worker_memory=0 if worker_memory is None else parse_bytes(worker_memory, "worker_memory"),
            slab_bytes=0 if slab_bytes == "auto" else parse_bytes(slab_bytes, "slab_bytes"),
        )
