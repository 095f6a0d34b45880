"""Holds the shape of the package by reading its source: nothing is imported here.

Rule 1: imports point one way, from later layers to earlier ones, wherever in a file they stand; parts of one layer may use
        each other, but not in a circle. Nor may modules, within a package too.
Rule 2: decisions are pure: they import only values and arithmetic. What a pure module uses of ours must be pure as well.
Rule 3: one module may unpickle or evaluate. What it reads comes over private pipes from our own processes.
Rule 4: `print` belongs to the command line.
Rule 5: files stay short enough to be read at one sitting.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
MAX_LINES = 450

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "config", "torch_private", "daemon_threads", "forks", "version"}),
    frozenset({"accel", "plan", "policy", "measure"}),
    frozenset({"dataset", "node", "wire", "sources", "transforms", "kernels"}),
    frozenset({"core", "worker", "pipeline", "lending"}),
    frozenset({"remote"}),
    frozenset({"agent", "cache", "epochs", "gpu", "reuse"}),
    frozenset({"client"}),
    frozenset({"loader", "sim"}),
    frozenset({"integrations", "report", "profiling", "cli", "testing", "__main__"}),
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}

PURE = ("penstock.plan", "penstock.policy", "penstock.core")
PURE_MAY_USE = frozenset(
    [
        "__future__",
        "abc",
        "bisect",
        "collections",
        "copy",
        "dataclasses",
        "enum",
        "fractions",
        "functools",
        "hashlib",
        "heapq",
        "itertools",
        "json",
        "math",
        "numbers",
        "operator",
        "re",
        "statistics",
        "string",
        "struct",
        "textwrap",
        "types",
        "typing",
    ]
)
NUMPY_MAY_BE_USED_IN = (
    "penstock.plan",
    "penstock.policy.homes",
    "penstock.policy.holdings",
    "penstock.policy.caching",
)
IMPURE_CALLS = frozenset({"open", "input", "print", "__import__"})

PICKLE_MODULES = frozenset({"penstock.wire.pickles"})
PICKLES = frozenset(
    [
        "pickle",
        "_pickle",
        "cPickle",
        "dill",
        "cloudpickle",
        "joblib",
        "marshal",
        "shelve",
        "multiprocessing.reduction",
        "torch.multiprocessing.reductions",
    ]
)
PASSES_DESCRIPTORS = frozenset(
    f"multiprocessing.reduction.{name}" for name in ("DupFd", "send_handle", "recv_handle")
)
PICKLING_CALLS = frozenset({"eval", "exec", "torch.load", "torch.jit.load"})


def within(module: str, parents: tuple[str, ...]) -> bool:
    return any(module == parent or module.startswith(f"{parent}.") for parent in parents)


def part_of(module: str) -> str:
    """`penstock.core.core` belongs to `core`; the package itself to ''."""
    return module.partition(".")[2].partition(".")[0]


def imports(module: str, tree: ast.AST, *, is_package: bool) -> Iterator[tuple[int, str, str]]:
    """(line, module, name or '') of every import, relative ones resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                drop = node.level - (1 if is_package else 0)
                parents = module.split(".")
                base = ".".join([*parents[: len(parents) - drop], *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, base, alias.name


def called(node: ast.Call) -> str:
    """`torch.load` for `torch.load(...)`; '' for what is not a plain dotted name."""
    names: list[str] = []
    target: ast.expr = node.func
    while isinstance(target, ast.Attribute):
        names.append(target.attr)
        target = target.value
    return ".".join(reversed([*names, target.id])) if isinstance(target, ast.Name) else ""


def direction(module: str, target: str, name: str) -> str | None:
    if target == "penstock" and name == "__version__":
        return None
    to = part_of(target) or name
    if to not in LEVEL:
        return f"'{target}' gives {name or 'everything'} to users; import it from the module that defines it"
    here = part_of(module)
    if here and LEVEL[to] > LEVEL[here]:
        return f"'{here}' may not import '{to}', which is built on it"
    return None


def purity(module: str, target: str) -> str | None:
    top = target.partition(".")[0]
    if top in PURE_MAY_USE or top == "penstock" or (top == "numpy" and within(module, NUMPY_MAY_BE_USED_IN)):
        return None
    return f"pure code may not import '{target}'"


def pickling(target: str, name: str) -> str | None:
    whole = f"{target}.{name}"
    if whole in PASSES_DESCRIPTORS:
        return None
    if within(target, tuple(PICKLES)) or whole in PICKLES | PICKLING_CALLS or name == "ForkingPickler":
        return f"only {', '.join(sorted(PICKLE_MODULES))} may use '{whole.rstrip('.')}'"
    return None


def violations(module: str, source: str, *, is_package: bool = False, pure: bool = False) -> list[str]:
    """What is wrong with one module of the package, a line each. `pure`: also when its name does not say so."""
    tree = ast.parse(source)
    found: list[tuple[int, str]] = []

    def note(line: int, complaint: str | None) -> None:
        if complaint:
            found.append((line, complaint))

    here = part_of(module)
    if here and here not in LEVEL:
        note(1, f"'{here}' has no place in LAYERS")
        here = ""
    pure = pure or within(module, PURE)
    for line, target, name in imports(module, tree, is_package=is_package):
        if target.partition(".")[0] == "penstock" and (here or module == "penstock"):
            note(line, direction(module, target, name))
        if pure:
            note(line, purity(module, target))
        if module not in PICKLE_MODULES:
            note(line, pickling(target, name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = called(node)
            if function == "print" and here != "cli":
                note(node.lineno, "'print' outside cli; use a logger")
            elif pure and function in IMPURE_CALLS:
                note(node.lineno, f"pure code may not call '{function}'")
            if function in PICKLING_CALLS and module not in PICKLE_MODULES:
                note(node.lineno, f"only {', '.join(sorted(PICKLE_MODULES))} may call '{function}'")
    return [f"{module}:{line}: {complaint}" for line, complaint in sorted(found)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    source: str
    is_package: bool = False

    def uses(self, name: str, known: Collection[str]) -> set[str]:
        """Modules of `known` that this one, called `name`, imports."""
        found: set[str] = set()
        for _, target, what in imports(name, ast.parse(self.source), is_package=self.is_package):
            found.add(f"{target}.{what}" if f"{target}.{what}" in known else target)
        return found.intersection(known)


def package() -> dict[str, Module]:
    found: dict[str, Module] = {}
    for path in sorted((SRC / "penstock").rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found[name] = Module(source=path.read_text("utf-8"), is_package=is_package)
    return found


def pure_modules(known: Mapping[str, Module]) -> set[str]:
    """The modules that must be pure: those of `PURE`, and what they use, and so on."""
    found: set[str] = set()
    waiting = [name for name in known if within(name, PURE)]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(known[name].uses(name, known))
    return found - {"penstock"}


def circles(edges: dict[str, set[str]]) -> list[str]:
    """Parts that can reach themselves."""

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = list(edges.get(start, ()))
        while waiting:
            part = waiting.pop()
            if part not in seen:
                seen.add(part)
                waiting.extend(edges.get(part, ()))
        return seen

    return sorted(part for part in edges if part in reach(part))


def test_every_module_keeps_the_rules() -> None:
    known = package()
    pure = pure_modules(known)
    found = [
        line
        for name, module in known.items()
        for line in violations(name, module.source, is_package=module.is_package, pure=name in pure)
    ]
    assert not found, "\n" + "\n".join(found)


def test_parts_do_not_import_each_other_in_a_circle() -> None:
    known = package()
    edges: dict[str, set[str]] = {}
    for name, module in known.items():
        edges.setdefault(part_of(name), set()).update(part_of(used) for used in module.uses(name, known))
    edges.pop("")  # the package itself only names what it exports
    assert circles({part: used - {part} for part, used in edges.items()}) == []


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    known = package()
    edges = {name: module.uses(name, known) - {name, "penstock"} for name, module in known.items()}
    assert circles(edges) == []


def test_at_most_one_module_unpickles() -> None:
    assert len(PICKLE_MODULES) == 1


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "examples", "scripts"])
def test_files_are_short(folder: str) -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines())
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {name: lines for name, lines in lengths.items() if lines >= MAX_LINES} == {}


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("penstock.plan.order", "from penstock.core import core", "'plan' may not import 'core'"),
        ("penstock.plan.order", "from ..core.core import State", "'plan' may not import 'core'"),
        ("penstock.core.core", "from .. import loader", "'core' may not import 'loader'"),
        ("penstock.wire.arena", "def f():\n    import penstock.loader", "'wire' may not import 'loader'"),
        (
            "penstock.worker.loop",
            "if TYPE_CHECKING:\n    from ..agent import loop",
            "'worker' may not import",
        ),
        ("penstock.loader", "from penstock import DataLoader", "import it from the module that defines it"),
        ("penstock.elsewhere", "", "'elsewhere' has no place in LAYERS"),
        ("penstock.plan.order", "import torch", "pure code may not import 'torch'"),
        ("penstock.plan.order", "import os.path", "pure code may not import 'os.path'"),
        ("penstock.policy.scaling", "from time import monotonic", "pure code may not import 'time'"),
        ("penstock.policy.scaling", "import numpy as np", "pure code may not import 'numpy'"),
        ("penstock.core.core", "import threading", "pure code may not import 'threading'"),
        ("penstock.core.ledger", "open('x')", "pure code may not call 'open'"),
        ("penstock.loader", "import pickle", "may use 'pickle'"),
        ("penstock.loader", "from pickle import loads", "may use 'pickle.loads'"),
        ("penstock.reuse.stores.log", "from multiprocessing.reduction import ForkingPickler", "may use"),
        (
            "penstock.reuse.stores.log",
            "from multiprocessing import reduction",
            "may use 'multiprocessing.reduction'",
        ),
        ("penstock.reuse.stores.log", "torch.load(file)", "may call 'torch.load'"),
        ("penstock.reuse.stores.log", "from torch import load", "may use 'torch.load'"),
        ("penstock.measure.trace", "eval('1')", "may call 'eval'"),
        ("penstock.agent.loop", "print('here')", "'print' outside cli"),
    ],
)
def test_a_violation_is_caught(module: str, source: str, complaint: str) -> None:
    found = violations(module, source)
    assert len(found) == 1, found
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("penstock.plan.order", "import numpy as np\nfrom ..errors import ConfigError\nfrom . import seeds"),
        ("penstock.core.core", "from ..policy import placement\nfrom .ledger import Ledger\nimport heapq"),
        (
            "penstock.agent.loop",
            "import os, time, threading\nfrom ..core import core\nfrom ..wire import arena",
        ),
        ("penstock.agent.loop", "from multiprocessing.reduction import DupFd"),
        ("penstock.cli.main", "from ..loader import DataLoader\nprint('hello')"),
        ("penstock.loader", "from . import __version__\nfrom penstock import errors"),
        *((module, "import pickle") for module in PICKLE_MODULES),
    ],
)
def test_what_the_rules_allow_passes(module: str, source: str) -> None:
    assert violations(module, source) == []


