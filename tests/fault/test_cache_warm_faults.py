"""`penstock cache warm` under kills, full and read-only disks, rot, and errors: the same command goes on, and says what happened."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from penstock import ImageFolder
from penstock.cache.disk import DiskTier
from penstock.cache.warm import WarmEnd, Warming, located, warm_tier
from penstock.cli.main import main
from penstock.reuse.stores.disk_files import Files
from penstock.reuse.stores.disk_index import count_rows
from penstock.reuse.stores.disk_listing import listing
from tests.fault.programs import until
from tests.warmed import COUNT, ENDS_S, ROOT, check_found, files_below, said, warm

BLOCKING = """
    import sys, threading, penstock
    from penstock.sources.sources import WholeFiles

    class Blocking(WholeFiles):
        left = 40
        lock = threading.Lock()

        def read(self, name, start=0, end=None):
            with self.lock:
                self.left -= 1
                blocked = self.left < 0
            if blocked:
                threading.Event().wait({within_s})
            return super().read(name, start, end)

    dataset = penstock.ImageFolder({root!r})
    dataset.bytes_from = Blocking()
"""


def begun(tmp_path: Path, within_s: float) -> subprocess.Popen[str]:
    """A run that blocks after 40 samples, which are on disk."""
    (tmp_path / "blocking.py").write_text(
        textwrap.dedent(BLOCKING.format(root=str(tmp_path / "photos"), within_s=within_s))
    )
    command = [sys.executable, "-m", "penstock", "cache", "warm", "blocking.py:dataset", "--kind", "object"]
    command += ["--path", str(tmp_path / "cache"), "--disk", "64MiB", "--readers", "4"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )

    def on_disk() -> bool:
        stores = listing(tmp_path / "cache")
        return (
            bool(stores)
            and count_rows(Files(), f"{tmp_path}/cache/{stores[0].namespace}/index", stores[0].samples) == 40
        )

    until(on_disk, within_s=ENDS_S, why="40 samples are warmed")
    return process


def test_a_run_that_is_killed_is_gone_on_with(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files_below(tmp_path / "photos")
    with begun(tmp_path, ENDS_S) as process:
        process.kill()
        assert process.wait(ENDS_S) == -signal.SIGKILL
    assert warm(tmp_path / "photos", tmp_path / "cache") == 0
    assert "60 of 60 samples are in …: 40 were there, 20 were read" in said(capfd.readouterr().out)
    check_found(ImageFolder(tmp_path / "photos"), tmp_path / "cache")


def test_ctrl_c_ends_a_run_and_says_what_is_there(tmp_path: Path) -> None:
    files_below(tmp_path / "photos")
    with begun(tmp_path, ENDS_S) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=ENDS_S)
    assert process.returncode == 130, err
    assert re.fullmatch(
        r"40 of 60 samples are in …: 0 were there, 40 were read, … in …\nstopped; the same command goes on",
        said(out),
    ), out
    assert "Traceback" not in err
    assert warm(tmp_path / "photos", tmp_path / "cache") == 0


def test_two_runs_at_once_and_a_clear_meanwhile(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files_below(tmp_path / "photos")
    with begun(tmp_path, ENDS_S) as process:
        assert main(["cache", "clear", str(tmp_path / "cache"), "--yes"]) == 1
        assert f"stays, a process has it open (ImageFolder {tmp_path}/photos)" in capfd.readouterr().err
        assert main(["cache", "list", str(tmp_path / "cache")]) == 0
        assert "lasts, in use" in capfd.readouterr().out
        assert warm(tmp_path / "photos", tmp_path / "cache") == 0
        process.kill()
    check_found(ImageFolder(tmp_path / "photos"), tmp_path / "cache")
    assert main(["cache", "clear", str(tmp_path / "cache"), "--yes"]) == 0
    assert capfd.readouterr().out.splitlines()[-1].startswith("removed 1 of 1 stores, ")


def test_rot_is_found_by_verify_and_healed_by_the_next_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, cache = files_below(tmp_path / "photos"), tmp_path / "cache"
    assert warm(source, cache) == 0
    (segment,) = cache.glob("*/segments/*")
    with open(segment, "r+b") as raw:
        was = os.pread(raw.fileno(), 1, 30_000)
        os.pwrite(raw.fileno(), bytes([was[0] ^ 1]), 30_000)
    capfd.readouterr()
    assert main(["cache", "verify", str(cache)]) == 1
    out = capfd.readouterr().out
    assert "59 entries are right" in out
    assert (
        "; DAMAGED: 1 entries are dropped. They are read from their source when they are needed, or now with `penstock cache warm`. "
        "If that goes on, check the disk" in out
    )
    assert warm(source, cache) == 0
    assert "59 were there, 1 were read" in capfd.readouterr().out
    assert main(["cache", "verify", str(cache)]) == 0
    assert "60 entries are right" in capfd.readouterr().out
    check_found(ImageFolder(source), cache)


def on_a_mount(tmp_path: Path, options: str, then: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command with a file system of its own at `tmp_path / "disk"`."""
    (tmp_path / "disk").mkdir()
    mount = f"mount -t tmpfs -o {options} none {tmp_path}/disk{then}"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    command = [
        "unshare",
        "-m",
        "sh",
        "-c",
        f'{mount} && exec "$@"',
        "sh",
        sys.executable,
        "-m",
        "penstock",
        *words,
    ]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=ENDS_S, check=False
    )


def test_a_disk_that_fills_up_is_said(tmp_path: Path) -> None:
    source = files_below(tmp_path / "photos", count=300)
    words = ["cache", "warm", str(source), "--path", f"{tmp_path}/disk/cache", "--disk", "1GiB"]
    done = on_a_mount(tmp_path, "size=3m", "", *words)
    assert done.returncode == 1, done.stderr
    assert re.search(r"^[1-9]\d* of 300 samples are in", done.stdout), done.stdout
    assert "the disk is full or fails, see above. Make room there (`penstock cache ls`" in done.stdout
    assert re.search(r"penstock: the disk of the sample store .* is full", done.stderr), done.stderr


def test_a_folder_that_is_read_only_is_said_at_once(tmp_path: Path) -> None:
    source = files_below(tmp_path / "photos")
    words = ["cache", "warm", str(source), "--path", f"{tmp_path}/disk/cache", "--disk", "1GiB"]
    done = on_a_mount(tmp_path, "size=700k", f" && mount -o remount,ro {tmp_path}/disk", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"penstock: no bytes can be cached in {tmp_path}/disk/cache (Read-only file system)" in done.stderr


def test_an_error_of_our_own_is_raised_and_no_thread_stays(tmp_path: Path) -> None:
    class Refusing(DiskTier):
        def put(self, key: bytes, data: bytes | memoryview) -> bool:
            raise AssertionError("a fault")

    tier = Refusing(tmp_path / "cache", entries=COUNT, max_bytes=1 << 24, upkeep_s=0)
    warming = Warming(located(ImageFolder(files_below(tmp_path / "photos"))), tier, readers=3)
    with pytest.raises(AssertionError, match="a fault"):
        list(warming.run())
    tier.close()


def test_an_iterator_that_is_dropped_ends_the_run(tmp_path: Path) -> None:
    found = located(ImageFolder(files_below(tmp_path / "photos", count=4000)))
    tier = warm_tier(found, tmp_path / "cache", 1 << 28)
    warming = Warming(found, tier, readers=2)
    states = warming.run()
    next(states)
    states.close()
    assert warming.state.end in (WarmEnd.STOPPED, WarmEnd.WHOLE)
    tier.close()
