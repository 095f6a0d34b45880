"""Samples that cannot be prepared: one good error, or left out or replaced by rule, and never another number of batches."""

from __future__ import annotations

import errno
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock import ConfigError, DataLoader, SampleError, TooManySkipped
from tests.fault.datasets import Drawn, Harmful, Stream, counted, expected, same
from tests.fault.test_worker_death import drained

OPTIONS: dict[str, Any] = {"batch_size": 4, "seed": 11, "num_workers": 2}
INLINE = {**OPTIONS, "num_workers": 0}
BOTH = pytest.mark.parametrize("options", [OPTIONS, INLINE], ids=["workers", "inline"])


class Broken(Drawn):
    """Samples in `bad` raise."""

    def __init__(self, bad: set[int], length: int = 32) -> None:
        super().__init__(length)
        self.bad = bad

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self.bad:
            raise KeyError(f"no label for {index}")
        return super().__getitem__(index)


# ---- raise (default)


@BOTH
@pytest.mark.parametrize("collate", [None, list], ids=["slabs", "custom collate"])
def test_an_exception_keeps_its_type_and_the_next_batches_follow(
    options: dict[str, Any], collate: Any
) -> None:
    options = {**options, "collate_fn": collate}
    batches, errors = drained(DataLoader(Broken({9, 10, 21}), **options))
    clean = expected(Drawn(32), **options)[0]
    assert [type(error) for error in errors] == [KeyError, KeyError]
    assert same(batches, [clean[i] for i in (0, 1, 3, 4, 6, 7)])


def test_an_exception_carries_the_users_traceback_and_names_sample_position_batch_and_worker() -> None:
    _, (error,) = drained(DataLoader(Broken({9}), **OPTIONS))
    text = "".join(traceback.format_exception(error))
    assert "Original Traceback" in text
    assert 'raise KeyError(f"no label for {index}")' in text
    assert "penstock: sample 9 (position 9 of epoch 0, batch 2) failed in 'prepare' on worker " in text


def test_frames_of_ours_above_the_users_are_one_line() -> None:
    _, (error,) = drained(DataLoader(Broken({9}), **OPTIONS))
    said = str(error).splitlines()
    at = said.index("Original Traceback (most recent call last):")
    assert said[at + 1].endswith(" frames of penstock's own)")
    assert "in __getitem__" in said[at + 2]
    assert not any("penstock/worker" in line for line in said)


