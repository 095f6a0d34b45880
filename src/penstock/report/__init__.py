"""What a run looks like: `progress(loader)` while it lasts, `write_summary(path, trace_path, stats)` on one page afterwards."""

from penstock.report.display import progress
from penstock.report.html import write_summary

__all__ = ["progress", "write_summary"]
