"""Seams between pinned ranges: what lies across one is copied first."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import pinning
from penstock.client.pinning import unsplit

MEMORY = torch.arange(100, dtype=torch.uint8)


@given(st.lists(st.integers(-10, 110), unique=True, max_size=5), st.integers(0, 90), st.integers(1, 10))
def test_what_a_seam_goes_through_is_copied(seams: list[int], start: int, size: int) -> None:
    copies: list[torch.Tensor] = []
    with pytest.MonkeyPatch.context() as patch:  # there is no GPU to pin for
        patch.setattr(pinning, "pinned_copy", lambda tensor: copies.append(tensor) or tensor.clone())
        part = MEMORY[start : start + size]
        found = unsplit(part, sorted(MEMORY.data_ptr() + seam for seam in seams))
    assert torch.equal(found, part)
    assert len(copies) == any(start < seam < start + size for seam in seams)


def test_what_has_no_one_place_in_memory_passes() -> None:
    sparse = torch.eye(3).to_sparse()
    assert unsplit(sparse, [1]) is sparse
