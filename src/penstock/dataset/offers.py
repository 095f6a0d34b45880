"""What a dataset offers whoever prepares its samples, beside `__getitem__`.

Rule 1: a worker asks once (`offered`), and uses nothing else of a dataset. Any dataset offers its items; one of ours says what more it has (`Offers`).
Rule 2: a wrapper's offer is that of the dataset in it, changed where the wrapper does something else.
Rule 3: all is called by the thread that prepares; in the training process only what does not prepare.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import getitem
from typing import Any, Protocol

from torch.utils.data import ConcatDataset, Subset


class DrawnFirst(Protocol):
    """Samples of one task that are all drawn before the first has its pixels."""

    def sample(self, index: int) -> Any:
        """The sample. Where it is written, its place is only noted."""

    def rest(self) -> Iterator[tuple[int, Callable[[], None]]]:
        """What is left to do: of a sample of the batch, or from one on what cannot fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    shown: Any
    """The dataset as the user knows it."""
    get: Callable[[Any], Any]
    """A sample, in which tensors may be `Unfinished`, for a worker that has them written where they belong."""
    begin: Callable[[int, Sequence[Any]], None] = lambda _epoch, _keys: None
    """Told (epoch, keys) before the samples of a task are asked for."""
    draws_alone: Callable[[], bool] = lambda: False
    """Whether no code of the user's has a part in a sample: then nobody draws from the global generators. It may change from task to task."""
    drawn_first: Callable[[], DrawnFirst | None] = lambda: None
    """For a worker that writes all samples of a task, if `draws_alone`: what draws them first; None: each is prepared at once."""
    load: Callable[[], None] = lambda: None
    """Load the libraries that samples are prepared with: workers that are forked then have them, and take a fifth of a second less to begin."""
    path_of: Callable[[Any], str | None] = lambda _: None
    """The file of a sample, for reports; of one in a tar shard, the shard and its key in there. None, or an error, where nobody knows."""
    sample_bytes: int = 0
    """Of a sample in a batch's memory, where that is known beforehand; otherwise 0."""
    repeatable: bool = True
    """Whether a sample that is prepared twice has the same bytes."""


class Offers(ABC):
    """A dataset that says what it offers."""

    @abstractmethod
    def offer(self) -> Offer: ...


def offered(dataset: Any) -> Offer:
    """What a dataset offers, through torch's own wrappers too."""
    if isinstance(dataset, Offers):
        return dataset.offer()
    plain = Offer(shown=dataset, get=partial(getitem, dataset))
    if type(dataset) is Subset:
        inner = offered(dataset.dataset)
        return replace(
            plain,
            get=lambda key: inner.get(dataset.indices[key]),
            load=inner.load,
            path_of=lambda key: inner.path_of(dataset.indices[key]),
        )
    if type(dataset) is ConcatDataset:
        return replace(plain, path_of=partial(_path_in, dataset))
    if any(kind.__module__ == "torchvision.datasets.folder" for kind in type(dataset).__mro__):
        return replace(plain, path_of=lambda key: str(dataset.samples[key][0]))
    return plain


def path_of(offer: Offer, key: Any) -> str | None:
    """The file of a sample, if anybody knows."""
    with suppress(Exception):  # it is for a report of another error
        return offer.path_of(key)
    return None


def _path_in(several: ConcatDataset[Any], key: int) -> str | None:
    ends = several.cumulative_sizes
    key = key if key >= 0 else key + ends[-1]
    at = bisect_right(ends, key)
    return offered(several.datasets[at]).path_of(key - (ends[at - 1] if at else 0))
