"""A small file server on the loopback interface that honours byte ranges, or misbehaves where the path's first part says so.

/ok/NAME      ranges honoured; if the folder has a file CUT, a range that holds the byte it names is broken off half-way
/whole/NAME   ranges ignored: 200 and the whole file
/all206/NAME  206, but the whole file
/shift/NAME   206, but other bytes than asked for
/short/NAME   206, the right head, too short a body, and the connection closed
/long/NAME    206, the right head, no length, too long a body
/moved/NAME   a redirect to /ok/NAME
/gzip/NAME    206, but the body is said to be compressed
/error/NAME   503
/busy/NAME    as /ok, but while the folder has files BUSY-…, each request takes one of them: 503 (or the status in it, or "reset", "cut"), and
              with a second word in it that as Retry-After
/refuse/NAME  403
/close/NAME   as /ok, but the connection is closed after each answer without saying so
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        _, how, name = self.path.partition("?")[0].split("/", 2)
        path = self.server.folder / name
        if how == "moved":
            self.answer(302, b"", {"Location": f"/ok/{name}"})
        elif how == "busy" and (said := self.trouble()):
            self.troubled(said, path)
        elif how == "refuse":
            self.answer(403, b"", {})
        elif how == "error":
            self.answer(503, b"come again later", {})
        elif not path.is_file():
            self.answer(404, b"", {})
        elif how == "whole":
            self.answer(200, path.read_bytes(), {})
        else:
            self.ranged(how, path)

    def trouble(self) -> str:
        """What the next BUSY file says; it is gone then."""
        for file in sorted(self.server.folder.glob("BUSY-*")):
            with contextlib.suppress(FileNotFoundError):  # another request took it
                said = file.read_text() or "503"
                file.unlink()
                return said
        return ""

    def troubled(self, said: str, path: Path) -> None:
        what, _, after = said.partition(" ")
        if what == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
        elif what == "cut":
            self.ranged("short", path)
        else:
            self.answer(int(what), b"come again later", {"Retry-After": after} if after else {})

    def ranged(self, how: str, path: Path) -> None:
        data = path.read_bytes()
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"])
        assert found, self.headers["Range"]
        start, end = int(found[1]), min(int(found[2]) + 1, len(data))
        if start >= len(data):
            self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        tags = {"ETag": f'"{len(data)}-{path.stat().st_mtime_ns}"'}
        body = data[start:end]
        if how == "all206":
            body = data
        if how == "shift":
            start += 1
        tags["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        if how == "gzip":
            tags["Content-Encoding"] = "gzip"
        cut = self.server.folder / "CUT"
        if how == "short" or (cut.exists() and start <= int(cut.read_text()) < end):
            self.send_response(206)
            for key, value in {**tags, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif how == "long":
            self.answer(206, body + b"more", tags | {"Connection": "close"}, length=False)
        else:
            self.answer(206, body, tags)
            self.close_connection = self.close_connection or how == "close"

    def answer(self, status: int, body: bytes, tags: dict[str, str], *, length: bool = True) -> None:
        self.send_response(status)
        for key, value in tags.items():
            self.send_header(key, value)
        if length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # a client may turn away from a body it did not ask for
            self.wfile.write(body)
            self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.requests = folder, list[str]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Server]:
    """A server in a thread of this process."""
    with Server(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def served_apart(folder: Path) -> Iterator[str]:
    """A server in a process of its own, for tests that fork; gives its URL."""
    command = [sys.executable, "-m", "tests.web", str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()
            process.wait()


if __name__ == "__main__":
    with Server(Path(sys.argv[1])) as alone:
        print(alone.url, flush=True)
        alone.serve_forever()
