"""Which samples are read together, and in which order: no source is needed for that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cache.read_jobs import ReadJob, WantedSample, grouped
from penstock.cache.read_line import ReadLine, TryState
from penstock.cache.reading import SampleRead, kind_of
from penstock.sources.sources import BadRead, ByteRange, joined


def near(token: int, start: int, end: int | None, name: str = "a.tar") -> WantedSample:
    return token, ((name, start, end),)


def tokens(jobs: list[ReadJob]) -> list[list[object]]:
    return [[token for token, _ in job.samples] for job in jobs]


@pytest.mark.parametrize(
    ("samples", "together"),
    [
        ([near(0, 0, 10), near(1, 10, 20), near(2, 40, 50)], [[0, 1, 2]]),
        ([near(0, 0, 10), near(1, 10, 20), near(2, 300, 310)], [[0, 1], [2]]),
        ([near(0, 10, 20), near(1, 0, 10)], [[0], [1]]),
        ([near(0, 0, 10), near(1, 5, 15)], [[0], [1]]),
        ([near(0, 0, 10), near(1, 10, 20, "b.tar"), near(2, 20, 30, "b.tar")], [[0], [1, 2]]),
        ([near(0, 0, None), near(1, 0, None)], [[0], [1]]),
        ([near(0, 0, 10), near(1, 10, None), near(2, 10, 20)], [[0], [1], [2]]),
        ([near(0, 0, 600), near(1, 600, 1000), near(2, 1000, 1010)], [[0, 1], [2]]),
        ([near(0, 0, 5000), near(1, 5000, 5010)], [[0], [1]]),
        (
            [(0, (("a", 0, 5), ("a", 6, 9))), (1, (("a", 9, 12), ("b", 0, 1))), near(2, 9, 10, "a")],
            [[0], [1], [2]],
        ),
        ([(0, (("a", 0, 5), ("a", 6, 9))), (1, (("a", 9, 12), ("a", 13, 14)))], [[0, 1]]),
        ([(0, ()), (1, ())], [[0], [1]]),
        ([], []),
    ],
)
def test_samples_that_follow_one_another_in_a_file_share_a_job(
    samples: list[WantedSample], together: list[list[object]]
) -> None:
    jobs = grouped(7, 2, samples, near_bytes=100, most_bytes=1000)
    assert tokens(jobs) == together
    assert all((job.step, job.rank) == (7, 2) for job in jobs)


range_lists = st.lists(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 200), st.integers(0, 60) | st.none()), max_size=3
    ),
    max_size=30,
)


@given(range_lists, st.integers(0, 50), st.integers(1, 500))
def test_a_job_of_several_samples_is_one_read_and_none_is_lost(
    said: list[list[tuple[str, int, int | None]]], near_bytes: int, most_bytes: int
) -> None:
    samples: list[WantedSample] = [
        (token, tuple((name, start, None if size is None else start + size) for name, start, size in ranges))
        for token, ranges in enumerate(said)
    ]
    jobs = grouped(0, 0, samples, near_bytes=near_bytes, most_bytes=most_bytes)
    assert [sample for job in jobs for sample in job.samples] == samples
    for job in jobs:
        flat: list[ByteRange] = [one for _, ranges in job.samples for one in ranges]
        if len(job.samples) > 1:
            ((run, _),) = joined(flat, near_bytes)
            assert run[2] is not None
            assert run[2] - run[1] <= most_bytes


def test_a_sample_that_has_another_size_at_another_try_is_an_error() -> None:
    read = SampleRead([near(0, 0, None)])
    assert read.have_memory(0, (5,), lambda _, nbytes: memoryview(bytearray(nbytes)))
    with pytest.raises(BadRead, match="was changed while it was in use"):
        read.have_memory(0, (6,), lambda _, nbytes: memoryview(bytearray(nbytes)))
    with pytest.raises(ValueError, match="5 bytes were asked for, and 3 given"):
        SampleRead([near(0, 0, None)]).have_memory(0, (5,), lambda *_: memoryview(bytearray(3)))


def test_kinds_of_source_are_told_by_the_name() -> None:
    names = ("a/b.jpg", "/a", "file:///a", "s3://b/c", "GS://b/c", "https://h/a", "http://h/a", "hf://a/b")
    assert [kind_of(name) for name in names] == [*["file"] * 3, *["store"] * 2, *["http"] * 2, "other"]


# ---- the line


def test_a_read_that_pauses_comes_back_in_its_old_place() -> None:
    line = ReadLine()
    for step in (3, 1, 2):
        line.add(ReadJob(step, 0, (near(step, 0, 1),)))
    first = line.next(0.0)
    assert first is not None
    assert first.step == 1
    line.pause(first, 10.0)
    assert line.due_s() == 10.0
    second = line.next(9.0)
    assert second is not None
    assert second.step == 2
    again = line.next(10.0)
    assert again is first
    line.finish(first)
    line.put_back(second)
    assert line.next(10.0) is second
    assert [line.count[state] for state in (TryState.QUEUED, TryState.RUNNING, TryState.PAUSED)] == [1, 1, 0]


def test_a_split_job_keeps_the_memory_it_got() -> None:
    line = ReadLine()
    line.add(ReadJob(4, 1, (near(0, 0, 1), near(1, 1, 2))))
    one = line.next(0.0)
    assert one is not None
    memory = memoryview(bytearray(1))
    one.read.have_memory(1, (1,), lambda *_: memory)
    line.split(one)
    parts = [line.next(0.0), line.next(0.0)]
    assert [part and (part.step, part.rank, list(part.read.ranges)) for part in parts] == [
        (4, 1, [0]),
        (4, 1, [1]),
    ]
    assert parts[1] is not None
    assert parts[1].read.memory == {1: memory}
    with pytest.raises(ValueError, match="asked for again"):
        line.add(ReadJob(0, 0, (near(1, 0, 1),)))
