"""Ranks on several machines of one job, and a store beside them, all on this machine.

Rule 1: a machine is a set of namespaces with an address of its own, joined by a bridge (`tests/on_ray/cluster.py`); its abstract sockets are its own, so
        it has a node process of its own. The store is a machine too. Results call such machines emulated.
Rule 2: where namespaces are not allowed, all share the loopback interface, and `PENSTOCK_GROUP` gives each machine's ranks their own node process.
Rule 3: ranks have the environment that torchrun gives. Each prints JSON lines. If one rank fails, all are ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from _store_control import Store

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from tests.on_ray.cluster import Cluster, NoNamespaces  # noqa: E402

PORT = 29_500
LOOK_S = 0.1
END_S = 15.0
TOOLS = ("ip", "nsenter", "unshare")
STORE = "h0"
Row = dict[str, Any]


class RankFailed(RuntimeError):
    """A rank ended with an error, or too late."""


class Group:
    """`nodes` machines of `ranks` ranks each. `cores`: those of the store (first) and of each machine, where they are pinned."""

    def __init__(
        self,
        nodes: int,
        ranks: int,
        folder: Path,
        *,
        namespaces: bool = True,
        cores: Sequence[int] = (),
        **manner: float,
    ) -> None:
        self.nodes, self.ranks, self.world = nodes, ranks, nodes * ranks
        self._stack = contextlib.ExitStack()
        self._cluster: Cluster | None = None
        self.why_not = "not asked for"
        if namespaces:
            self._cluster, self.why_not = self._machines(dict(zip(self._hosts(), cores, strict=False)))
        try:
            if self._cluster is None:
                store = Store(folder, cores=cores[:1], **manner)
            else:
                host = Cluster.ip(STORE)
                store = Store(folder, host=host, popen=self._popen(STORE), **manner)
            self.store = self._stack.enter_context(store)
        except BaseException:
            self._stack.close()
            raise

    @property
    def is_emulated(self) -> bool:
        """Whether machines are namespaces; otherwise they are processes that share everything."""
        return self._cluster is not None

    def _hosts(self) -> list[str]:
        return [f"h{number}" for number in range(self.nodes + 1)]

    def _machines(self, cores: dict[str, int]) -> tuple[Cluster | None, str]:
        if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
            return None, f"{', '.join(missing)} is missing"
        try:
            return self._stack.enter_context(Cluster(self.nodes + 1, cores=cores)), ""
        except (NoNamespaces, RuntimeError) as exc:
            return None, str(exc)

    def _popen(self, host: str) -> Callable[..., subprocess.Popen[Any]]:
        def popen(argv: Sequence[str], **more: Any) -> subprocess.Popen[Any]:
            assert self._cluster is not None
            return self._cluster.popen(host, argv, **more)

        return popen

    def limit(self, node: int, rate: str | None) -> None:
        """Limit both directions of a machine's link ("400mbit"); None: no more. Only between namespaces."""
        if self._cluster is None:
            raise RuntimeError(f"there is no link to limit: {self.why_not}")
        self._cluster.rate(f"h{node + 1}", rate)

    def environ(self, rank: int, run: str, port: int, *, pools: str) -> dict[str, str]:
        """What torchrun would set, and the store's settings. `pools`: "node" or "rank", whose cache a rank uses."""
        node, local = divmod(rank, self.ranks)
        path = [str(ROOT / "src"), str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])]
        found = dict(os.environ)
        found |= self.store.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "GROUP_RANK": str(node),
            "WORLD_SIZE": str(self.world),
            "LOCAL_WORLD_SIZE": str(self.ranks),
            "MASTER_ADDR": "127.0.0.1" if self._cluster is None else Cluster.ip("h1"),
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": run,
            "GLOO_SOCKET_IFNAME": "lo" if self._cluster is None else "eth0",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(path),
        }
        if pools == "rank":
            found["PENSTOCK_GROUP"] = f"{run}-rank{rank}"
        elif self._cluster is None:
            found["PENSTOCK_GROUP"] = f"{run}-node{node}"
        return found

    def run(
        self,
        script: Path,
        spec: Mapping[str, Any],
        *,
        limit_s: float,
        pools: str = "node",
        told: Callable[[Row], None] = lambda _: None,
    ) -> list[list[Row]]:
        """Run a program as every rank; return the lines of each. `told` hears those of rank 0 as they come."""
        run, port = f"bench-{secrets.token_hex(4)}", PORT if self.is_emulated else free_port()
        argv = [sys.executable, str(script), json.dumps({**spec, "control": self.store.control})]
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-ranks-")))
            ranks = [
                stack.enter_context(Rank(folder, rank, self._start_of(rank, argv)))
                for rank in range(self.world)
            ]
            for rank in ranks:
                rank.start(self.environ(rank.number, run, port, pools=pools))
            await_end(ranks, time.monotonic() + limit_s, told)
            return [rank.lines() for rank in ranks]

    def _start_of(self, rank: int, argv: Sequence[str]) -> Callable[..., subprocess.Popen[Any]]:
        host = f"h{rank // self.ranks + 1}"

        def start(**more: Any) -> subprocess.Popen[Any]:
            if self._cluster is None:
                return subprocess.Popen(argv, start_new_session=True, **more)
            return self._cluster.popen(host, argv, start_new_session=True, **more)

        return start

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Rank:
    """One training process, with what it prints in files."""

    def __init__(self, folder: Path, number: int, start: Callable[..., subprocess.Popen[Any]]) -> None:
        self.number, self._start = number, start
        self._out, self._log = folder / f"{number}.out", folder / f"{number}.log"
        self.process: subprocess.Popen[Any] | None = None
        self._files: list[IO[bytes]] = []

    def start(self, environ: Mapping[str, str]) -> None:
        self._files = [self._out.open("wb"), self._log.open("wb")]
        out = subprocess.PIPE if self.number == 0 else self._files[0]
        self.process = self._start(env=dict(environ), stdin=subprocess.DEVNULL, stdout=out, stderr=self._files[1])  # fmt: skip

    def heard(self, data: bytes) -> None:
        self._files[0].write(data)
        self._files[0].flush()

    def lines(self) -> list[Row]:
        said = self._out.read_text("utf-8").splitlines()
        return [json.loads(line) for line in said if line.startswith("{")]

    def trouble(self) -> str:
        return "\n".join(self._log.read_text("utf-8", "replace").splitlines()[-15:])

    def close(self) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                end_tree(self.process)
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def await_end(ranks: Sequence[Rank], deadline_s: float, told: Callable[[Row], None]) -> None:
    """Wait until all ranks have ended well; rank 0's lines are passed on meanwhile."""
    first, data = ranks[0], b""
    assert first.process is not None
    assert first.process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(first.process.stdout, selectors.EVENT_READ)
        speaks = True
        while speaks or any(rank.process is not None and rank.process.poll() is None for rank in ranks):
            if speaks and selector.select(LOOK_S):
                chunk = os.read(first.process.stdout.fileno(), 1 << 16)
                first.heard(chunk)
                speaks = bool(chunk)
                *lines, data = (data + chunk).split(b"\n")
                for line in lines:
                    if line.startswith(b"{"):
                        told(json.loads(line))
            elif not speaks:
                time.sleep(LOOK_S)
            for rank in ranks:
                if rank.process is not None and rank.process.poll():
                    raise RankFailed(
                        f"rank {rank.number} ended with {rank.process.poll()}:\n{rank.trouble()}"
                    )
            if time.monotonic() > deadline_s:
                late = [rank.number for rank in ranks if rank.process and rank.process.poll() is None]
                raise RankFailed(
                    f"ranks {late} were not done in time:\n{ranks[late[0] if late else 0].trouble()}"
                )


def end_tree(process: subprocess.Popen[Any]) -> None:
    """End a process and its children. In a namespace, the rank is a child of the program that enters the namespace."""
    import _machine

    for pid in reversed(_machine.process_tree(process.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_S)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port
