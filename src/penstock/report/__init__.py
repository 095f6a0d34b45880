"""What a run looked like, on one page: `write_summary(path, trace_path, stats)`."""

from penstock.report.html import write_summary

__all__ = ["write_summary"]
