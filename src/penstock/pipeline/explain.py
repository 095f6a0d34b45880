"""Explain what a loader does to a sample, step by step: the cost of each step here, where it could run, and why not elsewhere."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch

from penstock.dataset.unfinished import finished
from penstock.kernels.forms import supported
from penstock.pipeline.adopt import AdoptedFolder, verdict
from penstock.pipeline.annotated import AnnotatedDataset
from penstock.pipeline.audio import AudioFolder
from penstock.pipeline.chain import Chain, calls, executed
from penstock.pipeline.header import BadImage
from penstock.pipeline.op_costs import op_costs
from penstock.pipeline.pieces import pieces_of
from penstock.pipeline.staged import StagedDataset
from penstock.pipeline.their_draws import Draw
from penstock.plan.seeds import op_seed
from penstock.transforms.audio import AudioOp, Function
from penstock.transforms.base import Op, plain
from penstock.transforms.draws import Draws
from penstock.transforms.foreign import Foreign
from penstock.transforms.steps import Program

LOOKED_AT = 12
"""Samples prepared to measure costs."""
CPU, BOTH, PYTHON = "cpu", "cpu, gpu", "cpu, Python only"
TRIED = 32
"""Draws of an op tested for a step without a GPU kernel."""
TRIED_ON = (4096, 4096)
"""Larger than any crop. No pixels are touched."""
YOURS = "a function of yours: no other lane can run it"


@dataclass(frozen=True, slots=True)
class ExplainedStep:
    name: str
    says: str
    seconds: float
    runs_on: str
    why: str = ""


def explained(dataset: Any, *, lane: str = "") -> str:
    """Return the text of `loader.explain()`. `lane`: a line about the GPU's share."""
    if isinstance(dataset, (StagedDataset, AudioFolder)) and not len(dataset):
        return f"{type(dataset).__name__}: no samples, so there is nothing to explain."
    adopted, reason = verdict(dataset)
    if adopted is not None:
        stages = list(adopted_stages(adopted))
        head = f"{type(dataset).__name__} of torchvision, adopted: {len(dataset):,} samples, torchvision's draws and pixels"
    elif isinstance(dataset, (StagedDataset, AudioFolder)):
        sound = isinstance(dataset, AudioFolder)
        stages = list(sound_stages(dataset) if isinstance(dataset, AudioFolder) else staged_stages(dataset))
        what = "recordings" if sound else "samples"
        head = f"{type(dataset).__name__}: {len(dataset):,} {what}, chain {dataset.chain.identity}"
    else:
        return f"{type(dataset).__name__}: not staged, so its samples are prepared as they are, by calling it. {reason}"
    total = sum(stage.seconds for stage in stages) or 1.0
    lines = [head]
    for stage in stages:
        if not stage.runs_on:
            lines.append(f"  {stage.name}:")
            continue
        share = f"{stage.seconds * 1e6:8,.0f} µs {stage.seconds / total:4.0%}"
        why = f"  ({stage.why})" if stage.why else ""
        lines.append(f"  {stage.name:<26} {share}  {stage.runs_on:<16} {stage.says}{why}".rstrip())
    lines.append(
        f"  {'together':<26} {total * 1e6:8,.0f} µs per sample and core, over {min(LOOKED_AT, len(dataset))} samples"
    )
    lines.append(f"  {bytes_line(adopted or dataset)}")
    if lane:
        lines.append(f"  {lane}")
    return "\n".join(lines)


def bytes_line(dataset: StagedDataset | AudioFolder | AdoptedFolder) -> str:
    """Say where a dataset's bytes come from, and what follows from that."""
    if isinstance(dataset, StagedDataset) and not dataset.is_located:
        return (
            "bytes: from a read of yours, which does not say where they are: no cache and no other machine can read them. "
            "A subclass of StagedDataset with locate(index) can say so"
        )
    local = dataset.bytes_from.is_local(dataset.locate(0)[0])
    where = "local files" if local else "files over the network"
    return f"bytes: located in {where}, so that a cache or another machine could read them"


