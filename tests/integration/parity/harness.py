"""What a parity case is, and how its two outcomes are compared.

Rule 1: a case is a function from a loader class to an observation. It runs once with torch's class and once with ours,
        from the same state of all random generators, and never says itself what is right: torch's outcome does.
Rule 2: values, dtypes, shapes, strides, Python types, structure and dict order count. What may differ is said by the case
        (`Unordered`), with one exception: of an exception that crossed a process we require type, original message and the
        user's frames, not torch's wording around them.
Rule 3: every case also compares warnings and the next draw of the three global generators, and ours may
        leave nothing behind: no process, thread, descriptor or shared memory.

`PARITY_SUBJECT=torch` puts torch's loader in our place: the suite must pass then, or the suite is wrong.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import os
import random
import re
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from penstock.client import arguments
from tests.leaks import Snapshot

Loader = type[DataLoader[Any]]
Case = Callable[[Loader], object]

SUBJECT_IS_TORCH = os.environ.get("PARITY_SUBJECT") == "torch"
HERE = Path(__file__).parent
START_SEED = 20_011
END = "end of epoch"
TOO_MANY = "worker processes in total"


def subject() -> Loader:
    """The class under test."""
    if SUBJECT_IS_TORCH:
        return DataLoader
    loader: Loader = importlib.import_module("penstock").DataLoader
    return loader


@dataclasses.dataclass(frozen=True)
class Unordered:
    """Items whose order is not torch's to give, such as the samples of a plain `shuffle=True`."""

    items: Sequence[object]


@dataclasses.dataclass(frozen=True)
class Described:
    """A value that was described when it was seen, before anything could change it."""

    content: object


@dataclasses.dataclass(frozen=True)
class Raised:
    """An exception without its traceback object, which would keep the loader alive."""

    type: type[BaseException]
    text: str
    args: str
    rendered: str

    @classmethod
    def of(cls, exc: BaseException) -> Raised:
        return cls(exc.__class__, str(exc), repr(exc.args), "".join(traceback.format_exception(exc)))

    @property
    def crossed_a_process(self) -> bool:
        return "Original Traceback" in self.args

    @property
    def original_message(self) -> str:
        """The text of the exception that torch wrapped: what follows its name in the last line that begins with it."""
        if not self.text.startswith("Caught "):  # its type prints itself in its own way
            return self.text
        name = self.text.removeprefix("Caught ").split(" ", 1)[0]
        last = list(re.finditer(rf"^(?:[\w.<>]+\.)?{re.escape(name)}(?:: |$)", self.text, re.MULTILINE))[-1]
        return self.text[last.end() :].strip() or name

    @property
    def user_frames(self) -> set[tuple[str, str, str]]:
        """File, line and function of the frames that lie in this suite, the user's code of these cases."""
        found = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', self.rendered)
        return {(Path(f).name, line, name) for f, line, name in found if Path(f).parent == HERE}


def attempt(action: Callable[[], object]) -> object:
    """What `action` returns, or the exception it raises."""
    try:
        return action()
    except Exception as exc:
        return Raised.of(exc)


def drain(loader: Iterable[object], *, limit: int = 60) -> list[object]:
    """Every batch and every exception until the end of the epoch, as a caller sees them who goes on after errors.

    Batches are described when they arrive and once more at the end, when nothing may have changed them.
    """
    try:
        iterator = iter(loader)
    except Exception as exc:
        return [Raised.of(exc)]
    return drain_iterator(iterator, limit=limit)


def drain_iterator(iterator: Iterator[object], *, limit: int = 60) -> list[object]:
    events: list[object] = []
    kept: list[tuple[int, object]] = []
    for _ in range(limit):
        try:
            batch = next(iterator)
        except StopIteration:
            events.append(END)
            break
        except Exception as exc:
            events.append(Raised.of(exc))
        else:
            kept.append((len(events), batch))
            events.append(Described(describe(batch)))
    for at, batch in kept:
        assert Described(describe(batch)) == events[at], f"batch {at} changed after it was delivered"
    return events


def next_draws(*generators: torch.Generator) -> dict[str, object]:
    """The numbers each generator would give next, without drawing them."""
    python = random.Random()
    python.setstate(random.getstate())
    numpy = np.random.RandomState()
    numpy.set_state(np.random.get_state())
    return {
        "torch": _peek(torch.default_generator),
        "python": python.getrandbits(62),
        "numpy": int(numpy.randint(2**31)),
        "given": [_peek(generator) for generator in generators],
    }


def _peek(generator: torch.Generator) -> int:
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    return int(torch.randint(2**62, (), generator=copy))


