"""The HF Trainer: the loaders it builds run on our engine.

The Trainer builds torch's DataLoader from its `TrainingArguments` and gives it to Accelerate, so there is no loader of the
user's to carry our keywords: they are given here.
"""

from __future__ import annotations

from typing import Any

from penstock.integrations.accelerate import checked, install


def enable(**keywords: Any) -> None:
    """From now on, loaders that the Trainer builds are penstock's, with these keywords (`seed=`, `on_error=`, ...)."""
    install(checked(keywords))
