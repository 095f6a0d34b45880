"""Samples of any structure keep it, and one draw moves all of them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.utils._pytree import tree_flatten

from penstock import transforms as T
from tests.sample_values import PIXELS, boxes, pil, seeded, target, tensor_image, tv

pytest.importorskip("cv2")


class Pair(NamedTuple):
    first: Any
    second: Any


def marked() -> dict[str, Any]:
    """Images and masks that show the same: where one goes, all must go."""
    grey = np.repeat(PIXELS[:, :, :1], 3, axis=2)
    mask = tv().Mask(torch.from_numpy(np.ascontiguousarray(grey[:, :, 0])))
    return {
        "picture": lambda: pil(grey),
        "image": lambda: tensor_image(grey),
        "video": lambda: tv().Video(tensor_image(grey)[None].repeat(2, 1, 1, 1)),
        "mask": lambda: mask,
        "masks": lambda: tv().Mask(mask[None].repeat(3, 1, 1)),
        "boxes": lambda: boxes("CXCYWH"),
        "whole": lambda: boxes(dtype=torch.int64),
        "points": lambda: target()["points"],
        "plain": lambda: torch.arange(5),
        "text": lambda: "a.jpg",
        "number": lambda: 3,
        "nothing": lambda: None,
    }


NAMES = (
    "picture",
    "image",
    "video",
    "mask",
    "masks",
    "boxes",
    "whole",
    "points",
    "plain",
    "text",
    "number",
    "nothing",
)
LEAVES = st.sampled_from(NAMES).map(lambda name: ("leaf", name))
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.lists(st.tuples(st.text(max_size=3), inner), max_size=3).map(OrderedDict),
        st.tuples(inner, inner).map(lambda two: Pair(*two)),
    ),
    max_leaves=8,
)
OPS = st.lists(
    st.sampled_from(
        [
            T.RandomCrop(40, pad_if_needed=True),
            T.RandomHorizontalFlip(),
            T.RandomVerticalFlip(),
            T.Pad((3, 9)),
            T.CenterCrop((50, 70)),
            T.RandomApply([T.RandomCrop((30, 35)), T.RandomHorizontalFlip()]),
        ]
    ),
    min_size=1,
    max_size=3,
)


def built(tree: Any, kinds: dict[str, Any]) -> Any:
    if isinstance(tree, tuple) and len(tree) == 2 and tree[0] == "leaf":
        return kinds[tree[1]]()
    if isinstance(tree, dict):
        return type(tree)((key, built(value, kinds)) for key, value in tree.items())
    if isinstance(tree, Pair):
        return Pair(*(built(value, kinds) for value in tree))
    return type(tree)(built(value, kinds) for value in tree)


def is_picture(value: Any) -> bool:
    from PIL import Image

    return isinstance(value, Image.Image)


def shown(value: Any) -> NDArray[Any] | None:
    """What an image or a mask shows; None for anything else."""
    if type(value) in (tv().Image, tv().Video, tv().Mask):
        planes = value.as_subclass(torch.Tensor).reshape(-1, *value.shape[-2:])
        assert all(torch.equal(plane, planes[0]) for plane in planes)
        return planes[0].numpy()
    return np.asarray(value)[:, :, 0] if is_picture(value) else None


@given(tree=TREES, ops=OPS, seed=st.integers(0, 2**32))
def test_any_sample_keeps_its_structure_and_is_moved_by_one_draw(tree: Any, ops: Any, seed: int) -> None:
    sample = {"image": pil(np.repeat(PIXELS[:, :, :1], 3, axis=2)), "rest": built(tree, marked())}
    found = seeded(seed, T.Compose(ops), sample)
    (before, spec), (after, same_spec) = tree_flatten(sample), tree_flatten(found)
    assert spec == same_spec
    reference = shown(found["image"])
    assert reference is not None
    for old, new in zip(before, after, strict=True):
        if is_picture(old):
            assert is_picture(new)
        else:
            assert type(new) is type(old)
        seen = shown(new)
        if seen is not None:
            np.testing.assert_array_equal(seen, reference)
        elif hasattr(old, "canvas_size"):
            assert new.canvas_size == reference.shape
            assert new.dtype == old.dtype
            assert len(new) == len(old)
        else:
            assert new is old