def describe(value: object) -> object:
    """`value` as nested lists, dicts and atoms that compare and print by content and type."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    match value:
        case Raised() | Unordered():
            return value
        case Described():
            return value.content
        case torch.Tensor():
            return _describe_tensor(kind, value)
        case np.ndarray():
            return {
                "type": kind,
                "dtype": str(value.dtype),
                "shape": value.shape,
                "strides": value.strides,
                "values": repr(value.tolist()),
            }
        case None | bool() | int() | float() | complex() | str() | bytes() | np.generic() | torch.dtype():
            return [kind, repr(value)]
        case Mapping():
            return {"type": kind, "items": {_name(k): describe(v) for k, v in value.items()}}
        case list() | tuple() | Sequence():
            return {"type": kind, "items": [describe(item) for item in value]}
        case set() | frozenset():
            return {"type": kind, "items": sorted(repr(describe(item)) for item in value)}
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return {"type": kind, "fields": fields}
        case _ if hasattr(value, "__dict__") and not callable(value):
            return {"type": kind, "fields": {name: describe(v) for name, v in vars(value).items()}}
        case _:
            return [kind, repr(value)]


def _name(key: object) -> str:
    return repr(key) if isinstance(key, str | int) else repr(describe(key))


def _describe_tensor(kind: str, tensor: torch.Tensor) -> object:
    if tensor.is_nested:
        return {"type": kind, "items": [describe(part) for part in tensor.unbind()]}
    facts: dict[str, object] = {
        "type": kind,
        "dtype": str(tensor.dtype),
        "shape": tuple(tensor.shape),
        "layout": str(tensor.layout),
        "device": str(tensor.device),
        "requires_grad": tensor.requires_grad,
    }
    if tensor.layout is torch.strided:
        facts["strides"] = tensor.stride()
        facts["values"] = repr(tensor.detach().as_subclass(torch.Tensor).tolist())
    else:
        facts["values"] = repr(tensor.detach().to_dense().tolist())
    return facts


def differences(expected: object, actual: object, path: str = "$") -> Iterator[str]:
    """Where two described observations differ, one line each, torch's value first."""
    match expected, actual:
        case Raised(), Raised():
            yield from _exception_differences(expected, actual, path)
        case Unordered(a), Unordered(b):
            left, right = sorted(repr(describe(x)) for x in a), sorted(repr(describe(x)) for x in b)
            if left != right:
                yield f"{path}: torch {_short(left)}, ours {_short(right)} (order left out)"
        case dict(), dict():
            if list(expected) != list(actual):
                yield f"{path}: torch has keys {list(expected)}, ours {list(actual)}"
            for key in expected:
                if key in actual:
                    yield from differences(expected[key], actual[key], f"{path}.{key}")
        case list(), list() if len(expected) == len(actual):
            for at, (a, b) in enumerate(zip(expected, actual, strict=True)):
                yield from differences(a, b, f"{path}[{at}]")
        case _ if expected != actual:
            yield f"{path}: torch {_short(expected)}, ours {_short(actual)}"


def _short(value: object) -> str:
    text = _in_words(value)
    return text if len(text) <= 1500 else f"{text[:700]} ... {text[-700:]}"


def _in_words(described: object) -> str:
    match described:
        case Raised():
            return described.rendered
        case {"type": kind, "dtype": dtype, "shape": shape, "values": values}:
            return f"{kind}({values}, {dtype}, {shape})"
        case {"type": kind, "items": dict() as items}:
            return f"{kind}({', '.join(f'{key}: {_in_words(item)}' for key, item in items.items())})"
        case {"type": kind, "items": list() as items}:
            return f"{kind}({', '.join(_in_words(item) for item in items)})"
        case [str() as kind, str() as text] if "." in kind and " " not in kind:  # an atom
            return text
        case list():
            return f"[{', '.join(_in_words(item) for item in described)}]"
        case _:
            return repr(described)


def _exception_differences(expected: Raised, actual: Raised, path: str) -> Iterator[str]:
    if expected.type is not actual.type:
        yield f"{path}: torch raises {expected.type.__name__}, ours {_short(actual)}"
    elif not expected.crossed_a_process:
        if (expected.text, expected.args) != (actual.text, actual.args):
            yield f"{path}: torch says {expected.text!r} {expected.args}, ours {actual.text!r} {actual.args}"
    else:
        if expected.original_message not in actual.text:
            yield f"{path}: message {expected.original_message!r} is not in {actual.text!r}"
        if missing := expected.user_frames - actual.user_frames:
            yield f"{path}: frames {sorted(missing)} are not in {actual.rendered}"


def observe(loader_class: Loader, case: Case, *, draws: bool = True, warns: bool = True) -> dict[str, object]:
    """Run `case` from a fixed state of all generators."""
    torch.manual_seed(START_SEED)
    random.seed(START_SEED)
    np.random.seed(START_SEED)
    arguments._said = False
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = describe(case(loader_class))
        gc.collect()
    seen: dict[str, object] = {"result": result}
    if warns:
        seen["warnings"] = _once([_describe_warning(w) for w in caught if _counts(w)])
    if draws:
        seen["draws"] = next_draws()
    return seen


def _describe_warning(warning: warnings.WarningMessage) -> str:
    return f"{warning.category.__name__}: {warning.message}"


def _once(warnings: list[str]) -> list[str]:
    """Torch says that there are too many workers with every loader and epoch; ours says it once in a process."""
    first = next((at for at, text in enumerate(warnings) if TOO_MANY in text), None)
    return [text for at, text in enumerate(warnings) if TOO_MANY not in text or at == first]


def _counts(warning: warnings.WarningMessage) -> bool:
    # Interpreters differ on fork in threaded programs, and some warnings of torch's come once per process.
    if issubclass(warning.category, DeprecationWarning | PendingDeprecationWarning | ResourceWarning):
        return False
    return "Triggered internally at" not in str(warning.message)


def assert_same(case: Case, *, draws: bool = True, warns: bool = True) -> None:
    """Torch's loader and ours must come to the same observation, next draws and warnings included unless told."""
    expected = observe(DataLoader, case, draws=draws, warns=warns)
    before = Snapshot.take()
    try:
        actual = observe(subject(), case, draws=draws, warns=warns)
    except BaseException:
        before.kill_new_processes()
        raise
    leaks = [] if SUBJECT_IS_TORCH else before.leaks()
    before.kill_new_processes()
    assert not leaks, f"ours left behind: {leaks}"
    found = list(differences(expected, actual))
    assert not found, "ours differs from torch's loader:\n" + "\n".join(found)
