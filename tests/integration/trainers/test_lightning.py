"""Under Lightning nothing has to be added: engine, keywords and resume survive what it does to loaders."""

from __future__ import annotations

from pathlib import Path

import pytest

from .ranks import Facts, check_epochs, run_ranks
from .samples import KEYWORDS, SAMPLES

pytest.importorskip("lightning")

LEFT = {"step4": 4, "step6": 2, "epoch0": 4}
"""Steps that remain of eight after each checkpoint."""


def test_lightning_keeps_our_engine_and_keywords_and_resumes_exactly(tmp_path: Path) -> None:
    ranks = run_ranks("lightning_script.py", tmp_path)
    for loader, sampler in {"injected": "DistributedSampler", "sharded": "ShardSampler"}.items():
        of_loader = [rank[loader] for rank in ranks]
        assert {facts["sampler"] for facts in of_loader} == {sampler}
        check_epochs([facts["whole"] for facts in of_loader], samples=SAMPLES)
        for facts in of_loader:
            our_engine_delivered_every_batch(facts)
            our_keywords_survived(facts)
            for checkpoint, steps in LEFT.items():
                the_rest_equals_the_whole_run(facts, checkpoint, steps)


def our_engine_delivered_every_batch(facts: Facts) -> None:
    loader = facts["loader"]
    assert (loader["engine"], loader["batches"]) == ("workers", len(facts["whole"]))
    assert loader["worker_busy_s"] > 0


def our_keywords_survived(facts: Facts) -> None:
    loader = facts["loader"]
    assert (loader["keywords"], loader["seed"], loader["num_workers"]) == (KEYWORDS, 5, 2)


def the_rest_equals_the_whole_run(facts: Facts, checkpoint: str, steps: int) -> None:
    rest, loader = facts["rests"][checkpoint]
    assert rest == facts["whole"][-steps:], checkpoint
    assert (loader["engine"], loader["batches"]) == ("workers", steps), checkpoint
