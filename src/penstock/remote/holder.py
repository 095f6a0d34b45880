"""Holds one child on its node: `python -m penstock.remote.holder`. The actor talks to it in lines of JSON.

Rule 1: it is no descendant of the actor (it forks once more), because Ray kills those when a raylet ends.
Rule 2: the child's stdin is its lifeline, and only the holder has the other end.
Rule 3: when the actor ends, the child ends. But when Ray's head does not answer then, the child goes on: a raylet ends a minute after
        its head does, and workers need no Ray for their work. Such a child ends with the connection of its client, or when the head is
        back, which knows nothing of it.

From the actor: {"command": [...], "settings": {"key": …, "host": …, "tls": …}, "start_s": s, "head": "host:port"}, later "stop". To it:
{"host": …, "port": p, "fingerprint": hex} or {"failed": why}; after the former {"why": text, "in_order": bool} when the child has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import IO, Any

from penstock.measure.host import name_process
from penstock.remote.probe import knock

TAIL_BYTES = 4096
LAST_S = 1.0
"""Time for a child to end by itself when its lifeline is cut."""
HEAD_EVERY_S = 5.0
ANSWER = {"host": str, "port": int, "fingerprint": str}


def main() -> None:
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    name_process("penstock holder")
    facts = json.loads(sys.stdin.readline())
    holder = ChildHolder(facts["command"], facts["head"])
    say(holder.start(facts["settings"], facts["start_s"]))
    threading.Thread(target=holder.obey, daemon=True).start()
    say(holder.wait())
    os._exit(0)


def say(message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the actor is gone
        os.write(1, json.dumps(message).encode() + b"\n")


class ChildHolder:
    """One child, from start to end."""

    def __init__(self, command: list[str], head: str) -> None:
        self._head = head
        self._child = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._tail = ErrorTail()

    def start(self, settings: dict[str, Any], within_s: float) -> dict[str, Any]:
        """Hand the child its settings; return {"host", "port", "fingerprint"} as it says them, or {"failed": why}."""
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._tail.follow(child.stderr)
        threading.Thread(target=self._read_answer, args=(child.stdout, answers), daemon=True).start()
        try:
            child.stdin.write(json.dumps(settings).encode() + b"\n")
            child.stdin.flush()
            found = json.loads(answers.get(timeout=within_s))
            return {name: kind(found.get(name, "")) for name, kind in ANSWER.items()}
        except queue.Empty:
            why = f"it did not say its port within {within_s:g} s{self._tail.text()}"
        except (OSError, ValueError, AttributeError, TypeError):  # it ended, or wrote something else
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(LAST_S)
            why = "it wrote no port" if child.poll() is None else self._exit_text()
        self.end()
        return {"failed": why}

    def wait(self) -> dict[str, Any]:
        """Wait for the child's end; say why it ended."""
        code = self._child.wait()
        return {"why": self._exit_text(), "in_order": code == 0}

    def obey(self) -> None:
        """End the child when the actor says so, or when it is gone and Ray's head is not (Rule 3)."""
        if not sys.stdin.readline():
            host, _, port = self._head.rpartition(":")
            pause = threading.Event()
            while knock(host.strip("[]"), int(port)):
                pause.wait(HEAD_EVERY_S)
        self.end()

    def end(self) -> None:
        """End the child: by its lifeline, or else by force."""
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        try:
            self._child.wait(LAST_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def _read_answer(self, stream: IO[bytes], answers: queue.SimpleQueue[bytes]) -> None:
        answers.put(stream.readline(65536))
        self._tail.drain(stream)

    def _exit_text(self) -> str:
        self._tail.settle()
        return f"{exit_cause(self._child.returncode)}{self._tail.text()}"


class ErrorTail:
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
            self._thread.join(LAST_S)

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


if __name__ == "__main__":
    main()
