"""A layout as text: the only form in which one is taken from another machine.

Rule 1: equal layouts have equal bytes in every process, on every machine. The agent tells layouts apart by them.
Rule 2: `unpack` takes what `pack` gives and nothing else. Other spellings of the same layout are refused too.
Rule 3: reading runs nothing. A named tuple's class is looked up in loaded modules, by its own name, without `getattr`: a module
        may run code for a missing name.
"""

from __future__ import annotations

import json
import reprlib
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch

from penstock.wire.dtypes import AS_TORCH, IN_BOTH, NUMPY, NUMPY_NAMES, TORCH, TORCH_NAMES
from penstock.wire.layout import TEXT_MIN, Layout, Leaf, Node

MAX_TEXT = 1 << 20
MAX_DEPTH = 32
MAX_LEAVES = 4096
MAX_NDIM = 8
MAX_ROOM = 1 << 34
"""A text's length has four bytes, and its room is at most four times its length."""
MAX_BYTES = 1 << 40
"""Of one sample. A batch of a million such samples still has a size of 64 bits."""

NUMBERS: dict[str, tuple[Any, torch.dtype]] = {
    "int": (int, torch.int64),
    "float": (float, torch.float64),
    "bool": (bool, torch.bool),
    **{f"numpy.{name}": (kind, AS_TORCH[name]) for name, kind in NUMPY.items()},
}
TEXTS: dict[str, type] = {"str": str, "bytes": bytes}
HOLDERS: dict[str, type] = {"list": list, "tuple": tuple}


def shown(said: Any) -> str:
    """Return what a message says of data from elsewhere: never much of it."""
    text = reprlib.repr(said)
    return text if len(text) <= 100 else f"{text[:97]}..."


class BadLayout(ValueError):
    """A text describes no layout that we would use."""


def pack(layout: Layout) -> bytes | None:
    """Return the layout's text; None if it has none."""
    try:
        data = _text(layout)
        return data if _read(data, importing=False) == layout else None
    except BadLayout:
        return None


def unpack(data: bytes, *, importing: bool = False) -> Layout:
    """Return the layout of a text, or raise BadLayout. `importing`: it comes from our own process, so its class may be imported."""
    layout = _read(data, importing=importing)
    if _text(layout) != data:  # guard: layout-canonical
        raise BadLayout("a layout's text is not in its canonical form")
    return layout


# ---- writing


def _text(layout: Layout) -> bytes:
    try:
        return json.dumps(_said(layout.root, 1), separators=(",", ":")).encode("ascii")
    except ValueError as exc:  # a whole number of thousands of digits, as a key
        raise BadLayout(f"a layout has no text: {exc}") from None


def _said(node: Leaf | Node, depth: int) -> list[Any]:
    if depth > MAX_DEPTH:
        raise BadLayout("a layout is nested too deeply")
    if isinstance(node, Leaf):
        return _said_leaf(node)
    children = [_said(child, depth + 1) for child in node.children]
    if node.type is dict:
        return ["dict", [[_said_key(key, depth + 1) for key in node.keys], children]]
    if node.type in (list, tuple):
        return [node.type.__name__, children]
    return ["named", _name(node.type), children]


def _said_leaf(leaf: Leaf) -> list[Any]:
    """Return its form; what has no name becomes None, which no reader takes."""
    if leaf.kind == "text":
        return ["text", leaf.type.__name__, leaf.dtype.__name__, leaf.nbytes]
    if leaf.kind == "scalar":
        of_numpy = NUMPY_NAMES.get(leaf.type)
        return ["scalar", leaf.type.__name__ if of_numpy is None else f"numpy.{of_numpy}", leaf.nbytes]
    return [leaf.kind, TORCH_NAMES.get(leaf.dtype), list(leaf.shape), leaf.nbytes]


def _said_key(key: Any, depth: int) -> Any:
    if type(key) is tuple and depth <= MAX_DEPTH:
        return [_said_key(part, depth + 1) for part in key]
    if key is None or type(key) in (str, int, bool):
        return key
    raise BadLayout("a layout has a key with no text")


def _name(kind: type) -> str:
    # A spawned process knows the training script under both names.
    module = "__main__" if kind.__module__ == "__mp_main__" else kind.__module__
    return f"{module}:{kind.__qualname__}"


# ---- reading


def _read(data: bytes, *, importing: bool) -> Layout:
    if len(data) > MAX_TEXT:  # guard: layout-length
        raise BadLayout(f"a layout's text has {len(data)} bytes; the limit is {MAX_TEXT}")
    try:
        said = json.loads(data.decode("ascii"))
    except (ValueError, RecursionError):
        raise BadLayout("a layout's text is not JSON") from None
    return Layout(_LayoutReader(importing).node(said, 1))


