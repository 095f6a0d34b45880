"""The markers of guards in the source, and the changes that tests make there (see `tests/fault/markers.py`). Nothing is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.guards import GUARDS, ROOT
from tests.fault.guards_of_cache import CACHE_GUARDS
from tests.fault.guards_of_data import DATA_GUARDS
from tests.fault.guards_of_device_store import DEVICE_GUARDS
from tests.fault.guards_of_disk_store import DISK_GUARDS
from tests.fault.guards_of_ferry import FERRY_GUARDS
from tests.fault.guards_of_fetch import FETCH_GUARDS
from tests.fault.guards_of_lending import LENDING_GUARDS
from tests.fault.guards_of_node import NODE_GUARDS
from tests.fault.guards_of_peers import PEER_GUARDS
from tests.fault.guards_of_readers import READER_GUARDS
from tests.fault.guards_of_remote import REMOTE_GUARDS
from tests.fault.guards_of_tls import TLS_GUARDS
from tests.fault.markers import (
    BadMarker,
    Edit,
    always,
    changed,
    complaints,
    mutant,
    mutants,
    never,
    removed,
    replaced,
)

ALL = [
    *GUARDS,
    *DATA_GUARDS,
    *DISK_GUARDS,
    *DEVICE_GUARDS,
    *REMOTE_GUARDS,
    *FERRY_GUARDS,
    *FETCH_GUARDS,
    *NODE_GUARDS,
    *LENDING_GUARDS,
    *CACHE_GUARDS,
    *PEER_GUARDS,
    *READER_GUARDS,
    *TLS_GUARDS,
]
SOURCE = """\
def f(a: int) -> int:
    if a > 1 and a != "ä":  # guard: small
        return 1
    elif a:  # guard: other
        a += 1
    # guard: both
    # as the one above
    while (
        a < 7
        and a != 3  # guard: inside
    ):
        a += 2
    return a  # guard: result
"""


def test_every_marker_stands_once_and_is_named_by_a_test_that_can_change_its_statement() -> None:
    found = complaints(ROOT / "src" / "penstock", [edit for guard in ALL for edit in guard.edits])
    assert not found, "\n" + "\n".join(found)


def test_there_are_not_fewer_guards_than_there_were() -> None:
    assert len(ALL) >= 180
    assert len({guard.name for guard in ALL}) == len(ALL)


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        (removed("result"), "return a", "pass"),
        (replaced("result", "return 0"), "return a", "return 0"),
        (never("small"), 'a > 1 and a != "ä"', "False"),
        (always("other"), "elif a:", "elif True:"),
        (changed("small", "return 1", "return 2"), "return 1", "return 2"),
        (never("inside"), "a < 7\n        and a != 3", "False"),
        (changed("inside", "and a != 3", ""), "and a != 3", ""),
        (changed("both", "+= 2", "+= 3"), "+= 2", "+= 3"),
    ],
)
def test_only_the_statement_that_a_marker_names_is_changed(edit: Edit, before: str, after: str) -> None:
    assert SOURCE.count(before) == 1
    assert mutant(SOURCE, edit) == SOURCE.replace(before, after)


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (removed("none"), "is found 0 times"),
        (never("result"), "names no 'if' and no 'while'"),
        (changed("result", "a += 1", ""), "'a [+]= 1' occurs 0 times in its statement:\nreturn a"),
        (changed("both", "a", "b"), "'a' occurs 5 times"),
    ],
)
def test_what_cannot_be_changed_is_an_error(edit: Edit, complaint: str) -> None:
    with pytest.raises(BadMarker, match=complaint):
        mutant(SOURCE, edit)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("a = 1  # guard: Name\n", "a marker is '# guard: some-name'"),
        ("a = 1  # guard: one two\n", "a marker is '# guard: some-name'"),
        ("a = (\n    # guard: name\n    1\n)\n", "no statement begins on line 3"),
        ("a = 1\n# guard: name\n", "no statement begins"),
        ("a = 1  # guard: name\nb = 2  # guard: name\n", "is found 2 times"),
    ],
)
def test_a_marker_that_names_no_statement_is_an_error(source: str, complaint: str) -> None:
    with pytest.raises(BadMarker, match=complaint):
        mutant(source, removed("name"))


def test_markers_are_found_in_any_file_and_their_absence_and_their_doubles_are_told(tmp_path: Path) -> None:
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "here.py").write_text(SOURCE)
    edits = [removed("result"), never("both"), never("inside"), never("small"), never("other")]
    assert complaints(tmp_path, edits) == []
    assert list(mutants(tmp_path, edits[:1])) == [tmp_path / "moved" / "here.py"]
    (tmp_path / "again.py").write_text("a = 1  # guard: both\nif a:  # guard: unnamed\n    pass\n")
    said = complaints(tmp_path, [*edits, removed("missing"), replaced("result", "return )")])
    assert said[:3] == [
        "'# guard: missing' stands nowhere in the source",
        "'# guard: unnamed' is named by no test",
        "'# guard: both' stands more than once: again.py, moved/here.py",
    ]
    assert "names no 'if'" in said[3]
    assert "unmatched ')'" in said[4]
    with pytest.raises(BadMarker, match="'# guard: both' stands 2 times"):
        mutants(tmp_path, [never("both")])


def test_several_changes_in_one_file_are_all_made(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(SOURCE)
    (text,) = mutants(tmp_path, [removed("result"), always("other")]).values()
    assert text == SOURCE.replace("return a", "pass").replace("elif a", "elif True")
