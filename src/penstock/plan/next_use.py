"""When and where a sample is used next: from the plan, for all epochs, or from a window of batches that are known.

Steps are counted over all epochs: step = epoch * steps per epoch + step in the epoch. No list of uses exists: an order is inverted where
asked, for a batch's samples at a time.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
FAR: Final = 1 << 40
"""Next use of a sample that has none within the epochs (or the window) looked at."""
NEVER: Final = 1 << 41
"""Next use of a sample that training does not use again."""
MOST_USES = 16
"""Uses of one sample that a window knows at most, the latest: those of samples nobody asks for would pile up."""


class SampleOrder(Protocol):
    """An epoch's global order: position to sample, and back."""

    def __call__(self, positions: Ints, /) -> Ints: ...
    def inverse(self, samples: Ints, /) -> Ints: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UsePlan:
    """The uses of all samples by the nodes of a group, each of `gpus` ranks."""

    length: int
    """Samples of an epoch."""
    batch_size: int
    """Samples per batch of one rank."""
    nodes: int
    gpus: int
    """Ranks per node."""
    order: Callable[[int], SampleOrder]
    """The order of an epoch."""
    epochs: int
    """Epochs of the training."""
    look_ahead: int = 2
    """Epochs looked at for the next use, the current one included."""

    @property
    def world(self) -> int:
        return self.nodes * self.gpus

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return -(-self.length // (self.world * self.batch_size))

    def global_batch(self, step: int) -> tuple[Ints, Ints]:
        """Return the samples of a step, and the rank that uses each by the plan."""
        epoch, at = divmod(step, self.steps)
        first = at * self.world * self.batch_size
        positions = np.arange(first, min(self.length, first + self.world * self.batch_size), dtype=np.int64)
        return self.order(epoch)(positions), positions % self.world

    def next_use(self, samples: Ints, node: int, after: int) -> Ints:
        """Return the step after `after` at which the node uses each sample next; FAR or NEVER if it does not."""
        epoch = after // self.steps
        end = epoch + self.look_ahead
        found = np.full(len(samples), FAR if end < self.epochs else NEVER, np.int64)
        for number in range(min(end, self.epochs) - 1, epoch - 1, -1):
            positions = self.order(number).inverse(samples)
            steps = number * self.steps + positions // (self.world * self.batch_size)
            here = (positions % self.world // self.gpus == node) & (steps > after)
            found[here] = steps[here]
        return found


class UseWindow:
    """The uses of one node that are known so far: for a sampler of the user's, whose order is not ours."""

    def __init__(self) -> None:
        self._uses: dict[int, deque[int]] = defaultdict(partial(deque, maxlen=MOST_USES))

    def add(self, step: int, samples: Ints) -> None:
        """Learn a step's samples. Steps come in order."""
        for sample in samples.tolist():
            self._uses[sample].append(step)

    def next_use(self, samples: Ints, after: int) -> Ints:
        """Return the step after `after` at which each sample is used next; FAR if it is not known. Earlier uses are forgotten."""
        return np.array([self._next(sample, after) for sample in samples.tolist()], np.int64)

    def _next(self, sample: int, after: int) -> int:
        uses = self._uses.get(sample)
        while uses and uses[0] <= after:
            uses.popleft()
        if not uses:
            self._uses.pop(sample, None)
            return FAR
        return uses[0]
