"""The store that benchmarks read from: what it serves, and what it counts."""

from __future__ import annotations

import http.client
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
from _store_control import Store  # noqa: E402

DATA = bytes(range(256)) * 40


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    for number in range(3):
        path = tmp_path / "objects" / "bucket" / "train" / f"{number} &.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(DATA)
    with Store(tmp_path / "objects") as running:
        yield running


def read(store: Store, path: str, **headers: str) -> bytes:
    asked = urllib.request.Request(
        f"{store.url}/{path}", headers={k.replace("_", "-"): v for k, v in headers.items()}
    )
    with urllib.request.urlopen(asked, timeout=20) as answer:
        found: bytes = answer.read()
        return found


def test_it_serves_ranges_and_counts_their_bytes_for_each_object(store: Store) -> None:
    assert read(store, "bucket/train/1%20&.bin", Range="bytes=100-199") == DATA[100:200]
    assert read(store, "bucket/train/1%20&.bin", Range="bytes=-7") == DATA[-7:]
    assert read(store, "bucket/train/2%20&.bin") == DATA
    found = store.count()
    assert found["bytes"] == 107 + len(DATA)
    assert found["object_bytes"] == {
        "bucket/train/1 &.bin": 107,
        "bucket/train/2 &.bin": len(DATA),
    }
    assert store.reset()["bytes"] == 0


def test_it_lists_by_prefix_in_pages(store: Store) -> None:
    first = read(store, "bucket?list-type=2&prefix=train&max-keys=2").decode()
    assert re.findall("<Key>(.*?)</Key>", first) == ["train/0 &amp;.bin", "train/1 &amp;.bin"]
    rest = read(store, "bucket?list-type=2&prefix=train&continuation-token=train/1%20%26.bin").decode()
    assert re.findall("<Key>(.*?)</Key>", rest) == ["train/2 &amp;.bin"]
    folders = read(store, "bucket?list-type=2&delimiter=/").decode()
    assert "<CommonPrefixes><Prefix>train/</Prefix>" in folders
    assert "<Key>" not in folders


@pytest.mark.parametrize("path", ["bucket/none", "bucket/../../secret", "bucket/train"])
def test_what_is_no_object_of_the_folder_is_missing(store: Store, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404") as caught:
        read(store, path)
    caught.value.close()


def test_it_refuses_as_many_as_it_is_told(store: Store) -> None:
    store.set(refuse=1, status=429)
    with pytest.raises(urllib.error.HTTPError, match="429") as caught:
        read(store, "bucket/train/0%20&.bin")
    caught.value.close()
    store.set(refuse=0)
    assert read(store, "bucket/train/0%20&.bin") == DATA
    assert store.count()["refused"] == 1


def test_a_delayed_answer_holds_up_no_other(store: Store) -> None:
    store.set(latency_ms=300)
    connections = [http.client.HTTPConnection(store.address, timeout=20) for _ in range(8)]
    began_s = time.monotonic()
    for connection in connections:
        connection.request("GET", "/bucket/train/0%20&.bin")
    for connection in connections:
        assert connection.getresponse().read() == DATA
        connection.close()
    assert 0.3 <= time.monotonic() - began_s < 8 * 0.3
    assert store.count()["most_waiting"] > 1


def test_its_rate_can_be_limited(store: Store) -> None:
    store.set(mb_per_s=0.1)
    read(store, "bucket/train/0%20&.bin")
    began_s = time.monotonic()
    for _ in range(5):
        read(store, "bucket/train/0%20&.bin")
    assert time.monotonic() - began_s > 0.3  # 51 KB at 100 KB/s, less what the first left over
