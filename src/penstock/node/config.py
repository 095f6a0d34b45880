"""What a node process may be asked for, and how long it waits for what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from penstock.errors import ConfigError
from penstock.node.messages import MAX_NAME

SERVICES: Mapping[str, str] = MappingProxyType(
    {
        "ferry": "penstock.remote.ferry:main",
        "fetch": "penstock.sources.fetch:main",
        "cache": "penstock.cache.service:main",
        "lending": "penstock.lending.manager:main",
    }
)
"""Services by name, as "module:function". The function gets an `Openings` (see `service`) in a process of its own."""
LOST = 75
"""Exit code of a process that should have become the node, and found another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Given by whoever starts the node; later members take it as it is."""

    services: Mapping[str, str] = field(default_factory=lambda: dict(SERVICES))
    linger_s: float = 2.0
    """Time from the last member's end to the node's."""
    first_s: float = 10.0
    """Time in which the first member must come."""
    open_s: float = 10.0
    """Time in which a service must take a stream, its start included."""

    def __post_init__(self) -> None:
        if min(self.linger_s, self.first_s, self.open_s) < 0:
            raise ConfigError(f"a node's times must be >= 0, got {self}")
        for name, run in self.services.items():
            if not 0 < len(name.encode()) <= MAX_NAME or ":" not in run:
                raise ConfigError(f"a service is a short name and 'module:function', got {name!r}: {run!r}")

    def as_json(self) -> dict[str, Any]:
        return {
            "services": dict(self.services),
            "linger_s": self.linger_s,
            "first_s": self.first_s,
            "open_s": self.open_s,
        }
