"""`penstock reuse plan`, with real photos and real processes; and what it measures."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock import ImageFolder, StagedDataset
from penstock import transforms as T
from penstock.cli.main import main
from penstock.errors import ConfigError
from penstock.pipeline.op_costs import body, cut_costs, cuts_of, finish, op_costs, parts_of
from tests.kernel_cases import photo
from tests.torchvision_here import torchvision

pytest.importorskip("cv2")

SRC = Path(__file__).parents[2] / "src"
CHAINS = """
import torch
from penstock import ImageFolder
from penstock import transforms as T

TAIL = [T.ToImage(), T.ToDtype(torch.float32, scale=True), T.Normalize([0.5] * 3, [0.25] * 3)]
late_crop = [T.RandAugment(2, 9), T.RandomResizedCrop(64), T.RandomHorizontalFlip(), *TAIL]
crop_first = [T.RandomCrop(64), T.ColorJitter(0.4, 0, 0.4, 0.1), T.RandomHorizontalFlip(), *TAIL]
shared = [T.PerBatch(T.RandAugment()), T.RandomResizedCrop(64)]
own = [T.RandomResizedCrop(64), lambda image: image, T.RandomHorizontalFlip()]
dataset = ImageFolder("photos", late_crop)
numbers = [1, 2, 3]


def make():
    return ImageFolder("photos", crop_first)


def needs(argument):
    return argument
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    root = tmp_path_factory.mktemp("plan")
    (root / "photos" / "a").mkdir(parents=True)
    (root / "flat").mkdir()
    (root / "empty").mkdir()
    for number in range(5):
        picture = Image.fromarray(photo(number, (120 + number, 160)))
        picture.save(root / "photos" / "a" / f"{number}.jpg")
        picture.save(root / "flat" / f"{number}.png")
    (root / "chains.py").write_text(CHAINS)
    return root


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder as the one that the command is run in; what it imports is forgotten afterwards."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "chains", raising=False)
    return folder


@pytest.fixture
def one_thread() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# ---- the command


@pytest.mark.usefixtures("one_thread", "here")
def test_the_table_names_every_split_and_which_one_auto_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reuse", "plan", "chains.py:dataset", "--samples", "3", "--times", "4"]) == 0
    found = capsys.readouterr()
    assert "measuring 3/3 samples" in found.err
    assert "ImageFolder: 5 samples, 3 measured (121 x 160, median)" in found.out
    assert "used 4 times, 90 epochs" in found.out
    assert re.search(r"0  RandAugment +[\d,]+ µs +196\n1  RandomResizedCrop +[\d,]+ µs +65,536\n", found.out)
    lines = [line for line in found.out.splitlines() if re.match(r" +\d  ", line)]
    assert [re.search(r"(decoded image|behind \w+)", line)[0] for line in lines] == [  # type: ignore[index]
        "decoded image",
        "behind RandAugment",
        "behind RandomResizedCrop",
        "behind RandomHorizontalFlip",
    ]
    assert "diversity 0.250 is below 0.95" in lines[3]
    assert sum("<- auto" in line for line in lines) == ("auto takes split" in found.out)
    assert "auto takes split" in found.out or "auto keeps nothing: " in found.out


@pytest.mark.usefixtures("one_thread")
def test_torchvisions_folder_is_planned_as_a_loader_adopts_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torchvision()
    (here / "theirs.py").write_text(
        "from torchvision.datasets import ImageFolder\n"
        "from torchvision.transforms import v2\n"
        "ops = [v2.RandAugment(), v2.RandomAffine(9), v2.RandomResizedCrop(64), v2.RandomHorizontalFlip()]\n"
        "dataset = ImageFolder('photos', v2.Compose([*ops, v2.PILToTensor()]))\n"
    )
    assert main(["reuse", "plan", "theirs.py:dataset", "--samples", "2"]) == 0
    said = capsys.readouterr().out
    assert "RandAugment" in said
    assert "RandomAffine" in said


