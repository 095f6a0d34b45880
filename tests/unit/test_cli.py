"""The parts of the command line that need no process: measuring, the table, the last lines of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

from penstock.cli.both import all_ranks, merged
from penstock.cli.main import main
from penstock.cli.meter import Enough, LoaderMeter, Record, samples_in
from penstock.cli.once import closing_lines
from penstock.cli.ranks import Rank
from penstock.cli.table import memory, table, too_few_steps
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


def metered(clock: Clock, **options: Any) -> tuple[LoaderMeter, type]:
    meter = LoaderMeter(clock=clock, **options)
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
    return Result(
        engine, {"batches": 200, "wait_share": 0.5, "first_batch_s": 1.0, "elapsed_s": 40.0, **facts}
    )


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
        "with penstock: training waits 9% of the time for preparation.",
    ]


def timed(batches: float, first_batch_s: float, elapsed_s: float, **more: float) -> dict[str, float]:
    return {"batches": batches, "first_batch_s": first_batch_s, "elapsed_s": elapsed_s, **more}


def test_a_few_steps_make_no_ratio_and_how_many_would_is_said() -> None:
    long, short = timed(100, 1.0, 20.0), timed(12, 1.0, 3.2)
    assert too_few_steps(long, long) == ""
    assert too_few_steps(long, short) == "Too few steps for a ratio: 12, where 28 would do (--steps 28)."


def test_a_run_that_is_mostly_its_start_makes_no_ratio() -> None:
    torchs, ours = timed(100, 2.0, 20.0), timed(100, 2.0, 4.0)
    said = too_few_steps(torchs, ours)
    assert said.startswith("Too few steps for a ratio: 50% of penstock's run passed before its first batch; ")
    steps = int(said.rpartition("--steps ")[2].rstrip(")."))
    per_step_s = 2.0 / 99
    enough = timed(steps, 2.0, 2.0 + per_step_s * (steps - 1))
    assert too_few_steps(torchs, enough) == "", "what it asks for is enough"


def test_the_steps_of_each_rank_count_not_their_sum() -> None:
    assert too_few_steps(timed(100, 1, 20, ranks=2), timed(100, 1, 20, ranks=2)) == ""
    assert "Too few steps for a ratio: 12," in too_few_steps(*[timed(24, 0.1, 20, ranks=2)] * 2)


def test_the_table_of_too_few_steps_has_no_ratio_of_samples_and_says_why() -> None:
    torchs, ours = (
        result("torch", samples_per_s=100, batches=5),
        result("penstock", samples_per_s=900, batches=5),
    )
    shown = table(torchs, ours)
    assert "9.00x" not in shown
    assert "Too few steps for a ratio: 5," in shown


TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "there",
    "MASTER_PORT": "2950",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
}


def test_a_rank_is_known_by_what_its_launcher_says() -> None:
    assert Rank.of({}) == Rank.of({"RANK": "1"}) == Rank(number=0, world=1)
    assert Rank.of(TORCHRUN) == Rank(number=1, world=4, store=("there", 2950), attempt=2)
    assert Rank.of({"RANK": "3", "WORLD_SIZE": "4"}).store is None
    assert (Rank.of(TORCHRUN).prefix, Rank.of({}).prefix) == ("rank 1: ", "")


def test_ranks_together_add_up_what_can_be_added() -> None:
    facts = {"samples": 80, "samples_per_s": 10.0, "elapsed_s": 8.0}
    one = result("penstock", **facts)
    other = result("penstock", **{**facts, "wait_share": 0.1, "first_batch_s": 3.0})
    one.peak_bytes, other.peak_bytes, one.diagnosis = 100, 50, "fine"
    both = merged([one, other])
    assert both.facts == {
        "batches": 400,
        "samples": 160,
        "samples_per_s": 20.0,
        "elapsed_s": 8.0,
        "first_batch_s": 3.0,
        "wait_share": 0.3,
        "ranks": 2,
    }
    assert (both.peak_bytes, both.diagnosis) == (150, "fine")


def test_without_torchruns_store_rank_0_speaks_for_itself_and_says_so() -> None:
    results = {engine: result(engine, samples_per_s=1.0) for engine in ("penstock", "torch")}
    assert all_ranks(Rank(number=1, world=2), results) is None
    told = all_ranks(Rank(number=0, world=2), results)
    assert told is not None
    assert told[1] == ["\nrank 0 of 2 alone: the other ranks can be added up only under torchrun."]
    alone = all_ranks(Rank(), results)
    assert alone is not None
    assert alone[1] == []


def test_memory_is_said_in_the_unit_that_fits() -> None:
    assert (memory(5 * 2**20), memory(3 * 2**30)) == ("5 MiB", "3.00 GiB")


def test_the_last_lines_name_the_busiest_loaders_only() -> None:
    meter = LoaderMeter(first_s=1.0, last_s=3.0, batches=28, samples=100, wait_s=1.0)
    meter.records = [Record(f"set {number}", batches=number) for number in range(8)]
    first, *lines = closing_lines("train.py", meter)
    assert first == "28 batches, 50 samples/s, waited 50% of the time"
    assert [line.split(";")[0] for line in lines] == [
        *(f"[set {n}" for n in (7, 6, 5, 4, 3)),
        "… and 3 more loaders",
    ]


def test_a_program_without_a_loader_is_told_so() -> None:
    (line,) = closing_lines("train.py", LoaderMeter())
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


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "there is no trace 'run.json'"),
        ("", "run.json is not a trace of penstock's DataLoader"),
        ('{"traceEvents": []}', "none of its processes is penstock's"),
    ],
)
def test_a_page_of_what_is_no_trace_is_an_error_that_names_the_file(
    text: str | None,
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("run.json").write_text(text)
    assert main(["report", "run.json", "-o", "page.html"]) == 2
    assert complaint in capsys.readouterr().err
    assert not Path("page.html").exists()


@pytest.mark.parametrize(
    ("page", "complaint"),
    [("nowhere/page.html", "there is no folder"), (".", "is a folder; name a file in it")],
)
def test_a_page_that_cannot_be_written_is_said_before_the_work(
    page: str,
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("raise SystemExit('the work began')")
    Path("run.json").write_text("{}")
    for words in (
        ["run", "--report", page, "train.py"],
        ["run", "--trace", page, "train.py"],
        ["report", "run.json", "-o", page],
    ):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert complaint in said
        assert "the work began" not in said


def test_a_page_never_overwrites_its_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "run.html"
    trace.write_text("{}")
    assert main(["report", str(trace)]) == 2
    assert "the page would overwrite the trace" in capsys.readouterr().err