def test_a_relative_import_in_a_package_starts_at_the_package_itself() -> None:
    assert violations("penstock.plan", "from .order import Order", is_package=True) == []
    found = violations("penstock.plan", "from ..core import core", is_package=True)
    assert "'plan' may not import 'core'" in found[0]


def test_what_a_pure_module_uses_must_be_pure_too() -> None:
    known = {
        "penstock.core": Module(source="", is_package=True),
        "penstock.core.core": Module(source="from . import events\nfrom ..measure.clock import now"),
        "penstock.core.events": Module(source="from .operations import Move"),
        "penstock.core.operations": Module(source=""),
        "penstock.agent.loop": Module(source="from ..core import core\nimport os"),
        "penstock.measure.clock": Module(source="import time"),
    }
    assert pure_modules(known) == {
        "penstock.core",
        "penstock.core.core",
        "penstock.core.events",
        "penstock.core.operations",
        "penstock.measure.clock",
    }
    assert violations("penstock.measure.clock", "import time", pure=True)
    assert not violations("penstock.measure.clock", "import time")


def test_a_circle_of_parts_is_caught() -> None:
    assert circles(
        {"wire": {"worker"}, "worker": {"pipeline"}, "pipeline": {"wire"}, "loader": {"wire"}}
    ) == [
        "pipeline",
        "wire",
        "worker",
    ]


PLAIN = frozenset(
    f"penstock.pipeline.{name}"
    for name in ("begun", "staged", "deferred", "tar", "audio", "annotated", "adopt", "adopted_images")
)


def test_plain_datasets_know_nothing_of_reuse() -> None:
    known, found, waiting = package(), set[str](), list(PLAIN)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(known[name].uses(name, known))
    assert not [name for name in found if within(name, ("penstock.reuse", "penstock.plan.renewal"))]


def test_what_a_dataset_offers_is_declared_and_not_found_by_its_name() -> None:
    assert not [name for name, module in package().items() if "_penstock_" in module.source]
