"""Arguments that cannot work are refused by the constructor, which says what to do; and a loader says what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, SequentialSampler

from penstock import AudioFolder, ConfigError, DataLoader, GpuPrep, ImageFolder, StagedDataset

NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")


@pytest.mark.parametrize("transform", ["resize", b"resize", ["resize"]])
def test_a_text_is_no_transform(transform: Any, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"got the text b?'resize': give the op itself"):
        ImageFolder(tmp_path, transform)
    with pytest.raises(ConfigError, match="got the text"):
        StagedDataset(lambda _: (b"", 0), transform, 3)


def test_nor_is_it_one_of_sounds(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.wav").write_bytes(b"")
    with pytest.raises(ConfigError, match="got the text 'mel'"):
        AudioFolder(tmp_path, "mel", sample_rate=16_000)


@pytest.mark.parametrize("workers", [2.0, 0.0, torch.tensor(2.0)])
def test_workers_are_counted_in_whole_numbers(workers: Any) -> None:
    with pytest.raises(ConfigError, match=r"num_workers must be a whole number or 'auto', got "):
        DataLoader(range(3), num_workers=workers)


@NO_CUDA
@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda")])
def test_a_device_that_is_not_here_is_refused_at_once(device: Any) -> None:
    with pytest.raises(ConfigError, match=r"torch finds no cuda device here .*give another, 'cpu'"):
        DataLoader(range(3), device=device)


@pytest.mark.gpu
def test_so_is_one_more_than_there_are() -> None:
    with pytest.raises(ConfigError, match="torch finds only"):
        DataLoader(range(3), device=f"cuda:{torch.cuda.device_count()}")


@pytest.mark.parametrize("device", ["cpu", "meta", torch.device("cpu")])
def test_devices_that_are_everywhere_are_not(device: Any) -> None:
    DataLoader(range(3), device=device)


@pytest.mark.parametrize("wanted", ["concurrent", "idle", GpuPrep(mode="idle")])
@pytest.mark.parametrize("given", [{}, {"device": "cpu"}, {"num_workers": 2}])
def test_a_gpu_that_is_to_help_must_be_the_device(wanted: Any, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"gpu_prep='\w+' needs device='cuda'.*or leave gpu_prep out"):
        DataLoader(range(3), gpu_prep=wanted, **given)


@pytest.mark.parametrize("wanted", ["auto", "off"])
def test_help_that_was_not_asked_for_by_name_may_be_missing(wanted: str) -> None:
    DataLoader(range(3), gpu_prep=wanted)


# ---- repr


class Odd(Dataset[int]):
    """Cannot even be shown."""

    def __len__(self) -> int:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __getitem__(self, key: int) -> int:
        return key


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


@pytest.mark.parametrize(
    ("dataset", "given", "said"),
    [
        (range(12345), {}, "DataLoader(range of 12,345 samples; batches of 1, in order; no workers)"),
        (
            range(9),
            {
                "batch_size": 4,
                "shuffle": True,
                "seed": 3,
                "num_workers": 2,
                "device": "cpu",
                "on_error": "skip",
            },
            "DataLoader(range of 9 samples; batches of 4, shuffled (seed 3); 2 workers; device='cpu', on_error='skip')",
        ),
        (
            range(9),
            {
                "batch_size": 4,
                "shuffle": True,
                "seed": 3,
                "shard": (1, 2),
                "drop_last": True,
                "num_workers": 1,
            },
            "DataLoader(range of 9 samples; batches of 4, the last dropped if incomplete, shuffled (seed 3), rank 1 of 2; 1 worker)",
        ),
        (
            range(9),
            {"sampler": SequentialSampler(range(3))},
            "DataLoader(range of 9 samples; batches of 1, in the order of SequentialSampler; no workers)",
        ),
        (
            range(9),
            {"batch_sampler": [[1], [2]]},
            "DataLoader(range of 9 samples; batches of list, in the order of list; no workers)",
        ),
        (
            range(9),
            {"batch_size": None},
            "DataLoader(range of 9 samples; single samples, in order; no workers)",
        ),
        (Numbers(), {}, "DataLoader(Numbers; batches of 1, in the dataset's own order; no workers)"),
    ],
)
def test_a_loader_says_what_it_is(dataset: Any, given: dict[str, Any], said: str) -> None:
    assert repr(DataLoader(dataset, **given)) == said


def test_workers_that_follow_the_cores_are_said_to() -> None:
    loader: DataLoader[int] = DataLoader(range(3), num_workers="auto")
    assert f"{loader.num_workers} worker" in repr(loader)
    assert "(auto)" in repr(loader)


def test_a_subclass_with_other_parameters_says_its_own_name() -> None:
    class Mine(DataLoader[int]):
        def __init__(self, numbers: int) -> None:
            super().__init__(range(numbers), task_size=2)

    assert repr(Mine(3)) == "Mine(range of 3 samples; batches of 1, in order; no workers; task_size=2)"


def test_asking_a_loader_what_it_is_never_raises() -> None:
    loader: DataLoader[int] = DataLoader.__new__(DataLoader)
    assert "DataLoader object at" in repr(loader)
    assert repr(DataLoader(Odd())) == "DataLoader(Odd; batches of 1, in order; no workers)"
    fitted: Any = DataLoader(range(3))
    fitted.trace = Odd()
    assert "DataLoader object at" in repr(fitted)
    del fitted.trace
    assert repr(fitted)


def test_every_keyword_of_ours_is_said_where_it_is_not_at_its_default() -> None:
    given = {"task_size": 3, "prefetch_batches": 4, "hang_timeout": 2.5, "adopt": False, "max_skipped": 7}
    text = repr(DataLoader(range(3), **given))  # type: ignore[arg-type]
    assert all(f"{name}={value}" in text for name, value in given.items())
