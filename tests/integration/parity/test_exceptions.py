"""Exceptions from every place where user code runs: torch's type, the original message and traceback, and then going on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from .datasets import Fails, Made, OutOfOrder, Scaled, Streamed, keep
from .harness import SUBJECT_IS_TORCH, Loader, Raised, assert_same, attempt, drain, subject


class NeedsTwo(Exception):
    def __init__(self, path: str, code: int) -> None:
        super().__init__(f"{path} failed with {code}")
        self.path, self.code = path, code


class WithMessage(Exception):
    """Has a class attribute that makes torch pass the text by keyword."""

    message = "unset"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class HoldsALock(ValueError):
    """An instance of it cannot be pickled; its type can."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class RefusesToPrint(ValueError):
    def __str__(self) -> str:
        return "printed by itself"


def chained(key: int) -> BaseException:
    try:
        raise KeyError("the cause")
    except KeyError as cause:
        error = RuntimeError("the effect")
        error.__cause__ = cause
        return error


def noted(key: int) -> BaseException:
    error = ValueError("has a note")
    error.add_note("the user's own note")
    return error


Error = Callable[[int], BaseException]
ERRORS: dict[str, Error] = {
    "value error": lambda k: ValueError(f"bad sample {k}"),
    "no message": lambda k: AssertionError(),
    "several lines": lambda k: ValueError("first line\nsecond line"),
    "key error": lambda k: KeyError('it\'s a "key"'),
    "key error with a number": KeyError,
    "index error": lambda k: IndexError("list index out of range"),
    "missing file": lambda k: FileNotFoundError(2, "No such file or directory", f"/data/{k}.jpg"),
    "needs two arguments": lambda k: NeedsTwo("disk", k),
    "unicode": lambda k: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    "message attribute": lambda k: WithMessage("by keyword"),
    "unpicklable": lambda k: HoldsALock(f"locked {k}"),
    "prints itself": lambda k: RefusesToPrint("unused"),
    "group": lambda k: ExceptionGroup("several", [ValueError("one"), TypeError("two")]),
    "chained": chained,
    "noted": noted,
    "stop iteration": lambda k: StopIteration("not an end"),
    "generator exit as error": lambda k: RuntimeError("generator raised StopIteration"),
    "out of memory": lambda k: MemoryError("too much"),
    "torch's": lambda k: torch.OutOfMemoryError("lane full"),
    "timeout": lambda k: TimeoutError("the source was silent"),
    "os error": lambda k: OSError(28, "No space left on device"),
    "broken pipe": lambda k: BrokenPipeError("the user's own pipe"),
    "end of file": lambda k: EOFError("the user's own file"),
    "not implemented": lambda k: NotImplementedError(),
}


ALONE = ["value error", "key error", "needs two arguments", "unpicklable", "stop iteration"]


