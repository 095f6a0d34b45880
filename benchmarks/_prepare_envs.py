"""The environments of peers: one each, under .cache/peers, made when first asked for.

Most see the packages of the environment that runs the benchmark, so that torch, NumPy and OpenCV are the same for all and are
installed once; those whose requirements would quarrel with them stand alone. A peer that does not install is a result too: its
reason is printed in the table's notes.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PEERS = Path(__file__).resolve().parent.parent / ".cache" / "peers"
REASON = re.compile(r"\w+Error: |^ERROR: ")
INSTALL_TIMEOUT_S = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    name: str
    packages: tuple[str, ...]
    """What pip is given, options included."""

    imports: str
    """A statement that works once it is installed."""

    shared: bool = True
    """Whether it sees the packages of the environment that runs the benchmark."""

    @property
    def folder(self) -> Path:
        return PEERS / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def stamp(self) -> str:
        said = repr((self.packages, self.shared, sys.prefix, sys.version))
        return hashlib.sha256(said.encode()).hexdigest()


ENVIRONMENTS = {
    env.name: env
    for env in (
        # Its wheel is for a CUDA build of torch; its transforms need no more of it than Python.
        Environment(name="torchvision", packages=("--no-deps", "torchvision==0.28.0"), imports="import PIL"),
        Environment(
            name="albumentations", packages=("albumentations==2.0.8",), imports="import albumentations"
        ),
        Environment(name="grain", packages=("grain==0.2.18",), imports="import grain"),
        Environment(
            name="dali", packages=("nvidia-dali-cuda120==2.4.0",), imports="import nvidia.dali", shared=False
        ),
    )
}


def installed(env: Environment) -> bool:
    stamp = env.folder / ".stamp"
    return stamp.is_file() and stamp.read_text() == env.stamp and env.python.exists()


def make(env: Environment, report: Callable[[str], None]) -> str:
    """Make the environment unless it is there; the reason why not, or nothing."""
    if installed(env):
        return ""
    report(f"installing {env.name} into {env.folder}")
    shutil.rmtree(env.folder, ignore_errors=True)
    env.folder.parent.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--python", str(env.python), "install", "--no-input", "--no-compile"]
    pip += ["--disable-pip-version-check", "--quiet"]
    commands = [[sys.executable, "-m", "venv", "--without-pip", str(env.folder)]]
    commands += [[*pip, *env.packages], [str(env.python), "-c", env.imports]]
    for command in commands:
        reason = _run(command)
        if reason:
            return reason
        if env.shared and "venv" in command:
            _share(env)
    (env.folder / ".stamp").write_text(env.stamp)
    return ""


def _share(env: Environment) -> None:
    """Let it see the packages here, behind its own."""
    (site,) = env.folder.glob("lib/python*/site-packages")
    here = sysconfig.get_path("purelib")
    (site / "shared.pth").write_text(f"import site; site.addsitedir({here!r})\n")


def _run(command: list[str]) -> str:
    """Nothing, or the last of what a failing command said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return f"{type(exc).__name__}: {exc}"
    if done.returncode == 0:
        return ""
    said = (done.stderr or done.stdout).splitlines()
    errors = [line.strip() for line in said if REASON.search(line)]
    return errors[-1] if errors else f"exit status {done.returncode}"
