"""How a sample's leaves lie in a slab, so that a batch needs no collate.

A slab has one lane per leaf of the sample: `size` items of equal bytes, one after the other. Workers write leaves into
slots; the training process views each lane as the batch's tensor. The result equals torch's `default_collate`:
`describe` collates the first sample alone and compares. Anything torch would not stack plainly has no layout and takes
the slower way through torch's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from penstock.dataset.unfinished import Unfinished
from penstock.torch_private import private_collate
from penstock.wire.extents import lane_offsets
from penstock.wire.pickles import is_plain

TEXT_MIN = 256
TEXT_HEAD = 4


class Mismatch(Exception):
    """A sample does not fit the layout."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf. `kind`: tensor, array, scalar (Python or NumPy number) or text (str, bytes).

    `dtype` is the batch's torch dtype; for texts, the type of their container.
    """

    kind: str
    type: Any
    dtype: Any
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Node:
    """A container: dict (with keys), list, tuple or a named tuple's class."""

    type: Any
    keys: tuple[Any, ...]
    children: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    root: Leaf | Node

    @property
    def leaves(self) -> list[Leaf]:
        return list(walk(self.root))

    @property
    def items(self) -> tuple[int, ...]:
        return tuple(leaf.nbytes for leaf in self.leaves)


def walk(node: Leaf | Node) -> Iterator[Leaf]:
    if isinstance(node, Leaf):
        yield node
    else:
        for child in node.children:
            yield from walk(child)


def describe(sample: Any) -> Layout | None:
    """Return the layout of a batch of such samples, or None if torch's own collate must do it."""
    try:
        with private_collate():
            batch = default_collate([sample])
    except Exception:  # noqa: BLE001 - torch will say the same when it collates the whole batch
        return None
    root = describe_node(sample, batch)
    return None if root is None else Layout(root)


def describe_node(sample: Any, batch: Any) -> Leaf | Node | None:
    kind = type(sample)
    if kind is torch.Tensor:
        plain = is_plain(sample) and batch.dtype is sample.dtype and batch.shape[1:] == sample.shape
        size = sample.numel() * sample.element_size()
        return Leaf("tensor", kind, sample.dtype, tuple(sample.shape), size) if plain and size else None
    if kind is np.ndarray:
        if sample.dtype.kind not in "biufc" or not sample.nbytes or not sample.dtype.isnative:
            return None
        return Leaf("array", kind, batch.dtype, sample.shape, sample.nbytes)
    if kind in (int, float, bool) or isinstance(sample, (np.number, np.bool_)):
        return Leaf("scalar", kind, batch.dtype, (), batch.element_size())
    if kind in (str, bytes):
        return Leaf("text", kind, type(batch), (), text_bytes(sample))
    if kind is dict:
        return describe_children(dict, tuple(sample), list(sample.values()), list(batch.values()))
    if kind in (list, tuple) or (isinstance(sample, tuple) and hasattr(sample, "_fields")):
        return describe_children(kind, (), list(sample), list(batch))
    return None


def describe_children(
    kind: Any, keys: tuple[Any, ...], samples: list[Any], batches: list[Any]
) -> Node | None:
    if not samples or len(samples) != len(batches):
        return None
    children = [describe_node(sample, batch) for sample, batch in zip(samples, batches, strict=True)]
    return None if None in children else Node(kind, keys, tuple(children))


def text_bytes(text: str | bytes) -> int:
    """Return the room for texts like this one: four times its length, so that longer captions seldom overflow."""
    size = len(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text) + TEXT_HEAD
    return max(TEXT_MIN, 1 << (4 * size - 1).bit_length())


def widened(old: Layout, new: Layout) -> Layout:
    """Return `new`, with at least the old room for texts if the two are otherwise alike."""
    merged = widen_node(old.root, new.root)
    return new if merged is None else Layout(merged)


def widen_node(old: Leaf | Node, new: Leaf | Node) -> Leaf | Node | None:
    if isinstance(old, Leaf) and isinstance(new, Leaf):
        if old.kind == new.kind == "text" and old.type is new.type:
            return old if old.nbytes >= new.nbytes else new
        return new if old == new else None
    if isinstance(old, Node) and isinstance(new, Node) and (old.type, old.keys) == (new.type, new.keys):
        if len(old.children) != len(new.children):
            return None
        children = [widen_node(a, b) for a, b in zip(old.children, new.children, strict=True)]
        return None if None in children else Node(new.type, new.keys, tuple(children))
    return None


# ---- writing


Write = Callable[[Any, int], None]
"""(leaf value or subtree, slot) -> None; raises Mismatch."""


def writer(layout: Layout, size: int, view: memoryview) -> Write:
    """Return a function that writes a sample into slot i of the slab at the start of `view`."""
    starts, _ = lane_offsets(layout.items, size)
    lanes = iter([view[at : at + leaf.nbytes * size] for at, leaf in zip(starts, layout.leaves, strict=True)])
    return write_node(layout.root, size, lanes)


