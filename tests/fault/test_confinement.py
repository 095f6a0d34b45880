"""Little memory and missing system calls: a clean error or a slower run, said once; never a SIGBUS, never a hang."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fault.confinement import memory_cgroup
from tests.fault.programs import Program, Zygote

OPTIONS: dict[str, Any] = {"batch_size": 4, "num_workers": 2}
CALLS = [["memfd_create"], ["pidfd_open"], ["memfd_create", "pidfd_open"]]


def verdict(program: Program) -> tuple[str, str]:
    """What the program's run came to."""
    word, _, rest = program.line().partition(" ")
    if word == "skip":
        pytest.skip(f"cannot be confined here: {rest}")
    if word == "error":
        kind, _, text = rest.partition(" ")
        return kind, json.loads(text)
    return word, rest


def test_a_worker_that_the_kernel_kills_for_memory_is_named_so_with_limit_and_usage(
    programs: Zygote, tmp_path: Path
) -> None:
    with memory_cgroup(192 << 20) as cgroup:
        program = programs.start(
            "tests.fault.jobs:in_cgroup", folder=str(tmp_path), cgroup=str(cgroup), **OPTIONS
        )
        kind, text = verdict(program)
        assert kind == "WorkerDied", text
        assert "sample 9 (position 9 of epoch 0, batch 2) took down 3 workers" in text
        assert "out of memory" in text
        assert f"cgroup limit {192 << 20:,} bytes" in text
        assert program.wait() == 0
        assert program.left() == []


def test_samples_that_are_kept_leave_a_container_half_of_its_memory(programs: Zygote) -> None:
    with memory_cgroup(384 << 20) as cgroup:
        program = programs.start(
            "tests.fault.jobs:reusing_in_cgroup", cgroup=str(cgroup), samples=240, **OPTIONS
        )
        assert verdict(program) == ("batches", "60")
        kept = json.loads(verdict(program)[1])
        assert 32 << 20 < kept["max_bytes"] <= 192 << 20
        assert kept["held_bytes"] <= kept["max_bytes"]
        assert 0 < kept["kept"] <= kept["max_bytes"] // (750 * 1000 * 3)
        assert (
            f"in {kept['max_bytes']:,} bytes, half of what this machine or container had left"
            in verdict(program)[1]
        )
        assert program.wait() == 0
        said = program.errors()
        assert said.count(f"max_bytes samples may take {kept['max_bytes']:,}, which is about half") == 1


def test_batches_that_do_not_fit_into_shared_memory_are_a_clean_error_with_sizes(programs: Zygote) -> None:
    program = programs.start(
        "tests.fault.jobs:with_little_shm",
        size_bytes=1 << 20,
        dataset="large",
        sample_bytes=1 << 20,
        **OPTIONS,
    )
    kind, text = verdict(program)
    assert kind == "ArenaFull", text
    assert f"{4 << 20:,}" in text
    assert "No space left on device" in text
    assert program.wait() == 0


@pytest.mark.parametrize("collate", [False, True], ids=["slabs", "custom collate"])
def test_shared_memory_that_holds_only_one_batch_at_a_time_is_enough(collate: bool, programs: Zygote) -> None:
    program = programs.start(
        "tests.fault.jobs:with_little_shm",
        size_bytes=1 << 20,
        dataset="large",
        sample_bytes=100 << 10,
        length=32,
        as_list=collate,
        **OPTIONS,
    )
    assert verdict(program) == ("batches", "8")
    assert program.wait() == 0


def test_not_even_room_for_the_counters_is_a_clean_error(programs: Zygote) -> None:
    program = programs.start("tests.fault.jobs:with_little_shm", size_bytes=1, dataset="map", **OPTIONS)
    kind, text = verdict(program)
    assert kind in ("ArenaFull", "batches"), text
    assert program.wait() == 0


@pytest.mark.parametrize("calls", CALLS, ids="+".join)
def test_an_epoch_without_these_system_calls_is_whole_and_says_so_once(
    calls: list[str], programs: Zygote
) -> None:
    program = programs.start("tests.fault.jobs:denied", calls=calls, then="outcome", **OPTIONS)
    assert verdict(program) == ("batches", "16")
    assert program.wait() == 0
    assert [call for call in CALLS[2] if program.errors().count(f"{call} is denied") == 1] == calls
    assert program.errors().count("\n") == len(calls), program.errors()


@pytest.mark.parametrize("calls", CALLS, ids="+".join)
def test_killed_workers_are_replaced_without_these_system_calls(
    calls: list[str], programs: Zygote, tmp_path: Path
) -> None:
    program = programs.start(
        "tests.fault.jobs:denied",
        calls=calls,
        then="outcome",
        dataset="SIGKILL",
        folder=str(tmp_path),
        on_error="skip",
        **OPTIONS,
    )
    assert verdict(program) == ("batches", "16")


@pytest.mark.parametrize("calls", CALLS, ids="+".join)
@pytest.mark.parametrize("phase", ["training", "in_the_middle"])
def test_nothing_outlives_the_training_process_without_these_system_calls(
    phase: str, calls: list[str], programs: Zygote
) -> None:
    program = programs.start("tests.fault.jobs:denied", calls=calls, then=phase, pause_s=0.01, **OPTIONS)
    assert verdict(program) == ("ready", "")
    time.sleep(0.05)
    program.signal(signal.SIGKILL)
    assert program.left(within_s=1.0) == []
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("penstock")]
