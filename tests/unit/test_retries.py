"""Reads over http that fail for a while are tried again; others are not."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.policy.retry import RetryLimits
from penstock.sources.http import HttpFiles
from penstock.sources.retries import TALLY, retry_after_s
from penstock.sources.sources import BadRead
from tests.web import Server, served

DATA = bytes(range(256)) * 40
QUICK = RetryLimits(first_s=0.01, most_s=0.02)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "data.bin").write_bytes(DATA)
    with served(tmp_path) as server:
        yield server


@pytest.fixture
def http() -> Iterator[HttpFiles]:
    files = HttpFiles(timeout_s=5, limits=QUICK)
    yield files
    files.close()


@pytest.mark.parametrize("trouble", ["408", "429", "500", "502", "503", "504", "reset", "cut"])
def test_a_failure_that_passes_is_tried_again(web: Server, http: HttpFiles, trouble: str) -> None:
    before = TALLY.count
    for number in range(3):
        (web.folder / f"BUSY-{number}").write_text(trouble)
    assert http.read(f"{web.url}/busy/data.bin", 5, 15) == DATA[5:15]
    assert len(web.requests) == 4
    assert TALLY.count - before == 3


@pytest.mark.parametrize("how", ["refuse", "whole", "gzip", "absent"])
def test_a_failure_that_stays_is_not_tried_again(web: Server, http: HttpFiles, how: str) -> None:
    name = "none.bin" if how == "absent" else "data.bin"
    with pytest.raises(OSError, match=r"403|whole file|gzip|No such file"):
        http.read(f"{web.url}/{how}/{name}", 5, 15)
    assert len(web.requests) == 1


def test_a_server_that_says_when_to_come_back_is_not_asked_before(web: Server, http: HttpFiles) -> None:
    (web.folder / "BUSY-0").write_text("503 1")
    began = time.monotonic()
    assert http.read(f"{web.url}/busy/data.bin", 5, 15) == DATA[5:15]
    assert time.monotonic() - began >= 1.0


def test_a_server_that_asks_for_more_than_the_limit_is_an_error_at_once(web: Server, http: HttpFiles) -> None:
    (web.folder / "BUSY-0").write_text("503 86400")
    with pytest.raises(BadRead, match="503"):
        http.read(f"{web.url}/busy/data.bin", 5, 15)
    assert len(web.requests) == 1


def test_retries_end_and_the_error_says_how_many_there_were(web: Server) -> None:
    http = HttpFiles(timeout_s=5, limits=RetryLimits(tries=3, first_s=0.01, most_s=0.02))
    with pytest.raises(BadRead, match="503") as caught:
        http.read(f"{web.url}/error/data.bin", 5, 15)
    assert len(web.requests) == 4
    assert "it was tried 4 times" in caught.value.__notes__[0]
    http.close()


def test_many_retries_are_one_line_in_the_log(
    web: Server, http: HttpFiles, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TALLY, "said_s", None)
    for number in range(5):
        (web.folder / f"BUSY-{number}").write_text("503")
    with caplog.at_level(logging.WARNING, "penstock"):
        http.read(f"{web.url}/busy/data.bin", 5, 15)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "a read is tried again in" in line
    assert "answered 503 Service Unavailable" in line


def test_a_date_in_retry_after_counts_from_the_servers_own() -> None:
    now = "Thu, 01 Jan 2026 12:00:00 GMT"
    assert retry_after_s("Thu, 01 Jan 2026 12:00:30 GMT", now) == 30
    assert retry_after_s("Thu, 01 Jan 2026 11:00:00 GMT", now) == 0
    assert retry_after_s("7", None) == 7
    assert retry_after_s("soon", now) is None
    assert retry_after_s("Thu, 01 Jan 2026 12:00:30 GMT", None) is None
    assert retry_after_s("Thu, 01 Jan 2026 12:00:30", now) is None, "a date without a zone"
    assert retry_after_s(None, now) is None


def test_limits_that_cannot_be_are_refused() -> None:
    for wrong in ({"total_s": -1.0}, {"total_s": float("inf")}, {"tries": -1}, {"first_s": 0.0}):
        with pytest.raises(ConfigError):
            RetryLimits(**wrong)  # type: ignore[arg-type]
