"""This process's rank in a job, and the exchange of facts between ranks.

Rule 1: torch is imported only to exchange facts, never to find the rank.
Rule 2: ranks use torchrun's own store, which outlives them. Other launchers have none: there each rank is on its own.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

GATHER_S = 600.0
"""How long to wait for a slow rank. If a rank fails, torchrun ends the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """This process's place in its job."""

    number: int = 0
    world: int = 1
    store: tuple[str, int] | None = None
    """Host and port of torchrun's store."""
    attempt: int = 0
    """How often torchrun has restarted the job."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Rank:
        """Read the variables of torchrun and other launchers; rank 0 of 1 without them."""
        try:
            number, world = int(environ["RANK"]), int(environ["WORLD_SIZE"])
            attempt = int(environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
            store = None
            if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
                store = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
        except (KeyError, ValueError):
            return cls()
        return cls(number=number, world=world, store=store, attempt=attempt)

    @property
    def prefix(self) -> str:
        """Prefix of this rank's lines; empty if it is alone."""
        return f"rank {self.number}: " if self.world > 1 else ""

    def gather(self, mine: Mapping[str, Any]) -> list[Any]:
        """Return on rank 0 each rank's facts, None for a rank that did not answer in time; on other ranks nothing."""
        if self.world == 1 or self.store is None:
            return [mine] if self.number == 0 else []
        from torch.distributed import DistError

        store = self._connect()
        if self.number:
            store.set(self._key(f"result/{self.number}"), json.dumps(mine))
            return []
        given: list[Any] = [mine]
        for number in range(1, self.world):
            try:
                given.append(json.loads(store.get(self._key(f"result/{number}"))))
            except DistError:
                given.append(None)
        return given

    def meet_anew(self, run: int) -> dict[str, str]:
        """Return the environment for the ranks of the job's run `run`, counted from 0.

        In torchrun's store, the second run's process group would find the first run's addresses and connect to dead processes. So rank 0
        picks a port, and its process group opens its own store there.
        """
        if self.world == 1 or self.store is None or run == 0:
            return {}
        store, key = self._connect(), self._key(f"port/{run}")
        if self.number == 0:
            with socket.socket() as free:
                free.bind(("", 0))
                store.set(key, str(free.getsockname()[1]))
        return {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": store.get(key).decode()}

    def _connect(self) -> Any:
        from torch import distributed

        assert self.store is not None
        host, port = self.store
        return distributed.TCPStore(  # type: ignore[attr-defined]
            host, port, is_master=False, timeout=timedelta(seconds=GATHER_S)
        )

    def _key(self, name: str) -> str:
        return f"penstock/{self.attempt}/{name}"


def this_rank() -> Rank:
    return Rank.of(os.environ)


def say(rank: Rank, *lines: str) -> None:
    """Print lines in one write: ranks share a terminal, and unbuffered `print` writes its newline separately."""
    sys.stderr.write("".join(f"penstock: {rank.prefix}{line}\n" for line in lines))
    sys.stderr.flush()


def together(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Merge the ranks' facts: sum rates and counts, average waiting, take the longest times."""
    return {
        **{name: sum(facts[name] for facts in ranks) for name in ("batches", "samples", "samples_per_s")},
        **{name: max(facts[name] for facts in ranks) for name in ("elapsed_s", "first_batch_s")},
        "wait_share": sum(facts["wait_share"] for facts in ranks) / len(ranks),
    }
