"""Readers of the byte cache when their source fails: tried again without keeping others waiting, or a clear error after a bounded time."""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cache.read_jobs import NoRoom, ReadJob, Token
from penstock.cache.readers import StuckRead
from penstock.policy.retry import RetryLimits
from penstock.sources.retries import Fleeting
from penstock.sources.sources import BadRead
from tests.fault.programs import until
from tests.readers_here import WITHIN_S, ReadersApart, Told, job, readers_apart, readers_here
from tests.s3 import S3Apart, s3_served
from tests.stores_here import needs_obstore, store_here
from tests.web import Server, served

DATA = bytes(range(256)) * 40
NAME = "s3://bucket/data.bin"


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "data.bin").write_bytes(DATA)
    with served(tmp_path) as server:
        yield server


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Apart]:
    with store_here(tmp_path_factory.mktemp("store")) as server:
        yield server


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/data.bin"


def busy(web: Server, *troubles: str) -> None:
    for number, trouble in enumerate(troubles):
        (web.folder / f"BUSY-{number:03}").write_text(trouble)


# ---- failures that pass


@pytest.mark.parametrize("trouble", ["429", "503", "500", "reset", "cut"])
def test_a_failure_of_a_web_server_that_passes_is_tried_again(web: Server, trouble: str) -> None:
    busy(web, trouble, trouble, trouble)
    told = Told()
    with readers_here(told) as readers:
        readers.submit_many(job(at, (f"{web.url}/busy/data.bin", at, at + 50)) for at in range(4))
        told.wait(4)
        assert readers.stats()["retries"] == 3
        assert readers.stats()["failures"] == 0
    assert [told.bytes(at) for at in range(4)] == [DATA[at : at + 50] for at in range(4)]


@needs_obstore
def test_a_failure_of_a_store_that_passes_is_tried_again(store: S3Apart) -> None:
    with readers_apart() as readers:
        store.busy("503", "429", "reset", "short", "500", "short")
        found = readers.read(*[[(NAME, at, at + 50)] for at in range(4)], [(NAME, 0, None)])
        stats = readers.ask("stats")
    assert found == [*[DATA[at : at + 50] for at in range(4)], DATA]
    assert stats["retries"] == 6
    assert stats["refusals"] == 2


def test_who_waits_for_another_try_keeps_no_thread_from_others(web: Server) -> None:
    busy(web, "429 1")
    told, began_s = Told(), time.monotonic()
    with readers_here(told, most=1) as readers:
        readers.submit_many(job(at, (f"{web.url}/busy/data.bin", at, at + 50), step=at) for at in range(6))
        told.wait(6)
        stats = readers.stats()
    assert list(told.outcomes) == [1, 2, 3, 4, 5, 0]
    assert time.monotonic() - began_s >= 1.0, "the server asked for a second"
    assert stats["retries"] == stats["refusals"] == 1


def test_a_server_that_asks_for_fewer_requests_gets_fewer(web: Server) -> None:
    busy(web, *["503"] * 8)
    told = Told()
    with readers_here(told, most=8, first=8) as readers:
        readers.submit_many(job(at, (f"{web.url}/busy/data.bin", at, at + 50)) for at in range(8))
        told.wait(8)
        stats = readers.stats()
    assert stats["refusals"] == 8
    assert stats["allowed"] < 8


# ---- failures that stay


def test_a_failure_that_stays_is_an_error_after_some_tries(web: Server) -> None:
    told, limits = Told(), RetryLimits(total_s=20, tries=3, first_s=0.01, most_s=0.02)
    with readers_here(told, limits=limits) as readers:
        readers.submit(job("bad", (f"{web.url}/error/data.bin", 0, 5)))
        told.wait(1)
        assert readers.stats()["failures"] == 1
    assert len(web.requests) == 4
    with pytest.raises(Fleeting, match="503"):
        told.bytes("bad")


def test_tries_end_when_their_time_is_over(web: Server) -> None:
    busy(web, "503 30")
    told = Told()
    with readers_here(told) as readers:
        readers.submit(job("bad", (f"{web.url}/busy/data.bin", 0, 5)))
        told.wait(1)
    assert len(web.requests) == 1, "half a minute is longer than is waited"
    with pytest.raises(Fleeting, match="503"):
        told.bytes("bad")


