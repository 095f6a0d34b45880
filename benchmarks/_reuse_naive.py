"""Revamper's naive approach, to compare with: samples renewed by reference counts, in a plain shuffle (sections 5.2, 5.3 and 7.4).

Loaders have neither. What they do is a function of which samples an epoch renews and of their order, so it is enough to put others in the place
of these two; everything else, workers, store and draws, is the loader's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from penstock.engine import reusing
from penstock.plan.renewal import Ints, Renewal, Stretch


class ReferenceCounted(Renewal):
    """Each kept sample is used `times` times, once in each epoch, and then made anew: which is all of them in every `times`-th epoch."""

    def stretch(self, epoch: int) -> Stretch:
        return Stretch(0, self.kept if epoch % self.times == 0 else 0)

    def ends(self, sample: int, renewed: int) -> int:  # noqa: ARG002 - alike for all samples
        return renewed + self.times

    def renewed(self, samples: Ints, epoch: int) -> Ints:
        last = epoch - epoch % self.times
        return np.where(self.is_kept(samples), last, epoch)


@contextmanager
def reference_counted() -> Iterator[None]:
    """Loaders whose workers are started meanwhile renew their samples so. Their order must be plain."""
    with patch.object(reusing, "Renewal", ReferenceCounted):
        yield


def plainly_shuffled(loader: Any) -> Any:
    """The loader, with an order that knows nothing of what is kept."""
    epochs = loader._epochs
    epochs.source = replace(epochs.source, times=1)
    return loader
