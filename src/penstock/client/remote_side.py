"""A loader's side of remote workers: find the machine's ferry, hand it the arena, and send the settings that workers elsewhere need."""

from __future__ import annotations

import json
import logging
import socket
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from penstock.client.metric_keeper import MetricKeeper
from penstock.config import LoaderConfig
from penstock.core.pools import PoolConfig
from penstock.errors import NodeUnavailable, PenstockError
from penstock.node.link import NodeLink
from penstock.policy.course_state import Stage
from penstock.policy.offload import metrics_from
from penstock.remote.connect import WorkerAddress
from penstock.remote.cut import tail_text
from penstock.remote.frames import NUMBER, Net, framed
from penstock.remote.gateway_config import GatewayConfig
from penstock.remote.plans import BATCHES, candidates, permit_for, starting_plan, tail_for
from penstock.wire.arena import Arena
from penstock.wire.pickles import dumps_by_value
from penstock.worker.loop import WorkerSpec
from penstock.worker.prepare import Recipe

log = logging.getLogger("penstock")

OpenFerry = Callable[[bytes, Sequence[int]], socket.socket]
"""Passes facts and descriptors on to the ferry; returns a socket to it."""


class OffloadRecord:
    """What a loader's agent said last about remote workers: for `stats()`, and for its next agent."""

    def __init__(self) -> None:
        self.course = ""
        """What has been measured and decided (`policy.course`), as JSON."""
        self.metrics = MetricKeeper()
        self._stats: dict[str, Any] = {}

    @property
    def stats(self) -> dict[str, Any]:
        return self._stats and {**self._stats, "not_stored": self.metrics.trouble}

    @property
    def workers(self) -> int:
        """Remote workers at work, or about to be; not those that are only there, because local workers alone are faster."""
        return 0 if self._stats.get("stage") == Stage.LOCAL else int(self._stats.get("workers_had", 0))

    def note(self, payload: bytes) -> None:
        told = json.loads(payload)
        self.course, self._stats = told["course"], told["stats"]
        if told["kept"] is not None:
            self.metrics.keep(metrics_from(told["kept"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSide:
    """How a loader reaches workers on other machines."""

    open_ferry: OpenFerry
    plan: str = "auto"
    """What is done there (`config.Remote.plan`)."""
    share: float | str | None = "auto"
    """How much (`config.Remote.share`). None: what remote workers can do without a delay to a batch."""
    addresses: tuple[WorkerAddress, ...] = ()
    """Workers that are known already."""
    gateway: GatewayConfig | None = None
    """The cluster from which others are hired."""
    cpus: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    """Ray's, of each worker's actor."""
    tls: bool = False
    """Whether its workers speak TLS."""
    differs: str = "error"
    """Whether a machine whose bytes may differ from ours is refused ("error") or used ("warn")."""
    most: int = 0
    """Workers at most; 0: one for each address."""
    queue_bytes: int = 256 << 20
    """Bytes of results in flight."""
    record: OffloadRecord = field(default_factory=OffloadRecord)

    @property
    def count(self) -> int:
        """Remote workers at most."""
        return self.most or len(self.addresses)

    def pool(self, recipe: Recipe) -> PoolConfig:
        """Return the pool that the core plans with; workers that never come cost nothing. Where the share is measured, the first come when
        training waits."""
        fixed = self.share if isinstance(self.share, float | int) else None
        return PoolConfig(
            0 if self.share == "auto" else self.count,
            queue_bytes=self.queue_bytes,
            share=fixed,
            whole=starting_plan(self.plan, recipe) == BATCHES,
        )

    def candidates(self, recipe: Recipe) -> tuple[str, ...]:
        """Return the plans to choose from. With a fixed share nothing is measured."""
        if self.plan == self.share == "auto":
            return candidates(recipe)
        return (starting_plan(self.plan, recipe),)

    def open(self, arena: Arena, spec: WorkerSpec) -> socket.socket | None:
        """Return the socket on which the agent will talk to the ferry. None, with one warning, if samples cannot be prepared elsewhere."""
        plan, permit = starting_plan(self.plan, spec.recipe), permit_for(spec.recipe)
        self.record.metrics.settle()  # the agent may be forked now
        try:
            settings = pickled(spec)
        except Exception as exc:  # noqa: BLE001 - anything may go wrong in a user's __reduce__
            why = (
                f"{type(exc).__name__}: {exc}"  # as text: a log that kept the exception would keep the arena
            )
            log.warning("remote workers are not used: the dataset cannot be pickled (%s)", why)
            return None
        facts = {
            "size": arena.size,
            "workers": arena.workers,
            "addresses": [asdict(address) for address in self.addresses],
            "differs": self.differs,
            "tls": self.tls,
            "gateway": None if self.gateway is None else asdict(self.gateway),
            "most": None if self.share == "auto" else self.most,  # then the agent says how many
            "actors": {"cpus": self.cpus, "options": dict(self.options)},
        }
        try:
            ferry = self.open_ferry(json.dumps(facts).encode(), [arena.fd])
            if permit is not None:
                ferry.sendall(framed(Net.PERMIT, NUMBER.pack(-1), permit.text().encode()))
            if (tail := tail_for(spec.recipe)) is not None:
                ferry.sendall(framed(Net.TAIL, NUMBER.pack(-1), tail_text(tail)))
            ferry.sendall(framed(Net.PLAN, NUMBER.pack(-1), plan.encode()))
            ferry.sendall(framed(Net.SPEC, NUMBER.pack(-1), settings))
        except (OSError, PenstockError) as exc:
            log.warning("remote workers are not used: %s", str(exc))
            return None
        return ferry


class Reach:
    """A loader's way to the node process, from its first epoch to its end: remote workers stay between epochs."""

    def __init__(self) -> None:
        self._link: NodeLink | None = None

    def open_ferry(self, facts: bytes, fds: Sequence[int]) -> socket.socket:
        try:
            return self._attached().open("ferry", facts, fds)
        except NodeUnavailable:  # it has died since the last epoch
            self.close()
            return self._attached().open("ferry", facts, fds)

    def _attached(self) -> NodeLink:
        if self._link is None or not self._link.alive():
            self._link = NodeLink.attach()
            weakref.finalize(self, self._link.close)
        return self._link

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def __reduce__(self) -> tuple[type[Reach], tuple[()]]:
        """A loader's copy in another process reaches that process's own node."""
        return Reach, ()


def side_of(config: LoaderConfig, held: RemoteSide | None) -> RemoteSide | None:
    """Return how a loader reaches its remote workers: as before, if it has had some. None if it uses none."""
    remote = config.remote
    if held is not None or remote is None:
        return held
    if config.reuse is not None and config.reuse.times > 1:
        log.warning("remote workers are not used: samples kept for reuse= are on this machine")
        return None
    reach = Reach()
    return RemoteSide(
        open_ferry=reach.open_ferry,
        plan=remote.plan,
        share=remote.share,
        gateway=GatewayConfig(
            address=remote.address, allow_unauthenticated=remote.allow_unauthenticated, tls=remote.tls
        ),
        tls=remote.tls,
        differs=remote.on_difference,
        most=remote.max_workers,
        cpus=remote.cpus,
        options=remote.options or {},
        queue_bytes=remote.queue_bytes,
    )


def pickled(spec: WorkerSpec) -> bytes:
    """Return the settings as bytes that another machine can load: functions and classes of the program itself by value."""
    return dumps_by_value(replace(spec, places=None))
