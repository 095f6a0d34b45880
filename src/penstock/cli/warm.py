"""`penstock cache warm SOURCE --path FOLDER --disk BYTES`: read a dataset once, so that later runs find its bytes on this machine's disk."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.config import folder_at, parse_bytes
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.cache.warm import Warming, WarmState

READERS = 64
KINDS = ("images", "tar", "audio", "object")
TARGETS = ("cls", "json", "txt", "none")
MOST_SHOWN = 20
"""Unread samples that are listed."""
INTERRUPTED = 130

WARM = """\
Reads all samples of a dataset and keeps their bytes in a folder of this machine, where a loader with
cache=penstock.Cache(disk=…, path=FOLDER, persistent=True) finds them. What is there is not read again, so after any
end (Ctrl-C, a kill, a full disk) the same command goes on. Exit code 0: all is there; 1: some is not; 130: Ctrl-C."""
EPILOG = """\
examples:
  penstock cache warm s3://bucket/train --path /nvme/cache --disk 500GiB
  penstock cache warm 'https://host/part-{000..127}.tar' --path /nvme/cache --disk 500GiB
  penstock cache warm train.py:dataset --kind object --path /nvme/cache --disk 500GiB

Give SOURCE exactly as the training does: names are part of what a cache goes by, so a relative path is another than an
absolute one."""


def add_warm(actions: Any) -> None:
    """Add the action and its options."""
    warm_ = actions.add_parser(
        "warm",
        help="read a dataset once, so that later runs find its bytes on this disk",
        description=WARM,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    warm_.add_argument(
        "source",
        metavar="SOURCE",
        help="what the dataset is made of: a folder, a URL, tar shards; or file.py:object",
    )
    warm_.add_argument(
        "--path", required=True, metavar="FOLDER", help="the folder of the cache, as in Cache(path=…)"
    )
    warm_.add_argument(
        "--disk", required=True, metavar="BYTES", help="most it may take, as in Cache(disk=…): 500GiB"
    )
    warm_.add_argument(
        "--kind",
        choices=KINDS,
        help="ImageFolder, TarDataset, AudioFolder, or an object of yours; without it, by SOURCE's name",
    )
    warm_.add_argument(
        "--target",
        choices=TARGETS,
        help="of tar shards: TarDataset's target= (cls); its bytes are read with the image's",
    )
    warm_.add_argument(
        "--readers", type=int, default=READERS, metavar="N", help=f"reads in flight ({READERS})"
    )
    warm_.set_defaults(act=warm)


def warm(options: argparse.Namespace) -> int:
    from penstock.cache.warm import Warming, located, warm_tier

    path, max_bytes = folder_at(options.path), parse_bytes(options.disk, "--disk")
    with shown_log():
        found = located(dataset_of(options))
        tier = warm_tier(found, path, max_bytes)
        try:
            warming = Warming(found, tier, readers=options.readers)
            began_s = time.monotonic()
            stopped = not watched(warming)
            state = warming.state
            there = warming.recount() if state.end == "unwritable" else state.there
        finally:
            tier.close()
            found.seam.holder.bytes_from.close()
    elapsed_s = time.monotonic() - began_s
    print("\n".join(closing(state, there, path, options.disk, elapsed_s)))
    for line in unread_lines(warming, state):
        print(line, file=sys.stderr)
    return INTERRUPTED if stopped else int(there < state.samples)


def dataset_of(options: argparse.Namespace) -> Any:
    """Make the dataset; ConfigError if it cannot be."""
    kind = options.kind or kind_of(options.source)
    if options.target is not None and kind != "tar":
        raise ConfigError("--target is for tar shards")
    if kind == "object":
        from penstock.cli.reuse import found_in, made, staged

        return staged(made(found_in(options.source)))
    from penstock.pipeline.audio import AudioFolder
    from penstock.pipeline.staged import ImageFolder
    from penstock.pipeline.tar import TarDataset
    from penstock.sources.sources import shown

    try:
        if kind == "tar":
            target = options.target or "cls"
            return TarDataset(options.source, target=None if target == "none" else target)
        return AudioFolder(options.source) if kind == "audio" else ImageFolder(options.source)
    except OSError as exc:
        hint = " (other kinds: --kind tar, --kind audio)" if options.kind is None and kind == "images" else ""
        said = (
            f"there is no {exc.filename!r}"
            if isinstance(exc, FileNotFoundError) and exc.filename
            else str(exc)
        )
        raise ConfigError(f"{shown(options.source)} cannot be read: {said}{hint}") from exc


def kind_of(source: str) -> str:
    return "tar" if source.partition("?")[0].endswith(".tar") else "images"


# ---- output


def watched(warming: Warming) -> bool:
    """Run under a progress bar; return False if the user stopped it."""
    from penstock.report.display import Bar, TextBar

    total = warming.state.samples
    bar: Bar = TerminalBar(total) if has_rich_terminal() else TextBar("warming", total)
    pace = WarmPace(time.monotonic)
    try:
        for state in warming.run():
            bar.show(state.done, pace.note(state, with_time=isinstance(bar, TextBar)))
    except KeyboardInterrupt:
        return False
    else:
        return True
    finally:
        bar.close()


def has_rich_terminal() -> bool:
    return sys.stderr.isatty() and importlib.util.find_spec("rich") is not None


class TerminalBar:
    """rich's bar on standard error: standard output has the result."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._progress = Progress(
            TextColumn("warming"), *columns, console=Console(stderr=True), auto_refresh=False
        )
        self._task = self._progress.add_task("warming", total=total, note="")
        self._progress.start()

    def show(self, done: int, note: str) -> None:
        self._progress.update(self._task, completed=done, note=note, refresh=True)

    def close(self) -> None:
        self._progress.stop()


