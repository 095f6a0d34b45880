"""What the gateway says of clusters that it cannot join, and the private parts of Ray that it asks them with."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

import pytest

from penstock.remote.joining import judge
from penstock.remote.probe import Finding


def ray_version() -> str:
    try:
        return metadata.version("ray")
    except metadata.PackageNotFoundError:
        pytest.skip("Ray is not installed")


def finding(**more: Any) -> Finding:
    """Return a cluster with a token that is right, and the same versions as here."""
    return Finding(
        **{
            "address": "head:1",
            "has_token": True,
            "python": platform.python_version(),
            "ray": ray_version(),
            **more,
        }
    )


def verdict(found: Finding, *, mode: str | None = "token", allow_unauthenticated: bool = False) -> str:
    return judge("head:1", found, allow_unauthenticated=allow_unauthenticated, mode=mode)


def test_a_cluster_like_ours_may_be_joined() -> None:
    assert verdict(finding()) == ""
    assert verdict(finding(), mode=None) == ""


@pytest.mark.parametrize(
    ("more", "says", "do"),
    [
        ({"address": "", "unreachable": "none"}, "no Ray cluster was found", "RAY_ADDRESS=host:port"),
        ({"unreachable": "refused"}, "no Ray cluster answers at head:1 (refused)", "check the address"),
        ({"is_open": True}, "has no authentication", "allow_unauthenticated=True"),
        ({"has_token": False, "refused": "…"}, "needs a token, and there is none here", "RAY_AUTH_TOKEN"),
        (
            {"refused": "InvalidAuthToken: long text"},
            "did not accept this machine's token: ",
            "ray get-auth-token",
        ),
        (
            {"refused": "Timeout: long text"},
            "did not accept this machine's token (Timeout: long text): ",
            "ray get-auth-token",
        ),
        ({"python": "3.2.1"}, "runs Python 3.2.1, and this is ", "same minor version"),
        ({"ray": "1.0"}, "runs Ray 1.0, and this is ", "pip install 'ray==1.0'"),
        (
            {"is_node": False},
            "this machine is no node of the Ray cluster",
            "ray start --address=head:1 --num-cpus=0",
        ),
    ],
)
def test_why_not_and_what_to_do_is_one_sentence(more: dict[str, Any], says: str, do: str) -> None:
    text = verdict(finding(**more))
    assert says in text
    assert do in text
    assert "\n" not in text


def test_a_cluster_without_authentication_is_used_if_the_user_says_so() -> None:
    assert verdict(finding(is_open=True, has_token=False), allow_unauthenticated=True, mode=None) == ""


def test_authentication_that_is_off_here_is_told() -> None:
    assert "set RAY_AUTH_MODE=token" in verdict(finding(), mode="disabled")


def test_another_patch_level_of_python_is_the_same() -> None:
    minor = ".".join(platform.python_version().split(".")[:2])
    assert verdict(finding(python=f"{minor}.99")) == ""


def test_ray_has_the_private_parts_that_the_probe_uses() -> None:
    ray_version()
    from ray._common.usage.usage_constants import CLUSTER_METADATA_KEY
    from ray._private.ray_constants import KV_NAMESPACE_CLUSTER
    from ray._private.services import canonicalize_bootstrap_address, find_node_ids
    from ray._raylet import AuthenticationTokenLoader, Config, InnerGcsClient

    assert callable(canonicalize_bootstrap_address)
    assert callable(find_node_ids)
    assert isinstance(CLUSTER_METADATA_KEY, bytes)
    assert isinstance(KV_NAMESPACE_CLUSTER, bytes)
    assert hasattr(AuthenticationTokenLoader.instance(), "reset_cache")
    assert hasattr(Config, "initialize")
    assert hasattr(InnerGcsClient, "standalone")
    assert hasattr(InnerGcsClient, "internal_kv_get")
