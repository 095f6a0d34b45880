"""All cases, by name."""

from __future__ import annotations

from tests.integration.digests import adopted, images, plain
from tests.integration.digests.case import Case

CASES: dict[str, Case] = dict(
    [
        *plain.maps(),
        *plain.iterables(),
        *images.pictures(),
        *images.moved_targets(),
        *images.heard(),
        *images.reuses(),
        *adopted.adopted(),
    ]
)
