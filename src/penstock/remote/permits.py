"""Which files of this machine a remote worker may ask for. Pure: names in, paths out.

Rule 1: a name is allowed if the dataset's own source could be asked for it: a listed file, or one below the dataset's folder with one of
        its endings.
Rule 2: below the folder no part of a name is empty, "." or "..": nothing climbs out. Links are followed, as the dataset follows them.
Rule 3: the path that is opened is the name as the dataset spells it, from the loader's working folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple


class AllowedFile(NamedTuple):
    path: str
    stamp: str
    """Of the file when the loader looked; "": a change is no error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """The files that one loader's dataset reads."""

    cwd: str
    folder: str | None = None
    """As names spell it; "": the working folder. None: only `files`."""
    suffixes: tuple[str, ...] = ()
    files: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Path and stamp by name."""

    def find(self, name: object) -> AllowedFile | None:
        """Return what to open for a name; None: it is none of the dataset's files."""
        if not isinstance(name, str) or "\0" in name:  # guard: permit-text
            return None
        if name in self.files:
            return AllowedFile(*self.files[name])
        if self.folder is None or not self._is_below(name):  # guard: permit-folder
            return None
        if not name.lower().endswith(self.suffixes):  # guard: permit-suffix
            return None
        return AllowedFile(str(PurePosixPath(self.cwd, name)), "")

    def _is_below(self, name: str) -> bool:
        head = f"{self.folder}/" if self.folder else ""
        if not name.startswith(head):
            return False
        return not {"", ".", ".."} & set(name[len(head) :].split("/"))  # guard: permit-climbs

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Permit:
        said = json.loads(text)
        files = {name: (path, stamp) for name, (path, stamp) in said["files"].items()}
        return cls(cwd=said["cwd"], folder=said["folder"], suffixes=tuple(said["suffixes"]), files=files)
