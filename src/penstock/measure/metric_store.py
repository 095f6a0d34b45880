"""Measured rates and costs of workloads, kept between runs: one SQLite file in the user's cache folder.

Rule 1: a store that fails costs a profile, never a training: nothing here raises, and a process warns once about each file.
Rule 2: a damaged file is set aside and begun anew. Whoever does so holds a lock and looks again: another process may have been faster.
Rule 3: rows of another scheme are neither read nor changed. A file whose tables another scheme has changed is left alone.
Rule 4: the file stays small: old rows and those above a number go whenever one is saved.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from penstock.policy.offload import Metrics, metrics_from

if TYPE_CHECKING:
    import sqlite3

log = logging.getLogger("penstock")

SCHEME = 2
"""Raise it when a metric, or an ingredient of `Workload`, changes its meaning."""
ACTIVE, PASSIVE = "active", "passive"
"""How metrics were measured: by `penstock.profile` and `penstock profile`, or in a running loop."""
LASTS_S = 90 * 86400.0
MOST_ROWS = 1000
LOCKED_S = 1.0
"""How long to wait for another process that writes."""
TABLE = """
CREATE TABLE IF NOT EXISTS metrics (
    key TEXT PRIMARY KEY, setting TEXT NOT NULL, scheme INTEGER NOT NULL, made_s REAL NOT NULL, how TEXT NOT NULL,
    workload TEXT NOT NULL, value TEXT NOT NULL
)"""
INSERT = """
INSERT OR REPLACE INTO metrics (key, setting, scheme, made_s, how, workload, value) VALUES (?, ?, ?, ?, ?, ?, ?)"""
ROWS = "SELECT key, workload, value, how, made_s, scheme FROM metrics"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The identity of what was measured: metrics hold for another run only if all of this is the same."""

    chain: str
    """The dataset and what is done to a sample."""
    model: str = ""
    """The user's name of the model, or a digest of its parameters' names, shapes and types; empty: unknown."""
    batch_size: int
    dtype: str
    """Of image tensors on the device."""
    device: str
    """The accelerator's name, and how it helps to prepare."""
    processor: str
    cores: float
    """Usable ones: affinity and the container's quota."""
    ranks: int = 1
    """Training processes that share them."""
    workers: int
    """Local ones."""
    remote_workers: int = 0
    """At most."""
    plans: tuple[str, ...] = ()
    """Candidates."""
    link: str = ""
    """How remote workers are reached."""

    @property
    def key(self) -> str:
        return digest([SCHEME, asdict(self)])

    @property
    def setting(self) -> str:
        """The same without the model."""
        return digest([SCHEME, {**asdict(self), "model": None}])


def digest(value: object) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


class StoredMetrics(NamedTuple):
    """One row."""

    key: str
    workload: Mapping[str, Any]
    metrics: Metrics | None
    """None: of another scheme, or unreadable."""
    how: str
    made_s: float
    """Seconds since 1970."""


def cache_folder() -> Path:
    """Return the folder of what may be lost: PENSTOCK_CACHE_DIR, else `penstock` in the user's cache folder."""
    own = os.environ.get("PENSTOCK_CACHE_DIR")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "penstock"


def stored(workload: Workload) -> Metrics | None:
    """Return the metrics of a workload, if it was measured before. Without a model: the newest, whichever model they are of."""
    return MetricStore().find(workload)


def save(workload: Workload, metrics: Metrics, how: str) -> bool:
    """Store metrics in place of older ones; return whether that worked."""
    return MetricStore().save(workload, metrics, how)


