"""The one-line change: a training loop with penstock's DataLoader, and its diagnosis.

python examples/quickstart.py
"""

from __future__ import annotations

import torch
from torch import nn

from penstock import DataLoader  # instead of: from torch.utils.data import DataLoader


class Waves(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Noisy sine waves of four frequencies, made when they are asked for."""

    def __len__(self) -> int:
        return 2_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        label = index % 4
        phase, noise = torch.rand(()), torch.randn(1, 256)  # the same for any number of workers: see below
        wave = torch.sin(torch.linspace(0, (label + 1) * 20, 256) + 6.3 * phase)
        return wave + 0.5 * noise, label


def main() -> None:
    torch.set_num_threads(1)  # the workers want the cores too
    # seed: every random number of every sample depends on it, the epoch and the sample, not on the workers.
    loader = DataLoader(Waves(), batch_size=50, shuffle=True, num_workers=2, seed=7)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 9, stride=2), nn.ReLU(), nn.Conv1d(16, 32, 9, stride=2), nn.ReLU(),
        nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip
    optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3)

    for epoch in range(3):
        right = 0
        for waves, labels in loader:
            scores = net(waves)
            right += int((scores.argmax(1) == labels).sum())
            optimiser.zero_grad()
            nn.functional.cross_entropy(scores, labels).backward()
            optimiser.step()
        print(f"epoch {epoch}: {right / len(loader.dataset):.1%} right")

    stats = loader.stats()
    print(f"{stats['samples']} samples, {stats['samples'] / stats['elapsed_s']:.0f} per second")
    print(loader.diagnose())


if __name__ == "__main__":
    main()
