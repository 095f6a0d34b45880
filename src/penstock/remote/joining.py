"""Join a Ray cluster as a driver of our own, or say in one sentence why not and what to do."""

from __future__ import annotations

import json
import logging
import os
import platform
import secrets
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from types import ModuleType

from penstock.errors import MissingExtra, PenstockError
from penstock.remote.probe import Finding

GET_ONE = "set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, or copy ~/.ray/auth_token from the cluster's head (there: `ray get-auth-token`)"


class CannotJoin(PenstockError):
    """There is no cluster to start workers on; the message says what to do."""


def require_ray() -> ModuleType:
    """Import Ray."""
    try:
        import ray
    except ImportError as exc:
        raise MissingExtra("remote workers need Ray: pip install 'penstock[ray]'") from exc
    module: ModuleType = ray
    return module


@dataclass(frozen=True, slots=True)
class Joined:
    """The cluster this process is a driver of."""

    head: str
    """host:port of its GCS."""
    folder: str = ""
    """Where a cluster that was started here keeps its files."""

    def leave(self) -> None:
        """Disconnect; end a cluster that was started here."""
        require_ray().shutdown()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def join(address: str, *, allow_unauthenticated: bool, within_s: float, folder: str = "") -> Joined:
    """Connect this process to the cluster, or start one whose files are in `folder`."""
    deadline_s = time.monotonic() + within_s
    # Another patch level of Python pickles the same; Ray would refuse it.
    os.environ.setdefault("RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL", "minor")
    if address == "local":
        return _start_here(folder)
    mode = os.environ.get("RAY_AUTH_MODE") or None
    found = ask(address, within_s=deadline_s - time.monotonic())
    refusal = judge(address, found, allow_unauthenticated=allow_unauthenticated, mode=mode)
    if refusal:
        raise CannotJoin(refusal)
    os.environ["RAY_AUTH_MODE"] = mode or ("disabled" if found.is_open else "token")
    ray = require_ray()
    try:
        ray.init(found.address, namespace=_namespace(), log_to_driver=False, logging_level=logging.ERROR)
    except Exception as exc:  # whatever Ray raises, the client gets a sentence
        raise CannotJoin(f"Ray did not connect to the cluster at {found.address}: {_one_line(exc)}") from exc
    return Joined(found.address)


def ask(address: str, *, within_s: float) -> Finding:
    """Run the probe."""
    try:
        asked = subprocess.run(
            [sys.executable, "-P", "-m", "penstock.remote.probe", address],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=max(1.0, within_s),
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise CannotJoin(
            f"the Ray cluster at {address} did not answer within {within_s:.0f} s: check `ray status` there, and the network"
        ) from exc
    lines = asked.stdout.strip().splitlines()
    if asked.returncode or not lines:
        if "No module named 'ray'" in asked.stderr:
            require_ray()
        raise CannotJoin(f"the Ray cluster at {address} could not be asked: {_one_line(asked.stderr)}")
    return Finding(**json.loads(lines[-1]))


def judge(address: str, found: Finding, *, allow_unauthenticated: bool, mode: str | None) -> str:
    """Return why this cluster is not to be used, and what to do; "" if it is."""
    if not found.address:
        return (
            f"no Ray cluster was found for address={address!r}: set RAY_ADDRESS=host:port, start one (`ray start --head`), or use "
            f"address='local' to try it on this machine"
        )
    if found.unreachable:
        return (
            f"no Ray cluster answers at {found.address} ({found.unreachable}): check the address and that its head runs (`ray "
            f"status` there)"
        )
    if found.is_open and not allow_unauthenticated:
        return (
            f"the Ray cluster at {found.address} has no authentication, so anyone who reaches it can run code on it: start it "
            f"with RAY_AUTH_MODE=token (`ray get-auth-token --generate`), or say allow_unauthenticated=True"
        )
    if not found.is_open and not found.has_token:
        return f"the Ray cluster at {found.address} needs a token, and there is none here: {GET_ONE}"
    if not found.is_open and mode == "disabled":
        return f"the Ray cluster at {found.address} needs a token, and RAY_AUTH_MODE=disabled here: set RAY_AUTH_MODE=token"
    if found.refused:
        why = "" if "InvalidAuthToken" in found.refused else f" ({_one_line(found.refused)})"
        return f"the Ray cluster at {found.address} did not accept this machine's token{why}: {GET_ONE}"
    return _judge_versions(found)


def _judge_versions(found: Finding) -> str:
    here = platform.python_version()
    if found.python and found.python.split(".")[:2] != here.split(".")[:2]:
        return (
            f"the Ray cluster at {found.address} runs Python {found.python}, and this is {here}: both need the same minor version, "
            f"so make one environment from the other's"
        )
    ray_here = version("ray")  # Ray itself reads RAY_AUTH_MODE when it is imported, and that is not set yet
    if found.ray and found.ray != ray_here:
        return f"the Ray cluster at {found.address} runs Ray {found.ray}, and this is {ray_here}: pip install 'ray=={found.ray}'"
    if not found.is_node:
        return (
            f"this machine is no node of the Ray cluster at {found.address}: run `ray start --address={found.address} "
            f"--num-cpus=0` here"
        )
    return ""


def _start_here(folder: str) -> Joined:
    """Start a cluster of this machine's CPUs, with a token and a folder of its own: the user's are left alone.

    Ray listens on all interfaces, whatever address it is given; hence the token.
    """
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    ray = require_ray()
    try:
        context = ray.init(
            "local",
            namespace=_namespace(),
            num_cpus=len(os.sched_getaffinity(0)),
            include_dashboard=False,
            object_store_memory=80 << 20,  # the least Ray takes: samples do not go through it
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=folder,
        )
    except Exception as exc:
        raise CannotJoin(f"Ray did not start on this machine: {_one_line(exc)}") from exc
    return Joined(str(context.address_info["gcs_address"]), folder)


def _namespace() -> str:
    return f"penstock-{secrets.token_hex(8)}"


def _one_line(trouble: object) -> str:
    lines = str(trouble).strip().splitlines()
    return lines[-1].strip()[:400] if lines else type(trouble).__name__
