"""Set up partial reuse for a loader (`reuse=`): where to split its chain, how many samples fit, and their store."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch.distributed as dist

from penstock.config import AUTO_SPLIT, GpuPrep, Reuse
from penstock.epochs.shard import gathered
from penstock.errors import ConfigError, StateError
from penstock.pipeline.adopt import verdict
from penstock.pipeline.adopted_images import AdoptedImages
from penstock.pipeline.audio import AudioChain, AudioFolder
from penstock.pipeline.chain import Chain
from penstock.pipeline.op_costs import why_anew
from penstock.pipeline.staged import StagedDataset
from penstock.plan.renewal import Renewal
from penstock.policy.diversity import measured
from penstock.policy.split import ChainOp, Terms, latest
from penstock.reuse.audio import ReusedAudio
from penstock.reuse.draw_tally import DrawTally
from penstock.reuse.images import Reused
from penstock.reuse.on_device import ReusedOnDevice
from penstock.reuse.on_disk import KeptOnDisk, check_path, identity, ranks_are_here
from penstock.reuse.room import check_agreed, room_of
from penstock.reuse.stores.chunks import Address
from penstock.reuse.stores.contract import PartialStore
from penstock.reuse.stores.device import DeviceStore
from penstock.reuse.stores.disk_files import Files
from penstock.reuse.stores.memory import MemoryStore
from penstock.transforms.outcomes import outcomes_in_row
from penstock.transforms.theirs import Theirs

log = logging.getLogger("penstock")


class Reusing:
    """Reuse setup of one loader. The store outlives its epochs."""

    def __init__(
        self, wanted: Reuse, dataset: Any, prep: GpuPrep | None = None, *, shared: bool = False
    ) -> None:
        """Raise ConfigError if samples cannot be stored. `prep`: the GPU's part in preparation, if any; `shared`: samples are distributed over ranks."""
        reason = unsuited(dataset)
        if reason:
            raise ConfigError(f"reuse is not possible: {reason}")
        if wanted.store == "device":
            refuse_on_device(dataset, prep)
        self.wanted, self.source = wanted, dataset
        self.split = split_of(wanted, dataset.chain)
        if wanted.store == "device":
            refuse_draws_beside_training(dataset.chain.ops[: self.split])
        if wanted.store == "disk":
            check_path(wanted)
        self.room = room_of(wanted, dataset, self.split, shared=shared)
        self.kept = self.room.kept
        self._store: PartialStore | None = None
        self._on_disk: KeptOnDisk | None = None
        self._renewal: Renewal | None = None
        self._tally: DrawTally | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Drop the store: a copy of the loader makes its own."""
        return {**self.__dict__, "_store": None, "_on_disk": None, "_renewal": None, "_tally": None}

    def dataset(self, source: Any, seed: int, kept: int, *, shared: bool) -> Reused | ReusedAudio:
        """Return the dataset for workers. `shared`: each epoch redistributes its samples over all ranks."""
        if isinstance(self.source, AdoptedImages):
            if not self.source.is_as_it_was:
                raise ConfigError(
                    "reuse: the dataset has been given another transform since the loader was made, and samples are kept as the first left "
                    "them: make a new loader"
                )
            source = self.source
        if kept > len(source):
            raise StateError(
                f"the state was saved from a loader that kept {kept:,} samples (reuse), and this data set has {len(source):,}: it is another one. "
                f"Resume with the data set of that run, or begin anew"
            )
        renewal = Renewal(len(source), kept, self.wanted.times, seed)
        if self._store is None or self._renewal != renewal:
            several = ranks_are_here(shared=shared)
            if several:
                check_agreed(kept)
            self._store = self._made(source, renewal, several=several)
            self._renewal, self._tally = renewal, None
            with contextlib.suppress(OSError):  # without memory for it, diversity is not measured
                self._tally = DrawTally(renewal)
        kind: Any = ReusedAudio if isinstance(source, AudioFolder) else Reused
        if self.wanted.store == "device":
            kind = ReusedOnDevice
        found: Reused | ReusedAudio = kind(source, self.split, renewal, self._store, self._tally)
        return found

    def _made(self, source: Any, renewal: Renewal, *, several: bool) -> PartialStore:
        if self.wanted.store == "device":  # per rank, as its memory is
            return DeviceStore(renewal, self.wanted.bytes, self.room.entry_bytes)
        if self.wanted.store == "disk":
            if self._on_disk is not None:
                self._on_disk.end()
            self._on_disk = KeptOnDisk(self.wanted, source, self.split, renewal, several=several)
            return self._on_disk.store
        made = store_of_machine if several else MemoryStore
        return made(renewal, self.room.max_bytes, self.room.entry_bytes)

    def line(self, dataset: StagedDataset | AudioFolder, kept: int) -> str:
        """Describe the setup for `explain()`. `kept`: the number in force, which a loaded state may set."""
        names = [op.name for op in dataset.chain.ops]
        what = f"all up to {names[self.split - 1]}" if self.split else "decoding"
        rest = ", ".join(names[self.split :]) or "nothing"
        uses = f"{self.wanted.times} uses (reuse)"
        said = f"{what} is done for {uses}, {rest} anew for each; {self._so_far(kept)}"
        if self.room.too_large:
            said += f", but for some {self.room.too_large:.0%} that are too large"
        return said + self._where(dataset) + self._trouble() + diversity_line(self.diversity())

    def _so_far(self, kept: int) -> str:
        """Say how many of the samples are stored so far."""
        if self._store is None:
            return f"kept of {kept:,} samples"
        return f"kept {min(kept, self._store.stats()['entries']):,} of {kept:,} samples so far"

    def _trouble(self) -> str:
        if self._store is None or not self._store.stats().get("read_only"):
            return ""
        return "; no more can be kept: the disk is full or fails"

    def _where(self, dataset: StagedDataset | AudioFolder) -> str:
        if self.wanted.store == "device":
            return " on the device"
        if self.wanted.store == "memory":
            less = f" in {self.room.max_bytes:,} bytes, half of what this machine or container had left"
            return less if self.room.max_bytes < self.wanted.bytes else ""
        if not self.wanted.persistent:
            return f" in {self.wanted.path}, for this run"
        why = identity(dataset, self.split)[1]
        return f" in {self.wanted.path}, " + (
            f"for this run only: {why}" if why else "for later runs with the same data, ops and seed too"
        )

    def stats(self, kept: int) -> dict[str, Any]:
        """Return counters of the store, and diversity. `kept`: the number in force."""
        found: dict[str, Any] = {"times": self.wanted.times, "split": self.split, "kept": kept}
        if self._store is not None:
            found |= self._store.stats()
        return {**found, "diversity": self.diversity()}

    def diversity(self) -> dict[str, Any] | None:
        """Return the measured and expected number of different draws of followed samples; None before the first."""
        found = None if self._tally is None else measured(self._tally.followed())
        if self._tally is None or found is None:
            return None
        epochs = self._tally.epochs
        return {"since_epoch": epochs[0], "epochs": len(epochs), **asdict(found)}


def diversity_line(found: dict[str, Any] | None) -> str:
    """For `explain()`."""
    if found is None:
        return ""
    return (
        f"\n  diversity: {found['measured']:.2f} different draws in {found['uses']:.1f} uses of a sample ({found['expected']:.2f} expected, "
        f"{found['standard']:.2f} without reuse), over {found['samples']} samples, {found['epochs']} epochs from epoch {found['since_epoch']} on"
    )


def store_of_machine(renewal: Renewal, max_bytes: int, entry_bytes: int) -> MemoryStore:
    """Return the store shared by all ranks of this machine; the first of them makes it. All ranks must call this."""
    machine = int.from_bytes(Files().boot()[:7], "little")
    ranks = [rank for rank, (theirs,) in enumerate(gathered([machine])) if theirs == machine]
    store = MemoryStore(renewal, max_bytes, entry_bytes) if dist.get_rank() == ranks[0] else None
    address = Address(*gathered(store.address if store is not None else Address(0, 0, 0))[ranks[0]])
    if store is not None:
        return store
    try:
        return MemoryStore.of(renewal, address)
    except OSError as exc:
        log.warning(
            "samples that are kept are not shared with other ranks of this machine (%s): each rank keeps its own, finds fewer of them, and "
            "takes as much memory",
            exc,
        )
        return MemoryStore(renewal, max_bytes, entry_bytes)


def unsuited(dataset: Any) -> str:
    """Return why a dataset's samples cannot be stored partly prepared; "" if they can."""
    of_its_own = f"{type(dataset).__name__} has a __getitem__ of its own, which would not be called"
    if isinstance(dataset, AudioFolder):
        return of_its_own if type(dataset).__getitem__ is not AudioFolder.__getitem__ else ""
    if not isinstance(dataset, StagedDataset):
        reason = verdict(dataset)[1]
        return (
            f"{type(dataset).__name__} does not show how its samples are prepared: use penstock.ImageFolder, "
            f"TarDataset, AudioFolder or StagedDataset, or torchvision's ImageFolder, which is adopted unless adopt=False. {reason}".rstrip()
        )
    if dataset.has_own_items:
        return of_its_own
    if not dataset.chain.is_one_program:
        return "its chain has several views, or a function of yours before other ops"
    return ""


