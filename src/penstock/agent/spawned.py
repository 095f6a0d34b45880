"""Start agent and workers without fork (spawn, forkserver).

The agent is a bare interpreter that never sees the dataset. The training process starts the workers by torch's rules,
pickling the dataset afresh each time, and sends each one's socket and lifeline to the agent.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import warnings
from dataclasses import asdict, replace
from multiprocessing import spawn
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.agent.config import AgentConfig
from penstock.agent.loop import Agent
from penstock.agent.ways import NO_WAYS, Ways
from penstock.core.state import CoreConfig
from penstock.measure.host import name_process
from penstock.wire import frames as wire
from penstock.wire.arena import Arena, anonymous_file
from penstock.wire.frames import Channel, Msg

if TYPE_CHECKING:
    from penstock.worker.loop import WorkerSpec

UNPICKLABLE = (
    "Got pickle error when attempting to start a worker Process. This might be because the worker Process arguments are "
    "not picklable. Python 3.14+ changed the multiprocessing start method in non-Mac POSIX platforms to 'forkserver', "
    "which requires the worker Process arguments to be picklable. You can also try "
    "multiprocessing.set_start_method('fork')."
)
"""torch's own message."""
AGENT = "from penstock.agent.spawned import agent_main; agent_main()"


def exec_agent(
    config: AgentConfig, arena: Arena, ways: Ways = NO_WAYS
) -> tuple[subprocess.Popen[bytes], socket.socket, socket.socket]:
    """Start an agent as its own program; return it, our end of its socket, and the socket to send workers to."""
    ours, theirs = socket.socketpair()
    send, receive = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    there = {name: way.fileno() for name, way in ways._asdict().items() if way is not None}
    fds = theirs.fileno(), receive.fileno(), arena.fd
    facts = {
        "config": asdict(config),
        "fds": fds,
        "ways": there,
        "size": arena.size,
        "workers": arena.workers,
    }
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    process = subprocess.Popen(
        [os.fsdecode(spawn.get_executable()), "-c", AGENT, json.dumps(facts)],
        pass_fds=(*fds, *there.values()),
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
    )
    theirs.close()
    receive.close()
    return process, ours, send


def agent_main() -> None:
    """Run the agent; its one argument holds everything it needs."""
    import signal

    facts = json.loads(sys.argv[1])
    core = CoreConfig.of(facts["config"].pop("core"))
    config = AgentConfig(core=core, **{**facts["config"], "plans": tuple(facts["config"]["plans"])})
    trainer_fd, adoptions_fd, arena_fd = facts["fds"]
    ways = Ways(**{name: socket.socket(fileno=fd) for name, fd in facts["ways"].items()})
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    name_process("penstock agent")
    trainer = Channel(socket.socket(fileno=trainer_fd))
    arena = Arena(arena_fd, facts["size"], facts["workers"])

    def ask(worker: int) -> None:
        kind = Msg.NEED_SPARE if agent.state.workers[worker].is_spare else Msg.NEED_WORKER
        trainer.post(kind, wire.WORKER.pack(worker, agent.state.local.size))

    agent = Agent(config, trainer, arena, ask, ways.ferry_link(), ways.fetching(), ways.cores())
    agent.run(socket.socket(fileno=adoptions_fd))


class SpawnedWorkers:
    """Worker processes whose parent is the training process."""

    def __init__(self, spec: WorkerSpec, arena: Arena, context: Any, adoptions: socket.socket) -> None:
        self._spec, self._arena, self._context, self._adoptions = spec, arena, context, adoptions
        self._processes: dict[int, Any] = {}

    def start(self, worker: int, workers: int) -> None:
        """Start worker n of `workers`."""
        from multiprocessing.reduction import DupFd

        with contextlib.ExitStack() as opened:
            ours, theirs = socket.socketpair()
            opened.enter_context(ours)
            opened.enter_context(theirs)
            lifeline, held = os.pipe()
            opened.callback(os.close, lifeline)
            opened.callback(os.close, held)
            crash = anonymous_file()
            opened.callback(os.close, crash)
            arena = self._arena
            parcel = [_Later(DupFd, fd) for fd in (arena.fd, lifeline, crash)]
            process = self._context.Process(
                target=enter_spawned,
                args=(
                    replace(self._spec, workers=workers),
                    worker,
                    theirs,
                    arena.size,
                    arena.workers,
                    parcel,
                ),
                name=f"penstock worker {worker}",
                daemon=True,
            )
            self._launch(process)
            self._processes[worker] = process
            self._hand_over(wire.WORKER.pack(worker, process.pid), [ours.fileno(), held, crash])

    def _hand_over(self, which: bytes, fds: list[int]) -> None:
        """Send a worker to the agent. If that has just ended, the worker ends, too: nobody holds its lifeline."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # guard: agent-gone-at-a-start
            socket.send_fds(self._adoptions, [which], fds)

    @staticmethod
    def _launch(process: Any) -> None:
        from penstock.wire.pickles import PicklingError

        try:
            process.start()
        except (TypeError, AttributeError, PicklingError):
            warnings.warn(UNPICKLABLE, stacklevel=2)
            raise

    def exit_code(self, worker: int) -> int | None:
        """Return how worker n, known to have ended, ended."""
        process = self._processes.pop(worker, None)
        if process is None:
            return None
        process.join(2.0)
        code: int | None = process.exitcode
        process.close() if code is not None else process.kill()
        return code

    def close(self) -> None:
        """Reap all workers; they end with the agent."""
        self._adoptions.close()
        for process in self._processes.values():
            with contextlib.suppress(ValueError):  # closed already, if an interrupt cut an earlier call short
                process.join(1.0)
                if process.exitcode is None:
                    process.kill()
                    process.join(1.0)
                process.close()
        self._processes.clear()


class _Later:
    """A descriptor, duplicated for the child when it is pickled."""

    def __init__(self, duplicate: Any, fd: int) -> None:
        self._duplicate, self._fd = duplicate, fd

    def __reduce__(self) -> tuple[Any, tuple[Any]]:
        return _detached, (self._duplicate(self._fd),)


def _detached(handle: Any) -> int:
    fd: int = handle.detach()
    return fd


def enter_spawned(
    spec: WorkerSpec, worker: int, sock: socket.socket, size: int, workers: int, fds: list[int]
) -> None:
    """Run a spawned worker process."""
    from penstock.worker.entry import work

    arena_fd, lifeline, crash = fds
    work(spec, worker, sock, Arena(arena_fd, size, workers), lifeline, crash)
