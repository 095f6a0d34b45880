"""Which machines of a job have a cache: their ranks meet once, by collectives of torch.distributed, and all know the same from then on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import socket
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist

from penstock.cache.join_facts import GroupPlan, JoinAnswer, JoinFacts
from penstock.cache.keys import scope_of
from penstock.client.arguments import TorchArguments
from penstock.client.cache_side import CacheSide, CacheWay
from penstock.client.worker_count import window_of
from penstock.config import Cache, LoaderConfig
from penstock.dataset.offers import ReadSeam, offered
from penstock.epochs.epochs import Epochs
from penstock.epochs.shard import gathered, has_group
from penstock.errors import ConfigError, PenstockError
from penstock.measure.host import say_once
from penstock.measure.launch import local_world
from penstock.node.job import address, job_name
from penstock.policy.homes import GroupMember, Ownership
from penstock.sources.anywhere import AnyFiles, local_path
from penstock.sources.cloud import CloudFiles
from penstock.sources.fetch_frames import settings_in
from penstock.sources.http import HttpFiles
from penstock.sources.sources import LocalFiles, WholeFiles
from penstock.worker.prepare import Recipe

log = logging.getLogger("penstock")

PROBES = 1024
"""Samples that are measured to learn the mean."""
SECRET_NUMBERS, ADDRESS_NUMBERS = 4, 16
"""64-bit numbers of a secret, and of an address with the fingerprint of its certificate."""
KNOWN_SOURCES = (WholeFiles, LocalFiles, AnyFiles, CloudFiles, HttpFiles)
"""Sources that the service can read from by itself."""


def side_of(
    config: LoaderConfig, held: CacheSide | None, recipe: Recipe, epochs: Epochs, given: TorchArguments
) -> CacheSide | None:
    """Return how a loader reaches its cache: as before, if it has one. None if it has none, or cannot have one, with a warning."""
    cache = config.cache
    if cache is None or held is not None:
        return held
    source = epochs.source
    follows = source.evens or source.deal == "owner"
    """Whether the order follows from what is kept: then all ranks must know the same, or samples come twice and others never."""
    seam = offered(recipe.dataset).seam
    if why := why_not(seam, config):
        say_once(f"cache= is not used: {why}")  # a loader asks in each of its epochs
        return None
    assert seam is not None
    ranks = JobRanks.met(cache, len(given.dataset), source.world, peers=cache.peers == "auto")
    if follows and not ranks.group and source.world > local_world():  # guard: owners-agreed
        raise ConfigError(
            'order="even" and deal="owner" follow from what the job\'s machines keep, and its ranks cannot meet to agree on that: call '
            "torch.distributed.init_process_group before the first iter()"
        )
    window = window_of(config, given, recipe)(given.num_workers)
    side = CacheSide(
        facts_of(cache, given, recipe, seam, ranks, ahead=2 * window * max(1, given.samples)), seam
    )
    way: CacheWay | None = None
    try:
        way = side.join()
    except ConfigError:
        raise
    except (OSError, PenstockError) as exc:
        if follows and not ranks.group and source.world > 1:  # others may have reached it
            side.close()
            raise
        log.warning("cache= is not used: %s", exc)
    owners = ranks.owners(None if way is None else way.joined, epochs.seed or 0)
    if way is None or owners is None:
        if way is not None:
            way.sock.close()
        side.close()
        return None
    plan = GroupPlan(
        owners=owners,
        node=ranks.node,
        addresses=list(ranks.addresses),
        order="unknown" if source.order != "planned" else "shuffled" if source.shuffles else "sequential",
        seed=epochs.seed or 0,
        batch_size=given.batch_size or 1,
        world=source.world,
        even=source.evens,
    )
    with contextlib.suppress(OSError, PenstockError):  # an agent's stream is told, too
        side.begin(way, plan)
    epochs.owners = owners
    return side


def why_not(seam: ReadSeam | None, config: LoaderConfig) -> str:
    """Say why a dataset's bytes cannot be cached; "" if they can."""
    if config.reuse is not None and config.reuse.times > 1:
        return "reuse= keeps partly prepared samples, and reads few bytes"
    if seam is None:
        return (
            "the dataset does not say where its bytes are; ImageFolder, TarDataset and AudioFolder do, and a StagedDataset with `locate` and `seam` "
            "(docs/cache.md)"
        )
    source: Any = seam.holder.bytes_from
    if type(source) not in KNOWN_SOURCES:
        return f"the dataset reads by a source of its own ({type(source).__name__})"
    return ""


