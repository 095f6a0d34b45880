"""Read what samples cost, for `deal="cost"`: once, at the first epoch, the same on all ranks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch.distributed as dist

from penstock.dataset.costs import KnownCosts
from penstock.dataset.offers import known_costs
from penstock.epochs.shard import gathered, has_group
from penstock.errors import ConfigError
from penstock.plan.deal_cost import SampleCosts

log = logging.getLogger("penstock")

EVERY_S = 10.0
"""Seconds between lines of progress."""
UNREAD = -1
"""What a rank says whose costs cannot be read."""
LOOKS = 1024
"""Samples between looks at the clock."""


def check_costs(dataset: Any) -> None:
    if known_costs(dataset) is None:
        raise ConfigError(
            f"deal='cost' needs to know what samples cost before they are prepared, and {type(dataset).__name__} does not say: give it a method "
            "cost(index), in any unit (tokens, pixels, seconds of sound), or a method costs(), for all samples at once. ImageFolder, TarDataset, AudioFolder "
            "and torchvision's ImageFolder have them (docs/ranks.md#deal-by-cost)"
        )


def read_costs(dataset: Any, clock: Callable[[], float] = time.monotonic) -> SampleCosts:
    """Ask the dataset what each sample costs."""
    check_costs(dataset)
    known, count = known_costs(dataset), len(dataset)
    assert known is not None
    began_s = clock()
    costs = np.fromiter(told(known, count, clock), np.float64, count)
    found = SampleCosts.of(costs, known.says)
    log.info("deal='cost': costs of %d samples (%s) known after %.1f s", count, known.says, clock() - began_s)
    return found


def told(known: KnownCosts, count: int, clock: Callable[[], float]) -> Iterator[float]:
    """Return each sample's cost; log how far they are now and then."""
    due_s = clock() + EVERY_S
    cost: Any  # users' methods return anything
    for done, cost in enumerate(known.of(range(count))):
        if done % LOOKS == 0 and clock() > due_s:
            log.info("deal='cost': costs of %d of %d samples are read", done, count)
            due_s = clock() + EVERY_S
        try:
            if isinstance(cost, str | bytes):  # float() would read it
                raise TypeError
            yield float(cost)
        except (TypeError, ValueError, OverflowError):
            raise ConfigError(
                f"deal='cost': the cost of sample {done} is {cost!r} ({known.says}), not a number"
            ) from None


def check_unchanged(before: int, now: int) -> None:
    """Raise if the dataset's length has changed since its costs were read. Each rank checks alone: a collective would hang, since ranks whose
    dataset has not changed would not take part."""
    if before != now:
        raise ConfigError(
            f"deal='cost': the dataset had {before} samples when the first epoch began, and has {now} now. Ranks compare costs at the first epoch only, "
            "so nobody can tell whether the others' datasets have changed alike: build a new loader, on all ranks"
        )


def check_agreed(costs: SampleCosts | None, world: int) -> None:
    """Raise if ranks have other costs: samples would come twice or never. None: this one's cannot be read, which the others must know. Without a
    process group, nobody can tell."""
    if not (has_group() and dist.get_world_size() == world):
        return
    number = UNREAD if costs is None else int(costs.digest, 16) >> 1  # fits a signed number
    found = [number for (number,) in gathered([number])]
    if costs is None:
        return
    if unread := [rank for rank, other in enumerate(found) if other == UNREAD]:
        raise ConfigError(f"deal='cost': ranks {unread} cannot read what samples cost; their errors say why")
    others = [rank for rank, other in enumerate(found) if other != number]
    if others:
        raise ConfigError(
            f"deal='cost': ranks {others} found other costs of samples than this one, so their files or their cost(index) differ: give all ranks the "
            "same data, and costs that follow from it alone"
        )
