"""Data parallel training with two processes on the CPU: `shard="auto"` gives each rank its share of one global order.

python examples/ddp.py                                      starts its own two processes
torchrun --nproc-per-node 2 examples/ddp.py                 the same, started by torchrun

No DistributedSampler and no set_epoch: the ranks share rank 0's seed, every sample comes exactly once per epoch, and all
ranks get equally many batches.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from penstock import DataLoader

WORLD = 2
EPOCHS = 2
SAMPLES = 240


class Squares(torch.utils.data.Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        x = torch.rand(1)
        return index, x, x.square()


def train() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    loader = DataLoader(Squares(), batch_size=12, shuffle=True, num_workers=1, shard="auto")
    net = DistributedDataParallel(nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for epoch in range(EPOCHS):
        seen: list[int] = []
        loss = torch.zeros(())
        for indices, x, y in loader:
            loss = nn.functional.mse_loss(net(x), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            seen += indices.tolist()
        shares: list[list[int]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(shares, seen)
        if dist.get_rank() == 0:
            once = sorted(index for share in shares for index in share) == list(range(SAMPLES))
            print(
                f"epoch {epoch}: ranks saw {' + '.join(str(len(share)) for share in shares)} samples, "
                f"{'each exactly once' if once else 'NOT each exactly once'}; loss {loss.item():.4f}",
                flush=True,
            )
    dist.destroy_process_group()


def start_ranks() -> int:
    """What torchrun does, in short: a process per rank, told by its environment who it is."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": WORLD, "LOCAL_WORLD_SIZE": WORLD, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = []
    for rank in range(WORLD):
        env = {name: str(value) for name, value in {**common, "RANK": rank, "LOCAL_RANK": rank}.items()}
        ranks.append(subprocess.Popen([sys.executable, __file__], env={**os.environ, **env}))
    return max(abs(rank.wait()) for rank in ranks)


if __name__ == "__main__":
    if "RANK" not in os.environ:
        sys.exit(start_ranks())
    train()