class _LayoutReader:
    """Checks one text and counts what it describes."""

    def __init__(self, importing: bool) -> None:
        self._importing = importing
        self._leaves = 0
        self._nbytes = 0

    def node(self, said: Any, depth: int) -> Leaf | Node:
        if depth > MAX_DEPTH:  # guard: layout-depth
            raise BadLayout(f"a layout is nested more than {MAX_DEPTH} deep")
        match said:
            case ["dict", [list(keys), list(children)]] if len(keys) == len(children):
                names = tuple(_key(key, depth + 1) for key in keys)
                if len(set(names)) < len(names):  # guard: layout-keys
                    raise BadLayout("a layout has a key twice")
                return Node(dict, names, self._children(children, depth))
            case ["list" | "tuple" as name, list(children)]:
                return Node(HOLDERS[name], (), self._children(children, depth))
            case ["named", str(name), list(children)]:
                return Node(_class(name, len(children), self._importing), (), self._children(children, depth))
        leaf = _leaf(said)
        self._leaves += 1
        self._nbytes += leaf.nbytes
        if self._leaves > MAX_LEAVES:  # guard: layout-leaves
            raise BadLayout(f"a layout has more than {MAX_LEAVES} leaves")
        if self._nbytes > MAX_BYTES:  # guard: layout-bytes
            raise BadLayout(f"a sample of a layout has more than {MAX_BYTES} bytes")
        return leaf

    def _children(self, said: list[Any], depth: int) -> tuple[Leaf | Node, ...]:
        if not said:
            raise BadLayout("a container of a layout is empty")
        return tuple(self.node(child, depth + 1) for child in said)


def _leaf(said: Any) -> Leaf:
    kind: Any
    match said:
        case ["tensor", str(name), list(shape), nbytes] if name in TORCH:
            kind, dtype = torch.Tensor, TORCH[name]
        case ["array", str(name), list(shape), nbytes] if name in IN_BOTH:
            kind, dtype = np.ndarray, TORCH[name]
        case ["scalar", str(name), nbytes] if name in NUMBERS:
            shape, (kind, dtype) = [], NUMBERS[name]
        case ["text", "str" | "bytes" as name, "list" | "tuple" as holder, nbytes]:
            return Leaf("text", TEXTS[name], HOLDERS[holder], (), _room(nbytes))
        case _:
            raise BadLayout(f"no part of a layout is described like this: {shown(said)}")
    due = _nbytes(shape, dtype.itemsize)
    if type(nbytes) is not int or nbytes != due:  # guard: layout-nbytes
        raise BadLayout(f"a leaf of {due} bytes is said to have {shown(nbytes)}")
    return Leaf(said[0], kind, dtype, tuple(shape), nbytes)


def _nbytes(shape: list[Any], itemsize: int) -> int:
    """Return the bytes of a leaf; its product is checked at each step, so that it never gets long."""
    if len(shape) > MAX_NDIM:  # guard: layout-ndim
        raise BadLayout(f"a leaf has {len(shape)} dimensions; the limit is {MAX_NDIM}")
    total = itemsize
    for size in shape:
        # An empty leaf has no lane that torch could view; `describe` never makes one.
        if type(size) is not int or not 1 <= size <= MAX_BYTES:  # guard: layout-shape
            raise BadLayout(f"{shown(size)} is no size of a dimension")
        total *= size
        if total > MAX_BYTES:
            raise BadLayout(f"a leaf has more than {MAX_BYTES} bytes")
    return total


def _room(nbytes: Any) -> int:
    # guard: layout-room
    if type(nbytes) is not int or not TEXT_MIN <= nbytes <= MAX_ROOM or nbytes & (nbytes - 1):
        raise BadLayout(f"{shown(nbytes)} is no room for a text")
    return nbytes


def _key(said: Any, depth: int) -> Any:
    if type(said) is list and depth <= MAX_DEPTH:
        return tuple(_key(part, depth + 1) for part in said)
    if said is None or type(said) in (str, int, bool):
        return said
    raise BadLayout(f"{shown(said)} is no key of a layout")


def _class(name: str, count: int, importing: bool) -> type:
    """Return the named tuple's class of this name with `count` fields."""
    module_name, _, path = name.partition(":")
    if importing and module_name not in sys.modules:  # guard: layout-imports-nothing
        try:
            import_module(module_name)
        except (ImportError, TypeError, ValueError) as exc:
            raise BadLayout(f"{shown(name)} cannot be imported: {exc}") from exc
    found: Any = sys.modules.get(module_name)
    if not issubclass(type(found), ModuleType):
        raise BadLayout(f"the module of {shown(name)} is not loaded here: import it first")
    space = object.__getattribute__(found, "__dict__")
    for part in path.split("."):
        found = space.get(part)
        if not issubclass(type(found), type):
            raise BadLayout(f"{shown(name)} is no class")
        space = type.__getattribute__(found, "__dict__")
    fields = _fields(found)
    if not issubclass(found, tuple) or type(fields) is not tuple:  # guard: layout-class
        raise BadLayout(f"{shown(name)} is no named tuple")
    if len(fields) != count:  # guard: layout-fields
        raise BadLayout(f"{shown(name)} has {len(fields)} fields, not {count}")
    kind: type = found
    return kind


def _fields(kind: type) -> Any:
    spaces = (type.__getattribute__(parent, "__dict__") for parent in type.__getattribute__(kind, "__mro__"))
    return next((space["_fields"] for space in spaces if "_fields" in space), None)
