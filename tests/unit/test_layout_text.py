"""Layouts as text: equal bytes for equal layouts, and a reader that takes nothing else and runs nothing."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import namedtuple
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from penstock.wire import layout_text
from penstock.wire.dtypes import NUMPY, TORCH
from penstock.wire.layout import Layout, Leaf, Node, describe
from penstock.wire.layout_blobs import from_blob, to_blob
from penstock.wire.layout_text import BadLayout, pack, unpack
from tests.unit.test_layout import SAMPLES, TREES, grown

INT = ["scalar", "int", 8]
SPECIAL = {"a": [torch.zeros(2, 3), ("text", b"bytes", 1, 2.5)], ("k", 1, None): {True: np.zeros(4)}}


class Pair(NamedTuple):
    left: Any
    right: Any

    class Inner(NamedTuple):
        only: Any


class Wider(Pair):
    """Has fields by inheritance."""


class Colour(IntEnum):
    RED = 1


class Plain(tuple):
    """A tuple without fields."""


def layout_of(sample: Any) -> Layout:
    layout = describe(sample)
    assert layout is not None
    return layout


def texted(said: Any) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode()


# ---- there and back


@pytest.mark.parametrize(
    "kind", [kind for kind in SAMPLES if kind not in ("a named tuple", "everything nested")]
)
def test_a_layout_comes_back_from_its_text(kind: str) -> None:
    layout = layout_of(SAMPLES[kind](3))
    data = pack(layout)
    assert data is not None
    assert unpack(data) == layout
    assert pack(unpack(data)) == data


@settings(max_examples=60)
@given(tree=TREES)
def test_the_text_of_any_sample_is_its_layout(tree: Any) -> None:
    layout = layout_of(grown(tree, 1))
    data = pack(layout)
    assert data is None or unpack(data) == layout
    assert from_blob(to_blob(layout)) == layout


@pytest.mark.parametrize("name", TORCH)
def test_every_dtype_of_the_table_has_a_name(name: str) -> None:
    dtype = TORCH[name]
    layout = Layout(Leaf("tensor", torch.Tensor, dtype, (3, 1), 3 * dtype.itemsize))
    data = pack(layout)
    assert data is not None
    assert unpack(data) == layout


@pytest.mark.parametrize(
    "name", sorted(set(NUMPY) - {"uint64", "ulonglong"})
)  # torch collates no such numbers
def test_every_number_of_numpy_has_a_name(name: str) -> None:
    layout = layout_of(NUMPY[name](1))
    data = pack(layout)
    assert data is not None
    assert unpack(data) == layout


@pytest.mark.parametrize("sample", [Pair(1, "a"), Pair.Inner(torch.ones(2)), {"x": Wider(1, 2)}])
def test_a_named_tuple_is_found_by_its_name(sample: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, Pair.__module__, this_module())
    layout = layout_of(sample)
    data = pack(layout)
    assert data is not None
    assert unpack(data) == layout


def this_module() -> ModuleType:
    """Pytest may import tests without listing them among the loaded modules."""
    module = ModuleType(Pair.__module__)
    module.__dict__.update(globals())
    return module


def test_a_class_of_the_training_script_has_one_name_in_spawned_processes_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = ModuleType("__main__")
    script.Point = namedtuple("Point", "x y", module="__mp_main__")  # type: ignore[attr-defined]  # noqa: PYI024
    monkeypatch.setitem(sys.modules, "__main__", script)
    data = pack(layout_of(script.Point(1, 2)))
    assert data is not None
    assert b'"__main__:Point"' in data


def test_equal_layouts_have_equal_bytes_in_every_process() -> None:
    program = """if True:
        import numpy as np, torch, hashlib
        from penstock.wire.layout import describe
        from penstock.wire.layout_text import pack
        print(hashlib.sha256(pack(describe({"a": [torch.zeros(2, 3), ("text", b"bytes", 1, 2.5)],
            ("k", 1, None): {True: np.zeros(4)}}))).hexdigest())"""
    mine = pack(layout_of(SPECIAL))
    assert mine is not None
    env = {"PYTHONPATH": str(Path(layout_text.__file__).parents[2]), "PYTHONHASHSEED": "7"}
    said = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == hashlib.sha256(mine).hexdigest()


def test_the_text_is_what_it_was() -> None:
    """Machines with different versions of Penstock would call one layout by two names."""
    assert pack(layout_of(SPECIAL)) == (
        b'["dict",[["a",["k",1,null]],[["list",[["tensor","float32",[2,3],24],["tuple",[["text","str","tuple",256],'
        b'["text","bytes","tuple",256],["scalar","int",8],["scalar","float",8]]]]],["dict",[[true],'
        b'[["array","float64",[4],32]]]]]]]'
    )


# ---- what has no text is pickled, between our own processes


def nested(depth: int) -> Any:
    return 1 if depth == 1 else [nested(depth - 1)]


NO_TEXT: dict[str, Any] = {
    "a key that is a number with a point": {1.5: 1},
    "a key of an enumeration": {Colour.RED: 1},
    "a key of bytes": {b"a": 1},
    "a key of numpy": {np.int64(1): 1},
    "a key of two halves that JSON would join": {"\ud83d\ude00": 1},
    "a long whole number as a key": {10**5000: 1},
    "a tuple of such keys": {(1, 2.5): 1},
    "nine dimensions": torch.zeros((1,) * 9),
    "33 levels": nested(33),
    "4097 leaves": [1] * 4097,
    "a long key": {"a" * (1 << 20): 1},
}


@pytest.mark.parametrize("kind", NO_TEXT)
def test_a_layout_without_a_text_travels_as_a_pickle(kind: str) -> None:
    layout = layout_of(NO_TEXT[kind])
    assert pack(layout) is None
    blob = to_blob(layout)
    assert blob[:1] == b"P"
    assert from_blob(blob) == layout


@pytest.mark.parametrize("sample", [nested(32), [1] * 4096, torch.zeros((1,) * 8), {(((),),): 1}])
def test_a_layout_at_the_limits_has_a_text(sample: Any) -> None:
    layout = layout_of(sample)
    assert to_blob(layout)[:1] == b"J"
    assert from_blob(to_blob(layout)) == layout


def test_a_class_that_cannot_be_found_by_its_name_has_no_text() -> None:
    local = namedtuple("local", "x")  # noqa: PYI024
    assert pack(Layout(Node(local, (), (layout_of(1).root,)))) is None


def test_our_own_processes_import_the_module_of_a_class_and_others_text_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_late.py").write_text(
        "from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    data = texted(["named", "imported_late:P", [INT]])
    with pytest.raises(BadLayout, match="not loaded here"):
        unpack(data)
    assert "imported_late" not in sys.modules
    try:
        assert from_blob(b"J" + data).root.type.__name__ == "P"  # type: ignore[union-attr]
    finally:
        sys.modules.pop("imported_late", None)


# ---- what is refused


def leaf(shape: Any, nbytes: Any, dtype: Any = "uint8", kind: str = "tensor") -> Any:
    return [kind, dtype, shape, nbytes]


def text(room: Any) -> Any:
    return ["text", "str", "list", room]


BAD: dict[str, tuple[Any, str]] = {
    "no description": (None, "no part of a layout"),
    "a number": (1, "no part of a layout"),
    "another kind": (["object", "int", 8], "no part of a layout"),
    "an unhashable kind": ([[], 1, 2], "no part of a layout"),
    "a part too many": ([*INT, 1], "no part of a layout"),
    "an unknown dtype": (leaf([1], 1, "qint8"), "no part of a layout"),
    "a dtype that is something else": (leaf([1], 1, "load"), "no part of a layout"),
    "a dtype that is no text": (leaf([1], 1, ["uint8"]), "no part of a layout"),
    "an array of a dtype that numpy lacks": (leaf([1], 2, "bfloat16", "array"), "no part of a layout"),
    "a scalar of no such type": (["scalar", "object", 8], "no part of a layout"),
    "a scalar of another size": (["scalar", "int", 4], "a leaf of 8 bytes is said to have 4"),
    "nine dimensions": (leaf([1] * 9, 1), "9 dimensions; the limit is 8"),
    "a negative size": (leaf([-1, -1], 1), "-1 is no size"),
    "an empty leaf": (leaf([0, 3], 0), "0 is no size"),
    "a size with a point": (leaf([1.0], 1), "1.0 is no size"),
    "a size that is a truth value": (leaf([True], 1), "True is no size"),
    "a product that wraps around": (leaf([1 << 32, 1 << 32], 0), "more than 1099511627776 bytes"),
    "a huge dimension": (leaf([10**4000], 0), "is no size"),
    "fewer bytes than its shape has": (leaf([2, 3], 5), "a leaf of 6 bytes is said to have 5"),
    "more bytes than its shape has": (leaf([2, 3], 7), "a leaf of 6 bytes is said to have 7"),
    "bytes with a point": (leaf([2, 3], 6.0), "a leaf of 6 bytes is said to have 6.0"),
    "many leaves that are too large together": (
        ["list", [leaf([1 << 39], 1 << 39)] * 3],
        "a sample of a layout has more",
    ),
    "a text of no room": (text(0), "0 is no room"),
    "a text of too little room": (text(128), "128 is no room"),
    "a text of odd room": (text(257), "257 is no room"),
    "a text of too much room": (text(1 << 35), "is no room"),
    "a text whose room is a text": (text("256"), "is no room"),
    "texts in another holder": (["text", "str", "set", 256], "no part of a layout"),
    "an empty list": (["list", []], "is empty"),
    "an empty dict": (["dict", [[], []]], "is empty"),
    "more keys than values": (["dict", [["a", "b"], [INT]]], "no part of a layout"),
    "a key twice": (["dict", [["a", "a"], [INT, INT]]], "a key twice"),
    "a key twice by equality": (["dict", [[1, True], [INT, INT]]], "a key twice"),
    "a key that is an object": (["dict", [[{"a": 1}], [INT]]], "no key of a layout"),
    "a key that is nested too deeply": (
        ["dict", [[json.loads("[" * 40 + "]" * 40)], [INT]]],
        "no key of a layout",
    ),
    "33 levels": (json.loads('["list",[' * 32 + '["scalar","int",8]' + "]]" * 32), "more than 32 deep"),
    "4097 leaves": (["list", [INT] * 4097], "more than 4096 leaves"),
    "a class of a module that is not loaded": (["named", "antigravity:X", [INT]], "not loaded here"),
    "a module alone": (["named", "sys", [INT]], "is no class"),
    "a function": (["named", "os:system", [INT]], "is no class"),
    "a class that is no tuple": (["named", "subprocess:Popen", [INT]], "is no named tuple"),
    "a tuple without fields": (["named", "builtins:tuple", [INT]], "is no named tuple"),
    "fields without a tuple": (["named", "ast:Add", [INT]], "is no named tuple"),
    "another number of fields": (["named", "urllib.parse:SplitResult", [INT]], "has 5 fields, not 1"),
    "a class by another module's name": (
        ["named", "urllib.request:SplitResult", [INT] * 5],
        "is no class|canonical",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_layout_is_refused_with_a_reason(kind: str) -> None:
    said, reason = BAD[kind]
    with pytest.raises(BadLayout, match=reason):
        unpack(texted(said))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b'["scalar","int",8', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[" * 500_000 + b"]" * 500_000, "not JSON|no part of a layout"),
        ('["scalar","ïnt",8]'.encode(), "not JSON"),
        ('["scalar","int",8]'.encode("utf-16"), "not JSON"),
        (b"9" * 5000, "not JSON"),
        (b'["scalar", "int", 8]', "canonical"),
        (b'["scalar","\\u0069nt",8]', "canonical"),
        (b' ["scalar","int",8]', "canonical"),
        (b'["scalar","int",8]' + b" " * (1 << 20), "the limit is"),
    ],
    ids=range(11),
)
def test_other_spellings_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(BadLayout, match=reason):
        unpack(data)


def test_a_class_is_known_by_its_own_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two names for one class would make two layouts of one."""
    here = ModuleType("somewhere")
    here.Other = Pair  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "somewhere", here)
    with pytest.raises(BadLayout, match="canonical"):
        unpack(texted(["named", "somewhere:Other", [INT, INT]]))


def test_looking_for_a_class_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            ran.append(name)
            return super().__getattribute__(name)

    lazy, helpful = Lazy("lazy"), ModuleType("helpful")
    helpful.__getattr__ = ran.append  # type: ignore[method-assign, assignment]
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    monkeypatch.setitem(sys.modules, "helpful", helpful)
    monkeypatch.setitem(sys.modules, "odd", ran)  # type: ignore[arg-type]
    ran.clear()
    for name in ("lazy:Point", "helpful:Point", "odd:Point", "lazy:__class__", "helpful:__getattr__"):
        with pytest.raises(BadLayout):
            unpack(texted(["named", name, [INT]]))
    assert ran == []
