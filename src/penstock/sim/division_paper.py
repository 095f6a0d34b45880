"""The paper's division of batches (`policy.paper_split`), for `sim.division`.

A file is read at the expense of the workers, as in our division, also for a task of the GPU. The GPU does not wait for that, which favours
the paper.
"""

from __future__ import annotations

from collections import deque

from penstock.policy.paper_split import Deal, Reserve, Side, after_batch
from penstock.sim.division_jobs import Job
from penstock.sim.division_machine import GPU_TASK, IN_LANE, Piece, Taken


class PaperDivision:
    """Tasks of a batch from both ends; `ahead`: of the batches of the prefetch window, earliest first."""

    def __init__(self, job: Job, *, ahead: bool, large: bool = False) -> None:
        self.job, self.large = job, large
        self.window = job.window + IN_LANE if ahead else 1
        self.tasks = job.batch // job.tiny
        shape = job.batches, self.tasks, job.tiny
        self.sizes = job.pixels.reshape(shape).sum(axis=2).tolist()
        self.cpu_s = job.cpu_s.reshape(shape).sum(axis=2).tolist()
        self.gpu_s = job.gpu_s.reshape(shape).sum(axis=2).tolist()
        self.read_s = job.tiny * job.read_s
        self.gpu_share = job.speed / (job.speed + job.workers)
        """Of the work, if both sides were always busy: known here for a start."""
        self.reserve = Reserve(workers=job.workers)
        self.deals: dict[int, Deal] = {}
        """Of batches with tasks that nobody has taken."""
        self.left: list[int] = []
        """Tasks not done, of each batch dealt so far."""
        self.to_read: deque[float] = deque()
        """Tasks of the GPU whose files are still to be read."""
        self.taken = 0
        self._deal()

    def _deal(self) -> None:
        while len(self.left) < min(self.job.batches, self.taken + self.window):
            self.deals[len(self.left)] = Deal(self.sizes[len(self.left)], self.reserve.tasks)
            self.left.append(self.tasks)

    def for_worker(self, worker: int, *, staying: bool) -> Piece | None:  # noqa: ARG002 - all are alike
        if not staying:
            return None
        if self.to_read:
            return Piece(-1, self.to_read.popleft(), 0)
        for batch, deal in self.deals.items():
            if (task := deal.take(Side.WORKERS)) is not None:
                self._settle(batch)
                return Piece(batch, self.read_s + self.cpu_s[batch][task])
        return None

    def for_gpu(self) -> Piece | None:
        if not self.deals:
            return None
        batch, deal = next(iter(self.deals.items()))
        count = 1
        if self.large:  # half of its share of what is left, so that both sides end together
            count = max(1, min(GPU_TASK // self.job.tiny, int(deal.left * self.gpu_share / 2)))
        taken = [task for _ in range(count) if (task := deal.take(Side.GPU)) is not None]
        self._settle(batch)
        self.to_read.extend([self.read_s] * len(taken))
        return Piece(batch, self.job.launch_s + sum(self.gpu_s[batch][task] for task in taken), len(taken))

    def _settle(self, batch: int) -> None:
        if not self.deals[batch].left:
            del self.deals[batch]

    def done(self, piece: Piece, side: Side, worker: int, workers: int) -> None:  # noqa: ARG002
        if not piece.units:
            return
        self.left[piece.batch] -= piece.units
        if not self.left[piece.batch]:
            self.reserve = after_batch(self.reserve, last=side, tasks=self.tasks, workers=workers)
            for deal in self.deals.values():
                deal.reserved = self.reserve.tasks

    def is_ready(self, batch: int) -> bool:
        return batch < len(self.left) and not self.left[batch]

    def on_taken(self, taken: Taken) -> None:  # noqa: ARG002 - ours needs it
        self.taken += 1
        self._deal()