def refuse_on_device(dataset: Any, prep: GpuPrep | None) -> None:
    """Raise ConfigError if samples cannot be stored on the device, though they could elsewhere."""
    reason = ""
    if isinstance(dataset, AudioFolder):
        reason = "recordings are not prepared on the GPU"
    elif prep is None or prep.mode == "off":
        reason = "what is kept there, the GPU must finish: give device='cuda' and gpu_prep='concurrent', 'idle' or 'auto'"
    elif prep.finish is False:
        reason = "what is kept there, the GPU must finish: leave finish=False out of GpuPrep"
    elif not dataset.knows_targets:
        reason = (
            f"{type(dataset).__name__} gives targets together with samples only, which are not read again. A dataset of yours can say "
            f"knows_targets = True and have target_of(index)"
        )
    if reason:
        raise ConfigError(
            f"Reuse(store='device') is not possible: {reason}; or take store='memory' or 'disk'"
        )


def refuse_draws_beside_training(ops: Sequence[Any]) -> None:
    """Raise ConfigError if a partial op draws from the program's generator: evicted samples are remade in a thread of the training process, which
    must not touch it."""
    names = [op.name for op in ops if isinstance(op, Theirs)]
    if names:
        raise ConfigError(
            f"Reuse(store='device') is not possible with {', '.join(names)} before the split: torchvision draws from the program's own generator, "
            f"which a thread beside training must not touch. Split before it, or take store='memory' or 'disk'"
        )


