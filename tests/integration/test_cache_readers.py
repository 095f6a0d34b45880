"""Readers of the byte cache: the bytes of local files, objects and files on http servers, in memory that the caller gives; or a clear error."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cache.read_jobs import NoRoom, ReadJob, grouped
from penstock.sources.sources import NEAR_BYTES, BadRead, ByteRange, LocalFiles
from tests.readers_here import ReadersApart, Told, job, readers_apart, readers_here
from tests.s3 import S3Apart
from tests.stores_here import needs_obstore, store_here
from tests.web import Server, served

DATA = bytes(range(256)) * 40
WHOLE = len(DATA)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data.bin").write_bytes(DATA)
    (tmp_path / "empty.bin").write_bytes(b"")
    (tmp_path / "large.bin").write_bytes(DATA * 300)
    return tmp_path


@pytest.fixture
def web(folder: Path) -> Iterator[Server]:
    with served(folder) as server:
        yield server


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Apart]:
    folder = tmp_path_factory.mktemp("store")
    with store_here(folder) as server:
        (server.folder / "bucket" / "empty.bin").write_bytes(b"")
        (server.folder / "bucket" / "large.bin").write_bytes(DATA * 1000)
        yield server


@pytest.fixture
def apart(store: S3Apart) -> Iterator[ReadersApart]:
    with readers_apart() as readers:
        yield readers


def all_of(base: str) -> list[tuple[ByteRange, ...]]:
    """Samples whose bytes are `due(sample)`."""
    name, large = f"{base}data.bin", f"{base}large.bin"
    return [
        ((name, 0, None),),
        ((name, 5, 300),),
        ((name, 100, None),),
        ((name, 7, 7),),
        ((name, 300, 310), (name, 5, 300), (name, 20, 25)),
        ((large, 0, 5), (large, 9, 11), (large, 30 + NEAR_BYTES, 40 + NEAR_BYTES)),
        ((large, WHOLE - 3, 4 * WHOLE), (name, 0, None), (f"{base}empty.bin", 0, None)),
        ((f"{base}empty.bin", 0, None),),
        ((large, 0, None),),
    ]


def due(sample: tuple[ByteRange, ...], large: int) -> bytes:
    files = {"data.bin": DATA, "empty.bin": b"", "large.bin": DATA * large}
    return b"".join(files[name.rpartition("/")[2]][start:end] for name, start, end in sample)


@pytest.mark.parametrize("kind", ["absolute", "relative", "url", "http"])
def test_memory_gets_the_bytes_of_each_samples_ranges(kind: str, folder: Path, web: Server) -> None:
    base = {"absolute": f"{folder}/", "relative": "", "url": f"file://{folder}/", "http": f"{web.url}/ok/"}
    samples = all_of(base[kind])
    told = Told()
    with readers_here(told, folder) as readers:
        readers.submit_many(job(number, *sample) for number, sample in enumerate(samples))
        outcomes = told.wait(len(samples))
        stats = readers.stats()
    for number, sample in enumerate(samples):
        assert told.bytes(number) == due(sample, 300)
        lengths = outcomes[number]
        assert isinstance(lengths, tuple)
        assert len(lengths) == len(sample)
    assert stats["in_flight"] == stats["queued"] == stats["failures"] == 0


@needs_obstore
def test_objects_are_read_into_memory(apart: ReadersApart) -> None:
    samples = all_of("s3://bucket/")
    assert apart.read(*samples) == [due(sample, 1000) for sample in samples]


def test_samples_that_follow_one_another_are_one_read(web: Server) -> None:
    name = f"{web.url}/ok/data.bin"
    samples = [(at, ((name, at * 100, at * 100 + 90),)) for at in range(50)]
    jobs = grouped(3, 0, samples)
    assert len(jobs) == 1
    told = Told()
    with readers_here(told) as readers:
        readers.submit_many(jobs)
        told.wait(50)
    assert [told.bytes(at) for at in range(50)] == [DATA[at * 100 : at * 100 + 90] for at in range(50)]
    assert len(web.requests) == 1


@needs_obstore
def test_objects_in_shards_are_one_request(store: S3Apart, apart: ReadersApart) -> None:
    before = store.counts()["requests"]
    name = "s3://bucket/large.bin"
    found = apart.ask("read", jobs=[[[at, [[name, at * 100, at * 100 + 90]]] for at in range(30)]])
    large = DATA * 1000
    assert [bytes.fromhex(said) for _, said in found] == [large[at * 100 :][:90] for at in range(30)]
    assert store.counts()["requests"] == before + 1


def test_samples_without_room_are_not_read(web: Server) -> None:
    name = f"{web.url}/ok/data.bin"
    told = Told(room=2)
    with readers_here(told, most=1) as readers:
        readers.submit_many(job(at, (name, at, at + 5)) for at in range(4))
        outcomes = told.wait(4)
    assert [type(outcomes[at]) for at in range(4)] == [tuple, tuple, NoRoom, NoRoom]
    assert len(web.requests) == 2


def test_a_job_goes_on_for_the_samples_that_have_room(folder: Path) -> None:
    name = str(folder / "data.bin")
    samples = tuple((at, ((name, at * 10, at * 10 + 10),)) for at in range(5))
    whole = (("whole", ((name, 0, None),)), ("none", ((name, 0, None),)))
    told = Told(room=4)
    with readers_here(told) as readers:
        readers.submit(ReadJob(0, 0, samples[:3] + whole))
        outcomes = told.wait(5)
    assert [told.bytes(at) for at in range(3)] == [DATA[at * 10 : at * 10 + 10] for at in range(3)]
    assert told.bytes("whole") == DATA
    assert isinstance(outcomes["none"], NoRoom)


def test_what_readers_cannot_read_is_an_error_that_says_why(folder: Path, web: Server) -> None:
    os.mkfifo(folder / "pipe")
    bad: dict[str, tuple[ByteRange, str]] = {
        "missing": ((str(folder / "none"), 0, None), "No such file"),
        "folder": ((str(folder), 0, None), "not a regular file"),
        "pipe": ((str(folder / "pipe"), 0, None), "not a regular file"),
        "short": ((str(folder / "data.bin"), 5, WHOLE + 1), "has 10,240 bytes"),
        "backwards": ((str(folder / "data.bin"), 5, 3), r"bytes \[5, 3\)"),
        "other": (("memory://data", 0, 5), "its worker reads it"),
        "virtual": (("/proc/self/status", 0, None), "grew while it was read"),
        "web": ((f"{web.url}/ok/none", 0, None), "No such file"),
        "web short": ((f"{web.url}/ok/data.bin", 5, WHOLE + 1), "has 10,240 bytes"),
        "ignores ranges": ((f"{web.url}/whole/data.bin", 0, None), "ignores byte ranges"),
        "forbidden": ((f"{web.url}/refuse/data.bin", 0, 5), "403"),
    }
    told = Told()
    with readers_here(told) as readers:
        readers.submit_many(job(name, one) for name, (one, _) in bad.items())
        told.wait(len(bad))
        assert readers.stats()["failures"] == len(bad)
    for name, (_, text) in bad.items():
        with pytest.raises(Exception, match=text):
            told.bytes(name)


@needs_obstore
def test_objects_that_cannot_be_read_are_errors_that_say_why(apart: ReadersApart) -> None:
    found = apart.read(
        [("s3://bucket/none", 0, None)],
        [("s3://bucket/data.bin", 5, WHOLE + 1)],
        [("s3://bucket/data.bin", WHOLE + 5, WHOLE + 9)],
        [("s3://none/data.bin", 0, 5)],
    )
    wanted = [
        "FileNotFoundError",
        "BadRead.*has 10,240 bytes",
        "BadRead.*has 10,240 bytes",
        "FileNotFoundError",
    ]
    for said, text in zip(found, wanted, strict=True):
        assert isinstance(said, str)
        with pytest.raises(AssertionError, match=text):
            raise AssertionError(said)


def test_one_bad_sample_of_a_job_costs_no_other(folder: Path) -> None:
    name = str(folder / "data.bin")
    good = [(at, ((name, at, at + 5),)) for at in range(WHOLE - 12, WHOLE - 2, 5)]
    told = Told()
    with readers_here(told) as readers:
        readers.submit(ReadJob(0, 0, (*good, ("bad", ((name, WHOLE - 2, WHOLE + 3),)))))
        told.wait(3)
        assert readers.stats()["failures"] == 1
    assert [told.bytes(at) for at, _ in good] == [DATA[at : at + 5] for at, _ in good]
    with pytest.raises(BadRead, match="has 10,240 bytes"):
        told.bytes("bad")


# ---- files that change


def test_a_local_file_with_another_stamp_is_an_error(folder: Path) -> None:
    path = folder / "data.bin"
    told = Told()
    with readers_here(told, folder) as readers:
        readers.expect("data.bin", LocalFiles().stamp(str(path)))
        readers.submit(job("before", ("data.bin", 0, 5)))
        told.wait(1)
        path.write_bytes(DATA[::-1])
        os.utime(path, ns=(1, 1))
        readers.submit(job("after", ("data.bin", 0, 5)))
        told.wait(1)
    assert told.bytes("before") == DATA[:5]
    with pytest.raises(BadRead, match="was changed while it was in use"):
        told.bytes("after")


def test_a_file_on_a_server_with_another_stamp_is_an_error(web: Server, folder: Path) -> None:
    told = Told()
    name = f"{web.url}/ok/data.bin"
    with readers_here(told) as readers:
        stamp = f'{WHOLE}-"{WHOLE}-{(folder / "data.bin").stat().st_mtime_ns}"'
        readers.expect(name, stamp)
        readers.submit(job("before", (name, 0, 5)))
        told.wait(1)
        os.utime(folder / "data.bin", ns=(1, 1))
        readers.submit_many([job("after", (name, 0, 5)), job("whole", (name, 0, None))])
        told.wait(2)
    assert told.bytes("before") == DATA[:5]
    for token in ("after", "whole"):
        with pytest.raises(BadRead, match="was changed while it was in use"):
            told.bytes(token)


# ---- order, and the end


def test_jobs_begin_in_the_order_of_their_steps_and_ranks_take_turns(folder: Path) -> None:
    gate, order = threading.Event(), []

    class Gated(Told):
        def place(self, token: object, nbytes: int) -> memoryview | None:
            assert gate.wait(20)
            order.append(token)
            return super().place(token, nbytes)

    told = Gated()
    name = str(folder / "data.bin")
    with readers_here(told, most=1) as readers:
        readers.submit(job("first", (name, 0, 1)))
        for step, rank, token in ((5, 0, "a"), (4, 0, "b"), (4, 0, "c"), (4, 1, "d"), (3, 1, "e")):
            readers.submit(job(token, (name, 0, 1), step=step, rank=rank))
        with pytest.raises(ValueError, match="asked for again"):
            readers.submit(job("a", (name, 0, 1)))
        gate.set()
        told.wait(6)
    assert order[0] in ("first", "e")
    assert [token for token in order if token != "first"] == ["e", "b", "d", "c", "a"]


def test_readers_that_are_closed_tell_nothing_more(folder: Path) -> None:
    began, gate = threading.Event(), threading.Event()

    class Stuck(Told):
        def place(self, token: object, nbytes: int) -> memoryview | None:
            began.set()
            assert gate.wait(20)
            return super().place(token, nbytes)

    told = Stuck()
    with readers_here(told) as readers:
        readers.submit_many(job(at, (str(folder / "data.bin"), 0, 1)) for at in range(20))
        assert began.wait(20)
        readers.close(within_s=0.05)
        gate.set()
    assert told.over.empty()
