"""A store of `_store_server.py` in a process of its own, and what it says of itself."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

HERE = Path(__file__).resolve().parent
CONTROL = b"/-/"
ASK_S = 30.0
END_S = 10.0


@dataclass(slots=True)
class Totals:
    """What a store has served since it was started or reset."""

    requests: int = 0
    """Listings and refused ones included."""
    bytes: int = 0
    """Of objects."""
    lists: int = 0
    refused: int = 0
    most_waiting: int = 0
    """Requests whose answers were delayed at one time."""
    objects: dict[str, int] = field(default_factory=Counter)
    """Answers to the end, by object."""
    object_bytes: dict[str, int] = field(default_factory=Counter)
    client_bytes: dict[str, int] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # `asdict` copies no Counter

    def sent(self, name: str, peer: str, count: int) -> None:
        if count:
            self.bytes += count
            self.object_bytes[name] += count
            self.client_bytes[peer] += count

    def finished(self, name: str) -> None:
        if name:
            self.objects[name] += 1


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("store", timeout=ASK_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(ASK_S)
        self.sock.connect(self._path)


def asked(control: str, what: str, **more: float) -> dict[str, Any]:
    """Ask a store ("count", "reset", "set"). It works from any network namespace that sees the file."""
    connection = _Connection(control)
    with contextlib.closing(connection):
        connection.request("GET", f"{CONTROL.decode()}{what}?{urlencode(more)}")
        found: dict[str, Any] = json.load(connection.getresponse())
        return found


class Store:
    """A running store over the buckets in a folder. `popen` starts it: here, on other cores, or in a namespace; `host` is its address there."""

    def __init__(
        self,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        popen: Callable[..., subprocess.Popen[Any]] = subprocess.Popen,
        cores: Sequence[int] = (),
        **manner: float,
    ) -> None:
        self._held = tempfile.TemporaryDirectory(prefix="penstock-store-")
        self.control = f"{self._held.name}/control"
        command = ["taskset", "--cpu-list", ",".join(map(str, cores))] if cores else []
        command += [sys.executable, str(HERE / "_store_server.py"), str(folder)]
        command += ["--bind", host, "--control", self.control]
        for name, value in manner.items():
            command += [f"--{name.replace('_', '-')}", f"{value:g}"]
        self.process = popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        port = self.process.stdout.readline().strip()
        if not port:
            self.close()
            raise RuntimeError("the store did not start")
        self.address = f"{host}:{port}"
        self.url = f"http://{self.address}"
        self.environ = {
            "AWS_ENDPOINT_URL": self.url,
            "S3_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "here",
            "AWS_DEFAULT_REGION": "here",
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": f"{host},localhost",
            "no_proxy": f"{host},localhost",
        }
        """For programs that read from it as S3."""

    def count(self) -> dict[str, Any]:
        return asked(self.control, "count")

    def reset(self) -> dict[str, Any]:
        return asked(self.control, "reset")

    def set(self, **manner: float) -> dict[str, Any]:
        return asked(self.control, "set", **manner)

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(END_S)  # it ends with its stdin
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._held.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