def split_of(wanted: Reuse, chain: Chain | AudioChain) -> int:
    """Return the number of ops in the partial part."""
    names = [op.name for op in chain.ops]
    most = next((at for at, op in enumerate(chain.ops) if why_anew(op)), len(chain.ops))
    if wanted.split == AUTO_SPLIT:
        counts = zip(chain.ops, outcomes_in_row(chain.ops), strict=True)
        parts = [ChainOp(name=op.name, outcomes=count, anew=why_anew(op)) for op, count in counts]
        return latest(parts, Terms(times=wanted.times, min_diversity=wanted.min_diversity))
    if isinstance(wanted.split, str):
        if wanted.split not in names:
            raise ConfigError(f"split names {wanted.split!r}; the chain has {', '.join(names)}")
        split = names.index(wanted.split)
        if names.count(wanted.split) > 1:
            where = ", ".join(str(at) for at, name in enumerate(names) if name == wanted.split)
            raise ConfigError(
                f"split names {wanted.split!r}, of which the chain has several: give a number, of {where}"
            )
    else:
        split = int(wanted.split)
    if split > len(names):
        raise ConfigError(f"split is {split}, but the chain has {len(names)} ops: {', '.join(names)}")
    if split > most:
        raise ConfigError(
            f"split is {split}, but what {names[most]} (op {most}) makes cannot be kept: {why_anew(chain.ops[most])}. Split before it"
        )
    return split
