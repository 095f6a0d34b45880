"""Golden tests: every message, word for word. It says what failed and where, why, what was tried and what to do next.

Whoever changes a message changes it here too, and reads it once more as its reader will. What is said in a real run is in
`test_messages_of_runs.py`.
"""

from __future__ import annotations

import os
import pickle

import pytest
import torch

from penstock import DataLoader, errors
from penstock.agent.troubles import (
    end_text,
    grown_text,
    oom_text,
    packed,
    unpacked,
    user_frames,
    worded,
)
from penstock.core.events import Trouble
from penstock.epochs.feed import PLACE_LOST
from penstock.errors import PenstockError, SampleError
from penstock.measure.endings import exit_text
from penstock.wire.arena import full_text
from penstock.wire.kinds import COLLATING, FETCHING
from tests.fault.datasets import Drawn

AT = {"key": "9", "epoch": 3, "position": 17, "batch": 4}


# ---- what the engine finds itself

TROUBLES = {
    Trouble("died", 1, 3, "worker 2 (pid 71) was killed by SIGKILL"): (
        "WorkerDied",
        (
            "DataLoader worker exited unexpectedly: sample 9 (position 17 of epoch 3, batch 4) took down 3 workers in 'prepare'; "
            "the last, worker 2 (pid 71) was killed by SIGKILL. Each time a new worker was given its work. Look at it "
            "with loader.debug(9, 3), or leave such samples out with on_error='skip'."
        ),
    ),
    Trouble(
        "died", 1, 3, "worker 2 (pid 71) was killed by SIGSEGV (stack below)\nFatal Python error: …\n  File …"
    ): (
        "WorkerDied",
        (
            "DataLoader worker exited unexpectedly: sample 9 (position 17 of epoch 3, batch 4) took down 3 workers in 'prepare'; "
            "the last, worker 2 (pid 71) was killed by SIGSEGV (stack below). Each time a new worker was given its work. Look at "
            "it with loader.debug(9, 3), or leave such samples out with on_error='skip'.\n"
            "Fatal Python error: …\n  File …"
        ),
    ),
    Trouble("hung", 1, 2, "worker 0 (pid 71) was silent for 5.0 s because it is stopped (SIGSTOP?)"): (
        "WorkerHung",
        (
            "sample 9 (position 17 of epoch 3, batch 4) hung in 'prepare' on 2 workers, each of which was killed and replaced; the "
            "last, worker 0 (pid 71) was silent for 5.0 s because it is stopped (SIGSTOP?). Raise hang_timeout (or timeout) if "
            "it is merely slow. Look at it with loader.debug(9, 3), or leave such samples out with on_error='skip'."
        ),
    ),
    Trouble("died", COLLATING, 3, "worker 2 (pid 71) was killed by SIGKILL"): (
        "WorkerDied",
        (
            "DataLoader worker exited unexpectedly: batch 4 of epoch 3 took down 3 workers in 'collate'; the last, worker 2 "
            "(pid 71) was killed by SIGKILL. Each time a new worker was given its work. Run with num_workers=0 to see it "
            "happen in this process."
        ),
    ),
    Trouble("hung", FETCHING, 2, "worker 2 (pid 71) was silent for 5.0 s and gives no stack (state D)"): (
        "WorkerHung",
        (
            "batch 4 of epoch 3 hung in '__getitems__' on 2 workers, each of which was killed and replaced; the last, worker "
            "2 (pid 71) was silent for 5.0 s and gives no stack (state D). Raise hang_timeout (or timeout) if it is merely "
            "slow. Run with num_workers=0 to see it happen in this process."
        ),
    ),
    Trouble("start", tries=4, cause="worker 1 (pid 71) exited with code 9"): (
        "WorkerDied",
        (
            "DataLoader worker exited unexpectedly: one was lost 4 times in a row, with nothing done; the last, worker 1 (pid "
            "71) exited with code 9. Look at worker_init_fn and at what the dataset does first, or run with num_workers=0 to see "
            "it happen in this process."
        ),
    ),
    Trouble("stream", cause="worker 1 (pid 71) was killed by SIGKILL"): (
        "WorkerDied",
        (
            "DataLoader worker exited unexpectedly while it iterated an iterable dataset: worker 1 (pid 71) was killed by SIGKILL. "
            "What it had not yielded is lost, since an iterable dataset cannot be asked again: give the dataset state_dict() and "
            "load_state_dict(), or use a map-style dataset."
        ),
    ),
    Trouble("memory", need_bytes=4_194_304, limit_bytes=2_097_152): (
        "ArenaFull",
        (
            "batch 4 of epoch 3 needs 4,194,304 bytes of shared memory, which do not fit into 2,097,152 beside the batches that "
            "you hold. Raise slab_bytes, lower batch_size, or let go of batches earlier."
        ),
    ),
    Trouble("memory", cause="[Errno 28] No space left on device", need_bytes=4_194_304, limit_bytes=65_536): (
        "ArenaFull",
        (
            "batch 4 of epoch 3 needs 4,194,304 bytes of shared memory, and the system gives no more than the 65,536 there are "
            "([Errno 28] No space left on device). Give the container more memory (docker: --memory, --shm-size), or lower "
            "batch_size or prefetch_batches."
        ),
    ),
    Trouble("empty"): (
        "SampleError",
        (
            "sample 9 failed in 'prepare' on all workers: and so did every sample of batch 4 of epoch 3; loader.skipped() lists "
            "them with their errors. A batch is never left out, so that all ranks deliver equally many: mend or remove the "
            "samples, or use on_error='replace'"
        ),
    ),
}


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.kind)
def test_a_trouble_in_words(trouble: Trouble) -> None:
    name, text = TROUBLES[trouble]
    error = worded(trouble, **AT)
    assert (type(error).__name__, str(error)) == (name, text)
    assert unpacked(packed(trouble)) == trouble
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


