"""What a case is: a dataset and the keywords of a loader, both by public names only, since everything else may move."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from penstock import DataLoader
from tests.integration.digests.files import Room
from tests.torchvision_here import torchvision

SEED = 4
Keywords = dict[str, Any]
Made = tuple[Any, Keywords]


@dataclass(frozen=True, kw_only=True)
class Case:
    make: Callable[[Room], Made]
    """A new dataset and the keywords of its loader; `seed` is SEED unless they say otherwise."""
    epochs: int = 2
    set_epoch: Callable[[DataLoader[Any], int], None] | None = None
    """Called before each epoch, as a training loop does that sets it."""
    made_by: Sequence[str] = ()
    """Modules whose versions pixels or sound depend on; "cpu": also on the instructions that this processor has."""
    workers: int | None = None
    """The only number of workers, where batches depend on it (iterable datasets); None: they must not."""
    stays: bool = True
    """Whether two and three workers stay from epoch to epoch. False where torch's order then depends on it: workers that stay draw no new
    base seed from the generator that the order is drawn from."""
    spawns: bool = False
    """Whether workers are also spawned: that takes seconds."""

    def loader(self, room: Room, **more: Any) -> DataLoader[Any]:
        dataset, keywords = self.make(room)
        return DataLoader(dataset, **{"seed": SEED, **keywords, **more})

    @property
    def key(self) -> str:
        """What pixels and sound depend on, here; empty where they depend on nothing. ImportError: a library is missing."""
        if not self.made_by:
            return ""
        facts = [platform.machine()]
        for name in self.made_by:
            if name == "cpu":
                facts.append(torch.backends.cpu.get_cpu_capability())
                continue
            if name == "torchvision":
                torchvision()
            facts.append(f"{name} {import_module(name).__version__.partition('+')[0]}")
        return " ".join(facts)