class Uneven(Drawn):
    """One sample is longer than the others."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(3, 5 if index == 9 else 4, dtype=torch.uint8)


@BOTH
@pytest.mark.parametrize("more", [{}, {"task_size": 1}, {"on_error": "skip"}])
def test_the_sample_that_does_not_go_with_the_others_is_named_in_a_note(
    options: dict[str, Any], more: dict[str, Any]
) -> None:
    _, (error,) = drained(DataLoader(Uneven(32), **options, **more))
    assert error.__notes__[0] == (
        "penstock: sample 9 has Tensor of uint8 (3, 5) in sample, where sample 8 has Tensor of uint8 (3, 4): give all samples of a "
        "batch one form, or a collate_fn that brings them together"
    )
    assert "penstock: " not in str(error), "once is enough"


def test_of_several_bad_samples_the_first_in_order_is_the_one_that_is_raised() -> None:
    for _ in range(5):
        _, (error,) = drained(DataLoader(Broken({20, 21, 22, 23}), task_size=1, **OPTIONS))
        assert "no label for 20" in str(error)


def test_a_missing_file_is_its_own_error_with_path_and_index_and_is_not_tried_again(tmp_path: Path) -> None:
    _, (error,) = drained(DataLoader(Files(tmp_path), **OPTIONS))
    assert isinstance(error, FileNotFoundError)
    assert error.errno in (errno.ENOENT, None)  # torch's rule for exceptions that cross processes drops it
    assert f"{tmp_path}/missing" in str(error)
    assert "sample 5 " in "".join(traceback.format_exception(error))
    assert counted(tmp_path, "opened") == 1


class Files(Drawn):
    def __init__(self, folder: Path) -> None:
        super().__init__(16)
        self.folder = folder

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5:
            (self.folder / f"opened.{index}").touch(exist_ok=False)
            (self.folder / "missing").read_bytes()
        return super().__getitem__(index)


@BOTH
def test_a_sample_of_another_shape_is_torchs_error_and_names_the_batch(options: dict[str, Any]) -> None:
    batches, errors = drained(DataLoader(Grows(at=9), **options))
    assert [type(error) for error in errors] == [RuntimeError]
    assert "stack expects each tensor to be equal size" in str(errors[0])
    assert same(batches, [b for i, b in enumerate(expected(Drawn(32), **options)[0]) if i != 2])


def test_the_error_of_a_wrong_shape_names_a_sample_of_that_shape() -> None:
    _, (error,) = drained(DataLoader(Grows(at=9), **OPTIONS))
    text = "".join(traceback.format_exception(error))
    assert "batch 2" in text


class Grows(Drawn):
    """One sample has another shape than the rest."""

    def __init__(self, at: int) -> None:
        super().__init__(32)
        self.at = at

    def __getitem__(self, index: int) -> torch.Tensor:
        sample = super().__getitem__(index)
        return torch.cat([sample, sample]) if index == self.at else sample


def test_a_dataset_whose_shape_changes_for_good_goes_on_with_the_new_one() -> None:
    loader = DataLoader(Changes(), **OPTIONS)
    assert [tuple(batch.shape) for batch in loader] == [(4, 1)] * 4 + [(4, 3)] * 4


class Changes(Drawn):
    def __init__(self) -> None:
        super().__init__(32)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1 if index < 16 else 3,), index)


# ---- skip and replace


@BOTH
def test_skipped_samples_leave_their_batch_shorter_and_are_listed(options: dict[str, Any]) -> None:
    loader = DataLoader(Broken({9, 10, 21}), on_error="skip", **options)
    batches = list(loader)
    clean = expected(Drawn(32), **OPTIONS)[0]
    clean[2], clean[5] = clean[2][[0, 3]], clean[5][[0, 2, 3]]
    assert same(batches, clean)
    assert [(s["key"], s["position"], s["epoch"]) for s in loader.skipped()] == [
        ("9", 9, 0),
        ("10", 10, 0),
        ("21", 21, 0),
    ]
    assert "no label for 9" in loader.skipped()[0]["error"]
    assert loader.stats()["skipped"] == 3


@pytest.mark.parametrize("collate", [None, list], ids=["slabs", "custom collate"])
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_what_is_left_out_or_put_in_does_not_depend_on_the_workers(on_error: str, collate: Any) -> None:
    bad = set(range(0, 32, 5))
    common = {"batch_size": 4, "shuffle": True, "seed": 5, "on_error": on_error, "collate_fn": collate}
    results = []
    for workers in (0, 1, 3):
        loader = DataLoader(Broken(bad), num_workers=workers, task_size=1, **common)
        results.append((list(loader), loader.skipped()))
    assert same(results[0], results[1])
    assert same(results[0], results[2])


@BOTH
def test_replaced_samples_keep_the_shape_of_their_batch(options: dict[str, Any]) -> None:
    loader = DataLoader(Broken({9, 10, 21}), on_error="replace", **options)
    assert [tuple(batch.shape) for batch in loader] == [(4, 4)] * 8
    replacements = {int(s["replaced_by"]) for s in loader.skipped()}
    assert len(loader.skipped()) == 3
    assert not replacements & {9, 10, 21}


@pytest.mark.parametrize("harm", ["SIGKILL", "_exit"])
@pytest.mark.parametrize("on_error", ["skip", "replace"])
@pytest.mark.parametrize("collate", [None, list], ids=["slabs", "custom collate"])
def test_a_sample_that_kills_its_workers_can_be_left_out_or_replaced(
    harm: str, on_error: str, collate: Any, tmp_path: Path
) -> None:
    options = {**OPTIONS, "collate_fn": collate}
    loader = DataLoader(Harmful(harm, 9, tmp_path, times=99, length=32), on_error=on_error, **options)
    batches = list(loader)
    assert [len(batch) for batch in batches] == [4, 4, 3 if on_error == "skip" else 4, 4, 4, 4, 4, 4]
    clean = expected(Drawn(32), **options)[0]
    assert same(batches[:2] + batches[3:], clean[:2] + clean[3:])
    (skip,) = loader.skipped()
    assert skip["key"] == "9"
    assert "its worker died each time it was prepared" in skip["error"]
    assert counted(tmp_path, "sample-9") == 3


def test_a_sample_that_hangs_its_workers_can_be_left_out(tmp_path: Path) -> None:
    loader = DataLoader(
        Harmful("sleep", 9, tmp_path, times=99, length=32), on_error="skip", hang_timeout=0.4, **OPTIONS
    )
    assert [len(batch) for batch in loader] == [4, 4, 3, 4, 4, 4, 4, 4]
    assert counted(tmp_path, "sample-9") == 2


@BOTH
def test_a_batch_whose_every_sample_fails_is_an_error_in_its_place(options: dict[str, Any]) -> None:
    loader = DataLoader(Broken({8, 9, 10, 11}), on_error="skip", **options)
    batches, errors = drained(loader)
    assert [type(error) for error in errors] == [SampleError]
    assert "every sample of batch 2 of epoch 0" in str(errors[0])
    assert same(batches, [b for i, b in enumerate(expected(Drawn(32), **OPTIONS)[0]) if i != 2])
    assert [s["key"] for s in loader.skipped()] == ["8", "9", "10", "11"]


@BOTH
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_more_than_max_skipped_is_an_error(options: dict[str, Any], on_error: str) -> None:
    loader = DataLoader(Broken({1, 5, 9, 13, 17}), on_error=on_error, max_skipped=3, **options)
    with pytest.raises(
        TooManySkipped, match=r"4 samples failed, more than max_skipped=3; the last: sample \d+: KeyError"
    ):
        list(loader)


@BOTH
def test_a_caller_who_goes_on_after_too_many_skips_still_gets_every_batch(options: dict[str, Any]) -> None:
    loader = DataLoader(Broken({1, 5, 9, 13, 17}), on_error="skip", max_skipped=3, **options)
    batches, errors = drained(loader)
    assert len(batches) + len(errors) >= 8
    assert {type(error) for error in errors} == {TooManySkipped}


@pytest.mark.parametrize("world", [1, 2, 3])
def test_skipping_does_not_change_the_number_of_batches_of_any_rank(world: int) -> None:
    counts = set()
    for rank in range(world):
        loader = DataLoader(
            Broken({0, 1, 2, 3, 7, 12}, 30), shuffle=True, shard=(rank, world), on_error="skip", **OPTIONS
        )
        counts.add(len(list(loader)))
        assert counts == {len(loader)}


@BOTH
def test_an_iterable_dataset_cannot_be_asked_to_skip(options: dict[str, Any]) -> None:
    options = {name: value for name, value in options.items() if name != "seed"}
    with pytest.raises(ConfigError, match="on_error needs a map-style dataset"):
        iter(DataLoader(Stream(), on_error="skip", **options))


def test_the_same_sample_skipped_in_two_epochs_is_listed_twice() -> None:
    loader = DataLoader(Broken({9}), on_error="skip", **OPTIONS)
    list(loader), list(loader)
    assert [(s["epoch"], s["key"]) for s in loader.skipped()] == [(0, "9"), (1, "9")]
