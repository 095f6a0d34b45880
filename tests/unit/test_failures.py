"""What becomes of an exception's text and notes when it leaves a worker."""

from __future__ import annotations

import traceback
from pathlib import Path

import penstock
from penstock.worker.failures import folded, take_notes
from penstock.worker.prepare import held_back

OURS = Path(penstock.__file__).parent


def frame(file: object, line: int = 3) -> str:
    return f'  File "{file}", line {line}, in step\n    step()\n    ^^^^^^\n'


HEAD, END = "Traceback (most recent call last):\n", "KeyError: 9\n"


def test_frames_of_ours_that_lead_to_the_users_are_one_line() -> None:
    text = (
        HEAD
        + frame(OURS / "worker/loop.py")
        + frame(OURS / "worker/prepare.py")
        + frame("/home/me/data.py")
        + END
    )
    assert folded(text) == HEAD + "  (2 frames of penstock's own)\n" + frame("/home/me/data.py") + END


def test_those_between_and_behind_stay() -> None:
    rest = frame("/home/me/data.py") + frame(OURS / "transforms/ops.py") + frame("/home/me/data.py", 9) + END
    assert folded(HEAD + frame(OURS / "x.py") + rest) == HEAD + "  (1 frame of penstock's own)\n" + rest


def test_where_all_are_ours_they_stay() -> None:
    for text in (HEAD + frame(OURS / "a.py") + frame(OURS / "b.py") + END, HEAD + frame(OURS / "a.py")):
        assert folded(text) == text


def test_every_exception_of_a_chain_is_folded() -> None:
    one = HEAD + frame(OURS / "a.py") + frame("/home/me/data.py") + END
    between = "\nDuring handling of the above exception, another exception occurred:\n\n"
    short = HEAD + "  (1 frame of penstock's own)\n" + frame("/home/me/data.py") + END
    assert folded(one + between + one) == short + between + short


def test_a_message_that_looks_like_a_frame_is_left_alone() -> None:
    text = HEAD + frame("/home/me/data.py") + f'ValueError: see\n  File "{OURS}/a.py", line 1\n    here\n'
    assert folded(text) == text


def fails(key: int) -> int:
    raise KeyError(key)


def test_a_real_exception_keeps_the_users_frames() -> None:
    try:
        held_back(fails, 9)
    except KeyError as exc:
        text = folded("".join(traceback.format_exception(exc.with_traceback(exc.__traceback__.tb_next))))  # type: ignore[union-attr]
    assert "(1 frame of penstock's own)" in text
    assert "in fails" in text
    assert "prepare.py" not in text


def test_only_notes_of_ours_are_taken_off() -> None:
    exc = KeyError(9)
    exc.add_note("mine")
    exc.add_note("penstock: sample 9")
    assert take_notes(exc) == ["penstock: sample 9"]
    assert exc.__notes__ == ["mine"]
    assert take_notes(KeyError(9)) == []
    exc.__notes__ = "no list"  # type: ignore[assignment]
    assert take_notes(exc) == []
