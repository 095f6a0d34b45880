"""Show a run: `progress(loader)` while it lasts, `write_summary(path, trace_path, stats)` as one page afterwards.

Names are imported on first use: a page needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.report.display import progress
    from penstock.report.html import write_summary

__all__ = ["progress", "write_summary"]

_FROM = {"progress": "penstock.report.display", "write_summary": "penstock.report.html"}


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_FROM[name]), name)
