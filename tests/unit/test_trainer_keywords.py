"""Our keywords are the fields of `LoaderConfig`: the signature, the attributes and what trainers carry over agree with them."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields
from pathlib import Path

import pytest
from torch.utils.data import DataLoader as TorchDataLoader

import penstock
from penstock import ConfigError, DataLoader
from penstock.client.arguments import TorchArguments
from penstock.config import KEYWORDS, LoaderConfig


def parameters(kind: type) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(kind).parameters)


def test_the_constructor_has_torchs_parameters_and_then_the_fields_of_the_config() -> None:
    ours, torchs = parameters(DataLoader), parameters(TorchDataLoader)
    assert list(ours) == [*torchs, *KEYWORDS]
    config = {field.name: (field.type, field.default) for field in fields(LoaderConfig)}
    assert {name: (ours[name].annotation, ours[name].default) for name in KEYWORDS} == config


def test_torchs_arguments_are_all_of_them_but_shuffle() -> None:
    assert [field.name for field in fields(TorchArguments)] == [
        name for name in parameters(TorchDataLoader) if name != "shuffle"
    ]


def test_every_parameter_is_an_attribute_of_the_same_name_but_shuffle_which_lives_on_in_the_sampler() -> None:
    loader = DataLoader(range(4))
    assert [name for name in parameters(DataLoader) if not hasattr(loader, name)] == ["shuffle"]


def test_a_loader_built_from_anothers_keywords_has_them() -> None:
    given = {"seed": 3, "task_size": 2, "prefetch_batches": 5, "on_error": "skip", "slab_bytes": "8MiB"}
    loader = DataLoader(range(4), **given)
    again = DataLoader(range(4), **loader.penstock_keywords)
    assert again.penstock_keywords == loader.penstock_keywords
    assert given.items() <= again.penstock_keywords.items()


def test_a_sharded_loader_can_be_built_anew_from_its_own_attributes() -> None:
    loader = DataLoader(range(10), 2, shuffle=True, shard=(1, 2), seed=1)
    again = DataLoader(range(10), 2, sampler=loader.sampler, shard=loader.shard, seed=1)
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in loader]


def test_a_keyword_that_is_set_after_construction_is_followed_and_checked() -> None:
    loader: DataLoader[int] = DataLoader(range(4), on_error="raise")
    before = loader._config
    assert loader._config is before
    vars(loader)["on_error"] = "skip"
    assert loader._config.on_error == loader.penstock_keywords["on_error"] == "skip"
    vars(loader)["on_error"] = "ignore"
    with pytest.raises(ConfigError, match="on_error must be one of raise, skip, replace, got 'ignore'"):
        iter(loader)


def test_no_function_takes_a_loader_of_any_kind() -> None:
    """What a function needs of a loader is in `LoaderConfig`, `TorchArguments` or an object with a type of its own."""
    found = [
        f"{path.name}: {node.name}"
        for path in Path(penstock.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef)
        for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        if argument.arg == "loader" and ast.unparse(argument.annotation or ast.Name("Any")) == "Any"
    ]
    assert found == []
