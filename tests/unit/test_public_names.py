"""What `import penstock` gives, and what it must not cost."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys

import pytest

import penstock
from penstock import errors

# The agent imports these before anything else, and must not pay for torch.
TORCH_FREE = (
    "penstock.errors",
    "penstock.config",
    "penstock.plan",
    "penstock.policy",
    "penstock.core.core",
    "penstock.core.ledger",
    "penstock.agent.loop",
    "penstock.node.link",
    "penstock.node.process",
    "penstock.node.service",
)


NO_ERRORS = (
    "AnnotatedDataset",
    "AudioFolder",
    "Cache",
    "DataLoader",
    "GpuPrep",
    "ImageFolder",
    "Profile",
    "Remote",
    "Reuse",
    "StagedDataset",
    "TarDataset",
    "__version__",
    "profile",
    "progress",
)


def test_importing_the_package_and_the_agents_modules_does_not_import_torch() -> None:
    script = f"""
import importlib, importlib.util, sys
import penstock
dir(penstock)
for name in {TORCH_FREE!r}:
    if importlib.util.find_spec(name):
        importlib.import_module(name)
assert "torch" not in sys.modules
"""
    path = str(inspect.getfile(penstock)).removesuffix("/penstock/__init__.py")
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": path}, timeout=60)


def test_every_public_error_is_exported_as_itself() -> None:
    tree = [
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    ]
    assert sorted(tree) == sorted(name for name in penstock.__all__ if name not in NO_ERRORS)
    assert all(getattr(penstock, name) is getattr(errors, name) for name in tree)


def test_type_checkers_see_the_names_that_users_get() -> None:
    tree = ast.parse(inspect.getsource(penstock))
    seen = {
        alias.name
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert seen == set(penstock._HOME)
    assert seen | {"__version__"} == set(penstock.__all__)


def test_names_are_listed_before_they_are_used() -> None:
    assert set(penstock.__all__) <= set(dir(penstock))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'penstock' has no attribute 'Dataloader'"):
        penstock.Dataloader  # noqa: B018
