"""Recording what the core is told: everything comes back as it was, and a record can be played again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.agent.record import Recorder, decode, encode, read_record
from penstock.core import events as ev
from penstock.core.events import Action, Event, Kind
from penstock.sim import Scenario, record, replay

TASK = ev.Task(7, 3, Kind.PARTS, 0, 4, parts=(4096, 8192), poisoned=True)
VALUES = [
    ev.Feed(1, 64),
    ev.Abort(),
    ev.Assign(2, TASK),
    ev.WorkerLost(0, 5, 2, "was killed by SIGKILL", hung=True),
    ev.Done(1, 5, 0.25, 17.5, holds=True, dropped=(1, 2), refers=True),
    ev.LayoutKnown(0, (150_528, 8)),
    ev.Failed(1, 5, 3, b"\x00\xff"),
    ev.DeliverError(4, ev.Trouble("memory", need_bytes=1 << 40)),
    ev.Deliver(4, 8192, -1, (0,)),
    ev.Tick(1.5, (1, 2, 3)),
    ev.DeliverEnd(9),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_what_is_written_comes_back_as_it_was(value: Event | Action) -> None:
    again = decode(json.loads(json.dumps(encode(value))))
    assert again == value
    assert type(again) is type(value)


def test_kinds_come_back_as_kinds() -> None:
    assert decode(json.loads(json.dumps(encode(TASK)))).kind is Kind.PARTS


numbers = st.integers(-(2**62), 2**62)


@given(numbers, numbers, st.floats(allow_nan=False), st.lists(numbers), st.booleans(), st.binary(), st.text())
def test_any_values_come_back(a: int, b: int, c: float, d: list[int], e: bool, f: bytes, g: str) -> None:
    for value in (
        ev.Done(a, b, c, c, e, tuple(d), e),
        ev.Failed(a, b, 0, f),
        ev.WorkerLost(a, b, 0, g, e),
        ev.Tick(c, tuple(d)),
    ):
        assert decode(json.loads(json.dumps(encode(value)))) == value


@pytest.mark.parametrize("kind", [Kind.SLOTS, Kind.PARTS, Kind.WHOLE, Kind.STREAM])
def test_a_record_of_several_agents_is_read_and_replayed_one_by_one(tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / "run.jsonl"
    config, steps = record(Scenario(seed=1, kind=kind, workers=3, odd=0.1, fails=0.05))
    for _ in range(2):
        recorder = Recorder(str(path), config)
        for event, actions in steps:
            recorder.add(event, actions)
        recorder.close()
    assert list(read_record(path)) == [(config, steps)] * 2
    assert [replay(*run) for run in read_record(path)] == [None, None]


def test_a_replay_names_the_step_that_went_another_way() -> None:
    config, steps = record(Scenario(seed=1))
    step = next(at for at, (_, actions) in enumerate(steps) if actions)
    steps[step] = (steps[step][0], [])
    difference = replay(config, steps)
    assert difference is not None
    assert (difference.step, difference.recorded) == (step, [])


def test_without_a_file_nothing_is_recorded() -> None:
    recorder = Recorder("", record(Scenario(seed=1))[0])
    recorder.add(ev.Abort(), [])
    recorder.close()
