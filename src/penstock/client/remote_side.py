"""A loader's side of remote workers: find the machine's ferry, hand it the arena, and send the settings that workers elsewhere need."""

from __future__ import annotations

import json
import logging
import socket
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from penstock.config import Remote
from penstock.core.pools import PoolConfig
from penstock.errors import NodeUnavailable, PenstockError
from penstock.node.link import NodeLink
from penstock.remote.connect import WorkerAddress
from penstock.remote.frames import NUMBER, Net, framed
from penstock.remote.gateway_config import GatewayConfig
from penstock.wire.arena import Arena
from penstock.wire.pickles import dumps_by_value
from penstock.worker.loop import WorkerSpec

log = logging.getLogger("penstock")

OpenFerry = Callable[[bytes, Sequence[int]], socket.socket]
"""Passes facts and descriptors on to the ferry; returns a socket to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSide:
    """How a loader reaches workers on other machines."""

    open_ferry: OpenFerry
    plan: str = "auto"
    """What is done there (`config.Remote.plan`)."""
    share: float | str = "auto"
    """How much (`config.Remote.share`)."""
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
    queue_bytes: int = 64 << 20
    """Bytes of results in flight."""

    def pool(self) -> PoolConfig:
        """Return the pool that the core plans with; workers that never come cost nothing."""
        return PoolConfig(self.most or len(self.addresses), queue_bytes=self.queue_bytes)

    def open(self, arena: Arena, spec: WorkerSpec) -> socket.socket | None:
        """Return the socket on which the agent will talk to the ferry. None, with one warning, if samples cannot be prepared elsewhere."""
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
            "most": self.most,
            "actors": {"cpus": self.cpus, "options": dict(self.options)},
        }
        try:
            ferry = self.open_ferry(json.dumps(facts).encode(), [arena.fd])
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


def side_of(remote: Remote | None, held: RemoteSide | None) -> RemoteSide | None:
    """Return how a loader reaches its remote workers: as before, if it has had some."""
    if held is not None or remote is None:
        return held
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
