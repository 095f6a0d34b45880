"""Start the agent by fork: it inherits the dataset as it is now, and forks workers and replacements from that."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import penstock.forks  # noqa: F401  (its hooks come before our first fork)
from penstock.agent.config import AgentConfig
from penstock.agent.exposure import our_own_fork
from penstock.agent.loop import Agent
from penstock.agent.processes import LocalWorker
from penstock.agent.ways import NO_WAYS, Ways
from penstock.measure.host import name_process
from penstock.wire.arena import Arena, anonymous_file
from penstock.wire.frames import Channel
from penstock.worker.entry import work
from penstock.worker.loop import WorkerSpec

ASKS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
"""Signals by which a training process is asked for something."""
HELD = (signal.SIGINT, *ASKS)  # guard: signals-held
RESET = (signal.SIGCHLD, *ASKS)
"""Signals whose handlers in the training process mean nothing in its agent."""


def fork_agent(
    config: AgentConfig, spec: WorkerSpec, arena: Arena, context: Any, ways: Ways = NO_WAYS
) -> tuple[int, socket.socket]:
    """Fork an agent, which takes over the `ways` out of this machine's job; return its pid and our end of its socket."""
    ours, theirs = socket.socketpair()
    pid = -1
    try:
        with our_own_fork(), signals_held(), warnings.catch_warnings():
            # Forking beside torch's threads is torch's own rule; the children touch nothing those threads own.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
            if pid == 0:
                ours.close()
                be_agent(config, spec, arena, context, theirs, ways)
        theirs.close()
        return pid, ours  # within: an interrupt may come up to here
    except BaseException:
        ours.close()
        theirs.close()
        if pid > 0:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold back the user's signal handlers during a fork. Raising inside the interpreter's fork hooks would be swallowed and leave
    locks (`logging`'s) taken; and in the child the handlers would run a second time."""
    if threading.current_thread() is not threading.main_thread():  # handlers run only there
        yield
        return
    before = [(number, handler) for number in HELD if callable(handler := signal.getsignal(number))]
    seen: list[int] = []
    held = True

    def stand_in(handler: Callable[..., Any]) -> Callable[..., Any]:
        return lambda number, frame: seen.append(number) if held else handler(number, frame)

    try:
        for number, handler in before:
            signal.signal(number, stand_in(handler))  # guard: signals-in-fork
        yield
    finally:
        held = False  # handlers may raise from here on: one not restored yet still gets called
        with ExitStack() as last_first:
            for late in seen:
                last_first.callback(signal.raise_signal, late)
            for number, handler in before:
                last_first.callback(signal.signal, number, handler)


def be_agent(
    config: AgentConfig,
    spec: WorkerSpec,
    arena: Arena,
    context: Any,
    trainer: socket.socket,
    ways: Ways,
) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # guard: agent-ignores-interrupt
        for number in RESET:
            signal.signal(number, signal.SIG_DFL)
        name_process("penstock agent")
        gc.freeze()
        run_agent(config, spec, arena, context, Channel(trainer), ways)
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it was, a forked child must not return from here
        traceback.print_exc()
    finally:
        os._exit(code)


def run_agent(
    config: AgentConfig,
    spec: WorkerSpec,
    arena: Arena,
    context: Any,
    trainer: Channel,
    ways: Ways,
) -> None:
    agent = Agent(
        config,
        trainer,
        arena,
        lambda worker: fork_worker(agent, spec, worker, context),
        ways.ferry_link(),
        ways.fetching(),
        ways.cores(),
    )
    agent.run()


def fork_worker(agent: Agent, spec: WorkerSpec, worker: int, context: Any) -> LocalWorker:
    """Fork worker n from the agent, which holds the dataset as of its own fork. OSError: the system has no process or descriptor left."""
    with ExitStack() as for_us, ExitStack() as for_it:
        ours, theirs = socket.socketpair()
        for_us.enter_context(ours)
        for_it.enter_context(theirs)
        lifeline, held = os.pipe()
        for_us.callback(os.close, held)
        for_it.callback(os.close, lifeline)
        crash = anonymous_file()
        for_us.callback(os.close, crash)

        def enter() -> None:
            ours.close()
            os.close(held)
            close_inherited(agent)
            work(replace(spec, workers=agent.state.local.size), worker, theirs, agent.arena, lifeline, crash)

        process = context.Process(target=enter, name=f"penstock worker {worker}", daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        for_us.pop_all()
    return LocalWorker(worker, process.pid, Channel(ours), held, crash, process)


def close_inherited(agent: Agent) -> None:
    """Close what only the agent may hold: with a copy in a worker, the agent's end would go unnoticed."""
    agent.selector.close()
    agent.trainer.close()
    if agent.ferry is not None:
        agent.ferry.close()
    if agent.fetching is not None:
        agent.fetching.close()
    agent.staffing.close()
    for worker in agent.workers.values():
        worker.disinherit()
