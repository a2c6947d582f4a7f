"""A plan: for one graph, one shape key and one target, the chosen grouping and implementations, with the evidence.

Data only, and the validation of that data. A plan names ops and integers; it never holds code.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any

from autofuse.errors import InvalidSchedule, PlanError
from autofuse.ir.graph import Graph
from autofuse.plans import strict
from autofuse.schedule.schedule import Schedule

FORMAT = 1
IMPLEMENTATIONS = ("triton", "aten", "inductor", "once")
"""once: values that follow from frozen inputs alone, computed by ATen calls once for each set of such tensors."""
TIMINGS = ("predicted", "recorded", "measured")
"""How the times of a plan came about, weakest first."""

_ROLE = re.compile(r"[a-z]{4,5}(\(\d{1,7}(,\d{1,5})?\))?\Z", re.ASCII)
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """ops: names, in graph order (views need no naming). outputs: values that the group materialises. schedule: of a
    triton group, else None. rewrites: of a triton group's program; of any other group at most one name, of the library
    call (fusion.library) that it makes or that Inductor compiles; none of a once group. evidence: n_regs, n_spills,
    smem_bytes, occupancy, dram_bytes, saved_bytes, held_bytes (memory that what is computed once takes), predicted_us,
    measured_us, alternatives refused."""

    ops: tuple[str, ...]
    outputs: tuple[str, ...]
    implementation: str
    schedule: Schedule | None = None
    rewrites: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.implementation not in IMPLEMENTATIONS:
            raise PlanError(f"implementation {self.implementation!r} is not one of {', '.join(IMPLEMENTATIONS)}")
        if (self.implementation == "triton") != (self.schedule is not None):
            raise PlanError(f"group of {', '.join(self.ops)[:80]}: a schedule belongs to triton groups, and only there")
        if self.implementation == "once" and self.rewrites:
            raise PlanError(f"group of {', '.join(self.ops)[:80]}: once is by the ops' own calls and names no other")
        if self.implementation != "triton" and len(self.rewrites) > 1:
            raise PlanError(f"group of {', '.join(self.ops)[:80]}: {self.implementation} names one library call")


@dataclass(frozen=True, slots=True)
class Plan:
    """plan_id is the hash of everything but `created`. ops, values: names of all ops and all op outputs of the graph
    that the plan was made from, in graph order; a graph of the same key may call them differently (see `bind`)."""

    plan_id: str
    graph_key: str
    workload: str
    shape: Mapping[str, int] = field(hash=False)
    target: str
    environment: Mapping[str, str] = field(hash=False)
    ops: tuple[str, ...]
    values: tuple[str, ...]
    groups: tuple[PlannedGroup, ...]
    timing: str
    total_us: float
    unfused_us: float
    evidence: Mapping[str, Any] = field(default_factory=dict, hash=False)
    created: str = field(default="", compare=False)

    @property
    def ratio(self) -> float:
        """Time over the unfused plan's time; lower is better."""
        return self.total_us / self.unfused_us if self.unfused_us > 0 else float("inf")

    @property
    def rank(self) -> tuple[int, float]:
        """Sorts plans of one key: better ones first. Measured beats recorded beats predicted; then the lower ratio."""
        return (-TIMINGS.index(self.timing), self.ratio)

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, "plan_id": self.plan_id, "created": self.created, **_content(self)}

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), sort_keys=True, indent=indent, allow_nan=False)

    @staticmethod
    def from_json(data: str | bytes, what: str = "plan") -> Plan:
        """Raises PlanError, naming the field, on anything that to_json does not make."""
        return _plan(strict.parse(data, what), what)

    def bind(self, graph: Graph) -> Plan:
        """The plan in the names of `graph`, which has the plan's key: same ops in the same order, perhaps named
        otherwise. Raises PlanError when the graph does not have as many ops and values."""
        ops, values = graph_names(graph)
        if (ops, values) == (self.ops, self.values):
            return self
        if len(ops) != len(self.ops) or len(values) != len(self.values):
            raise PlanError(
                f"plan {self.plan_id} is for a graph of {len(self.ops)} ops and {len(self.values)} values; "
                f"this one has {len(ops)} and {len(values)}"
            )
        op = dict(zip(self.ops, ops, strict=True))
        value = dict(zip(self.values, values, strict=True))
        groups = tuple(
            replace(g, ops=tuple(op[o] for o in g.ops), outputs=tuple(value[v] for v in g.outputs)) for g in self.groups
        )
        return replace(self, ops=ops, values=values, groups=groups)


