"""Count a loader's deliveries and its consumer's waiting; read the workers' own counters off the board."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple

from penstock.measure.steady import Steady, Work

SPANS = 200_000
"""Tasks and waits kept for a trace; older ones are dropped."""
WARNINGS = 100
BY_WORKER = ("prepare_ns", "write_ns", "collate_ns", "cpu_ns", "delayed_ns", "samples")
SUMMED = ("prepared", "tasks", "source_retries", "reissued", "private_copies", "extra_ns")
"""Fields of `Live` that add up over the engines of a loader."""


class Live(NamedTuple):
    """Numbers of a running engine."""

    agent_pid: int = 0
    worker_pids: tuple[int, ...] = ()
    prepare_ns: tuple[int, ...] = ()
    write_ns: tuple[int, ...] = ()
    collate_ns: tuple[int, ...] = ()
    cpu_ns: tuple[int, ...] = ()
    """CPU time of tasks."""
    delayed_ns: tuple[int, ...] = ()
    """Time that tasks waited for a core; not part of the times above."""
    samples: tuple[int, ...] = ()
    """Samples prepared by each worker, local ones first."""
    prepared: int = 0
    """Samples prepared."""
    tasks: int = 0
    source_retries: int = 0
    task_size: int = 0
    reissued: int = 0
    arena_bytes: int = 0
    arena_limit_bytes: int = 0
    held_bytes: int = 0
    private_copies: int = 0
    sample_bytes: int = 0
    """Bytes of a prepared sample; 0: unknown."""
    own_workers: int = 0
    """Workers without those for borrowed cores; 0: all are its own."""
    extra_ns: int = 0
    """Core-time borrowed, less that lent."""

    def work(self) -> Work:
        busy_ns = sum(self.prepare_ns) + sum(self.write_ns) + sum(self.collate_ns)
        there = len(self.worker_pids)
        workers = min(there, self.own_workers or there)
        return Work(self.prepared, busy_ns, sum(self.cpu_ns), sum(self.delayed_ns), workers, self.extra_ns)


@dataclass(slots=True)
class Counters:
    """Numbers of one loader over its whole life. Written by the thread that takes batches."""

    workers: int = 0
    lane_mode: str = "off"
    batches: int = 0
    samples: int = 0
    elapsed_s: float = 0.0
    """Time within epochs, up to the newest batch; the time between epochs does not count."""
    worker_s: float = 0.0
    """That time multiplied by the worker count."""
    last_s: float = 0.0
    """When the newest epoch began or the newest batch was delivered."""
    wait_s: float = 0.0
    steady: Steady = field(default_factory=Steady)
    ready_depth: int = 0
    agent_restarts: int = 0
    restarts: int = 0
    skipped: int = 0
    source_retries: int = 0
    """Retried reads in this process; those of workers are on the board."""
    warnings: deque[str] = field(default_factory=lambda: deque(maxlen=WARNINGS))
    trace: bool = False
    trace_failed: bool = False
    """Writing it failed, and a warning was logged."""
    spans: deque[tuple[int, int, int, int, int, int, int]] = field(
        default_factory=lambda: deque(maxlen=SPANS)
    )
    """(worker, kind, batch, epoch, end ns, duration ns, samples) of finished tasks."""
    wait_spans: deque[tuple[float, float, int, int]] = field(default_factory=lambda: deque(maxlen=SPANS))
    """(begin s, end s, samples, batches still ready) of each `next()`."""
    moments: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=WARNINGS))
    """(at s, text) of warnings, such as lost workers."""
    core_changes: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=SPANS))
    """(at ns, own workers, workers that may begin tasks) whenever cores come or go."""

    read: Callable[[], Live] | None = None
    """Reads the running engine, if any."""
    show: Callable[[Steady], None] | None = None
    """Shows it the steady state after each batch."""
    ask_node: Callable[[], dict[str, Any]] | None = None
    """Asks how its machine's ranks share cores."""
    past: Live = field(default_factory=Live)
    """Sums over ended engines."""
    past_node: dict[str, Any] = field(default_factory=dict)
    """What the newest ended engine was told about its machine's ranks."""

    def attach(
        self,
        read: Callable[[], Live],
        show: Callable[[Steady], None] | None = None,
        ask_node: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        """Start counting an engine; keep the sums of one that was dropped without `detach`."""
        self.detach()
        self.read, self.show, self.ask_node = read, show, ask_node

    def detach(
        self, read: Callable[[], Live] | None = None, node: Callable[[], dict[str, Any]] = dict
    ) -> None:
        """Stop counting an engine (that of `read`, or the newest), and keep its sums and what `node` says of its machine's ranks."""
        if self.read is not None and read in (None, self.read):
            self.past_node = node()
            self.past, self.read, self.show, self.ask_node = self.live(), None, None, None

    def node(self) -> dict[str, Any] | None:
        """Return how the machine's ranks share cores, or did when the newest engine ended; None if they do not."""
        return (self.past_node if self.ask_node is None else self.ask_node()) or None

    def live(self) -> Live:
        """Return sums over all engines so far, and the state of the running one."""
        if self.read is None:
            return self.past._replace(agent_pid=0, worker_pids=(), arena_bytes=0, held_bytes=0)
        now, past = self.read(), self.past
        sums: dict[str, Any] = {name: getattr(past, name) + getattr(now, name) for name in SUMMED}
        sums |= {name: added(getattr(past, name), getattr(now, name)) for name in BY_WORKER}
        return now._replace(**sums)

    def begin(self, at_s: float) -> None:
        """Start an epoch."""
        self.last_s = at_s
        self.steady.begin()

    def delivered(self, began_s: float, at_s: float, samples: int, ready: int) -> None:
        self.batches += 1
        self.samples += samples
        wait_s, passed_s = at_s - began_s, at_s - (self.last_s or began_s)
        self.wait_s += wait_s
        self.elapsed_s += passed_s
        self.worker_s += passed_s * self.workers
        self.last_s, self.ready_depth = at_s, ready
        self.steady.delivered(
            period_s=passed_s,
            wait_s=wait_s,
            samples=samples,
            ready=ready,
            workers=self.workers,
            mode=self.lane_mode,
            work=lambda: self.live().work(),
        )
        if self.show is not None:
            self.show(self.steady)
        if self.trace:
            self.wait_spans.append((began_s, at_s, samples, ready))

    def warned(self, text: str, at_s: float) -> None:
        self.warnings.append(text)
        self.moments.append((at_s, text))
        self.restarts += "it is replaced" in text

    def span(self, *facts: Any) -> None:
        self.spans.append(facts)

    def cores(self, at_ns: int, own: int, allowed: int) -> None:
        self.core_changes.append((at_ns, own, allowed))


def added(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip_longest(one, other, fillvalue=0))


def as_stats(
    counters: Counters,
    *,
    engine: str,
    epoch: int,
    gpu: dict[str, Any] | None = None,
    reuse: dict[str, Any] | None = None,
    remote: Any = None,
    cache: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the numbers of `loader.stats()`. `remote`: the loader's side of remote workers, if it has any."""
    live = counters.live()
    busy = added(added(live.prepare_ns, live.write_ns), live.collate_ns)
    return {
        "engine": engine,
        "epoch": epoch,
        "batches": counters.batches,
        "samples": counters.samples,
        "elapsed_s": counters.elapsed_s,
        "wait_s": counters.wait_s,
        "wait_share": counters.wait_s / counters.elapsed_s if counters.elapsed_s else 0.0,
        "workers": counters.workers,
        "worker_pids": list(live.worker_pids),
        "agent_pid": live.agent_pid,
        "worker_s": counters.worker_s + live.extra_ns / 1e9,
        "worker_busy_s": [ns / 1e9 for ns in busy],
        "worker_cpu_s": [ns / 1e9 for ns in live.cpu_ns],
        "worker_delayed_s": [ns / 1e9 for ns in live.delayed_ns],
        "stages_s": {
            "prepare": sum(live.prepare_ns) / 1e9,
            "write": sum(live.write_ns) / 1e9,
            "collate": sum(live.collate_ns) / 1e9,
        },
        "tasks": live.tasks,
        "task_size": live.task_size,
        "ready_depth": counters.ready_depth,
        "arena_bytes": live.arena_bytes,
        "arena_limit_bytes": live.arena_limit_bytes,
        "held_bytes": live.held_bytes,
        "private_copies": live.private_copies,
        "restarts": counters.restarts,
        "reissued": live.reissued,
        "agent_restarts": counters.agent_restarts,
        "skipped": counters.skipped,
        "recent": counters.steady.recent(live.work(), counters.elapsed_s),
        "source_retries": counters.source_retries + live.source_retries,
        "node": counters.node(),
        "gpu": gpu,
        "reuse": reuse,
        "sample_bytes": live.sample_bytes,
        "remote": None if remote is None else dict(remote.record.stats),
        "cache": cache,
    }
