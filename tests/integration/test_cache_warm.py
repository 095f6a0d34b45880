"""`penstock cache warm`: what it keeps is what a loader's cache looks for, byte for byte; it goes on after any end, and says what happened."""

from __future__ import annotations

import os
import pty
import random
import re
import select
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from penstock import AudioFolder, ConfigError, ImageFolder, StagedDataset, TarDataset
from penstock.cache.disk import DiskTier, needed_bytes
from penstock.cache.warm import located
from penstock.reuse.stores.disk_files import Files
from penstock.reuse.stores.disk_index import count_rows
from penstock.reuse.stores.disk_listing import listing
from tests.stores_here import needs_obstore, store_here
from tests.warmed import COUNT, ENDS_S, ROOT, check_found, data_of, files_below, said, shards_below, warm
from tests.web import served_apart

# ---- what is kept


def test_a_loaders_keys_find_the_bytes_of_images_recordings_and_shards(tmp_path: Path) -> None:
    for make, source in (
        (ImageFolder, files_below(tmp_path / "photos")),
        (AudioFolder, files_below(tmp_path / "speech", "wav")),
        (TarDataset, shards_below(tmp_path / "shards") / "part-{0..2}.tar"),
    ):
        assert warm(source, tmp_path / "cache", *(["--kind", "audio"] if make is AudioFolder else [])) == 0
        check_found(make(source), tmp_path / "cache")
    stores = listing(tmp_path / "cache")
    assert {(store.kind, store.temporary) for store in stores} == {("bytes", False)}
    assert {store.about.replace(str(tmp_path), "") for store in stores} == {
        "ImageFolder /photos",
        "AudioFolder /speech",
        "TarDataset /shards/part-0.tar and 2 more",
    }
    counts = [
        count_rows(Files(), f"{tmp_path}/cache/{store.namespace}/index", store.samples) for store in stores
    ]
    assert counts == 3 * [COUNT]


@needs_obstore
def test_an_object_store_is_read_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with store_here(tmp_path / "store") as server:
        files_below(server.folder / "bucket" / "train")
        nbytes = sum(len(data_of(number)) for number in range(COUNT))
        for source, readers in (("s3://bucket/train", "40"), ("s3://bucket/train/", "1")):
            before = server.counts()["bytes"]
            assert warm(source, tmp_path / "cache", "--readers", readers) == 0
            assert server.counts()["bytes"] - before == (nbytes if readers == "40" else 0)
        assert f"{COUNT} were there, 0 were read" in capfd.readouterr().out
        dataset = ImageFolder("s3://bucket/train")
        check_found(dataset, tmp_path / "cache")
        dataset.bytes_from.close()
    assert "obstore" not in sys.modules


def test_shards_on_a_web_server_are_read_in_runs_of_neighbours(tmp_path: Path) -> None:
    with served_apart(shards_below(tmp_path / "shards")) as url:
        assert warm(f"{url}/ok/part-{{0..2}}.tar", tmp_path / "cache") == 0
        dataset = TarDataset(f"{url}/ok/part-{{0..2}}.tar")
        check_found(dataset, tmp_path / "cache")
        dataset.close()


def test_images_without_their_targets_are_other_entries(tmp_path: Path) -> None:
    source = shards_below(tmp_path / "shards") / "part-*.tar"
    assert warm(source, tmp_path / "cache", "--target", "none") == 0
    check_found(TarDataset(source, target=None), tmp_path / "cache")
    assert warm(source, tmp_path / "cache") == 0
    check_found(TarDataset(source), tmp_path / "cache")
    assert len(listing(tmp_path / "cache")) == 2


