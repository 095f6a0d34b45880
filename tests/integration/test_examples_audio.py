"""The audio example as a user runs it, on recordings that it makes itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytest.importorskip("soundfile")


def test_the_audio_example_learns_its_chirps(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "audio_digits.py"), "--quick", "--reuse", "2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert "recordings to learn from, 100 held out" in ran.stdout
    assert re.search(r"(9\d|100)\.\d% of the held-out recordings are recognised", ran.stdout)
    assert re.search(r"\d\.\d different draws in 6 uses of a recording", ran.stdout)
    assert "Warning" not in ran.stdout
    assert "Traceback" not in ran.stdout
    assert list(tmp_path.iterdir()) == []
