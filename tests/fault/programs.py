"""Whole programs under fault: started cheaply, watched line by line, and accounted for when they are gone.

Everything a program starts stays in its session and holds its standard output open, so what it leaves behind is found by
session (`left`) and its end by the end of its output, without a glance at anything else on the machine.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
START_S = 60.0
LINE_S = 20.0


def fair(limit_s: float) -> float:
    """A limit that is stated for an idle machine, on this one: with n processes per core everything takes n times as long."""
    return limit_s * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def until(what: Callable[[], Any], *, within_s: float, why: str) -> Any:
    """The first true value of `what`; asked every few milliseconds, since what dies elsewhere does not call us."""
    deadline = time.monotonic() + fair(within_s)
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {within_s} s: {why}"
        time.sleep(0.003)


def state_of(pid: int) -> str:
    """One letter of /proc/PID/stat, or "" when there is no such process."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def is_alive(pid: int) -> bool:
    return state_of(pid) not in ("", "Z", "X")


def in_session(session: int) -> dict[int, str]:
    """Live processes of a session and their names."""
    found: dict[int, str] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                name, _, rest = Path(f"/proc/{entry}/stat").read_text().rpartition(")")
                fields = rest.split()
                if int(fields[3]) == session and fields[0] not in "ZX":
                    found[int(entry)] = name.partition("(")[2]
    return found


class Program:
    """One running program."""

    def __init__(self, zygote: Zygote, pid: int, out: int, err: int) -> None:
        self._zygote, self.pid, self._out, self._err = zygote, pid, out, err
        self._seen = b""
        self._code: int | None = None

    def line(self, *, within_s: float = LINE_S) -> str:
        """The next line of its output; "" at its end."""
        deadline = time.monotonic() + within_s
        while b"\n" not in self._seen:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._out], [], [], left)[0]:
                raise AssertionError(f"no line within {within_s} s; standard error:\n{self.errors()}")
            chunk = os.read(self._out, 1 << 16)
            if not chunk:
                line, self._seen = self._seen, b""
                return line.decode()
            self._seen += chunk
        line, _, self._seen = self._seen.partition(b"\n")
        return line.decode()

    def rest(self, *, within_s: float = LINE_S) -> list[str]:
        """All further lines until everything that holds the output is gone."""
        deadline = time.monotonic() + within_s
        lines = []
        while line := self.line(within_s=max(0.0, deadline - time.monotonic())):
            lines.append(line)
        return lines

    def errors(self) -> str:
        """What it has written to standard error so far."""
        return os.pread(self._err, 1 << 20, 0).decode(errors="replace")

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, *, within_s: float = LINE_S) -> int:
        """Its exit code; -n for a signal."""
        if self._code is None:
            self._code = self._zygote.wait(self.pid, within_s)
            if self._code is None:
                raise AssertionError(f"did not end within {within_s} s; standard error:\n{self.errors()}")
        return self._code

    def left(self, *, within_s: float = 1.0) -> list[str]:
        """Processes of its session that are still there when it has had `within_s` seconds to take them along."""
        deadline = time.monotonic() + fair(within_s)
        while (found := in_session(self.pid)) and time.monotonic() < deadline:
            time.sleep(0.01)
        return [f"{pid} {name}" for pid, name in found.items()]

    def close(self) -> None:
        """End what is left of it, whatever state it is in."""
        for pid in in_session(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._code is None:
            self._code = self._zygote.wait(self.pid, 5.0)
        os.close(self._out)
        os.close(self._err)


def sources() -> list[str]:
    """Where this process finds penstock: programs take it from the same place."""
    spec = importlib.util.find_spec("penstock")
    return [] if spec is None or spec.origin is None else [str(Path(spec.origin).parents[1])]


class Zygote:
    """The client of `zygote.py`."""

    def __init__(self, *imports: str) -> None:
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("zygote.py")), str(theirs.fileno()), *imports],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([*sources(), str(ROOT)])},
        )
        theirs.close()
        self._sock.settimeout(fair(START_S))
        assert self._sock.recv(16) == b"ready", "the zygote did not start"
        self._programs: list[Program] = []

    def start(
        self, run: str, *, env: dict[str, str] | None = None, path: list[str] | None = None, **args: Any
    ) -> Program:
        out, their_out = os.pipe()
        err = os.memfd_create("stderr")
        request = {"run": run, "args": args, "env": env or {}, "path": path or []}
        socket.send_fds(self._sock, [json.dumps(request).encode()], [their_out, err])
        os.close(their_out)
        program = Program(self, json.loads(self._sock.recv(64)), out, err)
        self._programs.append(program)
        return program

    def wait(self, pid: int, timeout_s: float) -> int | None:
        # It answers when the program has ended, or after `timeout_s`.
        self._sock.settimeout(timeout_s + START_S)
        self._sock.send(json.dumps({"wait": pid, "timeout_s": timeout_s}).encode())
        code: int | None = json.loads(self._sock.recv(64))
        return code

    def end_programs(self) -> None:
        while self._programs:
            self._programs.pop().close()

    def close(self) -> None:
        self.end_programs()
        self._sock.close()
        self._process.wait(10.0)
