"""Pixels in a slot: all of them behind the head, and nothing that has no room there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.gpu.slots import FINISHED, HEAD, HEAD_ROOM, Contents, slot_bytes, write_pixels

SIZE = (5, 7)


def image() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (*SIZE, 3), dtype=np.uint8)


@pytest.mark.parametrize("kind", ["whole", "a part", "turned"])
def test_finished_pixels_lie_behind_the_head(kind: str) -> None:
    pixels = image()
    whole = np.zeros((9, 9, 3), np.uint8)
    whole[2:7, 1:8] = pixels
    shown = {"whole": pixels, "a part": whole[2:7, 1:8], "turned": pixels[::-1]}[kind]
    slots = torch.full((2, slot_bytes(SIZE, 0)), 9, dtype=torch.uint8)
    for slot in slots:
        write_pixels(shown, 3, slot)
    assert HEAD.unpack_from(slots[1].numpy())[0] == FINISHED
    contents = Contents(slots, SIZE)
    assert (contents.entry, contents.size(1)) == (3, SIZE)
    found = slots[1].numpy()[HEAD_ROOM:]
    assert np.array_equal(found[: pixels.nbytes].reshape(pixels.shape), shown)
    assert (found[pixels.nbytes :] == 9).all()


@pytest.mark.parametrize("pixels", [np.zeros((9, 9, 3), np.uint8), np.zeros((*SIZE, 1), np.float32)])
def test_what_does_not_fit_is_refused_and_nothing_written(pixels: np.ndarray) -> None:
    slot = torch.full((HEAD_ROOM + 3 * SIZE[0] * SIZE[1] + 40,), 9, dtype=torch.uint8)
    with pytest.raises(ValueError, match="do not fit a slot"):
        write_pixels(pixels, 0, slot)
    assert (slot == 9).all()
