"""Seeds are the same everywhere, differ wherever anything differs, and look random."""

import os
import subprocess
import sys
from enum import Enum, IntEnum

import numpy as np
import pytest
import torch

from penstock.plan.seeds import (
    MASK64,
    Company,
    SeedStream,
    key_number,
    mix64,
    op_seed,
    order_key,
    sample_seed,
)


def batch_seed(seed: int, epoch: int, position: int) -> int:
    return SeedStream(seed, epoch).batch(position)


GOLDEN = {
    "sample": 6840664234526594118,
    "sample of a name": 18197544083696129447,
    "batch": 878378684148657645,
    "op": 3138115018455917874,
    "order": 2978580297324222798,
}


def flipped_share(before: list[int], after: list[int]) -> np.ndarray:
    """How often each of the 64 bits differs between two lists of seeds."""
    differ = np.array(before, dtype=np.uint64) ^ np.array(after, dtype=np.uint64)
    bits = (differ[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    return bits.mean(axis=0)


def test_the_step_is_the_one_of_splitmix64() -> None:
    golden = 0x9E37_79B9_7F4A_7C15
    state = 1234567
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [mix64((state + i * golden) & MASK64) for i in range(4)] == published


def test_seeds_of_a_release_do_not_change() -> None:
    assert sample_seed(0, 0, 0, 0) == GOLDEN["sample"]
    assert sample_seed(42, 3, 1_000_000, "n01440764/10026.JPEG") == GOLDEN["sample of a name"]
    assert batch_seed(42, 3, 256) == GOLDEN["batch"]
    assert op_seed(7, "RandomCrop", 2) == GOLDEN["op"]
    assert order_key(42, 3) == GOLDEN["order"]


def test_a_stream_gives_the_seeds_of_the_functions() -> None:
    stream = SeedStream(9, 4)
    assert stream.sample(17, "a") == sample_seed(9, 4, 17, "a")
    assert stream.batch(17) == batch_seed(9, 4, 17)


def test_seeds_have_64_bits_whatever_the_inputs() -> None:
    for big in (0, -1, 2**63, 2**64 - 1, -(2**63), 2**70):
        for value in (
            sample_seed(big, big, 5, big),
            batch_seed(big, big, 5),
            op_seed(big & MASK64, "op", 5),
            order_key(big, big),
        ):
            assert 0 <= value <= MASK64


def test_a_million_neighbouring_positions_and_keys_have_a_million_seeds() -> None:
    stream = SeedStream(0, 0)
    seeds = {stream.sample(position, key) for position in range(1000) for key in range(1000)}
    assert len(seeds) == 1_000_000


def test_sample_batch_order_and_op_seeds_do_not_meet() -> None:
    small = range(40)
    samples = {sample_seed(s, e, p, k) for s in small for e in range(5) for p in range(5) for k in range(5)}
    batches = {batch_seed(s, e, p) for s in small for e in small for p in small}
    orders = {order_key(s, e) for s in small for e in small}
    ops = {op_seed(s, op, call) for s in small for op in ("", "crop", "flip") for call in small}
    ops |= {op_seed(s, "crop", call) for s in list(samples)[:1000] for call in range(3)}
    assert len(samples | batches | orders | ops) == 40 * 125 + 40**3 + 40**2 + (40 * 3 * 40 + 3000)


@pytest.mark.parametrize("which", ["seed", "epoch", "position", "key"])
@pytest.mark.parametrize("bit", [0, 1, 7, 31, 62])
def test_one_flipped_bit_of_any_input_flips_each_bit_of_the_seed_half_the_time(which: str, bit: int) -> None:
    inputs = [{"seed": i, "epoch": i % 7, "position": 3 * i, "key": i * i} for i in range(4000)]
    before = [sample_seed(**values) for values in inputs]
    after = [sample_seed(**{**values, which: values[which] ^ (1 << bit)}) for values in inputs]
    assert np.abs(flipped_share(before, after) - 0.5).max() < 0.04  # five standard deviations


def test_each_call_of_an_op_and_each_op_has_its_own_seed() -> None:
    base = sample_seed(1, 2, 3, 4)
    assert len({op_seed(base, op, call) for op in ("crop", "flip", "jitter") for call in range(10)}) == 30
    calls = [op_seed(base, "crop", call) for call in range(4000)]
    assert np.abs(flipped_share(calls[:-1], calls[1:]) - 0.5).max() < 0.04


def test_integers_of_every_kind_are_one_key() -> None:
    class Level(IntEnum):
        LOW = 5

    alike = [5, np.int64(5), np.int32(5), np.uint8(5), torch.tensor(5), np.array(5), Level.LOW]
    assert {key_number(key) for key in alike} == {5}
    assert {sample_seed(0, 0, 1, key) for key in alike} == {sample_seed(0, 0, 1, 5)}
    assert key_number(True) == key_number(1)
    assert key_number((np.int64(3), np.float64(0.5), np.str_("a"))) == key_number((3, 0.5, "a"))


def test_positions_may_be_numpy_integers() -> None:
    stream = SeedStream(np.int64(1), np.int32(2))  # type: ignore[arg-type]
    assert stream.sample(np.int64(2**40), 7) == sample_seed(1, 2, 2**40, 7)  # type: ignore[arg-type]
    assert stream.batch(np.int64(3)) == batch_seed(1, 2, 3)  # type: ignore[arg-type]


def test_different_keys_have_different_numbers() -> None:
    class Colour(Enum):
        RED = 1
        BLUE = 2

    keys: list[object] = [0, 1, -1, 2**63, 2**64, -(2**63) - 1, 2**64 - 1, 1.5, "1", b"1", "a", b"a", None]
    keys += [(1,), (1, 2), (12,), ("1", 2), ((1,), 2), (1, (2,)), "", (), frozenset({1}), slice(1, 2)]
    keys += [Colour.RED, Colour.BLUE, ("a", "b"), ("a,b",), "('a','b')", {"x": 1}]
    assert len({key_number(key) for key in keys}) == len(keys)


def test_a_key_whose_repr_is_an_address_is_known_by_its_type() -> None:
    class Plain:
        pass

    assert key_number(Plain()) == key_number(Plain())
    assert key_number((1, Plain())) == key_number((1, Plain())) != key_number((2, Plain()))


def test_numbers_of_keys_do_not_depend_on_the_process() -> None:
    code = (
        "import sys; from penstock.plan.seeds import key_number\n"
        "class Plain: pass\n"
        "keys = ['a', b'a', ('a', 1, None), frozenset({'a', 'b', 'c', 'd'}), Plain(), 1.5, 7]\n"
        "print([key_number(key) for key in keys])"
    )
    path = os.pathsep.join(filter(None, sys.path))
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2", "3")
    }
    assert len(outputs) == 1


def test_a_seed_costs_a_few_calls() -> None:
    stream, calls = SeedStream(1, 2), []
    sys.setprofile(lambda frame, event, arg: calls.append(event))
    try:
        stream.sample(123_456, 789)
    finally:
        sys.setprofile(None)
    assert 0 < sum(event in ("call", "c_call") for event in calls) <= 8


# ---- what samples of a batch have in common


def test_a_batch_shares_one_seed_and_its_parts_one_each() -> None:
    batch = SeedStream(1, 2).batch(64)
    everyone = [Company(batch, ordinal) for ordinal in range(10)]
    assert len({sample.shared(None) for sample in everyone}) == 1
    parts = [sample.shared(4) for sample in everyone]
    assert parts[0] == parts[3] != parts[4] == parts[7] != parts[8] == parts[9]


def test_shared_seeds_differ_between_batches_epochs_and_purposes() -> None:
    found = {
        Company(SeedStream(0, epoch).batch(position), 0).within("MultiCrop", view).shared(None)
        for epoch in range(10)
        for position in range(0, 1000, 10)
        for view in range(3)
    }
    assert len(found) == 3000
    batch = batch_seed(0, 0, 0)
    assert Company(batch, 0).shared(None) not in (
        batch,
        op_seed(batch, "MixUp", 0),
        op_seed(batch, "CutMix", 0),
    )
