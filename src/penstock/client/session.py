"""The training process's side of one agent: start it, talk to it, notice its end, clean up."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from penstock.agent.config import AgentConfig
from penstock.agent.forked import fork_agent, signals_held
from penstock.agent.spawned import SpawnedWorkers, exec_agent
from penstock.agent.ways import Ways
from penstock.client.cache_side import CacheSide
from penstock.client.leases import Leases
from penstock.client.lending_side import LendingSide
from penstock.client.outcome import given_up_text
from penstock.client.pinning import Pins
from penstock.client.remote_side import RemoteSide
from penstock.measure.counters import BY_WORKER, Counters, Live
from penstock.measure.endings import exit_text, open_pidfd, wait_readable
from penstock.measure.host import say_once
from penstock.measure.steady import Steady
from penstock.wire import frames as wire
from penstock.wire.arena import Arena, Board, board_bytes, board_rows
from penstock.wire.frames import Channel, Msg
from penstock.worker.loop import WorkerSpec

log = logging.getLogger("penstock")

CLOSE_S = 2.0
"""The agent gives its workers one second; one second later it is killed, and they with it."""
CHECK_S = 0.1
SILENT_S = 10.0
"""An agent without a tick for this long, while we wait, is stopped or stuck: it never runs user code."""


class AgentGone(Exception):
    """The agent has ended; everything it delivered has been read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """How to start an agent and its workers, any number of times."""

    agent: AgentConfig
    spec: WorkerSpec
    context: Any
    limit_bytes: int
    remote: RemoteSide | None = None
    """Workers on other machines, if there are any."""
    cache: CacheSide | None = None
    """The cache of bytes, if there is one."""
    lends: Callable[[], LendingSide | None] = lambda: None
    """How a session joins those that share the machine's cores."""

    def resized(self, workers: int, *, follows: bool) -> Blueprint:
        """Return the same blueprint with another initial worker count."""
        core = replace(self.agent.core, workers=workers, base=board_bytes(board_rows(workers)))
        agent = replace(self.agent, core=core, follows=follows)
        return replace(self, agent=agent, spec=replace(self.spec, workers=workers))


