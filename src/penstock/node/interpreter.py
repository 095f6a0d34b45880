"""Start a bare interpreter: our own code, without torch and without what a training process has open.

No thread forks meanwhile: its child would inherit the pipe by which `Popen` learns that the program has begun, and `Popen` would wait until that child
ends. An agent is forked just when another thread may start the node process.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from multiprocessing import spawn
from pathlib import Path
from typing import Any


def start(
    run: str, facts: dict[str, Any], *, fds: tuple[int, ...] = (), output: int
) -> subprocess.Popen[bytes]:
    """Run `module:function` with `facts` as JSON in its one argument. It finds modules where this process does."""
    module, _, function = run.partition(":")
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    with forks_held():  # guard: no-fork-while-starting
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


@functools.cache
def forks_held() -> AbstractContextManager[Any]:
    """Return a lock that every `os.fork` of this process takes. `Popen` forks by other means, so it may hold it."""
    lock = threading.RLock()  # a signal handler may fork in the thread that holds it
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock
