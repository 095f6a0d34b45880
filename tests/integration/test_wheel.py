"""The wheel that `scripts/wheel` builds, in an environment of its own: no compiler, no OpenCV, no simplejpeg, and the fast path is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from tests.torchvision_here import REFERENCE, torchvision

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the loops are for Linux"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler to build with"),
]
ROOT = Path(__file__).parents[2]
LEFT_OUT = ("cv2", "opencv", "simplejpeg", "penstock", "__editable__")
SCRIPT = """
import sys, torch
from torch import library

schemas = library.Library("torchvision", "DEF")  # torchvision's own ops may not fit this build of torch; its transforms need none
for op in ("nms", "qnms"):
    schemas.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from penstock import accel

assert accel.compiled() is not None and accel.__file__.startswith(sys.prefix), accel.__file__
tail = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
chain = v2.Compose([v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.RandAugment(), *tail])
for images, labels in DataLoader(ImageFolder(sys.argv[1], chain), 4, num_workers=2, shuffle=True):
    assert images.shape[1:] == (3, 32, 32)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [ROOT / "scripts" / "wheel", "--out", out],
        env={**os.environ, "PENSTOCK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if "package registry" in done.stderr and done.returncode:
        pytest.skip("there is no package registry to build with")
    assert done.returncode == 0, done.stderr
    (found,) = out.iterdir()
    assert done.stdout.strip() == str(found)
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, and links to the packages that are installed here but for some."""
    root = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root], check=True, timeout=120)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(root)}))
    for folder in map(Path, dict.fromkeys(sys.path)):
        if folder.name == "site-packages":
            for entry in folder.iterdir():
                left_out = entry.name.startswith(LEFT_OUT) or entry.suffix == ".pth"
                if not left_out and not (site / entry.name).exists():
                    (site / entry.name).symlink_to(entry)
    if REFERENCE.is_dir():
        (site / "torchvision").symlink_to(REFERENCE / "torchvision")
    pip = [sys.executable, "-m", "pip", "--python", root / "bin" / "python", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True, timeout=900)
    return root


def photos(folder: Path) -> Path:
    from PIL import Image

    rng = np.random.default_rng(5)
    for number in range(12):
        (folder / str(number % 2)).mkdir(exist_ok=True)
        coarse = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((90, 70)).save(folder / str(number % 2) / f"{number}.jpg")
    return folder


def test_the_wheel_runs_a_plain_torchvision_script_on_the_fast_path_without_a_compiler(
    environment: Path, tmp_path: Path
) -> None:
    torchvision()
    script, empty = tmp_path / "train.py", tmp_path / "empty"
    script.write_text(SCRIPT)
    empty.mkdir()
    (data := tmp_path / "photos").mkdir()
    command = [environment / "bin" / "python", "-m", "penstock", "run", script, photos(data)]
    env = {"PATH": str(empty), "HOME": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "torchvision's ImageFolder is adopted: penstock prepares the same pixels\n" in done.stderr
    assert "SlowPathWarning" not in done.stderr


def test_a_build_without_a_compiler_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "wheel", "--out", tmp_path / "dist"],
        env={**os.environ, "PENSTOCK_PYTHON": sys.executable, "CC": "/bin/false"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 1
    assert "is there a C compiler?" in done.stderr or "package registry" in done.stderr
    assert not list((tmp_path / "dist").glob("*.whl"))
