"""An object store on this machine, for tests: its server, a node process that ends soon after them, and nothing of the user's own settings."""

from __future__ import annotations

import contextlib
import gc
import os
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from penstock.node.config import NodeConfig
from penstock.node.job import job_name
from penstock.node.link import NodeLink
from penstock.policy.retry import RetryLimits
from penstock.sources.cloud import CloudFiles
from tests.node_faults import gone
from tests.s3 import S3Apart, s3_served

# Never imported here: a process that forks must not.
needs_obstore = pytest.mark.skipif(find_spec("obstore") is None, reason="needs obstore")
DATA = bytes(range(256)) * 40
NAME = "s3://bucket/data.bin"
SOON = RetryLimits(total_s=20, tries=6, first_s=0.02, most_s=0.05)
NEVER = RetryLimits(total_s=0)
OF_THE_USER = ("AWS_", "GOOGLE_", "AZURE_")


@contextlib.contextmanager
def store_here(folder: Path, *, linger_s: float = 0.1) -> Iterator[S3Apart]:
    """A bucket "bucket" with an object "data.bin", and the environment in which it is found. The fetch service runs."""
    (folder / "objects" / "bucket").mkdir(parents=True)
    (folder / "objects" / "bucket" / "data.bin").write_bytes(DATA)
    with pytest.MonkeyPatch.context() as patch, s3_served(folder / "objects") as server:
        for key in os.environ:
            if key.startswith(OF_THE_USER) or key.lower().endswith("_proxy"):
                patch.delenv(key)
        ours = {"HOME": str(folder), "AWS_METADATA_ENDPOINT": "http://127.0.0.1:1"}
        for key, value in {**server.environ, **ours, "PENSTOCK_GROUP": str(uuid.uuid4())}.items():
            patch.setenv(key, value)
        link = NodeLink.attach(job_name(), 40.0, config=NodeConfig(linger_s=linger_s))
        link.open("fetch", b"{}", within_s=40.0).close()
        yield server
        link.close()
        gc.collect()
        gone(link.pid)


def service_pid(files: CloudFiles) -> int:
    """The process of the service that a source has used last."""
    return files._streams.get().idle[-1].pid
