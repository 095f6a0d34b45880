"""Files behind URLs that neither obstore nor our http client reads (hf://, hdfs://, ftp://, memory://, …), through fsspec and its packages."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from penstock.errors import ConfigError, MissingExtra
from penstock.sources.sources import BadRead, PerProcess, RemoteFiles, changed, shown


def require_fsspec() -> Any:
    try:
        return import_module("fsspec")
    except ImportError as exc:
        raise MissingExtra(
            "URLs other than http(s) and those of object stores need fsspec: pip install fsspec"
        ) from exc


@dataclass(slots=True)
class Systems:
    """The fsspec file systems of one process, by protocol and host."""

    made: dict[str, Any] = field(default_factory=dict)

    def of(self, name: str, options: dict[str, Any]) -> tuple[Any, str]:
        core = require_fsspec().core
        kind, _, rest = name.partition("://")
        kind = f"{kind}://{rest.partition('/')[0]}"
        try:
            if kind not in self.made:
                self.made[kind] = core.url_to_fs(
                    name, skip_instance_cache=True, use_listings_cache=False, **options
                )[0]
            system = self.made[kind]
            return system, system._strip_protocol(name)
        except ImportError as exc:
            raise MissingExtra(f"{shown(name)} needs a package that is not installed ({exc})") from exc
        except ValueError as exc:
            raise ConfigError(f"{shown(name)}: {exc}") from exc

    def close(self) -> None:
        self.made.clear()


class FsspecFiles(RemoteFiles):
    """Read files by URL. `options` go to fsspec: keys, endpoints and so on."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self._stamps: dict[str, tuple[int, str]] = {}
        self._systems = PerProcess(Systems)

    def _fetch(self, name: str, start: int, end: int) -> bytes:
        system, path = self._systems.get().of(name, self.options)
        data = bytes(self._call(name, system.cat_file, path, start=start, end=end))
        if len(data) != end - start:
            raise BadRead(
                f"{shown(name)}: {end - start:,} bytes from {start:,} on were asked for, {len(data):,} came"
            )
        return data

    def size(self, name: str) -> int:
        return self._info(name)[0]

    def stamp(self, name: str) -> str:
        found = self._info(name)
        was = self._stamps.setdefault(name, found)
        if was != found:
            raise changed(name, was[1], found[1])
        return found[1]

    def close(self) -> None:
        self._systems.close()

    def _info(self, name: str) -> tuple[int, str]:
        system, path = self._systems.get().of(name, self.options)
        size = self._call(name, system.info, path).get("size")
        if size is None:
            raise BadRead(f"{shown(name)}: its server does not say how large it is")
        return int(size), f"{size}-{self._call(name, system.ukey, path)}"

    def _call(self, name: str, function: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except FileNotFoundError as exc:
            raise FileNotFoundError(exc.errno or 2, os.strerror(2), shown(name)) from exc
        except Exception as exc:  # each store raises its own errors, and some cannot be pickled
            raise BadRead(f"reading {shown(name)} failed: {type(exc).__name__}: {exc}") from exc
