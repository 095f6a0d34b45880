"""`penstock cache`, on stores that real processes have made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.cli.main import main
from penstock.reuse.stores.contract import Entry, Wanted
from penstock.reuse.stores.disk import DiskStore
from penstock.reuse.stores.disk_format import FolderMark

SRC = Path(__file__).parents[2] / "src"
FIRST, SECOND = "1" * 32, "2" * 32


def filled(path: Path, namespace: str, *, temporary: bool = False) -> DiskStore:
    mark = FolderMark(
        samples=50, temporary=temporary, about="ImageFolder /photos: decoded, RandAugment; seed 5"
    )
    store = DiskStore(path, namespace, 50, 1 << 24, upkeep_s=0, mark=mark)
    for sample in range(40):
        assert store.put(Wanted(sample, 0), Entry(np.full(20_000 if sample < 3 else 900, sample, np.uint8)))
    store.flush()
    return store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    filled(tmp_path, FIRST).close()
    filled(tmp_path, SECOND, temporary=True).close()
    (tmp_path / "mine").mkdir()
    return tmp_path


def test_stores_are_listed_with_what_they_are_of(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = DiskStore(path, SECOND, 50, 1 << 24, upkeep_s=0)
    assert main(["cache", "ls", str(path)]) == 0
    head, one, two = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["store", "of", "takes"]
    assert one.startswith("111111111111 ")
    assert " lasts " in one
    assert "KiB" in one
    assert one.endswith("ImageFolder /photos: decoded, RandAugment; seed 5")
    assert " in use " in two
    store.close()


def test_numbers_of_one_store(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "stat", str(path), "111"]) == 0
    said = capsys.readouterr().out
    assert "40 of 50" in said
    assert "1 segments, 3 of a single sample" in said
    assert FIRST in said
    assert SECOND not in said


def test_a_store_that_is_whole_is_verified_with_exit_code_0_and_a_damaged_one_with_1(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "verify", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.count("40 samples are right, 0 replaced") == 2
    assert "DAMAGED" not in said
    (segment,) = (path / FIRST / "segments").iterdir()
    with open(segment, "r+b") as raw:
        os.pwrite(raw.fileno(), b"?", 2_000)
    assert main(["cache", "verify", str(path)]) == 1
    said = capsys.readouterr().out
    assert "39 samples are right" in said
    assert "DAMAGED: 1 places in files, 1 samples lost" in said
    large = next(file for file in (path / SECOND / "large").rglob("*") if file.is_file())
    large.unlink()
    assert main(["cache", "verify", str(path), "2"]) == 1
    assert "0 places in files, 1 samples lost" in capsys.readouterr().out


def test_a_store_that_is_verified_while_it_changes_is_not_called_damaged(path: Path) -> None:
    store = DiskStore(path, FIRST, 50, 1 << 24, upkeep_s=0)
    other = DiskStore(path, FIRST, 50, 1 << 24, upkeep_s=0)

    def replaced(_done: int, _of: int) -> None:
        for sample in range(40):
            assert other.put(Wanted(sample, 1), Entry(np.full(20_000 if sample < 9 else 900, 7, np.uint8)))
        other.flush()

    found = store.verify(replaced)
    assert (found.bad, found.lost) == (0, 0)
    other.close()
    store.close()


def test_clearing_asks_and_leaves_what_is_in_use(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "clear", str(path)]) == 2  # nobody can be asked here
    assert "Say --yes" in capsys.readouterr().err
    store = DiskStore(path, SECOND, 50, 1 << 24, upkeep_s=0)
    assert main(["cache", "clear", str(path), "--yes"]) == 1
    said = capsys.readouterr()
    assert said.out.startswith("removed 1 of 2 stores, ")
    assert "222222222222 stays, a process has it open (ImageFolder /photos" in said.err
    assert sorted(os.listdir(path)) == [SECOND, "mine"]
    assert store.get(Wanted(1, 0)) is not None
    store.close()
    assert main(["cache", "clear", str(path), "2222", "--yes"]) == 0
    assert os.listdir(path) == ["mine"]
    assert main(["cache", "ls", str(path)]) == 0
    assert "nothing is kept" in capsys.readouterr().out


def test_what_is_not_there_is_said(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, says in (
        (["ls", str(path / "nowhere")], "there is no folder"),
        (["stat", str(path), "abc"], "must begin with 'abc', there are none"),
        (["stat", str(path), ""], ""),
    ):
        assert main(["cache", *words]) == (2 if says else 0)
        assert says in capsys.readouterr().err


def test_the_command_does_not_load_torch(path: Path) -> None:
    (path / "torch.py").write_text("raise RuntimeError('torch was imported')\n")
    ended = subprocess.run(
        [sys.executable, "-m", "penstock", "cache", "verify", str(path)],
        cwd=path,
        env=os.environ | {"PYTHONPATH": f"{path}:{SRC}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "40 samples are right" in ended.stdout
