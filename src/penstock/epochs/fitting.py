"""Check that a saved state fits this loader's data and order; if not, keep its usable part.

A state records the dataset's length and what decided the order, but not batch size, workers or ranks. Older states record neither and
are accepted as they are.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

from penstock.epochs.progress import VERSION, fresh_state
from penstock.errors import StateError

ON_PURPOSE = (
    "To go on all the same, load_state_dict(state, strict=False) keeps the seed and the epoch; {rest}. Where a trainer loads the "
    "state, remove the loader's part from its checkpoint instead."
)
STARTS_OVER = "the epoch starts over"
KEEPS_PLACE = "the position, too, since both orders are sequential"


class Identity(NamedTuple):
    """The facts that a position depends on."""

    order: str
    """`planned`, `sampled` or `streamed`."""
    kind: str
    """`sequential`, `shuffled`, `iterable`, or the class of the deciding sampler."""
    length: int | None
    """Samples in the dataset, if known."""

    def facts(self) -> dict[str, Any]:
        return {"kind": self.kind, "length": self.length}


def check_version(state: dict[str, Any]) -> None:
    if "version" not in state:
        raise StateError("this is not a state of penstock's DataLoader: it has no version")
    if state["version"] > VERSION:  # guard: state-version
        raise StateError(
            f"the state has version {state['version']}; this penstock reads up to {VERSION}: upgrade it"
        )


def fitted(state: dict[str, Any], here: Identity, *, strict: bool) -> dict[str, Any]:
    """Return the state if it is this loader's; else raise, or with strict=False return its usable part."""
    check_version(state)
    complaint = mismatch(state, here)
    if complaint is None:
        return state
    keeps = state["order"] == "planned" and state.get("kind") == here.kind == "sequential"
    if strict:
        raise StateError(f"{complaint}. {ON_PURPOSE.format(rest=KEEPS_PLACE if keeps else STARTS_OVER)}")
    if keeps:
        # A position beyond the new end leaves nothing of this epoch; the next one is whole.
        return state | {"position": min(state["position"], here.length or 0)}
    return fresh_state(here.order, state["seed"], state["epoch"])


def mismatch(state: dict[str, Any], here: Identity) -> str | None:
    if state["order"] != here.order:
        kinds = f" ({state['kind']} there, {here.kind} here)" if "kind" in state else ""
        return (
            f"the state was saved from a loader whose order was {state['order']}, this one's is {here.order}{kinds}: give it the same "
            f"shuffle, sampler and kind of dataset"
        )
    if "kind" in state and state["kind"] != here.kind:
        return (
            f"the state was saved from a loader whose order was {state['kind']}, this one's is {here.kind}: samples would come twice or "
            f"never; give it the same shuffle or sampler"
        )
    before = state.get("length")
    if before is not None and here.length is not None and before != here.length:
        return (
            f"the state was saved with a dataset of {before} samples, this one has {here.length}: samples would come twice or never; "
            f"give it the same dataset"
        )
    return None


def warn_of_seed(saved: int | None, given: int | None) -> None:
    """Warn that the state's seed wins: with another, the rest of the epoch would be in another order."""
    if saved is not None and given is not None and saved != given:
        warnings.warn(
            f"the state was saved with seed {saved}, this loader was given seed {given}: {saved} is used from here on, so that the order "
            f"goes on; give the loader seed={saved}, or none, to have no warning",
            stacklevel=4,
        )
