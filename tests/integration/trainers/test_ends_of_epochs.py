"""Lightning counts an epoch as done with its last batch, and asks for the next one; whoever else loads that state gets none first."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import IterableDataset

from penstock import DataLoader
from tests.contract.streams import Itself
from tests.integration.noisy import Noisy, epoch

pytest.importorskip("lightning")


class Counted(Itself):
    def __len__(self) -> int:
        return sum(self.sizes)


class Subclass(DataLoader[Any]):
    def load_state_dict(self, state: dict[str, Any], **settings: Any) -> None:
        super().load_state_dict(state, **settings)


LOADERS: dict[str, Any] = {
    "our order": lambda: DataLoader(Noisy(), 4, shuffle=True, seed=3),
    "a sampler": lambda: DataLoader(Noisy(), 4, sampler=range(23), seed=3),
    "a subclass": lambda: Subclass(Noisy(), 4, shuffle=True, seed=3),
    "an iterable dataset with a length": lambda: DataLoader(Counted(12), 4, seed=3),
}


@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:resuming .*exact only if the sampler repeats itself")
@pytest.mark.parametrize("kind", LOADERS)
def test_lightning_goes_on_with_the_next_epoch(kind: str) -> None:
    from lightning.pytorch.utilities import CombinedLoader

    make = LOADERS[kind]
    straight = make()
    first, second = epoch(straight), epoch(straight)
    loader = make()
    iterator = iter(loader)
    for _ in first:
        next(iterator)
    states = CombinedLoader([loader])._state_dicts()
    theirs, plain = make(), make()
    CombinedLoader([theirs])._load_state_dicts(states)
    plain.load_state_dict(states[0])
    assert epoch(theirs) == second
    assert [epoch(plain), epoch(plain)] == [[], second]
    assert isinstance(loader.dataset, IterableDataset) == (kind == "an iterable dataset with a length")
