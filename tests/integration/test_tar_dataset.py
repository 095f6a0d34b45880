"""The same images in folders, in local tar shards and in shards on a server: the same batches, and clear errors."""

from __future__ import annotations

import io
import json
import logging
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock import ConfigError, DataLoader
from penstock import transforms as T
from penstock.pipeline.header import BadImage, read_header
from penstock.pipeline.staged import ImageFolder
from penstock.pipeline.tar import BadTarget, TarDataset, expanded
from penstock.sources.sources import BadRead
from tests.web import served_apart

PIL = pytest.importorskip("PIL.Image")
pytest.importorskip("simplejpeg")
pytest.importorskip("cv2")

COUNT, SHARDS = 24, 3
FORMATS = ("jpeg", "png", "webp")
CHAIN = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]


@pytest.fixture(scope="module")
def images() -> list[tuple[str, bytes, int]]:
    """(name, encoded, class) of each, in the order of an image folder."""
    rng = np.random.default_rng(5)
    found = []
    for number in range(COUNT):
        coarse = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
        form = FORMATS[number % len(FORMATS)]
        out = io.BytesIO()
        PIL.fromarray(coarse).resize((40 + number, 33), PIL.Resampling.BICUBIC).save(out, form)
        found.append((f"{number:06d}.{form}", out.getvalue(), number // 8))
    return found


@pytest.fixture(scope="module")
def folder(images: Sequence[tuple[str, bytes, int]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("folder")
    for name, data, label in images:
        (root / f"class{label}").mkdir(exist_ok=True)
        (root / f"class{label}" / name).write_bytes(data)
    return root


@pytest.fixture
def shards(images: Sequence[tuple[str, bytes, int]], tmp_path: Path) -> Path:
    root = tmp_path / "shards"
    root.mkdir()
    each = COUNT // SHARDS
    for number in range(SHARDS):
        files = []
        for name, data, label in images[number * each : (number + 1) * each]:
            key = name.partition(".")[0]
            said = {"label": label, "name": name}
            files += [(f"set.1/{name}", data), (f"set.1/{key}.cls", b"%d\n" % label)]
            files += [
                (f"set.1/{key}.json", json.dumps(said).encode()),
                (f"set.1/{key}.txt", f"é {label}".encode()),
            ]
        pack(root / f"part-{number:03d}.tar", files)
    return root


def pack(path: Path, files: Sequence[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


@pytest.fixture
def web(shards: Path) -> Iterator[str]:
    with served_apart(shards) as url:
        yield url


PATTERN = f"part-{{000..{SHARDS - 1:03d}}}.tar"


def batches(dataset: Any, workers: int) -> list[Any]:
    loader: DataLoader[Any] = DataLoader(dataset, 5, shuffle=True, num_workers=workers, seed=11)
    return [batch for _ in range(2) for batch in loader]


def same(found: list[Any], wanted: list[Any]) -> bool:
    return len(found) == len(wanted) and all(
        torch.equal(images, others) and torch.equal(labels, numbers)
        for (images, labels), (others, numbers) in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_folder_shards_and_server_give_the_same_batches(
    folder: Path, shards: Path, web: str, tmp_path: Path, workers: int
) -> None:
    wanted = batches(ImageFolder(folder, CHAIN), 0)
    assert [len(labels) for _, labels in wanted] == [5, 5, 5, 5, 4] * 2
    tar = TarDataset(f"{shards}/{PATTERN}", CHAIN)
    assert same(batches(tar, workers), wanted)
    remote = TarDataset(f"{web}/ok/{PATTERN}", CHAIN, index_dir=tmp_path / "indexes")
    assert same(batches(remote, workers), wanted)
    assert len(list((tmp_path / "indexes").iterdir())) == SHARDS
    tar.close()
    remote.close()


def test_spawned_workers_give_the_same_batches(folder: Path, shards: Path) -> None:
    wanted = batches(ImageFolder(folder, CHAIN), 0)
    tar = TarDataset([shards / f"part-{number:03d}.tar" for number in range(SHARDS)], CHAIN)
    tar[0]  # opens a file, which does not travel
    loader: DataLoader[Any] = DataLoader(
        tar, 5, shuffle=True, num_workers=2, seed=11, multiprocessing_context="spawn", persistent_workers=True
    )
    assert same([batch for _ in range(2) for batch in loader], wanted)
    tar.close()


def test_targets_are_read_from_the_file_that_is_named(shards: Path) -> None:
    first = shards / "part-001.tar"
    found = {kind: TarDataset(first, target=kind)[0][1] for kind in ("cls", "json", "txt", None)}
    assert found == {"cls": 1, "json": {"label": 1, "name": "000008.webp"}, "txt": "é 1", None: None}
    with pytest.raises(ConfigError, match="target must be one of"):
        TarDataset(first, target="png")


def test_headers_are_read_without_the_rest_and_whatever_stands_before_them(tmp_path: Path) -> None:
    out = io.BytesIO()
    PIL.fromarray(np.zeros((9, 7, 3), np.uint8)).save(out, "jpeg")
    plain = out.getvalue()
    large = plain[:2] + (b"\xff\xe5\xff\xff" + bytes(65533)) * 2 + plain[2:]
    pack(tmp_path / "a.tar", [("a.jpg", plain + bytes(100_000)), ("b.jpg", large)])
    tar = TarDataset(tmp_path / "a.tar", target=None)
    assert len(tar.read_header_bytes(0)) == 64 << 10
    assert [read_header(tar.read_header_bytes(at))[1:3] for at in (0, 1)] == [(9, 7)] * 2
    tar.close()


def test_indexing_says_where_it_is_and_is_done_once(shards: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="penstock")
    assert len(TarDataset(f"{shards}/{PATTERN}")) == COUNT
    assert "indexed shard 2 of 3" in caplog.text
    assert "part-001.tar: 8 samples" in caplog.text
    caplog.clear()
    assert len(TarDataset(f"{shards}/{PATTERN}")) == COUNT
    assert caplog.text == ""


def test_samples_without_an_image_are_left_out_and_counted(tmp_path: Path, images: Any) -> None:
    files = [
        ("a.cls", b"1"),
        ("b.png", images[1][1]),
        ("b.cls", b"2"),
        ("c.seg.png", b""),
        ("README", b""),
        (".x.png", b""),
    ]
    pack(tmp_path / "a.tar", files)
    with pytest.warns(UserWarning, match="^2 samples in 1 tar shards have no image"):
        tar = TarDataset(tmp_path / "a.tar")
    assert len(tar) == 1
    assert tar[0][1] == tar[-1][1] == 2
    with pytest.raises(IndexError):
        tar[1]
    tar.close()


def test_a_missing_or_malformed_target_names_sample_and_shard(tmp_path: Path, images: Any) -> None:
    files = [("d/a.png", images[1][1]), ("d/b.png", images[1][1]), ("d/b.cls", b"two")]
    pack(tmp_path / "a.tar", files)
    tar = TarDataset(tmp_path / "a.tar")
    with pytest.raises(BadTarget, match=r"sample 'd/a' of .*a\.tar has no \.cls file"):
        tar[0]
    with pytest.raises(
        BadTarget, match=r"sample 'd/b' of .*a\.tar has a \.cls file that cannot be read: .*b'two'"
    ):
        tar[1]
    tar.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_image_that_cannot_be_decoded_names_sample_and_shard(
    tmp_path: Path, images: Any, workers: int
) -> None:
    pack(tmp_path / "a.tar", [("d/a.jpg", images[0][1]), ("d/b.jpg", images[0][1][:-9])])
    tar = TarDataset(tmp_path / "a.tar", target=None)
    with pytest.raises(BadImage) as caught:
        list(DataLoader(tar, None, num_workers=workers))
    said = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert "sample 'd/b' of" in said
    assert "a.tar" in said
    tar.close()


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", [("a.png", b""), ("a.PNG", b"")])
    with pytest.raises(ValueError, match=r"a\.tar has two files named 'a.PNG'"):
        TarDataset(tmp_path / "a.tar")


def test_a_target_far_from_its_image_is_read_too(tmp_path: Path, images: Any) -> None:
    pack(tmp_path / "a.tar", [("a.cls", b"3"), ("z.bin", bytes(50_000)), ("a.png", images[1][1])])
    with pytest.warns(UserWarning, match="1 samples"):
        tar = TarDataset(tmp_path / "a.tar")
    assert tar[0][1] == 3
    tar.close()


def test_a_server_that_ignores_ranges_is_said_so(web: str, tmp_path: Path) -> None:
    with pytest.raises(BadRead, match="ignores byte ranges: it answered with the whole file"):
        TarDataset(f"{web}/whole/part-000.tar", index_dir=tmp_path)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_connection_that_breaks_in_a_read_is_an_error_of_that_sample(
    shards: Path, web: str, tmp_path: Path, workers: int
) -> None:
    tar = TarDataset(f"{web}/ok/{PATTERN}", [T.Resize((8, 8))], index_dir=tmp_path, retry_s=0)
    # In every shard, the same byte: of its second sample's image.
    assert len({tar.locate(at)[1] // 512 for at in (1, 9, 17)}) <= 3
    (shards / "CUT").write_text(str(tar.locate(1)[1] + 3))
    hit = {at for at in range(COUNT) if broken(tar, at)}
    assert 1 in hit
    assert len(hit) <= SHARDS

    loader: DataLoader[Any] = DataLoader(
        tar, 4, num_workers=workers, seed=1, on_error="skip", max_skipped=SHARDS
    )
    assert sum(len(labels) for _, labels in loader) == COUNT - len(hit)
    assert {int(skip["key"]) for skip in loader.skipped()} == hit
    assert "the connection ended after" in loader.skipped()[0]["error"]
    assert all(re.fullmatch(rf"{web}/ok/\S+\.tar: \S+", skip["path"]) for skip in loader.skipped())

    strict: DataLoader[Any] = DataLoader(tar, 4, num_workers=workers, seed=1)
    with pytest.raises(BadRead) as caught:
        list(strict)
    said = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert "part-000.tar" in said
    assert "sample 'set.1/000001'" in said
    tar.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_server_that_is_busy_for_a_while_costs_time_and_no_sample(
    folder: Path, shards: Path, web: str, tmp_path: Path, workers: int
) -> None:
    tar = TarDataset(f"{web}/busy/{PATTERN}", CHAIN, index_dir=tmp_path)
    loader: DataLoader[Any] = DataLoader(tar, 5, shuffle=True, num_workers=workers, seed=11)
    found = list(loader)
    for number, trouble in enumerate(("503", "429 1", "cut", "500")):  # what reads of the next epoch get
        (shards / f"BUSY-{number}").write_text(trouble)
    found += list(loader)
    assert not list(shards.glob("BUSY-*"))
    assert same(found, batches(ImageFolder(folder, CHAIN), 0))
    assert loader.stats()["source_retries"] == 4
    tar.close()


def test_a_pattern_names_all_shards_that_there_are(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shards)
    names = [str(shards / f"part-{number:03d}.tar") for number in range(SHARDS)]
    for pattern in (
        "*.tar",
        "part-00?.tar",
        str(shards / "part-*.tar"),
        "../**/*.tar",
        "part-{000,001,00[2-9]}.tar",
    ):
        tar = TarDataset(pattern, index_dir=tmp_path)
        assert [Path(url).resolve() for url in tar.urls] == [Path(name).resolve() for name in names]
        assert len(tar) == COUNT
        tar.close()
    with pytest.raises(ConfigError, match=r"no file matches 'train-\*\.tar'"):
        TarDataset("train-*.tar", index_dir=tmp_path)
    (shards / "part-000.tar").rename(shards / "odd[0].tar")
    assert expanded("odd[0].tar") == ["odd[0].tar"], "a file of that very name"
    assert expanded("http://a/*.tar?b") == ["http://a/*.tar?b"]


def test_an_index_is_left_beside_a_shard_or_where_it_is_asked_for_or_nowhere(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def left() -> set[str]:
        return {path.name for path in tmp_path.rglob("*") if path.is_file()}

    before = left()
    TarDataset(shards / "part-000.tar", index_dir=False).close()
    assert left() == before
    TarDataset(shards / "part-000.tar").close()
    assert left() - before == {"part-000.tar.penstock-index"}
    TarDataset(shards / "part-001.tar", index_dir=tmp_path / "indexes").close()
    assert len(list((tmp_path / "indexes").iterdir())) == len(left() - before) - 1 == 1


def broken(tar: TarDataset, at: int) -> bool:
    try:
        tar.read(at)
    except BadRead:
        return True
    return False


def test_a_shard_that_is_changed_later_is_an_error_and_its_index_is_rebuilt(
    shards: Path, images: Any
) -> None:
    path = shards / "part-000.tar"
    tar = TarDataset(path)
    tar.close()
    pack(path, [("new.png", images[1][1]), ("new.cls", b"9")])
    with pytest.raises(BadRead, match="was changed while it was in use"):
        tar[0]
    again = TarDataset(path)
    assert (len(again), again[0][1]) == (1, 9)
    again.close()


def test_shards_are_named_singly_in_lists_and_by_patterns() -> None:
    assert expanded("a.tar") == ["a.tar"]
    assert expanded([Path("b.tar"), "a-{08..11}.tar"]) == ["b.tar", *(f"a-{n:02d}.tar" for n in range(8, 12))]
    assert expanded("{train,val}-{9..10}.tar") == ["train-9.tar", "train-10.tar", "val-9.tar", "val-10.tar"]
    assert expanded("odd{name}.tar") == ["odd{name}.tar"]
    patterns: list[Any] = [[], "a-{3..1}.tar", "{0..9999999}.tar", "{0..99999}-{0..99999}.tar"]
    for wrong in patterns:
        with pytest.raises(ConfigError):
            expanded(wrong)
