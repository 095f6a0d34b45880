"""The HF Trainer: run the loaders it builds on our engine.

The Trainer builds torch's DataLoader from its `TrainingArguments` and passes it to Accelerate. No loader of the user carries our keywords,
so they are given here.
"""

from __future__ import annotations

from typing import Any

from penstock.integrations.accelerate import checked, install


def enable(**keywords: Any) -> None:
    """Make the Trainer build penstock loaders with these keywords (`seed=`, `on_error=`, ...)."""
    install(checked(keywords))
