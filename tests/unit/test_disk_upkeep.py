"""Upkeep of a store with many large files: rows are looked at once, and files that are gone already start nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.reuse.stores.contract import Wanted
from penstock.reuse.stores.disk_files import Files
from penstock.reuse.stores.disk_index import DiskIndex
from tests.unit.test_disk_store import SAMPLES, count_right, entry, fill, opened

LARGE = 9000


def test_a_search_for_unknown_files_looks_at_the_rows_once_for_all_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, looks = opened(tmp_path), list[int]()
    fill(store, 0, range(100), LARGE)
    folders = list(Path(store.folder, "large").iterdir())
    assert len(folders) > 50
    large_numbers = DiskIndex.large_numbers

    def counted(index: DiskIndex) -> object:
        looks.append(1)
        return large_numbers(index)

    monkeypatch.setattr(DiskIndex, "large_numbers", counted)
    orphans = [folder / ("c" + "0" * 13 + folder.name) for folder in folders]
    for orphan in orphans:
        orphan.write_bytes(b"of a killed process")
    for name in ("f" * 20, "-" + "0" * 14 + "f", "notes.txt"):
        (folders[0] / name).write_text("mine")
    store.compact()
    assert len(looks) == 1
    assert not any(orphan.exists() for orphan in orphans)
    assert len(list(folders[0].glob("*"))) >= 3
    assert count_right(store, dict.fromkeys(range(100), 0), LARGE) == 100
    store.close()


@pytest.mark.parametrize(("nbytes", "replaced"), [(1000, True), (LARGE, False)])
def test_only_what_was_replaced_in_segments_is_dead_space(
    tmp_path: Path, nbytes: int, replaced: bool
) -> None:
    """A large file is gone with its row: to look for its space would find nothing, again and again."""
    store = opened(tmp_path, max_bytes=1 << 24)
    for epoch in range(2):
        fill(store, epoch, nbytes=nbytes)
    store.flush()
    mine = store._here()
    assert mine is not None
    assert (mine._replaced_bytes > 0) is replaced
    store.close()


def test_what_killed_processes_left_is_found_by_and_by_where_all_is_large(tmp_path: Path) -> None:
    class Tended(Files):
        def __init__(self) -> None:
            self.count = 0

        def open(self, path: str, flags: int) -> int:
            self.count += path.endswith("/compact")
            return super().open(path, flags)

    files = Tended()
    store = opened(tmp_path, max_bytes=1 << 24, upkeep_s=0.001, files=files)
    fill(store, 0, nbytes=LARGE)
    orphan = next(Path(store.folder, "large").iterdir())
    orphan /= "c" + "0" * 13 + orphan.name
    orphan.write_bytes(b"of a killed process")
    before, epoch = files.count, 1
    while orphan.exists() and epoch < 1000:
        fill(store, epoch, nbytes=LARGE)
        epoch += 1
    assert not orphan.exists()
    assert files.count - before <= 1 + epoch * SAMPLES // 64
    assert store.put(Wanted(0, epoch), entry(0, epoch, LARGE))
    store.close()
