"""A permit lets no name out of its folder, whatever the name."""

from __future__ import annotations

import os.path

from hypothesis import given
from hypothesis import strategies as st

from penstock.remote.permits import Permit

PARTS = st.sampled_from(
    ["", ".", "..", "a", "data", "x.jpg", "b.JPG", "secret.txt", "...", "..jpg", "\0", "~"]
)
NAMES = st.lists(PARTS, max_size=7).map("/".join)
FOLDERS = st.sampled_from(["", "data", "/srv/data", "../data", "./data"])


@given(folder=FOLDERS, tail=NAMES, glue=st.sampled_from(["", "/", "x"]))
def test_what_is_allowed_is_below_the_folder_with_an_ending(folder: str, tail: str, glue: str) -> None:
    permit = Permit(cwd="/home/me", folder=folder, suffixes=(".jpg",))
    name = f"{folder}{glue}{tail}"
    found = permit.find(name)
    if found is not None:
        root = os.path.normpath(f"/home/me/{folder}" if not folder.startswith("/") else folder)
        assert os.path.normpath(found.path).startswith(f"{root}/")
        assert found.path.lower().endswith(".jpg")
        assert os.path.normpath(found.path) == os.path.normpath(os.path.join("/home/me", name))


@given(folder=FOLDERS, parts=st.lists(st.sampled_from(["a", "b c", "...", "ü"]), max_size=4))
def test_every_file_of_the_dataset_is_allowed(folder: str, parts: list[str]) -> None:
    permit = Permit(cwd="/home/me", folder=folder, suffixes=(".jpg", ".png"))
    name = "/".join([*([folder] if folder else []), *parts, "1.PNG"])
    assert permit.find(name) is not None


@given(folder=st.none() | FOLDERS, files=st.dictionaries(NAMES, st.tuples(NAMES, NAMES), max_size=3))
def test_a_permit_survives_its_text(folder: str | None, files: dict[str, tuple[str, str]]) -> None:
    permit = Permit(cwd="/w", folder=folder, suffixes=(".a",), files=files)
    assert Permit.of(permit.text()) == permit