def test_an_object_of_the_users_is_warmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files_below(tmp_path / "photos")
    (tmp_path / "warmed_data.py").write_text(
        "import penstock\ndef make():\n    return penstock.ImageFolder('photos')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert warm("warmed_data.py:make", tmp_path / "cache", "--kind", "object") == 0
    check_found(ImageFolder("photos"), tmp_path / "cache")


# ---- what is said


def test_messages_of_a_run_that_keeps_all_and_of_the_next(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = files_below(tmp_path / "photos")
    assert warm(source, tmp_path / "cache") == 0
    assert said(capfd.readouterr().out) == textwrap.dedent("""\
        60 of 60 samples are in …: 0 were there, 60 were read, … in …
        a loader finds them with cache=penstock.Cache(disk="64MiB", path="…", persistent=True)""")
    assert warm(source, tmp_path / "cache") == 0
    assert "60 of 60 samples are in …: 60 were there, 0 were read, … in …\n" in said(capfd.readouterr().out)


def test_what_cannot_be_read_is_listed_and_the_rest_is_kept(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = files_below(tmp_path / "photos")
    for name in ("001.jpg", "003.jpg"):
        (source / "b" / name).unlink()
        (source / "b" / name).symlink_to("nowhere")
    assert warm(source, tmp_path / "cache") == 1
    out, err = capfd.readouterr()
    assert said(out) == "58 of 60 samples are in …: 0 were there, 58 were read, … in …"
    assert err.endswith(
        f"penstock: 2 samples could not be read:\n  FileNotFoundError: [Errno 2] No such file or directory: '{source}/b/001.jpg'\n"
        f"  FileNotFoundError: [Errno 2] No such file or directory: '{source}/b/003.jpg'\n"
    ) or err.index("003.jpg") < err.index("001.jpg")


def test_a_source_that_is_gone_ends_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = files_below(tmp_path / "photos", count=300)
    for file in source.rglob("*.jpg"):
        file.unlink()
        file.symlink_to("nowhere")
    assert warm(source, tmp_path / "cache", "--readers", "2") == 1
    out, err = capfd.readouterr()
    assert said(out) == (
        "0 of 300 samples are in …: 0 were there, 0 were read, … in …\n"
        "given up: too many reads in a row failed, see below. When the source is back, the same command goes on"
    )
    assert re.search(r"penstock: 3\d samples could not be read:\n(.*\n){20}  and 1\d more\n$", err), err


def test_a_budget_that_is_used_up_is_said_with_what_would_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = files_below(tmp_path / "photos")
    assert warm(source, tmp_path / "cache", disk="512KiB") == 1
    out = capfd.readouterr().out
    found = re.search(
        r"full: no more fits into --disk 512KiB: all of them need about ([\d.]+ MiB)\. The rest is read from",
        out,
    )
    assert found, out
    assert 5 < int(out.split(" of ", 1)[0]) < COUNT
    nbytes = sum(len(data_of(number)) for number in range(COUNT))
    assert warm(source, tmp_path / "cache", disk=str(needed_bytes(nbytes, COUNT))) == 0
    check_found(ImageFolder(source), tmp_path / "cache")


@pytest.mark.parametrize("count", [1, 40, 3000])
@pytest.mark.parametrize("each", [0, 900, 30_000])
def test_what_is_said_to_be_needed_is_enough(tmp_path: Path, count: int, each: int) -> None:
    tier = DiskTier(tmp_path, entries=count, max_bytes=needed_bytes(count * each, count), upkeep_s=0)
    assert all(tier.put(random.Random(number).randbytes(16), bytes(each)) for number in range(count))
    tier.close()


def test_bad_arguments_and_datasets_that_cannot_be_warmed_are_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, cache = files_below(tmp_path / "photos"), tmp_path / "cache"
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for words, says in (
        ((tmp_path / "nowhere", cache), "cannot be read: there is no"),
        ((tmp_path / "empty", cache), "Couldn't find any class folder"),
        ((source, cache, "--kind", "audio"), "Found no valid file for the classes a, b"),
        ((source, cache, "--target", "cls"), "--target is for tar shards"),
        ((source, cache, "--readers", "0"), "readers must lie between 1 and 1,024, got 0"),
        ((source, tmp_path / "file"), "is not a folder: give one for the cached bytes"),
        ((source, tmp_path / "file" / "inner"), "no bytes can be cached in"),
        (("https://127.0.0.1:1/x", cache), "cannot be listed"),
        (("nowhere.tar", cache), "nowhere.tar cannot be read: there is no"),
    ):
        assert warm(*words) == 2, words
        err = capfd.readouterr().err
        assert says in err
        assert err.count("\n") == 1
    assert warm(source, cache, disk="1KiB") == 2
    assert "needs at least 65,536 bytes" in capfd.readouterr().err


def test_a_dataset_that_does_not_know_its_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^StagedDataset does not say where its samples' bytes are"):
        located(StagedDataset(lambda index: (b"", index), length=3))

    class Mine(ImageFolder):
        pass

    with pytest.raises(ConfigError, match=r"^Mine cannot say when its bytes change \(contents\(\) is None"):
        located(Mine(files_below(tmp_path / "photos")))


# ---- progress


def on_a_terminal(words: Sequence[str], done: Callable[[str], bool]) -> str:
    """What a command shows on a terminal."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", *words],
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        shown, until_s = b"", time.monotonic() + ENDS_S
        while not done(shown.decode("utf-8", "replace")) and time.monotonic() < until_s:
            if select.select([ours], [], [], 1.0)[0]:
                try:
                    shown += os.read(ours, 4096)
                except OSError:  # the other end is closed
                    break
        process.wait(ENDS_S)
    os.close(ours)
    return shown.decode("utf-8", "replace")


def test_a_terminal_shows_samples_rate_and_time(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    source = files_below(tmp_path / "photos", count=600)
    words = [
        "cache",
        "warm",
        str(source),
        "--path",
        str(tmp_path / "cache"),
        "--disk",
        "64MiB",
        "--readers",
        "1",
    ]
    shown = on_a_terminal(words, lambda text: "persistent=True" in text)
    assert "600/600" in shown
    assert "600 of 600 samples are in" in shown
