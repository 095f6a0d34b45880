"""Bytes between two machines that change on their way: 1,000 times here, 10,000 times with `PENSTOCK_FULL=1`. No damaged sample is ever taken for a good one."""

from __future__ import annotations

import os
import random

import pytest

from penstock.cache.keys import sample_key
from penstock.cache.peer_events import PeerLimits
from penstock.cache.peer_frames import ANSWER_BYTES
from tests.fault.programs import until
from tests.peers_here import SCOPE, SOON_S, Between, Machine

FULL = os.environ.get("PENSTOCK_FULL") == "1"
TIMES = 10_000 if FULL else 1_000
SAMPLES = 4
LIMITS = PeerLimits(silent_s=0.2, alive_s=0.1, retry_s=(0.001, 0.001), mismatches=1 << 30)


def damage(rng: random.Random, data: bytes) -> bytes:
    """Other bytes: some flipped, overwritten, left out or there twice."""
    at = rng.randrange(len(data))
    if rng.random() < 0.5:  # heads are few beside bytes
        at = min(at, rng.randrange(2 * ANSWER_BYTES))
    more = rng.randrange(1, 9)
    match rng.randrange(4):
        case 0:
            return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        case 1:
            other = rng.randbytes(len(data[at : at + more]))
            return data[:at] + other + data[at + more :]
        case 2:
            return data[:at] + data[at + more :]
        case _:
            return data[: at + more] + data[at:]


@pytest.mark.parametrize("to_asker", [True, False], ids=["answers", "requests"])
def test_damaged_bytes_are_never_taken_for_good_ones(to_asker: bool) -> None:
    rng = random.Random(int(to_asker))
    home, asker = Machine(1, limits=LIMITS), Machine(0, limits=LIMITS)
    between = Between(home.port)
    left, damaged, noticed = 0, 0, 0

    def change(passes_to_asker: bool, data: bytes) -> bytes:
        nonlocal left, damaged
        if passes_to_asker is not to_asker or not left:
            return data
        left -= 1
        changed = damage(rng, data)
        damaged += changed != data
        return changed

    between.change = change
    times = TIMES if to_asker else TIMES // 10
    try:
        home.bring(*range(SAMPLES))
        asker.port.join(1, home.port.address)
        while damaged < times:
            until(lambda: asker.port._homes[1]._sock is not None, within_s=SOON_S, why="it is not back")
            asker.forget()
            home.forget()
            left = 1
            asker.ask(1, *range(SAMPLES))
            fates = asker.fates(range(SAMPLES))
            left = 0
            for sample, why in fates.items():
                assert asker.has(sample) == (not why), "it was said to be here"
                asker.tier.evict(b"" if why else sample_key(SCOPE, sample))
            noticed += any(fates.values())
        assert not asker.tier.stats()["entries"]
        assert noticed > times // 2
        assert asker.tier.stats()["reserved"] == 0
    finally:
        asker.close()
        between.close()
        home.close()
