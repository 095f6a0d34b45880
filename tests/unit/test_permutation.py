"""The shuffle is a bijection, looks uniform at every size, and is cheap to seek.

The statistics are z values, about normal if orders are uniform. Keys are fixed, so that nothing flakes. Each
statistic is also shown affine permutations, and some a network of too few rounds, which they must refuse.
"""

import contextlib
import json
import math
import os
import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations

import numpy as np
import pytest

from penstock.plan.permutation import ROUNDS, SORTED_MAX, TABULATED_MAX, Grid, Permutation, permutation
from penstock.plan.seeds import order_key

Ints = np.ndarray
Make = Callable[[int, int], Ints]
Statistic = Callable[[Make, int, int, int], float]
GOLDEN = {
    10: [8, 6, 9, 0, 7, 3, 5, 2, 4, 1],
    10**8: [60647894, 27794408, 34806881, 3069444, 69799200],
    10**12: [283721278774, 182656704781, 979310150134, 246508294963, 299276339882],
}
UNREMARKABLE = 4.5
"""Bound of |z| for a fair shuffle: one in 10**5 by chance, and the seeds are fixed."""
ABSURD = 10.0
"""Bound of |z| that an unfair one has to pass: one in 10**23 by chance."""


def ours(key: int, n: int) -> Ints:
    return Permutation(key, n)(np.arange(n))


def network(key: int, n: int, *, rounds: int = ROUNDS, tabulated: bool = True) -> Ints:
    grid = Grid(key, n, rounds=rounds, tabulated=tabulated)
    return grid.walk(grid.forth, np.arange(n))


def affine(key: int, n: int) -> Ints:
    """x -> a x + c modulo n: random access, a bijection, and no shuffle."""
    rng = np.random.default_rng(key)
    factors = (a for a in iter(lambda: int(rng.integers(1, n)), 0) if math.gcd(a, n) == 1)
    return (np.arange(n) * next(factors) + rng.integers(n)) % n


def chi_squared_z(counts: Ints, expected: Ints | float) -> float:
    """Chi squared of counts, as a normal deviate (Wilson and Hilferty)."""
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom = counts.size - 1
    spread = 2 / (9 * freedom)
    return ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


def orders_of_five_z(make: Make, keys: int) -> float:
    """Are all 120 orders of five equally likely?"""
    number_of = {order: number for number, order in enumerate(permutations(range(5)))}
    numbers = [number_of[tuple(make(key, 5).tolist())] for key in range(keys)]
    return chi_squared_z(np.bincount(numbers, minlength=120), keys / 120)


def pair_z(make: Make, n: int, keys: int, lag: int) -> float:
    """Do the numbers `lag` places apart fall independently into the 20 x 20 fields of a square?"""
    fields = np.zeros((20, 20))
    for key in range(keys):
        cells = make(key, n) * 20 // n
        np.add.at(fields, (cells[:-lag], cells[lag:]), 1)
    return chi_squared_z(fields, fields.sum() / 400)


