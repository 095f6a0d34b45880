"""The disk store of one loader (`Reuse(store="disk")`): its place, name and lifetime.

Rule 1: a store's name is a digest of everything its bytes depend on: the samples, the first ops and the libraries behind them, the seed. Any
        difference gives another store, so nothing need be compared or discarded.
Rule 2: a store belongs to one run, unless persistence was requested and its samples have a reliable identity. A run's store has a unique name and
        is removed with its last user; the next run removes what a killed run left.
Rule 3: a file's identity is taken before the file is read, so stored bytes are never older than their identity. If any part is uncertain, there
        is a reason instead: a guess could return other pixels.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import secrets
import weakref
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch.distributed as dist

from penstock import __version__, accel
from penstock.config import Reuse
from penstock.epochs.shard import gathered
from penstock.errors import ConfigError
from penstock.pipeline.chain import Chain
from penstock.pipeline.staged import StagedDataset
from penstock.plan.renewal import Renewal
from penstock.reuse.stores.disk import LEAST_BYTES, DiskStore
from penstock.reuse.stores.disk_ahead import DiskAhead
from penstock.reuse.stores.disk_files import Files
from penstock.reuse.stores.disk_format import FolderMark
from penstock.reuse.stores.disk_listing import clear_temporary, removed
from penstock.reuse.stores.disk_process import COUNTED
from penstock.reuse.stores.tally import Tally

log = logging.getLogger("penstock")
FORMAT = 1
"""Raise it when the stored form of a sample changes."""
LEAVING_S = 0.5
"""How long the last user waits for workers that are about to end."""
LIBRARIES = ("cv2", "PIL", "simplejpeg", "numpy")
PLAIN = (str, int, float, bool, bytes, type(None))


def check_path(wanted: Reuse) -> None:
    """Raise ConfigError if the path is not writable: now, not once training has begun."""
    path = Path(os.fspath(wanted.path or ""))
    if wanted.bytes < LEAST_BYTES:
        raise ConfigError(
            f"max_bytes must be at least {LEAST_BYTES:,} for store='disk', got {wanted.max_bytes!r}"
        )
    if path.exists() and not path.is_dir():
        raise ConfigError(f"Reuse(path={str(path)!r}): it is not a folder; give one, or a name that is free")
    trial = path / f".penstock-{secrets.token_hex(8)}.tmp"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        trial.mkdir()
        trial.rmdir()
    except OSError as exc:
        raise ConfigError(
            f"Reuse(path={str(path)!r}): nothing can be kept there ({exc.strerror or exc}); give a folder that this user may write to"
        ) from exc


def identity(dataset: Any, split: int) -> tuple[str, str]:
    """Return the identity of the samples and of their stored part, for a persistent store; or "" and the reason."""
    samples, why = contents_of(dataset)
    ops, why_not = partial_identity(dataset, split)
    return (samples + ops, "") if samples and ops else ("", why or why_not)


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


def run_name(*, several: bool) -> str:
    """Return a unique name, equal on all ranks of this machine. `several`: there are other ranks, and all call this."""
    own = [secrets.randbits(62), secrets.randbits(62)]
    if several:
        machine = int.from_bytes(Files().boot()[:7], "little")
        own = next(numbers for theirs, *numbers in gathered([machine, *own]) if theirs == machine)
    return f"{own[0]:016x}{own[1]:016x}"


class KeptOnDisk:
    """Opens the store; `end` closes or removes it."""

    def __init__(self, wanted: Reuse, dataset: Any, split: int, renewal: Renewal, *, several: bool) -> None:
        path = os.fspath(wanted.path or "")
        run = run_name(several=several)  # always: other ranks may need it
        known, why = identity(dataset, split) if wanted.persistent else ("", "")
        lasting = bool(known) and not why
        if why:
            log.warning(
                "Reuse(persistent=True): what is kept in %s is for this run only: %s. Leave persistent out, or take a dataset that can say it "
                "(ImageFolder, TarDataset, one of yours with contents())",
                path,
                why,
            )
        # guard: store-of-seed
        said = (FORMAT, known or run, renewal.seed, renewal.length, wanted.times, os.geteuid())
        namespace = hashlib.blake2b(repr(said).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        clear_temporary(path)  # guard: killed-runs
        samples = max(1, renewal.length)  # an empty dataset is allowed
        mark = FolderMark(samples=samples, temporary=not lasting, about=about(dataset, split, renewal))
        store = DiskStore(path, namespace, samples, wanted.bytes, mark=mark, tally=Tally.shared(COUNTED))
        self.store = DiskAhead(store)
        self.end = weakref.finalize(self, ended, store, os.getpid(), temporary=not lasting)


def ended(store: DiskStore, pid: int, *, temporary: bool) -> None:
    """Close the store, only in the process that made it: a forked child does not own it."""
    if os.getpid() != pid:
        return
    store.close()
    if temporary:  # guard: run-store-removed
        removed(store.folder, LEAVING_S)


def about(dataset: Any, split: int, renewal: Renewal) -> str:
    """Describe a store for people who list stores."""
    names = [op.name for op in dataset.chain.ops[:split]]
    kind = type(dataset).__name__
    place = getattr(dataset, "root", None) or next(iter(getattr(dataset, "urls", ())), "")
    return f"{kind} {place}: {', '.join(['decoded', *names])}; seed {renewal.seed}, {renewal.kept:,} kept".replace(
        " :", ":"
    )


def ranks_are_here(*, shared: bool) -> bool:
    return shared and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
