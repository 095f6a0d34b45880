"""The paper's division of batches (`policy.paper_split`), for `sim.division`.

Files are read at the expense of the workers, as in our division, also for tasks of the GPU. Its tasks do not wait for that, only their batch
does, which favours the paper.
"""

from __future__ import annotations

from collections import deque

from penstock.policy.paper_split import BatchTasks, Reserve, Side, after_batch
from penstock.sim.division_jobs import DivisionJob
from penstock.sim.division_machine import GPU_TASK, IN_LANE, Taken, TimedWork


class PaperDivision:
    """Tasks of a batch from both ends; `ahead`: of the batches of the prefetch window, earliest first."""

    def __init__(self, job: DivisionJob, *, ahead: bool, large: bool = False) -> None:
        self.job, self.large = job, large
        self.window = job.window + IN_LANE if ahead else 1
        self.per_batch = job.batch // job.tiny
        shape = job.batches, self.per_batch, job.tiny
        self.sizes = job.pixels.reshape(shape).sum(axis=2).tolist()
        self.cpu_s = job.cpu_s.reshape(shape).sum(axis=2).tolist()
        self.gpu_s = job.gpu_s.reshape(shape).sum(axis=2).tolist()
        self.read_s = job.tiny * job.read_s
        self.gpu_share = job.speed / (job.speed + job.workers)
        """Of the work, if both sides were always busy: known here for a start."""
        self.reserve = Reserve(workers=job.workers)
        self.open: dict[int, BatchTasks] = {}
        """Of batches with tasks that nobody has taken."""
        self.left: list[int] = []
        """Tasks not done and GPU tasks not read, of each batch dealt so far."""
        self.last: dict[int, Side] = {}
        """Who made the newest task of a batch under way. Reading does not count: more for the GPU to make would be more to read."""
        self.to_read: deque[int] = deque()
        """The batches of GPU tasks whose files are still to be read."""
        self.taken = 0
        self._open_more()

    def _open_more(self) -> None:
        while len(self.left) < min(self.job.batches, self.taken + self.window):
            self.open[len(self.left)] = BatchTasks(self.sizes[len(self.left)], self.reserve.tasks)
            self.left.append(self.per_batch)

    def for_worker(self, worker: int, *, staying: bool) -> TimedWork | None:  # noqa: ARG002 - all are alike
        if not staying:
            return None
        if self.to_read:
            return TimedWork(self.to_read.popleft(), self.read_s, makes=False)
        for batch, tasks in self.open.items():
            if (task := tasks.take(Side.WORKERS)) is not None:
                self._close_if_taken(batch)
                return TimedWork(batch, self.read_s + self.cpu_s[batch][task])
        return None

    def for_gpu(self) -> TimedWork | None:
        if not self.open:
            return None
        batch, tasks = next(iter(self.open.items()))
        count = 1
        if self.large:  # half of its share of what is left, so that both sides end together
            count = max(1, min(GPU_TASK // self.job.tiny, int(tasks.left * self.gpu_share / 2)))
        taken = [task for _ in range(count) if (task := tasks.take(Side.GPU)) is not None]
        self._close_if_taken(batch)
        self.to_read.extend([batch] * len(taken))
        self.left[batch] += len(taken)
        return TimedWork(
            batch, self.job.launch_s + sum(self.gpu_s[batch][task] for task in taken), len(taken)
        )

    def _close_if_taken(self, batch: int) -> None:
        if not self.open[batch].left:
            del self.open[batch]

    def done(self, work: TimedWork, side: Side, worker: int, workers: int) -> None:  # noqa: ARG002
        if work.makes:
            self.last[work.batch] = side
        self.left[work.batch] -= work.units
        if not self.left[work.batch]:
            last = self.last.pop(work.batch)
            self.reserve = after_batch(self.reserve, last=last, tasks=self.per_batch, workers=workers)
            for tasks in self.open.values():
                tasks.reserved = self.reserve.tasks

    def is_ready(self, batch: int) -> bool:
        return batch < len(self.left) and not self.left[batch]

    def on_taken(self, taken: Taken) -> None:  # noqa: ARG002 - ours needs it
        self.taken += 1
        self._open_more()
