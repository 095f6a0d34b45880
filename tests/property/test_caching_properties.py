"""What caches keep and drop: never more than fits, never better than Belady or the bound, and ours as good as the bound."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.plan.next_use import FAR, NEVER, UseWindow
from penstock.policy.caching import POLICIES, NodeCache
from penstock.policy.holdings import SOURCE, Directory
from penstock.policy.homes import GroupMember, find_homes
from penstock.sim.cache_group import CacheScenario, simulate_cache

ANY = sorted(POLICIES)
TRACES = st.lists(st.integers(0, 9), min_size=1, max_size=40)
NODES, SAMPLES = 8, 4096
GROUP = CacheScenario(
    nodes=NODES,
    gpus=1,
    samples=SAMPLES,
    mean_bytes=100,
    memory_bytes=SAMPLES * 10,
    batch_size=64,
    epochs=4,
    ring_batches=0,
)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def uses_after(trace: list[int], at: int) -> int:
    return next((later for later in range(at + 1, len(trace)) if trace[later] == trace[at]), NEVER)


def misses(trace: list[int], policy: str, room: int) -> int:
    """Misses of one node that uses one sample a step, all of one byte."""
    rules = replace(POLICIES[policy], homes=False)
    cache = NodeCache(0, room_bytes=room, rules=rules, directory=Directory(10, 1))
    found = 0
    for step, sample in enumerate(trace):
        found += int(cache.ahead(ints(sample))[0] == SOURCE)
        cache.used(step, ints(sample), ints(1), ints(uses_after(trace, step)))
    return found


def fewest_misses(trace: list[int], room: int) -> int:
    """Belady's rule, written as its definition: drop, or refuse, what is used last."""
    held: dict[int, int] = {}
    found = 0
    for step, sample in enumerate(trace):
        found += sample not in held
        held[sample] = uses_after(trace, step)
        if len(held) > room:
            del held[max(held, key=lambda key: held[key])]
    return found


# ---- one node


@given(TRACES, st.integers(0, 10), st.sampled_from(ANY))
def test_no_policy_misses_less_than_beladys(trace: list[int], room: int, policy: str) -> None:
    fewest = fewest_misses(trace, room)
    assert misses(trace, "farthest", room) == fewest
    assert misses(trace, policy, room) >= fewest


@given(TRACES, st.integers(1, 10), st.integers(1, 60))
def test_a_window_is_worth_no_more_than_the_whole_future(trace: list[int], room: int, known: int) -> None:
    """A sampler of the user's: the next uses within some batches are known."""
    cache = NodeCache(0, room_bytes=room, rules=POLICIES["farthest"], directory=Directory(10, 1))
    window, found = UseWindow(), 0
    for step, sample in enumerate(trace[:known]):
        window.add(step, ints(sample))
    for step, sample in enumerate(trace):
        found += int(cache.ahead(ints(sample))[0] == SOURCE)
        cache.used(step, ints(sample), ints(1), window.next_use(ints(sample), step))
        if step + known < len(trace):
            window.add(step + known, ints(trace[step + known]))
    fewest = fewest_misses(trace, room)
    assert found >= fewest
    if known >= len(trace):
        assert found == fewest


def test_lru_finds_what_its_formula_says() -> None:
    for share in (0.25, 0.5):
        lru = replace(
            GROUP, nodes=1, memory_bytes=int(share * SAMPLES) * 100, policy="lru", batch_size=64, epochs=4
        )
        found = np.mean([epoch.shares[0] for epoch in simulate_cache(lru)[1:]])
        assert found == pytest.approx(share + (1 - share) * math.log(1 - share), abs=0.01)


# ---- a group


@st.composite
def groups(draw: st.DrawFn) -> CacheScenario:
    nodes = draw(st.integers(1, 4))
    samples = draw(st.integers(1, 40))
    return CacheScenario(
        nodes=nodes,
        gpus=draw(st.integers(1, 2)),
        samples=samples,
        mean_bytes=10,
        memory_bytes=draw(st.integers(0, 12 * samples)),
        batch_size=draw(st.integers(2, 8)),
        epochs=3,
        seed=draw(st.integers(0, 1000)),
        policy=draw(st.sampled_from(ANY)),
        ring_batches=0,
    )


