"""Our division of batches between workers and the GPU, for `sim.division`: the loader's own rules and counts, on costs instead of photos.

Workers take tasks of the earliest batch with any left, by position. A worker that has read a sample leaves it to the lane if it is dear
(`policy.dearest`) and there is room (`gpu.requests`). The lane gets a batch when workers are through with it. The room is searched as
training takes batches (`gpu.modes`, `policy.backlog`). `GpuPrep(choice="random")` draws instead of ranking.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from penstock.core.pools import blend
from penstock.gpu.lane import FIRST_AHEAD, FIRST_BATCH, YOUNG
from penstock.gpu.modes import Modes
from penstock.gpu.requests import AS_THERE_IS_ROOM, Requests
from penstock.plan.seeds import Company
from penstock.policy.backlog import Seen
from penstock.policy.dearest import Ranks
from penstock.policy.paper_split import Side
from penstock.policy.sharing import Sharing
from penstock.policy.tasks import task_size
from penstock.sim.division_jobs import DivisionJob
from penstock.sim.division_machine import GPU_TASK, IN_LANE, Taken, TimedWork


@dataclass(slots=True)
class WorkerTask:
    batch: int
    at: int
    end: int
    began_at: int
    took_s: float = 0.0


class OurDivision:
    def __init__(self, job: DivisionJob, mode: Sharing, *, drawn: bool = False) -> None:
        self.job, self.drawn = job, drawn
        self.rng = random.Random(job.seed)
        self.pixels, self.cpu_s, self.gpu_s = job.pixels.tolist(), job.cpu_s.tolist(), job.gpu_s.tolist()
        self.requests, self.modes = Requests(), Modes(str(mode))
        self.ranks = [Ranks() for _ in range(max(job.workers, job.workers_later))]
        self.tasks: dict[int, WorkerTask] = {}
        self.sample_s: float | None = None
        self.begun, self.begun_at = 0, 0
        """The batch that tasks are cut from, and its next sample."""
        self.through = [job.batch] * job.batches
        """Samples that workers are not through with."""
        self.ready = self.arrived = self.taken = 0
        """Batches that workers are through with; that the lane has begun; that training has taken."""
        self.files: list[list[int]] = [[] for _ in range(job.batches)]
        self.lane_left = [0] * job.batches
        self.lane: deque[tuple[int, list[int]]] = deque()
        self.workers, self.young = job.workers, YOUNG
        self._say(FIRST_BATCH)

    def _say(self, batch: int) -> None:
        limit, finishes = self.modes.limit * batch, self.modes.finishes
        self.requests.say(share=AS_THERE_IS_ROOM, limit=limit, finishes=finishes, samples=batch)

    def _entry(self, batch: int) -> int:
        return self.requests.entry_of(Company(batch, 0))

    # ---- workers

    def for_worker(self, worker: int, *, staying: bool) -> TimedWork | None:
        task = self.tasks.get(worker)
        if task is None:
            task = self._next_task() if staying else None
            if task is None:
                return None
            self.tasks[worker] = task
        sample = task.batch * self.job.batch + task.at
        task.at += 1
        seconds = self.job.read_s
        if self._is_left(worker, sample):
            self.files[task.batch].append(sample)
            self.requests.left(self._entry(task.batch))
        else:
            seconds += self.cpu_s[sample]
        task.took_s += seconds
        return TimedWork(task.batch, seconds)

    def _next_task(self) -> WorkerTask | None:
        job = self.job
        if self.begun_at == job.batch:
            self.begun, self.begun_at = self.begun + 1, 0
        if self.begun >= min(job.batches, self.arrived + job.window):
            return None
        left = job.batch - self.begun_at
        size = task_size(
            sample_s=self.sample_s,
            batch=job.batch,
            left=left,
            workers=self.workers,
            due=self.begun == self.ready,
        )
        at = self.begun_at
        self.begun_at += min(size, left)
        return WorkerTask(self.begun, at, self.begun_at, at)

    def _is_left(self, worker: int, sample: int) -> bool:
        """As `gpu.dataset` decides it."""
        if not self.requests.limit:
            return False
        room, dear = self.requests.has_room(), self.requests.dear
        if self.drawn:
            return self.rng.random() < dear and room
        return self.ranks[worker].is_dear(self.pixels[sample], dear) and room

    # ---- what is done

    def done(self, work: TimedWork, side: Side, worker: int, workers: int) -> None:
        self.workers = workers
        if side is Side.GPU:
            self.lane_left[work.batch] -= work.units
            self.requests.made(self._entry(work.batch), work.units)
            return
        task = self.tasks[worker]
        if task.at == task.end:
            self.sample_s = blend(self.sample_s, task.took_s / (task.end - task.began_at))
            del self.tasks[worker]
        self.through[work.batch] -= 1
        while self.ready < self.job.batches and not self.through[self.ready]:
            self.ready += 1
        self._arrive()

    def _arrive(self) -> None:
        """Give the lane the batches that it has a place for."""
        while self.arrived < min(self.ready, self.taken + IN_LANE):
            batch, files = self.arrived, self.files[self.arrived]
            self.arrived += 1
            self.lane_left[batch] = len(files)
            lasting = 2 * self.job.window + FIRST_AHEAD
            self.requests.came(self._entry(batch), len(files), lasting=lasting)
            for at in range(0, len(files), GPU_TASK):
                self.lane.append((batch, files[at : at + GPU_TASK]))

    def for_gpu(self) -> TimedWork | None:
        if not self.lane:
            return None
        batch, files = self.lane.popleft()
        return TimedWork(batch, self.job.launch_s + sum(self.gpu_s[sample] for sample in files), len(files))

    def is_ready(self, batch: int) -> bool:
        return batch < self.arrived and not self.lane_left[batch]

    def on_taken(self, taken: Taken) -> None:
        """As `gpu.lane` does it."""
        self.young = max(0, self.young - 1)
        if self.taken and not self.young:
            busy = taken.lane_s / max(1e-12, taken.period_s)
            ready, full = self.ready - self.arrived, self.requests.was_full()
            self.modes.on_batch(Seen(ready, self.job.window, taken.wait_s, taken.period_s, busy, full))
        self.taken += 1
        self._say(self.job.batch)
        self._arrive()