def make_plan(
    *,
    graph: Graph,
    graph_key: str,
    workload: str,
    shape: Mapping[str, int],
    target: str,
    environment: Mapping[str, str],
    groups: Sequence[PlannedGroup],
    timing: str,
    total_us: float,
    unfused_us: float,
    evidence: Mapping[str, Any] | None = None,
) -> Plan:
    """A plan with its id, of now. Raises PlanError when a field is not what a plan file may hold."""
    ops, values = graph_names(graph)
    draft = Plan(
        plan_id="",
        graph_key=graph_key,
        workload=workload,
        shape=dict(shape),
        target=target,
        environment=dict(environment),
        ops=ops,
        values=values,
        groups=tuple(groups),
        timing=timing,
        total_us=float(total_us),
        unfused_us=float(unfused_us),
        evidence=dict(evidence or {}),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    try:
        stamped = replace(draft, plan_id=content_id(draft))
        return Plan.from_json(stamped.to_json(), "new plan")
    except (TypeError, ValueError) as error:  # json.dumps: NaN, or an object that is no data
        raise PlanError(f"new plan: {error}") from None


def graph_names(graph: Graph) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(op.name for op in graph.ops), tuple(value for op in graph.ops for value in op.outputs)


def content_id(plan: Plan) -> str:
    text = json.dumps(_content(plan), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _content(plan: Plan) -> dict[str, Any]:
    plain = {f.name: getattr(plan, f.name) for f in fields(plan) if f.name not in ("plan_id", "created")}
    plain |= {name: dict(plain[name]) for name in ("shape", "environment", "evidence")}
    plain |= {"ops": list(plan.ops), "values": list(plan.values), "groups": [_group_dict(g) for g in plan.groups]}
    return plain


def _group_dict(group: PlannedGroup) -> dict[str, Any]:
    schedule = None
    if group.schedule is not None:
        # A list, for the order of the roles is the loop order and sorted keys would lose it.
        schedule = group.schedule.to_dict()
        schedule["roles"] = [[axis, str(role)] for axis, role in group.schedule.roles]
    return {
        "ops": list(group.ops),
        "outputs": list(group.outputs),
        "implementation": group.implementation,
        "schedule": schedule,
        "rewrites": list(group.rewrites),
        "evidence": dict(group.evidence),
    }


# --- reading ---


def _plan(data: object, what: str) -> Plan:
    found = strict.record(data, what, _PLAN)
    del found["format"]
    plan = Plan(**found)
    for label, names in (("ops", plan.ops), ("values", plan.values)):
        if len(set(names)) != len(names):
            raise PlanError(f"{what}.{label}: a name appears twice")
    _check_groups(plan, what)
    if content_id(plan) != plan.plan_id:
        raise PlanError(f"{what}.plan_id: {plan.plan_id} is not the hash of the content ({content_id(plan)})")
    return plan


def _check_groups(plan: Plan, what: str) -> None:
    ops, values = set(plan.ops), set(plan.values)
    made: set[str] = set()
    for i, group in enumerate(plan.groups):
        where = f"{what}.groups[{i}]"
        for label, names, known in (("ops", group.ops, ops), ("outputs", group.outputs, values)):
            stray = [n for n in names if n not in known]
            if stray:
                raise PlanError(f"{where}.{label}: {stray[0]!r} is not in the plan's graph")
            if len(set(names)) != len(names):
                raise PlanError(f"{where}.{label}: a name appears twice")
        twice = made & set(group.outputs)
        if twice:
            raise PlanError(f"{where}.outputs: {min(twice)!r} is made by two groups")
        made |= set(group.outputs)


def _group(data: object, where: str) -> PlannedGroup:
    try:
        return PlannedGroup(**strict.record(data, where, _GROUP))
    except PlanError as error:
        message = str(error)
        raise PlanError(message if message.startswith(where) else f"{where}: {message}") from None


def _schedule(data: object, where: str) -> Schedule | None:
    if data is None:
        return None
    if not isinstance(data, dict):
        raise PlanError(f"{where}: expected an object or null")
    missing = {f.name for f in fields(Schedule)} - set(data)
    if missing:
        raise PlanError(f"{where}: field {min(missing)!r} is missing")
    roles = strict.items(data["roles"], f"{where}.roles", _role)
    if len({axis for axis, _ in roles}) != len(roles):
        raise PlanError(f"{where}.roles: an axis appears twice")
    try:
        schedule = Schedule.from_dict({**data, "roles": dict(roles)})
    except (InvalidSchedule, ValueError) as error:
        raise PlanError(f"{where}: {error}") from None
    _check_schedule(schedule, where)
    return schedule


def _role(data: object, where: str) -> tuple[str, str]:
    pair = strict.items(data, where, lambda value, at: strict.text(value, at, 200))
    if len(pair) != 2 or not _ROLE.match(pair[1]):
        raise PlanError(f"{where}: expected [axis, role]")
    return strict.name(pair[0], where), pair[1]


def _check_schedule(schedule: Schedule, where: str) -> None:
    """Limits of Triton and of the hardware, so that no compiler ever sees a number that could hang it."""
    limits = {
        "num_warps": (1, 32),
        "num_stages": (0, 16),
        "group": (1, 1024),
        "persistent": (0, 32),
        "maxnreg": (0, 255),
    }
    for knob, (low, high) in limits.items():
        strict.integer(getattr(schedule, knob), f"{where}.{knob}", low, high)
    if schedule.num_warps & (schedule.num_warps - 1):
        raise PlanError(f"{where}.num_warps: {schedule.num_warps} is not a power of two")
    strict.choice(schedule.access, f"{where}.access", ("pointer", "descriptor", "operands"))
    strict.choice(schedule.eviction, f"{where}.eviction", ("none", "first"))
    strict.choice(schedule.sweep, f"{where}.sweep", ("forward", "reverse", "hold"))
    for axis, role in schedule.roles:
        block = role.block
        if role.kind != "whole" and (not 1 <= block <= 1 << 17 or block & (block - 1) or not 1 <= role.parts <= 4096):
            raise PlanError(f"{where}.roles.{axis}: {role} is not a tile (powers of two up to 131072)")


def _stamp(data: object, where: str) -> str:
    if not isinstance(data, str) or not _STAMP.match(data):
        raise PlanError(f"{where}: expected a time like 2026-01-31T12:00:00+00:00")
    return data


def _facts(data: object, where: str) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise PlanError(f"{where}: expected an object")
    found = strict.evidence(data, where)
    assert isinstance(found, dict)
    for name, read in _KNOWN.items():
        if found.get(name) is not None:
            read(found[name], f"{where}.{name}")
    if found.get("recording") is not None and found.get("recorded_us") is None:
        raise PlanError(f"{where}: field 'recorded_us' is missing beside 'recording'")
    return found


def _object(data: object, where: str) -> object:
    if not isinstance(data, dict):
        raise PlanError(f"{where}: expected an object")
    return data


def _line(data: object, where: str) -> str:
    return strict.text(data, where)


def _short(data: object, where: str) -> str:
    return strict.text(data, where, 500)


def _names(data: object, where: str) -> tuple[str, ...]:
    return strict.items(data, where, strict.name)


def _format(data: object, where: str) -> int:
    if data != FORMAT or isinstance(data, bool):
        raise PlanError(f"{where}: this autofuse reads plans of format {FORMAT}, not {str(data)[:20]}")
    return FORMAT


_KNOWN: Mapping[str, Callable[[object, str], Any]] = {
    **dict.fromkeys(
        ("eager_us", "inductor_us", "searched_us", "predicted_us", "measured_us", "recorded_us", "saved_bytes",
         "held_bytes", "peak_bytes", "memory_limit_mb", "dram_bytes", "smem_bytes", "n_regs", "n_spills",
         "occupancy"), strict.number),
    "recording": _line,
    "library": _line,
    "whole": _line,
    "failures": _object,
    "unfused_timing": lambda v, at: strict.choice(v, at, TIMINGS),
    "ledger": lambda v, at: strict.items(v, at, _object),
}  # fmt: skip
"""Evidence that others read, of a plan or of a group. The rest is free; results.explain reads the ledger's entries."""

_GROUP = {
    "ops": lambda v, at: strict.items(v, at, strict.name, least=1),
    "outputs": lambda v, at: strict.items(v, at, strict.name, least=1),
    "implementation": lambda v, at: strict.choice(v, at, IMPLEMENTATIONS),
    "schedule": _schedule,
    "rewrites": lambda v, at: strict.items(v, at, strict.dotted),
    "evidence": _facts,
}

_PLAN = {
    "format": _format,
    "plan_id": strict.digest,
    "created": _stamp,
    "graph_key": strict.digest,
    "workload": _short,
    "shape": lambda v, at: strict.mapping(v, at, strict.integer),
    "target": _short,
    "environment": lambda v, at: strict.mapping(v, at, _short),
    "ops": _names,
    "values": _names,
    "groups": lambda v, at: strict.items(v, at, _group),
    "timing": lambda v, at: strict.choice(v, at, TIMINGS),
    "total_us": strict.number,
    "unfused_us": strict.number,
    "evidence": _facts,
}
