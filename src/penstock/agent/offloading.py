"""Remote workers as the agent uses them: measure windows of batches, follow `policy.course`, report to the training process.

The training process shows on the board how many samples it took, and how long it waited. CPU time of this machine is that of the local
workers' tasks, of this process, and of the ferry, which carries results for other loaders too: by bytes.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any, NamedTuple

from penstock.agent.config import AgentConfig
from penstock.core.pools import LOCAL
from penstock.core.state import State
from penstock.policy.course import after, hired, resumed, wish
from penstock.policy.course_state import Course, Stage, WindowSeen, Wish
from penstock.policy.course_values import packed, told, unpacked
from penstock.remote.handles import FerryLink
from penstock.wire.arena import Board

WINDOW_BATCHES, WINDOW_S, LONG_WINDOW_S = 4, 0.5, 4.0
"""A window has so many batches and lasts so long; or at least one, after the last of these."""
DISTURBS = 0.05
"""Share of a core that the ferry uses when it is starting or connecting."""
STALL_S, STALL_BATCHES = 1.0, 8.0
"""A trial stalls if no batch is complete after this long, and this many times the usual time of one."""
DRAIN_S = 6.0
"""How long a window waits for remote tasks issued under the setting before. On a slow link they would be taken for the new one's."""
REPORT_S = 1.0


class OffloadSums(NamedTuple):
    """Counters so far."""

    batches: float
    samples: float
    elapsed_ns: float
    waited_ns: float
    busy_ns: float
    """Of local workers."""
    tasks_ns: float
    """CPU time of local workers' tasks."""
    agent_ns: float
    """CPU time of this process."""
    ferry_ns: float
    ferry_bytes: float
    our_bytes: float
    done: float
    """Samples prepared by anyone."""
    remote: float
    """Samples prepared by remote workers."""
    at_s: float = 0.0


