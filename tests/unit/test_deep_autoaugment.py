"""Deep AutoAugment: the authors' files are read as they are written, and each op is drawn with the probability that they say."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import ConfigError
from penstock.pipeline.chain import Chain
from penstock.transforms import DeepAutoAugment, PerBatch
from penstock.transforms.deep import DRAWN, MEAN, MIRRORED, NAMES, RANGES
from penstock.transforms.draws import Draws
from penstock.transforms.steps import Code, Program, Step, program_size

COUNT = 100_000
SIZE = (240, 300)
LEVELS = 13
OPS = [
    "Identity:(0.0,,1.0)",
    "ShearX:(-0.3,,0.3)",
    "ShearY:(-0.3,,0.3)",
    "TranslateX:(-0.45,,0.45)",
    "TranslateY:(-0.45,,0.45)",
    "Rotate:(-30.0,,30.0)",
    "AutoContrast:(0.0,,1.0)",
    "Invert:(0.0,,1.0)",
    "Equalize:(0.0,,1.0)",
    "Solarize:(0.0,,256.0)",
    "Posterize:(4.0,,8.0)",
    "Contrast:(0.1,,1.9)",
    "Color:(0.1,,1.9)",
    "Brightness:(0.1,,1.9)",
    "Sharpness:(0.1,,1.9)",
    "RandFlip:(0.0,,1.0)",
    "RandCutout60:(0.0,,1.0)",
    "RandResizeCrop_imagenet:(0.0,,1.0)",
]
"""As the authors' search writes them, two commas and all."""
NAME_OF = [name.split(":")[0] for name in OPS]
STRONGEST_DOES_NOTHING = ("Solarize", "Posterize")


def contents(layers: int = 2) -> dict[str, Any]:
    """What a file has, in the authors' layout: a row for each op and level, but for the levels that change nothing."""
    rows = []
    for at, name in enumerate(NAME_OF):
        middle = (LEVELS - 1) // 2
        nothing = LEVELS - 1 if name in STRONGEST_DOES_NOTHING else middle
        rows += [(at, m) for m in range(LEVELS) if m != nothing] if name in RANGES else [(at, middle)]
    logits = np.random.default_rng(1).normal(size=(layers, len(rows)))
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return {
        "policy_probs": probabilities.astype(np.float32),
        "l_ops": len(OPS),
        "l_mags": LEVELS,
        "ops": np.array([[op] for op, _ in rows], np.int32),
        "mags": np.array([[level] for _, level in rows], np.int32),
        "op_names": OPS,
    }


def written(path: Path, **changes: Any) -> Path:
    np.savez(
        path / "policy.npz", **{name: v for name, v in {**contents(), **changes}.items() if v is not None}
    )
    return path / "policy.npz"


def keyed(program: Program) -> tuple[Any, ...]:
    """What was drawn; of ops that draw places of their own, only that they were."""
    return tuple(
        step.code
        if step.code in (Code.ERASE, Code.CROP, Code.PAD, Code.RESIZE)
        else (step.code, *(round(a, 6) for a in step.args))
        for step in program
    )


