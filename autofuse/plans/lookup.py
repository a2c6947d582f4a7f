"""From a key to a plan, or the reason why there is none. Fast when warm: one dictionary look-up, no disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autofuse.errors import PlanError, StoreError
from autofuse.plans.environment import COMPARED, compared
from autofuse.plans.plan import Plan
from autofuse.plans.store import PlanStore, StoredKey


@dataclass(frozen=True, slots=True)
class Miss:
    """kind: absent, target, environment, malformed or store; counted by it. reason: for people."""

    kind: str
    reason: str


class Lookup:
    """Hits are remembered for the life of the process (a stored plan never changes under its key, save for a better
    one), misses are asked of the store anew. `environment` is of this process, once and for all."""

    def __init__(self, store: PlanStore, environment: Mapping[str, str]) -> None:
        self.store = store
        self.environment = dict(environment)
        self._hits: dict[tuple[str, str], Plan] = {}

    def find(self, graph_key: str, target: str) -> Plan | Miss:
        """Never raises for what is in the store: a store or plan that cannot be read is a Miss that says so."""
        hit = self._hits.get((graph_key, target))
        if hit is not None:
            return hit
        found = find(self.store, graph_key, target, self.environment)
        if isinstance(found, Plan):
            self._hits[(graph_key, target)] = found
        return found


def find(store: PlanStore, graph_key: str, target: str, environment: Mapping[str, str]) -> Plan | Miss:
    try:
        plan = store.get(graph_key, target, environment)
        if plan is not None:
            return plan
        return explain(store.neighbours(graph_key), store.path, target, environment)
    except PlanError as error:
        return Miss("malformed", str(error))
    except StoreError as error:
        return Miss("store", str(error))


def explain(near: list[StoredKey], path: Path, target: str, environment: Mapping[str, str]) -> Miss:
    """Why none of the graph's stored plans fits; speaks of the nearest."""
    if not near:
        return Miss("absent", f"no plan for this graph in {path}")
    here = [key for key in near if key.target == target]
    if not here:
        others = ", ".join(sorted({key.target for key in near}))
        return Miss("target", f"plan is for {others}, not for {target}")
    wanted = compared(environment)
    faults = min((_differences(key.environment, wanted) for key in here), key=len)
    return Miss("environment", "; ".join(faults) or "plan is for another environment")


def _differences(made: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    return [
        f"made with {name} {made.get(name, 'unknown')}, here {wanted[name]}"
        for name in COMPARED
        if made.get(name) != wanted[name]
    ]