@pytest.mark.usefixtures("one_thread", "here")
def test_a_function_may_make_the_dataset_and_a_better_order_is_offered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["reuse", "plan", "chains:make", "--samples", "5", "--times", "5"]) == 0
    found = capsys.readouterr().out
    assert re.search(
        r"with ColorJitter before RandomCrop \(the same pixels for the same draws\): \d\.\d\d times as fast",
        found,
    )


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("photos", ["photos", "flat"])
def test_a_chain_is_measured_with_photos_and_the_figure_is_a_picture(
    photos: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "reuse",
        "plan",
        "chains.py:late_crop",
        "--photos",
        photos,
        "--samples",
        "2",
        "--figure",
        "figure.svg",
    ]
    assert main(words) == 0
    assert "the figure is in figure.svg" in capsys.readouterr().err
    root = ET.fromstring((here / "figure.svg").read_text("utf-8"))
    words = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert sum(word == "1.00" for word in words) > 11  # all splits at r = 1, and the upper rows
    assert any(word.startswith("1: behind RandAugment") for word in words)


@pytest.mark.usefixtures("one_thread", "here")
@pytest.mark.parametrize(
    ("name", "why"),
    [("shared", "PerBatch must be done anew: its draw is that of a batch"), ("own", "a function of yours")],
)
def test_ops_that_must_be_done_anew_are_never_kept(
    name: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reuse", "plan", f"chains.py:{name}", "--photos", "photos", "--samples", "2"]) == 0
    assert why in capsys.readouterr().out


@pytest.mark.usefixtures("one_thread", "here")
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["chains.py"], "module:object or file.py:object"),
        (["gone.py:dataset"], "there is no file 'gone.py'"),
        (["no_such_module:dataset"], "there is no module 'no_such_module'"),
        (["chains.py:datset"], "has no 'datset'; it has torch, ImageFolder"),
        (["chains.py:numbers"], "is a list, not a staged dataset: name a penstock.ImageFolder"),
        (["chains.py:numbers", "--photos", "photos"], "a chain is made of ops"),
        (["chains.py:needs"], "is a function, not a staged dataset"),
        (["chains.py:dataset", "--photos", "photos"], "leave --photos out"),
        (["chains.py:late_crop", "--photos", "nowhere"], "there is no such folder"),
        (["chains.py:late_crop", "--photos", "empty"], "it holds no images"),
        (["chains.py:dataset", "--times", "0"], "times and epochs must be at least 1"),
        (["chains.py:dataset", "--min-diversity", "2"], "min_diversity must be between 0 and 1"),
        (["chains.py:dataset", "--samples", "0"], "--samples must be at least 1"),
        (["chains.py:dataset", "--samples", "1", "--figure", "no/such/folder.svg"], "cannot be written"),
    ],
)
def test_what_cannot_work_says_what_to_do(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reuse", "plan", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_as_a_process_of_its_own(folder: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "penstock", "reuse", "plan", "chains:dataset", "--samples", "2"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, "measuring 2/2 samples\n")
    assert "speed-up" in found.stdout


# ---- what is measured


def upside_down(image: Any) -> Any:
    return image[::-1]


CUT: dict[str, list[Any]] = {
    "ops of ours": [T.RandAugment(), T.RandomResizedCrop(48), T.RandomHorizontalFlip(), T.ToTensor()],
    "a function in the middle": [T.RandomResizedCrop(48), T.Lambda(upside_down), T.RandAugment()],
    "a function first": [T.Lambda(upside_down), T.RandomResizedCrop(48)],
    "someone else's last": [T.RandomResizedCrop(48), upside_down],
    "several crops": [
        T.RandomHorizontalFlip(),
        T.MultiCrop([(T.RandomResizedCrop(32), 2), (T.RandomCrop(16), 1)]),
    ],
    "nothing": [],
}


def flat(sample: Any) -> list[Any]:
    return [np.asarray(part) for part in (sample if isinstance(sample, tuple) else (sample,))]


@pytest.mark.parametrize("name", CUT)
def test_a_chain_that_is_cut_anywhere_makes_the_same_sample(name: str, folder: Path) -> None:
    dataset = ImageFolder(folder / "photos", CUT[name])
    chain, data = dataset.chain, dataset.read(1)[0]
    for seed in range(4):
        whole = flat(chain.run(dataset.image(data), seed))
        for end in range(body(chain) + 1):
            kept = chain.pixels(dataset.image(data), seed, end=end).copy()
            cut = flat(finish(chain, kept, seed, end))
            assert all(np.array_equal(a, b) for a, b in zip(whole, cut, strict=True)), (seed, end)


@pytest.mark.parametrize("name", CUT)
def test_costs_are_there_for_every_cut_and_op(name: str, folder: Path) -> None:
    dataset = ImageFolder(folder / "photos", CUT[name])
    costs, ops = cut_costs(dataset, 2), body(dataset.chain)
    assert len(costs.partial_s) == len(costs.final_s) == len(costs.copy_s) == len(costs.kept_bytes) == ops + 1
    assert len(op_costs(dataset, 2)) == ops + 1
    assert min(costs.partial_s) > 0
    assert min(*costs.op_costs(), *costs.anew_costs()) >= 0
    assert len(parts_of(dataset.chain, costs)) == ops + 1
    assert parts_of(dataset.chain, costs)[-1].anew


def test_a_dear_op_is_seen_where_it_stands(folder: Path) -> None:
    """By the work of many blurs, beside which all else is cheap."""
    dear = T.Compose([T.RandomApply([T.GaussianBlur(21)] * 40, p=1.0)])
    dataset = ImageFolder(folder / "photos", [T.RandomHorizontalFlip(), dear, T.RandomVerticalFlip()])
    before, flip, blur, other = op_costs(dataset, 3)
    assert blur > 2 * max(before, flip, other)


def test_measuring_leaves_the_programs_generators_where_they_were(folder: Path) -> None:
    dataset = ImageFolder(folder / "photos", [T.Lambda(noisy)])
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    wanted = random.random(), np.random.random(), torch.rand(1).item()
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    cut_costs(dataset, 2)
    assert (random.random(), np.random.random(), torch.rand(1).item()) == wanted


def noisy(image: Any) -> Any:
    random.random()
    torch.rand(1)
    return image + np.random.randint(0, 2, image.shape, np.uint8)


def test_broken_files_are_passed_over_unless_all_are(folder: Path) -> None:
    good = (folder / "photos" / "a" / "0.jpg").read_bytes()

    def reading(broken: Callable[[int], bool]) -> StagedDataset:
        return StagedDataset(lambda index: (b"no image" if broken(index) else good, 0), [T.RandomCrop(8)], 4)

    assert cut_costs(reading(lambda index: index == 0), 4).samples == 3
    with pytest.raises(ConfigError, match="none of 4 samples can be decoded; the last was sample 3"):
        cut_costs(reading(lambda _: True), 4)
    with pytest.raises(ConfigError, match="no sample to measure"):
        cut_costs(StagedDataset(lambda _: (good, 0), [], 0))


def test_what_would_be_kept_is_as_large_as_it_is_there(folder: Path) -> None:
    dataset = ImageFolder(folder / "photos", [T.RandomResizedCrop(48), T.RandAugment()])
    cuts, size = cuts_of(dataset, 2)
    assert size == (122, 160)
    assert [cut.kept_bytes for cut in cuts] == [122 * 160 * 3, 48 * 48 * 3, 48 * 48 * 3]


def test_what_follows_several_crops_is_counted_on_what_they_are_cut_from(folder: Path) -> None:
    chain = [T.Resize((40, 40)), T.MultiCrop([(T.RandomCrop(32), 2)])]
    dataset = ImageFolder(folder / "photos", chain)
    resize, views = parts_of(dataset.chain, cut_costs(dataset, 1))
    assert (resize.outcomes, views.name, views.outcomes) == (1, "2 views", 81 * 81)
