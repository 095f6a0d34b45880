"""TLS 1.3 between a ferry and a remote worker: a one-time certificate, known by its fingerprint.

Rule 1: the worker makes its key and certificate when it starts; the key is never in a file. The fingerprint reaches the ferry as the key of
        the greeting does. So there is no authority, no name and no clock to check.
Rule 2: the ferry compares the certificate before it says anything inside. TLS has proved by then that the other end holds its key.
Rule 3: the worker knows its ferry by the greeting (`handshake`), which runs inside TLS.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import os
import socket
import ssl

from penstock.errors import MissingExtra


def one_time_certificate() -> tuple[ssl.SSLContext, str]:
    """Return a worker's context, with a new key and certificate, and the certificate's SHA-256 fingerprint in hex."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as exc:
        raise MissingExtra(
            f"tls=True needs the package `cryptography` on {socket.gethostname()}: pip install 'penstock[ray]' there"
        ) from exc
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "penstock")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + dt.timedelta(days=1))  # nobody looks at it: clocks differ
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    text = certificate.public_bytes(pem) + key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return worker_context(text), fingerprint_of(certificate.public_bytes(serialization.Encoding.DER))


def worker_context(pem: bytes) -> ssl.SSLContext:
    """Return a context with this certificate and key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # guard: tls-version
    context.num_tickets = 0  # nobody comes again
    file = os.memfd_create("penstock certificate")
    try:
        os.write(file, pem)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context


def fingerprint_of(certificate: bytes) -> str:
    return hashlib.sha256(certificate).hexdigest()


def accept_tls(sock: socket.socket, context: ssl.SSLContext, *, within_s: float) -> ssl.SSLSocket:
    """Be the worker's end. Takes the socket over; closes it when TLS fails."""
    return _shaken(sock, context, within_s, server=True)


def connect_tls(sock: socket.socket, fingerprint: str, *, within_s: float) -> ssl.SSLSocket:
    """Be the ferry's end; refuse any certificate but this one. Takes the socket over; closes it when it raises."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # its fingerprint is checked instead
    try:
        tls = _shaken(sock, context, within_s, server=False)
    except TimeoutError:
        raise ConnectionError("it did not answer as TLS does in time") from None
    except OSError as exc:
        raise ConnectionError(f"what answers there is not its TLS ({exc})") from exc
    found = fingerprint_of(tls.getpeercert(binary_form=True) or b"")
    if not hmac.compare_digest(found, fingerprint):  # guard: tls-fingerprint
        tls.close()
        raise ConnectionError(
            "its certificate is not that of the worker that was started: another program answers there"
        )
    return tls


def _shaken(sock: socket.socket, context: ssl.SSLContext, within_s: float, *, server: bool) -> ssl.SSLSocket:
    # One deadline for all of the handshake, however slowly bytes arrive.
    sock.settimeout(within_s)  # guard: tls-deadline
    tls = context.wrap_socket(sock, server_side=server, do_handshake_on_connect=False)
    try:
        tls.do_handshake()
    except BaseException:
        tls.close()
        raise
    return tls
