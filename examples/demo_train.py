"""An ordinary training script with torch's DataLoader; the demo runs it with both loaders.

python examples/demo_train.py PHOTOS              torch's DataLoader
penstock run examples/demo_train.py PHOTOS        ours, not a line changed
"""

import sys
from pathlib import Path

import torch
from demo_photos import Trainer, folder_for_torch
from torch.utils.data import DataLoader

if __name__ == "__main__":
    folder, batch, workers = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    trainer = Trainer()
    loader = DataLoader(folder_for_torch(folder), batch_size=batch, shuffle=True, num_workers=workers)
    for step, (images, labels) in enumerate(loader, 1):
        loss = trainer.step(images, labels)
        print(f"step {step} {len(loader)} {loss:.3f}", flush=True)
    print(f"weights {trainer.digest()}", flush=True)
