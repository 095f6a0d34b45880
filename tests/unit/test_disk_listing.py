"""Stores on a disk as a command line sees them: listed, cleared unless in use, and of runs that are over."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from penstock.reuse.stores.disk import DiskStore
from penstock.reuse.stores.disk_files import Files
from penstock.reuse.stores.disk_format import FolderMark
from penstock.reuse.stores.disk_listing import clear, clear_temporary, listing
from tests.unit.test_disk_store import NAMESPACE, SAMPLES, count_right, fill, opened


def test_stores_are_listed_and_cleared_unless_in_use(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 0, range(10))
    fill(store, 0, range(10, 12), 9000)
    store.flush()
    other = DiskStore(tmp_path, "f" * 16, 5, 1 << 20, upkeep_s=0)
    other.close()
    (tmp_path / "mine").mkdir()
    (tmp_path / ("e" * 16)).mkdir()
    first, second = listing(tmp_path)
    assert (first.namespace, first.samples, first.segments, first.large_files) == (NAMESPACE, SAMPLES, 1, 2)
    assert first.held_bytes > store.stats()["bytes"]
    assert (first.in_use, second.in_use) == (True, False)
    gone, kept = clear(tmp_path)
    assert ([each.namespace for each in gone], [each.namespace for each in kept]) == (["f" * 16], [NAMESPACE])
    assert count_right(store, dict.fromkeys(range(10), 0)) == 10
    store.close()
    (Path(store.folder) / "notes.txt").write_text("mine")
    assert [each.namespace for each in clear(tmp_path, NAMESPACE)[0]] == [NAMESPACE]
    assert sorted(os.listdir(tmp_path)) == [NAMESPACE, "e" * 16, "mine"]
    assert os.listdir(tmp_path / NAMESPACE) == ["notes.txt"]
    assert listing(tmp_path) == []
    assert listing(tmp_path / "nowhere") == []


def test_a_store_that_is_cleared_while_it_is_opened_is_made_anew(tmp_path: Path) -> None:
    opened(tmp_path).close()

    class ClearedFirst(Files):
        gone = 0

        def open(self, path: str, flags: int) -> int:
            fd = super().open(path, flags)
            if path.endswith("/users") and not self.gone:
                self.gone = len(clear(tmp_path)[0])
            return fd

    files = ClearedFirst()
    store = opened(tmp_path, files=files)
    assert files.gone == 1
    fill(store)
    assert [each.in_use for each in listing(tmp_path)] == [True]
    assert clear(tmp_path)[0] == []
    store.close()
    store = opened(tmp_path)
    assert count_right(store, dict.fromkeys(range(SAMPLES), 0)) == SAMPLES
    store.close()


@pytest.mark.parametrize("after", ["users", "FORMAT", "lock"])
def test_a_store_that_is_opened_while_it_is_cleared_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """Another process comes as soon as the remover has let go of one of the files."""
    fill_first = opened(tmp_path)
    fill(fill_first)
    fill(fill_first, 0, range(3), 9000)
    fill_first.close()
    unlink, came = Files.unlink, list[threading.Thread]()
    waits, stores = threading.Event(), list[DiskStore]()

    class Comes(Files):
        def open(self, path: str, flags: int) -> int:
            fd = super().open(path, flags)
            if path.endswith("/lock"):
                waits.set()
            return fd

    def unlinked(files: Files, path: str) -> None:
        unlink(files, path)
        if path.endswith(f"/{after}") and not came:
            came.append(threading.Thread(target=lambda: stores.append(opened(tmp_path, files=Comes()))))
            came[0].start()
            assert waits.wait(10)

    monkeypatch.setattr(Files, "unlink", unlinked)
    assert len(clear(tmp_path)[0]) == 1
    came[0].join(10)
    (store,) = stores
    fill(store, 1)
    fill(store, 1, range(3), 9000)
    store.flush()
    assert [each.in_use for each in listing(tmp_path)] == [True]
    assert store.stats()["read_only"] == 0
    assert store.stats()["entries"] == SAMPLES
    store.close()
    store = opened(tmp_path)
    assert count_right(store, dict.fromkeys(range(3, SAMPLES), 1)) == SAMPLES - 3
    store.close()
    assert len(clear(tmp_path)[0]) == 1
    assert os.listdir(tmp_path) == []


def test_stores_of_runs_that_are_over_are_removed_and_others_are_not(tmp_path: Path) -> None:
    mark = FolderMark(samples=SAMPLES, temporary=True, about="of a run")
    over = DiskStore(tmp_path, "a" * 16, SAMPLES, 1 << 20, mark=mark)
    over.close()
    running = DiskStore(tmp_path, "b" * 16, SAMPLES, 1 << 20, mark=mark)
    opened(tmp_path).close()
    assert clear_temporary(tmp_path) == 1
    found = listing(tmp_path)
    assert [(each.namespace, each.temporary) for each in found] == [(NAMESPACE, False), ("b" * 16, True)]
    assert found[1].about == "of a run"
    running.close()
