"""CPU per read from an object store, ours beside bare obstore: scripts/bench fetch [--reads N] [--rounds N] [--in-flight N] [--kb N]

A server on this machine answers every range at once, with zeros. Subjects read ranges of `--kb` KB, `--in-flight` at a time:

  asyncio   obstore alone, `get_range_async` in one event loop; it checks neither etag nor length
  threads   obstore alone, `get_range` in a pool of threads; likewise
  ours      `CloudFiles.read` in as many threads: a process that asks, and the fetch service, which checks both; their CPU together
  ours by 8 `CloudFiles.read_many` of 8 ranges, in an eighth of the threads

All keep freed memory, as our workers do. CPU is user and system time of the subject's processes, without the server's. A round measures every subject, in turns; ratios are taken inside a round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socketserver
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _machine import describe

from penstock.sources.fetch import keep_memory

ROOT = Path(__file__).resolve().parent.parent
SUBJECTS = ("asyncio", "threads", "ours", "ours by 8")
WARM = 200
ANSWER = (
    b"HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\nContent-Range: bytes %d-%d/%d\r\n"
    b'ETag: "x"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n\r\n'
)


class Zeros(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        said, body = b"", bytes(64 << 20)
        while True:
            while b"\r\n\r\n" not in said:
                more = self.request.recv(1 << 16)
                if not more:
                    return
                said += more
            head, _, said = said.partition(b"\r\n\r\n")
            found = re.search(rb"(?i)\r\nrange: bytes=(\d+)-(\d+)", head)
            assert found, head
            start, end = int(found[1]), int(found[2]) + 1
            self.request.sendall(ANSWER % (end - start, start, end - 1, 1 << 60))
            self.request.sendall(memoryview(body)[: end - start])


def serve() -> None:
    class Server(socketserver.ThreadingTCPServer):
        daemon_threads, request_queue_size = True, 256

    with Server(("127.0.0.1", 0), Zeros) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def in_threads(read: Callable[[int], Any], pool: ThreadPoolExecutor, count: int) -> None:
    for _ in pool.map(read, range(count)):
        pass


def measure(subject: str, reads: int, in_flight: int, nbytes: int) -> None:
    """Read in this process; print CPU ms and wall ms per read."""
    keep_memory()
    others: list[int] = []
    by = 8 if subject == "ours by 8" else 1
    pool = ThreadPoolExecutor(max(1, in_flight // by))
    if subject.startswith("ours"):
        from penstock.sources.cloud import CloudFiles

        files = CloudFiles()

        def read(number: int) -> None:
            starts = range(
                number << 32, (number << 32) + by * 2 * nbytes, 2 * nbytes
            )  # too far apart to be joined
            files.read_many([("s3://bucket/data", start, start + nbytes) for start in starts])

        def run(count: int) -> None:
            in_threads(read, pool, count // by)

        files.read("s3://bucket/data", 0, 1)
        others = [files._streams.get().idle[0].pid]
    else:
        import obstore
        from obstore.store import from_url

        store = from_url("s3://bucket", client_options={"allow_http": True}, retry_config={"max_retries": 0})

        def bare(number: int) -> None:
            bytes(obstore.get_range(store, "data", start=number * 1000, length=nbytes))

        async def all_of(count: int) -> None:
            limit = asyncio.Semaphore(in_flight)

            async def one(number: int) -> None:
                async with limit:
                    bytes(await obstore.get_range_async(store, "data", start=number * 1000, length=nbytes))

            await asyncio.gather(*map(one, range(count)))

        def run(count: int) -> None:
            if subject == "asyncio":
                asyncio.run(all_of(count))
            else:
                in_threads(bare, pool, count)

    run(WARM)
    began_s, was = time.monotonic(), time.process_time() + sum(map(cpu_s, others))
    run(reads)
    used, wall_s = time.process_time() + sum(map(cpu_s, others)) - was, time.monotonic() - began_s
    print(json.dumps({"cpu_ms": 1e3 * used / reads, "wall_ms": 1e3 * wall_s / reads}), flush=True)
    if not subject.startswith("ours"):
        os._exit(0)  # obstore's own threads sometimes abort in the interpreter's end


Reading = dict[str, list[dict[str, float]]]
"""Figures of each subject, a round each."""


def compared(
    file: str, doc: str, subjects: Sequence[str], measure: Callable[[str, int, int, int], None]
) -> Reading:
    """Measure subjects in turns, each in a process of its own, over one server; say how. Those processes end here."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reads", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--kb", type=int, default=110)
    parser.add_argument("--subject", choices=(*subjects, "server"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.subject == "server":
        serve()
        sys.exit()
    if given.subject is not None:
        measure(given.subject, given.reads, given.in_flight, given.kb * 1000)
        sys.exit()
    command = [sys.executable, file, *sys.argv[1:], "--subject"]
    server = subprocess.Popen([*command, "server"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    found: Reading = {subject: [] for subject in subjects}
    try:
        environ = {
            **os.environ,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.stdout.readline().strip()}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "here",
            "AWS_ALLOW_HTTP": "true",
            "NO_PROXY": "127.0.0.1",
        }
        for number in range(given.rounds):
            for subject in subjects[:: 1 if number % 2 else -1]:
                said = subprocess.run(
                    [*command, subject], env=environ, stdout=subprocess.PIPE, check=True
                ).stdout
                found[subject].append(json.loads(said))
    finally:
        server.kill()
        server.wait()
    print(
        f"{given.kb} KB a read, {given.in_flight} in flight, {given.reads} reads a round, {given.rounds} rounds"
    )
    return found


def main() -> None:
    found = compared(__file__, __doc__ or "", SUBJECTS, measure)
    for subject, rows in found.items():
        cpu = [row["cpu_ms"] for row in rows]
        ratios = {
            base: statistics.median(
                row["cpu_ms"] / other["cpu_ms"] for row, other in zip(rows, found[base], strict=True)
            )
            for base in SUBJECTS[:2]
        }
        print(
            f"{subject:9} CPU ms per read {statistics.median(cpu):.3f} ({min(cpu):.3f} to {max(cpu):.3f}), "
            f"of asyncio {ratios['asyncio']:.2f}, of threads {ratios['threads']:.2f}, "
            f"wall ms per read {statistics.median(row['wall_ms'] for row in rows):.3f}"
        )
    print(json.dumps(describe(ROOT)))


if __name__ == "__main__":
    main()
