"""Stands in for `penstock.remote.server`: the same lines on stdin and stdout, and an echo instead of samples.

A client sends a line to its port: "ping", "crash", "end" or "kill". Arguments: "mute" never says its port, "broken" ends at once.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time


def end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def main() -> None:
    way = sys.argv[1] if len(sys.argv) > 1 else ""
    if way == "broken":
        sys.exit("stand-in: broken as asked")
    given = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with_stdin, daemon=True).start()
    if way == "mute":
        time.sleep(3600)
    listener = socket.create_server((given["host"], 0))
    host, port = listener.getsockname()[:2]
    print(json.dumps({"host": host, "port": port}), flush=True)
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=answer, args=(sock, given["key"]), daemon=True).start()


def answer(sock: socket.socket, key: str) -> None:
    with sock, sock.makefile("rw") as lines:
        for line in lines:
            match line.strip():
                case "crash":
                    print("stand-in: crashed as asked", file=sys.stderr, flush=True)
                    os._exit(3)
                case "end":
                    os._exit(0)
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case _:
                    print(key, socket.gethostname(), os.getpid(), file=lines, flush=True)


if __name__ == "__main__":
    main()
