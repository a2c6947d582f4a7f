"""What a search is done with, handed down whole: the driver makes one a graph. No behaviour but the telling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autofuse.cost.device import Target
from autofuse.cost.model import CostModel
from autofuse.measure.compile import CompilePool
from autofuse.measure.supervisor import Worker
from autofuse.results.recordings import Recordings
from autofuse.search.effort import Budget, Effort
from autofuse.search.journal import Journal


@dataclass(frozen=True)
class Context:
    """worker: None where there is no live GPU; then times are predicted, or recorded where recordings has any."""

    target: Target
    model: CostModel
    effort: Effort
    budget: Budget
    journal: Journal
    compile_pool: CompilePool
    worker: Worker | None
    strategy: str
    seed: int = 0
    on_progress: Callable[[str, dict[str, Any]], None] = lambda _kind, _facts: None
    recordings: Recordings | None = None
    memory_limit: int | None = None
    """Bytes that the values between kernels may take at any time."""

    def fits(self, peak_bytes: Callable[[], int]) -> bool:
        """Within the limit of memory? Asked of hundreds of groups again and again: worked out where there is one."""
        return self.memory_limit is None or peak_bytes() <= self.memory_limit

    def progress(self, kind: str, **facts: object) -> None:
        self.on_progress(kind, facts)
