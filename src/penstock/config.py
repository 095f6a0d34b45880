"""What users may ask for, as frozen values that are checked when they are made.

The keywords of `DataLoader` that torch's does not have are the fields of `LoaderConfig`. The loader's attributes, what trainers carry over, its
`repr` and the tables in docs/api.md follow from these fields; only the constructor's signature repeats them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError

if TYPE_CHECKING:
    import torch

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
DEALS = ("as_is", "owner", "cost")


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


GPU_MODES = ("off", "auto", "idle", "concurrent")
CHOICES = ("dearest", "random")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPrep:
    """How the GPU helps to prepare batches; a word in its place is the mode."""

    mode: str = "auto"
    """`"concurrent"`: beside training; `"idle"`: in its pauses; `"auto"`: as measured; `"off"`."""
    share: float | None = None
    """The share of samples that the GPU makes from their files, 0 to 1. `None`: as many as it can take."""
    choice: str = "dearest"
    """Which samples the GPU takes: the `"dearest"` (highest estimated CPU cost), or `"random"` ones."""
    finish: bool | None = None
    """Whether the GPU also finishes samples that workers have decoded. `None`: if it pays."""
    task: int = 64
    """Files that the GPU decodes together."""

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
    """Partly prepared samples are kept and used several times; only the final ops of the chain are done anew."""

    times: int = 3
    """Uses of a kept sample before it is prepared anew; 1 keeps nothing."""
    split: int | str = AUTO_SPLIT
    """Where the final part of the chain begins: an op's number, its name, or `"auto"`: the cheapest final part that is diverse enough."""
    store: str = "memory"
    """`"memory"`, shared by all workers; `"disk"`, in the folder `path`; `"device"`, in the memory of the training GPU, which then does the
    final part (`gpu_prep`)."""
    max_bytes: int | str = "8GiB"
    """Room for kept samples. Those that do not fit are prepared anew in each epoch."""
    min_diversity: float = 0.95
    """For `split="auto"`: the share of different samples that must be left, of those that training would see without reuse."""
    path: str | os.PathLike[str] | None = None
    """For `"disk"`: the folder; `~` is the user's own. Any number of jobs may share it."""
    persistent: bool = False
    """For `"disk"`: kept samples stay for later runs with the same data, ops and seed; else they go with the run."""

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


PLANS = ("auto", "samples", "bytes", "batches", "cut")
DIFFERENCES = ("error", "warn")
MOST_REMOTE = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """CPUs of a Ray cluster prepare a part of each batch, when that pays (docs/remote.md)."""

    address: str = "auto"
    """The cluster: `"auto"` (`RAY_ADDRESS`, or one that runs here), `"local"` (started here, to try it out), or host:port."""
    max_workers: int = 16
    """Remote workers at most. As many are used as training needs."""
    plan: str = "auto"
    """What is done there. `"samples"`: reading and preparing; `"bytes"`: preparing of bytes read here; `"batches"`: whole batches; `"cut"`:
    the ops up to where a sample has the fewest bytes; `"auto"`: as measured."""
    share: float | str = "auto"
    """Share of samples prepared remotely, 0 to 1; `"auto"`: as measured."""
    tls: bool = False
    """Encrypt what travels. It costs this machine several times the CPU time of receiving."""
    allow_unauthenticated: bool = False
    """Use a cluster without authentication: anyone who reaches it can run code on it."""
    on_difference: str = "error"
    """A machine whose versions or processor may give other bytes is not used (`"error"`), or used with a warning (`"warn"`)."""
    cpus: float = 1.0
    """CPUs that Ray reserves for a worker."""
    options: Mapping[str, Any] | None = None
    """Ray's options of an actor: `runtime_env`, `resources`, `memory`, `label_selector`, `scheduling_strategy`."""
    in_flight: int | str = "256MiB"
    """Bytes of results on their way, at most."""

    def __post_init__(self) -> None:
        if self.address not in ("auto", "local") and not self.address.rpartition(":")[2].isdigit():
            raise ConfigError(f"address must be 'auto', 'local' or host:port, got {self.address!r}")
        if whole(self.max_workers, "max_workers", least=1) > MOST_REMOTE:
            raise ConfigError(f"max_workers must be at most {MOST_REMOTE}, got {self.max_workers}")
        if self.plan not in PLANS:
            raise ConfigError(f"plan must be one of {', '.join(map(repr, PLANS))}, got {self.plan!r}")
        if self.share != "auto":
            share(self.share, "share")
        if self.on_difference not in DIFFERENCES:
            raise ConfigError(f"on_difference must be 'error' or 'warn', got {self.on_difference!r}")
        if self.cpus <= 0:
            raise ConfigError(f"cpus must be above 0, got {self.cpus!r}")
        try:
            json.dumps(dict(self.options or {}))
        except TypeError as exc:
            raise ConfigError(f"options must be plain values that fit JSON: {exc}") from exc
        parse_bytes(self.in_flight, "in_flight")

    @property
    def queue_bytes(self) -> int:
        return parse_bytes(self.in_flight, "in_flight")