@given(groups())
def test_the_source_serves_at_least_the_bound_in_every_epoch(scenario: CacheScenario) -> None:
    first, *rest = simulate_cache(scenario)
    assert first.shares[2] == 1.0
    whole_samples = scenario.nodes * (scenario.memory_bytes // 10) / scenario.samples
    for epoch in rest:
        assert epoch.shares[2] >= 1 - whole_samples - 1e-9


@given(
    st.sampled_from(ANY),
    st.integers(0, 300),
    st.lists(st.lists(st.integers(0, 29), min_size=1, max_size=6, unique=True), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
)
def test_changes_say_what_is_held_and_that_never_exceeds_the_room(
    policy: str, room: int, batches: list[list[int]], rng
) -> None:  # type: ignore[no-untyped-def]
    nodes = 3
    sizes = ints(*[rng.randint(1, 40) for _ in range(30)])
    members = [GroupMember(name=node, room_bytes=room) for node in range(nodes)]
    homes = find_homes(1, members, sizes) if POLICIES[policy].homes else None
    directory = Directory(30, nodes, homes)
    caches = [
        NodeCache(node, room_bytes=room, rules=POLICIES[policy], directory=directory) for node in range(nodes)
    ]
    held: list[set[int]] = [set() for _ in caches]
    group: set[int] = set()
    for step, batch in enumerate(batches):
        node = step % nodes
        samples = ints(*batch)
        next_use = ints(*[rng.choice([step + 1, step + 7, FAR, NEVER]) for _ in batch])
        change = caches[node].used(step, samples, sizes[samples], next_use)
        assert set(change.drops.tolist()) <= held[node]
        held[node] = (held[node] - set(change.drops.tolist())) | set(change.holds.tolist())
        assert [each for each in range(30) if directory.has(node, ints(each))[0]] == sorted(held[node])
        assert caches[node].held_bytes == sum(int(sizes[each]) for each in held[node]) <= room
        now = set().union(*held)
        if POLICIES[policy].guards_last or policy == "no-evict":
            assert group <= now
        group = now
        assert {each for each in range(30) if directory.copies[each]} == now


@pytest.mark.parametrize(("share", "spread"), [(0.05, 0.6), (0.1, 0.0), (0.1, 0.6), (0.25, 0.6)])
def test_ours_meets_the_bound(share: float, spread: float) -> None:
    ours = replace(
        GROUP, memory_bytes=int(share * SAMPLES * 100), spread=spread, batch_size=32, ring_batches=1
    )
    first, *rest = simulate_cache(ours)
    assert first.shares[2] == 1.0
    for epoch in rest:
        assert epoch.shares[2] <= 1.01 * ours.bound + 0.01


def test_the_papers_rules_drop_last_copies_unless_they_are_guarded_in_every_rule() -> None:
    def source(policy: str) -> float:
        return simulate_cache(replace(GROUP, policy=policy))[-1].shares[2]

    assert GROUP.bound == pytest.approx(0.2, abs=0.001)
    assert source("lobster") == pytest.approx(0.87, abs=0.02)
    assert source("lobster-guarded") == pytest.approx(0.2, abs=0.01)
    assert source("auto") == pytest.approx(0.2, abs=0.01)


def test_room_to_spare_holds_copies_by_next_use() -> None:
    spare = replace(GROUP, memory_bytes=SAMPLES * 25, epochs=6)
    local, _, source = simulate_cache(spare)[-1].shares
    assert source == 0.0
    assert local > 0.37  # kept samples alone would be 1/8
    assert simulate_cache(replace(spare, look_ahead=1))[-1].shares[0] < local


def test_dealing_to_owners_makes_nearly_all_reads_local() -> None:
    dealt = replace(GROUP, memory_bytes=SAMPLES * 25, deal="owner", epochs=2, gpus=2, batch_size=128)
    assert simulate_cache(dealt)[-1].shares[0] > 0.95


# ---- nodes come and go


@given(
    st.integers(0, 100),
    st.integers(50, 400),
    st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=6),
)
def test_after_any_change_of_membership_the_bound_is_met_again(
    seed: int, room: int, memberships: list[set[int]]
) -> None:
    """Every second epoch has other members; the nodes that are there use all samples once."""
    samples, sizes = np.arange(60), np.full(60, 10, np.int64)
    directory = Directory(60, 4)
    caches: dict[int, NodeCache] = {}
    rng = np.random.default_rng(seed)
    for epoch, members in enumerate(each for each in memberships for _ in range(2)):
        for gone in set(caches) - members:
            del caches[gone]
            directory.forget(gone)
        for node in members - set(caches):
            caches[node] = NodeCache(node, room_bytes=room, rules=POLICIES["auto"], directory=directory)
        rooms = [GroupMember(name=node, room_bytes=room * (node in members)) for node in range(4)]
        directory.homes = find_homes(seed, rooms, sizes)
        for cache in caches.values():
            cache.follow_homes(sizes)
        before, from_source = (directory.copies > 0).sum(), 0
        for step, batch in enumerate(rng.permutation(samples).reshape(10, 6)):
            cache = caches[sorted(members)[step % len(members)]]
            asks, unread = cache.ahead(batch), directory.copies[batch] == 0
            from_source += int(unread.sum())
            for node, key in zip(asks[~unread].tolist(), batch[~unread].tolist(), strict=True):
                assert directory.has(node, ints(key))[0]
            for other in caches.values():
                mine = batch[directory.homes[batch] == other.node]
                other.asked(mine, sizes[mine])
            cache.used(10 * epoch + step, batch, sizes[batch], np.full(6, FAR))
            assert max(each.held_bytes for each in caches.values()) <= room
        assert from_source >= 60 - before
        if epoch % 2:  # the second epoch with these members
            assert from_source == max(0, 60 - len(members) * (room // 10))
        for node, cache in caches.items():
            assert cache.held_bytes == 10 * directory.has(node, samples).sum()


# ---- single rules


def test_a_sample_never_used_again_goes_unless_it_is_the_last_copy() -> None:
    """The paper's reuse count, guarded even where its other rules are not."""
    directory = Directory(4, 2)
    one, other = (
        NodeCache(node, room_bytes=10, rules=POLICIES["lobster"], directory=directory) for node in range(2)
    )
    one.used(0, ints(1, 2), ints(1, 1), ints(5, 5))
    other.used(0, ints(2), ints(1), ints(6))
    assert one.used(5, ints(1, 2), ints(1, 1), ints(NEVER, NEVER)).drops.tolist() == [2]
    assert other.used(6, ints(2), ints(1), ints(FAR)).drops.tolist() == [2]


def test_a_guarded_cache_drops_a_copy_rather_than_refuse_a_sample_that_nobody_holds() -> None:
    directory = Directory(3, 2)
    one, other = (
        NodeCache(node, room_bytes=1, rules=POLICIES["lobster-guarded"], directory=directory)
        for node in range(2)
    )
    for cache in (one, other):
        cache.used(0, ints(1), ints(1), ints(5))
    assert [found.tolist() for found in one.used(1, ints(2), ints(1), ints(FAR))] == [[2], [1]]
    assert [found.tolist() for found in other.used(1, ints(0), ints(1), ints(2))] == [[], []]


def test_a_new_sample_is_held_only_if_it_is_needed_sooner_than_its_victim() -> None:
    cache = NodeCache(0, room_bytes=2, rules=POLICIES["farthest"], directory=Directory(5, 1))
    cache.used(0, ints(1, 2), ints(1, 1), ints(10, 20))
    assert [found.tolist() for found in cache.used(1, ints(3), ints(1), ints(30))] == [[], []]
    assert [found.tolist() for found in cache.used(2, ints(4), ints(1), ints(15))] == [[4], [2]]


def test_a_home_is_asked_and_keeps_what_it_reads() -> None:
    directory = Directory(2, 2, np.array([1, 1], np.int16))
    user, home = (
        NodeCache(node, room_bytes=1, rules=POLICIES["auto"], directory=directory) for node in range(2)
    )
    assert user.ahead(ints(0, 1)).tolist() == [1, 1]
    assert home.ahead(ints(0)).tolist() == [SOURCE]
    assert home.asked(ints(0), ints(1)).holds.tolist() == [0]
    assert home.asked(ints(1), ints(1)).holds.tolist() == []  # sizes were not as was thought: it does not fit
    assert home.ahead(ints(0)).tolist() == [1]


def test_copies_make_room_for_kept_samples() -> None:
    directory = Directory(3, 2, np.array([1, 0, 0], np.int16))
    cache = NodeCache(0, room_bytes=2, rules=POLICIES["auto"], directory=directory)
    assert cache.used(0, ints(0, 1), ints(1, 1), ints(3, 4)).holds.tolist() == [1, 0]
    assert [found.tolist() for found in cache.asked(ints(2), ints(1))] == [[2], [0]]


def test_a_bad_scenario_is_refused() -> None:
    for bad in ({"nodes": 0}, {"policy": "mru"}, {"order": "odd"}, {"policy": "lru", "deal": "owner"}):
        with pytest.raises(ConfigError):
            replace(GROUP, **bad)
    with pytest.raises(ConfigError):
        NodeCache(0, room_bytes=-1, rules=POLICIES["lru"], directory=Directory(1, 1))
