"""Slabs in the place of torch's collate: what is written slot by slot and read as a batch is what `default_collate` gives."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate

from penstock.wire.extents import lane_offsets
from penstock.wire.layout import Layout, Leaf, Mismatch, describe, read_batch, text_bytes, widened, writer


class Point(NamedTuple):
    x: Any
    y: Any


class Colour(IntEnum):
    RED = 1


def assert_same(one: Any, other: Any) -> None:
    """Equal in value, type, dtype and shape; NaN equals NaN."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.reshape(-1).view(torch.uint8).equal(other.reshape(-1).view(torch.uint8))
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    else:
        assert one == other


def slab(layout: Layout, size: int) -> memoryview:
    """Memory that is not zero to begin with, as slabs that are used again."""
    return memoryview(bytearray(b"\xa5" * (64 + lane_offsets(layout.items, size)[1])))


def through_a_slab(samples: list[Any]) -> Any:
    layout = describe(samples[0])
    assert layout is not None
    memory = slab(layout, len(samples))
    write = writer(layout, len(samples), memory[64:])
    for slot in reversed(range(len(samples))):
        write(samples[slot], slot)
    return read_batch(layout, len(samples), 64, lambda at, nbytes: memory[at : at + nbytes])


def generator(k: int) -> torch.Generator:
    return torch.Generator().manual_seed(k)


SAMPLES: dict[str, Callable[[int], Any]] = {
    "a tensor": lambda k: torch.rand(3, 4, generator=generator(k)),
    "a tensor of one number": torch.tensor,
    "bytes of an image": lambda k: torch.full((2, 3), k, dtype=torch.uint8),
    "bfloat16": lambda k: torch.rand(5, generator=generator(k)).bfloat16(),
    "bools": lambda k: torch.tensor([k % 2 == 0, True]),
    "complex": lambda k: torch.complex(torch.tensor([1.0 * k]), torch.tensor([2.0])),
    "a transposed tensor": lambda k: torch.rand(3, 4, generator=generator(k)).T,
    "an expanded tensor": lambda k: torch.tensor([[float(k)]]).expand(3, 2),
    "a slice": lambda k: torch.rand(9, 9, generator=generator(k))[2:5, ::3],
    "an array": lambda k: np.arange(k, k + 6, dtype=np.float32).reshape(2, 3),
    "an array of 16-bit numbers": lambda k: np.full((4,), k, np.int16),
    "an array in columns": lambda k: np.asfortranarray(np.arange(6.0).reshape(2, 3) + k),
    "an array of one number": lambda k: np.array(k / 3),
    "a whole number": lambda k: k - 2,
    "a number": lambda k: float("nan") if k == 1 else k / 7,
    "a bool": lambda k: k % 2 == 1,
    "numpy's numbers": lambda k: (np.float32(k / 3), np.int8(k), np.bool_(k % 2), np.float64(k)),
    "a text": lambda k: "é☃" * k,
    "bytes": lambda k: b"\x00\xff" * k,
    "a text with half a surrogate pair": lambda k: "\ud800" + "a" * k,
    "a tuple": lambda k: (torch.tensor([k]), k, "text"),
    "a list": lambda k: [torch.tensor([k]), float(k)],
    "a dict": lambda k: {"b": torch.tensor([k]), "a": "text" * k, 3: k},
    "a named tuple": lambda k: Point(k, Point("text", torch.tensor(1.5))),
    "everything nested": lambda k: {"x": [(k, b"y"), {"z": (np.ones(2), "t" * k)}], "p": Point([k], (k,))},
}


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("size", [1, 4])
def test_a_slab_holds_what_torchs_collate_gives(kind: str, size: int) -> None:
    samples = [SAMPLES[kind](k) for k in range(size)]
    assert_same(through_a_slab(samples), default_collate(samples))


LEAVES = [
    name for name in SAMPLES if not name.startswith(("a tuple", "a list", "a dict", "a named", "every"))
]
TREES = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.lists(inner, min_size=1, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2) | st.integers(0, 9), inner, min_size=1, max_size=3)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=6,
)


def grown(tree: Any, k: int) -> Any:
    """Sample k of a tree whose leaves are names of `SAMPLES`."""
    if isinstance(tree, str):
        return SAMPLES[tree](k)
    if isinstance(tree, dict):
        return {key: grown(child, k) for key, child in tree.items()}
    if isinstance(tree, Point):
        return Point(*(grown(child, k) for child in tree))
    return type(tree)(grown(child, k) for child in tree)


@settings(max_examples=40, deadline=None)
@given(tree=TREES, size=st.integers(1, 5))
def test_any_nesting_of_samples_is_what_torchs_collate_gives(tree: Any, size: int) -> None:
    samples = [grown(tree, k) for k in range(size)]
    assert_same(through_a_slab(samples), default_collate(samples))


# ---- what is left to torch


