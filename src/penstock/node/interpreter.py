"""Start a bare interpreter: our own code, without torch and without what a training process has open.

Rule: no fork comes in between. Its child would have a copy of the pipe by which the start is awaited: an agent that is forked by another thread
just then would have this thread wait for the agent's end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from multiprocessing import spawn
from pathlib import Path
from typing import Any

from penstock.forks import no_forks


def start(
    run: str, facts: dict[str, Any], *, fds: tuple[int, ...] = (), output: int
) -> subprocess.Popen[bytes]:
    """Run `module:function` with `facts` as JSON in its one argument. It finds modules where this process does."""
    module, _, function = run.partition(":")
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    with no_forks():
        return subprocess.Popen(
            # -P: a file of the working directory must not stand for a module of the standard library
            [
                os.fsdecode(spawn.get_executable()),
                "-P",
                "-c",
                f"from {module} import {function}; {function}()",
                json.dumps(facts),
            ],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
            env={**os.environ, "PYTHONPATH": path},
        )
