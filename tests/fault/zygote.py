"""A process that has torch imported and starts programs by forking, so that a fault test can afford a hundred of them.

A program is a function `module:name` with JSON arguments. It runs in a session of its own, with the standard handlers of a
fresh interpreter, and ends as a program does: by an uncaught exception, by `sys.exit` or by reaching its end, then through
the interpreter's own shutdown. Requests arrive on the socket whose descriptor is the first argument; the further arguments
are modules to import beforehand. Run as a script; nothing here is imported by tests (see `programs.py`).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
from typing import Any

PR_SET_PDEATHSIG = 1


def serve(sock: socket.socket) -> dict[str, Any] | None:
    """Answer requests until the client is gone (None), or until this is the child that shall run a program."""
    while True:
        data, fds, _, _ = socket.recv_fds(sock, 1 << 16, 2)
        if not data:
            return None
        request: dict[str, Any] = json.loads(data)
        if "wait" in request:
            sock.send(json.dumps(wait(request["wait"], request["timeout_s"])).encode())
            continue
        pid = os.fork()
        if pid == 0:
            sock.close()
            become_program(request, *fds)
            return request
        for fd in fds:
            os.close(fd)
        sock.send(json.dumps(pid).encode())


def wait(pid: int, timeout_s: float) -> int | None:
    """Exit code of a program, or None when it has not ended in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.002)


def become_program(request: dict[str, Any], out: int, err: int) -> None:
    ctypes.CDLL(None).prctl(
        PR_SET_PDEATHSIG, signal.SIGKILL
    )  # should the tests be killed, programs must not live on
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(request["env"])
    sys.path[:0] = request["path"]
    os.setsid()  # last: a test sends signals to this group as soon as it is there, and the zygote ignores SIGINT


if __name__ == "__main__":
    channel = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        channel.send(b"ready")
        program = serve(channel)
    if program is not None:
        module, _, function = program["run"].partition(":")
        getattr(importlib.import_module(module), function)(**program["args"])
