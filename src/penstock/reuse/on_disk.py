"""The store on disk of one loader (`Reuse(store="disk")`): where it lies, under which name, and when it goes.

Rule 1: the name of a store is a digest of all that its bytes depend on: the samples, the first ops and who does them, the seed. Whatever
        differs in any of these has a store of its own, and nothing need be compared or thrown away.
Rule 2: a store is of one run, unless it was asked for that it lasts and its samples can be told from others for sure. One of a run has a name
        that nobody can have again. It goes with its last user; what is left of a run that was killed, the next one removes.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import weakref
from pathlib import Path
from typing import Any

import torch.distributed as dist

from penstock.config import Reuse
from penstock.epochs.shard import gathered
from penstock.errors import ConfigError
from penstock.plan.renewal import Renewal
from penstock.reuse.contents import contents_of, partial_identity
from penstock.reuse.stores.disk import LEAST_BYTES, DiskStore
from penstock.reuse.stores.disk_ahead import DiskAhead
from penstock.reuse.stores.disk_files import Files
from penstock.reuse.stores.disk_format import Mark
from penstock.reuse.stores.disk_listing import clear_temporary, removed
from penstock.reuse.stores.disk_process import COUNTED
from penstock.reuse.stores.tally import Tally

log = logging.getLogger("penstock")
FORMAT = 1
"""To be raised when what is kept of a sample comes to be another thing."""
LEAVING_S = 0.5
"""How long the last user waits for workers that are about to end."""


def check_path(wanted: Reuse) -> None:
    """ConfigError where nothing can be kept at the path: now, not when training has begun."""
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
    """A text of the samples and of what is kept of them, for a store that lasts; or nothing, and why not."""
    samples, why = contents_of(dataset)
    ops, why_not = partial_identity(dataset, split)
    return (samples + ops, "") if samples and ops else ("", why or why_not)


def run_name(*, several: bool) -> str:
    """A name that no other run has; the same on all ranks of this machine. `several`: there are others, and all are here."""
    own = [secrets.randbits(62), secrets.randbits(62)]
    if several:
        machine = int.from_bytes(Files().boot()[:7], "little")
        own = next(numbers for theirs, *numbers in gathered([machine, *own]) if theirs == machine)
    return f"{own[0]:016x}{own[1]:016x}"


class KeptOnDisk:
    """The store, and its end."""

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
        samples = max(1, renewal.length)  # an empty dataset is a loader as any
        mark = Mark(samples=samples, temporary=not lasting, about=about(dataset, split, renewal))
        store = DiskStore(path, namespace, samples, wanted.bytes, mark=mark, tally=Tally.shared(COUNTED))
        self.store = DiskAhead(store)
        self._end = weakref.finalize(self, ended, store, os.getpid(), temporary=not lasting)

    def end(self) -> None:
        self._end()


def ended(store: DiskStore, pid: int, *, temporary: bool) -> None:
    """In the process that made it; a forked child has nothing to end."""
    if os.getpid() != pid:
        return
    store.close()
    if temporary:  # guard: run-store-removed
        removed(store.folder, LEAVING_S)


def about(dataset: Any, split: int, renewal: Renewal) -> str:
    """For people who list stores."""
    names = [op.name for op in dataset.chain.ops[:split]]
    kind = type(dataset).__name__
    place = getattr(dataset, "root", None) or next(iter(getattr(dataset, "urls", ())), "")
    return f"{kind} {place}: {', '.join(['decoded', *names])}; seed {renewal.seed}, {renewal.kept:,} kept".replace(
        " :", ":"
    )


def ranks_are_here(*, shared: bool) -> bool:
    return shared and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
