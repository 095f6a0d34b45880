"""What the cache service and its reading processes say to each other, and how many there are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.cache.read_jobs import NoRoom, ReadJob
from penstock.cache.reading_frames import (
    ReadFailed,
    pack_failed,
    pack_jobs,
    pack_written,
    split_failed,
    split_jobs,
    split_written,
)
from penstock.cache.reading_pool import COUNT_SETTING, MOST_PROCESSES, processes_for, together

numbers = st.integers(0, 1 << 62)
ranges = st.tuples(st.text(), numbers, st.none() | numbers)
samples = st.tuples(numbers, st.lists(ranges, max_size=3).map(tuple))
jobs = st.builds(ReadJob, numbers, numbers, st.lists(samples, max_size=3).map(tuple))


@given(st.lists(jobs, max_size=4))
def test_jobs_arrive_as_they_were_sent(sent: list[ReadJob]) -> None:
    assert split_jobs(pack_jobs(sent)) == sent


@given(numbers, st.integers(0, (1 << 32) - 1), st.lists(numbers).map(tuple))
def test_what_was_written_arrives_as_it_was_sent(sample: int, check: int, lengths: tuple[int, ...]) -> None:
    assert split_written(pack_written(sample, check, lengths)) == (sample, check, lengths)


def test_an_error_keeps_its_words_and_no_room_its_meaning() -> None:
    sample, error = split_failed(pack_failed(5, FileNotFoundError("no such file")))
    assert (sample, str(error), type(error)) == (5, "FileNotFoundError: no such file", ReadFailed)
    assert type(split_failed(pack_failed(6, NoRoom()))[1]) is NoRoom
    odd = b"caf\xe9".decode(errors="surrogateescape")
    assert "caf" in str(split_failed(pack_failed(7, FileNotFoundError(odd)))[1]), "a name need not be UTF-8"


def test_small_machines_have_no_reading_processes_and_large_ones_a_few() -> None:
    found = [processes_for(cores, {}) for cores in (1, 2, 7, 8, 16, 192)]
    assert found == [0, 0, 0, 2, 4, MOST_PROCESSES]
    assert processes_for(2, {COUNT_SETTING: "2"}) == 2
    assert processes_for(64, {COUNT_SETTING: "0"}) == 0
    assert processes_for(16, {COUNT_SETTING: "many"}) == 4


def test_statistics_of_several_add_up() -> None:
    names = ("in_flight", "queued", "paused", "allowed", "retries", "refusals", "failures")
    one = dict.fromkeys(names, 1) | {"latest_bytes_per_s": None, "kinds": {}}
    kinds = {"store": {"reads": 2, "bytes": 5, "seconds": 0.5}}
    other = dict.fromkeys(names, 2) | {"latest_bytes_per_s": 4.0, "kinds": kinds}
    found = together([one, other, other])
    assert all(found[name] == 5 for name in names)
    assert found["latest_bytes_per_s"] == 8.0
    assert found["kinds"] == {"store": {"reads": 4, "bytes": 10, "seconds": 1.0}}