def expected_of(name: str, level: float) -> list[tuple[float, tuple[Any, ...]]]:
    """How likely an op comes to what, said once more."""
    rows, columns = SIZE
    plain = {"AutoContrast": Code.AUTOCONTRAST, "Invert": Code.INVERT, "Equalize": Code.EQUALIZE}
    factors = {"Contrast": Code.CONTRAST, "Color": Code.SATURATION, "Brightness": Code.BRIGHTNESS}
    factors["Sharpness"] = Code.SHARPNESS
    if name in plain:
        return [(1.0, ((plain[name],),))]
    if name in factors:
        return [(1.0, ((factors[name], round(0.1 + 1.8 * level, 6)),))]
    found: list[tuple[float, tuple[Any, ...]]] = []
    for sign in (1, -1):
        shear, move, angle = (sign * (2 * level - 1) * most for most in (0.3, 0.45, math.radians(30)))
        c, s, x, y = math.cos(-angle), math.sin(-angle), columns / 2, rows / 2
        matrices = {
            "ShearX": (1, shear, 0, 0, 1, 0),
            "ShearY": (1, 0, 0, shear, 1, 0),
            "TranslateX": (1, 0, move * columns, 0, 1, 0),
            "TranslateY": (1, 0, 0, 0, 1, move * rows),
            "Rotate": (c, s, x - c * x - s * y, -s, c, y + s * x - c * y),
        }
        if name in matrices:
            found.append((0.5, ((Code.AFFINE, *(round(v, 6) for v in matrices[name]), 0, 0),)))
    others: dict[str, list[tuple[float, tuple[Any, ...]]]] = {
        "Identity": [(1.0, ())],
        "Solarize": [(1.0, ((Code.SOLARIZE, round(256 * level, 6)),))],
        "Posterize": [(1.0, ((Code.POSTERIZE, math.floor(4 + 4 * level + 1e-9)),))],
        "RandFlip": [(0.5, ()), (0.5, ((Code.FLIP_H,),))],
        "RandCutout60": [(1.0, (Code.ERASE,))],
        "RandResizeCrop_imagenet": [(1.0, (Code.CROP, Code.RESIZE))],
    }
    return found or others[name]


def test_a_file_is_drawn_from_with_its_probabilities(tmp_path: Path) -> None:
    held = contents(1)
    op = DeepAutoAugment(written(tmp_path, **held))
    expected: Counter[tuple[Any, ...]] = Counter()
    for p, at, level in zip(held["policy_probs"][0], held["ops"][:, 0], held["mags"][:, 0], strict=True):
        for part, key in expected_of(NAME_OF[at], level / (LEVELS - 1)):
            expected[key] += COUNT * float(p) * part  # type: ignore[assignment]
    found = Counter(keyed(op.draw(Draws(seed), SIZE)) for seed in range(COUNT))
    assert set(found) == set(expected)
    chi = sum((found[key] - expected[key]) ** 2 / expected[key] for key in expected)
    assert chi < len(expected) + 4 * math.sqrt(2 * len(expected))


def test_layers_are_drawn_apart_and_in_their_order() -> None:
    op = DeepAutoAugment(
        [
            [(0.3, "Invert", None), (0.7, "Equalize", None)],
            [(0.2, "AutoContrast", None), (0.0, "Posterize", 0.5), (0.8, "Identity", None)],
        ]
    )
    pairs = Counter(tuple(step.code for step in op.draw(Draws(seed), SIZE)) for seed in range(COUNT))
    likely = {
        (Code.INVERT, Code.AUTOCONTRAST): 0.06,
        (Code.INVERT,): 0.24,
        (Code.EQUALIZE, Code.AUTOCONTRAST): 0.14,
        (Code.EQUALIZE,): 0.56,
    }
    assert set(pairs) == set(likely)
    for pair, p in likely.items():
        assert pairs[pair] == pytest.approx(COUNT * p, abs=4.5 * math.sqrt(COUNT * p * (1 - p)))


def test_levels_are_those_of_the_file(tmp_path: Path) -> None:
    held = contents()
    op = DeepAutoAugment(str(written(tmp_path)))
    assert [len(layer) for layer in op.layers] == [139, 139], "as many as the authors' ImageNet policy has"
    assert op.layers[1][1] == (float(held["policy_probs"][1, 1]), "ShearX", 0.0)
    assert op.layers[0][0][1:] == ("Identity", None)
    assert {name for _, name, _ in op.layers[0]} == set(NAME_OF)


