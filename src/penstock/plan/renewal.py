"""Which samples an epoch prepares anew if partly prepared ones are reused: balanced eviction (Revamper, section 5.2).

Rule 1: one permutation of all samples, fixed by the seed, gives each its *place*. The first `kept` places are kept; samples behind
        them are prepared anew in every epoch.
Rule 2: epoch 0 renews all. Epoch e > 0 renews the places from (e - 1) * kept / times to e * kept / times, cyclically: equally
        many in each epoch, to within one, and each place again after exactly `times` epochs.
Rule 3: so a sample's last renewal is a pure function of (seed, sample, epoch), and with it all draws of the kept part. A lost,
        full or missing store changes an epoch's cost, but not a byte of it.
Rule 4: another rule must know in advance when an entry ends (`ends`): stores free memory by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.plan.permutation import Permutation, permutation
from penstock.plan.seeds import renewal_key

Ints = NDArray[np.int64]
MOST_SAMPLES = 1 << 31
"""Products of two sample counts must fit 64 bits."""


class Stretch(NamedTuple):
    """Places an epoch renews: `size` from `first` on, cyclically among the kept ones."""

    first: int
    size: int


class When(NamedTuple):
    renewed: int
    """Epoch in which the sample's partial result was drawn."""
    kept: bool


@dataclass(frozen=True)
class Renewal:
    """Of `length` samples, the first `kept` by place are used `times` times each."""

    length: int
    kept: int
    times: int
    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.length <= MOST_SAMPLES:
            raise ConfigError(f"reuse takes at most 2**31 samples, got {self.length}")
        if not 0 <= self.kept <= self.length:
            raise ConfigError(f"of {self.length} samples {self.kept} cannot be kept")
        if self.times < 1:
            raise ConfigError(f"times must be at least 1, got {self.times}")

    @cached_property
    def places(self) -> Permutation:
        """Map places to samples."""
        return permutation(renewal_key(self.seed), self.length)

    def stretch(self, epoch: int) -> Stretch:
        """Return the kept places that an epoch renews."""
        if epoch < 0:
            raise ConfigError(f"reuse counts epochs from 0 on, got epoch {epoch}")
        if epoch == 0 or not self.kept:
            return Stretch(0, self.kept)
        first, end = (epoch - 1) * self.kept // self.times, epoch * self.kept // self.times
        return Stretch(first % self.kept, end - first)

    def misses(self, epoch: int) -> int:
        """Return the number of samples an epoch prepares anew."""
        return self.stretch(epoch).size + self.length - self.kept

    def missed_samples(self, epoch: int, numbers: Ints) -> Ints:
        """Return the samples an epoch prepares anew, by number: renewed kept ones first, then those never kept."""
        first, size = self.stretch(epoch)
        within = (first + numbers) % max(1, self.kept)
        return self.places(np.where(numbers < size, within, self.kept + numbers - size))

    def hit_samples(self, epoch: int, numbers: Ints) -> Ints:
        """Return the samples an epoch reuses, by number."""
        first, size = self.stretch(epoch)
        return self.places((first + size + numbers) % max(1, self.kept))

    def numbered(self, epoch: int, samples: Ints) -> tuple[NDArray[np.bool_], Ints]:
        """Return whether each sample is prepared anew, and its number among those or among the reused."""
        first, size = self.stretch(epoch)
        places = self.places.inverse(samples)
        around = (places - first) % max(1, self.kept)
        fresh = places >= self.kept
        missed = fresh | (around < size)
        numbers = np.where(fresh, places - self.kept + size, np.where(missed, around, around - size))
        return missed, numbers

    def ends(self, sample: int, renewed: int) -> int:
        """Return the epoch in which a sample renewed in `renewed` is renewed again."""
        if renewed > 0:
            return renewed + self.times
        place = self.places.place(sample)
        return -(-(place + 1) * self.times // self.kept) if place < self.kept else 1

    def renewed(self, samples: Ints, epoch: int) -> Ints:
        """Return the epoch of each sample's last renewal, up to this one."""
        return self.when(samples, epoch)[0]

    def of(self, sample: int, epoch: int) -> When:
        """Return `when` of one sample; faster for the few of a task."""
        place, kept = self.places.place(sample), self.kept
        if place >= kept:
            return When(epoch, kept=False)
        last = place + kept * ((epoch * kept // self.times - 1 - place) // kept)
        return When(0 if last < 0 else -(-(last + 1) * self.times // kept), kept=True)

    def when(self, samples: Ints, epoch: int) -> tuple[Ints, NDArray[np.bool_]]:
        """Return each sample's last renewal and whether it is kept."""
        places = self.places.inverse(samples)
        if not self.kept:
            return np.full_like(places, epoch), np.zeros(len(places), np.bool_)
        end = epoch * self.kept // self.times  # renewals so far, over all rounds
        # The last of the renewals 0, 1, 2, ... before `end` that has this place; negative if there is none.
        last = places + self.kept * ((end - 1 - places) // self.kept)
        since = np.where(last < 0, 0, -(-(last + 1) * self.times // self.kept))
        kept = places < self.kept
        return np.where(kept, since, epoch), kept
