"""Guards are found by markers in the source, and removed by changing the statements that the markers name.

Rule 1: a marker is a comment `# guard: some-name`. At the end of a line it names the innermost statement on that line; alone
        on a line it names the statement that begins below. A statement is whole: an `if` with all of its body.
Rule 2: tests name markers, never files. A name stands once in the sources, and some test names it.
Rule 3: a change depends on as little text as possible. It removes a statement or fixes a condition, and only where that is
        too much it replaces words inside of the statement.

This module is imported by programs that run a mutant, so it must not import penstock itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MARKER = re.compile(r"(.*)# guard: ([a-z0-9]+(?:-[a-z0-9]+)*)")


@dataclass(frozen=True, slots=True)
class Edit:
    """How a marked statement is changed."""

    marker: str
    new: str
    old: str | None = None
    """Text inside of the statement that `new` replaces; None: the whole statement."""
    condition: bool = False
    """Only the condition of an `if` or `while` is replaced."""


def removed(marker: str) -> Edit:
    return Edit(marker, "pass")


def always(marker: str) -> Edit:
    """The condition holds always."""
    return Edit(marker, "True", condition=True)


def never(marker: str) -> Edit:
    """The condition never holds."""
    return Edit(marker, "False", condition=True)


def replaced(marker: str, new: str) -> Edit:
    return Edit(marker, new)


def changed(marker: str, old: str, new: str) -> Edit:
    """`old` occurs in the statement exactly once."""
    return Edit(marker, new, old)


class BadMarker(AssertionError):
    """A marker is not what a test takes it for."""


def marked_lines(source: str) -> list[tuple[int, str, bool]]:
    """(line, name, whether it is alone on its line) of every marker; lines count from 1."""
    found = []
    for number, line in enumerate(source.split("\n"), 1):
        if "# guard:" in line:
            match = MARKER.fullmatch(line)
            if match is None:
                raise BadMarker(
                    f"line {number}: a marker is '# guard: some-name', and nothing behind it: {line}"
                )
            found.append((number, match[2], not match[1].strip()))
    return found


def statement_at(source: str, line: int, *, alone: bool) -> ast.stmt:
    """The statement that a marker on this line names."""
    statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    if alone:
        below = source.split("\n")[line:]
        line += 1 + next((i for i, text in enumerate(below) if text.strip() and text.strip()[0] != "#"), 0)
        within = [node for node in statements if node.lineno == line]
    else:
        within = [node for node in statements if node.lineno <= line <= (node.end_lineno or 0)]
    if not within:
        raise BadMarker(f"no statement begins on line {line}")
    return max(within, key=lambda node: (node.lineno, node.col_offset))


def span(source: str, node: ast.stmt | ast.expr) -> tuple[int, int]:
    """Where a node begins and ends in the text."""
    lines = source.split("\n")

    def at(line: int, column: int) -> int:  # columns of `ast` count bytes
        return sum(len(text) + 1 for text in lines[: line - 1]) + len(
            lines[line - 1].encode()[:column].decode()
        )

    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)


def mutant(source: str, edit: Edit) -> str:
    """The source with one change."""
    places = [(line, alone) for line, name, alone in marked_lines(source) if name == edit.marker]
    if len(places) != 1:
        raise BadMarker(f"marker '{edit.marker}' is found {len(places)} times in its file")
    ((line, alone),) = places
    node: ast.stmt | ast.expr = statement_at(source, line, alone=alone)
    if edit.condition:
        if not isinstance(node, ast.If | ast.While):
            raise BadMarker(f"marker '{edit.marker}' names no 'if' and no 'while'")
        node = node.test
    start, end = span(source, node)
    text, new = source[start:end], edit.new
    if edit.old is not None:
        if text.count(edit.old) != 1:
            raise BadMarker(
                f"marker '{edit.marker}': '{edit.old}' occurs {text.count(edit.old)} times in its statement:\n{text}"
            )
        new = text.replace(edit.old, edit.new)
    return source[:start] + new + source[end:]


def find(package: Path) -> dict[str, list[Path]]:
    """The files in which each marker stands, one for each time."""
    found: dict[str, list[Path]] = {}
    for file in sorted(package.rglob("*.py")):
        try:
            for _, name, _ in marked_lines(file.read_text("utf-8")):
                found.setdefault(name, []).append(file)
        except BadMarker as exc:
            raise BadMarker(f"{file.relative_to(package)}, {exc}") from None
    return found


def mutants(package: Path, edits: Iterable[Edit]) -> dict[Path, str]:
    """The files that differ once all of these changes are made, and what they say then."""
    places, texts = find(package), dict[Path, str]()
    for edit in edits:
        files = places.get(edit.marker, [])
        if len(files) != 1:
            raise BadMarker(f"'# guard: {edit.marker}' stands {len(files)} times in the source, not once")
        file = files[0]
        texts[file] = mutant(texts.get(file) or file.read_text("utf-8"), edit)
    return texts


def complaints(package: Path, edits: Iterable[Edit]) -> list[str]:
    """What is wrong with the markers of a package and the changes that tests make there, a line each."""
    places, edits = find(package), list(edits)
    named = {edit.marker for edit in edits}
    said = [f"'# guard: {name}' stands nowhere in the source" for name in sorted(named - set(places))]
    said += [f"'# guard: {name}' is named by no test" for name in sorted(set(places) - named)]
    for name, files in sorted(places.items()):
        if len(files) > 1:
            said.append(
                f"'# guard: {name}' stands more than once: {', '.join(str(file.relative_to(package)) for file in files)}"
            )
    for edit in edits:
        for file in places.get(edit.marker, ()):
            try:
                compile(mutant(file.read_text("utf-8"), edit), str(file), "exec")
            except (BadMarker, SyntaxError) as exc:
                said.append(f"{edit}: {exc}")
    return said