class WarmPace:
    """Rates over about the last ten seconds."""

    SPAN_S = 10.0

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: list[tuple[float, int, int]] = []

    def note(self, state: WarmState, *, with_time: bool) -> str:
        """Return the text beside the bar. `with_time`: the bar itself does not tell how long it will take."""
        now_s = self._clock()
        self._seen.append((now_s, state.stored_bytes, state.done))
        while len(self._seen) > 2 and self._seen[1][0] < now_s - self.SPAN_S:
            self._seen.pop(0)
        then_s, nbytes, done = self._seen[0]
        if now_s <= then_s:
            return "samples"
        rate, pace = (state.stored_bytes - nbytes) / (now_s - then_s), (state.done - done) / (now_s - then_s)
        said = [f"samples, {size(int(rate))}/s"]
        if state.found:
            said.append(f"{state.found:,} were there")
        if state.failed:
            said.append(f"{state.failed:,} failed")
        if with_time and pace and state.done < state.samples:
            said.append(f"{duration((state.samples - state.done) / pace)} left")
        return ", ".join(said)


def closing(state: WarmState, there: int, path: str, disk: str, elapsed_s: float) -> list[str]:
    """Return the closing lines: what is there, why it ended, what to do."""
    head = (
        f"{there:,} of {state.samples:,} samples are in {path}: {state.found:,} were there, {state.stored:,} were read, "
        f"{size(state.stored_bytes)} in {duration(elapsed_s)}"
    )
    lines = [head]
    match state.end:
        case "full":
            all_of_it = ""
            if state.stored:
                from penstock.cache.disk import needed_bytes

                whole = needed_bytes(state.stored_bytes * state.samples // state.stored, state.samples)
                all_of_it = f": all of them need about {size(whole)}"
            lines.append(
                f"full: no more fits into --disk {disk}{all_of_it}. The rest is read from its source; give more to keep it too"
            )
        case "unwritable":
            lines.append(
                "the disk is full or fails, see above. Make room there (`penstock cache ls` shows what is kept), or give another --path; the same command goes on"
            )
        case "gone":
            lines.append(
                "given up: too many reads in a row failed, see below. When the source is back, the same command goes on"
            )
        case "stopped":
            lines.append("stopped; the same command goes on")
    if state.unplaced:
        lines.append(
            f"{state.unplaced:,} samples found no place in the index: they are read from their source; the same command tries again"
        )
    if there == state.samples:
        lines.append(
            f'a loader finds them with cache=penstock.Cache(disk="{size_word(disk)}", path="{path}", persistent=True)'
        )
    return lines


def unread_lines(warming: Warming, state: WarmState) -> list[str]:
    if not state.failed:
        return []
    lines = [f"penstock: {state.failed:,} samples could not be read:"]
    lines += [
        f"  {name}: {why}" if name not in why else f"  {why}" for name, why in warming.unread[:MOST_SHOWN]
    ]
    more = state.failed - min(MOST_SHOWN, len(warming.unread))
    return [*lines, *([f"  and {more:,} more"] if more else [])]


def size_word(disk: str) -> str:
    return disk.strip().replace('"', "")


def size(nbytes: int) -> str:
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:,.1f} {name}"
    return f"{nbytes / 1024:,.1f} KiB"


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
    return f"{whole // 60}:{whole % 60:02}" if whole >= 60 else f"{seconds:.1f} s"


@contextmanager
def shown_log() -> Iterator[None]:
    """Show warnings as one line of ours each."""
    log, handler = logging.getLogger("penstock"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("penstock: %(message)s"))
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