def test_a_server_that_never_answers_costs_a_deadline() -> None:
    told, limits = Told(), RetryLimits(total_s=20, tries=1, first_s=0.01, most_s=0.02)
    with silent_server() as name, readers_here(told, try_s=0.3, limits=limits) as readers:
        readers.submit_many([job("bad", (name, 0, 5)), job("whole", (name, 0, None))])
        told.wait(2)
        assert readers.stats()["retries"] == 2
    for token in ("bad", "whole"):
        with pytest.raises(Fleeting, match="TimeoutError"):
            told.bytes(token)


@needs_obstore
def test_a_store_that_stalls_in_mid_answer_costs_a_deadline(store: S3Apart) -> None:
    with readers_apart(try_s=0.5) as readers:
        store.busy("stall", "stall")
        found = readers.read([(NAME, 0, 5_000)], [(NAME, 0, None)])
        assert readers.ask("stats")["retries"] == 2
    assert found == [DATA[:5_000], DATA]


@needs_obstore
def test_a_store_that_is_gone_is_an_error_and_one_that_returns_is_read(
    store: S3Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"total_s": 20, "tries": 2, "first_s": 0.01, "most_s": 0.02}
    with s3_served(store.folder) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        readers = ReadersApart(limits=limits)
        assert readers.read([(NAME, 0, 5)]) == [DATA[:5]]
    (said,) = readers.read([(NAME, 0, 5)])
    assert isinstance(said, str)
    assert said.startswith("Fleeting: reading s3://bucket/data.bin failed")
    with s3_served(store.folder, "strict", server.url.rpartition(":")[2]):
        assert readers.read([(NAME, 0, 5)]) == [DATA[:5]]
    readers.close()


# ---- what is not what it was