NOT_OURS: dict[str, Any] = {
    "nothing": None,
    "an object": object(),
    "a number that does not fit": 2**63,
    "a subclass of dict": OrderedDict(a=1),
    "a member of an enumeration": Colour.RED,
    "an empty list": [],
    "an empty dict": {},
    "an empty tensor": torch.empty(0, 3),
    "a tensor that wants gradients": torch.ones(2, requires_grad=True),
    "a sparse tensor": torch.eye(2).to_sparse(),
    "a conjugated tensor": torch.ones(2, dtype=torch.complex64).conj(),
    "a subclass of tensor": torch.nn.Parameter(torch.ones(2)),
    "an array of texts": np.array(["a", "b"]),
    "an array of the other byte order": np.ones(2, np.dtype(">i4")),
    "an empty array": np.empty((0,)),
    "a set": {1, 2},
    "one such thing deep inside": {"a": [(1, "b", None)]},
}


@pytest.mark.parametrize("kind", NOT_OURS)
def test_what_torch_would_not_stack_plainly_is_left_to_torch(kind: str) -> None:
    assert describe(NOT_OURS[kind]) is None


MISMATCHES: dict[str, tuple[Any, Any]] = {
    "another shape": (torch.ones(2, 3), torch.ones(3, 2)),
    "a shape that would broadcast": (torch.ones(2, 3), torch.ones(3)),
    "another dtype": (torch.ones(2), torch.ones(2, dtype=torch.float64)),
    "a tensor that wants gradients": (torch.ones(2), torch.ones(2, requires_grad=True)),
    "an array for a tensor": (torch.ones(2), np.ones(2, np.float32)),
    "an array of another shape": (np.ones(2), np.ones(3)),
    "an array of another dtype": (np.ones(2), np.ones(2, np.float32)),
    "a number that torch would promote": (1, 1.0),
    "a bool for a number": (1, True),
    "a number that does not fit": (1, 2**63),
    "bytes for a text": ("a", b"a"),
    "a text without room": ("a", "a" * 5000),
    "nothing": (1, None),
    "a shorter list": ([1, 2], [1]),
    "a longer list": ([1, 2], [1, 2, 3]),
    "a tuple for a list": ([1], (1,)),
    "another named tuple": (Point(1, 2), (1, 2)),
    "a missing key": ({"a": 1, "b": 2}, {"a": 1}),
    "a key too many": ({"a": 1}, {"a": 1, "b": 2}),
    "keys in another order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "a subclass of dict": ({"a": 1}, OrderedDict(a=1)),
    "a difference deep inside": ({"a": [(1, "b")]}, {"a": [(1, 2)]}),
}


@pytest.mark.parametrize("kind", MISMATCHES)
def test_a_sample_that_is_unlike_the_first_does_not_fit(kind: str) -> None:
    first, other = MISMATCHES[kind]
    layout = describe(first)
    assert layout is not None
    write = writer(layout, 2, slab(layout, 2)[64:])
    write(first, 0)
    with pytest.raises(Mismatch):
        write(other, 1)


# ---- room for texts


@given(st.text(st.characters(), max_size=400))
def test_a_text_has_room_for_one_four_times_its_length(text: str) -> None:
    room = text_bytes(text)
    assert room >= max(256, 4 * len(text.encode("utf-8", "surrogatepass")))
    assert room & (room - 1) == 0


def layout_of(sample: Any) -> Layout:
    layout = describe(sample)
    assert layout is not None
    return layout


def test_a_widened_layout_has_the_larger_room_of_each_text() -> None:
    old = layout_of({"title": "t" * 1000, "body": "b", "id": 1})
    new = layout_of({"title": "t", "body": "b" * 1000, "id": 2})
    both = widened(old, new)
    assert both.items == tuple(map(max, old.items, new.items))
    memory = slab(both, 1)
    writer(both, 1, memory[64:])({"title": "t" * 1000, "body": "b" * 1000, "id": 3}, 0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": "x" * 1000}, {"b": "x"}),
        ({"a": "x" * 1000, "n": 1}, {"a": "x", "n": 1.0}),
        (["x" * 1000], ["x", "x"]),
        ("x" * 1000, b"x"),
        ("x" * 1000, ["x"]),
    ],
)
def test_layouts_that_differ_in_more_than_room_are_not_merged(before: Any, after: Any) -> None:
    new = layout_of(after)
    assert widened(layout_of(before), new) == new


def test_lanes_do_not_overlap_and_lie_on_cache_lines() -> None:
    rng = random.Random(1)
    for _ in range(50):
        items = tuple(rng.randrange(1, 300) for _ in range(rng.randrange(1, 6)))
        size = rng.randrange(1, 9)
        starts, end = lane_offsets(items, size)
        stops = [start + item * size for start, item in zip(starts, items, strict=True)]
        assert all(start % 64 == 0 for start in starts)
        assert all(stop <= start for stop, start in zip(stops, [*starts[1:], end], strict=True))


def test_a_leaf_says_what_it_is_in_the_batch() -> None:
    (leaf,) = layout_of(np.int8(3)).leaves
    assert (leaf.kind, leaf.dtype, leaf.nbytes) == ("scalar", torch.int8, 1)
    assert layout_of(torch.ones(2, 3)).root == Leaf("tensor", torch.Tensor, torch.float32, (2, 3), 24)
