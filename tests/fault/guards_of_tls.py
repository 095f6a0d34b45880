"""The guards of TLS to remote workers (see `guards`)."""

from __future__ import annotations

from tests.fault.guards import guard
from tests.fault.markers import never, removed, replaced

TLS = "fault/test_tls.py::test_"

TLS_GUARDS = [
    guard(
        "another certificate is refused before anything is said",
        f"{TLS}another_certificate_is_refused_before_anything_is_said",
        never("tls-fingerprint"),
    ),
    guard(
        "a TLS handshake has one deadline",
        f"{TLS}a_handshake_that_drips_is_refused_in_time[worker]",
        replaced("tls-deadline", "sock.settimeout(None)"),
    ),
    guard(
        "a worker speaks TLS 1.3 only",
        f"{TLS}an_older_tls_is_refused",
        removed("tls-version"),
    ),
    guard(
        "a worker without TLS is not used where TLS is wanted",
        f"{TLS}a_worker_without_tls_is_not_used_where_it_is_wanted[True--0]",
        never("tls-or-nothing"),
    ),
    guard(
        "a loader with TLS gets no worker of another without",
        "unit/test_boat.py::test_loaders_with_tls_and_without_have_workers_of_their_own[True]",
        never("tls-apart"),
    ),
    guard(
        "a tunnel ends with its plain end",
        "fault/test_tunnel.py::test_a_tunnel_ends_with_its_plain_end_although_the_network_takes_nothing",
        never("tunnel-hangup"),
    ),
]
