"""What a case comes to, in every way that must come to the same, and how that is compared with what was recorded.

A record has, per epoch and batch, digests of `batches`, `order`, `draws` (`canonical` says of what) and `states`: those before the first
batch and with each in hand. `training draws` is, per epoch, what the training process itself draws next; workers that stay leave it another
number of draws, as in torch. `rest …` is what follows when a new loader goes on at "epoch/batch": the rest of that epoch and the next
one. `skipped` is what `loader.skipped()` says, without paths and error texts, which depend on the machine.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock import DataLoader
from tests.integration.digests.canonical import PARTS, as_json, parts_of, settled, short
from tests.integration.digests.case import Case
from tests.integration.digests.files import Room

Record = dict[str, Any]
State = dict[str, Any]
Place = tuple[int, int]
"""Epoch, and batches of it that were delivered."""

DIGESTS = Path(__file__).parent / "digests.json"
CHECKPOINTS = Path(__file__).parent / "checkpoints.json"
ON_MACHINE = ("batches", "rest batches")
"""Parts of a record that hold pixels and sound."""
WRITE = "python -m tests.integration.digests --write"


def reset_generators() -> None:
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)


def drawn_here() -> str:
    """What the three generators of this process give next: a loader may take from them only what torch's takes."""
    return short(f"{random.random()} {np.random.random()} {torch.rand((), dtype=torch.float64).item()}")


def run(case: Case, room: Room, **more: Any) -> tuple[Record, list[list[State]]]:
    """All epochs of a new loader, and its states."""
    reset_generators()
    loader = case.loader(room, **more)
    here = "training draws" + (", workers stay" if loader.persistent_workers else "")
    record: Record = {part: [] for part in (*PARTS, "states", here)}
    states: list[list[State]] = []
    for epoch in range(case.epochs):
        if case.set_epoch is not None:
            case.set_epoch(loader, epoch)
        found, held = [], [loader.state_dict()]
        for batch in loader:
            found.append(parts_of(batch))
            held.append(loader.state_dict())
        for part in PARTS:
            record[part].append(" ".join(each[part] for each in found))
        record[here].append(drawn_here())
        record["states"].append(" ".join(short(as_json(settled(state))) for state in held))
        states.append(held)
    if loader.on_error != "raise":
        record["skipped"] = skipped(loader, case.epochs)
    return record, states


def skipped(loader: DataLoader[Any], epochs: int) -> str:
    """Without those of an epoch that was begun ahead."""
    names = ("epoch", "position", "key", "replaced_by")
    rows = [[one.get(name) for name in names] for one in loader.skipped() if one["epoch"] < epochs]
    return short(json.dumps(sorted(rows, key=str)))


def rest(case: Case, room: Room, state: State, place: Place, **more: Any) -> Record:
    """What follows a state in a new loader."""
    reset_generators()
    loader = case.loader(room, **more)
    loader.load_state_dict(state)
    found = [parts_of(batch) for batch in loader]
    if (following := place[0] + 1) < case.epochs:
        if case.set_epoch is not None:
            case.set_epoch(loader, following)
        found += [parts_of(batch) for batch in loader]
    at = f"{place[0]}/{place[1]}"
    return {f"rest {part}": {at: short(" ".join(each[part] for each in found))} for part in PARTS}


def places_of(states: list[list[State]]) -> list[Place]:
    """Where a new loader goes on: at the start, early, later, with the last batch in hand, and in the second epoch."""
    last = len(states[0]) - 1
    wanted = {(0, 0), (0, 1), (0, 3), (0, last), (1, 2)}
    return sorted((epoch, at) for epoch, at in wanted if epoch < len(states) and at < len(states[epoch]))


def merged(records: list[Record]) -> Record:
    found: Record = {}
    for record in records:
        for part, values in record.items():
            found[part] = {**found.get(part, {}), **values}
    return found


def ways(name: str, case: Case, room: Room) -> Iterator[tuple[str, Record]]:
    """The case in every way that must come to the same; the first makes the whole record."""
    first = case.workers or 0
    record, states = run(case, room, num_workers=first)
    places = places_of(states)[-3 if first else 0 :]  # starting workers takes most of the time
    rests = [rest(case, room, states[epoch][at], (epoch, at), num_workers=first) for epoch, at in places]
    yield f"{first} workers", {**record, **merged(rests)}
    if case.workers is not None:
        return
    some = sum(name.encode())
    if (
        not case.made_by or some % 2
    ):  # one worker or two, pixels are made alike: half of these cases are enough
        many = case.stays and case.epochs > 3  # a start for each of them takes long
        yield "1 worker", run(case, room, num_workers=1, persistent_workers=many)[0]
    yield "2 workers", run(case, room, num_workers=2, persistent_workers=case.stays)[0]
    inside = [(epoch, at) for epoch, at in places if 0 < at < len(states[epoch]) - 1] or places[:1]
    epoch, at = inside[some % len(inside)]
    go_on = {"num_workers": 3, "persistent_workers": case.stays}
    yield "3 workers that go on", rest(case, room, states[epoch][at], (epoch, at), **go_on)
    if case.spawns:
        spawned = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"}
        yield "1 worker that is spawned", run(case, room, **spawned)[0]


# ---- files of records


def lines_of(name: str, case: Case, record: Record) -> dict[str, Record]:
    """A record as lines of a file: what holds everywhere, and what holds on machines like this one."""
    if not case.made_by:
        return {name: {part: value for part, value in record.items() if not part.endswith("order")}}
    here = {part: value for part, value in record.items() if part in ON_MACHINE}
    everywhere = {part: value for part, value in record.items() if part not in ON_MACHINE}
    return {name: everywhere, f"{name} @ {case.key}": here}


def read_lines(file: Path) -> dict[str, Record]:
    lines: dict[str, Record] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return lines


def write_lines(file: Path, lines: dict[str, Record]) -> None:
    rows = [f"{json.dumps(name)}: {json.dumps(lines[name], sort_keys=True)}" for name in sorted(lines)]
    file.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


# ---- comparing


def differences(where: str, recorded: Record, found: Record) -> list[str]:
    """One sentence for each part that is not as it was recorded; parts that were not looked at this time are no difference."""
    wrong = [f"{where}: {part} is not recorded" for part in sorted(found.keys() - recorded.keys())]
    for part in sorted(found.keys() & recorded.keys()):
        then, now = recorded[part], found[part]
        if isinstance(now, list):
            wrong += in_epochs(f"{where}: {part}", then, now)
        elif isinstance(now, dict):
            others = [place for place in now if now[place] != then.get(place)]
            wrong += [f"{where}: {part} after epoch/batch {place} differ" for place in others]
        elif now != then:
            wrong.append(f"{where}: {part} differs")
    return wrong


def in_epochs(what: str, then: list[str], now: list[str]) -> Iterator[str]:
    if len(then) != len(now):
        yield f"{what}: {len(now)} epochs, {len(then)} were recorded"
    for epoch, (before, after) in enumerate(zip(then, now, strict=False)):
        old, new = before.split(), after.split()
        if len(old) != len(new):
            yield f"{what} of epoch {epoch}: {len(new)}, {len(old)} were recorded"
        elif old != new:
            others = [str(at) for at in range(len(old)) if old[at] != new[at]]
            yield f"{what} of epoch {epoch} differ at {', '.join(others)}"
