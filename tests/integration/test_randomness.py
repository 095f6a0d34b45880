"""Every draw depends on the sample it is drawn for: not on who prepares it, how the work is cut, or how far ahead."""

from __future__ import annotations

import functools
import hashlib
import platform
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import RandomSampler

from penstock import DataLoader
from penstock.dataset.seeding import call_seed, seed_all
from tests.integration.noisy import (
    SIZE,
    Batched,
    Captioned,
    Noisy,
    Ragged,
    Stream,
    draws,
    epoch,
    frozen,
    order_of,
    shaking,
)

Settings = dict[str, Any]
DATASETS: dict[str, Settings] = {
    "tensors": {"dataset": Noisy(), "batch_size": 5},
    "texts that outgrow their room": {"dataset": Captioned(), "batch_size": 4},
    "a collate that draws": {"dataset": Ragged(), "batch_size": 5, "collate_fn": shaking},
    "getitems that draws": {"dataset": Batched(), "batch_size": 4},
    "getitems and a collate that draw": {"dataset": Batched(), "batch_size": 4, "collate_fn": shaking},
    "no batches": {"dataset": Captioned(9), "batch_size": None},
}
ENGINES: dict[str, Settings] = {
    "1 worker": {"num_workers": 1},
    "2 workers, tasks of 1": {"num_workers": 2, "task_size": 1},
    "2 workers, tasks of 3, one ahead": {"num_workers": 2, "task_size": 3, "prefetch_batches": 1},
    "2 persistent workers": {"num_workers": 2, "persistent_workers": True},
    "2 persistent workers, far ahead": {"num_workers": 2, "persistent_workers": True, "prefetch_batches": 12},
    "7 workers": {"num_workers": 7},
    "7 workers, large tasks": {"num_workers": 7, "task_size": 100, "prefetch_factor": 1},
}


def two_epochs(what: str, how: Settings) -> list[Any]:
    loader: DataLoader[Any] = DataLoader(**DATASETS[what], **how, shuffle=True, seed=11)
    return [epoch(loader) for _ in range(2)]


@functools.cache
def without_workers(what: str) -> list[Any]:
    return two_epochs(what, {"num_workers": 0})


@pytest.mark.parametrize("what", DATASETS)
@pytest.mark.parametrize("how", ENGINES)
def test_batches_are_the_same_bit_for_bit_whoever_prepares_them(what: str, how: str) -> None:
    assert two_epochs(what, ENGINES[how]) == without_workers(what)


def test_batches_are_the_same_in_spawned_workers() -> None:
    how = {"num_workers": 2, "multiprocessing_context": "spawn"}
    what = "texts that outgrow their room"
    loader: DataLoader[Any] = DataLoader(**DATASETS[what], **how, shuffle=True, seed=11)
    assert epoch(loader) == without_workers(what)[0]


@pytest.mark.parametrize("workers", [0, 3])
def test_what_a_worker_drew_before_does_not_matter(workers: int) -> None:
    loader: DataLoader[Any] = DataLoader(Noisy(), 5, num_workers=workers, seed=11)
    undisturbed: DataLoader[Any] = DataLoader(
        Noisy(), 5, num_workers=workers, seed=11, worker_init_fn=lambda _: draws()
    )
    draws()
    assert epoch(loader) == epoch(undisturbed)


# ---- the same index twice


SAMPLERS: dict[str, Any] = {
    "repeated augmentation": lambda: [key for key in range(6) for _ in range(3)],
    "replacement": lambda: RandomSampler(
        range(4), replacement=True, num_samples=18, generator=torch.Generator().manual_seed(1)
    ),
}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("workers", [0, 2])
def test_an_index_drawn_twice_is_augmented_in_different_ways(sampler: str, workers: int) -> None:
    loader: DataLoader[Any] = DataLoader(Noisy(), 4, sampler=SAMPLERS[sampler](), num_workers=workers, seed=5)
    samples = torch.cat(list(loader))
    assert len(set(samples[:, 0].tolist())) < len(samples) == 18
    for generator in (1, 2, 3):
        assert len(set(samples[:, generator].tolist())) == 18


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_repeated_indices_are_augmented_alike_for_any_worker_count(sampler: str) -> None:
    runs = [
        epoch(DataLoader(Noisy(), 4, sampler=SAMPLERS[sampler](), num_workers=workers, seed=5))
        for workers in (0, 2)
    ]
    assert runs[0] == runs[1]


# ---- ops of ours


def ten_calls() -> list[float]:
    return [float(np.random.default_rng(call_seed("crop")).random()) for _ in range(10)]


def test_ten_calls_of_an_op_on_one_sample_draw_from_ten_streams() -> None:
    seed_all(7)
    first = ten_calls()
    assert len(set(first)) == 10


def test_an_op_draws_the_same_again_for_the_same_sample() -> None:
    seed_all(7)
    first = ten_calls()
    seed_all(8)
    other = ten_calls()
    seed_all(7)
    assert ten_calls() == first != other


def test_ops_do_not_share_streams_and_do_not_disturb_each_other() -> None:
    seed_all(7)
    alone = ten_calls()
    seed_all(7)
    flips, crops = [], []
    for _ in range(10):
        flips.append(float(np.random.default_rng(call_seed("flip")).random()))
        crops.append(float(np.random.default_rng(call_seed("crop")).random()))
    assert crops == alone
    assert not set(flips) & set(crops)


def test_an_op_leaves_the_global_generators_alone() -> None:
    seed_all(7)
    expected = draws()
    seed_all(7)
    ten_calls()
    assert draws() == expected


