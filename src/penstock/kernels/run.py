"""Run tasks on a device: one copy of the table, then the same few launches, whatever the programs are.

Rule 1: after `warm_up` a task allocates, compiles and captures nothing on the device. A task of another shape is launched kernel by kernel.
Rule 2: all work goes to the current stream, the same for all tasks. Nothing here waits for the device, except for a table still being copied when
        RING tasks are in flight.
Rule 3: images, scratch and batch must stay unchanged until the stream has passed the task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from penstock.errors import ConfigError, MissingExtra
from penstock.kernels import words as w
from penstock.kernels.table import Rows, Sample, rows_of
from penstock.transforms.tail import Tail, level_table

RING = 4
"""Tables in flight to the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of an executor."""

    rows: int = 64
    """Rows of a task: one for each sample, five where images are mixed."""
    table_bytes: int = 1 << 18
    """A sample's rows take about a kilobyte."""
    scratch_bytes: int = 64 << 20
    """Images between passes, for all samples of a task. 0: scratch comes with each task."""
    slots: int = 256
    """Statistics slots, 3 KiB each."""
    graphs: int = 32
    """Most captured launches."""
    block: int = 512
    """Pixels a program processes at once."""
    warps: int = 4
    programs: int = 2048
    """Target number of programs in a launch: some for each processor of a large GPU."""

    def __post_init__(self) -> None:
        for name in ("rows", "table_bytes", "slots", "block", "warps", "programs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}")
        if self.block & (self.block - 1):
            raise ConfigError(f"block must be a power of two, got {self.block}")


class TaskTooLarge(ValueError):
    """The task exceeds the executor's buffers: make it smaller."""


