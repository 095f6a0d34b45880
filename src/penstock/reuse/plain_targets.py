"""Targets as text, for a disk: numbers, strings, lists, tuples, dictionaries, numeric arrays and tensors, nested.

Rule 1: reading returns what was written, types included; anything else is refused on writing.
Rule 2: reading makes only such values, whatever the text says. A pickle from a disk could run code.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any

import numpy as np
import torch

AS_THEY_ARE = (type(None), bool, int, float, str)
NUMBERS = "biufc"


class Unwritable(TypeError):
    """A value of an unsupported type."""


def dumps(target: Any) -> bytes:
    """Raise Unwritable for unsupported types."""
    return json.dumps(_said(target)).encode("utf-8")


def loads(data: bytes) -> Any:
    return _meant(json.loads(data))


def _said(value: Any) -> Any:
    kind = type(value)
    if kind in AS_THEY_ARE:
        return value
    if kind is list or kind is tuple:
        return [kind.__name__, *map(_said, value)]
    if kind is dict:
        return ["dict", *([_said(key), _said(item)] for key, item in value.items())]
    if kind is bytes:
        return ["bytes", b64encode(value).decode()]
    if kind is torch.Tensor and value.device.type == "cpu" and value.layout is torch.strided:
        if value.requires_grad or value.is_conj() or value.is_neg() or value.dtype is torch.bfloat16:
            raise Unwritable("a tensor that is more than its numbers")
        return ["tensor", *_said(np.ascontiguousarray(value.numpy()).reshape(value.shape))[1:]]
    of_numbers = isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in NUMBERS
    if of_numbers and kind in (np.ndarray, value.dtype.type):
        what = "array" if kind is np.ndarray else "number"
        return [what, value.dtype.str, list(value.shape), b64encode(value.tobytes()).decode()]
    raise Unwritable(f"a {kind.__name__} cannot be written as text")


def _meant(said: Any) -> Any:
    if type(said) is not list:
        return said
    kind, *parts = said
    if kind in ("list", "tuple"):
        items = map(_meant, parts)
        return list(items) if kind == "list" else tuple(items)
    if kind == "dict":
        return {_meant(key): _meant(item) for key, item in parts}
    if kind == "bytes":
        return b64decode(parts[0])
    dtype, shape, data = parts
    values = np.frombuffer(b64decode(data), np.dtype(dtype)).reshape(shape).copy()
    if kind == "number":
        return values[()]
    return torch.from_numpy(values) if kind == "tensor" else values
