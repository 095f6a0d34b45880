"""Under the HF Trainer one line gives it our engine, with our keywords, and its own way to resume stays exact."""

from __future__ import annotations

from pathlib import Path

import pytest

from .ranks import Facts, check_epochs, run_ranks
from .samples import KEYWORDS, SAMPLES

pytest.importorskip("transformers")

LOADERS = {2: 2, 4: 1, 7: 1}
"""For each checkpoint, how many loaders the rest needs: an epoch resumed in its middle has one of its own."""


def test_the_hf_trainer_keeps_our_engine_and_keywords_and_resumes_exactly(tmp_path: Path) -> None:
    ranks = run_ranks("transformers_script.py", tmp_path)
    check_epochs([rank["whole"]["seen"] for rank in ranks], samples=SAMPLES)
    for rank in ranks:
        assert (
            "prefetch_factor: not a keyword of penstock's DataLoader that torch's does not have"
            in rank["refused"]
        )
        our_engine_delivered_every_batch(rank["whole"])
        our_keywords_survived(rank["whole"])
        for step, loaders in LOADERS.items():
            rest = rank["rests"][str(step)]
            assert rest["seen"] == rank["whole"]["seen"][step:], step
            assert len(rest["loaders"]) == loaders, step
            our_engine_delivered_every_batch(rest)
            our_keywords_survived(rest)


def our_engine_delivered_every_batch(facts: Facts) -> None:
    assert {loader["engine"] for loader in facts["loaders"]} == {"workers"}
    assert sum(loader["batches"] for loader in facts["loaders"]) == len(facts["seen"])


def our_keywords_survived(facts: Facts) -> None:
    """No seed was given: it is the Trainer's."""
    for loader in facts["loaders"]:
        assert (loader["keywords"], loader["seed"], loader["num_workers"]) == (KEYWORDS, 11, 2)
