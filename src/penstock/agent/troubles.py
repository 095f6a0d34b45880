"""Messages for errors the engine itself finds. Each says what happened, what was tried, what to do."""

from __future__ import annotations

import json
import os

from penstock.core.events import Error, Trouble
from penstock.errors import ArenaFull, PenstockError, WorkerDied, WorkerHung, every_sample_failed
from penstock.measure.endings import exit_text
from penstock.wire.kinds import STAGES

OURS = tuple(f"{os.sep}penstock{os.sep}{room}{os.sep}" for room in ("worker", "wire", "dataset"))


def user_frames(stack: str) -> str:
    """Strip a fault handler's stack of everything below the user's code: our frames and the process start."""
    kept: list[str] = []
    below = False
    for line in stack.partition("Extension modules:")[0].strip().splitlines():
        if not line.startswith("  "):
            below = False
        elif below or any(ours in line for ours in OURS):
            below = True
            continue
        kept.append(line)
    return "\n".join(kept).strip()


def end_text(who: str, code: int | None, *, oom: str, verdict: str, stack: str) -> str:
    """Say how a worker ended and why: killed by us for silence, by the kernel for memory, or by its own crash."""
    if verdict:
        return f"{who} {verdict}"
    below = f" (stack below)\n{stack}" if stack else ""
    return f"{who} {exit_text(code)}{oom}{below}"


def grown_text(who: str, used_bytes: int, limit_bytes: int) -> str:
    return (
        f"{who} holds {used_bytes:,} bytes, over worker_memory={limit_bytes:,}: it is replaced when its tasks are done. Does "
        f"the dataset or a transform keep what it has made?"
    )


def after_text(*, streams: bool, surplus: bool) -> str:
    """Say what happens to an ended worker's place."""
    if streams:
        return "its share is lost"
    return "it was about to leave" if surplus else "it is replaced"


def apart(cause: str) -> tuple[str, str]:
    """Split a cause into its sentence and its stack, which goes behind everything else."""
    what, newline, stack = cause.partition("\n")
    return what, newline + stack


def oom_text(limit_bytes: int, used_bytes: int) -> str:
    return f" (out of memory: the kernel's OOM killer ended it; cgroup limit {limit_bytes:,} bytes, in use {used_bytes:,})"


def packed(error: Error) -> bytes:
    """Pack an error for the training process, which knows the batch's keys and words the message. A worker's exception is packed already."""
    return error if isinstance(error, bytes) else b"J" + json.dumps(error).encode()


def unpacked(data: bytes) -> Trouble | None:
    """Return the trouble, or None for a worker's exception."""
    return Trouble(*json.loads(data[1:])) if data[:1] == b"J" else None


def worded(trouble: Trouble, *, key: str, epoch: int, position: int, batch: int) -> PenstockError:
    """Return the error to raise for a trouble; `key` is the sample at fault, if one is."""
    cause, stack = apart(trouble.cause)
    stage = STAGES.get(trouble.ordinal, "prepare")
    if trouble.ordinal in STAGES:
        subject = f"batch {batch} of epoch {epoch}"
        look = "Run with num_workers=0 to see it happen in this process."
    else:
        subject = f"sample {key} (position {position} of epoch {epoch}, batch {batch})"
        look = (
            f"Look at it with loader.debug({key}, {epoch}), or leave such samples out with on_error='skip'."
        )
    match trouble.kind:
        case "died":
            return WorkerDied(
                f"DataLoader worker exited unexpectedly: {subject} took down {trouble.tries} workers in '{stage}'; the last, "
                f"{cause}. Each time a new worker was given its work. {look}{stack}"
            )
        case "hung":
            return WorkerHung(
                f"{subject} hung in '{stage}' on {trouble.tries} workers, each of which was killed and replaced; the last, "
                f"{cause}. Raise hang_timeout (or timeout) if it is merely slow. {look}{stack}"
            )
        case "start":
            return WorkerDied(
                f"DataLoader worker exited unexpectedly: one was lost {trouble.tries} times in a row, with nothing done; "
                f"the last, {cause}. Look at worker_init_fn and at what the dataset does first, or run with num_workers=0 to "
                f"see it happen in this process.{stack}"
            )
        case "stream":
            return WorkerDied(
                f"DataLoader worker exited unexpectedly while it iterated an iterable dataset: {cause}. What it had not "
                f"yielded is lost, since an iterable dataset cannot be asked again: give the dataset state_dict() and "
                f"load_state_dict(), or use a map-style dataset.{stack}"
            )
        case "memory" if cause:
            return ArenaFull(
                f"batch {batch} of epoch {epoch} needs {trouble.need_bytes:,} bytes of shared memory, and the system gives no "
                f"more than the {trouble.limit_bytes:,} there are ({cause}). Give the container more memory (docker: "
                f"--memory, --shm-size), or lower batch_size or prefetch_batches."
            )
        case "memory":
            return ArenaFull(
                f"batch {batch} of epoch {epoch} needs {trouble.need_bytes:,} bytes of shared memory, which do not fit into "
                f"{trouble.limit_bytes:,} beside the batches that you hold. Raise slab_bytes, lower batch_size, or let go of "
                f"batches earlier."
            )
    return every_sample_failed(int(key) if key.isdecimal() else key, "all workers", batch=batch, epoch=epoch)