def difference_z(make: Make, n: int, keys: int, lag: int) -> float:
    """Are the differences of numbers `lag` places apart uniform modulo n?"""
    bins = 99
    counts = np.zeros(bins)
    for key in range(keys):
        order = make(key, n)
        differences = (order[lag:] - order[:-lag]) % n - 1
        counts += np.bincount(differences * bins // (n - 1), minlength=bins)
    shares = np.bincount(np.arange(n - 1) * bins // (n - 1), minlength=bins) / (n - 1)
    return chi_squared_z(counts, shares * counts.sum())


def serial_z(make: Make, n: int, keys: int, lag: int) -> float:
    """Is the serial correlation at `lag`, squared and summed over orders, what chance gives?"""
    total = 0.0
    for key in range(keys):
        order = make(key, n) - (n - 1) / 2
        total += float(np.dot(order, np.roll(order, lag)) / np.dot(order, order)) ** 2 * n
    return (total - keys) / math.sqrt(2 * keys)


def runs_z(make: Make, n: int, keys: int, lag: int) -> float:
    """Are there as many ascending and descending runs, at stride `lag`, as by chance?"""
    total, expected, variance = 0.0, 0.0, 0.0
    for key in range(keys):
        rising = np.diff(make(key, n)[::lag]) > 0
        m = rising.size + 1
        total += 1 + np.count_nonzero(rising[1:] != rising[:-1])
        expected += (2 * m - 1) / 3
        variance += (16 * m - 29) / 90
    return (total - expected) / math.sqrt(variance)


def is_odd(order: Ints) -> bool:
    """The parity of a permutation: its length less the number of its cycles."""
    following, seen, cycles = order.tolist(), bytearray(order.size), 0
    for start in range(order.size):
        number, cycles = start, cycles + (not seen[start])
        while not seen[number]:
            seen[number] = 1
            number = following[number]
    return bool((order.size - cycles) % 2)


ORDER_TESTS = [
    pytest.param(statistic, lag, id=f"{statistic.__name__[:-2]}-{lag}")
    for statistic in (pair_z, difference_z, serial_z, runs_z)
    for lag in (1, 2, 3, 128)  # 128 places on lies the next number of the same column
]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 100, SORTED_MAX, SORTED_MAX + 1, SORTED_MAX + 2, 10_007, 65_536])
def test_every_number_appears_once(n: int) -> None:
    for key in (0, 1, 2**64 - 1):
        assert np.array_equal(np.sort(ours(key, n)), np.arange(n))


