"""The process of a worker on another machine: `python -m penstock.remote.server`.

Whoever starts it writes one line of JSON to its stdin, {"key": …, "host": address to listen on, "tls": bool}, and reads one from its
stdout, {"host": …, "port": …, "fingerprint": of its certificate, "" without TLS}. It serves one ferry, which must know the key; it ends
when that connection ends, or when its stdin closes.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import ssl
import sys
import threading
import time
from typing import Any

from penstock.errors import MissingExtra
from penstock.measure.host import name_process
from penstock.remote.fingerprint import fingerprint
from penstock.remote.frames import SPEC, Net
from penstock.remote.handshake import Role, greet
from penstock.remote.outlet import Outlet, steady
from penstock.remote.send_buffers import SendBuffers
from penstock.remote.worker import RemoteWorker, failure_text
from penstock.wire.frames import Msg
from penstock.wire.pickles import loads
from penstock.worker.entry import bind_to, keep_memory

GREETING_S = 5.0
"""Time to prove that one knows the key."""
STRANGERS = 8
"""Connections that may be proving it at a time; further ones are closed at once."""
LONELY_S = 120.0
"""Time until the ferry must have come."""
LAST_S = 2.0
SWITCH_S = 0.0005
"""With TLS: how long a dataset in pure Python may keep the interpreter from the tunnel's thread. Python's own 5 ms let 52 MiB/s through
beside one, this 327 (2 cores)."""


def main() -> None:
    os.set_blocking(0, False)
    given = read_line(within_s=30.0)
    bind_to(0)  # from here on the kernel kills us when stdin closes
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    name_process("penstock remote")
    context, print_ = certified() if given.get("tls") else (None, "")
    listener = socket.create_server((given["host"], 0), backlog=16)
    host, port = listener.getsockname()[:2]
    os.write(1, json.dumps({"host": host, "port": port, "fingerprint": print_}).encode() + b"\n")
    sock = Door(listener, given["key"], f"{host}:{port}", context).first_welcome(LONELY_S)
    if sock is None:
        sys.exit("penstock: nobody with the key connected within 2 minutes")
    serve(sock)


def read_line(within_s: float) -> dict[str, Any]:
    """Read the line of JSON on stdin, without a wait that has no end."""
    data, deadline = b"", time.monotonic() + within_s
    while not data.endswith(b"\n"):
        try:
            chunk = os.read(0, 4096)
        except BlockingIOError:
            if time.monotonic() > deadline:
                sys.exit("penstock: no settings arrived on stdin")
            time.sleep(0.01)
            continue
        if not chunk:
            sys.exit("penstock: stdin was closed before the settings came")
        data += chunk
    found: dict[str, Any] = json.loads(data)
    return found


def certified() -> tuple[ssl.SSLContext, str]:
    from penstock.remote.tls import one_time_certificate

    sys.setswitchinterval(SWITCH_S)
    try:
        return one_time_certificate()
    except MissingExtra as exc:
        sys.exit(f"penstock: {exc}")


class Door:
    """Lets in the first one who knows the key; others cost a thread for a few seconds at most."""

    def __init__(
        self, listener: socket.socket, key: str, address: str, tls: ssl.SSLContext | None = None
    ) -> None:
        self._listener, self._key, self._address, self._tls = listener, key, address, tls
        self._welcome: socket.socket | None = None
        self._come = threading.Event()
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(STRANGERS)

    def first_welcome(self, within_s: float) -> socket.socket | None:
        deadline = time.monotonic() + within_s
        self._listener.settimeout(0.2)
        while not self._come.is_set() and time.monotonic() < deadline:
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                continue
            if not self._places.acquire(blocking=False):  # guard: strangers-bounded
                sock.close()
                continue
            threading.Thread(target=self._meet, args=(sock,), daemon=True).start()
        self._listener.close()
        return self._welcome

    def _meet(self, sock: socket.socket) -> None:
        try:
            link = self._greeted(sock)
        except OSError:
            sock.close()
        else:
            with self._lock:  # the key is good for one connection
                if self._welcome is None:
                    self._welcome = link
                    self._come.set()
                else:
                    link.close()
        finally:
            self._places.release()

    def _greeted(self, sock: socket.socket) -> socket.socket:
        """Return what stands for a connection of one who knows the key."""
        deadline_s = time.monotonic() + GREETING_S
        steady(sock)
        if self._tls is None:
            greet(sock, self._key, role=Role.WORKER, address=self._address, within_s=GREETING_S)
            return sock
        from penstock.remote.tls import accept_tls
        from penstock.remote.tunnel import tunnelled

        tls = accept_tls(sock, self._tls, within_s=GREETING_S)
        try:
            left_s = deadline_s - time.monotonic()
            greet(tls, self._key, role=Role.WORKER, address=self._address, within_s=left_s)
        except BaseException:
            tls.close()
            raise
        return tunnelled(tls)


def serve(sock: socket.socket) -> None:
    """Work for the ferry until it goes. Settings may come again and again, one loader after the other."""
    sock.settimeout(None)
    keep_memory()
    scratch = SendBuffers()
    outlet = Outlet(sock, lambda: scratch.board.row(0).tobytes())
    outlet.send(Net.HELLO, json.dumps(fingerprint()).encode())
    blob = b""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while (settings := outlet.next_settings()) is not None:
            number, _, nbytes = SPEC.unpack_from(settings)
            blob = settings[SPEC.size :] if nbytes else blob
            work(blob, number, outlet, scratch)
            gc.collect()  # the dataset of the last loader
    outlet.drain(LAST_S)


def work(blob: bytes, number: int, outlet: Outlet, scratch: SendBuffers) -> None:
    """Be worker `number` of a loader until other settings come."""
    try:
        spec = loads(blob)
    except Exception:  # noqa: BLE001 - the user's code; its error is sent on
        outlet.send(
            Msg.INIT_FAILED, failure_text(f"while the dataset was loaded on {socket.gethostname()}", number)
        )
        return
    worker = RemoteWorker(spec, number, outlet, scratch)
    worker.start()
    worker.run()


if __name__ == "__main__":
    main()
