"""The program that the command line runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A user's program with its arguments."""

    script: str
    """A file; with `module`, a module name as for `python -m`."""
    args: tuple[str, ...] = ()
    module: bool = False

    def __post_init__(self) -> None:
        if not self.module and not Path(self.script).exists():
            raise ConfigError(f"there is no script {self.script!r} in {Path.cwd()}")

    def words(self) -> list[str]:
        return [*(["-m"] if self.module else []), self.script, *self.args]
