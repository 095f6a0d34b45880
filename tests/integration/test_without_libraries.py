"""Images where OpenCV, simplejpeg or the compiled loops are missing: torchvision's ImageFolder is adopted all the same, with the same pixels, and
what is slow or cannot be done says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock import accel
from tests.torchvision_here import torchvision

ROOT = Path(__file__).parents[2]

BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cv2", "simplejpeg"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""

ALL_CHAINS = """
import sys, torch
from tests.integration.test_adoption import NAMES, chains
from penstock import accel
from penstock.dataset.seeding import seed_all
from penstock.pipeline.adopt import adopted

chains = chains()  # which makes torchvision importable
from torchvision.datasets import ImageFolder

assert (accel.compiled() is None) == (sys.argv[2] == "without loops")
for name in NAMES if sys.argv[2] == "with loops" else ("training, v2", "RandAugment first", "jitter", "crop and pad", "uint8", "nearest"):
    theirs = ImageFolder(sys.argv[1], chains[name])
    mine = adopted(theirs)
    assert mine is not None, f"{name} is not adopted"
    for index in range(len(theirs)):
        seed_all(index)
        expected = theirs[index]
        seed_all(index)
        found = mine[index]
        assert found[1] == expected[1] and torch.equal(found[0], expected[0]), (name, theirs.samples[index])
assert not {"cv2", "simplejpeg"} & set(sys.modules)
print("the same")
"""

TRAINING = """
from tests.torchvision_here import torchvision

torchvision()
import sys, torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

chain = v2.Compose([v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
for _ in range(2):
    for images, labels in DataLoader(ImageFolder(sys.argv[1], chain), 4, num_workers=2, shuffle=True):
        assert images.shape[1:] == (3, 32, 32)
"""

REUSED = """
import torch
from tests.torchvision_here import torchvision

torchvision()
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from penstock import DataLoader, Reuse

chain = v2.Compose([v2.Resize((40, 40)), v2.PILToTensor()])
dataset = ImageFolder(sys.argv[1], chain)
plain, reused = (list(DataLoader(dataset, 4, num_workers=0, **options)) for options in ({}, {"reuse": Reuse(times=2, split=1)}))
assert all(torch.equal(a[0], b[0]) for a, b in zip(plain, reused, strict=True))
assert "simplejpeg" not in sys.modules
print("the same")
"""

OWN = """
import warnings
from penstock import DataLoader, ImageFolder, MissingExtra, transforms as T

warnings.simplefilter("error")
cut = [T.RandomResizedCrop(32), T.RandomHorizontalFlip()]
root = sys.argv[1]
plain = ImageFolder(root, [*cut, T.Pad(2, 7, "reflect"), T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandAugment(), T.ToImage()])
odd = [path for path, _ in plain.samples if "odd" in path]
kept = [index for index, (path, _) in enumerate(plain.samples) if path not in odd]
assert odd and all(plain[index][0].shape == (3, 36, 36) for index in kept)

def refused(make):
    try:
        make()
    except MissingExtra as exc:
        return str(exc)
    raise AssertionError("nothing was missing")

blurred = ImageFolder(root, [*cut, T.GaussianBlur(3), T.ToImage()])
print("blur:", refused(lambda: blurred[kept[0]]))
print("fast:", refused(lambda: ImageFolder(root, cut, fast_decode=True)))
skipping = DataLoader(ImageFolder(root, [*cut, T.ToImage()]), 4, num_workers=0, on_error="skip")
print("odd:", refused(lambda: list(skipping)))
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos as cameras write them, and such as the compiled loops leave to others."""
    from PIL import Image

    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(3)
    for number in range(10):
        folder = root / ("cat" if number % 2 else "dog")
        folder.mkdir(exist_ok=True)
        height, width = rng.integers(60, 150, 2)
        coarse = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((int(width), int(height)), Image.Resampling.BICUBIC)
        name = f"{'odd' if number in (2, 5) else 'plain'}-{number}.{'png' if number == 7 else 'jpg'}"
        image = image.convert({5: "CMYK", 6: "L"}.get(number, "RGB"))
        image.save(folder / name, quality=90, progressive=number == 2)
    return root


@pytest.fixture(scope="module")
def no_loops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it is installed without a compiler."""
    source = tmp_path_factory.mktemp("installed")
    leave = shutil.ignore_patterns("*.so", "__pycache__", "*.c", "*.h")
    shutil.copytree(ROOT / "src" / "penstock", source / "penstock", ignore=leave)
    return source


def ran(code: str, *words: object, source: Path = ROOT / "src") -> subprocess.CompletedProcess[str]:
    return python("-c", code, *words, source=source)


def python(*words: object, source: Path = ROOT / "src") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
    env.pop("PYTHONWARNINGS", None)
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=source,
        env=env,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


needs_loops = pytest.mark.skipif(
    accel.compiled() is None, reason="there are no loops to do without the libraries"
)


@needs_loops
def test_every_chain_is_adopted_with_the_same_pixels_without_opencv_and_simplejpeg(photos: Path) -> None:
    """And reuse decodes what the compiled loops leave to others, progressive and CMYK files."""
    torchvision()
    done = ran(BLOCKED + ALL_CHAINS + REUSED, photos, "with loops")
    assert done.stdout == "the same\nthe same\n"
    assert "penstock" not in done.stderr, "nothing is slow here"


def test_every_chain_is_adopted_with_the_same_pixels_without_loops_and_libraries(
    photos: Path, no_loops: Path
) -> None:
    torchvision()
    done = ran(BLOCKED + ALL_CHAINS, photos, "without loops", source=no_loops)
    assert done.stdout == "the same\n"


def test_a_run_without_loops_is_told_once_and_how_to_get_them(
    photos: Path, no_loops: Path, tmp_path: Path
) -> None:
    torchvision()
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    done = python("-m", "penstock", "run", script, photos, source=no_loops)
    assert done.stderr.count("SlowPathWarning") == 1
    assert "no C compiler was found" in done.stderr
    assert "pip install --force-reinstall --no-deps" in done.stderr
    assert "penstock: torchvision's ImageFolder is adopted" in done.stderr
    assert "by slower code" in done.stderr.partition("is adopted")[2]


def test_a_comparison_says_what_is_missing(photos: Path, no_loops: Path, tmp_path: Path) -> None:
    torchvision()
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    slow = python("-m", "penstock", "run", "--compare", script, photos, source=no_loops)
    assert "torchvision's ImageFolder is adopted: penstock prepares the same pixels" in slow.stdout
    assert "pip install --force-reinstall --no-deps" in slow.stdout


def test_a_run_says_why_a_dataset_is_not_adopted(photos: Path, tmp_path: Path) -> None:
    torchvision()
    script = tmp_path / "train.py"
    script.write_text(TRAINING.replace("for _ in", "class ImageFolder(ImageFolder):\n    pass\n\nfor _ in"))
    other = python("-m", "penstock", "run", script, photos)
    assert "ImageFolder is not adopted" in other.stderr
    assert "subclass" in other.stderr


@needs_loops
def test_what_needs_opencv_or_simplejpeg_says_so_and_is_not_skipped(photos: Path) -> None:
    done = ran(BLOCKED + OWN, photos)
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert lines["blur"] == "GaussianBlur needs OpenCV: pip install 'penstock[image]'"
    assert lines["fast"] == "fast_decode=True needs simplejpeg: pip install 'penstock[image]'"
    assert lines["odd"].startswith("a JPEG file that the compiled loops leave to libjpeg")
    assert "pip install 'penstock[image]'" in lines["odd"]
