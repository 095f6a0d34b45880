"""A path that users share: what one of them leaves there, another neither reads nor removes, nor waits for."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from penstock.cli.main import main
from penstock.reuse.stores.disk_format import FolderMark, encode_format
from penstock.reuse.stores.disk_listing import clear, clear_temporary, listing
from tests.unit.test_disk_store import opened

THEIRS = "a" * 16
ANOTHER_USER = 1001
PRECIOUS = "9f86d081884c7d65"
"""A name such as ours."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """What would be waited for without one fails the test."""

    def late(_signal: int, _frame: object) -> None:
        raise AssertionError("it waits for another user")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def blobs(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / PRECIOUS).write_text("precious")
    return folder


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def marked(folder: Path, mark: bytes | None = None) -> Path:
    """A folder that says it is a store of a run that is over."""
    folder.mkdir()
    (folder / "FORMAT").write_bytes(mark or encode_format(FolderMark(samples=1, temporary=True)))
    return folder


def said(body: bytes) -> bytes:
    return b"%s\n%08x\n" % (body, crc32(body))


@as_root
def test_a_store_of_another_user_is_let_be(shared: Path) -> None:
    theirs = marked(shared / THEIRS)
    (theirs / "segments").mkdir()
    (theirs / "segments" / PRECIOUS).write_text("precious")
    os.chown(theirs, ANOTHER_USER, ANOTHER_USER)
    assert listing(shared) == []
    assert clear_temporary(shared) == 0
    assert clear(shared) == ([], [])
    assert (theirs / "segments" / PRECIOUS).exists()


@as_root
@pytest.mark.parametrize("part", ["segments", "large", "large/00"])
def test_a_folder_of_another_user_in_a_store_is_let_be(shared: Path, part: str) -> None:
    theirs = marked(shared / THEIRS) / part
    theirs.mkdir(parents=True)
    (theirs / PRECIOUS).write_text("precious")
    os.chown(theirs, ANOTHER_USER, ANOTHER_USER)
    clear_temporary(shared)
    assert (theirs / PRECIOUS).exists()


@pytest.mark.parametrize("part", ["segments", "large", "large/00"])
def test_links_in_a_store_are_not_followed(shared: Path, blobs: Path, part: str) -> None:
    link = marked(shared / THEIRS) / part
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(blobs.parent if part == "large" else blobs)
    (listed,) = listing(shared)
    assert (listed.segments, listed.large_files) == (0, 0)
    clear_temporary(shared)
    assert os.listdir(blobs) == [PRECIOUS]


def test_a_link_to_a_store_is_not_followed(shared: Path, tmp_path: Path) -> None:
    elsewhere = marked(tmp_path / "elsewhere")
    (shared / THEIRS).symlink_to(elsewhere)
    assert (listing(shared), clear_temporary(shared)) == ([], 0)
    assert os.listdir(elsewhere) == ["FORMAT"]


def test_a_mark_that_is_a_pipe_is_not_waited_for(shared: Path) -> None:
    (shared / THEIRS).mkdir()
    os.mkfifo(shared / THEIRS / "FORMAT")
    assert (listing(shared), clear_temporary(shared)) == ([], 0)


@pytest.mark.parametrize(
    "mark",
    [
        b"\n00000000\n",
        said(b"[" * 4000),
        said(b"\xff"),
        said(b"7"),
        said(b'{"store": "penstock", "temporary": true}'),
        said(b'{"store": "penstock", "samples": "many", "temporary": true}'),
        said(b'{"store": "penstock", "samples": 5, "temporary": 1}'),
        said(b'{"store": "penstock", "samples": 5, "about": []}'),
        said(b'{"store": "other", "samples": 5, "temporary": true}'),
        encode_format(FolderMark(samples=1, temporary=True)).ljust(1 << 20),
    ],
)
def test_what_says_something_else_is_no_store_of_ours(shared: Path, mark: bytes) -> None:
    folder = marked(shared / THEIRS, mark)
    opened(shared).close()
    assert len(listing(shared)) == 1
    assert clear_temporary(shared) == 0
    assert os.listdir(folder) == ["FORMAT"]


def test_what_is_kept_is_said_without_letters_that_move_the_cursor(
    shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = "photos\x1b[2J of\nüs\udc80"
    body = {"store": "penstock", "version": 1, "samples": 1, "temporary": False, "about": about}
    marked(shared / THEIRS, said(json.dumps(body).encode()))
    assert main(["cache", "ls", str(shared)]) == 0
    assert capsys.readouterr().out.endswith("photos?[2J of?üs?\n")