class Session:
    """The life of one agent. A new agent gets a new session with its own arena."""

    def __init__(self, blueprint: Blueprint, owned_by: Callable[[Session], None]) -> None:
        """Start the agent. `owned_by` is called before this returns, so that every agent has an owner to end it."""
        self._owner = os.getpid()
        self._closed = self._reaped = self._released = False
        self._pins: Pins | None = None
        self._limit = blueprint.limit_bytes
        self.spawned: SpawnedWorkers | None = None
        self.lending: LendingSide | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = self._pidfd = -1
        self._poll = select.poll()
        self._beat, self._silent_s = 0, 0.0
        try:
            workers = blueprint.agent.core.workers
            self.arena = Arena.create(blueprint.limit_bytes, board_rows(workers), at_first=workers)
            self.arena.board.agent[Board.LANES] = workers
            self.leases = Leases(self.arena, blueprint.limit_bytes)
            self._start(blueprint)
            owned_by(self)
        except BaseException:
            self.close()
            raise

    def _start(self, blueprint: Blueprint) -> None:
        with contextlib.ExitStack() as ours:
            remote = blueprint.remote
            ferry = None if remote is None else remote.open(self.arena, blueprint.spec)
            if remote is not None and ferry is not None:
                ours.enter_context(ferry)  # the agent has its own copy: the ferry must see its end
                agent = replace(blueprint.agent, course=remote.record.course)
                blueprint = replace(blueprint, agent=agent)
            supply = None if blueprint.cache is None else blueprint.cache.supply_now()
            if supply is not None:
                ours.enter_context(supply)
            self.lending = blueprint.lends()
            cores = None if self.lending is None else ours.enter_context(self.lending.supply())
            self._start_agent(blueprint, Ways(ferry, supply, cores))
            if self.lending is not None:
                self.lending.begin()

    def _start_agent(self, blueprint: Blueprint, ways: Ways) -> None:
        if blueprint.context.get_start_method() == "fork":
            blueprint.spec.recipe.load_libraries()
            self.pid, sock = fork_agent(blueprint.agent, blueprint.spec, self.arena, blueprint.context, ways)
        else:
            self._process, sock, adoptions = exec_agent(blueprint.agent, self.arena, ways)
            self.pid = self._process.pid
            self.spawned = SpawnedWorkers(blueprint.spec, self.arena, blueprint.context, adoptions)
        self.channel = Channel(sock)
        with signals_held():  # a signal in between would leak the open descriptor
            self._pidfd = open_pidfd(self.pid)
        if self._pidfd < 0:
            say_once(
                "pidfd_open is denied: the end of a process is noticed by its socket, and waited for by asking"
            )
        self._poll.register(sock, select.POLLIN)
        if self._pidfd >= 0:
            self._poll.register(self._pidfd, select.POLLIN)
        if self.spawned is not None:
            for worker in range(blueprint.agent.core.workers):
                self.spawned.start(worker, blueprint.agent.core.workers)

    def want(self, workers: int) -> None:
        """Tell the agent the wanted worker count; it looks at every tick. Callable from any thread."""
        if not self._closed:
            self.arena.board.agent[Board.WANTED] = workers

    def leave_cores(self, needed: bool) -> None:
        """Tell the agent whether workers must leave cores to a GPU lane; it looks at every tick. Callable from any thread."""
        if not self._closed:
            self.arena.board.agent[Board.LANE] = needed

    def show(self, steady: Steady) -> None:
        """Show the agent how training goes; it looks at every tick."""
        if not self._closed:
            row = self.arena.board.agent
            row[Board.TAKEN], row[Board.BATCHES] = steady.samples, steady.batches
            row[Board.ELAPSED_NS] = int(steady.elapsed_s * 1e9)
            row[Board.WAITED_NS] = int(steady.waited_s * 1e9)

    def takes_next(self, seq: int, epoch: int, batch: int, at_lane: float = 0.0) -> None:
        """Show the agent which batch training takes next, and what a GPU lane has still to make of those that workers are through with."""
        if not self._closed:
            row = self.arena.board.agent
            row[Board.NEXT], row[Board.EPOCH], row[Board.BATCH] = seq, epoch, batch
            row[Board.AT_LANE] = int(1000 * at_lane)

    def send(self, kind: Msg, *chunks: bytes) -> None:
        with contextlib.suppress(OSError):  # the agent has ended, as `receive` will notice, or we close
            self.channel.send(kind, *chunks)

    def pin(self) -> list[int]:
        """Pin the arena for our own copies to a CUDA device; return the seams between its pinned ranges."""
        if self._pins is None:
            self._pins = Pins(self.arena)
        backed: int = self.arena.board.agent[Board.BACKED]
        self._pins.extend(self.arena.base + backed)
        return self._pins.seams

    def give_back(self) -> None:
        """Tell the agent which batches' memory is free."""
        self.leases.collect()
        self.leases.sweep()
        while self.leases.freed:
            self.send(Msg.RELEASE, wire.SEQ.pack(self.leases.freed.popleft()))

    def receive(self, deadline_s: float | None) -> list[tuple[int, bytes]]:
        """Return the agent's frames, or [] after the deadline or a short wait. Raise AgentGone if it has ended."""
        self.give_back()
        left = CHECK_S if deadline_s is None else min(CHECK_S, max(0.0, deadline_s - time.monotonic()))
        ready = {fd for fd, _ in self._poll.poll(left * 1000)}
        if self.channel.fileno() in ready:
            frames = self.channel.receive()
            if frames is None:
                raise AgentGone
            return self._without_worker_business(frames)
        if ready or self._is_silent(left):  # guard: silent-agent
            raise AgentGone
        return []

    def _is_silent(self, waited_s: float) -> bool:
        """Kill the agent if it has not ticked for long; return whether it was killed. Counts only time that this process was awake."""
        beat: int = self.arena.board.agent[Board.AGENT_BEAT]
        self._silent_s = self._silent_s + waited_s if beat == self._beat else 0.0
        self._beat = beat
        if self._silent_s < SILENT_S:
            return False
        log.warning("the agent (pid %s) has been silent for %.0f s: it is killed", self.pid, self._silent_s)
        os.kill(self.pid, signal.SIGKILL)
        return True

    def arrived(self) -> list[tuple[int, bytes]]:
        """Return frames that have arrived already; leave the agent's end to `receive`."""
        return self._without_worker_business(self.channel.receive(wait=False) or [])

    def _without_worker_business(self, frames: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Handle starts and ends of workers if this process is their parent; return the other frames."""
        rest: list[tuple[int, bytes]] = []
        for kind, payload in frames:
            if kind == Msg.NEED_WORKER and self.spawned is not None:
                self.spawned.start(*wire.WORKER.unpack(payload))
            elif kind == Msg.NEED_SPARE and self.spawned is not None:
                self._start_spare(*wire.WORKER.unpack(payload))  # guard: spare-not-spawned
            elif kind == Msg.GIVEN_UP:
                worker, _ = wire.WORKER.unpack_from(payload)
                rest.append((Msg.WARN, given_up_text(worker, payload[wire.WORKER.size :]).encode()))
            elif kind == Msg.LOST and self.spawned is not None:
                worker, _ = wire.WORKER.unpack(payload)
                code = self.spawned.exit_code(worker)
                self.send(Msg.EXITED, wire.WORKER.pack(worker, -signal.SIGKILL if code is None else code))
            else:
                rest.append((kind, payload))
        return rest

    def _start_spare(self, worker: int, workers: int) -> None:
        """Start a worker for a borrowed core. Training goes on without it if that fails: no process is left, or the dataset cannot be pickled now."""
        assert self.spawned is not None
        try:
            self.spawned.start(worker, workers)
        except Exception as exc:  # noqa: BLE001 - the user's pickling may raise anything
            why = f"{type(exc).__name__}: {exc}".encode()
            self.send(Msg.NOT_STARTED, wire.WORKER.pack(worker, 0), why)

    def live(self) -> Live:
        """Read the running engine's numbers off the board."""
        board = self.arena.board
        agent, local = board.agent, [pool == 0 for pool in board.column(Board.POOL)]

        def column(which: int) -> tuple[int, ...]:
            """Counters of workers here: others are counted elsewhere, and take no core of this machine."""
            return tuple(value for value, here in zip(board.column(which), local, strict=False) if here)

        by_worker = {name: column(getattr(Board, name.upper())) for name in BY_WORKER}
        return Live(
            **by_worker,
            agent_pid=0 if self._closed else self.pid,
            worker_pids=() if self._closed else tuple(pid for pid in board.column(Board.PID) if pid),
            prepared=sum(column(Board.SAMPLES)) + agent[Board.OFFLOADED],
            tasks=sum(column(Board.TASKS)),
            source_retries=sum(column(Board.RETRIES)),
            task_size=agent[Board.TASK_SIZE],
            reissued=agent[Board.REISSUED],
            arena_bytes=0 if self._closed else agent[Board.BACKED],
            arena_limit_bytes=self._limit,
            held_bytes=self.leases.held_bytes,
            private_copies=self.leases.private_copies,
            sample_bytes=agent[Board.SAMPLE_BYTES],
            own_workers=agent[Board.OWN],
            extra_ns=agent[Board.EXTRA_NS],
        )

    def node(self, *, starts: bool = True) -> dict[str, Any]:
        """Ask how the ranks of this machine share its cores; empty if they do not. `starts`: also if that takes a new connection."""
        return {} if self.lending is None else self.lending.stats(starts=starts)

    def end_of_agent(self) -> str:
        """Say how the agent ended."""
        return exit_text(self._reap(time.monotonic() + 1.0))

    def _reap(self, deadline_s: float) -> int | None:
        """Wait for the agent's end until the deadline; return its exit code if known."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(max(0.0, deadline_s - time.monotonic()))
                self._reaped = True
                return code
            return None
        while not self._reaped:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self._reaped = True  # by another wait in this process
                return None
            if pid:
                self._reaped = True
                return os.waitstatus_to_exitcode(status)
            left = deadline_s - time.monotonic()
            if left <= 0:
                return None
            if self._pidfd >= 0:
                wait_readable(self._pidfd, left)
            else:
                time.sleep(0.005)
        return None

    def end(self, counters: Counters) -> None:
        """Have the session's numbers kept, among them what is said of its machine's ranks, and close it."""
        try:
            counters.detach(self.live, partial(self.node, starts=False))
        finally:
            self.close()

    def close(self) -> None:
        """End the agent and its workers. Batches that the user holds stay valid. After an interrupt, another call completes it."""
        if self._released:
            return
        self._closed = True
        channel: Channel | None = getattr(self, "channel", None)
        if os.getpid() != self._owner:  # guard: child-ends-nothing
            # This is a forked child of the training process: the agent is not ours to end.
            if channel is not None:
                channel.close()
            return
        try:
            if channel is not None and not self._reaped:
                self.send(Msg.STOP)
                self._reap(time.monotonic() + CLOSE_S)
        finally:
            # Even if a second Ctrl-C cuts the wait short.
            self._let_go(channel)

    def _let_go(self, channel: Channel | None) -> None:
        if self.pid > 0 and not self._reaped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._reap(time.monotonic() + CLOSE_S)
        if self.spawned is not None:
            self.spawned.close()
        if self.lending is not None:
            self.lending.close()
        if channel is not None:
            channel.close()
        if self._pins is not None:
            self._pins.close()
        if hasattr(self, "arena"):
            self.arena.close()
        if self._pidfd >= 0:
            pidfd, self._pidfd = self._pidfd, -1
            os.close(pidfd)
        self._released = True
