"""Two certificates with their keys, made once by `one_time_certificate`: tests of TLS need no package then. They protect nothing."""

from __future__ import annotations

import ssl

from penstock.remote.tls import fingerprint_of

ONE = b"""\
-----BEGIN CERTIFICATE-----
MIIBJTCBzKADAgECAhQ00TBa3LaXT9vrcZ+S1L4tUbUU8zAKBggqhkjOPQQDAjAT
MREwDwYDVQQDDAhwZW5zdG9jazAeFw0yNjExMTgwODQwNDBaFw0yNjExMTkwODQw
NDBaMBMxETAPBgNVBAMMCHBlbnN0b2NrMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcD
QgAEf978s/xFG5mH88lMd8h68ZyPFmpI4rXj2QIQqU3sIhqMYEShWU6uWKHc6QV7
tI/UDaxdXKpc/ZO/tthUdWFZgTAKBggqhkjOPQQDAgNIADBFAiEAnV1ZOpMobwLy
kZIn9uQxjBzdTHp22NU4kRlsoce2kBwCIBzLsiH+qqQD2yhHdd24VHWj70dIe6PZ
y8ZbGy+7xF7i
-----END CERTIFICATE-----
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQguD9oEJCFC51LcuNU
i4aqTtQDyoi3le2t7zdXhLAcF0qhRANCAAR/3vyz/EUbmYfzyUx3yHrxnI8Wakji
tePZAhCpTewiGoxgRKFZTq5YodzpBXu0j9QNrF1cqlz9k7+22FR1YVmB
-----END PRIVATE KEY-----
"""

OTHER = b"""\
-----BEGIN CERTIFICATE-----
MIIBJDCBzKADAgECAhQzPV4QGlEe6fZh3EMfQIIy2Nq8VTAKBggqhkjOPQQDAjAT
MREwDwYDVQQDDAhwZW5zdG9jazAeFw0yNjExMTgwODQwNDBaFw0yNjExMTkwODQw
NDBaMBMxETAPBgNVBAMMCHBlbnN0b2NrMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcD
QgAEyJM9yp3Of6Md7jKH8FaMfHzfGDfzfsh31f64fG0u/6P3epKi6Edh/KEIjgqW
SvbdZ/F2FNNO5Yd3ygYjNBfJtzAKBggqhkjOPQQDAgNHADBEAiBP/3Qpclmhhf7b
T1g2AZA2WGbB32JWc5zwak1bYTABAwIgK3rtEtxqlk7aD5jhk7o13FA2ahfD0jrj
qoY+oPseVSE=
-----END CERTIFICATE-----
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgPVepo3SXY2RJZaVP
3sXR0hg5IgAKQl0NfgiTaya6YZKhRANCAATIkz3Knc5/ox3uMofwVox8fN8YN/N+
yHfV/rh8bS7/o/d6kqLoR2H8oQiOCpZK9t1n8XYU007lh3fKBiM0F8m3
-----END PRIVATE KEY-----
"""


def print_of(pem: bytes) -> str:
    """The fingerprint of a certificate."""
    text = pem.decode()
    end = "-----END CERTIFICATE-----"
    return fingerprint_of(ssl.PEM_cert_to_DER_cert(text[: text.index(end) + len(end)]))