def facts_of(
    cache: Cache, given: TorchArguments, recipe: Recipe, seam: ReadSeam, ranks: JobRanks, *, ahead: int
) -> JoinFacts:
    samples = len(given.dataset)
    step = max(1, samples // PROBES)
    probes = [list(seam.ranges(index)) for index in range(0, samples, step)][:PROBES]
    kind = type(offered(recipe.dataset).shown)
    cwd = str(Path.cwd())
    places = cwd if any(is_relative(name) for probe in probes for name, _, _ in probe) else ""
    said = repr((kind.__module__, kind.__qualname__, samples, seam.folder, seam.files, places, probes))
    holder: Any = seam.holder
    contents = getattr(holder, "contents", lambda: None)() if cache.persistent else None
    if cache.persistent and contents is None:
        log.warning(
            "cache: persistent=True has no effect: nothing tells whether this dataset's files are the same in another run"
        )
    return JoinFacts(
        scope=scope_of(said).hex(),
        samples=samples,
        cache=cache,
        ring_samples=ahead * ranks.here,
        cwd=cwd,
        settings=settings_in(os.environ),
        stamps={name: holder.bytes_from.stamp(name) for name in seam.files},
        probes=probes,
        contents=contents,
        entries=len(holder),
        listen=ranks.listen,
        node=ranks.node,
        secret=ranks.secret,
    )


def is_relative(name: str) -> bool:
    """Whether a name means another file in another working folder."""
    path = local_path(name)
    return path is not None and not Path(path).is_absolute()


@dataclass(slots=True, kw_only=True)
class JobRanks:
    """The ranks of a job, by machine, as all of them know it."""

    nodes: list[list[int]]
    """Ranks of each machine, in the order of their first ones."""
    node: int
    """Of them, this rank's machine."""
    most_here: int
    """Ranks of the machine that has most."""
    peers: bool = False
    """Whether machines give each other samples."""
    group: bool
    """Whether ranks can meet."""
    listen: str = ""
    secret: str = ""
    addresses: list[str] = field(default_factory=list)

    @classmethod
    def met(cls, cache: Cache, samples: int, world: int, *, peers: bool) -> JobRanks:
        """Meet the other ranks of the order, if there are any and they can be met. ConfigError if they want other caches."""
        if not (has_group() and dist.get_world_size() == world and world > 1):
            return cls(nodes=[list(range(local_world()))], node=0, most_here=local_world(), group=False)
        own = [machine(), number_of(json.dumps([asdict(cache), samples], default=str)), ipv4()]
        found = gathered(
            [*own, *struct.unpack(f"{SECRET_NUMBERS}q", secrets.token_bytes(8 * SECRET_NUMBERS))]
        )
        if len({numbers[1] for numbers in found}) > 1:
            raise ConfigError(
                f"ranks of one job have different cache=: this one has {cache}. Give all ranks the same, or none a cache"
            )
        places: dict[int, list[int]] = {}
        for rank, numbers in enumerate(found):
            places.setdefault(numbers[0], []).append(rank)
        nodes, rank = list(places.values()), dist.get_rank()
        most_here = max(map(len, nodes))
        node = next(at for at, ranks in enumerate(nodes) if rank in ranks)
        if not peers:
            nodes, node = [nodes[node]], 0
        secret = struct.pack(f"{SECRET_NUMBERS}q", *found[0][3:]).hex()
        listen = socket.inet_ntoa(struct.pack("!I", own[2])) if len(nodes) > 1 else ""
        return cls(
            nodes=nodes,
            node=node,
            most_here=most_here,
            peers=peers,
            group=True,
            listen=listen,
            secret=secret,
        )

    @property
    def here(self) -> int:
        """Ranks of this machine."""
        return len(self.nodes[self.node])

    def owners(self, joined: JoinAnswer | None, seed: int) -> Ownership | None:
        """Say where samples are kept, as all ranks see it; None if a rank has no cache."""
        own = (
            [0, 0, *packed("")]
            if joined is None
            else [joined.sample_bytes, joined.room_bytes, *packed(joined.address)]
        )
        found = gathered(own) if self.group else [own]
        if not all(numbers[0] for numbers in found):
            if joined is not None:
                log.warning(
                    "cache= is not used: ranks %s have none",
                    [rank for rank, n in enumerate(found) if not n[0]],
                )
            return None
        if self.group and not self.peers:  # each machine for itself, and the order is one for all
            firsts = [min(found, key=lambda numbers: numbers[1])]  # guard: one-room-for-all
        else:
            firsts = [found[ranks[0]] if self.group else found[0] for ranks in self.nodes]
        self.addresses = [unpacked(numbers[2:]) for numbers in firsts]
        return Ownership(
            seed=seed,
            members=tuple(
                GroupMember(name=name, room_bytes=numbers[1]) for name, numbers in enumerate(firsts)
            ),
            sample_bytes=found[0][0],
            gpus=self.most_here,
        )


def packed(address: str) -> list[int]:
    """Return a text as numbers, for a collective."""
    return list(struct.unpack(f"{ADDRESS_NUMBERS}q", address.encode().ljust(8 * ADDRESS_NUMBERS, b"\0")))


def unpacked(numbers: Sequence[int]) -> str:
    return struct.pack(f"{ADDRESS_NUMBERS}q", *numbers).rstrip(b"\0").decode()


def number_of(text: str) -> int:
    """Return a number that tells texts apart."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def machine() -> int:
    """Return a number of this machine, as far as its ranks share a node process: one network namespace, one user, one job."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    return number_of(f"{boot} {os.stat('/proc/self/ns/net').st_ino} {address(job_name(), os.geteuid())}")  # noqa: PTH116


def ipv4() -> int:
    """Return this machine's address as the job's other machines see it, as a number: that of the interface towards the job's master."""
    master = os.environ.get("MASTER_ADDR", ""), int(os.environ.get("MASTER_PORT", "0") or 0)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect((master[0] or "127.0.0.1", master[1] or 9))  # sends nothing
            found: int = struct.unpack("!I", socket.inet_aton(way.getsockname()[0]))[0]
            return found
    except OSError:
        return 0x7F000001
