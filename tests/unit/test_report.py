"""The one-page summary: well-formed, self-contained, and saying what the run was."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.measure.counters import Counters, as_stats
from penstock.measure.trace import described, trace_events, write_trace
from penstock.report import write_summary
from penstock.report.charts import throughput, wait_histogram, wait_sequence
from penstock.report.facts import facts
from penstock.report.race import Race, bars, verdict
from penstock.report.reading import RunRecord, Wait, coverage, percentile, read_trace, run_of
from penstock.report.svg import in_bytes, in_time, thousands, ticks
from penstock.report.timeline import CLOSE_TASKS, close_up, close_window, overview
from penstock.wire.kinds import Kind

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
    page = parsed(summary(tmp_path, a_run()))
    labels = [drawn.attrib["aria-label"] for drawn in page.iter(f"{SVG}svg")]
    assert len(labels) == 5
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
        races=[
            Race(title="<u>race</u>", rounds={"<u>torch</u>": [1.0]}, says="<u>so</u>", about="<u>it</u>")
        ],
        notes=["<u>note</u>"],
    )
    for markup in ("<b>run", "<i>same", "<u>", "<of>"):
        assert markup not in page
    assert "waits < 2 % & fine" in words(page)


def test_a_lost_worker_is_marked_and_told_in_one_line(tmp_path: Path) -> None:
    page = parsed(summary(tmp_path, a_run()))
    told = ["".join(item.itertext()) for item in page.iter("li") if "SIGKILL" in "".join(item.itertext())]
    assert told == ["1after 1.99 s: worker 0 (pid 7) was killed by SIGKILL; it is replaced"]
    marks = [drawn.text for drawn in page.iter("span") if drawn.get("class") == "flag"]
    assert marks == ["1", "1"]  # in the overview and close up


def test_checks_say_which_of_them_failed(tmp_path: Path) -> None:
    page = parsed(summary(tmp_path, a_run(), checks=[(True, "one"), (False, "two")]))
    found = {item.text: item.attrib["class"] for item in page.iter("li") if "class" in item.attrib}
    assert found == {"one": "good", "two": "bad"}


def test_without_a_diagnosis_the_stats_make_one(tmp_path: Path) -> None:
    assert "training waits 20% of the time" in words(summary(tmp_path, a_run()))


def test_numbers_are_facts_with_labels_and_units_and_the_machine_is_named(tmp_path: Path) -> None:
    page = parsed(summary(tmp_path, a_run()))
    rows = {row.findtext("th"): row.findtext("td") for row in page.iter("tr")}
    assert rows["training waited"] == "800 ms"
    assert rows["share of time waited"] == "20.0%"
    assert rows["workers replaced"] == "1"
    assert {"Python", "torch", "cores", "memory"} <= set(rows)
    assert not [name for name in rows if name is None or "_" in name]
    assert "None" not in rows.values()


def test_ranks_of_a_machine_have_a_line_each() -> None:
    one = {"rank": 0, "workers": 2, "allowed": 3, "lent_s": 0.0, "borrowed_s": 90.0, "waited_s": 2.0}
    other = {**one, "rank": 1, "allowed": 1, "lent_s": 90.0, "borrowed_s": 0.0}
    last = {"rank": 0, "share": 0.4}
    found = facts({"node": {"cores": 4, "moves": 7, "loaders": [one, other], "slowest": last}})
    (lines,) = found.values()
    assert lines["rank 0, loader 0"].startswith("uses 3 cores, 2 of its own, borrowed")
    assert "lent" in lines["rank 1, loader 1"]
    assert lines["slowest"] == "rank 0: the others wait 40% of the time for it"


def test_facts_that_do_not_apply_are_left_out_and_new_ones_appear_in_words() -> None:
    found = facts(
        {
            **stats_of(a_run()),
            "retries": 3,
            "read_wait_s": 0.5,
            "reuse": {"kept_bytes": 2048, "hit_share": 0.5, "store": None},
        }
    )
    assert found["Further"] == {"retries": "3", "read wait": "500 ms"}
    assert found["Reuse"] == {"kept": "2 KiB", "hit": "50.0%"}
    assert "GPU" not in found
    assert found["Workers"]["preparing samples, together"] == "0 s"
    assert not {"agent pid", "worker pids"} & {label for group in found.values() for label in group}


def test_a_page_of_a_trace_alone_has_the_loaders_numbers_its_diagnosis_and_its_machine(
    tmp_path: Path,
) -> None:
    counters = a_run()
    about = described(stats_of(counters), "the disk is slow.") | {"environment": {"cores": "a lot"}}
    write_trace(tmp_path / "run.json", counters, about)
    write_summary(tmp_path / "run.html", tmp_path / "run.json")
    page = (tmp_path / "run.html").read_text("utf-8")
    assert "the disk is slow." in words(page)
    rows = {row.findtext("th"): row.findtext("td") for row in parsed(page).iter("tr")}
    assert (rows["batches"], rows["cores"], rows["tasks given out again"]) == ("40", "a lot", "0")


def test_a_trace_without_the_loaders_numbers_is_counted_from_its_events(tmp_path: Path) -> None:
    write_trace(tmp_path / "old.json", a_run())
    write_summary(tmp_path / "old.html", tmp_path / "old.json")
    rows = {
        row.findtext("th"): row.findtext("td")
        for row in parsed((tmp_path / "old.html").read_text("utf-8")).iter("tr")
    }
    assert (rows["batches"], rows["samples"], rows["workers replaced"]) == ("40", "320", "1")
    assert rows["busy, each worker"] == "3.2 s, 3.2 s"
    assert "cores" not in rows, "where the page is made says nothing of where the run was"


def test_no_word_of_a_drawing_lies_over_its_curve(tmp_path: Path) -> None:
    page = parsed(summary(tmp_path, a_run()))
    assert not list(page.iter(f"{SVG}text")), "words beside the drawings keep their size on a narrow page"
    looks = {span.get("class", "").split()[0] for span in page.iter("span") if "style" in span.attrib}
    assert looks == {"x", "y", "row", "flag"}, "all stand left of, under or above the drawing"


def test_no_part_of_the_page_is_wider_than_a_telephone(tmp_path: Path) -> None:
    page = summary(tmp_path, a_run(), races=[Race(title="race", rounds={"torch": [1.0, 2.0], "ours": [3.0]})])
    widths = [int(n) for n in re.findall(r"min-width: (\d+)px|minmax\((\d+)px", page) for n in n if n]
    assert all(width < 200 for width in widths), widths
    assert all(drawn.attrib["preserveAspectRatio"] == "none" for drawn in parsed(page).iter(f"{SVG}svg"))


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


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1, 2]",
        '{"other": 1}',
        '{"traceEvents": [{"ph": "X"}]}',
        '{"traceEvents": [{"ph": "X", "tid": 1, "ts": 0, "dur": 1, "name": "of another program"}]}',
    ],
)
def test_a_file_that_is_no_trace_is_named_in_the_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(PenstockError, match=r"other\.json is not a trace of penstock's DataLoader"):
        read_trace(tmp_path / "other.json")


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
    assert close_up(RunRecord(waits=(Wait(0.0, 1.0, 8),))) == ""


def test_the_row_of_ready_batches_is_left_out_when_none_ever_was() -> None:
    assert ">ready<" in overview(run_of(trace_events(a_run())))
    assert ">ready<" not in overview(RunRecord(waits=(Wait(0.0, 1.0, 8),)))


def test_how_many_batches_were_ready_is_said_in_the_key(tmp_path: Path) -> None:
    assert "batches ready, at most 2" in words(summary(tmp_path, a_run()))


def test_throughput_is_samples_over_time() -> None:
    assert "mean 80 samples per second" in throughput(run_of(trace_events(a_run(100))))


def test_a_wait_of_nothing_can_be_drawn() -> None:
    run = RunRecord(waits=(Wait(0.0, 0.0, 8),))
    for drawn in (wait_histogram(run), wait_sequence(run), throughput(run), overview(run)):
        ET.fromstring(drawn)


def test_loaders_side_by_side_show_median_and_spread_and_the_limit() -> None:
    drawn = ET.fromstring(bars(Race(title="", rounds={"torch": [800.0, 900.0, 1000.0]}, limit=2000.0)))
    assert [" ".join("".join(lane.itertext()).split()) for lane in drawn] == [
        "torch900 samples/s 800 to 1\u202f000".replace("\u202f", " "),
        "limit2 000 samples/s",
    ]
    assert [bar.get("style") for bar in drawn.iter("b") if bar.get("style")] == ["width:45%", "width:100%"]


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ([200.0, 210.0, 220.0, 230.0, 240.0], "2.20 times torch (5 rounds: 2.00 to 2.40)."),
        ([80.0, 85.0, 90.0, 92.0, 95.0], "0.90 times torch, slower (5 rounds: 0.80 to 0.95)."),
        (
            [99.0, 130.0, 140.0, 150.0, 160.0],
            "No difference to torch that these rounds can tell (5 rounds: 0.99 to 1.60).",
        ),
        (
            [100.1, 130.0, 140.0, 150.0, 160.0],
            "No difference to torch that these rounds can tell (5 rounds: 1.00 to 1.60).",
        ),
        ([200.0], "No ratio: 1 round is too few, 5 are needed."),
        ([200.0, 210.0, 220.0, 230.0], "No ratio: 4 rounds are too few, 5 are needed."),
    ],
)
def test_a_ratio_is_given_only_where_all_rounds_agree(ours: list[float], said: str) -> None:
    assert verdict(ours, [100.0] * len(ours)) == said


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


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.13, 0.31, 3) == pytest.approx([0.2, 0.3])
    assert ticks(3, 3, 4) == [3]
