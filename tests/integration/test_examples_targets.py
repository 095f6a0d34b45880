"""The segmentation and detection examples as a user runs them, on drawings that they make themselves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytest.importorskip("cv2")


@pytest.mark.parametrize(
    ("example", "score"),
    [
        ("segmentation", r"the mean overlap on held-out drawings is ([6-9]\d|100)\.\d%"),
        ("detection", r"the F1 score on held-out drawings is ([6-9]\d|100)\.\d%"),
    ],
    ids=["masks", "boxes"],
)
def test_an_example_with_masks_or_boxes_learns(example: str, score: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{example}.py"), "--quick"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=105,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert "drawings to learn from, 100 held out" in ran.stdout
    assert re.search(score, ran.stdout), ran.stdout
    assert "Warning" not in ran.stdout
    assert "Traceback" not in ran.stdout
    assert list(tmp_path.iterdir()) == []
