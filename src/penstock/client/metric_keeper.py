"""Keeps the measured rates of a workload between runs: a loader's first agent starts from stored rates, and its decisions are saved.

Rule 1: saving happens in a thread of its own: a slow or locked folder must not stop training. It ends before an agent is forked: a child
        must not inherit SQLite's locks.
Rule 2: nothing here is an error, nor a warning. `trouble` says in one line what failed, for `explain()`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from penstock.daemon_threads import leaves
from penstock.measure.metric_store import ACTIVE, PASSIVE, MetricStore, StoredMetrics, Workload
from penstock.policy.course_state import OffloadTerms
from penstock.policy.course_values import packed
from penstock.policy.offload import Metrics
from penstock.policy.restored import restored

SWITCH = "PENSTOCK_STORED_METRICS"
"""Environment variable; "0": nothing is read or stored."""
LEAVING_S = 5.0


class MetricKeeper:
    def __init__(self) -> None:
        self.trouble = ""
        """Why rates are not kept, if so."""
        self._workload: Workload | None = None
        self._known: Metrics | None = None
        """The metrics in the store."""
        self._thread: threading.Thread | None = None

    def recalled(self, identify: Callable[[], Workload], terms: OffloadTerms) -> str:
        """Return the course to begin with, as text; "": nothing is stored, or it is of no use."""
        self.settle()
        if os.environ.get(SWITCH) == "0":
            self._workload = None
            return ""
        try:
            self._workload = identify()
        except Exception as exc:  # noqa: BLE001 - it asks the user's dataset and transforms for their texts
            self.trouble = f"measured rates are not kept between runs: the dataset has no identity ({type(exc).__name__}: {exc})"
            return ""
        store = MetricStore(quiet=True)
        row = store.row(self._workload)
        self.trouble = store.trouble
        if row is None or row.metrics is None:
            return ""
        self._known = row.metrics
        return packed(restored(row.metrics, terms, origin_of(row)))

    def keep(self, metrics: Metrics) -> None:
        """Save metrics in the background, unless the store has them already."""
        workload, thread = self._workload, self._thread
        if workload is None or metrics == self._known or (thread is not None and thread.is_alive()):
            return
        self._known = metrics
        self._thread = threading.Thread(
            target=self._save, args=(workload, metrics), name="penstock metrics", daemon=True
        )
        leaves(self._thread, lambda: None)
        self._thread.start()

    def _save(self, workload: Workload, metrics: Metrics) -> None:
        store = MetricStore(quiet=True)
        store.save(workload, metrics, PASSIVE)
        self.trouble = store.trouble

    def settle(self) -> None:
        """Wait until saving has ended."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(LEAVING_S)

    def __reduce__(self) -> tuple[type[MetricKeeper], tuple[()]]:
        return MetricKeeper, ()


def origin_of(row: StoredMetrics) -> str:
    by = "penstock profile" if row.how == ACTIVE else "an earlier run"
    return f"stored on {time.strftime('%Y-%m-%d', time.localtime(row.made_s))} by {by}"
