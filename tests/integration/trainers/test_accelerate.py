"""Under Accelerate one line keeps engine, keywords and exact resume; without it, `prepare()` warns."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import DataLoader

from .ranks import Facts, check_epochs, run_ranks
from .samples import BATCH, KEYWORDS, SAMPLES, Noisy, shown

pytest.importorskip("accelerate")


def test_accelerate_keeps_our_engine_and_keywords_and_resumes_exactly(tmp_path: Path) -> None:
    ranks = run_ranks("accelerate_script.py", tmp_path)
    for sampler in ("generator", "seedable", "seeded"):
        check_epochs([rank[sampler]["whole"] for rank in ranks], samples=SAMPLES)
        for rank in ranks:
            our_engine_delivered_every_batch(rank[sampler])
            our_keywords_survived(rank[sampler])
            for step in (1, 4, 6):
                load_state_gives_the_rest_of_the_whole_run(rank[sampler], step)
    for rank in ranks:
        skipping_gives_the_rest_of_the_epoch(rank)
        without_the_line_prepare_warns(rank)
        with_the_line_nothing_warns_and_torchs_loaders_stay_torchs(rank)
        what_cannot_work_is_refused(rank)


@pytest.mark.parametrize("world", [1, 2])
def test_a_seed_fixes_the_order_whatever_the_program_has_drawn(world: int, tmp_path: Path) -> None:
    ranks = run_ranks("accelerate_seed_script.py", tmp_path, world=world)
    for name in ("plain", "seedable", "seedable by its own seed", "dispatched", "split", "workers"):
        for rank in ranks:
            first, second = rank[name]
            assert first == second, name
            assert first[0] != first[1], "epochs differ"
    loader = DataLoader(Noisy(), BATCH, shuffle=True, seed=0)
    for epoch in range(2):
        alone = [shown(batch)[0] for batch in loader]
        for number, rank in enumerate(ranks):
            dealt = [batch[0] for batch in rank["plain"][0][epoch]]
            mine = alone[number::world]
            assert dealt[: len(mine) - 1] == mine[:-1], (
                "the order of the loader alone, dealt out batch by batch"
            )
    for rank in ranks:
        assert rank["skipped"] == rank["plain"][0][1][2:]
        assert rank["users"][0] != rank["users"][1]


def our_engine_delivered_every_batch(facts: Facts) -> None:
    loader = facts["loader"]
    assert (loader["engine"], loader["batches"]) == ("workers", len(facts["whole"]))
    assert loader["worker_busy_s"] > 0


def our_keywords_survived(facts: Facts) -> None:
    loader = facts["loader"]
    assert (loader["keywords"], loader["seed"], loader["num_workers"]) == (KEYWORDS, 5, 2)


def load_state_gives_the_rest_of_the_whole_run(facts: Facts, step: int) -> None:
    """Accelerate has fetched a batch more than it has handed out when the state is saved."""
    rest, loader = facts["rests"][str(step)]
    assert rest == facts["whole"][step:], step
    assert (loader["engine"], loader["batches"]) == ("workers", len(rest)), step


def skipping_gives_the_rest_of_the_epoch(rank: Facts) -> None:
    """What is skipped is not prepared, and the rest is augmented as in the whole epoch."""
    for sampler, (rest, loader, length) in rank["skipping"].items():
        assert rest == rank[sampler]["whole"][3:4]
        assert (loader["engine"], loader["batches"], length) == ("workers", 1, 1)
        assert loader["keywords"] == KEYWORDS


def without_the_line_prepare_warns(rank: Facts) -> None:
    assert rank["without"]["built"].startswith("torch.")
    (warning,) = rank["without"]["warnings"]
    assert "penstock.integrations.accelerate.enable()" in warning


def with_the_line_nothing_warns_and_torchs_loaders_stay_torchs(rank: Facts) -> None:
    assert rank["warnings"] == []
    assert rank["plain"].startswith("torch.")
    assert rank["device"].startswith("cpu"), "the process's own, wherever the loader was to go"


def what_cannot_work_is_refused(rank: Facts) -> None:
    assert "would shard twice" in rank["shard"]
    assert "no DataLoaderShard in accelerate.data_loader" in rank["missing"]