@pytest.mark.parametrize(
    ("name", "num_workers"), [*((name, 0) for name in ERRORS), *((name, 2) for name in ALONE)]
)
def test_an_error_of_a_sample_arrives_and_the_next_batches_follow(name: str, num_workers: int) -> None:
    assert_same(lambda L: drain(L(Fails(9, [3], ERRORS[name]), 2, num_workers=num_workers)))


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_errors_of_all_kinds_after_each_other_arrive_from_workers(num_workers: int) -> None:
    kinds = [name for name in ERRORS if name != "stop iteration"]

    def fail(key: int) -> BaseException:
        return ERRORS[kinds[key // 3]](key)

    def case(loader_class: Loader) -> object:
        dataset = Fails(3 * len(kinds), range(1, 3 * len(kinds), 3), fail)
        events = drain(loader_class(dataset, 1, num_workers=num_workers), limit=100)
        assert len(events) == len(dataset) + 1
        return events

    assert_same(case)


WHERE: dict[str, list[int]] = {
    "first batch": [0],
    "last batch": [8],
    "all batches": list(range(9)),
    "several in one batch": [2, 3],
    "neighbours": [3, 4],
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_errors_arrive_in_the_place_of_their_batches(where: str, num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        dataset = Fails(9, WHERE[where], lambda k: ValueError(f"bad sample {k}"))
        loader = loader_class(dataset, 2, num_workers=num_workers)
        return [drain(loader), drain(loader)]

    assert_same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_errors_without_batching(num_workers: int) -> None:
    assert_same(lambda L: drain(L(Fails(5, [0, 3], ERRORS["key error"]), None, num_workers=num_workers)))


def test_errors_of_persistent_workers_leave_the_next_epoch_whole() -> None:
    def case(loader_class: Loader) -> object:
        loader = loader_class(Fails(9, [3], ERRORS["value error"]), 2, num_workers=2, persistent_workers=True)
        return [drain(loader), drain(loader)]

    assert_same(case)


def fail_on_large_keys(samples: list[int]) -> list[int]:
    if max(samples) > 6:
        raise LookupError("no batch of these")
    return samples


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_of_the_collate_function_arrives_and_the_next_batches_follow(num_workers: int) -> None:
    keys = OutOfOrder([1, 2, 8, 3, 4, 5])
    assert_same(
        lambda L: drain(
            L(Made(9, int), 2, sampler=keys, collate_fn=fail_on_large_keys, num_workers=num_workers)
        )
    )


class FailsWhole(Dataset[int]):
    def __getitem__(self, key: int) -> int:
        raise AssertionError("not asked for")

    def __getitems__(self, keys: list[int]) -> list[int]:
        if 3 in keys:
            raise ValueError(f"cannot read {keys}")
        return keys

    def __len__(self) -> int:
        return 6


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_of_whole_batches_arrives_and_the_next_batches_follow(num_workers: int) -> None:
    assert_same(lambda L: drain(L(FailsWhole(), 2, num_workers=num_workers)))


def fail_to_start(worker_id: int) -> None:
    raise OSError(f"worker {worker_id} has no licence")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_of_worker_init_fn_arrives_at_the_first_batch(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        loader = loader_class(Scaled(4), 2, num_workers=num_workers, worker_init_fn=fail_to_start)
        return attempt(lambda: next(iter(loader)))

    assert_same(case)


class FailsToBegin(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        raise ConnectionError("the source is away")


class FailsInside(IterableDataset[int]):
    """A generator, dead after its error."""

    def __iter__(self) -> Iterator[int]:
        yield from range(5)
        raise ConnectionError("the source went away")


class FailsOnce(IterableDataset[int]):
    """An iterator that can go on after its error."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at == 4:
            raise ConnectionError("a hiccup")
        if self.at > 9:
            raise StopIteration
        return self.at


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_of_iter_of_an_iterable_dataset_arrives(num_workers: int) -> None:
    assert_same(lambda L: attempt(lambda: next(iter(L(FailsToBegin(), 2, num_workers=num_workers)))))


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("dataset", [FailsInside, FailsOnce])
@pytest.mark.parametrize("batch_size", [2, None])
def test_an_error_inside_an_iterable_dataset_arrives_and_the_rest_follows(
    dataset: Callable[[], Any], batch_size: int | None, num_workers: int
) -> None:
    assert_same(lambda L: drain(L(dataset(), batch_size, num_workers=num_workers)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_of_collate_over_an_iterable_dataset_arrives_and_the_rest_follows(num_workers: int) -> None:
    assert_same(lambda L: drain(L(Streamed(9), 2, collate_fn=fail_on_large_keys, num_workers=num_workers)))


def failing_sampler(good: int) -> Iterator[int]:
    yield from range(good)
    raise ArithmeticError("the sampler is wrong")


@pytest.mark.parametrize("good", [0, 1, 7])
def test_an_error_of_a_sampler_arrives_where_torch_has_it_without_workers(good: int) -> None:
    assert_same(lambda L: drain(L(Scaled(20), 2, sampler=failing_sampler(good))))


@pytest.mark.parametrize("good", [0, 6, 13])
def test_an_error_of_a_sampler_ends_the_epoch_after_a_prefix_of_its_batches(good: int) -> None:
    """With workers torch loses the batch that was to be returned when the sampler failed; no batch has to be lost."""

    def case(loader_class: Loader) -> object:
        events = drain(loader_class(Made(20, int), 2, sampler=failing_sampler(good), num_workers=2))
        until = next(at for at, event in enumerate(events) if isinstance(event, Raised))
        expected = drain(loader_class(Made(20, int), 2, sampler=range(good)))
        assert events[:until] == expected[:until]
        return events[until]

    assert_same(case, draws=False)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_that_cannot_be_begun_fails_as_in_torch(num_workers: int) -> None:
    class Broken:
        def __iter__(self) -> Iterator[int]:
            raise ArithmeticError("cannot begin")

        def __len__(self) -> int:
            return 4

    def case(loader_class: Loader) -> object:
        return attempt(
            lambda: next(iter(loader_class(Scaled(4), 2, sampler=Broken(), num_workers=num_workers)))
        )

    assert_same(case, draws=False)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_key_outside_the_dataset_is_the_datasets_error(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        return drain(loader_class([10, 11], 1, sampler=[0, 5, 1], num_workers=num_workers))  # type: ignore[arg-type]

    assert_same(case)


def test_without_workers_the_very_exception_object_arrives() -> None:
    error = NeedsTwo("disk", 5)

    def case(loader_class: Loader) -> object:
        try:
            list(loader_class(Fails(4, [1], lambda k: error), 2))
        except NeedsTwo as caught:
            return [caught is error, caught.path, caught.code]
        return "nothing was raised"

    assert_same(case)


@pytest.mark.skipif(SUBJECT_IS_TORCH, reason="torch's loader waits for ever")
@pytest.mark.parametrize("what", ["sample", "collated batch", "type of the exception"])
def test_what_torch_cannot_send_from_a_worker_is_an_error_that_names_it(what: str) -> None:
    class Local(Exception):
        pass

    def make(key: int) -> Any:
        if what == "type of the exception":
            raise Local("from inside a function")
        return threading.Lock() if what == "sample" else key

    collate = (lambda samples: threading.Lock()) if what == "collated batch" else keep
    outcome = attempt(lambda: next(iter(subject()(Made(4, make), 2, collate_fn=collate, num_workers=2))))
    assert isinstance(outcome, Raised)
    assert ("from inside a function" if "exception" in what else "lock") in outcome.text
