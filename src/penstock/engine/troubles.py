"""The words for troubles that the engine itself finds. Every message says what happened, what was tried, what to do."""

from __future__ import annotations

import json
import os
import signal

from penstock import errors
from penstock.engine.events import Trouble

OURS = f"{os.sep}penstock{os.sep}lanes{os.sep}"


def exit_text(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "ended for an unknown reason"
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"exited with code {code}"


def user_frames(stack: str) -> str:
    """A stack as the fault handler wrote it, without what lies below the user's code: frames of ours and of the start."""
    kept: list[str] = []
    below = False
    for line in stack.partition("Extension modules:")[0].strip().splitlines():
        if not line.startswith("  "):
            below = False
        elif below or OURS in line:
            below = True
            continue
        kept.append(line)
    return "\n".join(kept).strip()


def apart(cause: str) -> tuple[str, str]:
    """The sentence of a cause, and its stack as lines to put behind everything else."""
    what, newline, stack = cause.partition("\n")
    return what, newline + stack


def oom_text(limit_bytes: int, used_bytes: int) -> str:
    return f" (out of memory: the kernel's OOM killer ended it; cgroup limit {limit_bytes:,} bytes, in use {used_bytes:,})"


def word(trouble: Trouble, *, key: str, epoch: int, position: int, batch: int) -> bytes:
    """The error as the training process will raise it: JSON of its class and text."""
    cause, stack = apart(trouble.cause)
    sample = f"sample {key} (position {position} of epoch {epoch}, batch {batch})"
    match trouble.kind:
        case "died":
            name, text = (
                "WorkerDied",
                (
                    f"DataLoader worker exited unexpectedly: {sample} took down {trouble.tries} workers; the last one "
                    f"{cause}. The other workers were given its work each time. Look at the sample with "
                    f"loader.debug({key}, {epoch}), or leave such samples out with on_error='skip'."
                ),
            )
        case "hung":
            name, text = (
                "WorkerHung",
                (
                    f"{sample} was silent for longer than hang_timeout on {trouble.tries} workers, each of which was "
                    f"killed and replaced; the last one {cause}. Raise hang_timeout if the sample is merely slow, "
                    f"look at it with loader.debug({key}, {epoch}), or leave it out with on_error='skip'."
                ),
            )
        case "start":
            name, text = (
                "WorkerDied",
                (
                    f"DataLoader worker exited unexpectedly: a worker died {trouble.tries} times in a row without "
                    f"finishing anything; the last one {cause}. Look at worker_init_fn and the dataset's "
                    f"constructor, or run with num_workers=0 to see the error in this process."
                ),
            )
        case "stream":
            name, text = (
                "WorkerDied",
                (
                    f"DataLoader worker exited unexpectedly while it iterated an iterable dataset ({cause}). What "
                    f"it had not yielded is lost: an iterable dataset cannot be asked again. Give the dataset state_dict() "
                    f"and load_state_dict(), or use a map-style dataset."
                ),
            )
        case "memory" if cause:
            name, text = (
                "ArenaFull",
                (
                    f"batch {batch} of epoch {epoch} needs {trouble.need_bytes:,} bytes of shared memory, and the system gives "
                    f"no more than the {trouble.limit_bytes:,} there are ({cause}). Give the container more memory (docker: "
                    f"--memory, --shm-size), or lower batch_size or prefetch_batches."
                ),
            )
        case "memory":
            name, text = (
                "ArenaFull",
                (
                    f"batch {batch} of epoch {epoch} needs {trouble.need_bytes:,} bytes of shared memory, which do not fit "
                    f"into {trouble.limit_bytes:,} beside the batches that you hold. Raise slab_bytes, lower batch_size, or "
                    f"let go of batches earlier."
                ),
            )
        case _:
            name, text = (
                "SampleError",
                (
                    f"every sample of batch {batch} of epoch {epoch} failed; loader.skipped() lists them with their errors. "
                    f"A batch is never left out, so that all ranks deliver equally many."
                ),
            )
    return b"J" + json.dumps({"type": name, "text": text + stack}).encode()


def unword(data: bytes) -> errors.PenstockError:
    facts = json.loads(data[1:])
    kind = getattr(errors, facts["type"])
    error: errors.PenstockError = kind.__new__(kind)
    RuntimeError.__init__(error, facts["text"])
    return error
