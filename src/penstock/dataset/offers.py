"""What a dataset offers its workers beside `__getitem__`.

Rule 1: a worker asks once (`offered`), and uses nothing else of a dataset. Any dataset offers its items; ours offer more (`Offers`).
Rule 2: a wrapper passes on its inner dataset's offer, changed where the wrapper does something else.
Rule 3: the preparing thread makes all calls; the training process calls only what does not prepare.
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

from penstock.dataset.costs import KnownCosts, file_bytes, users_costs
from penstock.sources.sources import ByteRange, WholeFiles


class DrawnFirst(Protocol):
    """Two phases: draw every sample of a task, then make pixels."""

    def sample(self, index: int) -> Any:
        """Draw the sample. Writing it only notes its destination."""

    def rest(self) -> Iterator[tuple[int, Callable[[], None]]]:
        """Yield the remaining work, each with the ordinal of its sample, or of the first one from which nothing can fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSeam:
    """Where all bytes of a dataset's samples pass: another machine can be given them there."""

    holder: Any
    """The dataset whose `bytes_from` reads them."""
    ranges: Callable[[Any], Sequence[ByteRange]]
    """Where a sample's bytes are, in the order of their reading."""
    folder: str | None = None
    """All files are below this one, as their names spell it; "" is the working folder."""
    suffixes: tuple[str, ...] = ()
    """Endings of their names, in lower case."""
    files: tuple[str, ...] = ()
    """Or these are all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    shown: Any
    """The dataset as the user knows it."""
    get: Callable[[Any], Any]
    """Returns a sample whose tensors may be `Unfinished`, for a worker that has them written in place."""
    begin: Callable[[int, Sequence[Any]], None] = lambda _epoch, _keys: None
    """Called with (epoch, keys) before the samples of a task are asked for."""
    draws_alone: Callable[[], bool] = lambda: False
    """Whether no user code takes part in a sample, so that nobody draws from the global generators. May change from task to task."""
    drawn_first: Callable[[], DrawnFirst | None] = lambda: None
    """Two-phase preparation, for a worker that writes all samples of a task, if `draws_alone`; None: prepare each at once."""
    load: Callable[[], None] = lambda: None
    """Loads the libraries that prepare samples: forked workers inherit them and start a fifth of a second sooner."""
    path_of: Callable[[Any], str | None] = lambda _: None
    """File of a sample, for reports; in a tar shard, the shard and the key in it. None, or an error, if unknown."""
    sample_bytes: int = 0
    """Bytes of a sample in a batch's memory, if known beforehand; else 0."""
    repeatable: bool = True
    """Whether preparing a sample twice gives the same bytes."""
    tail: Any = None
    """The last step of its images (`transforms.tail.Tail`), if it can be done elsewhere: samples that `get` returns have `pixels`."""
    seam: ReadSeam | None = None
    """Where its bytes pass; None: it may read anything in any way."""
    costs: KnownCosts | None = None
    """What its samples cost; None: not known before they are prepared. `known_costs` also asks the user's dataset."""


class Offers(ABC):
    """A dataset with an offer of its own."""

    @abstractmethod
    def offer(self) -> Offer: ...


def offered(dataset: Any) -> Offer:
    """Return what a dataset offers, also through torch's own wrappers."""
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
            tail=inner.tail,
            seam=inner.seam and replace(inner.seam, ranges=partial(_ranges_in, dataset, inner.seam)),
        )
    if type(dataset) is ConcatDataset:
        return replace(plain, path_of=partial(_path_in, dataset))
    if any(kind.__module__ == "torchvision.datasets.folder" for kind in type(dataset).__mro__):
        files = file_bytes(lambda key: (str(dataset.samples[key][0]), 0, None), WholeFiles)
        return replace(plain, path_of=lambda key: str(dataset.samples[key][0]), costs=files)
    return plain


def known_costs(dataset: Any) -> KnownCosts | None:
    """Return what samples cost: as the user's dataset says, else as is known of its kind; None if it is not known."""
    if (said := users_costs(dataset)) is not None:
        return said
    if type(dataset) is Subset:
        inner = known_costs(dataset.dataset)
        return inner and replace(inner, of=lambda keys: inner.of([dataset.indices[key] for key in keys]))
    return offered(dataset).costs


def path_of(offer: Offer, key: Any) -> str | None:
    """Return the file of a sample, if known."""
    with suppress(Exception):  # it is for a report of another error
        return offer.path_of(key)
    return None


def _ranges_in(subset: Subset[Any], seam: ReadSeam, key: Any) -> Sequence[ByteRange]:
    return seam.ranges(subset.indices[key])


def _path_in(several: ConcatDataset[Any], key: int) -> str | None:
    ends = several.cumulative_sizes
    key = key if key >= 0 else key + ends[-1]
    at = bisect_right(ends, key)
    return offered(several.datasets[at]).path_of(key - (ends[at - 1] if at else 0))
