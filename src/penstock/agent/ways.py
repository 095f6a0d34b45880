"""An agent's sockets to what the ranks of a machine share: remote workers, the cache of bytes, and the manager of cores."""

from __future__ import annotations

import socket
from typing import Final, NamedTuple

from penstock.agent.fetching import Fetching
from penstock.agent.lending import Lending
from penstock.remote.handles import FerryLink
from penstock.wire.frames import Channel


class Ways(NamedTuple):
    ferry: socket.socket | None = None
    """To remote workers."""
    supply: socket.socket | None = None
    """Where streams to the cache come from."""
    lending: socket.socket | None = None
    """Where streams to the manager of cores come from."""

    def ferry_link(self) -> FerryLink | None:
        return None if self.ferry is None else FerryLink(Channel(self.ferry))

    def fetching(self) -> Fetching | None:
        return None if self.supply is None else Fetching(self.supply)

    def cores(self) -> Lending | None:
        return None if self.lending is None else Lending(self.lending)


NO_WAYS: Final = Ways()
