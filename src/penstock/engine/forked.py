"""Starting the agent by fork: it inherits the dataset as it is now and forks workers, and replacements, from that."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

from penstock.engine.agent import Agent, AgentConfig
from penstock.engine.exposure import our_own_fork
from penstock.engine.procs import Hand
from penstock.lanes.entry import work
from penstock.lanes.wire import Channel
from penstock.lanes.worker import WorkerSpec
from penstock.measure.host import name_process
from penstock.store.arena import Arena, anonymous_file

RESET = (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
"""Handlers of the training process that mean nothing in its agent."""


def fork_agent(
    config: AgentConfig, spec: WorkerSpec, arena: Arena, context: Any
) -> tuple[int, socket.socket]:
    """Fork an agent; returns its pid and our end of its socket."""
    ours, theirs = socket.socketpair()
    pid = -1
    try:
        with our_own_fork(), interrupts_held(), warnings.catch_warnings():
            # Forking beside torch's threads is torch's own rule here; the children touch nothing those threads own.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
            if pid == 0:
                ours.close()
                be_agent(config, spec, arena, context, theirs)
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
def interrupts_held() -> Iterator[None]:
    """Hold back Ctrl-C for the moment of a fork: in the parent the interpreter's own hooks around it would swallow the
    interrupt, and in the child it would run the user's handlers a second time."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if seen:
            signal.raise_signal(signal.SIGINT)


def be_agent(
    config: AgentConfig, spec: WorkerSpec, arena: Arena, context: Any, trainer: socket.socket
) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in RESET:
            signal.signal(number, signal.SIG_DFL)
        name_process("penstock agent")
        gc.freeze()
        run_agent(config, spec, arena, context, Channel(trainer))
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it was, a forked child must not return from here
        traceback.print_exc()
    finally:
        os._exit(code)


def run_agent(config: AgentConfig, spec: WorkerSpec, arena: Arena, context: Any, trainer: Channel) -> None:
    agent = Agent(config, trainer, arena, lambda worker: fork_worker(agent, spec, worker, context))
    agent.run()


def fork_worker(agent: Agent, spec: WorkerSpec, worker: int, context: Any) -> Hand:
    """Fork worker n from the agent, which holds the dataset as it was when the agent was forked."""
    ours, theirs = socket.socketpair()
    lifeline, held = os.pipe()
    crash = anonymous_file()

    def enter() -> None:
        ours.close()
        os.close(held)
        close_inherited(agent)
        work(replace(spec, workers=agent.state.workers), worker, theirs, agent.arena, lifeline, crash)

    process = context.Process(target=enter, name=f"penstock worker {worker}", daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    theirs.close()
    os.close(lifeline)
    return Hand(worker, process.pid, Channel(ours), held, crash, process)


def close_inherited(agent: Agent) -> None:
    """What only the agent may hold: as long as a worker held it too, the agent's end would go unnoticed."""
    agent.selector.close()
    agent.trainer.close()
    for hand in agent.hands.values():
        if not hand.ended:
            hand.channel.close()
            os.close(hand.lifeline)
            os.close(hand.crash)
            if hand.pidfd >= 0:
                os.close(hand.pidfd)