@needs_obstore
@pytest.mark.parametrize("how", ["strict", "careless"])
def test_an_object_with_another_etag_is_an_error(
    store: S3Apart, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store.folder / "bucket" / "changing.bin"
    path.write_bytes(DATA)
    name = "s3://bucket/changing.bin"
    with s3_served(store.folder, how) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        with readers_apart() as readers:
            readers.ask("expect", name=name, stamp=f'{len(DATA)}-"f5a6c8e7"')
            (wrong,) = readers.read([(name, 0, 5)])
            readers.ask("expect", name=name, stamp=f"{len(DATA)}-2026-01-01 00:00:00+00:00")
            (timed,) = readers.read([(name, 0, 5)])
            readers.ask("expect", name=name, stamp=f'{len(DATA)}-"{md5(DATA)}"')
            assert readers.read([(name, 0, 5)], [(name, 0, None)]) == [DATA[:5], DATA]
            path.write_bytes(DATA[::-1])
            changed = readers.read([(name, 0, 5)], [(name, 0, None)])
    for said in (wrong, timed, *changed):
        assert isinstance(said, str)
        assert "was changed while it was in use" in said


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def test_a_file_that_is_cut_off_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(DATA)

    class Cutting(Told):
        def place(self, token: object, nbytes: int) -> memoryview | None:
            if token == "cut":
                os.truncate(path, 100)
            else:
                path.write_bytes(DATA * 2)
            return super().place(token, nbytes)

    told = Cutting()
    with readers_here(told, most=1) as readers:
        readers.submit(job("cut", (str(path), 0, None)))
        told.wait(1)
        readers.submit(job("grown", (str(path), 0, None)))
        told.wait(1)
    with pytest.raises(BadRead, match="ended at byte 100"):
        told.bytes("cut")
    with pytest.raises(BadRead, match="grew while it was read"):
        told.bytes("grown")


# ---- limits, and the end


def test_large_reads_are_not_in_flight_together(tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.truncate(600 << 20)  # a hole

    class Counting(Told):
        together, at_once = threading.Event(), 0

        def place(self, token: object, nbytes: int) -> memoryview | None:
            self.at_once += 1
            if self.at_once > 1:
                self.together.set()
            self.together.wait(0.3)
            self.at_once -= 1
            return None

    told = Counting()
    with readers_here(told) as readers:
        readers.submit_many(job(at, (str(path), at, at + (200 << 20))) for at in range(3))
        outcomes = told.wait(3)
    assert all(isinstance(outcome, NoRoom) for outcome in outcomes.values())
    assert not told.together.is_set()


def test_what_a_caller_raises_is_told_and_ends_no_reader(web: Server) -> None:
    class Raising(Told):
        def place(self, token: object, nbytes: int) -> memoryview | None:
            if token == "bad":
                raise OSError("no memory file")
            return super().place(token, nbytes)

    told = Raising()
    with readers_here(told, most=1) as readers:
        readers.submit_many([job(token, (f"{web.url}/ok/data.bin", 0, 5)) for token in ("bad", "good")])
        told.wait(2)
    assert told.bytes("good") == DATA[:5]
    with pytest.raises(OSError, match="no memory file"):
        told.bytes("bad")


def test_readers_close_in_time_while_a_server_is_silent() -> None:
    told = Told()
    with silent_server() as name, readers_here(told, try_s=1.0) as readers:
        readers.submit_many(job(at, (name, at, at + 5)) for at in range(8))
        began_s = time.monotonic()
        readers.close(within_s=0.1)
        assert time.monotonic() - began_s < WITHIN_S / 2
        for thread in readers._threads:
            thread.join(WITHIN_S)
            assert not thread.is_alive()
    assert told.over.empty()


@needs_obstore
def test_readers_close_in_time_while_a_store_stalls(store: S3Apart) -> None:
    with s3_served(store.folder) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", server.url)
        with readers_apart(try_s=60.0) as readers:
            server.busy("stall")
            readers.ask("begin", jobs=[[[0, [[NAME, 0, 5_000]]]]])
            assert readers.ask("close") < WITHIN_S / 2


# ---- a file system that does not answer


def test_a_read_that_hangs_is_given_up_and_another_thread_reads_on(tmp_path: Path) -> None:
    """It hangs where it gets its memory: a file system that hangs cannot be had here."""
    (tmp_path / "data.bin").write_bytes(DATA)
    goes_on, released = threading.Event(), queue.Queue[object]()
    told = Told()

    def place(token: Token, nbytes: int) -> memoryview | None:
        if token != 0:
            return told.place(token, nbytes)
        assert goes_on.wait(WITHIN_S)
        return memoryview(bytearray(nbytes))

    options = {"most": 1, "stuck_s": 2.0, "released": released.put}
    with readers_here(told, tmp_path, place=place, **options) as readers:
        readers.submit_many(job(at, ("data.bin", at, at + 50), step=at) for at in range(3))
        told.wait(3)
        assert isinstance(told.outcomes[0], StuckRead)
        assert [told.bytes(at) for at in (1, 2)] == [DATA[at : at + 50] for at in (1, 2)]
        assert readers.stats()["failures"] == 1
        assert released.empty(), "it may still be written"
        goes_on.set()
        assert released.get(timeout=WITHIN_S) == 0


def test_a_sample_without_room_is_told_of_though_the_rest_of_its_job_hangs(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(DATA)
    goes_on, told = threading.Event(), Told()

    def place(token: Token, nbytes: int) -> memoryview | None:
        if token == "none":
            return None
        assert goes_on.wait(WITHIN_S)
        return memoryview(bytearray(nbytes))

    with readers_here(told, tmp_path, place=place, stuck_s=0.5) as readers:
        name = "data.bin"
        readers.submit(ReadJob(0, 0, (("none", ((name, 0, 50),)), ("hangs", ((name, 50, 100),)))))
        found = told.wait(2)
        assert isinstance(found["none"], NoRoom)
        assert isinstance(found["hangs"], StuckRead)
        goes_on.set()


def test_a_read_that_hangs_without_memory_releases_none() -> None:
    """Another read of the sample may have got some meanwhile."""
    told, released = Told(), queue.Queue[object]()
    with silent_server() as url, readers_here(told, try_s=6.0, stuck_s=0.3, released=released.put) as readers:
        readers.submit(job(0, (url, 0, None)))
        told.wait(1)
        assert isinstance(told.outcomes[0], StuckRead)
        until(lambda: not readers.stuck, within_s=WITHIN_S, why="it does not end")
        assert released.empty()


def test_reads_fail_where_no_thread_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.bin").write_bytes(DATA)
    start, started = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    told = Told()
    with readers_here(told, tmp_path, most=64) as readers:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        readers.submit_many(job(at, ("data.bin", at, at + 50)) for at in range(40))
        told.wait(40)
        assert [told.bytes(at) for at in range(40)] == [DATA[at : at + 50] for at in range(40)]
    with readers_here(told, tmp_path) as readers:
        readers.submit_many(job(at, ("data.bin", at, at + 50)) for at in (50, 51))
        found = told.wait(2)
        assert all(isinstance(found[at], RuntimeError) for at in (50, 51))
        monkeypatch.undo()
        readers.submit(job(52, ("data.bin", 1, 5)))
        told.wait(1)
        assert told.bytes(52) == DATA[1:5]
