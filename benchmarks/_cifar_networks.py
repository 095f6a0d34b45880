"""Networks for CIFAR-10's images of 32 pixels, and a learner that trains one of them.

resnet18: torchvision's, with a stem of one 3 x 3 convolution of stride 2 and no pooling, so the first blocks see 16 x 16.
vgg16: thirteen convolutions with batch normalisation, a mean pool and one linear layer. tiny: for trying the script out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

CLASSES = 10
MEAN, STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)
VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512)
"""Channels of each convolution; 0: pooling."""
SMOOTHING = 0.1


# ---- networks


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        nn.init.zeros_(self.bn2.weight)  # so that a short warm-up suffices
        self.around: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.around = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(inner)) + self.around(x), inplace=True)


def resnet18() -> nn.Module:
    blocks: list[nn.Module] = []
    before = 64
    for after in (64, 128, 256, 512):
        blocks += [Block(before, after, 1 if after == 64 else 2), Block(after, after, 1)]
        before = after
    stem = [nn.Conv2d(3, 64, 3, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


def vgg16() -> nn.Module:
    layers: list[nn.Module] = []
    before = 3
    for after in VGG16:
        if not after:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [
            nn.Conv2d(before, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
        ]
        before = after
    # Mean pooling: with max pooling, short trainings at high rates diverged in their first steps.
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


def tiny() -> nn.Module:
    layers = [nn.Conv2d(3, 8, 3, 4, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8, CLASSES))


NETWORKS = {"resnet18": resnet18, "vgg16": vgg16, "tiny": tiny}


# ---- learning


class Learner:
    """One network in training. The seed decides its first weights, which are made on the CPU so that all devices agree."""

    def __init__(self, name: str, device: str, weight_decay: float, seed: int) -> None:
        torch.manual_seed(seed)
        self.name = name
        self.model = NETWORKS[name]().to(device, memory_format=torch.channels_last)
        self.loss = torch.zeros((), device=device)
        """Sum over all steps since it was last reset."""
        self._scale = [torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (MEAN, STD)]
        self._optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=0.1,
            momentum=0.9,
            nesterov=True,
            weight_decay=weight_decay,
            fused=True,
        )

    def learn(self, images: torch.Tensor, targets: torch.Tensor, rate: float) -> None:
        self._optimizer.param_groups[0]["lr"] = rate
        self._optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self._seen(images), targets, label_smoothing=SMOOTHING)
        torch.autograd.backward(loss)
        self._optimizer.step()
        self.loss += loss.detach()

    def _seen(self, images: torch.Tensor) -> torch.Tensor:
        mean, std = self._scale
        scaled = images.to(torch.float32, memory_format=torch.channels_last).sub(mean).div(std)
        with torch.autocast(images.device.type, torch.bfloat16):
            seen: torch.Tensor = self.model(scaled)
        return seen.float()

    @torch.no_grad()
    def accuracy(self, test: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
        """In points of 100."""
        self.model.eval()
        right = [(self._seen(images).argmax(1) == targets) for images, targets in test]
        self.model.train()
        return 100 * torch.cat(right).double().mean().item()