def test_it_is_what_the_policy_says_not_where_it_was_read(tmp_path: Path) -> None:
    op = DeepAutoAugment(written(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    other = DeepAutoAugment(written(tmp_path / "elsewhere"))
    different = DeepAutoAugment(written(tmp_path, policy_probs=contents()["policy_probs"][::-1]))
    assert op == other
    assert Chain.of(op).identity == Chain.of(other).identity != Chain.of(different).identity
    assert len(str(op.identity())) < 200
    (tmp_path / "policy.npz").unlink()
    sent = pickle.loads(pickle.dumps(op))
    assert sent.draw(Draws(5), SIZE) == op.draw(Draws(5), SIZE)


def test_samples_of_a_batch_get_the_same_ops_whatever_their_size() -> None:
    op = PerBatch(
        DeepAutoAugment(
            [
                [(1.0, "RandResizeCrop_imagenet", None)],
                [(0.5, "Invert", None), (0.5, "Equalize", None)],
            ]
        )
    )
    for seed in range(200):
        last = {op.draw(Draws(seed), size)[-1].code for size in ((300, 300), (60, 900), (900, 60))}
        assert len(last) == 1


def test_places_are_those_of_the_authors() -> None:
    covered = np.zeros(SIZE, np.int64)
    for seed in range(4000):
        (step,) = DRAWN["RandCutout60"](Draws(seed), SIZE)
        top, left, height, width, value, _ = step.args
        assert value == MEAN
        assert top + height <= SIZE[0]
        assert left + width <= SIZE[1]
        assert height <= 61
        assert width <= 61
        covered[top : top + height, left : left + width] += 1
        padding, crop = DRAWN["RandCrop"](Draws(seed), SIZE)
        assert padding.args[:4] == (4, 4, 4, 4)
        assert max(crop.args[:2]) <= 8
        assert program_size([padding, crop], SIZE) == SIZE
        _, resize = DRAWN["RandResizeCrop_imagenet"](Draws(seed), SIZE)
        assert resize.args == (224, 224, 3, True)
    assert covered.min() > 0, "a width of 300 leaves 22 pixels on each side to no centre, but to 30 about one"
    tops = Counter(DRAWN["RandCrop"](Draws(seed), SIZE)[1].args[:2] for seed in range(COUNT))
    assert len(tops) == 81
    assert min(tops.values()) > COUNT / 81 * 0.85


@pytest.mark.parametrize("name", sorted(NAMES - {"RandResizeCrop_imagenet", "RandFlip", "Identity"}))
def test_pixels_are_pillows(name: str) -> None:
    pytest.importorskip("cv2")
    from PIL import Image, ImageDraw, ImageEnhance, ImageOps

    from penstock.transforms.cpu import execute

    pixels = np.random.default_rng(2).integers(0, 256, (32, 32, 3), np.uint8)
    source = Image.fromarray(pixels)
    for level in (0.0, 1 / 12, 4 / 12, 1.0) if name in RANGES else (None,):
        program = DeepAutoAugment([[(1.0, name, level)]]).draw(Draws(7), (32, 32))
        done = execute(program, pixels)
        if name in MIRRORED:
            low, high = RANGES[name]
            values = [sign * (low + (high - low) * (level or 0.0)) for sign in (1, -1)]
            matrices: dict[str, Callable[[float], tuple[float, ...]]] = {
                "ShearX": lambda v: (1, v, 0, 0, 1, 0),
                "ShearY": lambda v: (1, 0, 0, v, 1, 0),
                "TranslateX": lambda v: (1, 0, v * 32, 0, 1, 0),
                "TranslateY": lambda v: (1, 0, 0, 0, 1, v * 32),
            }
            theirs = [
                source.rotate(v)
                if name == "Rotate"
                else source.transform((32, 32), Image.Transform.AFFINE, matrices[name](v))
                for v in values
            ]
        elif name.startswith("RandCutout"):
            program = DRAWN[name](Draws(7), (32, 32))
            draws, half = Draws(7), 30 if name == "RandCutout60" else 8
            y, x = draws.uniform(0, 32), draws.uniform(0, 32)
            corners = [int(min(32, max(0, v))) for v in (x - half, y - half, x + half, y + half)]
            done, holed = execute(program, pixels), source.copy()
            ImageDraw.Draw(holed).rectangle(tuple(corners), MEAN)
            theirs = [holed]
        elif name == "RandCrop":
            wide = Image.new("RGB", (40, 40), MEAN)
            wide.paste(source, (4, 4))
            top, left = program[1].args[:2]
            theirs = [wide.crop((left, top, left + 32, top + 32))]
        elif name in ("Solarize", "Posterize"):
            share = level or 0.0
            theirs = [
                ImageOps.solarize(source, 256 * share)  # type: ignore[arg-type]
                if name == "Solarize"
                else ImageOps.posterize(source, int(4 + 4 * share))
            ]
        elif name in RANGES:
            theirs = [getattr(ImageEnhance, name)(source).enhance(0.1 + 1.8 * (level or 0.0))]
        else:
            theirs = [getattr(ImageOps, name.lower())(source)]
        assert any(np.array_equal(done, np.asarray(image)) for image in theirs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"op_names": None}, "has no op_names"),
        ({"op_names": np.array(OPS, object)}, "pickled objects are refused"),
        ({"op_names": [*OPS[:-1], "Blur:(0.0,,1.0)"]}, "no op is called 'Blur'"),
        ({"op_names": OPS[:-1]}, "ops that are in op_names"),
        ({"l_mags": 5}, "mags below l_mags"),
        ({"l_mags": 1}, "l_mags: a number above 1"),
        ({"ops": contents()["ops"][:-1]}, "ops: 139 integers"),
        ({"mags": contents()["mags"].astype(float)}, "mags: 139 integers"),
        ({"policy_probs": contents()["policy_probs"][0]}, "policy_probs: layers x choices"),
        ({"policy_probs": contents()["policy_probs"] * 0.9}, "layer 0 should sum to 1"),
        ({"policy_probs": contents()["policy_probs"] * np.nan}, "between 0 and 1"),
        ({"policy_probs": contents()["policy_probs"][:0]}, "no layers"),
    ],
)
def test_files_that_make_no_sense_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DeepAutoAugment(written(tmp_path, **changes))