CACHE_POLICIES = ("auto", "lobster", "lobster-guarded", "lru", "no-evict", "farthest")
CACHE_ORDERS = ("as_is", "even")
CACHE_PEERS = ("auto", "off")
LEAST_CACHE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Bytes of samples are fetched ahead and kept in memory, once for all ranks of a machine, and shared with other machines (docs/cache.md)."""

    memory: int | str = "64GiB"
    """Memory of this machine for bytes, what is fetched ahead included. Where less is to be had, less is used, with a warning."""
    disk: int | str | None = None
    """Disk space for bytes that memory has no room for, in the folder `path`."""
    path: str | os.PathLike[str] | None = None
    """For `disk`: the folder; `~` is the user's own. Any number of jobs may share it."""
    persistent: bool = False
    """For `disk`: bytes stay for later runs with the same data; else they go with the run."""
    peers: str = "auto"
    """`"auto"`: machines of the job keep different samples and give them to each other, if torch.distributed is there; `"off"`: each reads for
    itself."""
    policy: str = "auto"
    """What is kept: `"auto"`, or a rule to compare it with: `"lobster"`, `"lobster-guarded"`, `"lru"`, `"no-evict"`, `"farthest"`."""
    order: str = "as_is"
    """`"even"` spreads samples that no machine keeps evenly over ranks and batches; `"as_is"`: the order without a cache."""
    tls: bool = False
    """Encrypt what machines give each other. It costs several times the CPU time."""

    def __post_init__(self) -> None:
        if self.memory_bytes < LEAST_CACHE_BYTES:
            raise ConfigError(f"memory must be at least {LEAST_CACHE_BYTES:,} bytes, got {self.memory!r}")
        if (self.disk is None) != (self.path is None):
            raise ConfigError(
                "disk= needs path=, the folder for the bytes"
                if self.path is None
                else "path= is the folder of disk=: say how many bytes it may have"
            )
        if self.path is not None:
            object.__setattr__(self, "path", folder_at(self.path))
        if self.persistent and self.disk is None:
            raise ConfigError("persistent=True is for disk=: what is in memory ends with the run")
        if self.peers not in CACHE_PEERS:
            raise ConfigError(f"peers must be one of {', '.join(map(repr, CACHE_PEERS))}, got {self.peers!r}")
        if self.policy not in CACHE_POLICIES:
            raise ConfigError(
                f"policy must be one of {', '.join(map(repr, CACHE_POLICIES))}, got {self.policy!r}"
            )
        if self.order not in CACHE_ORDERS:
            raise ConfigError(
                f"order must be one of {', '.join(map(repr, CACHE_ORDERS))}, got {self.order!r}"
            )
        if self.order == "even" and self.policy != "auto":
            raise ConfigError(
                f"order='even' follows the samples' homes, which policy={self.policy!r} has not"
            )
        _ = self.disk_bytes

    @property
    def memory_bytes(self) -> int:
        return parse_bytes(self.memory, "memory")

    @property
    def disk_bytes(self) -> int:
        """0 without a disk tier."""
        return 0 if self.disk is None else parse_bytes(self.disk, "disk")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderConfig:
    """The keywords of `DataLoader` that torch's does not have, as they were given; properties say what they come to."""

    snapshot_every_n_steps: int | None = 1
    """As torchdata's: save an iterable dataset's state every n batches of a worker; a resume repeats the batches since, unseen. `0`,
    `None`: only at an epoch's start."""
    seed: int | None = None
    """Draws depend on (seed, epoch, position, sample); iterable datasets: docs/coming-from-torch.md#iterable-datasets. `None`: torch's
    generator draws it, at `iter()`."""
    shard: Any = None
    """This rank's stripe of the global order: `(rank, world)`, or `"auto"`: by torch.distributed, torchrun, or one rank
    (docs/coming-from-torch.md#several-ranks)."""
    device: Any = None
    """Batches arrive there, copied in the background from pinned memory; `"cpu"` works too. A device that is not here is a
    `ConfigError`."""
    dtype: torch.dtype | None = None
    """Data type of image (4-D) tensors on the device."""
    memory_format: torch.memory_format | None = None
    """Memory format of image (4-D) tensors on the device."""
    task_size: int | str = "auto"
    """Samples per task; `"auto"` aims at 16 ms of work, and at 4 ms towards the end of the batch that is due."""
    prefetch_batches: int | None = None
    """Batches asked for ahead. `None`: `prefetch_factor` for each worker, remote ones too; with `gpu_prep` about 2 GB of them at most."""
    hang_timeout: float | None = None
    """Seconds of silence after which a worker is replaced; a sample that hangs twice is an error. Waiting for a core does not count.
    `None`: a stack is logged every minute."""
    on_error: str = "raise"
    """`"skip"` leaves a failing sample out of its batch, `"replace"` puts another sample of the dataset in its place. The number of
    batches never changes."""
    max_skipped: int = 100
    """More failures than this are an error after all."""
    worker_memory: int | str | None = None
    """Private memory (`"2GiB"`) above which a worker finishes its tasks and is replaced. `None`: never."""
    slab_bytes: int | str = "auto"
    """Shared memory for batches; `"auto"`: a quarter of the memory limit, shared by the ranks of a node."""
    trace: str | os.PathLike[str] | None = None
    """Chrome/Perfetto trace file, written at each epoch's end, even if broken off, for `penstock report` (docs/cli.md). Its folder must
    exist; later failures only warn."""
    gpu_prep: str | GpuPrep = "auto"
    """The GPU prepares a part of each batch (docs/gpu.md): `"auto"`, if faster and the loader shuffles; `"concurrent"`, always;
    `"idle"`, in pauses; `"off"`; or a `GpuPrep`."""
    deterministic: bool | None = None
    """The same bits in every run: `gpu_prep="auto"` leaves the GPU out; else the seed decides which samples it prepares. `None`:
    as `torch.use_deterministic_algorithms`."""
    reuse: Reuse | None = None
    """A `Reuse`: partly prepared samples are kept and used several times; only the final ops are done anew (docs/reuse.md)."""
    remote: Remote | None = None
    """A `Remote`: CPUs of a Ray cluster prepare a part of each batch, when that pays (docs/remote.md)."""
    cache: Cache | None = None
    """A `Cache`: bytes of samples are fetched ahead and kept, once for all ranks and machines of the job (docs/cache.md)."""
    deal: str = "as_is"
    """Who gets which sample of a global batch (one batch of each rank): `"as_is"`, ranks take turns; `"owner"`, ranks whose node keeps it in the
    cache (docs/cache.md#order-and-dealing); `"cost"`, so that ranks have equally much to do (docs/ranks.md#deal-by-cost)."""
    adopt: bool | str = True
    """Prepare torchvision's `ImageFolder` by our ops, with the same pixels (docs/transforms.md). `"fast_decode"`: faster, nearly the same
    pixels. `False`: leave it alone."""

    def __post_init__(self) -> None:
        if self.adopt not in (True, False, "fast_decode"):
            raise ConfigError(f'adopt must be True, False or "fast_decode", got {self.adopt!r}')
        GpuPrep.of(self.gpu_prep)
        if self.hang_timeout is not None and self.hang_timeout <= 0:
            raise ConfigError(
                f"hang_timeout must be above 0 seconds, or None to warn only, got {self.hang_timeout}"
            )
        if self.deal not in DEALS:
            raise ConfigError(f"deal must be one of {', '.join(map(repr, DEALS))}, got {self.deal!r}")
        if self.deal != "as_is" and self.shard is None:
            raise ConfigError(
                f"deal={self.deal!r} deals the batches of all ranks, so it needs shard='auto' or (rank, world), and no sampler of yours"
            )
        if self.on_error not in ON_ERROR:
            raise ConfigError(f"on_error must be one of {', '.join(ON_ERROR)}, got {self.on_error!r}")
        # What comes to a plain number is checked on the way to it.
        _ = self.plain_seed, self.task_samples, self.worker_bytes, self.arena_bytes
        if self.prefetch_batches is not None:
            whole(self.prefetch_batches, "prefetch_batches", least=1, word=" or None")
        whole(self.max_skipped, "max_skipped", least=0)
        every: object = self.snapshot_every_n_steps
        if every is not None and (not isinstance(every, int) or isinstance(every, bool) or every < 0):
            raise ConfigError(f"snapshot_every_n_steps must be a number of batches, 0 or None, got {every!r}")
        if self.reuse is not None and not isinstance(self.reuse, Reuse):
            raise ConfigError(f"reuse must be a penstock.Reuse, got {self.reuse!r}")
        if self.remote is not None and not isinstance(self.remote, Remote):
            raise ConfigError(f"remote must be a penstock.Remote, got {self.remote!r}")
        if self.cache is not None and not isinstance(self.cache, Cache):
            raise ConfigError(f"cache must be a penstock.Cache, got {self.cache!r}")

    @property
    def plain_seed(self) -> int | None:
        """The seed as Python's own number, whichever kind was given."""
        return None if self.seed is None else whole(self.seed, "seed", word=" or None")

    @property
    def task_samples(self) -> int:
        """Samples per task; 0 chooses by measured cost."""
        if self.task_size == "auto":
            return 0
        return whole(self.task_size, "task_size", least=1, word=" or 'auto'")

    @property
    def worker_bytes(self) -> int:
        """Private bytes above which a worker is replaced; 0 never."""
        return 0 if self.worker_memory is None else parse_bytes(self.worker_memory, "worker_memory")

    @property
    def arena_bytes(self) -> int:
        """Shared memory that batches may occupy; 0 chooses by the memory limit."""
        return 0 if self.slab_bytes == "auto" else parse_bytes(self.slab_bytes, "slab_bytes")

    @property
    def gpu(self) -> GpuPrep:
        """How the GPU helps, in full."""
        return GpuPrep.of(self.gpu_prep)

    @property
    def keeps_on_device(self) -> bool:
        """Whether partly prepared samples are kept on the device, for the GPU to finish."""
        reuse = self.reuse
        return reuse is not None and reuse.store == "device" and reuse.times > 1


KEYWORDS = tuple(field.name for field in fields(LoaderConfig))
"""Parameters of our DataLoader that torch's does not have."""
