"""Sources give exactly the bytes asked for, or an error that says which file and why."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.errors import ConfigError, MissingExtra
from penstock.policy.retry import RetryLimits
from penstock.sources import others
from penstock.sources.anywhere import AnyFiles, local_path
from penstock.sources.http import HttpFiles
from penstock.sources.others import FsspecFiles
from penstock.sources.sources import (
    NEAR_BYTES,
    BadRead,
    ByteRange,
    LocalFiles,
    Source,
    WholeFiles,
    shown,
)
from tests.memory_source import Memory
from tests.web import Server, served

DATA = bytes(range(256)) * 40

NEVER = RetryLimits(total_s=0)
Make = Callable[[Path], tuple[Source, str]]


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "data.bin").write_bytes(DATA)
    with served(tmp_path) as server:
        yield server


@pytest.fixture
def http() -> Iterator[HttpFiles]:
    files = HttpFiles(timeout_s=5, limits=NEVER)
    yield files
    files.close()


def memory(_: Path) -> tuple[Source, str]:
    return Memory({"data.bin": DATA}), "data.bin"


def local(folder: Path) -> tuple[Source, str]:
    (folder / "data.bin").write_bytes(DATA)
    return LocalFiles(), str(folder / "data.bin")


def whole_files(folder: Path) -> tuple[Source, str]:
    (folder / "data.bin").write_bytes(DATA)
    return WholeFiles(), str(folder / "data.bin")


def by_file_url(folder: Path) -> tuple[Source, str]:
    (folder / "data 1.bin").write_bytes(DATA)
    return AnyFiles(), f"file://{folder}/data%201.bin"


def object_store(folder: Path) -> tuple[Source, str]:
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe_file(f"{folder}/data.bin", DATA)
    return AnyFiles(), f"memory://{folder}/data.bin"


@pytest.mark.parametrize("make", [memory, local, whole_files, by_file_url, object_store])
def test_source_contract(make: Make, tmp_path: Path) -> None:
    check_source(*make(tmp_path))


def test_source_contract_of_http(web: Server) -> None:
    check_source(AnyFiles(), f"{web.url}/ok/data.bin")


def check_source(source: Source, name: str) -> None:
    assert source.size(name) == len(DATA)
    assert source.read(name) == DATA
    assert source.read(name, 100) == DATA[100:]
    assert source.read(name, 5, 300) == DATA[5:300]
    assert source.read(name, 7, 7) == b""
    assert source.read(name, len(DATA) - 1, len(DATA)) == DATA[-1:]
    ranges: list[ByteRange] = [(name, 300, 310), (name, 5, 300), (name, 0, None), (name, 7, 7)]
    assert source.read_many(ranges) == [DATA[300:310], DATA[5:300], DATA, b""]
    assert source.read_many([]) == []
    with pytest.raises(BadRead, match=r"has 10,240 bytes|were asked for, [\d,]+ came"):
        source.read_many([(name, 0, 5), (name, len(DATA) - 5, len(DATA) + 5)])
    assert source.is_local(name) == (not name.startswith(("http", "memory://", "s3://")))
    with pytest.raises(BadRead, match=r"(has 10,240 bytes|10 bytes from 10,235 on were asked for, 5 came)"):
        source.read(name, len(DATA) - 5, len(DATA) + 5)
    with pytest.raises(ConfigError):
        source.read(name, 5, 3)
    with pytest.raises(FileNotFoundError, match="nothing"):
        source.read(name.replace("data", "nothing"), 0, 1)
    assert source.stamp(name) == source.stamp(name)
    copy = pickle.loads(pickle.dumps(source))
    assert copy.read(name, 1, 9) == DATA[1:9]
    source.close()
    assert source.read(name, 1, 9) == DATA[1:9]
    source.close()
    copy.close()


# ---- many at once


class Noting(Memory):
    """Tells what it was asked for."""

    def __init__(self) -> None:
        super().__init__({name: bytes(range(256)) * 400 for name in ("a", "b")})
        self.asked: list[ByteRange] = []

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        self.asked.append((name, start, end))
        return super().read(name, start, end)


@pytest.mark.parametrize(
    ("ranges", "asked"),
    [
        ([("a", 0, 10), ("a", 10, 20)], [("a", 0, 20)]),
        ([("a", 10, 20), ("a", 0, 10)], [("a", 0, 20)]),
        ([("a", 0, 10), ("a", 5, 7)], [("a", 0, 10)]),
        ([("a", 0, 10), ("a", 10 + NEAR_BYTES, 50_000)], [("a", 0, 50_000)]),
        ([("a", 0, 10), ("a", 11 + NEAR_BYTES, 50_000)], [("a", 0, 10), ("a", 11 + NEAR_BYTES, 50_000)]),
        ([("a", 11 + NEAR_BYTES, 50_000), ("a", 0, 10)], [("a", 11 + NEAR_BYTES, 50_000), ("a", 0, 10)]),
        ([("a", 0, 10), ("b", 10, 20)], [("a", 0, 10), ("b", 10, 20)]),
        ([("a", 0, None), ("a", 0, 10)], [("a", 0, None), ("a", 0, 10)]),
        ([("a", 0, 10), ("a", 8, None)], [("a", 0, 10), ("a", 8, None)]),
        (
            [("a", 0, 10), ("a", 12, 20), ("b", 0, 1), ("a", 20, 30)],
            [("a", 0, 20), ("b", 0, 1), ("a", 20, 30)],
        ),
    ],
)
def test_ranges_that_lie_near_each_other_are_read_at_once(
    ranges: list[ByteRange], asked: list[ByteRange]
) -> None:
    source = Noting()
    wanted = [source.files[name][start:end] for name, start, end in ranges]
    assert source.read_many(ranges) == wanted
    assert source.asked == asked


# ---- local files


def test_a_file_that_is_read_whole_need_not_be_regular_and_is_not_kept_open(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(DATA,))
    writer.start()
    assert WholeFiles().read(str(tmp_path / "pipe")) == DATA
    writer.join()
    with pytest.raises(IsADirectoryError, match=re.escape(str(tmp_path))):
        WholeFiles().read(str(tmp_path))
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_bounded_number_of_files_is_kept_open(tmp_path: Path) -> None:
    source = LocalFiles(most_open=3)
    before = set(os.listdir("/proc/self/fd"))
    for number in range(10):
        (tmp_path / f"{number}").write_bytes(bytes([number]) * 5)
        assert source.read(str(tmp_path / f"{number}")) == bytes([number]) * 5
    assert len(set(os.listdir("/proc/self/fd")) - before) == 3
    source.close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_files_are_closed_with_their_source(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    source, name = local(tmp_path)
    source.size(name)
    del source
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_forked_child_opens_files_of_its_own_and_leaves_the_parents_alone(tmp_path: Path) -> None:
    source = LocalFiles()
    path = tmp_path / "data.bin"
    path.write_bytes(DATA)
    source.read(str(path))
    parents = [fd for fd in os.listdir("/proc/self/fd") if points_to(fd) == str(path)]

    def child() -> None:
        assert source.read(str(path), 3, 9) == DATA[3:9]
        assert len([fd for fd in os.listdir("/proc/self/fd") if points_to(fd) == str(path)]) == 2
        source.close()
        assert [fd for fd in os.listdir("/proc/self/fd") if points_to(fd) == str(path)] == parents

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(20)
    assert process.exitcode == 0
    assert source.read(str(path)) == DATA
    source.close()


def points_to(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def test_threads_read_while_others_files_are_closed(tmp_path: Path) -> None:
    source = LocalFiles(most_open=1)
    paths = [tmp_path / f"{number}" for number in range(4)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 1000)
    wrong: list[object] = []

    def reads(number: int) -> None:
        try:
            wrong.extend(
                "other bytes" for _ in range(300) if set(source.read(str(paths[number]))) != {number}
            )
        except Exception as exc:
            wrong.append(exc)

    threads = [threading.Thread(target=reads, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    source.close()


def test_a_file_that_was_changed_after_its_stamp_was_taken_is_an_error(tmp_path: Path) -> None:
    source, name = local(tmp_path)
    source.stamp(name)
    source.close()
    (tmp_path / "data.bin").write_bytes(DATA + b"!")
    with pytest.raises(BadRead, match="was changed while it was in use"):
        source.read(name, 0, 1)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadRead, match="not a regular file"):
        LocalFiles().read(str(tmp_path / "pipe"))


# ---- http


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("whole", "ignores byte ranges: it answered with the whole file"),
        ("all206", r"the server announced 10240 bytes where 10 are due"),
        ("shift", r"gave others \(Content-Range: 'bytes 6-14/10240'\)"),
        ("short", "the connection ended after 5 of 10 bytes"),
        ("long", "the server gave more than 10 bytes"),
        ("gzip", "Content-Encoding: 'gzip'"),
        ("error", "answered 503 Service Unavailable"),
    ],
)
def test_a_server_that_does_not_honour_the_range_is_an_error(
    web: Server, http: HttpFiles, how: str, says: str
) -> None:
    with pytest.raises(BadRead, match=says):
        http.read(f"{web.url}/{how}/data.bin", 5, 15)
    assert http.read(f"{web.url}/ok/data.bin", 5, 15) == DATA[5:15]


def test_connections_are_kept_and_one_that_was_closed_meanwhile_is_replaced(
    web: Server, http: HttpFiles
) -> None:
    for how in ("ok", "ok", "close", "ok", "close", "close", "ok"):
        assert http.read(f"{web.url}/{how}/data.bin", 5, 15) == DATA[5:15]
    assert len(http._pool.get().idle) == 1
    http.close()
    assert http._pool.get().idle == []


def test_redirects_are_followed(web: Server, http: HttpFiles) -> None:
    assert http.read(f"{web.url}/moved/data.bin", 5, 15) == DATA[5:15]
    assert web.requests[-2:] == ["/moved/data.bin", "/ok/data.bin"]


def test_a_file_that_changes_on_the_server_is_an_error(web: Server, http: HttpFiles) -> None:
    url = f"{web.url}/ok/data.bin"
    assert http.stamp(url).startswith("10240-")
    (web.folder / "data.bin").write_bytes(DATA + b"!")
    with pytest.raises(BadRead, match="was changed while it was in use"):
        http.read(url, 0, 5)


def test_nobody_there_is_an_error_of_the_read(http: HttpFiles) -> None:
    with pytest.raises(BadRead, match=r"reading http://127.0.0.1:1/x failed: ConnectionRefusedError"):
        http.read("http://127.0.0.1:1/x", 0, 1)


def test_a_server_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        with pytest.raises(BadRead, match="TimeoutError"):
            HttpFiles(timeout_s=0.2, limits=NEVER).read(url, 0, 1)


def test_a_server_that_trickles_is_given_up(web: Server) -> None:
    times = iter(range(0, 10_000, 50))
    with pytest.raises(BadRead, match="10 of 10 bytes in time"):
        HttpFiles(timeout_s=5, limits=NEVER, clock=lambda: next(times)).read(f"{web.url}/ok/data.bin", 5, 15)


# ---- names


def test_a_url_that_only_fsspec_reads_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtra, match="pip install fsspec"):
        AnyFiles().read("hf://datasets/shard.tar", 0, 1)


def test_a_protocol_that_nobody_knows_is_said_at_once() -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(ConfigError, match="Protocol not known"):
        FsspecFiles().read("nosuch://x/y", 0, 1)
    assert others.require_fsspec().__name__ == "fsspec"


def test_messages_do_not_show_the_secrets_of_a_url() -> None:
    url = "https://me:pass@host/a.tar?token=secret"
    assert shown(url) == "https://host/a.tar?…"
    assert shown("/a?b@c") == "/a?b@c"


def test_paths_and_file_urls_are_local() -> None:
    assert [local_path(name) for name in ("a/b.tar", "file:///a/b%20c", "s3://a/b", "http://a/b")] == [
        "a/b.tar",
        "/a/b c",
        None,
        None,
    ]