@pytest.mark.parametrize("kind", ["died", "hung"])
def test_a_trouble_with_a_sample_says_all_that_is_needed_to_act(kind: str) -> None:
    text = str(worded(Trouble(kind, 1, 3, "worker 2 (pid 71) was killed by SIGKILL"), **AT))
    for fact in (
        "sample 9",
        "position 17",
        "epoch 3",
        "batch 4",
        "'prepare'",
        "worker 2",
        "SIGKILL",
        "3 workers",
        "debug(9, 3)",
    ):
        assert fact in text


def test_how_a_process_ended() -> None:
    assert exit_text(-9) == "was killed by SIGKILL"
    assert exit_text(-63) == "was killed by signal 63"
    assert exit_text(7) == "exited with code 7"
    assert exit_text(None) == "ended for an unknown reason"
    oom = oom_text(67_108_864, 67_000_000)
    assert end_text("worker 0 (pid 5)", -9, oom=oom, verdict="", stack="") == (
        "worker 0 (pid 5) was killed by SIGKILL (out of memory: the kernel's OOM killer ended it; cgroup limit 67,108,864 "
        "bytes, in use 67,000,000)"
    )
    assert end_text("worker 0 (pid 5)", -11, oom="", verdict="", stack="Fatal\n  File") == (
        "worker 0 (pid 5) was killed by SIGSEGV (stack below)\nFatal\n  File"
    )
    assert end_text("worker 0 (pid 5)", -9, oom="", verdict="was silent for 5.0 s", stack="ignored") == (
        "worker 0 (pid 5) was silent for 5.0 s"
    )


def test_a_stack_is_the_users_part_of_it() -> None:
    ours = f'  File "/x{os.sep}penstock{os.sep}worker{os.sep}prepare.py", line 3 in held_back\n'
    start = '  File "/usr/lib/python3/multiprocessing/process.py", line 3 in run\n'
    users = """Fatal Python error: Segmentation fault

Thread 0x1 (most recent call first):
  File "/home/me/data.py", line 3 in decode
{below}
Current thread 0x2 (most recent call first):
  File "/home/me/pool.py", line 9 in wait"""
    stack = users.format(below=ours + start) + "\n\nExtension modules: numpy, torch (total: 2)\n"
    assert user_frames(stack) == users.format(below="")


def test_a_worker_that_has_grown() -> None:
    assert grown_text("worker 1 (pid 7)", 2_100_000_000, 2_000_000_000) == (
        "worker 1 (pid 7) holds 2,100,000,000 bytes, over worker_memory=2,000,000,000: it is replaced when its tasks are done. "
        "Does the dataset or a transform keep what it has made?"
    )


