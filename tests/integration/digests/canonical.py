"""A batch or a checkpoint as a short digest that tells any two apart: type names, keys, dtypes, shapes and raw bytes.

Rule 1: a batch has three digests. `batches` is of everything. `order` leaves out the values of pixels and sound, which libraries and
        processors may round differently. `draws` is of what samples put under the key "draws", and of nothing else.
Rule 2: nothing here depends on the process: no `hash()`, no address, no order of a set.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

DRAWS = "draws"
PARTS = ("batches", "order", "draws")
PIXELS = frozenset({"uint8", "float16", "float32", "float64"})
"""Types that `order` knows by their shapes only."""


class Parts:
    """The three digests of one batch, while it is walked through."""

    def __init__(self) -> None:
        self._hashes = {name: blake2b(digest_size=4) for name in PARTS}

    def add(self, value: Any, *, drawn: bool = False) -> None:
        match value:
            case torch.Tensor():
                self._array(type(value).__name__, value.detach().contiguous().numpy(), drawn)
            case np.ndarray() | np.generic():
                self._array(type(value).__name__, np.asarray(value), drawn)
            case dict():
                self._say(f"{type(value).__name__} {len(value)}", drawn)
                for key, item in value.items():
                    self._say(f"key {key!r}", drawn)
                    self.add(item, drawn=drawn or key == DRAWS)
            case list() | tuple():
                self._say(f"{type(value).__name__} {len(value)}", drawn)
                for item in value:
                    self.add(item, drawn=drawn)
            case None | bool() | int() | float() | str() | bytes():
                self._say(f"{type(value).__name__} {value!r}", drawn)
            case _:
                raise TypeError(f"no canonical form of {type(value)}")

    def _say(self, text: str, drawn: bool) -> None:
        self._feed(f"{text};".encode(), drawn=drawn, order=not drawn)

    def _array(self, kind: str, values: Any, drawn: bool) -> None:
        name = str(values.dtype)
        self._say(f"{kind} {name} {tuple(values.shape)}", drawn)
        self._feed(values.tobytes(), drawn=drawn, order=not drawn and name not in PIXELS)

    def _feed(self, data: bytes, *, drawn: bool, order: bool) -> None:
        self._hashes["batches"].update(data)
        if drawn:
            self._hashes["draws"].update(data)
        if order:
            self._hashes["order"].update(data)

    def digests(self) -> dict[str, str]:
        return {name: found.hexdigest() for name, found in self._hashes.items()}


def parts_of(batch: Any) -> dict[str, str]:
    found = Parts()
    found.add(batch)
    return found.digests()


def short(text: str) -> str:
    return blake2b(text.encode(), digest_size=4).hexdigest()


def settled(state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint without the places of an iterable dataset's workers that have delivered nothing yet: whether such a worker has already
    said where it began depends on the moment, and it begins there in any case."""
    if "workers" not in state:
        return state
    heard = {worker: place for worker, place in state["workers"].items() if place.get("batches") != 0}
    return {**state, "workers": heard}


def as_json(state: Any) -> str:
    """A checkpoint as text. Tensors of the user's own states, the only things that JSON cannot hold, become lists."""
    return json.dumps(state, sort_keys=True, default=lambda value: value.tolist())