class MetricStore:
    """The store in a folder. Opens the file for each call, so any process may use it at any time, forked ones too."""

    def __init__(
        self, folder: Path | None = None, clock: Callable[[], float] = time.time, *, quiet: bool = False
    ) -> None:
        """`quiet`: troubles are noted in `trouble` alone."""
        self._folder, self._clock, self._quiet = folder, clock, quiet
        self.trouble = ""
        """Why the last call failed, if it did."""

    @property
    def path(self) -> Path:
        return (self._folder or cache_folder()) / "metrics.sqlite"

    def find(self, workload: Workload) -> Metrics | None:
        row = self.row(workload)
        return None if row is None else row.metrics

    def row(self, workload: Workload) -> StoredMetrics | None:
        """Return the row of a workload."""
        column, key = ("key", workload.key) if workload.model else ("setting", workload.setting)
        query = f"{ROWS} WHERE {column} = ? AND scheme = ? AND made_s > ? ORDER BY made_s DESC LIMIT 1"
        values = (key, SCHEME, self._clock() - LASTS_S)
        found = self._read(lambda db: db.execute(query, values).fetchone(), None)
        return None if found is None else row_of(found)

    def save(self, workload: Workload, metrics: Metrics, how: str) -> bool:
        now_s = self._clock()
        row = (
            workload.key,
            workload.setting,
            SCHEME,
            now_s,
            how,
            json.dumps(asdict(workload)),
            json.dumps(asdict(metrics)),
        )

        def write(db: sqlite3.Connection) -> bool:
            db.execute(TABLE)
            db.execute(INSERT, row)
            db.execute("DELETE FROM metrics WHERE made_s <= ?", (now_s - LASTS_S,))
            newest = "SELECT key FROM metrics ORDER BY made_s DESC, key LIMIT ?"
            db.execute(f"DELETE FROM metrics WHERE key NOT IN ({newest})", (MOST_ROWS,))  # noqa: S608
            return True

        return self._write(write, default=False)

    def rows(self) -> list[StoredMetrics]:
        """Return all rows, newest first."""
        query = f"{ROWS} ORDER BY made_s DESC, key"
        found: list[Any] = self._read(lambda db: db.execute(query).fetchall(), [])
        return [row_of(row) for row in found]

    def forget(self, prefix: str = "") -> int:
        """Drop the rows whose key begins so; return their number."""
        if not self.path.exists():
            return 0
        query, length = "DELETE FROM metrics WHERE substr(key, 1, ?) = ?", len(prefix)
        return self._write(lambda db: db.execute(query, (length, prefix)).rowcount, default=0)

    # ---- the file

    def _read(self, ask: Callable[[sqlite3.Connection], T], default: T) -> T:
        return self._guarded(lambda: self._asked(ask, "ro") if exists(self.path) else default, default)

    def _write(self, ask: Callable[[sqlite3.Connection], T], *, default: T) -> T:
        def attempt() -> T:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return self._asked(ask, "rwc")

        return self._guarded(attempt, default)

    def _asked(self, ask: Callable[[sqlite3.Connection], T], mode: str) -> T:
        import sqlite3

        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=LOCKED_S)) as db, db:
            return ask(db)

    def _guarded(self, attempt: Callable[[], T], default: T) -> T:
        """Return what `attempt` gives, or the default. If the file is damaged, begin it anew and try once more."""
        try:
            import sqlite3
        except ImportError as exc:  # a Python built without it
            return self._without(exc, default)
        try:
            return attempt()
        except sqlite3.OperationalError as exc:  # locked, full, read-only, or tables of another scheme
            return default if "no such table" in str(exc) else self._without(exc, default)
        except sqlite3.DatabaseError as exc:
            try:
                self._begin_anew(exc)
                return attempt()
            except (OSError, sqlite3.Error) as again:
                return self._without(again, default)
        except (OSError, RuntimeError) as exc:  # RuntimeError: there is no home folder
            return self._without(exc, default)

    def _without(self, exc: Exception, default: T) -> T:
        self._say(f"measured rates are not kept between runs ({self._place()}: {exc})")
        return default

    def _say(self, text: str) -> None:
        self.trouble = text
        if not self._quiet:
            warn_once(self._place(), text)

    def _place(self) -> str:
        try:
            return str(self.path)
        except RuntimeError:
            return "~/.cache"

    def _begin_anew(self, cause: Exception) -> None:
        with locked(self.path.with_suffix(".lock")):
            if not self._is_sound():  # another process may have begun it anew meanwhile
                aside = self.path.with_suffix(".damaged")
                self.path.replace(aside)
                self._say(f"{self.path} is damaged ({cause}): set aside as {aside.name}, begun anew")

    def _is_sound(self) -> bool:
        import sqlite3

        try:
            found = self._asked(lambda db: db.execute("PRAGMA quick_check").fetchall(), "ro")
        except sqlite3.OperationalError:
            return True  # it cannot be opened now, which is another trouble
        except sqlite3.DatabaseError:
            return False
        return found == [("ok",)]


@functools.cache
def warnings_about(place: str) -> list[str]:  # noqa: ARG001 - the cache's key
    return []


def warn_once(place: str, text: str) -> None:
    """Log the first trouble with a file; later ones only for debugging."""
    said = warnings_about(place)
    log.log(logging.DEBUG if said else logging.WARNING, "%s", text)
    said.append(text)


def exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder that may not be searched
        return False


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock among processes; OSError if another holds it for too long."""
    import fcntl  # not on Windows

    with path.open("w") as file:
        until_s = time.monotonic() + LOCKED_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.01)
        yield


def row_of(found: tuple[Any, ...]) -> StoredMetrics:
    key, workload, value, how, made_s, scheme = found
    metrics = metrics_in(value) if scheme == SCHEME else None
    return StoredMetrics(key, dict_in(workload), metrics, str(how), made_s)


def metrics_in(text: object) -> Metrics | None:
    """Return the metrics of a row; None if it has none that could be."""
    try:
        return metrics_from(dict_in(text))
    except (TypeError, ValueError, KeyError):
        return None


def dict_in(text: object) -> dict[str, Any]:
    try:
        found = json.loads(str(text))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