# ---- the process's own generators


def global_states() -> Any:
    name, words, *rest = np.random.get_state()  # type: ignore[misc]
    return random.getstate(), (name, words.tobytes(), *rest), frozen(torch.default_generator.get_state())


@pytest.mark.parametrize("what", DATASETS)
def test_without_workers_the_processs_own_generators_are_put_back_after_each_batch(what: str) -> None:
    loader: DataLoader[Any] = DataLoader(**DATASETS[what], seed=3)
    batches = iter(loader)
    before = global_states()
    for _ in range(3):
        next(batches)
        assert global_states() == before


def test_they_are_put_back_after_a_sample_that_fails_too() -> None:
    class Fails(Noisy):
        def __getitem__(self, key: int) -> Any:
            raise LookupError(draws())

    batches = iter(DataLoader(Fails(), 2, seed=3))
    before = global_states()
    with pytest.raises(LookupError):
        next(batches)
    assert global_states() == before


# ---- iterable datasets


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_iterable_datasets_keep_torchs_worker_seeds_and_draws(workers: int) -> None:
    def run(loader_class: Any) -> Any:
        torch.manual_seed(99)
        random.seed(99)
        np.random.seed(99)
        return epoch(loader_class(Stream(), 4, num_workers=workers))

    assert run(DataLoader) == run(TorchDataLoader)


# ---- seeds and epochs


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_epochs_differ_in_order_and_in_noise_and_repeat_under_the_same_seed(
    workers: int, persistent: bool
) -> None:
    def make(seed: int) -> DataLoader[Any]:
        return DataLoader(
            Noisy(), 5, shuffle=True, num_workers=workers, seed=seed, persistent_workers=persistent
        )

    loader = make(1)
    epochs = [list(loader) for _ in range(3)]
    orders = [order_of(batches) for batches in epochs]
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == list(range(SIZE)) for order in orders)
    noise = {value for batches in epochs for value in torch.cat(batches)[:, 1:].flatten().tolist()}
    assert len(noise) == 3 * SIZE * 3
    again = make(1)
    assert [epoch(again) for _ in range(3)] == [epoch(batches) for batches in epochs]
    assert epoch(make(2)) != epoch(epochs[0])


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_default_seed_follows_torchs(shuffle: bool) -> None:
    def run(workers: int, seed: int) -> Any:
        torch.manual_seed(seed)
        loader: DataLoader[Any] = DataLoader(Noisy(), 5, shuffle=shuffle, num_workers=workers)
        return [epoch(loader) for _ in range(2)]

    assert run(0, 4) == run(0, 4) == run(2, 4)
    assert run(0, 4) != run(0, 5)


def test_without_shuffle_the_order_is_the_datasets_in_every_epoch() -> None:
    loader: DataLoader[Any] = DataLoader(Noisy(), 5, seed=1)
    for _ in range(2):
        assert order_of(loader) == list(range(SIZE))


# ---- torch's own view of a seed


class Seeds(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, key: int) -> torch.Tensor:
        return torch.tensor([torch.initial_seed(), torch.randint(2**62, ())])


@pytest.mark.parametrize("workers", [0, 2])
def test_the_seed_that_torch_says_a_sample_has_fits_a_tensor(workers: int) -> None:
    for batch in DataLoader(Seeds(), 1, seed=3, num_workers=workers):
        seed, drawn = batch[0].tolist()
        assert seed >= 0
        again = torch.Generator().manual_seed(seed)
        assert drawn == int(torch.randint(2**62, (), generator=again)), "it is the seed of these draws"


COMPUTED = {"aarch64 DEFAULT": "39678c7bd7c6f8dc", "x86_64 AVX512": "b6002cef5023420d"}
"""By processor: torch computes normal and exponential draws with the vectors that there are, and rounds accordingly."""


def test_draws_of_a_release_do_not_change() -> None:
    exact, computed = hashlib.blake2b(digest_size=8), hashlib.blake2b(digest_size=8)
    for seed in (0, 5, 2**63 - 1, 2**63, 2**63 + 5, 2**64 - 1, 18197544083696129447):
        seed_all(seed)
        for part in (torch.rand(50), torch.randint(2**60, (9,)), torch.randperm(40)):
            exact.update(part.numpy().tobytes())
        exact.update(np.random.rand(5).tobytes())
        exact.update(str(random.random()).encode())
        seed_all(seed)
        drawn = [torch.rand(50), torch.randn(70), torch.randint(2**60, (9,)), torch.randperm(40)]
        drawn += [torch.empty(8).exponential_(), torch.bernoulli(torch.full((30,), 0.4))]
        drawn += [torch.multinomial(torch.ones(20), 5)]
        for array in (*(tensor.numpy() for tensor in drawn), np.random.rand(5)):
            computed.update(array.tobytes())
        computed.update(str(random.random()).encode())
    assert exact.hexdigest() == "5752cebe772b4de9"
    processor = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    assert computed.hexdigest() == COMPUTED.get(processor, computed.hexdigest()), processor


def seeded_by_itself(worker: int) -> None:
    torch.manual_seed(worker)
    np.random.seed(worker)
    random.seed(worker)


def test_seeding_in_worker_init_fn_changes_no_sample() -> None:
    plain = DataLoader(Noisy(), 5, seed=3, num_workers=2)
    assert epoch(DataLoader(Noisy(), 5, seed=3, num_workers=2, worker_init_fn=seeded_by_itself)) == epoch(
        plain
    )