def test_what_is_no_file_of_arrays_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="policy_port"):
        DeepAutoAugment("imagenet")
    cut = written(tmp_path)
    cut.write_bytes(cut.read_bytes()[:500])
    with pytest.raises(ConfigError, match="cannot be read"):
        DeepAutoAugment(cut)
    for content in (b"", b"some text", pickle.dumps({"policy_probs": 1})):
        (tmp_path / "other.npz").write_bytes(content)
        with pytest.raises(ConfigError, match="cannot be read"):
            DeepAutoAugment(tmp_path / "other.npz")
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(ConfigError, match="holds one array"):
        DeepAutoAugment(tmp_path / "one.npy")


@pytest.mark.parametrize(
    "policy",
    [
        [],
        [[]],
        [[(1.0, "Rotate", None)]],
        [[(1.0, "Rotate", 1.5)]],
        [[(1.0, "Rotated", 0.5)]],
        [[(0.5, "Invert", None)]],
        [[(2.0, "Invert", None), (-1.0, "Equalize", None)]],
        [["Invert"]],
        [[("Invert", 1.0, None)]],
    ],
)
def test_policies_that_make_no_sense_are_refused(policy: Any) -> None:
    with pytest.raises(ConfigError):
        DeepAutoAugment(policy)


def test_steps_are_plain_numbers(tmp_path: Path) -> None:
    op = DeepAutoAugment(written(tmp_path))
    for seed in range(300):
        for step in op.draw(Draws(seed), SIZE):
            assert isinstance(step, Step)
            assert all(type(value) in (int, float, bool, str, tuple) for value in step.args)
