"""An asker's way to a home: a connection, the proof that both know the job's secret, and who asks."""

from __future__ import annotations

import socket
from collections.abc import Callable

from penstock.cache.peer_events import PeerSetting
from penstock.cache.peer_frames import HELLO, VERSION, PeerMsg, pack_message
from penstock.remote.handshake import Role, greet
from penstock.remote.outlet import steady


def dialled(
    address: str, node: int, setting: PeerSetting, making: Callable[[socket.socket], None]
) -> socket.socket:
    """Return what stands for a connection to the machine `node`. `making` is told of the socket before it is connected. OSError: it is not to be had."""
    place, _, fingerprint = address.partition("#")
    host, _, port = place.rpartition(":")
    limits = setting.limits
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        making(sock)
        sock.settimeout(limits.connect_s)
        sock.connect((host, int(port)))
        steady(sock)
        if fingerprint:
            sock = _inside_tls(sock, fingerprint, within_s=limits.greeting_s)
        greet(sock, setting.secret, role=Role.ASKER, address=address, within_s=limits.greeting_s)
        sock.settimeout(limits.connect_s)
        hello = HELLO.pack(VERSION, setting.node, node)
        sock.sendall(pack_message(PeerMsg.HELLO, len(hello), hello))
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return sock


def _inside_tls(sock: socket.socket, fingerprint: str, *, within_s: float) -> socket.socket:
    from penstock.remote.tls import connect_tls
    from penstock.remote.tunnel import tunnelled

    return tunnelled(connect_tls(sock, fingerprint, within_s=within_s))
