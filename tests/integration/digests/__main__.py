"""Writes the records of this revision:

python -m tests.integration.digests --write              adds cases, and machines and library versions, that are not recorded
python -m tests.integration.digests --write --anew       also replaces what differs: only when batches are meant to change
python -m tests.integration.digests --write --only TEXT  only cases with this in their names
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from pathlib import Path

from tests.integration.digests.case import Case
from tests.integration.digests.cases import CASES
from tests.integration.digests.checkpoints import taken
from tests.integration.digests.files import Room
from tests.integration.digests.record import (
    CHECKPOINTS,
    DIGESTS,
    Record,
    differences,
    lines_of,
    read_lines,
    ways,
    write_lines,
)


def found_here(room: Room, only: str) -> dict[str, Record]:
    lines: dict[str, Record] = {}
    for name, case in CASES.items():
        if only in name:
            lines |= lines_of(name, case, record_of(name, case, room))
    return lines


def record_of(name: str, case: Case, room: Room) -> Record:
    record: Record = {}
    for how, found in ways(name, case, room):
        common = {part: value for part, value in found.items() if part in record}
        if wrong := differences(f"{name}, {how}", record, common):
            raise SystemExit("\n".join(["the ways of this case differ:", *wrong]))
        record = {**found, **record}
    return record


def update(file: Path, lines: dict[str, Record], *, anew: bool) -> list[str]:
    """Names of lines that are recorded otherwise."""
    recorded = read_lines(file)
    wrong = [name for name in lines if recorded.get(name, lines[name]) != lines[name]]
    if anew or not wrong:
        write_lines(file, recorded | lines)
    return [] if anew else wrong


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.integration.digests")
    parser.add_argument("--write", action="store_true", required=True)
    parser.add_argument("--anew", action="store_true")
    parser.add_argument("--only", default="", metavar="TEXT")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        room = Room(Path(folder))
        wrong = update(DIGESTS, found_here(room, options.only), anew=options.anew)
        if not options.only:
            wrong += update(CHECKPOINTS, with_keys(taken(room)), anew=options.anew)
    if wrong:
        sys.exit("\n".join(["recorded otherwise, and left as it is (--anew replaces it):", *wrong]))


def with_keys(entries: dict[str, Record]) -> dict[str, Record]:
    lines: dict[str, Record] = {}
    for name, entry in entries.items():
        lines |= lines_of(name, CASES[entry["case"]], entry)
    return lines


if __name__ == "__main__":
    main()
