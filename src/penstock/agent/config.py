"""What the training process tells its agent."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.state import CoreConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """What the training process tells its agent."""

    core: CoreConfig
    parent: int
    """Process whose end is the agent's end."""
    worker_memory: int = 0
    """Private bytes above which a worker is replaced; 0 never."""
    local_world: int = 1
    """Training processes that share this machine."""
    has_gpu_lane: bool = False
    follows: bool = False
    """The number of workers follows the cores that the training process may use."""
    spans: bool = False
    """Report every task for the trace."""
    record: str = ""
    """File to record all events and actions in."""
