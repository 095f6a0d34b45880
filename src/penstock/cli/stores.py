"""`penstock cache ls | stat | verify | clear PATH`: manage what is kept on disk: reused samples (`Reuse(store="disk", path=PATH)`) and cached
bytes (`Cache(disk=…, path=PATH)`)."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.table import aligned
from penstock.cli.warm import add_warm
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.reuse.stores.disk import DiskStore
    from penstock.reuse.stores.disk_listing import Listed
    from penstock.reuse.stores.disk_scan import Verified

Progress = Callable[[int, int], None]
ACTIONS = {
    "ls": "what is there, whose it is, and whether it is in use",
    "stat": "how many entries and bytes each store keeps",
    "verify": "read everything and check it; exit code 1 where anything is damaged",
    "clear": "remove stores that no process has open; exit code 1 where any is",
}
ALIASES = {"ls": ["list"]}
EPILOG = """\
examples:
  penstock cache warm s3://bucket/train --path /scratch/kept --disk 500GiB
  penstock cache ls /scratch/kept
  penstock cache verify /scratch/kept 1f3a
  penstock cache clear /scratch/kept --yes"""


def add_cache(commands: Any) -> None:
    """Add the command and its options."""
    cache = commands.add_parser(
        "cache",
        help="samples and bytes that are kept on disk: fill, list, check and remove them",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = cache.add_subparsers(dest="action", required=True, metavar="action")
    add_warm(actions)
    for name, text in ACTIONS.items():
        said = f"{text[0].upper()}{text[1:]}."
        action = actions.add_parser(name, aliases=ALIASES.get(name, []), help=text, description=said)
        action.add_argument("path", metavar="PATH", help="the folder that loaders were given")
        if name != "ls":
            which = "the first letters of a store's name; all without it"
            action.add_argument("store", nargs="?", default="", metavar="STORE", help=which)
        if name == "clear":
            action.add_argument("--yes", action="store_true", help="do not ask")
        action.set_defaults(act=ACTS[name])


def found_in(options: argparse.Namespace) -> list[Listed]:
    from penstock.reuse.stores.disk_listing import listing

    if not Path(options.path).is_dir():
        raise ConfigError(f"there is no folder {options.path!r}")
    prefix = getattr(options, "store", "")
    found = [each for each in listing(options.path) if each.namespace.startswith(prefix)]
    if prefix and len(found) != 1:
        names = "none" if not found else "several: " + ", ".join(each.namespace for each in found)
        raise ConfigError(f"one store in {options.path} must begin with {prefix!r}, there are {names}")
    return found


def nothing(options: argparse.Namespace) -> int:
    print(f"nothing is kept in {options.path}")
    return 0


def entries_in(path: str, each: Listed) -> int | None:
    from penstock.reuse.stores.disk_files import Files
    from penstock.reuse.stores.disk_index import count_rows

    return count_rows(Files(), f"{path}/{each.namespace}/index", each.samples)


@contextmanager
def opened(options: argparse.Namespace, each: Listed) -> Iterator[DiskStore]:
    from penstock.reuse.stores.disk import DiskStore

    store = DiskStore(options.path, each.namespace, max(1, each.samples), 1 << 62, upkeep_s=0)
    try:
        if not store.is_open:
            raise ConfigError(f"the store {each.namespace} cannot be opened, see above")
        yield store
    finally:
        store.close()


# ---- actions


def ls(options: argparse.Namespace) -> int:
    found = found_in(options)
    if not found:
        return nothing(options)
    rows = [("store", "of", "takes", "entries", "last used", "stays", "")]
    for each in found:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.used_at_s))
        count = entries_in(options.path, each)
        entries = "?" if count is None else f"{count:,}"
        if not is_of_bytes(each):
            entries += f" of {each.samples:,}"
        rows.append(
            (each.namespace[:12], each.kind, size(each.held_bytes), entries, used, stays(each), each.about)
        )
    print("\n".join(aligned(rows, "<<>>><<")))
    return 0


def is_of_bytes(each: Listed) -> bool:
    return each.kind == "bytes"


def stays(each: Listed) -> str:
    """Say how long a store stays."""
    if each.temporary:
        return "one run, in use" if each.in_use else "left over of a killed run"
    return "lasts, in use" if each.in_use else "lasts"


def stat(options: argparse.Namespace) -> int:
    found = found_in(options)
    if not found:
        return nothing(options)
    for each in found:
        with opened(options, each) as store:
            said = store.stats()
        share = said["bytes"] / said["held_bytes"] if said["held_bytes"] else 0.0
        what = "entries" if is_of_bytes(each) else "samples"
        of = "" if is_of_bytes(each) else f" of {each.samples:,}"
        rows = [
            (f"store {each.namespace}", ""),
            ("  of", each.about),
            (f"  {what} kept", f"{said['entries']:,}{of}"),
            ("  bytes of these", size(said["bytes"])),
            ("  bytes on disk", f"{size(said['held_bytes'])}, {share:.0%} of it {what}"),
            (
                "  files",
                f"{each.segments:,} segments, {each.large_files:,} of a single {'entry' if is_of_bytes(each) else 'sample'}",
            ),
            ("  in use", "yes" if each.in_use else "no"),
            ("  stays", stays_long(each)),
        ]
        print("\n".join(aligned(rows, "<<")))
    return 0


def stays_long(each: Listed) -> str:
    if not each.temporary:
        return "until it is cleared"
    return (
        "for the run that made it"
        if each.in_use
        else "it is left over of a killed run: the next run removes it"
    )


def verify(options: argparse.Namespace) -> int:
    found, damaged = found_in(options), False
    if not found:
        return nothing(options)
    for each in found:
        with opened(options, each) as store, bar(each.namespace[:12]) as show:
            said = store.verify(show, forget=is_of_bytes(each))
        # Of cached bytes only what was lost counts: the place stays in its file until that is compacted.
        wrong = said.lost if is_of_bytes(each) else said.bad + said.lost
        damaged |= wrong > 0
        print(
            f"{each.namespace[:12]}: {verified_bytes(said) if is_of_bytes(each) else verified_samples(said)}"
        )
    return int(damaged)


def verified_samples(said: Verified) -> str:
    what = (
        f"{said.good:,} samples are right, {said.dead:,} replaced, {size(said.bytes)} in {said.files:,} files"
    )
    if said.bad + said.lost:
        what += f"; DAMAGED: {said.bad:,} places in files, {said.lost:,} samples lost. They are prepared anew when they are needed"
    return what


def verified_bytes(said: Verified) -> str:
    what = f"{said.good:,} entries are right, {size(said.bytes)} in {said.files:,} files"
    if said.lost:
        what += (
            f"; DAMAGED: {said.lost:,} entries are dropped. They are read from their source when they are needed, or now with "
            "`penstock cache warm`. If that goes on, check the disk"
        )
    return what


def clear(options: argparse.Namespace) -> int:
    from penstock.reuse.stores.disk_listing import clear as remove

    found = found_in(options)
    if not found:
        return nothing(options)
    if not options.yes:
        total = size(sum(each.held_bytes for each in found))
        ask(f"remove {len(found)} stores with {total} from {options.path}?")
    gone, kept = list[Any](), list[Any]()
    for each in found:
        removed, stays = remove(options.path, each.namespace)
        gone, kept = gone + removed, kept + stays
    print(f"removed {len(gone)} of {len(found)} stores, {size(sum(each.held_bytes for each in gone))}")
    for each in kept:
        print(
            f"penstock: {each.namespace[:12]} stays, a process has it open ({each.about}): clear it when that job has ended",
            file=sys.stderr,
        )
    return int(bool(kept))


ACTS = {"ls": ls, "stat": stat, "verify": verify, "clear": clear}


def ask(question: str) -> None:
    """Raise ConfigError unless the user answers yes."""
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} Say --yes, there is nobody to ask")
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise ConfigError("nothing was removed")


def size(nbytes: int) -> str:
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:,.1f} {name}"
    return f"{nbytes / 1024:,.1f} KiB"


@contextmanager
def bar(name: str) -> Iterator[Progress]:
    """Show rich's progress bar on a terminal; a log gets none."""
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield lambda _done, _of: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(name, total=None)
        yield lambda done, of: shown.update(task, completed=done, total=of)
