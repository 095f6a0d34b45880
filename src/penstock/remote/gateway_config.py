"""What the gateway is told when it starts, and how it is started."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from multiprocessing import spawn
from pathlib import Path

from penstock.errors import ConfigError

GATEWAY = "from penstock.remote.gateway import main; main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Which cluster, and the gateway's patience."""

    address: str = "auto"
    """"auto" (RAY_ADDRESS, or a cluster that runs on this machine), "local" (started here), or host:port."""
    allow_unauthenticated: bool = False
    """Use a cluster that answers without a token."""
    tls: bool = False
    """Workers speak TLS only."""
    command: tuple[str, ...] = ("-m", "penstock.remote.server")
    """Arguments of the node's Python for a child."""
    connect_s: float = 60.0
    """Time to import Ray and join: long, since local workers may keep every core busy meanwhile. Nothing waits for it."""
    child_start_s: float = 60.0
    """Time for a child to say its port."""
    patience_s: float = 10.0
    """Time an actor may be queued at Ray before the client is told."""
    max_failures: int = 5
    """Failures in a row after which a worker is given up."""
    pause_s: float = 0.5
    """Pause before the first new try; it doubles."""
    headless_s: float = 45.0
    """Time without Ray's head after which the gateway ends."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "command", tuple(self.command))  # a list, after JSON
        if self.address not in ("auto", "local") and not self.address.rpartition(":")[2].isdigit():
            raise ConfigError(f"address must be 'auto', 'local' or host:port, got {self.address!r}")
        if self.max_failures < 1:
            raise ConfigError(f"max_failures must be >= 1, got {self.max_failures}")
        for name in ("connect_s", "child_start_s", "patience_s", "pause_s", "headless_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be > 0, got {getattr(self, name)}")


def gateway_command(config: GatewayConfig, fd: int) -> list[str]:
    """Return the command line of a gateway that speaks over this descriptor."""
    facts = json.dumps({"config": asdict(config), "fd": fd})
    # -P: a file of the working directory must not stand for a module
    return [os.fsdecode(spawn.get_executable()), "-P", "-c", GATEWAY, facts]


def exec_gateway(config: GatewayConfig, *, output: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a gateway as its own program; return it and our end of its socket. `output` gets what Ray writes."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            gateway_command(config, theirs.fileno()),
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": import_path()},
            process_group=0,  # Ctrl-C is for the training process; a session of its own would be starved beside busy workers
        )
    return process, ours


def import_path() -> str:
    """Return where this process finds modules, for PYTHONPATH."""
    return os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
