"""What a training process says when it joins the cache of its machine, and the plan of its training. Values as they travel, checked."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from penstock.cache.frames import BadFrame, range_said
from penstock.cache.keys import SCOPE_BYTES
from penstock.config import Cache
from penstock.errors import PenstockError
from penstock.plan.epoch import EpochPlan
from penstock.policy.homes import MOST_NODES, Ownership
from penstock.sources.sources import ByteRange

MOST_BYTES = 1 << 62
MOST_SEED = 1 << 64
MOST_PORT, MOST_RANKS = (1 << 16) - 1, 1 << 30
"""Larger numbers are nonsense, and would not fit where they are used."""
WRONG = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, PenstockError)
"""What values of other kinds may lead to."""


@contextmanager
def saying(what: str) -> Iterator[None]:
    """Whatever is wrong with values that arrived is a BadFrame."""
    try:
        yield
    except WRONG as exc:  # guard: facts-of-their-kind
        raise BadFrame(f"{what} in words that are none: {type(exc).__name__}: {exc}") from None


def check_texts(*values: object) -> None:
    if any(type(value) is not str for value in values):
        raise TypeError(f"{values} are not texts")


def check_numbers(least: int, most: int, *values: object) -> None:
    if not all(type(value) is int and least <= value <= most for value in values):  # guard: numbers-that-fit
        raise TypeError(f"{values} are not numbers from {least} to {most}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinFacts:
    """A loader's dataset, and how it is to be cached."""

    scope: str
    """Names the dataset within the job, as hex digits."""
    samples: int
    cache: Cache
    ring_samples: int
    """Samples of this machine that are on their way or in use at a time."""
    cwd: str
    """Folder of relative names."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Environment that says where object stores are and who we are."""
    stamps: Mapping[str, str] = field(default_factory=dict)
    """What files must be like still: offsets were derived from them."""
    probes: list[list[ByteRange]] = field(default_factory=list)
    """Some samples, to learn how large they are."""
    contents: str | None = None
    """Changes with the dataset's content."""
    entries: int = 0
    """Samples of the dataset that holds the bytes: this one may be a part of it."""
    listen: str = ""
    """Address of this machine at which peers find its cache; "": there are none."""
    port: int = 0
    """Where they found it before, if its service has died since."""
    node: int = 0
    """Which of the job's machines this one is."""
    secret: str = ""
    """What peers of the job know, as hex digits."""

    def pack(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, payload: bytes) -> JoinFacts:
        """BadFrame if the values are not of their kinds."""
        with saying("a rank joins"):
            facts = json.loads(payload)
            probes = [[range_said(each) for each in probe] for probe in facts["probes"]]
            found = cls(**facts | {"cache": Cache(**facts["cache"]), "probes": probes})
            check_numbers(0, MOST_BYTES, found.samples, found.ring_samples)
            check_numbers(0, MOST_PORT, found.port)
            check_numbers(0, MOST_NODES, found.node)
            check_texts(found.scope, found.cwd, found.listen, found.secret, found.contents or "")
            for texts in (found.settings, found.stamps):
                check_texts(*texts.keys(), *texts.values())
            bytes.fromhex(found.secret)
            ipaddress.ip_address(found.listen or "127.0.0.1")
            if len(bytes.fromhex(found.scope)) != SCOPE_BYTES:
                raise ValueError("its scope has another length")
            return found

    def differs(self, other: JoinFacts) -> str:
        """Say in which way two ranks' caches are not the same; "" if they are."""
        ours, theirs = asdict(self.cache), asdict(other.cache)
        apart = [f"{name}={ours[name]!r} and {theirs[name]!r}" for name in ours if ours[name] != theirs[name]]
        if self.samples != other.samples:
            apart.append(f"{self.samples:,} and {other.samples:,} samples")
        return ", ".join(apart)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """What the service answers."""

    pid: int
    fd: int
    """Of its memory file, in that process."""
    inode: int
    """Of that file: a process with that number may be another one later."""
    sample_bytes: int
    """Bytes of a sample, in the mean."""
    room_bytes: int
    """Bytes of samples that this machine can keep."""
    address: str = ""
    """Where peers find it; "": nowhere."""
    warnings: list[str] = field(default_factory=list)
    """What the service has warned of so far."""

    def pack(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, payload: bytes) -> JoinAnswer:
        """BadFrame if the values are not of their kinds."""
        with saying("the service answers"):
            found = cls(**json.loads(payload))
            check_numbers(0, MOST_SEED, found.pid, found.fd, found.inode)
            check_numbers(0, MOST_BYTES, found.sample_bytes, found.room_bytes)
            check_texts(found.address)
            return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """The machines of a job, and the order in which they use samples."""

    owners: Ownership
    node: int
    """Which of them this one is."""
    addresses: list[str] = field(default_factory=list)
    """Where each of them listens."""
    order: str = "unknown"
    """`shuffled`, `sequential` or `unknown` (a sampler of the user's)."""
    seed: int = 0
    batch_size: int = 1
    world: int = 1
    even: bool = False

    def pack(self) -> bytes:
        return json.dumps(asdict(self) | {"owners": self.owners.facts()}).encode()

    @classmethod
    def unpack(cls, payload: bytes) -> GroupPlan:
        """BadFrame if the values are not of their kinds."""
        with saying("a plan is told"):
            facts = json.loads(payload)
            found = cls(**facts | {"owners": Ownership.of(facts["owners"])})
            owners, members = found.owners, found.owners.members
            check_numbers(0, MOST_BYTES, owners.sample_bytes, *[each.room_bytes for each in members])
            check_numbers(-MOST_SEED, MOST_SEED, found.seed, owners.seed, *[each.name for each in members])
            check_numbers(1, MOST_RANKS, found.batch_size, found.world, owners.gpus)
            check_numbers(0, len(members) - 1, found.node)
            check_texts(found.order, *found.addresses)
            return found

    def epoch(self, number: int, samples: int) -> EpochPlan:
        return EpochPlan(
            length=samples,
            batch_size=self.batch_size,
            drop_last=False,
            shuffle=self.order == "shuffled",
            seed=self.seed,
            epoch=number,
            world=self.world,
            even=self.owners if self.even else None,
        )

    def steps(self, samples: int) -> int:
        return -(-samples // (self.world * self.batch_size))