@pytest.mark.parametrize("n", [1, 3, 5000, 2**31 + 7, TABULATED_MAX, TABULATED_MAX + 1, 2**62 - 3, 2**62])
def test_any_place_can_be_read_and_found_again(n: int) -> None:
    order = Permutation(5, n)
    ends = np.unique(np.clip([0, 1, n // 2, n - 2, n - 1], 0, n - 1))
    places = np.concatenate([ends, np.random.default_rng(0).integers(0, n, 50_000)])
    numbers = order(places)
    assert numbers.min() >= 0
    assert numbers.max() < n
    assert np.array_equal(order.inverse(numbers), places)
    assert [order.place(number) for number in numbers[:200].tolist()] == places[:200].tolist()


def test_reading_in_pieces_is_reading_at_once() -> None:
    order = Permutation(3, 100_003)
    whole = order(np.arange(100_003))
    assert np.array_equal(order(np.arange(70_001, 70_017)), whole[70_001:70_017])
    assert np.array_equal(order(np.array([99_999, 5, 5])), whole[[99_999, 5, 5]])
    assert np.array_equal(order(np.arange(100_003)[::-7]), whole[::-7])
    assert order(np.arange(0)).shape == (0,)


def test_tables_change_the_cost_and_not_the_order() -> None:
    assert np.array_equal(network(11, 50_000, tabulated=False), network(11, 50_000, tabulated=True))
    assert np.array_equal(network(11, 50_000), ours(11, 50_000))


def test_orders_of_a_release_do_not_change() -> None:
    assert permutation(1, 10)(np.arange(10)).tolist() == GOLDEN[10]
    assert permutation(1, 10**8)(np.arange(5)).tolist() == GOLDEN[10**8]
    assert permutation(1, 10**12)(np.arange(5)).tolist() == GOLDEN[10**12]


def test_a_permutation_pickles_as_its_two_numbers() -> None:
    order = Permutation(7, 10**8)
    data = pickle.dumps(order)
    assert len(data) < 150
    assert np.array_equal(pickle.loads(data)(np.arange(9)), order(np.arange(9)))


def test_a_place_outside_of_the_order_is_refused() -> None:
    for n in (0, 10, 10**6):
        for place in (-1, n):
            with pytest.raises(IndexError, match="outside of range"):
                Permutation(0, n)(np.array([place]))
            with pytest.raises(IndexError, match="outside of range"):
                Permutation(0, n).place(place)
    with pytest.raises(ValueError, match=r"between 0 and 2\*\*62"):
        Permutation(0, 2**62 + 1)
    assert Permutation(0, 0)(np.arange(0)).size == 0


@pytest.mark.parametrize(
    "key_of",
    [
        pytest.param(lambda number: number, id="keys 0, 1, 2, ..."),
        pytest.param(lambda number: order_key(number, 0), id="seeds 0, 1, 2, ..."),
        pytest.param(lambda number: order_key(0, number), id="epochs 0, 1, 2, ..."),
    ],
)
def test_all_120_orders_of_five_are_equally_likely(key_of: Callable[[int], int]) -> None:
    assert abs(orders_of_five_z(lambda number, n: ours(key_of(number), n), 24_000)) < UNREMARKABLE


def test_affine_permutations_of_five_are_found_out() -> None:
    assert abs(orders_of_five_z(affine, 2400)) > ABSURD


@pytest.mark.parametrize(("statistic", "lag"), ORDER_TESTS)
def test_orders_of_ten_thousand_look_uniform(statistic: Statistic, lag: int) -> None:
    assert abs(statistic(ours, 10_000, 40, lag)) < UNREMARKABLE


@pytest.mark.parametrize(("statistic", "lag"), ORDER_TESTS)
def test_affine_permutations_of_ten_thousand_are_found_out(statistic: Statistic, lag: int) -> None:
    assert abs(statistic(affine, 10_000, 40, lag)) > ABSURD


@pytest.mark.parametrize("statistic", [pair_z, difference_z])
def test_a_network_of_too_few_rounds_is_found_out(statistic: Statistic) -> None:
    assert abs(statistic(partial(network, rounds=2), 10_000, 200, 128)) > ABSURD


@pytest.mark.parametrize("lag", [64, 512])
def test_the_smallest_network_looks_uniform_to_its_hardest_test(lag: int) -> None:
    n = SORTED_MAX + 1
    assert abs(difference_z(ours, n, 1000, lag)) < UNREMARKABLE


@pytest.mark.parametrize("keys_apart", [1, 2, 16])
def test_orders_of_neighbouring_keys_are_independent(keys_apart: int) -> None:
    fields = np.zeros((20, 20))
    orders = [ours(key, 10_000) // 500 for key in range(60)]
    for one, other in zip(orders, orders[keys_apart:], strict=False):
        np.add.at(fields, (one, other), 1)
    assert abs(chi_squared_z(fields, fields.sum() / 400)) < UNREMARKABLE


def test_even_and_odd_permutations_are_equally_likely() -> None:
    n = 81 * 64  # as 81 rows of 64, only even ones would come
    odd = sum(is_odd(ours(key, n)) for key in range(100))
    assert 30 <= odd <= 70


def test_a_seek_into_100_million_makes_tables_of_their_root_alone() -> None:
    with traced() as peak:
        Permutation(9, 10**8)(np.arange(50_000_000, 50_000_256))
    assert peak() < 2 << 20


def test_a_small_read_makes_little() -> None:
    order, places = Permutation(9, 10**8), np.arange(50_000_000, 50_000_016)
    order(places)
    with traced() as peak:
        order(places)
    assert peak() < 32 * places.nbytes


@contextlib.contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """How many bytes were made at most: a measure of work that does not depend on the machine."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_reading_100_million_costs_as_a_shuffle_in_memory_and_takes_megabytes() -> None:
    code = """
import json, resource, time
import numpy as np
from penstock.plan.permutation import Permutation
started, total = time.process_time(), 0
order = Permutation(9, 10**8)
for first in range(0, 10**8, 10**6):
    total += int(order(np.arange(first, first + 10**6)).sum())
took_s = time.process_time() - started
started = time.process_time()
np.random.default_rng(1).permutation(10**7)
numpy_s = 10 * (time.process_time() - started)
print(json.dumps([took_s / numpy_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, total]))
"""
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    by_numpy, peak_kib, total = json.loads(done.stdout)
    assert total == 10**8 * (10**8 - 1) // 2
    assert by_numpy < 4  # about 1
    assert peak_kib <= 1 << 20
