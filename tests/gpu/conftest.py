"""For tests on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.measure import card


@pytest.fixture(autouse=True)
def as_in_a_program_of_its_own() -> Iterator[None]:
    """What one test did to the device's memory is nothing to the next."""
    card.forget()
    yield
    card.forget()
