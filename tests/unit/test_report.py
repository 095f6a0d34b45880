"""The one-page summary: well-formed, self-contained, and saying what the run was."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.lanes.kinds import Kind
from penstock.measure.counters import Counters, as_stats
from penstock.measure.trace import trace_events, write_trace
from penstock.report import write_summary
from penstock.report.charts import side_by_side, throughput, wait_histogram, wait_sequence
from penstock.report.html import shown
from penstock.report.reading import Run, Wait, coverage, percentile, read_run, run_of
from penstock.report.svg import in_bytes, in_time, thousands, ticks
from penstock.report.timeline import CLOSE_TASKS, close_up, close_window, overview

SVG = "{http://www.w3.org/2000/svg}"


def a_run(batches: int = 40, *, workers: int = 2, fault: bool = True, kind: Kind = Kind.SLOTS) -> Counters:
    """Batches of eight every 100 ms: each worker prepares half in 80 ms, training waits 20 ms."""
    counters = Counters(workers=workers, trace=True)
    counters.begin(50.0)
    for batch in range(batches):
        end_s = 50.1 + 0.1 * batch
        for worker in range(workers):
            counters.span(worker, kind, batch, 0, int((end_s - 0.01) * 1e9), 80_000_000, 4)
        counters.delivered(end_s - 0.02, end_s, 8, batch % 3)
    if fault:
        counters.warned(
            "worker 0 (pid 7) was killed by SIGKILL; it is replaced\nstack <of> it", 50.0 + 0.05 * batches
        )
    return counters


def stats_of(counters: Counters) -> dict[str, Any]:
    return as_stats(counters, engine="workers", epoch=0)


def summary(tmp_path: Path, counters: Counters, **more: Any) -> str:
    write_trace(tmp_path / "run.json", counters)
    write_summary(tmp_path / "run.html", tmp_path / "run.json", stats_of(counters), **more)
    return (tmp_path / "run.html").read_text("utf-8")


def parsed(page: str) -> ET.Element:
    head, _, rest = page.partition("\n")
    assert head == "<!DOCTYPE html>"
    return ET.fromstring(rest)


def words(page: str) -> str:
    return " ".join("".join(parsed(page).itertext()).split())


def test_the_page_is_well_formed_and_has_its_pictures(tmp_path: Path) -> None:
    page = parsed(summary(tmp_path, a_run(), rates={"torch": [10.0, 11.0], "penstock": [12.0]}))
    labels = [drawn.attrib["aria-label"] for drawn in page.iter(f"{SVG}svg")]
    assert len(labels) == 6
    assert any(label.startswith("Timeline of 3.99 s") for label in labels)
    assert any(label.startswith("Histogram of 40 waits, median 20 ms") for label in labels)


def test_the_page_fetches_nothing(tmp_path: Path) -> None:
    page = summary(tmp_path, a_run())
    assert not re.search(r"<(script|link|img|iframe|object|use)\b|@import|url\(", page)
    assert set(re.findall(r"https?://[^\s\"<]+", page)) == {"http://www.w3.org/2000/svg"}


def test_what_comes_from_outside_is_text_not_markup(tmp_path: Path) -> None:
    page = summary(
        tmp_path,
        a_run(),
        title="<b>run</b> & more",
        diagnosis="waits < 2 % & fine",
        checks=[(True, "<i>same</i>")],
        rates={"<u>torch</u>": [1.0]},
    )
    for markup in ("<b>run", "<i>same", "<u>torch", "<of>"):
        assert markup not in page
    assert "waits < 2 % & fine" in words(page)


def test_a_lost_worker_is_marked_and_told_in_one_line(tmp_path: Path) -> None:
    page = parsed(summary(tmp_path, a_run()))
    told = [item.text for item in page.iter("li") if "SIGKILL" in (item.text or "")]
    assert told == ["1.99 s: worker 0 (pid 7) was killed by SIGKILL; it is replaced"]
    marks = [drawn for drawn in page.iter(f"{SVG}circle") if drawn.attrib["class"] == "fault"]
    assert len(marks) == 2  # in the overview and close up


def test_checks_say_which_of_them_failed(tmp_path: Path) -> None:
    page = parsed(summary(tmp_path, a_run(), checks=[(True, "one"), (False, "two")]))
    found = {item.text: item.attrib["class"] for item in page.iter("li") if "class" in item.attrib}
    assert found == {"one": "good", "two": "bad"}


def test_without_a_diagnosis_the_stats_make_one(tmp_path: Path) -> None:
    assert "training waits 20% of the time" in words(summary(tmp_path, a_run()))


def test_all_stats_and_the_environment_are_listed(tmp_path: Path) -> None:
    page = parsed(summary(tmp_path, a_run()))
    names = {cell.text for cell in page.iter("th")}
    assert {name.replace("_", " ") for name in stats_of(a_run())} <= names
    assert {"Python", "torch", "cores", "memory"} <= names


def test_numbers_alone_make_a_page_without_pictures(tmp_path: Path) -> None:
    write_summary(tmp_path / "run.html", None, stats_of(a_run()))
    assert not list(parsed((tmp_path / "run.html").read_text("utf-8")).iter(f"{SVG}svg"))


def test_a_loader_that_has_done_nothing_makes_a_page(tmp_path: Path) -> None:
    assert "only 0 batches so far" in words(summary(tmp_path, Counters(workers=2, trace=True)))


@pytest.mark.parametrize("workers", [0, 1, 7, 40])
@pytest.mark.parametrize("batches", [1, 2, 500])
def test_runs_of_any_size_can_be_drawn(tmp_path: Path, workers: int, batches: int) -> None:
    page = summary(tmp_path, a_run(batches, workers=workers))
    assert len(page) < 700_000
    assert "nan" not in page
    parsed(page)


def test_a_long_run_makes_no_larger_page(tmp_path: Path) -> None:
    short, long = a_run(400, fault=False), a_run(4_000, fault=False)
    assert len(summary(tmp_path, long)) < 1.5 * len(summary(tmp_path, short))


def test_collating_has_a_colour_of_its_own(tmp_path: Path) -> None:
    assert "collate" not in {key.tail for key in parsed(summary(tmp_path, a_run())).iter("i")}
    page = parsed(summary(tmp_path, a_run(kind=Kind.COLLATE)))
    assert "collate" in {key.tail for key in page.iter("i")}


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '{"other": 1}', '{"traceEvents": [{"ph": "X"}]}'])
def test_a_file_that_is_no_trace_is_named_in_the_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(PenstockError, match=r"other\.json is not a trace of penstock's DataLoader"):
        read_run(tmp_path / "other.json")


def test_a_trace_is_read_back_as_it_was() -> None:
    run = run_of(json.loads(json.dumps(trace_events(a_run(3)))))
    assert run.workers == ("worker 0", "worker 1")
    assert len(run.tasks) == 6
    assert [wait.took_s for wait in run.waits] == pytest.approx([0.02] * 3)
    assert run.tasks[0].start_s == 0.0
    assert run.end_s == pytest.approx(0.29)
    assert [ready.batches for ready in run.ready] == [0, 1, 2]
    assert run.tasks[0][1:5] == ("prepare", 0, 0, 4)


def test_coverage_is_the_share_of_each_interval() -> None:
    assert coverage([(0.5, 1.5), (1.75, 2.0)], [0.0, 1.0, 2.0, 3.0]) == pytest.approx([0.5, 0.75, 0.0])


def test_spans_that_overlap_cover_an_interval_at_most_once() -> None:
    assert coverage([(0.0, 1.0), (0.0, 1.0)], [0.0, 1.0]) == [1.0]


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.9, 90), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_a_percentile_is_one_of_the_values(share: float, value: int) -> None:
    assert percentile(range(1, 101), share) == value


def test_the_close_up_shows_the_first_lost_worker_and_few_tasks() -> None:
    run = run_of(trace_events(a_run(400)))
    window = close_window(run)
    assert window is not None
    assert window.low_s < run.moments[0].at_s < window.high_s
    assert sum(window.shows(task.start_s, task.end_s) for task in run.tasks) <= CLOSE_TASKS
    assert "4 samples of batch 200, epoch 0, 80 ms" in close_up(run)


def test_without_tasks_there_is_no_close_up() -> None:
    assert close_up(Run(waits=(Wait(0.0, 1.0, 8),))) == ""


def test_the_row_of_ready_batches_is_left_out_when_none_ever_was() -> None:
    drawn = overview(run_of(trace_events(a_run())))
    assert "at most 2 batches" in drawn
    assert "at most" not in overview(Run(waits=(Wait(0.0, 1.0, 8),)))


def test_throughput_is_samples_over_time() -> None:
    assert "mean 80 samples per second" in throughput(run_of(trace_events(a_run(100))))


def test_a_wait_of_nothing_can_be_drawn() -> None:
    run = Run(waits=(Wait(0.0, 0.0, 8),))
    for drawn in (wait_histogram(run), wait_sequence(run), throughput(run), overview(run)):
        ET.fromstring(drawn)


def test_loaders_side_by_side_show_median_and_spread() -> None:
    assert "900  (800 to 1\u202f000)" in side_by_side({"torch": [800.0, 900.0, 1000.0]})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (48e-6, "48 µs"),
        (0.00126, "1.26 ms"),
        (0.25, "250 ms"),
        (1.5, "1.5 s"),
        (240, "4.0 min"),
    ],
)
def test_durations_are_written_as_people_do(seconds: float, text: str) -> None:
    assert in_time(seconds) == text


def test_bytes_and_counts_are_written_as_people_do() -> None:
    assert [in_bytes(n) for n in (0, 1536, 5 << 30)] == ["0 B", "1.5 KiB", "5 GiB"]
    assert thousands(1234567) == "1\u202f234\u202f567"
    assert shown("stages_s", {"prepare": 1.5}) == "prepare 1.5 s"
    assert shown("worker_pids", [41234]) == "41234"
    assert shown("worker_pids", []) == "none"
    assert shown("wait_share", 0.125) == "12.5%"


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.13, 0.31, 3) == pytest.approx([0.2, 0.3])
    assert ticks(3, 3, 4) == [3]