def test_no_shared_memory_at_all() -> None:
    assert full_text(4096, 1 << 30, OSError(28, "No space left on device")) == (
        "shared memory for batches is full: 4,096 more bytes are needed ([Errno 28] No space left on device), the limit is "
        "1,073,741,824 bytes. Lower batch_size or prefetch_batches, raise slab_bytes, or give the container more memory "
        "(docker: --shm-size or --memory)."
    )


def test_an_interrupted_draw() -> None:
    assert PLACE_LOST == (
        "the iterator was interrupted while it drew from its sampler or began an epoch, so its place is lost: start a new one with iter(loader); "
        "loader.load_state_dict(loader.state_dict()) before it goes on behind the last batch"
    )


@pytest.mark.parametrize("name", [name for name in vars(errors) if isinstance(vars(errors)[name], type)])
def test_every_error_survives_pickling(name: str) -> None:
    kind = getattr(errors, name)
    error = kind(7, "decode", "worker 1", "it is torn") if kind is SampleError else kind("what and why")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
    if name == "SlowPathWarning":  # said, never raised
        assert isinstance(error, UserWarning)
        return
    assert isinstance(error, RuntimeError)
    assert isinstance(error, PenstockError)


# ---- what is refused

REFUSED = {
    "num_workers must be a number or 'auto', got 'many'": {"num_workers": "many"},
    "on_error must be one of raise, skip, replace, got 'ignore'": {"on_error": "ignore"},
    "hang_timeout must be above 0 seconds, or None to warn only, got 0": {"hang_timeout": 0},
    "task_size must be a whole number of at least 1 or 'auto', got 0": {"task_size": 0},
    "prefetch_batches must be a whole number of at least 1 or None, got 0": {"prefetch_batches": 0},
    "max_skipped must be a whole number of at least 0, got -1": {"max_skipped": -1},
    "worker_memory must be a number of bytes such as '8GiB' or '512MB', got 'lots'": {
        "worker_memory": "lots"
    },
    "slab_bytes must be above 0, got 0": {"slab_bytes": 0},
    "shard must be None, 'auto' or (rank, world), got 3": {"shard": 3},
    "shard=(rank, world) needs 0 <= rank < world, got (2, 2)": {"shard": (2, 2)},
    "shard together with a sampler or batch_sampler would shard twice: give one of them": {
        "shard": (0, 2),
        "sampler": [1, 2],
    },
    "dtype and memory_format describe batches on a device: give device= too ('cpu' works)": {
        "dtype": torch.float16
    },
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text.partition(" ")[0])
def test_a_keyword_that_cannot_work_is_refused_at_once(text: str) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        DataLoader(Drawn(), **REFUSED[text])
    assert str(caught.value) == text


STATES = {
    "this is not a state of penstock's DataLoader: it has no version": {},
    "the state has version 99; this penstock reads up to 1: upgrade it": {"version": 99},
    "the state was saved from a loader whose order was sampled, this one's is planned: give it the same shuffle, sampler and "
    "kind of dataset. To go on all the same, load_state_dict(state, strict=False) keeps the seed and the epoch; the epoch starts over. "
    "Where a trainer loads the state, remove the loader's part from its checkpoint instead.": {
        "version": 1,
        "order": "sampled",
    },
    "the state was saved with a dataset of 9 samples, this one has 64: samples would come twice or never; give it the same "
    "dataset. To go on all the same, load_state_dict(state, strict=False) keeps the seed and the epoch; the position, too, since both "
    "orders are sequential. Where a trainer loads the state, remove the loader's part from its checkpoint instead.": {
        "version": 1,
        "order": "planned",
        "kind": "sequential",
        "length": 9,
    },
}


@pytest.mark.parametrize("text", STATES, ids=["none", "newer", "other order", "other length"])
def test_a_state_that_cannot_be_loaded_is_refused(text: str) -> None:
    with pytest.raises(errors.StateError) as caught:
        DataLoader(Drawn()).load_state_dict(STATES[text])
    assert str(caught.value) == text
