"""MixUp and CutMix: torchvision's results for the same lambda, the published distribution, the same batches for everyone."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from penstock import ConfigError, DataLoader
from penstock.transforms.batch import BatchMix, CutMix, Mix, MixUp
from penstock.transforms.draws import Draws
from tests.torchvision_here import torchvision

IMAGES = torch.rand(6, 3, 20, 30, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 4, 2, 2, 1, 3])
each_kind = pytest.mark.parametrize("kind", [MixUp, CutMix])


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_lambda_follows_the_beta_distribution(alpha: float) -> None:
    kept = np.array([MixUp(alpha).draw(Draws(seed), (8, 8)).kept for seed in range(10_000)])
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(kept.mean() - 0.5) < 4 * np.sqrt(variance / len(kept))
    assert abs(kept.var() / variance - 1) < 0.05
    assert kept.min() >= 0
    assert kept.max() <= 1


def test_the_box_of_cutmix_is_what_lambda_leaves() -> None:
    shares, asked = [], []
    for seed in range(10_000):
        kept, box = CutMix().draw(Draws(seed), (40, 60))
        assert box is not None
        left, top, right, bottom = box
        assert 0 <= left <= right <= 60
        assert 0 <= top <= bottom <= 40
        area = (right - left) * (bottom - top) / (40 * 60)
        assert area == pytest.approx(1 - kept, abs=1e-12)
        asked.append(1 - Draws(seed).beta(1.0, 1.0))
        shares.append(area)
        assert area <= asked[-1] + 1e-9, "only the border may cut it"
    assert np.corrcoef(shares, asked)[0, 1] > 0.7


@each_kind
@pytest.mark.parametrize("labels", [LABELS, torch.eye(5)[LABELS]], ids=["numbers", "probabilities"])
def test_a_batch_is_mixed_as_torchvision_mixes_it(kind: type[BatchMix], labels: torch.Tensor) -> None:
    torchvision()
    from torchvision.transforms import v2

    ours, theirs = kind(num_classes=5), getattr(v2, kind.__name__)(num_classes=5)
    for seed in range(30):
        drawn = ours.draw(Draws(seed), (20, 30))
        same = {"lam": drawn.kept, "lam_adjusted": drawn.kept, "box": drawn.box}
        theirs.make_params = lambda _, same=same: same
        images, mixed = theirs(IMAGES, labels)
        assert torch.equal(ours.mixed(IMAGES, drawn), images)
        assert torch.equal(ours.mixed_labels(labels, drawn.kept), mixed)


def test_a_box_is_drawn_as_torchvision_draws_it(monkeypatch: pytest.MonkeyPatch) -> None:
    torchvision()
    from torchvision.transforms import v2

    class Same:
        """Torchvision's numbers, handed to ours."""

        def __init__(self, lam: float, x: int, y: int) -> None:
            self.lam, self.places = lam, [x, y]

        def beta(self, _: float, __: float) -> float:
            return self.lam

        def below(self, _: int) -> int:
            return self.places.pop(0)

    theirs, rng = v2.CutMix(num_classes=5), np.random.default_rng(0)
    for _ in range(200):
        lam, x, y = float(rng.random()), int(rng.integers(30)), int(rng.integers(20))
        places = [torch.tensor([x]), torch.tensor([y])]
        theirs._dist = type("Fixed", (), {"sample": lambda self, _, lam=lam: lam})()
        monkeypatch.setattr(torch, "randint", lambda *_, places=places, **__: places.pop(0))
        expected = theirs.make_params([IMAGES])
        drawn: Mix = CutMix().draw(Same(lam, x, y), (20, 30))  # type: ignore[arg-type]
        assert drawn.box == expected["box"]
        assert drawn.kept == pytest.approx(expected["lam_adjusted"], abs=1e-12)


def test_the_images_that_were_given_are_left_alone() -> None:
    before = IMAGES.clone()
    for mix in (MixUp(num_classes=5), CutMix(num_classes=5)):
        mix(IMAGES, LABELS)
        assert torch.equal(IMAGES, before)


@each_kind
def test_samples_and_collated_batches_are_taken(kind: type[BatchMix]) -> None:
    mix = kind(num_classes=5)
    samples = [
        (image, int(label), number) for number, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True))
    ]
    for inputs in ((samples,), ([IMAGES, LABELS, torch.arange(6)],), (IMAGES, LABELS, torch.arange(6))):
        images, labels, numbers = mix(*inputs)
        assert images.shape == IMAGES.shape
        assert labels.shape == (6, 5)
        assert labels.sum(1).allclose(torch.ones(6))
        assert numbers.tolist() == list(range(6))


def batches(mix: BatchMix, workers: int) -> list[Any]:
    dataset = TensorDataset(
        torch.rand(40, 3, 8, 8, generator=torch.Generator().manual_seed(2)), torch.arange(40)
    )
    loader: DataLoader[Any] = DataLoader(
        dataset, 8, shuffle=True, seed=5, num_workers=workers, collate_fn=mix
    )
    return [batch for _ in range(2) for batch in loader]


@each_kind
def test_a_batch_is_the_same_whoever_collates_it(kind: type[BatchMix]) -> None:
    found, others = batches(kind(num_classes=40), 0), batches(kind(num_classes=40), 2)
    assert len(found) == len(others) == 10
    for (images, labels), (same, same_labels) in zip(found, others, strict=True):
        assert torch.equal(images, same)
        assert torch.equal(labels, same_labels)
    assert len({round(float(labels.max()), 6) for _, labels in found}) > 5, (
        "each batch has a lambda of its own"
    )


def test_mixes_travel_to_spawned_workers() -> None:
    assert pickle.loads(pickle.dumps(CutMix(0.5, 7))) == CutMix(0.5, 7)


def test_cutmix_takes_uint8_and_mixup_says_what_it_needs() -> None:
    whole = (IMAGES * 255).to(torch.uint8)
    assert CutMix(num_classes=5)(whole, LABELS)[0].dtype == torch.uint8
    with pytest.raises(ConfigError, match="ToDtype"):
        MixUp(num_classes=5)(whole, LABELS)


@each_kind
def test_what_cannot_be_mixed_is_refused(kind: type[BatchMix]) -> None:
    with pytest.raises(ConfigError, match="num_classes"):
        kind()(IMAGES, LABELS)
    with pytest.raises(ConfigError, match="5 classes"):
        kind(num_classes=4)(IMAGES, torch.eye(5)[LABELS])
    with pytest.raises(ConfigError, match="alpha"):
        kind(0.0)
    for inputs in ((IMAGES,), ([IMAGES[0], IMAGES[1]],), ({"image": IMAGES},), (IMAGES, LABELS[:3])):
        with pytest.raises(ValueError, match=kind.__name__):
            kind(num_classes=5)(*inputs)
