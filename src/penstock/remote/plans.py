"""Plans: which part of a sample's way remote workers go (`config.Remote.plan`). Each is possible, or there is a reason in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.data import default_collate

from penstock.dataset.offers import ReadSeam, offered
from penstock.errors import ConfigError
from penstock.remote.permits import Permit
from penstock.sources.anywhere import local_path
from penstock.worker.prepare import Recipe

SAMPLES, BYTES, BATCHES, CUT = "samples", "bytes", "batches", "cut"


def possible(recipe: Recipe) -> Mapping[str, str]:
    """Return for each plan why it is impossible; "": it is possible."""
    return {
        SAMPLES: "",
        BYTES: no_bytes(offered(recipe.dataset).seam),
        BATCHES: no_batches(recipe),
        CUT: no_cut(recipe),
    }


def candidates(recipe: Recipe) -> tuple[str, ...]:
    """Return the plans that are possible, the likelier to win first."""
    reasons = possible(recipe)
    return tuple(name for name in (SAMPLES, CUT, BYTES, BATCHES) if not reasons[name])


def starting_plan(name: str, recipe: Recipe) -> str:
    """Return the plan to begin with; ConfigError if the named one is impossible."""
    if name == "auto":
        return SAMPLES
    if reason := possible(recipe)[name]:
        raise ConfigError(f"Remote(plan={name!r}) is impossible here: {reason}")
    return name


def no_bytes(seam: ReadSeam | None) -> str:
    if seam is None:
        return "the dataset does not say which files it reads, so only the dataset itself can read them"
    if any(local_path(name) is None for name in (*seam.files, seam.folder or "")):
        return "its bytes come over the network, where remote workers can read them themselves"
    return ""


def no_batches(recipe: Recipe) -> str:
    if not recipe.auto_collation:
        return "without batches of the loader there is nothing to collate"
    if recipe.collate_fn is not default_collate:
        return "a collate_fn of your own runs here"
    return ""


def no_cut(recipe: Recipe) -> str:
    """Samples are cut before the last step of their chain. No point is narrower: pixels are bytes there, and ops that enlarge images
    after they have made them small are rare."""
    offer = offered(recipe.dataset)
    if not recipe.stacks:
        return "samples with a collate_fn of your own are not cut"
    if offer.sample_bytes:
        return "with a GPU lane samples leave their worker before the last steps in any plan"
    if offer.tail is None:
        return "only image chains of our ops, or adopted ones, whose last step is ToDtype, Normalize or ToTensor can be cut"
    if not offer.tail.dtype.is_floating_point:
        return "finished samples are no larger than at any point before"
    return ""


def tail_for(recipe: Recipe) -> Any:
    """Return the last step that is done here for samples that are cut; None if they cannot be."""
    return None if no_cut(recipe) else offered(recipe.dataset).tail


def permit_for(recipe: Recipe) -> Permit | None:
    """Return which files remote workers may ask for; None if the dataset's bytes cannot be read here for them."""
    seam = offered(recipe.dataset).seam
    if seam is None or no_bytes(seam):
        return None
    source: Any = seam.holder.bytes_from
    files = {name: (str(local_path(name)), str(source.stamp(name))) for name in seam.files}
    return Permit(cwd=str(Path.cwd()), folder=seam.folder, suffixes=seam.suffixes, files=files)
