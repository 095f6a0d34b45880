"""Ask a Ray cluster who it is, before Ray's driver does: a program of its own, because Ray waits for a minute and may end its process.

This is the one file that uses private parts of Ray (`tests/unit/test_joining.py` checks that they are there). It prints one line of
JSON: a `Finding`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from dataclasses import asdict, dataclass
from typing import Any

TCP_S = 3.0
CALL_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is known of a cluster; later fields are empty where an earlier one says that there is nothing to ask."""

    address: str = ""
    """host:port of its GCS; empty if none was found."""
    unreachable: str = ""
    """Why nothing answers there."""
    is_open: bool = False
    """It answers without a token."""
    has_token: bool = False
    """This machine has one."""
    refused: str = ""
    """What it answers to our token, if it does not accept it."""
    python: str = ""
    ray: str = ""
    is_node: bool = True
    """This machine is a node of it, or of another cluster."""


def probe(address: str) -> Finding:
    """Find the cluster of `address` ("auto" or host:port) and ask it with and without a token."""
    from ray._private import services

    try:
        found = services.canonicalize_bootstrap_address(address)
    except (ConnectionError, ValueError) as exc:
        return Finding(unreachable=str(exc))
    if not found:
        return Finding(unreachable="no running cluster was found")
    host, _, port = found.rpartition(":")
    unreachable = knock(host.strip("[]"), int(port))
    if unreachable:
        return Finding(address=found, unreachable=unreachable)
    return _ask(found)


def knock(host: str, port: int) -> str:
    """Return why no TCP connection can be made there; "" if one can."""
    try:
        socket.create_connection((host, port), timeout=TCP_S).close()
    except TimeoutError:
        return f"no answer within {TCP_S:g} s"
    except OSError as exc:
        return exc.strerror or str(exc)
    return ""


def _ask(address: str) -> Finding:
    from ray._private import services
    from ray._raylet import AuthenticationTokenLoader
    from ray.exceptions import AuthenticationError

    try:
        has_token = bool(AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True))
    except AuthenticationError:  # RAY_AUTH_TOKEN_PATH names no file
        has_token = False
    mode = os.environ.get("RAY_AUTH_MODE") or None
    versions, refused = _versions(address, "disabled")
    is_open = not refused
    if refused and not refused.startswith(
        "AuthenticationError"
    ):  # only a refusal shows that tokens are asked for
        return Finding(address=address, unreachable=refused)
    if refused and has_token:
        versions, refused = _versions(address, "token" if mode in (None, "disabled") else mode)
    return Finding(
        address=address,
        is_open=is_open,
        has_token=has_token,
        refused=refused,
        python=versions.get("python_version", ""),
        ray=versions.get("ray_version", ""),
        is_node=bool(services.find_node_ids()),
    )


def _versions(address: str, mode: str) -> tuple[dict[str, str], str]:
    """Return the cluster's metadata, asked for in this mode of authentication, or why it was refused."""
    from ray._common.usage.usage_constants import CLUSTER_METADATA_KEY
    from ray._private.ray_constants import KV_NAMESPACE_CLUSTER
    from ray._raylet import AuthenticationTokenLoader, Config, InnerGcsClient

    os.environ["RAY_AUTH_MODE"] = mode
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
    try:
        client = InnerGcsClient.standalone(address, None, int(CALL_S * 1000))
        found: Any = client.internal_kv_get(CLUSTER_METADATA_KEY, KV_NAMESPACE_CLUSTER, timeout=CALL_S)
    except Exception as exc:  # noqa: BLE001 - Ray's errors have many types here; all mean that it did not answer
        return {}, f"{type(exc).__name__}: {exc}"
    with contextlib.suppress(ValueError, TypeError):
        return json.loads(found), ""
    return {}, ""


def main() -> None:
    sys.stdout.write(json.dumps(asdict(probe(sys.argv[1]))) + "\n")


if __name__ == "__main__":
    main()
