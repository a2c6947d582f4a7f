"""Plans: what was chosen for a graph, where that is kept, and how it is found again. Loads on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autofuse.plans.archive import export_plans as export_plans
    from autofuse.plans.archive import import_plans as import_plans
    from autofuse.plans.archive import read_archive as read_archive
    from autofuse.plans.environment import current_environment as current_environment
    from autofuse.plans.lookup import Lookup as Lookup
    from autofuse.plans.lookup import Miss as Miss
    from autofuse.plans.lookup import find as find
    from autofuse.plans.plan import Plan as Plan
    from autofuse.plans.plan import PlannedGroup as PlannedGroup
    from autofuse.plans.plan import make_plan as make_plan
    from autofuse.plans.store import PlanStore as PlanStore

_WHERE = {
    "export_plans": "archive", "import_plans": "archive", "read_archive": "archive",
    "current_environment": "environment", "Lookup": "lookup", "Miss": "lookup", "find": "lookup",
    "Plan": "plan", "PlannedGroup": "plan", "make_plan": "plan", "PlanStore": "store",
}  # fmt: skip
__all__ = [
    "Lookup", "Miss", "Plan", "PlanStore", "PlannedGroup", "current_environment", "export_plans", "find",
    "import_plans", "make_plan", "read_archive",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'autofuse.plans' has no attribute {name!r}")
    found = getattr(import_module(f"autofuse.plans.{_WHERE[name]}"), name)
    globals()[name] = found
    return found
