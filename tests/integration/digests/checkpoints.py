"""Checkpoints that are kept as they were written, so that a later revision shows that it loads them.

Those with tensors in them (states of a user's dataset or sampler) cannot be kept as JSON and are left out.
"""

from __future__ import annotations

import json
from typing import Any

from tests.integration.digests.canonical import PARTS, as_json
from tests.integration.digests.cases import CASES
from tests.integration.digests.files import Room
from tests.integration.digests.record import Place, Record, State, rest, run

KEPT: dict[str, tuple[Place, ...]] = {
    "drawing: sequential": ((0, 3),),
    "drawing: shuffled": ((0, 0), (0, 3), (0, 6), (1, 2)),
    "drawing: shuffled, torch's seed": ((0, 2),),
    "drawing: samples, shuffled": ((0, 5),),
    "drawing: shard 0 of 2": ((0, 1),),
    "drawing: shard 1 of 2": ((1, 2),),
    "drawing: RandomSampler": ((0, 2), (1, 2)),
    "drawing: DistributedSampler": ((1, 1),),
    "drawing: BatchSampler": ((0, 2),),
    "a state of its own": ((0, 2),),
    "skip: shuffled": ((0, 2),),
    "iterable: no place, 2 workers": ((0, 3),),
    "iterable: place in the dataset, 2 workers": ((0, 3),),
    "iterable: its own iterator, 3 workers": ((0, 4),),
    "iterable: drawing, 2 workers": ((0, 2),),
    "iterable: drawing, torch's seed, 2 workers": ((0, 2),),
    "folder: training": ((0, 1),),
    "adopted: RandAugment": ((0, 1),),
    "audio: spectra": ((0, 1),),
    "targets: all": ((0, 1),),
    "reuse: memory": ((0, 1), (1, 2)),
    "reuse: disk": ((1, 1),),
    "reuse: memory, shard": ((1, 2),),
}
ELSEWHERE = {
    "drawing: shuffled": "drawing: shuffled, batches of 3",
    "drawing: shard 0 of 2": "drawing: shuffled",
}
"""Cases whose checkpoints are also loaded by another: another batch size, another number of ranks."""


def label(case: str, place: Place, into: str) -> str:
    return f"{case}, after {place[0]}/{place[1]}" + (f", into {into}" if into != case else "")


def taken(room: Room) -> dict[str, Record]:
    """The checkpoints of this revision, with what follows them."""
    found: dict[str, Record] = {}
    for name, places in KEPT.items():
        case = CASES[name]
        _, states = run(case, room, num_workers=case.workers or 0)
        for place in places:
            state: State = json.loads(as_json(states[place[0]][place[1]]))
            for into in {name, ELSEWHERE.get(name, name)}:
                entry = {"case": into, "place": list(place), "state": state}
                found[label(name, place, into)] = {**entry, **following(entry, room)}
    return found


def following(entry: Record, room: Room, **more: Any) -> Record:
    """Digests of what comes when the checkpoint is loaded."""
    case = CASES[entry["case"]]
    place: Place = (entry["place"][0], entry["place"][1])
    found = rest(case, room, entry["state"], place, **{"num_workers": case.workers or 0, **more})
    return {f"rest {part}": next(iter(found[f"rest {part}"].values())) for part in PARTS}
