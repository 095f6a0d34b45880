"""The JPEG decoder under libFuzzer, with a mutator that knows Huffman tables: a short run, and a campaign with `PENSTOCK_FULL=1`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("PIL.Image")
pytest.importorskip("simplejpeg")

from tests.conftest import FULL
from tests.fuzz.jpeg_fuzz import ROOT, NoFuzzer, build, play, write_seeds

EXECUTIONS = 10_000
CAMPAIGN = 100


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build(tmp_path_factory.mktemp("target"))
    except NoFuzzer as exc:
        pytest.skip(str(exc))


def test_files_with_changed_tables_and_segments_break_nothing(target: Path, tmp_path: Path) -> None:
    write_seeds(tmp_path / "files")
    done, bad = play(target, tmp_path / "files", seed=0, executions=EXECUTIONS)
    assert bad == ""
    assert done >= EXECUTIONS


@pytest.mark.skipif(not FULL, reason="the full campaign needs PENSTOCK_FULL=1")
def test_ten_million_files() -> None:
    command = [sys.executable, "benchmarks/jpeg_fuzz_campaign.py", "--schedules", str(CAMPAIGN)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
