"""Networks for images of 32 pixels, and learners: one training step of several networks on the same batch, told to a GPU as one graph.

resnet18: torchvision's but for its beginning, a 3 x 3 convolution of stride 2 without the pooling behind it, so that the first blocks see 16 x 16.
vgg16: the thirteen convolutions with batch normalisation, the mean of the last, and one linear layer. tiny: to try things out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from _gpu_measure import Pace
from torch import nn
from torch.nn import functional as F  # noqa: N812

CLASSES = 10
MEAN, STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)
VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512)
"""Channels of each convolution; 0: pooling."""
SMOOTHING = 0.1
TRIED = 3
"""Steps before one is recorded: libraries choose their ways in them."""


# ---- networks


class Block(nn.Module):
    """Two convolutions, and a way around them."""

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
    # The mean, not the maximum: with that, short trainings at high rates were seen to fall apart in their first steps.
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


def tiny() -> nn.Module:
    layers = [nn.Conv2d(3, 8, 3, 4, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8, CLASSES))


NETWORKS = {"resnet18": resnet18, "vgg16": vgg16, "tiny": tiny}


# ---- learning


class Learner:
    """A network that learns. It is made once; each training begins it anew, in the same memory, as graphs need it."""

    def __init__(self, name: str, device: str, weight_decay: float) -> None:
        self.name = name
        self.model = NETWORKS[name]().to(device, memory_format=torch.channels_last)
        self.rate = torch.zeros((), device=device)
        self.loss = torch.zeros((), device=device)
        """Of all steps since it was last looked at."""
        self._scale = [torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (MEAN, STD)]
        self._optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=self.rate,
            momentum=0.9,
            nesterov=True,
            weight_decay=weight_decay,
            fused=True,
        )

    def learn(self, images: torch.Tensor, targets: torch.Tensor) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self._seen(images), targets, label_smoothing=SMOOTHING)
        torch.autograd.backward(loss)
        self._optimizer.step()
        self.loss += loss.detach()

    def _seen(self, images: torch.Tensor) -> torch.Tensor:
        mean, std = self._scale
        scaled = images.to(torch.float32, memory_format=torch.channels_last).sub(mean).div(std)
        # What is cast once for several uses must not outlive a graph's recording.
        with torch.autocast(images.device.type, torch.bfloat16, cache_enabled=False):
            seen: torch.Tensor = self.model(scaled)
        return seen.float()

    @torch.no_grad()
    def accuracy(self, test: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
        """In points of 100."""
        self.model.eval()
        right = [(self._seen(images).argmax(1) == targets) for images, targets in test]
        self.model.train()
        return 100 * torch.cat(right).double().mean().item()

    def begin(self, seed: int) -> None:
        """The seed decides the first weights; they are made on the CPU, where it does so everywhere alike."""
        torch.manual_seed(seed)
        self.restore({"model": NETWORKS[self.name]().state_dict(), "momenta": []})

    def state(self) -> dict[str, Any]:
        momenta = [self._optimizer.state[p].get("momentum_buffer") for p in self.model.parameters()]
        return {
            "model": {name: value.detach().cpu() for name, value in self.model.state_dict().items()},
            "momenta": [momentum.cpu() for momentum in momenta if momentum is not None],
        }

    @torch.no_grad()
    def restore(self, state: Mapping[str, Any]) -> None:
        """Without momenta: those of a beginning, zero."""
        self.model.load_state_dict(state["model"])
        self.loss.zero_()
        for at, parameter in enumerate(self.model.parameters()):
            kept = self._optimizer.state[parameter]
            if kept.get("momentum_buffer") is None:
                kept["momentum_buffer"] = torch.zeros_like(parameter)
            if state["momenta"]:
                kept["momentum_buffer"].copy_(state["momenta"][at])
            else:
                kept["momentum_buffer"].zero_()


class Slot:
    """Networks that learn from the same batches, on a stream of their own beside other slots'."""

    def __init__(
        self, networks: Iterable[str], device: str, batch: int, weight_decay: float, *, graph: bool
    ) -> None:
        self.learners = [Learner(name, device, weight_decay) for name in networks]
        self.device = device
        self._images = torch.zeros((batch, 3, 32, 32), dtype=torch.uint8, device=device)
        self._targets = torch.zeros(batch, dtype=torch.int64, device=device)
        cuda = device != "cpu"
        self._stream: Any = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]
        self._pace = Pace(device)
        self._graph: Any = self._recorded() if cuda and graph else None

    def here(self) -> AbstractContextManager[Any]:
        """What is told to the device within belongs to this slot."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _recorded(self) -> Any:
        """A step of all networks. Those that are made for it count for nothing: a training begins its networks anew."""
        torch.cuda.synchronize()
        with self.here():
            for _ in range(TRIED):
                self._step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
        # Other threads may use the device meanwhile: loaders copy batches.
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            self._step()
        torch.cuda.synchronize()
        return graph

    def _step(self) -> None:
        for learner in self.learners:
            learner.learn(self._images, self._targets)

    def learn(self, images: torch.Tensor, targets: torch.Tensor, rate: float) -> None:
        with self.here():
            self._images.copy_(images, non_blocking=True)
            self._targets.copy_(targets, non_blocking=True)
            for learner in self.learners:
                learner.rate.fill_(rate)
            if self._graph is None:
                self._step()
            else:
                self._graph.replay()
            self._pace()