def write_node(node: Leaf | Node, size: int, lanes: Iterator[memoryview]) -> Write:
    if isinstance(node, Leaf):
        return LEAF_WRITERS[node.kind](node, size, next(lanes))
    return write_children(node, [write_node(child, size, lanes) for child in node.children])


def write_children(node: Node, writes: list[Write]) -> Write:
    kind, count = node.type, len(writes)

    def write_sequence(value: Any, slot: int) -> None:
        if type(value) is not kind or len(value) != count:
            raise Mismatch
        for write, item in zip(writes, value, strict=True):
            write(item, slot)

    def write_dict(value: Any, slot: int) -> None:
        if type(value) is not dict or tuple(value) != node.keys:
            raise Mismatch
        for write, item in zip(writes, value.values(), strict=True):
            write(item, slot)

    return write_dict if kind is dict else write_sequence


def write_tensor(leaf: Leaf, size: int, lane: memoryview) -> Write:
    slots = list(torch.frombuffer(lane, dtype=leaf.dtype).view(size, *leaf.shape).unbind(0))
    dtype, shape = leaf.dtype, torch.Size(leaf.shape)

    def write(value: Any, slot: int) -> None:
        if type(value) is Unfinished:
            if value.dtype is not dtype or value.shape != leaf.shape:
                raise Mismatch
            value.write(slots[slot])
            return
        if (
            type(value) is not torch.Tensor
            or value.dtype is not dtype
            or value.shape != shape
            or not is_plain(value)
        ):
            raise Mismatch
        slots[slot].copy_(value)

    return write


def write_array(leaf: Leaf, size: int, lane: memoryview) -> Write:
    dtype = numpy_dtype(leaf.dtype)
    lane_array = np.frombuffer(lane, dtype=dtype).reshape(size, *leaf.shape)
    shape = leaf.shape

    def write(value: Any, slot: int) -> None:
        if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
            raise Mismatch
        lane_array[slot] = value

    return write


def write_scalar(leaf: Leaf, _: int, lane: memoryview) -> Write:
    numbers = np.frombuffer(lane, dtype=numpy_dtype(leaf.dtype))
    kind = leaf.type

    def write(value: Any, slot: int) -> None:
        if type(value) is not kind:
            raise Mismatch
        try:
            numbers[slot] = value
        except OverflowError:
            raise Mismatch from None

    return write


def write_text(leaf: Leaf, _: int, lane: memoryview) -> Write:
    kind, room = leaf.type, leaf.nbytes

    def write(value: Any, slot: int) -> None:
        if type(value) is not kind:
            raise Mismatch
        data = value.encode("utf-8", "surrogatepass") if kind is str else value
        if len(data) + TEXT_HEAD > room:
            raise Mismatch
        at = slot * room
        lane[at : at + TEXT_HEAD] = len(data).to_bytes(TEXT_HEAD, "little")
        lane[at + TEXT_HEAD : at + TEXT_HEAD + len(data)] = data

    return write


LEAF_WRITERS: dict[str, Callable[[Leaf, int, memoryview], Write]] = {
    "tensor": write_tensor,
    "array": write_array,
    "scalar": write_scalar,
    "text": write_text,
}


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype).numpy().dtype


# ---- reading


def read_batch(layout: Layout, size: int, offset: int, lease: Callable[[int, int], memoryview]) -> Any:
    """Return the batch in the slab at `offset`; memory from `lease(offset, nbytes)` stays valid while referred to."""
    starts, _ = lane_offsets(layout.items, size)
    return read_node(layout.root, size, iter([offset + at for at in starts]), lease)


def read_node(
    node: Leaf | Node, size: int, starts: Iterator[int], lease: Callable[[int, int], memoryview]
) -> Any:
    if isinstance(node, Leaf):
        view = lease(next(starts), node.nbytes * size)
        if node.kind == "text":
            return read_texts(node, size, view)
        return torch.frombuffer(view, dtype=node.dtype).view(size, *node.shape)
    children = [read_node(child, size, starts, lease) for child in node.children]
    if node.type is dict:
        return dict(zip(node.keys, children, strict=True))
    if node.type in (list, tuple):
        return children
    return node.type(*children)


def read_texts(leaf: Leaf, size: int, view: memoryview) -> Any:
    """Return a list or tuple of texts: torch's collate gives a list under a dict, a tuple under a sequence."""
    texts = []
    for at in range(0, size * leaf.nbytes, leaf.nbytes):
        count = int.from_bytes(view[at : at + TEXT_HEAD], "little")
        texts.append(bytes(view[at + TEXT_HEAD : at + TEXT_HEAD + count]))
    if leaf.type is bytes:
        return leaf.dtype(texts)
    return leaf.dtype(text.decode("utf-8", "surrogatepass") for text in texts)
