"""`penstock reuse plan`: where to split a chain of ops so that the first part's results are reused, and each split's cost and gain.
torch is imported only when the command runs."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.cli.table import aligned
from penstock.errors import ConfigError
from penstock.policy.diversity import EPOCHS
from penstock.policy.split import (
    MIN_DIVERSITY,
    MIN_LOG_RATIO,
    ChainOp,
    Reordering,
    Split,
    SplitChoice,
    Terms,
    choose,
    reorderings,
    splits,
)

if TYPE_CHECKING:
    from penstock.pipeline.audio import AudioFolder
    from penstock.pipeline.op_costs import CutCosts
    from penstock.pipeline.staged import StagedDataset

SAMPLES = 64
PLAN = """\
Measures what each op of a staged dataset's chain costs, and shows for every place where the chain could be cut what it would save to
keep what the ops before it make and use it several times, and how diverse samples would stay. Nothing is kept or changed."""
EPILOG = """\
examples:
  penstock reuse plan train.py:dataset --times 3
  penstock reuse plan my_package.data:make_dataset --times 2 --min-diversity 0.9
  penstock reuse plan chains.py:augment --photos /data/train --figure diversity.svg"""


def add_reuse(commands: Any) -> None:
    """Add the command and its options."""
    reuse = commands.add_parser(
        "reuse", help="use partly prepared samples several times: what it would bring"
    )
    actions = reuse.add_subparsers(dest="action", required=True, metavar="action")
    plan_ = actions.add_parser(
        "plan",
        help="where a chain could be cut, what that saves and how diverse samples stay",
        description=PLAN,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    plan_.add_argument(
        "target",
        help="module:object or file.py:object: a staged dataset, a function that makes one, or with --photos a chain of ops",
    )
    plan_.add_argument(
        "--photos", metavar="DIR", help="images to measure a chain with, in class folders or not"
    )
    plan_.add_argument("--times", type=int, default=3, metavar="R", help="uses of each kept sample (3)")
    plan_.add_argument(
        "--min-diversity",
        type=float,
        default=MIN_DIVERSITY,
        metavar="SHARE",
        help=f"of standard augmentation's different samples, the share that must be left ({MIN_DIVERSITY})",
    )
    plan_.add_argument(
        "--min-log-ratio",
        type=float,
        default=MIN_LOG_RATIO,
        metavar="SHARE",
        help=f"least log|A_F| / log|A| of what is drawn anew ({MIN_LOG_RATIO})",
    )
    plan_.add_argument("--epochs", type=int, default=EPOCHS, metavar="K", help=f"of the training ({EPOCHS})")
    plan_.add_argument(
        "--samples", type=int, default=SAMPLES, metavar="N", help=f"samples to measure ({SAMPLES})"
    )
    plan_.add_argument("--figure", metavar="FILE.svg", help="draw diversity over R and log|A_F| / log|A|")
    plan_.set_defaults(act=plan)


def plan(options: argparse.Namespace) -> int:
    terms = Terms(
        times=options.times,
        min_diversity=options.min_diversity,
        epochs=options.epochs,
        min_log_ratio=options.min_log_ratio,
    )
    if options.samples < 1:
        raise ConfigError(f"--samples must be at least 1, got {options.samples}")
    dataset = dataset_of(options.target, options.photos)
    from penstock.pipeline.chain import Chain
    from penstock.pipeline.op_costs import parts_of

    costs = measured(dataset, options.samples)
    parts, by_split = parts_of(dataset.chain, costs), costs.by_split()
    table, choice = splits(parts, by_split, terms), choose(parts, by_split, terms)
    better = reorderings(parts, terms, before_s=costs.partial_s[0], read_s=costs.copy_s[-1])
    print("\n".join([*head(dataset, costs, terms), "", *op_lines(parts, costs), ""]))
    decoded = "decoded image" if isinstance(dataset.chain, Chain) else "waveform"
    lines = [*split_lines(table, costs, choice, decoded), "", auto_line(choice, decoded)]
    print("\n".join([*lines, *order_lines(better)]))
    if options.figure is not None:
        draw(options.figure, table, parts, terms, choice)
    return 0


def measured(dataset: StagedDataset | AudioFolder, samples: int) -> CutCosts:
    """Measure the costs, with a line of progress on standard error."""
    import torch

    from penstock.pipeline.op_costs import cut_costs
    from penstock.report.display import make_bar

    torch.set_num_threads(1)  # as in a worker; time is counted in this thread
    bar = make_bar("text", "measuring", min(samples, len(dataset)))
    try:
        return cut_costs(dataset, samples, lambda done, _: bar.show(done, "samples"))
    finally:
        bar.close()


# ---- input


def dataset_of(target: str, photos: str | None) -> StagedDataset | AudioFolder:
    from penstock.pipeline.audio import AudioFolder
    from penstock.pipeline.staged import StagedDataset

    found = staged(made(found_in(target)))
    dataset: StagedDataset | AudioFolder
    if isinstance(found, (StagedDataset, AudioFolder)):
        if photos is not None:
            raise ConfigError(f"{target} is a dataset with samples of its own: leave --photos out")
        dataset = found
    elif photos is not None:
        dataset = with_photos(photos, found)
    else:
        kind = type(found).__name__
        raise ConfigError(
            f"{target} is a {kind}, not a staged dataset: name a penstock.ImageFolder, TarDataset, AudioFolder or StagedDataset, whose chain is "
            "of penstock.transforms; or a chain of such ops, with --photos DIR"
        )
    if not len(dataset):
        raise ConfigError(f"{target} has no samples to measure")
    return dataset


def staged(found: Any) -> Any:
    """Return torchvision's ImageFolder as a loader with `reuse=` adopts it; anything else unchanged."""
    from penstock.pipeline.adopt import adopted
    from penstock.pipeline.adopted_images import AdoptedImages

    folder = adopted(found)
    return found if folder is None else AdoptedImages(folder)


