"""The exception tree.

Every error names what failed (sample, stage, place), why (signal, errno, exit code), what was tried and what to do next. Errors cross
process boundaries, so each survives pickling; a cause does not, so its traceback travels as text. A user's own exception keeps its type
(torch's rule) and gets our facts as `__notes__`.
"""

from __future__ import annotations


class PenstockError(RuntimeError):
    """Base of all errors that Penstock raises itself."""


class ConfigError(PenstockError, ValueError):
    """An argument or option has a value that cannot work."""


class StateError(PenstockError, ValueError):
    """A checkpoint cannot be loaded here."""


class SampleError(PenstockError):
    """One sample could not be prepared."""

    def __init__(self, index: object, stage: str, lane: str, detail: str) -> None:
        super().__init__(f"sample {index!r} failed in '{stage}' on {lane}: {detail}")
        self.index, self.stage, self.lane, self.detail = index, stage, lane, detail

    def __reduce__(self) -> tuple[type, tuple[object, str, str, str]]:
        return type(self), (self.index, self.stage, self.lane, self.detail)


def every_sample_failed(index: object, lane: str, *, batch: int, epoch: int) -> SampleError:
    """Return the error for a batch that `on_error="skip"` left empty."""
    detail = (
        f"and so did every sample of batch {batch} of epoch {epoch}; loader.skipped() lists them with their errors. A batch is "
        f"never left out, so that all ranks deliver equally many: mend or remove the samples, or use on_error='replace'"
    )
    return SampleError(index, "prepare", lane, detail)


class TooManySkipped(PenstockError):
    """`on_error` skipped or replaced more samples than `max_skipped` allows."""


class WorkerDied(PenstockError):
    """A worker process died repeatedly on the same work."""


class WorkerHung(PenstockError):
    """A worker hung on a sample, and so did its replacement."""


class AgentDied(PenstockError):
    """The agent process died more often than it may be restarted."""


class ArenaFull(PenstockError):
    """A batch does not fit into the loader's shared memory."""


class DeviceLost(PenstockError):
    """The GPU failed permanently while preparing samples."""


class NodeUnavailable(PenstockError):
    """The node process, which the training processes of a job share on each machine, cannot be had, is gone or is silent."""


class ServiceFailed(PenstockError):
    """A service of the node process did not start, ended at once or did not answer."""


class SlowPathWarning(UserWarning):
    """A component that makes samples much faster is missing; the message says how to get it. Issued once per process."""


class MissingExtra(PenstockError, ImportError):
    """An optional dependency is not installed; the message names the extra."""
