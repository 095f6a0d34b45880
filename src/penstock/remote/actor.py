"""The Ray actor of one remote worker: stands for it at Ray, and passes on what its holder says.

Rule 1: samples are prepared in a child process, which has none of Ray's threads. `penstock.remote.holder` starts and holds it.
Rule 2: Ray pickles this class by value, so that a node without penstock can say so. Hence only the standard library here.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from typing import Any

VERSION_S = 20.0
ASK_VERSION = "import penstock; print(penstock.__version__)"
LEAST_S = 10.0
"""Time that a holder may take beyond its child's."""


class ChildKeeper:
    """Keeps one child on its node. Ray runs its methods in threads: `wait` blocks while `stop` is called."""

    def __init__(self, command: list[str], child_start_s: float, head: str) -> None:
        self._facts: dict[str, Any] = {"command": command, "start_s": child_start_s, "head": head}
        self._holder: subprocess.Popen[bytes] | None = None
        self._partial = b""

    def describe(self) -> dict[str, Any]:
        """Say where this is, and which penstock children would find ("" if none)."""
        import ray

        try:
            asked = subprocess.run(
                [sys.executable, "-c", ASK_VERSION],
                capture_output=True,
                text=True,
                timeout=VERSION_S,
                check=False,
            )
            version, trouble = asked.stdout.strip(), (asked.stderr.strip().splitlines() or [""])[-1]
        except (OSError, subprocess.TimeoutExpired) as exc:
            version, trouble = "", str(exc)
        return {
            "host": ray.util.get_node_ip_address(),
            "node": socket.gethostname(),
            "penstock": version,
            "trouble": trouble,
        }

    def start(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Start a child; return {"host", "port", "fingerprint"} as it said them, or {"failed": why}."""
        self.stop()
        holder = subprocess.Popen(
            [sys.executable, "-m", "penstock.remote.holder"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._holder, self._partial = holder, b""
        assert holder.stdin is not None
        with contextlib.suppress(OSError):
            holder.stdin.write(json.dumps({**self._facts, "settings": settings}).encode() + b"\n")
            holder.stdin.flush()
        holder.wait()  # the one that goes on is its child
        found = self._heard(holder, self._facts["start_s"] + LEAST_S)
        return {"failed": "its holder ended, see its node's Ray logs"} if found is None else found

    def wait(self) -> dict[str, Any]:
        """Wait until the child ends; say why it did."""
        holder = self._holder
        found = None if holder is None else self._heard(holder, None)
        return {"why": "its holder was lost", "in_order": False} if found is None else found

    def stop(self) -> None:
        """End the child."""
        holder, self._holder = self._holder, None
        if holder is not None:
            assert holder.stdin is not None
            with contextlib.suppress(OSError):
                holder.stdin.write(b"stop\n")
                holder.stdin.close()

    def _heard(self, holder: subprocess.Popen[bytes], within_s: float | None) -> dict[str, Any] | None:
        """Return the holder's next line; None if it ends without one, or not in time."""
        assert holder.stdout is not None
        deadline = None if within_s is None else time.monotonic() + within_s
        while b"\n" not in self._partial:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([holder.stdout], [], [], left)
            data = os.read(holder.stdout.fileno(), 65536) if ready else b""
            if not data:
                return None
            self._partial += data
        line, _, self._partial = self._partial.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found