class Executor:
    """Runs tasks of one kind: one tail, one batch shape, one device. Called from one thread on one stream: tasks reuse the same buffers."""

    def __init__(self, like: torch.Tensor, tail: Tail, limits: Limits | None = None) -> None:
        """`like`: a batch as it will be written: its sample's shape, strides, dtype and device count."""
        self.limits = limits = limits or Limits()
        self.prepare, self.run_round = require_triton()
        self.device, self.dtype = like.device, like.dtype
        self.shape, self.strides = tuple(like.shape[1:]), tuple(like.stride()[1:])
        if self.shape[0] not in (1, 3):
            raise ConfigError(f"the kernels write images of 1 or 3 channels, not {self.shape[0]}")
        self.tail = tail_table(tail, self.dtype, self.shape[0]).to(self.device)

        def static(count: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(count, dtype=dtype, device=self.device)

        self.table = static(limits.table_bytes // w.WORD, torch.int64)
        self.counts, self.sums = static(limits.slots * 768, torch.int32), static(limits.slots, torch.int64)
        self.luts = static(
            max(rows * parts_of(rows, limits) for rows in shapes(limits.rows)) * 768, torch.uint8
        )
        self.scratch = static(limits.scratch_bytes, torch.uint8)
        on_gpu = self.device.type == "cuda"
        self.staging = [Staging(limits.table_bytes, pinned=on_gpu) for _ in range(RING)]
        self.turn = 0
        self.graphs: dict[tuple[int, int], Any] = {}

    @property
    def static_bytes(self) -> int:
        """Device memory held as long as this exists."""
        held = (self.table, self.counts, self.sums, self.luts, self.scratch, self.tail)
        return sum(tensor.nbytes for tensor in held)

    def run(self, samples: Sequence[Sample], batch: torch.Tensor, scratch: torch.Tensor | None = None) -> int:
        """Launch a task; return the number of launches. `scratch`: uint8 memory for this task instead of our own."""
        for layout, _, _ in samples:
            if layout.size != self.shape[1:]:
                raise ValueError(f"a sample of {layout.size} for a batch of {self.shape[1:]}")
        return self.run_rows(rows_of(samples), batch, scratch)

    def run_rows(self, rows: Rows, batch: torch.Tensor, scratch: torch.Tensor | None = None) -> int:
        """Launch a task whose samples all have the batch's size."""
        if (
            batch.dtype != self.dtype
            or tuple(batch.shape[1:]) != self.shape
            or batch.stride()[1:] != self.strides
        ):
            raise ValueError(f"made for batches of {self.shape} {self.dtype} strides {self.strides}")
        staging = self.staging[self.turn]
        self.turn = (self.turn + 1) % RING
        staging.wait()
        count, used = self.write(staging, rows, batch, self.scratch if scratch is None else scratch)
        self.table[: used // w.WORD].copy_(staging.words[: used // w.WORD], non_blocking=True)
        staging.sent()
        graph = self.graphs.get((count, rows.rounds))
        if graph is not None:
            graph.replay()
            return rows.rounds + 1
        return self.launch(count, rows.rounds)

    def write(
        self, staging: Staging, rows: Rows, batch: torch.Tensor, scratch: torch.Tensor
    ) -> tuple[int, int]:
        """Write the task's table; return the number of rows launched, and the bytes used."""
        count, limits = len(rows.data), self.limits
        if not 0 < count <= limits.rows:
            raise TaskTooLarge(f"{count} rows, of 1 to {limits.rows}")
        if not 0 <= min(rows.places) <= max(rows.places) < len(batch):
            raise ValueError(f"slot {min(rows.places)} to slot {max(rows.places)} of {len(batch)}")
        if rows.scratch_bytes > scratch.nbytes or rows.slots > limits.slots:
            raise TaskTooLarge(
                f"{rows.scratch_bytes} bytes of scratch and {rows.slots} slots; there are {scratch.nbytes}, {limits.slots}"
            )
        step = batch.stride(0) * batch.element_size()
        data, lengths = rows.joined(batch.data_ptr(), step, scratch.data_ptr())
        launched = next(shape for shape in shapes(limits.rows) if shape >= count)
        begin = launched + w.HEAD_WORDS
        used = w.WORD * begin + len(data)
        if used > limits.table_bytes:
            raise TaskTooLarge(f"the table has more than {limits.table_bytes} bytes")
        words = accumulate(lengths[:-1], lambda at, length: at + length // w.WORD, initial=begin)
        # Missing rows are read as an empty one.
        staging.index[:begin] = [*words, *[launched] * (launched - count), *[0] * w.HEAD_WORDS]
        staging.view[w.WORD * begin : used] = data
        return launched, used

    def launch(self, rows: int, rounds: int) -> int:
        """Launch the task in the table, kernel by kernel."""
        words, reals = self.table, self.table.view(torch.float64)
        block, parts = self.limits.block, parts_of(rows, self.limits)
        options = {"num_warps": self.limits.warps, "enable_fp_fusion": False}
        statistics = (self.counts, self.sums)
        self.prepare[(4, rounds, rows)](words, reals, *statistics, block=128, **options)
        for number in range(rounds):
            self.run_round[(parts, rows)](
                *(words, reals, *statistics, self.luts, self.tail, number, *self.strides),
                channels=self.shape[0],
                block=block,
                **options,
            )
        return rounds + 1

    def warm_up(self, rounds: Iterable[int] = range(1, 6), rows: Iterable[int] = ()) -> None:
        """Compile the kernels and capture launches for these rounds and rows (default: all that fit), on the current stream, which must not be the
        default one."""
        if self.device.type != "cuda":
            return
        self.table.zero_()
        self.table[:1] = 1  # a row without passes
        stream = torch.cuda.current_stream(self.device)
        wanted = [(shape, number) for shape in rows or shapes(self.limits.rows) for number in rounds]
        for key in wanted[: self.limits.graphs]:
            if key in self.graphs:
                continue
            self.launch(*key)  # compile before capturing
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Capture only this thread's calls: training goes on in others.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self.launch(*key)
            finally:
                graph.capture_end()
            self.graphs[key] = graph


class Staging:
    """Host memory from which a table is copied."""

    def __init__(self, size: int, *, pinned: bool) -> None:
        self.words = torch.zeros(size // w.WORD, dtype=torch.int64, pin_memory=pinned)
        self.index = self.words.numpy()
        self.view = self.index.data.cast("B")
        self.event: Any = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        if self.event is not None:
            self.event.synchronize()

    def sent(self) -> None:
        if self.event is not None:
            self.event.record()


def shapes(most: int) -> list[int]:
    """Return the row counts that tasks are launched with."""
    found = [1]
    while found[-1] < most:
        found.append(min(most, 2 * found[-1]))
    return found


def parts_of(rows: int, limits: Limits) -> int:
    """Return the programs for each row."""
    return 1 if interpreted() else max(1, min(256, limits.programs // rows))


def interpreted() -> bool:
    """Return whether kernels run on the CPU, as Python: there more programs are only slower."""
    import triton

    return bool(triton.knobs.runtime.interpret)


def tail_table(tail: Tail, dtype: torch.dtype, channels: int) -> torch.Tensor:
    """Return the batch value of each level: the CPU's numbers, in the batch's dtype."""
    if not tail.dtype.is_floating_point:
        if dtype != torch.uint8:
            raise ConfigError(f"the chain ends in uint8, the batch is {dtype}")
        return torch.arange(256, dtype=torch.uint8).repeat(3)
    table = level_table(tail.scale, tail.mean, tail.std, channels)
    return torch.from_numpy(np.ascontiguousarray(table)).to(dtype).flatten()


def require_triton() -> tuple[Any, Any]:
    try:
        import triton  # noqa: F401
    except ImportError as exc:
        raise MissingExtra("preparing samples on the GPU needs Triton: pip install 'penstock[gpu]'") from exc
    from penstock.kernels.ops import run_round
    from penstock.kernels.weights import prepare

    return prepare, run_round
