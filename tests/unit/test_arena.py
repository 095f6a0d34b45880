"""The shared arena: one file without a name, a board of counters at its start, memory only where it was reserved."""

from __future__ import annotations

import errno
import gc
import logging
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.errors import ArenaFull
from penstock.wire import arena as arena_module
from penstock.wire.arena import FIELDS, SMALLEST, Arena, Board, anonymous_file, board_bytes

COLUMNS = [name for name in vars(Board) if name.isupper()]


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena.create(1 << 20, workers=3)
    yield made
    made.close()


def resident(fd: int) -> int:
    """Bytes of memory behind a file."""
    return os.fstat(fd).st_blocks * 512


# ---- memory


def test_an_arena_is_as_long_as_its_limit_but_holds_only_what_is_backed(arena: Arena) -> None:
    large = Arena.create(1 << 40, workers=1)
    assert large.size >= 1 << 40
    assert resident(large.fd) == board_bytes(1)
    large.back(large.base, large.base + 100_000)
    assert board_bytes(1) + 100_000 <= resident(large.fd) < board_bytes(1) + 110_000
    large.close()


def test_batches_begin_behind_the_board_on_a_page(arena: Arena) -> None:
    assert arena.base == board_bytes(3) >= 4 * FIELDS * 8
    assert arena.base % mmap.PAGESIZE == 0


def test_two_mappings_see_the_same_bytes(arena: Arena) -> None:
    arena.back(arena.base, arena.base + 4096)
    other = Arena(os.dup(arena.fd), arena.size, arena.workers)
    arena.view[arena.base : arena.base + 4] = b"pens"
    assert bytes(other.view[arena.base : arena.base + 4]) == b"pens"
    other.close()


def test_a_batch_outlives_the_arena_that_was_closed(arena: Arena) -> None:
    arena.back(arena.base, arena.base + 4096)
    tensor = torch.frombuffer(arena.view[arena.base : arena.base + 16], dtype=torch.float32)
    tensor.fill_(2.5)
    arena.close()
    arena.close()
    assert arena.fd == -1
    gc.collect()
    assert tensor.tolist() == [2.5] * 4


def test_memory_that_is_not_to_be_had_is_an_error_and_not_a_signal(
    monkeypatch: pytest.MonkeyPatch, arena: Arena
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        arena.back(arena.base, arena.base + 4096)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ArenaFull, match=r"No space left.* the limit is 1,048,576 bytes.*--shm-size"):
        Arena.create(1 << 20, workers=2)
    assert len(os.listdir("/proc/self/fd")) == before


def test_under_a_limit_of_address_space_the_arena_is_smaller() -> None:
    code = f"""
import resource
from penstock.wire.arena import Arena
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
arena = Arena.create(64 << 30, workers=2)
assert {SMALLEST} <= arena.size < 2 << 30, arena.size
arena.view[arena.size - 1]
print("smaller")
"""
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "smaller", done.stderr


# ---- the file


def test_the_file_has_no_name_and_does_not_outlive_exec() -> None:
    fd = anonymous_file()
    assert "memfd:penstock" in os.readlink(f"/proc/self/fd/{fd}")
    assert not os.get_inheritable(fd)
    os.close(fd)


@pytest.mark.parametrize("shared", [True, False])
def test_where_memfd_is_denied_an_unlinked_file_serves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, shared: bool
) -> None:
    def denied(*_: Any) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", denied)
    monkeypatch.setattr(arena_module, "SHARED", str(tmp_path if shared else tmp_path / "missing"))
    monkeypatch.setattr(arena_module.tempfile, "tempdir", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        made = Arena.create(1 << 20, workers=1)
    assert "memfd_create is denied" in caplog.text
    assert os.readlink(f"/proc/self/fd/{made.fd}").endswith(" (deleted)")
    assert list(tmp_path.iterdir()) == []
    made.back(made.base, made.base + 4096)
    made.view[made.base] = 7
    assert made.view[made.base] == 7
    made.close()


# ---- the board


def test_rows_of_the_board_do_not_touch_each_other(arena: Arena) -> None:
    rows = [arena.board.agent, *(arena.board.row(worker) for worker in range(3))]
    for number, row in enumerate(rows):
        assert len(row) == FIELDS
        for field in range(FIELDS):
            row[field] = 100 * number + field
    for number, row in enumerate(rows):
        assert row.tolist() == [100 * number + field for field in range(FIELDS)]
    assert not any(arena.view[4 * FIELDS * 8 : arena.base])


def test_a_column_is_one_number_of_each_worker_and_not_of_the_agent(arena: Arena) -> None:
    for worker in range(3):
        arena.board.row(worker)[Board.BEAT] = worker + 1
    arena.board.agent[Board.LANES] = 3
    assert arena.board.column(Board.BEAT) == [1, 2, 3]
    assert arena.board.column(Board.PID) == [0, 0, 0]


def test_the_board_has_memory_for_those_who_come(arena: Arena) -> None:
    made = Arena.create(1 << 20, workers=1000, at_first=2)
    try:
        assert resident(made.fd) == board_bytes(2) < board_bytes(500)
        assert made.has_room_for(500)
        assert resident(made.fd) == board_bytes(500)
        assert not made.has_room_for(1001)
    finally:
        made.close()


def test_workers_that_never_came_are_in_no_column(arena: Arena) -> None:
    arena.board.agent[Board.LANES] = 1
    assert arena.board.column(Board.BEAT) == [0]


def test_every_counter_has_a_place_on_the_board() -> None:
    assert COLUMNS
    assert all(0 <= getattr(Board, name) < FIELDS for name in COLUMNS)


def test_numbers_on_the_board_are_of_64_bits_with_a_sign(arena: Arena) -> None:
    row = arena.board.row(0)
    row[Board.TASK], row[Board.PREPARE_NS] = -1, 2**62
    other = Arena(os.dup(arena.fd), arena.size, arena.workers)
    assert other.board.row(0)[Board.TASK] == -1
    assert other.board.row(0)[Board.PREPARE_NS] == 2**62
    other.close()
