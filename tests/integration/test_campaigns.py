"""How campaigns are played: whatever their processes say is read, and what was played is not played again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLAY = """
import sys
sys.path.insert(0, "benchmarks")
from _campaign import campaign
sys.exit(campaign("tests.unit.loud_seeds", chunk=100, argv=sys.argv[1:]))
"""


def test_a_campaign_reads_more_than_a_pipe_holds_and_goes_on_where_it_was(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    for schedules, lines in ((100, 100), (250, 250), (250, 250)):
        command = [sys.executable, "-c", PLAY, "--schedules", str(schedules), "--out", str(out)]
        played = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
        assert played.returncode == 0, played.stderr
        rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
        assert sorted(row["seed"] for row in rows) == list(range(lines)), "each once, in any order"
