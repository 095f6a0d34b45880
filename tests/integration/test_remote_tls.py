"""Remote workers behind TLS, as real processes: the same batches, and the same end when one is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import penstock
from penstock.client.remote_side import RemoteSide
from penstock.remote.handshake import new_key
from remote_here import FerryHere, Server, environment, remote_workers

pytest.importorskip("cloudpickle")
pytest.importorskip("cryptography")

Remote = tuple[RemoteSide, FerryHere, list[Server]]


@pytest.fixture(scope="module")
def remote() -> Iterator[Remote]:
    with remote_workers(2, tls=True) as found:
        yield found


class Pictures(Dataset[Any]):
    """Samples of 150 KB, so that a task is many records; each says who made it."""

    def __len__(self) -> int:
        return 240

    def __getitem__(self, index: int) -> Any:
        until = time.perf_counter() + 0.004
        image = torch.randn(3, 112, 112) + index
        while time.perf_counter() < until:
            pass
        return image, os.getpid()


def loader_of(side: RemoteSide | None) -> Any:
    loader: Any = penstock.DataLoader(Pictures(), batch_size=16, shuffle=True, seed=7, num_workers=1)
    loader._remote = side
    return loader


def epoch(side: RemoteSide | None) -> tuple[list[bytes], set[int]]:
    """(all bytes, who made them)"""
    batches = list(loader_of(side))
    return [images.numpy().tobytes() for images, _ in batches], {
        int(pid) for _, pids in batches for pid in pids
    }


def until_used(side: RemoteSide, servers: list[Server]) -> None:
    deadline = time.monotonic() + 120
    wanted = {server.process.pid for server in servers}
    while not wanted <= epoch(side)[1]:
        assert time.monotonic() < deadline, "the remote workers never came"


def test_batches_are_those_of_local_workers(remote: Remote) -> None:
    side, _, servers = remote
    until_used(side, servers)
    assert epoch(side)[0] == epoch(None)[0]


def test_a_worker_that_is_killed_is_noticed_as_without_tls(
    remote: Remote, caplog: pytest.LogCaptureFixture
) -> None:
    side, _, servers = remote
    until_used(side, servers)
    found = []
    for at, (images, _) in enumerate(loader_of(side)):
        if at == 4:
            servers[0].process.kill()
        found.append(images.numpy().tobytes())
    assert found == epoch(None)[0]
    assert "was lost: the connection ended" in caplog.text


def test_a_node_without_the_package_says_so() -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\nfrom penstock.remote.server import main; main()"
    )
    server = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    with server:
        assert server.stdin is not None
        server.stdin.write(json.dumps({"key": new_key(), "host": "127.0.0.1", "tls": True}) + "\n")
        server.stdin.flush()  # and stays open: it would end with it
        assert server.wait(120) == 1
        assert server.stdout is not None
        assert server.stderr is not None
        assert not server.stdout.read()
        assert server.stderr.read().startswith("penstock: tls=True needs the package `cryptography` on ")
