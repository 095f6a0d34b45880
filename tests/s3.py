"""A small S3 server on the loopback interface: it checks signatures, honours ranges and If-Match, lists in pages, and misbehaves on demand.

Objects are the files below its folder, FOLDER/BUCKET/KEY. While the folder has files BUSY-…, each request takes one of them and does what it
says: a status (429, 503, …), "reset" (the connection), "short" (half of the body, then the end), "stall" (half of the body, then nothing).
GET /-/counts tells, unsigned, how many requests came and how many bytes of objects were sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
KEY, SECRET, REGION = "AKIATEST", "a secret of the tests", "eu-test-1"
PAGE = 50
"""Names in one answer to a listing."""


class S3Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    server: S3Server

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.path == "/-/counts":
            self.answer(200, json.dumps(self.server.counts).encode())
            return
        self.server.count("requests", 1)
        how = self.trouble()
        if how == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
        elif how.isdigit():
            self.fail(int(how), "SlowDown", "Please reduce your request rate.")
        elif why := self.refusal():
            self.fail(403, *why)
        else:
            url = urlsplit(self.path)
            bucket, _, key = unquote(url.path).lstrip("/").partition("/")
            if key:
                self.object(self.server.folder / bucket / key, how)
            else:
                self.listing(bucket, parse_qs(url.query))

    def trouble(self) -> str:
        for file in sorted(self.server.folder.glob("BUSY-*")):
            with contextlib.suppress(FileNotFoundError):  # another request took it
                said = file.read_text()
                file.unlink()
                return said
        return ""

    # ---- signatures: AWS Signature Version 4, as its documentation has it

    def refusal(self) -> tuple[str, str] | None:
        said = self.headers.get("Authorization", "")
        found = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})",
            said,
        )
        if found is None:
            return "AccessDenied", "Access Denied"
        key, day, region, names, signature = found.groups()
        if key != self.server.key or region != REGION:
            return "InvalidAccessKeyId", "The access key is not known."
        if signature != self.signature(day, names.split(";")):
            return "SignatureDoesNotMatch", f"The signature of {key} does not match."
        return None

    def signature(self, day: str, names: list[str]) -> str:
        url = urlsplit(self.path)
        query = "&".join(sorted(part if "=" in part else f"{part}=" for part in url.query.split("&") if part))
        headers = "".join(f"{name}:{' '.join(self.headers.get(name, '').split())}\n" for name in names)
        body = self.headers.get("x-amz-content-sha256", "")
        request = "\n".join([self.command, url.path, query, headers, ";".join(names), body])
        scope = f"{day}/{REGION}/s3/aws4_request"
        digest = hashlib.sha256(request.encode()).hexdigest()
        text = "\n".join(["AWS4-HMAC-SHA256", self.headers.get("x-amz-date", ""), scope, digest])
        key = f"AWS4{self.server.secret}".encode()
        for part in (day, REGION, "s3", "aws4_request", text):
            key = hmac.digest(key, part.encode(), "sha256")
        return key.hex()

    # ---- answers

    def object(self, path: Path, how: str) -> None:
        if not path.is_file():
            self.fail(404, "NoSuchKey", "The specified key does not exist.")
            return
        data, changed_s = path.read_bytes(), path.stat().st_mtime
        tags = {
            "ETag": f'"{hashlib.md5(data).hexdigest()}"',
            "Last-Modified": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(changed_s)),
        }
        if self.headers.get("If-Match", tags["ETag"]) != tags["ETag"] and not self.server.careless:
            self.fail(412, "PreconditionFailed", "At least one of the preconditions did not hold.")
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            self.send(200, data, tags, how)
            return
        start, end = int(asked[1]), min(int(asked[2] or len(data)) + 1, len(data))
        if start >= len(data):
            self.fail(416, "InvalidRange", "The requested range is not satisfiable")
            return
        self.send(206, data[start:end], tags | {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}, how)

    def listing(self, bucket: str, query: dict[str, list[str]]) -> None:
        root = self.server.folder / bucket
        prefix, after = (query.get(name, [""])[0] for name in ("prefix", "continuation-token"))
        paths = (os.path.join(at, name) for at, _, names in os.walk(root, followlinks=True) for name in names)
        keys = sorted(os.path.relpath(path, root) for path in paths)
        keys = [key for key in keys if key.startswith(prefix) and key > after]
        page, more = keys[:PAGE], len(keys) > PAGE
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{(root / key).stat().st_size}</Size>"
            f'<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"{hashlib.md5((root / key).read_bytes()).hexdigest()}"</ETag></Contents>'
            for key in page
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        body = f"<?xml version='1.0'?><ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>"
        self.answer(200, body.encode(), {"Content-Type": "application/xml"})

    def fail(self, status: int, code: str, message: str) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message><AWSAccessKeyId>{KEY}</AWSAccessKeyId></Error>"
        self.answer(status, body.encode(), {"Content-Type": "application/xml"})

    def send(self, status: int, body: bytes, tags: dict[str, str], how: str) -> None:
        if how not in ("short", "stall"):
            self.server.count("bytes", 0 if self.command == "HEAD" else len(body))
            self.answer(status, body, tags)
            return
        self.answer(status, body, tags, sent=len(body) // 2)
        self.close_connection = True
        if how == "stall":
            time.sleep(60)

    def answer(
        self, status: int, body: bytes, tags: dict[str, str] | None = None, *, sent: int | None = None
    ) -> None:
        self.send_response(status)
        for key, value in {**(tags or {}), "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            if self.command != "HEAD":
                self.wfile.write(body[:sent])
            self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        pass


class S3Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, folder: Path, *, key: str = KEY, secret: str = SECRET, careless: bool = False, port: int = 0
    ) -> None:
        """`careless`: it ignores If-Match, as some stores do."""
        super().__init__(("127.0.0.1", port), S3Handler)
        self.folder, self.key, self.secret, self.careless = folder, key, secret, careless
        self.counts = {"requests": 0, "bytes": 0}
        self._lock = threading.Lock()

    def count(self, what: str, number: int) -> None:
        with self._lock:
            self.counts[what] += number

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), (ConnectionError, ValueError)):
            super().handle_error(request, client_address)


class S3Apart:
    """A server in a process of its own, since tests fork: its URL and its folder."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "tests.s3", str(folder), *options]
        self.folder = folder
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.environ = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
        }

    def busy(self, *troubles: str) -> None:
        for number, trouble in enumerate(troubles):
            (self.folder / f"BUSY-{number:03}").write_text(trouble)

    def counts(self) -> dict[str, int]:
        with urllib.request.urlopen(f"{self.url}/-/counts", timeout=20) as answer:
            found: dict[str, int] = json.load(answer)
            return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextlib.contextmanager
def s3_served(folder: Path, *options: str) -> Iterator[S3Apart]:
    server = S3Apart(folder, *options)
    try:
        yield server
    finally:
        server.close()


if __name__ == "__main__":
    at = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    with S3Server(Path(sys.argv[1]), careless="careless" in sys.argv, port=at) as alone:
        print(f"http://127.0.0.1:{alone.server_port}", flush=True)
        alone.serve_forever()