def some(length: int) -> list[int]:
    """Return sample indices spread over the dataset."""
    count = min(LOOKED_AT, length)
    return [at * length // count for at in range(count)]


def staged_stages(dataset: StagedDataset) -> Iterator[ExplainedStep]:
    costs, looked_at = defaultdict[str, float](float), some(len(dataset))
    for index in looked_at[:1]:
        deque(pieces_of(dataset, index), maxlen=0)  # warm-up, not counted: it loads libraries
    for index in looked_at:
        for piece in pieces_of(dataset, index):
            costs[piece.stage] += piece.seconds / len(looked_at)
    yield ExplainedStep("read", "", costs["read"], CPU)
    why = "a decoder of yours" if dataset.decoder is not None else ""
    yield ExplainedStep("decode", "", costs["decode"], CPU if why else BOTH, why)
    yield from chain_stages(dataset.chain, costs, [""])
    if isinstance(dataset, AnnotatedDataset):
        yield ExplainedStep("masks and boxes", "", costs["targets"], CPU)


def sound_stages(dataset: AudioFolder) -> Iterator[ExplainedStep]:
    before_s, *each = op_costs(dataset, LOOKED_AT)
    yield ExplainedStep("read, decode, resample", "", before_s, CPU)
    for op, seconds in zip(dataset.chain.ops, each, strict=True):
        python = isinstance(op, Function)
        says = "" if python else parameters(op)
        yield ExplainedStep(op.name, says, seconds, PYTHON if python else CPU, YOURS if python else "")


def chain_stages(chain: Chain, costs: Mapping[str, float], places: list[str]) -> Iterator[ExplainedStep]:
    """Yield the ops and the tail of a chain. `places`: where it occurs (identical crops), costs added up."""
    times = f"{len(places)} x " if len(places) > 1 else ""

    def together(stage: str) -> float:
        return sum(costs[f"{place}{stage}"] for place in places)

    for number, op in enumerate(chain.ops):
        python, seconds = calls(op), together(str(number))
        if python:
            why = "not an op of ours: it is called as it is" if isinstance(op, Foreign) else YOURS
        else:
            why = without_kernel(op)
        where = PYTHON if python else CPU if why else BOTH
        yield ExplainedStep(times + op.name, parameters(op), seconds, where, why)
    for view, numbers in alike(chain.views):
        first, last = numbers[0] + 1, numbers[-1] + 1
        yield ExplainedStep(f"crop {first}" if first == last else f"crops {first} to {last}", "", 0.0, "")
        yield from chain_stages(view, costs, [f"{place}{number}:" for place in places for number in numbers])
    if not chain.views and not chain.ends_elsewhere:
        yield ExplainedStep(
            f"{times}to tensor", str(chain.tail.dtype).removeprefix("torch."), together("tail"), BOTH
        )


def without_kernel(op: Op) -> str:
    """Say what an op may draw that the GPU kernels cannot run; "" if they run everything."""
    why = first_refusal(op.draw(Draws(op_seed(number, op.name, 0)), TRIED_ON) for number in range(TRIED))
    return f"{'not always' if op.is_random else 'not'} on the GPU: {why}" if why else ""


def without_their_kernel(op: Any, draw: Draw) -> str:
    """The same for an adopted transform. Restores torch's generator."""
    state = torch.default_generator.get_state()
    try:
        why = first_refusal(draw(op, TRIED_ON) for _ in range(TRIED))
    except ValueError:  # for example a crop that does not fit: the samples will report it
        return ""
    finally:
        torch.default_generator.set_state(state)
    return f"not always on the GPU: {why}" if why else ""


def first_refusal(programs: Iterable[Program]) -> str:
    return next((why for program in programs for step in program if (why := supported(step))), "")


def alike(views: Sequence[Chain]) -> list[tuple[Chain, list[int]]]:
    """Group neighbouring views with the same identity, with their numbers."""
    found: list[tuple[Chain, list[int]]] = []
    for number, view in enumerate(views):
        if found and found[-1][0].identity == view.identity:
            found[-1][1].append(number)
        else:
            found.append((view, [number]))
    return found


def adopted_stages(folder: AdoptedFolder) -> Iterator[ExplainedStep]:
    clock, spent, chain = time.thread_time, defaultdict[int, list[float]](list), folder.chain
    for index in some(len(folder)):
        state = torch.default_generator.get_state()
        times = [clock()]
        data = folder.read(index)
        times.append(clock())
        try:
            image = executed([], folder.encoded(data))
        except BadImage:
            continue  # torchvision will decode it
        times.append(clock())
        finished((chain.run(image, lambda _, times=times: times.append(clock())),))  # type: ignore[misc]
        times.append(clock())
        torch.default_generator.set_state(state)
        for at, (one, other) in enumerate(pairwise(times)):
            spent[at].append(other - one)
    costs = defaultdict[int, float](float, {at: fmean(each) for at, each in spent.items()})
    yield ExplainedStep("read", "", costs[0], CPU)
    yield ExplainedStep("decode", "", costs[1], BOTH)
    for at, (op, draw) in enumerate(chain.ops):
        if draw is None:
            where = PYTHON
            why = "not a transform that we know, or with parameters that we do not: it is called as it is"
        else:
            why = without_their_kernel(op, draw)
            where = CPU if why else BOTH
        yield ExplainedStep(type(op).__name__, "", costs[2 + at], where, why)
    behind = ", ".join(type(op).__name__ for op in chain.after)
    kind = str(chain.tail.dtype).removeprefix("torch.") if chain.tail is not None else ""
    why = f"{behind}: called on the finished tensor" if behind else ""
    yield ExplainedStep("to tensor", kind, costs[2 + len(chain.ops)], PYTHON if behind else BOTH, why)


def parameters(op: Op | AudioOp) -> str:
    _, *found = op.identity()
    return ", ".join(f"{name}={plain(value)}" for name, value in found)
