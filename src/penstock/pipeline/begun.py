"""A sample that is read and drawn: its pixels can be made anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.transforms.steps import Program


@dataclass(slots=True)
class Begun:
    data: bytes
    image: Any
    program: Program
    target: Any

    @property
    def first(self) -> Program:
        """The steps to run on the image where it is decoded."""
        return self.program
