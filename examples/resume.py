"""Stop a training anywhere; it continues with the next batch, with any number of workers.

python examples/resume.py --stop-after 7          stops in the middle of the first epoch
python examples/resume.py --workers 1             continues from there to the end
python examples/resume.py --fresh                 from the start, without stopping: the same batches

The position is O(1): nothing is read or replayed to get there.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import nn

from penstock import DataLoader

EPOCHS = 2


class Noisy(torch.utils.data.Dataset[tuple[int, torch.Tensor]]):
    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.randn(8)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, default=Path("demo-out/resume.pt"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--stop-after", type=int, default=0, help="batches of this run; 0: to the end")
    parser.add_argument("--fresh", action="store_true", help="ignore the checkpoint")
    args = parser.parse_args()

    loader = DataLoader(Noisy(), batch_size=10, shuffle=True, num_workers=args.workers, seed=1)
    net = nn.Linear(8, 1)
    first_epoch = 0
    if args.checkpoint.exists() and not args.fresh:
        saved = torch.load(args.checkpoint, weights_only=True)
        net.load_state_dict(saved["net"])
        # Plain JSON: small, readable, and it counts batches that the loop has received.
        state = json.loads(saved["loader"])
        loader.load_state_dict(state)
        first_epoch = state["epoch"]
        print(f"resuming epoch {state['epoch']} behind batch {state['batches']}")

    args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    done = 0
    for epoch in range(first_epoch, EPOCHS):
        for indices, values in loader:
            net(values).square().mean().backward()
            print(f"epoch {epoch}  samples {indices.tolist()}  sum {values.double().sum().item():.6f}")
            done += 1
            if done == args.stop_after:
                state = json.dumps(loader.state_dict())
                torch.save({"net": net.state_dict(), "loader": state}, args.checkpoint)
                print(f"stopped; run again to go on: {state}")
                return
    args.checkpoint.unlink(missing_ok=True)
    print("finished")


if __name__ == "__main__":
    main()
