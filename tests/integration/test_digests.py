"""Batches, checkpoints and random draws are those of the revision that wrote `digests/digests.json`, for any number of workers.

`python -m tests.integration.digests --write` records new cases, and pixels and sound of machines and library versions that are new.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from tests.integration.digests.canonical import parts_of
from tests.integration.digests.case import SEED, Case
from tests.integration.digests.cases import CASES
from tests.integration.digests.checkpoints import following
from tests.integration.digests.files import Room, images, pattern
from tests.integration.digests.record import (
    CHECKPOINTS,
    DIGESTS,
    ON_MACHINE,
    WRITE,
    Record,
    differences,
    read_lines,
    run,
    ways,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:resuming an iterable dataset without state_dict"),
    pytest.mark.filterwarnings("ignore::penstock.SlowPathWarning"),
]
RECORDED, KEPT = read_lines(DIGESTS), read_lines(CHECKPOINTS)
OLD = sorted(name for name, entry in KEPT.items() if "state" in entry)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Room:
    return Room(tmp_path_factory.mktemp("digests"))


def need_libraries(case: Case) -> None:
    for library in case.made_by:
        if library not in (
            "cpu",
            "torchvision",
        ):  # the key asks for torchvision, which has a place of its own
            pytest.importorskip(library)
    assert case.key or not case.made_by


def expected(name: str, case: Case, lines: dict[str, Record]) -> tuple[Record, set[str]]:
    """What is recorded for machines like this one, and the parts that are compared."""
    assert name in lines, f"no record of {name!r}: {WRITE}"
    here = lines.get(f"{name} @ {case.key}") if case.made_by else {}
    record = {**lines[name], **(here or {})}
    left_out = {"order", "rest order"} if not case.made_by else set(ON_MACHINE) if here is None else set()
    return record, left_out


def end(name: str, case: Case, left_out: set[str]) -> None:
    if case.made_by and left_out:
        pytest.skip(
            f"order, checkpoints and draws of {name!r} are as recorded; its pixels or sound are not recorded for {case.key}: {WRITE}"
        )


@pytest.mark.parametrize("name", CASES)
def test_batches_checkpoints_and_draws_are_as_recorded(name: str, room: Room) -> None:
    case = CASES[name]
    need_libraries(case)
    record, left_out = expected(name, case, RECORDED)
    wrong: list[str] = []
    for how, found in ways(name, case, room):
        compared = {part: value for part, value in found.items() if part not in left_out}
        wrong += differences(f"{name}, {how}", record, compared)
    assert not wrong, "\n".join(["", *wrong])
    end(name, case, left_out)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", OLD)
def test_checkpoints_of_that_revision_load(name: str, workers: int, room: Room) -> None:
    entry = KEPT[name]
    case = CASES[entry["case"]]
    need_libraries(case)
    if case.workers is not None and workers == 0:
        pytest.skip("an iterable dataset goes on with the workers that it had")
    record, left_out = expected(name, case, KEPT)
    found = following(entry, room, num_workers=case.workers or workers)
    compared = {part: value for part, value in found.items() if part not in left_out}
    wrong = differences(name, record, compared)
    assert not wrong, "\n".join(["", *wrong])
    end(name, case, left_out)


def test_every_record_has_its_case() -> None:
    assert {name.partition(" @ ")[0] for name in RECORDED} == set(CASES)
    assert all(KEPT[name.partition(" @ ")[0]]["case"] in CASES for name in KEPT)


# ---- it can fail


def test_another_seed_is_noticed_and_the_case_and_its_parts_are_named(room: Room) -> None:
    name = "drawing: shuffled"
    found, _ = run(CASES[name], room, seed=SEED + 1)
    wrong = differences(name, RECORDED[name], {part: found[part] for part in ("batches", "draws", "states")})
    assert len(wrong) == 6, "of two epochs each"
    assert wrong[0] == "drawing: shuffled: batches of epoch 0 differ at 0, 1, 2, 3, 4, 5"


def test_draws_alone_are_noticed_apart_from_the_order(room: Room) -> None:
    name = "drawing: sequential"
    found, _ = run(CASES[name], room, seed=SEED + 1)
    before, _ = run(CASES[name], room)
    assert found["order"] == before["order"]
    assert found["draws"] != before["draws"]
    assert found["batches"] != before["batches"]


def test_one_pixel_is_noticed() -> None:
    pixels = pattern(0, 8, 9)
    changed = pixels.copy()
    changed[3, 4, 1] ^= 1
    one, other = parts_of([torch.from_numpy(pixels), 3]), parts_of([torch.from_numpy(changed), 3])
    assert one["batches"] != other["batches"]
    assert one["order"] == other["order"], "the pixels of other libraries are no other order"


def brighter(pixels: Any) -> Any:
    found = np.array(pixels)
    found[0, 0, 0] ^= 1
    return found


def test_one_pixel_of_one_step_is_noticed(room: Room) -> None:
    pytest.importorskip("PIL")
    from penstock import transforms as T

    case = CASES["folder: uint8"]
    dataset, keywords = case.make(room)
    transforms = [T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.RandomVerticalFlip()]
    kind = type(dataset)
    same = replace(case, make=lambda room: (kind(room.photos, transforms), keywords))
    other = replace(case, make=lambda room: (kind(room.photos, [*transforms, T.Lambda(brighter)]), keywords))
    before, _ = run(case, room)
    assert run(same, room)[0] == before
    found, _ = run(other, room)
    assert [part for part in before if found[part] != before[part]] == ["batches"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2], (1, 2)),
        ({"a": 1}, {"b": 1}),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(2), np.zeros(2, np.float32)),
        (1, True),
        (1, 1.0),
        ("1", 1),
        (["a", "b"], ["ab"]),
        (None, "None"),
    ],
)
def test_other_types_keys_and_shapes_are_other_batches(one: Any, other: Any) -> None:
    assert parts_of(one)["batches"] != parts_of(other)["batches"]


def test_the_files_are_what_their_libraries_read() -> None:
    """PNG files are written by hand here."""
    pillow: Any = pytest.importorskip("PIL.Image")
    from io import BytesIO

    suffix, data = images()[-1]
    assert suffix == "png"
    assert np.array_equal(np.asarray(pillow.open(BytesIO(data))), pattern(3, 71, 55))
    assert import_module("PIL").__version__
