"""Idle time of a device between two events, with a device that the test makes up."""

from __future__ import annotations

import pytest

from penstock.client.idle_time import MOST, IdleTime


class Device:
    """A stream that is over with what it was given at certain times, in milliseconds."""

    def __init__(self) -> None:
        self.now_ms = 0.0


class Event:
    def __init__(self, device: Device, at_ms: float) -> None:
        self.device, self.at_ms = device, at_ms

    def query(self) -> bool:
        return self.device.now_ms >= self.at_ms

    def elapsed_time(self, other: Event) -> float:
        assert self.query()
        assert other.query(), "asked of an event that is not over"
        return other.at_ms - self.at_ms


def test_the_device_is_idle_from_the_end_of_its_work_until_the_batch_is_there() -> None:
    """The loop asks at once, at 0; the device is busy until 100; the batch is there at 105."""
    device, idle = Device(), IdleTime()
    idle.asked(Event(device, 100.0))
    idle.there(Event(device, 105.0), ready=2)
    device.now_ms = 104.0
    assert list(idle.read()) == [], "it is not over"
    device.now_ms = 106.0
    assert list(idle.read()) == [(pytest.approx(0.005), 2)]
    assert list(idle.read()) == []


def test_a_batch_that_is_there_before_the_device_needs_it_leaves_it_no_time() -> None:
    device, idle = Device(), IdleTime()
    device.now_ms = 200.0
    idle.asked(Event(device, 100.0))
    idle.there(Event(device, 100.0), ready=1)
    assert list(idle.read()) == [(0.0, 1)]


def test_a_batch_that_was_not_asked_for_is_not_timed() -> None:
    device, idle = Device(), IdleTime()
    idle.there(Event(device, 0.0), ready=0)
    assert list(idle.read()) == []


def test_events_that_never_end_do_not_pile_up() -> None:
    device, idle = Device(), IdleTime()
    for at in range(3 * MOST):
        idle.asked(Event(device, 1000.0 + at))
        idle.there(Event(device, 1000.0 + at), ready=0)
    device.now_ms = 1e6
    assert len(list(idle.read())) == MOST
