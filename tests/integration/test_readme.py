"""The README's Python runs as it stands, on one machine; where there is no CUDA, with the CPU as the device."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock import DataLoader

README = Path(__file__).parents[2] / "README.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 600

    def __getitem__(self, key: int) -> torch.Tensor:
        return torch.full((4,), float(key))


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_a_snippet_runs(snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    if not torch.cuda.is_available():
        snippet = snippet.replace('device="cuda"', 'device="cpu"')
    names: dict[str, Any] = {
        "torch": torch,
        "DataLoader": DataLoader,
        "dataset": Samples(),
        "model": torch.nn.Linear(4, 1),
        "loader": DataLoader(Samples(), 256),
    }
    exec(compile(snippet, str(README), "exec"), names)
    loader = names["loader"]
    if "in loader" in snippet:
        assert loader.stats()["samples"] == 600
    loader.load_state_dict(loader.state_dict())


def test_there_are_snippets_and_one_of_them_iterates() -> None:
    assert any("in loader" in snippet for snippet in SNIPPETS)
