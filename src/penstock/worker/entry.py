"""Start of a worker process: bound to its agent's life, named in `ps`, with crash reports."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import os
import signal
import socket

from penstock.measure.host import DUMP_SIGNAL, name_process
from penstock.wire.arena import Arena
from penstock.wire.frames import Channel
from penstock.worker.loop import Worker, WorkerSpec

F_SETSIG = 10
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 32 << 20
"""A worker's allocator keeps up to twice this of freed memory: the next sample is as large as the last."""


def bind_to(lifeline: int) -> None:
    """Have the kernel kill this process as soon as the other end of the pipe `lifeline` closes.

    Unlike PR_SET_PDEATHSIG this follows the agent, not the thread that started us, and needs no thread that a stuck interpreter could
    block.
    """
    try:
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, F_SETSIG, signal.SIGKILL)  # guard: worker-lifeline
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
        if os.read(lifeline, 1) == b"":
            os._exit(1)
    except BlockingIOError:
        pass


def keep_memory() -> None:
    """Make the C library return less memory to the kernel, which would clear each page before its next use."""
    with contextlib.suppress(OSError, AttributeError):  # a C library without mallopt
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, 2 * KEPT_BYTES)


def work(spec: WorkerSpec, worker: int, sock: socket.socket, arena: Arena, lifeline: int, crash: int) -> None:
    """Run a worker process."""
    os.set_blocking(lifeline, False)
    bind_to(lifeline)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(crash)
    faulthandler.register(DUMP_SIGNAL, crash, all_threads=True, chain=False)
    name_process(f"penstock w{worker}")
    gc.freeze()
    keep_memory()
    channel = Channel(sock)
    runner = Worker(spec, worker, channel, arena)
    try:
        runner.start()
        runner.run()
    except (BrokenPipeError, ConnectionResetError):
        pass
