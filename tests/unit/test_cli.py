"""The parts of the command line that need no process: measuring, the table, the last lines of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

from penstock.cli.main import main
from penstock.cli.meter import Enough, Meter, Record, samples_in
from penstock.cli.once import closing_lines
from penstock.cli.table import memory, table
from penstock.cli.watched import Result


class Clock:
    """Time that passes only when a test says so."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Loader:
    """Makes a batch of four in a second."""

    dataset, batch_size, num_workers, collate_fn, batch_sampler = [0], 4, 2, None, None

    def __init__(self, clock: Clock, batches: int) -> None:
        self.clock, self.batches = clock, batches

    def __iter__(self) -> Iterator[int]:
        for number in range(self.batches):
            self.clock.now_s += 1
            yield number


def metered(clock: Clock, **options: Any) -> tuple[Meter, type]:
    meter = Meter(clock=clock, **options)
    kind = type("MeteredLoader", (Loader,), {"__iter__": Loader.__iter__})
    meter.install(kind)
    return meter, kind


def test_waiting_is_the_time_in_the_loader_and_the_rest_is_the_programs() -> None:
    clock = Clock()
    meter, kind = metered(clock)
    for _ in kind(clock, 3):
        clock.now_s += 4
    facts = meter.facts()
    assert (facts["batches"], facts["samples"], facts["elapsed_s"]) == (3, 12, 15)
    assert (facts["wait_share"], facts["samples_per_s"], facts["first_batch_s"]) == (0.2, 0.8, 1)


def test_a_program_is_stopped_after_its_steps_over_all_loaders_and_its_last_step_counts() -> None:
    clock = Clock()
    meter, kind = metered(clock, steps=5)
    taken = []

    def train() -> None:
        for loader in (kind(clock, 3), kind(clock, 3)):
            for batch in loader:
                taken.append(batch)
                clock.now_s += 1

    with pytest.raises(Enough):
        train()
    assert taken == [0, 1, 2, 0, 1]
    assert meter.elapsed_s == 10


def test_a_loader_is_known_again_and_what_is_known_outlives_it() -> None:
    clock = Clock()
    meter, kind = metered(clock)
    loader = kind(clock, 2)
    for _ in range(2):
        list(loader)
    del loader
    assert [(record.name, record.batches) for record in meter.records] == [("list, 4 a batch, 2 workers", 4)]


def test_progress_is_told_a_few_times_a_second() -> None:
    clock, told = Clock(), []
    meter, kind = metered(clock, on_progress=lambda meter: told.append(meter.batches))
    meter.clock = lambda: 100 + (clock.now_s - 100) / 20  # 50 ms a batch
    list(kind(clock, 9))
    assert told == [1, 5, 9]


def test_samples_are_counted_where_torch_has_collated_and_taken_for_granted_elsewhere() -> None:
    plain, custom = TorchDataLoader(range(9), 4), TorchDataLoader(range(9), 4, collate_fn=tuple)
    assert [samples_in(batch, plain) for batch in plain] == [4, 4, 1]
    assert samples_in({"a": [torch.zeros(3, 2)]}, plain) == 3
    assert [samples_in(batch, custom) for batch in custom] == [4, 4, 4]


def result(engine: str, **facts: float) -> Result:
    return Result(engine, {"batches": 200, "wait_share": 0.5, "first_batch_s": 1.0, **facts})


def test_the_table_sets_both_runs_side_by_side() -> None:
    torchs, ours = (
        result("torch", samples_per_s=812.4),
        result("penstock", samples_per_s=1930, wait_share=0.09),
    )
    torchs.peak_bytes, ours.peak_bytes = 2 * 2**30, 900 * 2**20
    ours.diagnosis = "training waits 9% of the time for preparation."
    assert table(torchs, ours).splitlines() == [
        "                      torch  penstock",
        "samples/s               812     1,930  2.38x",
        "waiting share           50%        9%",
        "peak memory (PSS)  2.00 GiB   900 MiB  0.44x",
        "first batch after    1.00 s    1.00 s",
        "batches                 200       200",
        "",
        "with penstock, training waits 9% of the time for preparation.",
    ]


def test_memory_is_said_in_the_unit_that_fits() -> None:
    assert (memory(5 * 2**20), memory(3 * 2**30)) == ("5 MiB", "3.00 GiB")


def test_the_last_lines_name_the_busiest_loaders_only() -> None:
    meter = Meter(first_s=1.0, last_s=3.0, batches=28, samples=100, wait_s=1.0)
    meter.records = [Record(f"set {number}", batches=number) for number in range(8)]
    first, *lines = closing_lines("train.py", meter)
    assert first == "28 batches, 50 samples/s, waited 50% of the time"
    assert [line.split(";")[0] for line in lines] == [
        *(f"[set {n}" for n in (7, 6, 5, 4, 3)),
        "… and 3 more loaders",
    ]


def test_a_program_without_a_loader_is_told_so() -> None:
    (line,) = closing_lines("train.py", Meter())
    assert "iterated no torch.utils.data.DataLoader" in line


def test_a_script_that_is_not_there_is_an_error_that_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "nowhere.py"]) == 2
    assert "there is no script 'nowhere.py' in " in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["run"], ["run", "--steps", "0", "train.py"]])
def test_wrong_arguments_end_with_the_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "usage: penstock" in capsys.readouterr().err
