"""Several "hosts" on one machine and a Ray cluster on them, for tests.

A host is a network, mount, pid, uts and ipc namespace with its own address, /dev/shm and /tmp/ray. Its link goes to a bridge. The
bridge is in a network namespace of its own, so names and addresses of two runs never meet, and nothing of it is in the machine's.
All hosts' pid namespaces are inside one ("the rack"): when its first process ends, the kernel ends everything, and that process ends
when the pipe to this one closes, however this one ends.

It needs CAP_SYS_ADMIN; without it, it takes a user namespace where that is allowed.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NET = "10.77.0"
PORT = 6379
FIRST_PROCESS = "import signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); print('up', flush=True); sys.stdin.read()"
"""Of a pid namespace: adopts and reaps orphans, and ends with its stdin."""
STATUS = Path("/proc/self/status").read_text()
MAY = bool(
    int(next(line for line in STATUS.splitlines() if line.startswith("CapEff:")).split()[1], 16) >> 21 & 1
)
"""This process has CAP_SYS_ADMIN."""


class NoNamespaces(Exception):
    """This machine does not let us make hosts."""


def _namespace(prefix: Sequence[str], setup: str, *, user: bool) -> subprocess.Popen[str]:
    """Start a first process in new namespaces, after `setup` (shell) has run there."""
    unshare = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child=KILL"]
    unshare += ["--mount-proc", "--propagation", "private"] + (["--user", "--map-root-user"] if user else [])
    script = f'set -e; ip link set lo up; {setup}; exec "$0" -S -c "$1"'
    process = subprocess.Popen(
        [*prefix, *unshare, "sh", "-c", script, sys.executable, FIRST_PROCESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    if said != "up\n":
        process.kill()
        rest, _ = process.communicate()
        raise NoNamespaces((said + rest).strip() or "unshare failed")
    return process


def _first_pid(process: subprocess.Popen[str]) -> int:
    """Return the first process of its pid namespace, as seen from here: the youngest generation."""
    pid = process.pid
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(children[0])
    return pid


def _run(argv: Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, **more)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")
    return done


class Cluster:
    """Hosts h0, h1, … and, after `start_ray`, a Ray cluster with token authentication whose head is h0."""

    def __init__(
        self,
        hosts: int,
        *,
        env: Mapping[str, str] | None = None,
        cores: Mapping[str, int] | None = None,
        object_store_bytes: int = 100 << 20,
    ) -> None:
        """`cores`: the core on which everything in a host runs; other hosts have all."""
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-hosts-"))
        self.token_path = self._folder / "token"
        self.token_path.touch(0o600)
        self.token_path.write_text(secrets.token_hex(32))
        names = "".join(f"{self.ip(f'h{number}')} h{number}\n" for number in range(100))
        (self._folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        # Ray asks for names often; without a server at all each question is answered at once.
        (self._folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        self.env = dict(env or {})
        self._cores, self._object_store_bytes = dict(cores or {}), object_store_bytes
        self.hosts: list[str] = []
        self._inits: dict[str, int] = {}
        self._started: list[subprocess.Popen[str]] = []
        self.address = f"{NET}.10:{PORT}"
        try:
            rack = _namespace((), "ip link add bridge0 type bridge; ip link set bridge0 up", user=not MAY)
            self._started.append(rack)
            self._rack = _first_pid(rack)
            for _ in range(hosts):
                self.add_host()
        except BaseException:
            self.close()
            raise

    def add_host(self) -> str:
        """Add a host, without Ray; return its name."""
        number = len(self.hosts)
        name = f"h{number}"
        setup = f"""
            hostname {name}
            for folder in /dev/shm /tmp/ray; do mkdir -p $folder; mount -t tmpfs -o size=2g tmpfs $folder; done
            for file in hosts resolv.conf; do mount --bind {self._folder}/$file /etc/$file; done"""
        process = _namespace(self._enter(self._rack), setup, user=False)
        self._started.append(process)
        self._inits[name] = _first_pid(process)
        outside = f"port{number}"
        rack = self._enter(self._rack)
        inside = _inner_pid(self._inits[name], self._rack)
        _run(
            [
                *rack,
                "ip",
                "link",
                "add",
                outside,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                str(inside),
            ]
        )
        _run([*rack, "ip", "link", "set", outside, "master", "bridge0", "up"])
        shell = (
            f"ip addr add {self.ip(name)}/24 dev eth0; ip link set eth0 up; ip route add default via {NET}.1"
        )
        _run([*self._enter(self._inits[name]), "sh", "-ec", shell])
        self.hosts.append(name)
        return name

    @staticmethod
    def ip(host: str) -> str:
        return f"{NET}.{10 + int(host[1:])}"

    def start_ray(self, cpus: Sequence[int]) -> None:
        """Start the head in h0 and a raylet in each other host, with these CPUs to lend."""
        self.start_head(cpus[0])
        starts = [self._begin_raylet(host, n) for host, n in zip(self.hosts[1:], cpus[1:], strict=True)]
        for host, n, start in zip(self.hosts[1:], cpus[1:], starts, strict=True):
            if start.wait(120):
                self.kill(host, "raylet|/ray/|ray start")
                self.start_raylet(host, n)

    def start_head(self, cpus: int) -> None:
        options = [
            "--head",
            "--node-ip-address",
            self.ip("h0"),
            "--port",
            str(PORT),
            "--include-dashboard=false",
        ]
        self._try_to_start("h0", lambda: self._ray_start("h0", options, cpus))

    def start_raylet(self, host: str, cpus: int) -> None:
        """Start a raylet (again)."""
        self._try_to_start(host, lambda: self._begin_raylet(host, cpus))

    def _begin_raylet(self, host: str, cpus: int) -> subprocess.Popen[str]:
        options = ["--address", self.address, "--node-ip-address", self.ip(host)]
        return self._ray_start(host, options, cpus)

    def _ray_start(self, host: str, options: list[str], cpus: int) -> subprocess.Popen[str]:
        ray = str(Path(sys.executable).parent / "ray")
        more = [
            "--num-cpus",
            str(cpus),
            "--object-store-memory",
            str(self._object_store_bytes),
            "--disable-usage-stats",
        ]
        with (self._folder / f"ray-{host}.log").open("w") as log:
            return self.popen(
                host, [ray, "start", *options, *more], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _try_to_start(self, host: str, start: Any) -> None:
        """A loaded machine makes `ray start` fail now and then, with a part of it left running."""
        for _ in range(4):
            if start().wait(120) == 0:
                return
            self.kill(host, "raylet|gcs_server|/ray/|ray start")
        logs = "\n".join(path.read_text()[-2000:] for path in self._folder.glob("ray-*.log"))
        raise RuntimeError(f"ray did not start:\n{logs}")

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of commands in hosts."""
        mine = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        return {
            **mine,
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token_path),
            "RAY_USAGE_STATS_ENABLED": "0",
            "HOME": str(self._folder),  # a token in the user's home is not for these hosts
            **self.env,
            **(more or {}),
        }

    def popen(self, host: str, argv: Sequence[str], **more: Any) -> subprocess.Popen[Any]:
        """Start a command in a host. Signals to it reach `nsenter` alone: end it with `kill`."""
        more.setdefault("env", self.environment())
        return subprocess.Popen([*self._into(host), *argv], **more)

    def run(self, host: str, argv: Sequence[str], *, timeout_s: float = 60.0, **more: Any) -> str:
        """Run a command in a host; return what it prints."""
        more.setdefault("env", self.environment())
        return _run([*self._into(host), *argv], timeout=timeout_s, **more).stdout

    def _into(self, host: str) -> list[str]:
        core = self._cores.get(host)
        pinned = [] if core is None else ["taskset", "--cpu-list", str(core)]
        return [*pinned, *self._enter(self._inits[host])]

    def pids(self, host: str, pattern: str = "") -> list[int]:
        """Return the host's living processes, as seen from here, whose command line matches."""
        space = os.readlink(f"/proc/{self._inits[host]}/ns/pid")
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and os.readlink(entry / "ns" / "pid") == space:
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                    if command and re.search(pattern, command):
                        found.append(int(entry.name))
        return sorted(found)

    def kill(self, host: str, pattern: str, number: int = signal.SIGKILL) -> list[int]:
        """Send a signal to the host's processes whose command line matches; return them."""
        found = self.pids(host, pattern)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return found

    def rate(self, host: str, limit: str | None) -> None:
        """Limit both directions of a host's link ("100mbit"); None: no more."""
        for enter, link in ((self._enter(self._rack), _port(host)), (self._enter(self._inits[host]), "eth0")):
            subprocess.run(
                [*enter, "tc", "qdisc", "del", "dev", link, "root"], capture_output=True, check=False
            )
            if limit is not None:
                tbf = ["tbf", "rate", limit, "burst", "256kb", "latency", "50ms"]
                _run([*enter, "tc", "qdisc", "add", "dev", link, "root", *tbf])

    def cut(self, host: str) -> None:
        """Part a host from the others, silently: no reset, no loss of carrier."""
        _run([*self._enter(self._rack), "ip", "link", "set", _port(host), "nomaster"])

    def heal(self, host: str) -> None:
        """Undo `cut`."""
        _run([*self._enter(self._rack), "ip", "link", "set", _port(host), "master", "bridge0", "up"])

    def close(self) -> None:
        """End everything in all hosts."""
        for process in reversed(self._started):
            with contextlib.suppress(OSError, ValueError):
                process.stdin.close()  # type: ignore[union-attr]
        for process in reversed(self._started):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()  # type: ignore[union-attr]
        self._started.clear()
        for path in sorted(self._folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        with contextlib.suppress(FileNotFoundError):
            self._folder.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @staticmethod
    def _enter(pid: int) -> list[str]:
        user = [] if MAY else ["-U", "--preserve-credentials"]
        return ["nsenter", "-t", str(pid), *user, "-n", "-m", "-p", "-u", "-i", "--wd=" + os.getcwd(), "--"]


def _port(host: str) -> str:
    return f"port{host[1:]}"


def _inner_pid(pid: int, space_of: int) -> int:
    """Return a process's number in the pid namespace of another process."""
    depth = len(_numbers(space_of))
    return _numbers(pid)[depth - 1]


def _numbers(pid: int) -> list[int]:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("NSpid:"))
    return [int(word) for word in line.split()[1:]]
