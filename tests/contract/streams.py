"""Iterable datasets that keep their place in every way that torchdata's contract knows, and shares of unequal length."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

State = dict[str, Any]


class Shares(IterableDataset[int]):
    """Worker w yields 1000 * w + 0, 1, …, `sizes[w]` of them. It keeps no place."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def numbers(self) -> range:
        info = get_worker_info()
        worker = info.id if info else 0
        return range(1000 * worker, 1000 * worker + self.sizes[worker % len(self.sizes)])

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers())


class InDataset(Shares):
    """A generator function that goes on at `self.at`."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        numbers = self.numbers()
        while self.at < len(numbers):
            self.at += 1
            yield numbers[self.at - 1]
        self.at = 0

    def state_dict(self) -> State:
        return {"at": self.at}

    def load_state_dict(self, state: State) -> None:
        self.at = state["at"]


class Itself(Shares):
    """`__iter__` starts over and returns the dataset."""

    def __iter__(self) -> Iterator[int]:
        self.left = list(self.numbers())
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        return self.left.pop(0)

    def state_dict(self) -> State:
        return {"left": list(self.left)}

    def load_state_dict(self, state: State) -> None:
        self.left = list(state["left"])


class Alive(Itself):
    """Hands out what it works with: what is yielded later changes its states."""

    def state_dict(self) -> State:
        return {"left": self.left}

    def load_state_dict(self, state: State) -> None:
        self.left = state["left"]


class Walk:
    """An iterator that knows its place, with a state of which parts come and go."""

    def __init__(self, numbers: range) -> None:
        self.numbers, self.at = numbers, 0

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> int:
        if self.at >= len(self.numbers):
            raise StopIteration
        self.at += 1
        return self.numbers[self.at - 1]

    def state_dict(self) -> State:
        odd = {"odd": {"at": self.at}} if self.at % 2 else {"even": [self.at]}
        return {"at": torch.tensor(self.at), "nested": {"none": None, **odd}}

    def load_state_dict(self, state: State) -> None:
        self.at = int(state["at"])
        assert ("odd" in state["nested"]) == bool(self.at % 2)


class InIterator(Shares):
    """Only its iterator keeps a place."""

    def __iter__(self) -> Iterator[int]:
        return Walk(self.numbers())


class InBoth(InIterator):
    """The dataset has something to keep, too, and its iterator depends on that when it begins."""

    level = 0

    def __iter__(self) -> Iterator[int]:
        numbers = self.numbers()
        return Walk(range(numbers.start + 100 * self.level, numbers.stop + 100 * self.level))

    def state_dict(self) -> State:
        return {"level": self.level}

    def load_state_dict(self, state: State) -> None:
        self.level = state["level"]


class Shuffled(Shares):
    """Each epoch in another order, drawn from a generator of its own, whose state is a tensor."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.generator = torch.Generator().manual_seed(3)

    def __iter__(self) -> Iterator[int]:
        self.began = self.generator.get_state()
        self.at = 0
        self.order: list[int] = torch.randperm(len(self.numbers()), generator=self.generator).tolist()
        return self

    def __next__(self) -> int:
        if self.at >= len(self.order):
            raise StopIteration
        self.at += 1
        return self.numbers()[self.order[self.at - 1]]

    def state_dict(self) -> State:
        return {"began": self.began, "at": self.at}

    def load_state_dict(self, state: State) -> None:
        self.generator.set_state(state["began"])
        iter(self)
        self.at = state["at"]


class Counting(Itself):
    """Counts epochs: samples of epoch n begin at 100 * n."""

    epoch = -1

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        self.left = [100 * self.epoch + number for number in self.numbers()]
        return self

    def state_dict(self) -> State:
        return {"epoch": self.epoch, "left": list(self.left)}

    def load_state_dict(self, state: State) -> None:
        self.epoch, self.left = state["epoch"], list(state["left"])


class SlowToBegin(Counting):
    """Its second worker begins every later epoch long after the first has a batch."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        if self.epoch >= 0 and info is not None and info.id == 1:
            time.sleep(0.4)
        return super().__iter__()


class Endless(InDataset):
    def numbers(self) -> range:
        return range(super().numbers().start, 10**9)


class Drawing(Shares):
    """Draws an order when it begins and a number for each sample, all from the global generators; keeps no place."""

    def __iter__(self) -> Iterator[Any]:
        numbers = list(self.numbers())
        random.shuffle(numbers)
        for number in numbers:
            yield torch.tensor([number, random.random(), float(torch.rand(()))], dtype=torch.float64)


class DrawingWithPlace(Drawing):
    """The same; it goes on at `self.at` of the order that is drawn again."""

    at = 0

    def __iter__(self) -> Iterator[Any]:
        numbers = list(self.numbers())
        random.shuffle(numbers)
        while self.at < len(numbers):
            self.at += 1
            yield torch.tensor([numbers[self.at - 1], random.random()], dtype=torch.float64)
        self.at = 0

    def state_dict(self) -> State:
        return {"at": self.at}

    def load_state_dict(self, state: State) -> None:
        self.at = state["at"]


class DrawingItself(Itself):
    """Is its own iterator and draws a number for each sample."""

    def __next__(self) -> Any:
        return torch.tensor([super().__next__(), random.random()], dtype=torch.float64)


STATEFUL = {one.__name__: one for one in (InDataset, Itself, InIterator, InBoth, Shuffled)}
KINDS = {"Shares": Shares, **STATEFUL}