class Offloading:
    def __init__(self, config: AgentConfig, state: State, board: Board, link: FerryLink) -> None:
        self.terms = config.terms
        self.course = resumed(unpacked(config.course)) if config.course else Course()
        self._config, self._state, self._board, self._link = config, state, board, link
        self._remote = [pool for pool in state.pools if pool.kind != LOCAL]
        self._applied: Wish | None = None
        self._base: OffloadSums | None = None
        self._least = 0
        """Fewest remote workers that were there in this window."""
        self._old_task, self._changed_s = 0, 0.0
        """The last task issued under the setting before, and when it changed."""
        self._delivered_s = 0.0
        self._batch_s = 0.0
        """The usual time between batches."""
        self._reported: OffloadSums | None = None
        self._counts: dict[int, int] = {}

    def delivered(self, now_s: float) -> None:
        """Note that a batch was completed."""
        self._delivered_s = now_s

    def look(self, now_s: float) -> Wish | None:
        """Go on with the course; return how to use remote workers from now on, if that changes."""
        if not self._config.steers:
            return None
        sums = self._sums(now_s)
        self._least = min(self._least, self._present())
        base = self._base or sums
        if self._drains(now_s):
            self._base, self._least = sums, self._present()
            return None
        window = self._window(base, sums)
        if window is not None:
            self.course = after(self.course, window, self.terms)
        if window is not None or self._base is None:
            self._base, self._least = sums, self._present()
        self._link.want(hired(self.course, self.terms))
        wanted = wish(self.course, self.terms)
        if wanted == self._applied:
            return None
        before, self._applied = self._applied, wanted
        self._old_task, self._changed_s = self._state.next_task, now_s
        if len(self.terms.plans) > 1 and (before is None or before.plan != wanted.plan):
            self._link.use_plan(wanted.plan)
        return wanted

    def _present(self) -> int:
        return sum(one.up and not one.surplus for pool in self._remote for one in pool.members)

    def _drains(self, now_s: float) -> bool:
        """Whether remote workers still do tasks of the setting before."""
        if now_s - self._changed_s > DRAIN_S:
            return False
        workers = (worker for pool in self._remote for worker in pool.members)
        return any(task <= self._old_task for worker in workers for task in worker.tasks)

    def _sums(self, now_s: float) -> OffloadSums:
        row = self._board.agent
        first, shown = None, tuple(row[Board.BATCHES : Board.OFFLOADED])
        while first != shown:  # the training process writes it meanwhile
            first, shown = shown, tuple(row[Board.BATCHES : Board.OFFLOADED])
        busy_ns = tasks_ns = 0
        for worker in self._state.local.members:
            mine = self._board.row(worker.id)
            tasks_ns += mine[Board.CPU_NS]
            busy_ns += sum(mine[Board.PREPARE_NS : Board.COLLATE_NS + 1]) + mine[Board.DELAYED_NS]
        ferry = self._link.account
        batches, samples, elapsed_ns, waited_ns = shown
        return OffloadSums(
            batches=batches,
            samples=samples,
            elapsed_ns=elapsed_ns,
            waited_ns=waited_ns,
            busy_ns=busy_ns,
            tasks_ns=tasks_ns,
            agent_ns=time.process_time_ns(),
            ferry_ns=ferry["cpu_ns"],
            ferry_bytes=ferry["bytes"],
            our_bytes=sum(ferry["workers"].values()),
            done=sum(pool.done for pool in self._state.pools),
            remote=sum(pool.done for pool in self._remote),
            at_s=now_s,
        )

    def _window(self, base: OffloadSums, sums: OffloadSums) -> WindowSeen | None:
        """Return the window since `base` if it is complete, or if a trial stalls."""
        since = OffloadSums(*(now - then for now, then in zip(sums, base, strict=True)))
        elapsed_s = since.elapsed_ns / 1e9
        stalled = self._stalls(base, sums.at_s)
        complete = since.batches >= WINDOW_BATCHES and elapsed_s >= WINDOW_S
        if not (complete or stalled or (since.batches >= 1 and elapsed_s >= LONG_WINDOW_S)):
            return None
        if complete and self.course.stage is not Stage.TRIAL:
            self._batch_s = elapsed_s / since.batches
        seconds = since.at_s if stalled else elapsed_s
        own_s = max(1e-6 * since.batches, elapsed_s - since.waited_ns / 1e9)
        ours = min(1.0, since.our_bytes / since.ferry_bytes) if since.ferry_bytes > 0 else 0.0
        cpu_ns = since.agent_ns + max(0.0, ours * since.ferry_ns)
        rate, done = since.samples / seconds, since.done
        if (
            self.course.stage is Stage.TRIAL
        ):  # local workers only help out where a batch is late: they do not count
            rate, done = min(rate, since.remote / seconds), since.remote
        else:
            cpu_ns += since.tasks_ns
        local = max(1, self._state.local.size)
        return WindowSeen(
            rate=rate,
            own=since.samples / max(own_s, 1e-9),
            wait=min(1.0, since.waited_ns / max(1, since.elapsed_ns)),
            idle=max(0.0, 1.0 - since.busy_ns / 1e9 / (local * seconds)),
            cpu_s=cpu_ns / 1e9 / max(1, done),
            seconds=seconds,
            workers=self._least,
            local_workers=local,
            stalled=stalled,
            disturbed="pid" not in self._link.account or since.ferry_ns / 1e9 > DISTURBS * seconds,
        )

    def _stalls(self, base: OffloadSums, now_s: float) -> bool:
        """Whether remote workers, alone, complete nothing. A loop that does not ask is no stall: then nothing is due."""
        if self.course.stage is not Stage.TRIAL or not self._state.due:
            return False
        last_s = max(self._delivered_s, base.at_s)
        return now_s - last_s > max(STALL_S, STALL_BATCHES * self._batch_s)  # guard: stalled-trial

    # ---- what is told

    def report(self, now_s: float) -> bytes:
        """Return what the training process should know, now and then; empty if it is too early."""
        last = self._reported
        if last is not None and now_s - last.at_s < REPORT_S:
            return b""
        sums = self._sums(now_s)
        seconds = max(1e-3, now_s - (last or sums).at_s)
        stats = {
            **self._decision(),
            "workers": self._workers(seconds if last else 0.0),
            "workers_had": self._present(),
            "samples": sum(pool.done for pool in self._remote),
            "bytes": sums.our_bytes,
            "link_bytes_per_second": max(0.0, sums.our_bytes - last.our_bytes) / seconds if last else 0.0,
            "receiving_s": self._receiving_s(sums),
        }
        self._reported = sums
        course, kept = (packed(self.course), self.course.kept) if self._config.steers else ("", None)
        kept_facts = None if kept is None else asdict(kept)
        return json.dumps({"course": course, "kept": kept_facts, "stats": stats}).encode()

    def _decision(self) -> dict[str, Any]:
        if self._config.steers:
            return told(self.course, self.terms)
        share = self.terms.share
        reason = (
            "remote workers take what delays no batch"
            if share is None
            else f"the share is fixed at {share:.0%}"
        )
        return {"stage": "fixed", "plan": self.terms.plans[0], "share": share, "reason": reason}

    def _receiving_s(self, sums: OffloadSums) -> float:
        """Return the ferry's CPU seconds per sample received, over its life."""
        remote = sum(pool.done for pool in self._remote)
        if not (remote and sums.ferry_bytes):
            return 0.0
        return sums.ferry_ns / 1e9 / sums.ferry_bytes * sums.our_bytes / remote

    def _workers(self, seconds: float) -> list[dict[str, Any]]:
        rows = []
        for number, handle in sorted(self._link.handles.items()):
            worker = self._state.workers[number]
            fresh = worker.prepared - min(self._counts.get(number, 0), worker.prepared)
            self._counts[number] = worker.prepared
            rows.append(
                {
                    "worker": number,
                    "host": handle.host,
                    "alive": worker.up and not handle.ended,
                    "samples": worker.prepared,
                    "bytes": self._link.account["workers"].get(str(number), 0),
                    "rate": fresh / seconds if seconds else 0.0,
                }
            )
        return rows
