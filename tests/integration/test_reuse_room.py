"""How many samples `reuse=` keeps, and in how much memory: ranks agree, what is not known is said, and memory that others need is left to them."""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigError, DataLoader, Reuse, StagedDataset, StateError
from penstock import transforms as T
from tests.integration.groups import facts_of_ranks
from tests.unit.test_jpeg_parts import jpeg_of, photo

pytest.importorskip("cv2")
SAMPLES = 200
SMALL = jpeg_of(photo(48, 64, 1), quality=70)
LARGE = jpeg_of(photo(480, 640, 1), quality=70)


class Photos:
    """Small ones, but for the first, and some that cannot be read yet."""

    def __init__(self, unread: frozenset[int] = frozenset()) -> None:
        self.unread = unread

    def __call__(self, index: int) -> tuple[bytes, int]:
        if index in self.unread:
            raise OSError("not yet")
        return LARGE if index == 0 else SMALL, index


def loader_of(read: Any, reuse: Reuse, **options: Any) -> DataLoader[Any]:
    dataset = StagedDataset(read, T.Compose([T.RandomResizedCrop(16)]), SAMPLES)
    return DataLoader(dataset, 10, shuffle=True, seed=1, reuse=reuse, **options)


def kept_by(loader: DataLoader[Any]) -> int:
    found = loader.stats()["reuse"]
    assert found is not None
    return int(found["kept"])


def keys_of(loader: DataLoader[Any]) -> list[int]:
    return [key for _, keys in loader for key in keys.tolist()]


# ---- several ranks


def rank_that_has_less(rank: int, meeting: str, out: str, unread: bool) -> None:
    """Rank 1 has less memory; or rank 0 cannot read the one large sample while its loader is made."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    read = Photos(frozenset({0}) if unread and rank == 0 else frozenset())
    reuse = Reuse(times=3, split=0, max_bytes="2MiB" if unread or rank == 0 else "1MiB")
    loader = loader_of(read, reuse, shard="auto")
    read.unread = frozenset()
    facts = {"kept": kept_by(loader), "keys": [keys_of(loader) for _ in range(3)]}
    Path(out, f"{rank}.json").write_text(json.dumps(facts))
    dist.destroy_process_group()


@pytest.mark.parametrize("unread", [False, True])
def test_ranks_of_a_group_agree_on_the_fewest(unread: bool, tmp_path: Path) -> None:
    found = facts_of_ranks(rank_that_has_less, tmp_path, unread)
    assert found[0]["kept"] == found[1]["kept"]
    assert 0 < found[0]["kept"] < SAMPLES
    for epoch in range(3):
        assert Counter(found[0]["keys"][epoch] + found[1]["keys"][epoch]) == Counter(range(SAMPLES))


def rank_whose_loader_comes_first(rank: int, meeting: str, out: str) -> None:
    import torch.distributed as dist

    loader = loader_of(Photos(), Reuse(times=3, split=0, max_bytes=f"{rank + 1}MiB"), shard=(rank, 2))
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    with pytest.raises(ConfigError, match="ranks would keep") as raised:
        keys_of(loader)
    Path(out, f"{rank}.json").write_text(json.dumps(str(raised.value)))
    dist.destroy_process_group()


def test_ranks_that_did_not_agree_do_not_begin(tmp_path: Path) -> None:
    said = facts_of_ranks(rank_whose_loader_comes_first, tmp_path)
    assert said[0] == said[1]


def test_without_a_group_it_is_said_where_ranks_may_differ(caplog: pytest.LogCaptureFixture) -> None:
    reuse = Reuse(times=3, split=0, max_bytes="1MiB")
    with caplog.at_level(logging.WARNING, "penstock"):
        loader_of(Photos(), reuse, shard=(0, 2))
        loader_of(Photos(frozenset({0})), reuse)
        assert not caplog.records
        loader_of(Photos(frozenset({0})), reuse, shard=(1, 2))
    assert "1 of 64 samples that were looked at could not be read (sample 0: not yet)" in caplog.text


def test_where_no_sample_can_be_read_nothing_is_kept_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "penstock"):
        loader = loader_of(Photos(frozenset(range(SAMPLES))), Reuse(times=3, split=0))
    assert kept_by(loader) == 0
    (record,) = caplog.records
    assert "of 64 samples that were looked at, none could be read (sample 0: not yet)" in record.getMessage()


# ---- sizes


def test_samples_that_are_larger_than_usual_chunks_are_kept() -> None:
    """Chunks of 16 MiB would be of 1 MiB each."""
    large = jpeg_of(photo(500, 750, 1), quality=70)
    loader = DataLoader(
        StagedDataset(lambda index: (large, index), T.Compose([T.RandomResizedCrop(16)]), 10),
        5,
        seed=1,
        reuse=Reuse(times=3, split=0, max_bytes="16MiB"),
    )
    for _ in range(3):
        keys_of(loader)
    found = loader.stats()["reuse"]
    assert (found["kept"], found["entries"], found["refused"]) == (10, 10, 0)


def test_what_is_too_large_for_a_chunk_does_not_count() -> None:
    reuse = Reuse(times=3, split=0, max_bytes="1MiB")
    loader = loader_of(Photos(), reuse)  # the first is ten times as large as an eighth of that
    assert kept_by(loader) > 0.8 * (1 << 20) / (48 * 64 * 3 + 64) - 5
    assert "but for some 2% that are too large" in loader.explain()


def test_where_the_index_leaves_no_room_nothing_is_kept_and_it_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "penstock"):
        loader = loader_of(Photos(), Reuse(times=3, split=0, max_bytes="40KiB"))
    assert kept_by(loader) == 0
    (record,) = caplog.records
    assert "max_bytes='40KiB' has no room for a sample of 23," in record.getMessage()
    assert "beside an index of" in record.getMessage()
    assert Counter(keys_of(loader)) == Counter(range(SAMPLES))


# ---- resume


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_of_a_larger_data_set_is_refused_by_name(workers: int) -> None:
    state = loader_of(Photos(), Reuse(times=3, split=0)).state_dict()
    few = StagedDataset(Photos(), T.Compose([T.RandomResizedCrop(16)]), 12)
    loader = DataLoader(few, 4, shuffle=True, seed=1, num_workers=workers, reuse=Reuse(times=3, split=0))
    with pytest.raises(StateError, match="saved with a dataset of 200 samples, this one has 12"):
        loader.load_state_dict(state)
    loader.load_state_dict({key: value for key, value in state.items() if key not in ("kind", "length")})
    with pytest.raises(
        StateError, match=r"kept 200 samples \(reuse\), and this data set has 12: it is another one"
    ):
        keys_of(loader)


def test_after_a_resume_what_is_in_force_is_shown() -> None:
    small = loader_of(Photos(), Reuse(times=3, split=0, max_bytes="1MiB"))
    kept = kept_by(small)
    resumed = loader_of(Photos(), Reuse(times=3, split=0))
    assert kept_by(resumed) == SAMPLES > kept
    resumed.load_state_dict(small.state_dict())
    assert kept_by(resumed) == kept
    assert f"kept of {kept:,} samples" in resumed.explain()
