"""The Ray actor of one remote worker: starts its child process and says how it ended.

Rule 1: samples are prepared in the child, which has none of Ray's threads. The actor only waits.
Rule 2: the child's stdin is its lifeline: it ends when the actor does, however that ends.
Rule 3: Ray pickles this class by value, so that a node without penstock can say so. Hence only the standard library here.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from typing import IO, Any

TAIL_BYTES = 4096
VERSION_S = 20.0
ASK_VERSION = "import penstock; print(penstock.__version__)"


class ChildKeeper:
    """Keeps one child on its node. Ray runs its methods in threads: `wait` blocks while `stop` is called."""

    def __init__(self, command: list[str], child_start_s: float) -> None:
        self._command, self._child_start_s = [sys.executable, *command], child_start_s
        self._child: subprocess.Popen[bytes] | None = None
        self._tail = Tail()

    def describe(self) -> dict[str, Any]:
        """Say where this is, and which penstock children would find ("" if none)."""
        import ray

        try:
            asked = subprocess.run(
                [sys.executable, "-c", ASK_VERSION],
                capture_output=True,
                text=True,
                timeout=VERSION_S,
                check=False,
            )
            version, trouble = asked.stdout.strip(), last_line(asked.stderr)
        except (OSError, subprocess.TimeoutExpired) as exc:
            version, trouble = "", str(exc)
        return {
            "host": ray.util.get_node_ip_address(),
            "node": socket.gethostname(),
            "penstock": version,
            "trouble": trouble,
        }

    def start(self, key: str, host: str) -> dict[str, Any]:
        """Start a child; return {"host", "port"} as it said them, or {"failed": why}."""
        self.stop()
        self._tail = Tail()
        try:
            child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as exc:
            return {"failed": f"it could not be started: {exc}"}
        self._child = child
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._tail.follow(child.stderr)
        threading.Thread(target=self._read_answer, args=(child.stdout, answers), daemon=True).start()
        try:
            child.stdin.write(json.dumps({"key": key, "host": host}).encode() + b"\n")
            child.stdin.flush()
            found = json.loads(answers.get(timeout=self._child_start_s))
            return {"host": str(found["host"]), "port": int(found["port"])}
        except queue.Empty:
            why = f"it did not say its port within {self._child_start_s:g} s{self._tail.text()}"
        except (OSError, ValueError, KeyError, TypeError):  # it ended, or wrote something else
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1.0)
            why = "it wrote no port" if child.poll() is None else self._exit_text(child)
        self.stop()
        return {"failed": why}

    def wait(self) -> dict[str, Any]:
        """Wait until the child ends; say why it did."""
        child = self._child
        if child is None:
            return {"why": "it was stopped", "in_order": True}
        code = child.wait()
        return {"why": self._exit_text(child), "in_order": code == 0}

    def stop(self) -> None:
        """End the child: by its lifeline, or else by force."""
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        with contextlib.suppress(OSError):
            child.stdin.close()
        try:
            child.wait(1.0)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    def _read_answer(self, stream: IO[bytes], answers: queue.SimpleQueue[bytes]) -> None:
        answers.put(stream.readline(65536))
        self._tail.drain(stream)

    def _exit_text(self, child: subprocess.Popen[bytes]) -> str:
        code = child.returncode
        self._tail.settle()
        return f"{exit_cause(code)}{self._tail.text()}"


class Tail:
    """The last bytes that a child wrote."""

    def __init__(self) -> None:
        self._kept = b""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def follow(self, stream: IO[bytes]) -> None:
        self._thread = threading.Thread(target=self.drain, args=(stream,), daemon=True)
        self._thread.start()

    def drain(self, stream: IO[bytes]) -> None:
        with stream, contextlib.suppress(OSError, ValueError):
            while chunk := os.read(stream.fileno(), 65536):
                with self._lock:
                    self._kept = (self._kept + chunk)[-TAIL_BYTES:]

    def settle(self) -> None:
        """Let what is still in the pipe arrive."""
        if self._thread is not None:
            self._thread.join(1.0)

    def text(self) -> str:
        with self._lock:
            kept = self._kept.decode("utf-8", "replace").strip()
        return f"; its last words: {kept}" if kept else ""


def exit_cause(code: int) -> str:
    """Say how a process ended."""
    if code >= 0:
        return f"it ended with exit code {code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
        more = " (often: out of memory)" if name == "SIGKILL" else ""
        return f"it was killed by {name}{more}"
    return f"it was killed by signal {-code}"


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
