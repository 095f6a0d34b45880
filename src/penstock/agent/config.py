"""What the training process tells its agent."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.state import CoreConfig
from penstock.policy.course_state import OffloadTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Settings of one agent."""

    core: CoreConfig
    parent: int
    """Process with which the agent ends."""
    worker_memory: int = 0
    """Private bytes above which a worker is replaced; 0: never."""
    ranks: int = 1
    """Training processes that share its cores."""
    """Training processes on this machine."""
    has_gpu_lane: bool = False
    follows: bool = False
    """Whether the worker count follows the cores available to the training process."""
    spans: bool = False
    """Report every task for the trace."""
    record: str = ""
    """File that records all events and actions."""
    plans: tuple[str, ...] = ("samples",)
    """How remote workers may divide the work with this machine."""
    remote_workers: int = 0
    """Remote workers at most."""
    remote_share: float | str | None = None
    """"auto": measured; a number: fixed; None: what delays no batch."""
    course: str = ""
    """What an earlier agent of this loader has measured and decided (`policy.course`)."""

    @property
    def steers(self) -> bool:
        """Whether the agent decides about remote workers, or about their plan."""
        return self.remote_share == "auto" or (self.remote_share is not None and len(self.plans) > 1)

    @property
    def terms(self) -> OffloadTerms:
        """What it may decide."""
        fixed = self.remote_share if isinstance(self.remote_share, float | int) else None
        return OffloadTerms(plans=self.plans, most=max(1, self.remote_workers), share=fixed)
