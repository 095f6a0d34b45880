"""`deal="cost"` where costs are not those that ranks agreed on, or those of the state: an error, again each time, and nothing changes."""

from __future__ import annotations

import pytest

from penstock import StateError
from tests.integration.noisy import order_of
from tests.integration.test_deal_by_cost import SIZE, Priced, resumed, run_until


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iter_that_fails_changes_nothing_and_fails_again(workers: int) -> None:
    state, delivered = run_until(2, 1)
    loaders = [
        resumed(state, rank, 2, workers, dataset=Priced(dearer=2.0), persistent_workers=workers > 0)
        for rank in range(2)
    ]
    for loader in loaders:
        before = loader.state_dict()
        for _ in range(2):
            with pytest.raises(StateError, match="other costs of samples"):
                iter(loader)
            assert loader.state_dict() == before
    mended = [resumed(loader.state_dict(), rank, 2, deal="as_is") for rank, loader in enumerate(loaders)]
    seen = order_of([*delivered, *(batch for loader in mended for batch in loader)])
    assert sorted(seen) == list(range(SIZE))