def found_in(target: str) -> Any:
    """Return the object named by `module:object` or `file.py:object`."""
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise ConfigError(f"name what to measure as module:object or file.py:object, got {target!r}")
    found: Any = file_module(place) if place.endswith(".py") else named_module(place)
    for part in name.split("."):
        if not hasattr(found, part):
            has = ", ".join(entry for entry in vars(found) if not entry.startswith("_")) or "nothing"
            raise ConfigError(f"{place} has no {part!r}; it has {has}")
        found = getattr(found, part)
    return found


def file_module(place: str) -> ModuleType:
    path = Path(place).resolve()
    if not path.is_file():
        raise ConfigError(f"there is no file {place!r} in {Path.cwd()}")
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def named_module(place: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (place == exc.name or place.startswith(f"{exc.name}.")):
            raise ConfigError(
                f"there is no module {place!r}: is it installed, or in {Path.cwd()}? A file is named as file.py:object"
            ) from exc
        raise


def made(found: Any) -> Any:
    """Call a function without parameters; return anything else unchanged."""
    if inspect.isfunction(found) and not inspect.signature(found).parameters:
        return found()
    return found


def with_photos(folder: str, chain: Any) -> StagedDataset:
    """Combine a chain with a folder's images: by class as in ImageFolder, or without classes."""
    from penstock.pipeline.staged import EXTENSIONS, ImageFolder, StagedDataset
    from penstock.sources.sources import WholeFiles

    if not Path(folder).is_dir():
        raise ConfigError(f"--photos {folder}: there is no such folder")
    if any(path.is_dir() for path in Path(folder).iterdir()):
        try:
            return ImageFolder(folder, chain)
        except FileNotFoundError as exc:
            raise ConfigError(f"--photos {folder}: {exc}") from exc
    files = sorted(str(path) for path in Path(folder).iterdir() if path.name.lower().endswith(EXTENSIONS))
    if not files:
        raise ConfigError(f"--photos {folder}: it holds no images ({', '.join(EXTENSIONS)})")
    read = WholeFiles().read
    return StagedDataset(lambda index: (read(files[index]), 0), chain, len(files))


# ---- output


def head(dataset: StagedDataset | AudioFolder, costs: CutCosts, terms: Terms) -> list[str]:
    return [
        f"{type(dataset).__name__}: {len(dataset):,} samples, {costs.samples} measured ({costs.size[0]} x {costs.size[1]}, median)",
        f"each kept sample used {terms.times} times, {terms.epochs} epochs; preparing anew costs {micro(costs.whole_s)} per sample and core",
    ]


def op_lines(parts: Sequence[ChainOp], costs: CutCosts) -> list[str]:
    rows = [
        ("", "op", "done anew", "outcomes", ""),
        ("", "read and decode", micro(costs.partial_s[0]), "1", ""),
    ]
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        why = "" if last else part.anew
        rows.append(("" if last else str(number), part.name, micro(part.cost_s), counted(part.outcomes), why))
    return aligned(rows, "><>><")


def split_lines(table: Sequence[Split], costs: CutCosts, choice: SplitChoice, decoded: str) -> list[str]:
    rows: list[tuple[str, ...]] = [
        ("split", "keeps", "of", "made in", "per use", "saved", "log ratio", "diversity", "speed-up", "")
    ]
    for split in table:
        is_taken = choice.split is not None and choice.split.at == split.at
        rows.append(
            (
                str(split.at),
                f"behind {split.behind}" if split.at else decoded,
                f"{costs.kept_bytes[split.at] / 1024:,.0f} KiB",
                micro(split.partial_s),
                micro(split.final_s + costs.copy_s[split.at]),
                f"{split.saved_s / costs.whole_s:.0%}",
                f"{split.log_ratio:.2f}",
                f"{split.diversity:.3f}",
                f"{split.speed_up:.2f}x",
                "<- auto" if is_taken else split.refused,
            )
        )
    return aligned(rows, "><>>>>>>><")


def auto_line(choice: SplitChoice, decoded: str) -> str:
    if choice.split is None:
        return f"auto keeps nothing: {choice.why}"
    what = f"{decoded}s" if not choice.split.at else f"what is there behind {choice.split.behind}"
    return f"auto takes split {choice.split.at} and keeps {what}: {choice.why}"


def order_lines(better: Sequence[Reordering]) -> list[str]:
    if not better:
        return [
            "no exchange of two neighbours that leaves the pixels of a draw as they are would be clearly better"
        ]
    return [
        f"with {one.second} before {one.first} (the same pixels for the same draws): {one.gain:.2f} times as fast, "
        + (f"kept behind {one.choice.split.behind}" if one.choice.split is not None else "")
        for one in better
    ]


def micro(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} µs"


def counted(outcomes: int) -> str:
    return f"{outcomes:,}" if outcomes < 10**9 else f"10^{math.log10(outcomes):.1f}"


def draw(
    file: str, table: Sequence[Split], parts: Sequence[ChainOp], terms: Terms, choice: SplitChoice
) -> None:
    from penstock.report.diversity import figure

    every = math.prod(part.outcomes for part in parts)
    picture = figure(table, every, terms, None if choice.split is None else choice.split.at)
    try:
        Path(file).write_text(picture, encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"--figure {file} cannot be written: {exc}") from exc
    print(f"the figure is in {file}", file=sys.stderr)
