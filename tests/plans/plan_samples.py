"""A small graph and plans for it, for the tests of plans and run time."""

from __future__ import annotations

from typing import Any

from autofuse.ir.graph import Apply, Arg, AtenCall, Graph, Map, Op, Ref, TensorType, contiguous_strides
from autofuse.plans.plan import Plan, PlannedGroup, make_plan
from autofuse.schedule.schedule import Role, Schedule

KEY = "ab" * 32
ENVIRONMENT = {"autofuse": "0.1.0", "triton": "3.6.0", "torch": "2.13.0+cpu", "numerics": "fp32-registers"}


def tensor(*shape: int, dtype: str = "float32") -> TensorType:
    return TensorType(shape, dtype, contiguous_strides(shape))


def unary(name: str, fn: str, operand: str) -> Op:
    return Op(
        name, AtenCall(f"aten.{fn}.default", (Ref(operand),)), Map((operand,), Apply(fn, (Arg(0),)), "float32"), (name,)
    )


def chain(prefix: str = "") -> Graph:
    """exp then tanh of a 4 x 8 tensor."""
    x, a, b = f"{prefix}x", f"{prefix}a", f"{prefix}b"
    types = {name: tensor(4, 8) for name in (x, a, b)}
    return Graph((x,), (unary(a, "exp", x), unary(b, "tanh", a)), (b,), types)


SCHEDULE = Schedule((("m", Role("grid", 64)), ("k", Role("whole"))), num_warps=8, persistent=2, eviction="first")


def plan(**changes: Any) -> Plan:
    groups = (PlannedGroup(("a", "b"), ("b",), "triton", SCHEDULE, ("online",), {"n_regs": 32, "measured_us": 4.5}),)
    given: dict[str, Any] = {
        "graph": chain(), "graph_key": KEY, "workload": "samples.chain", "shape": {"rows": 4}, "target": "h200",
        "environment": ENVIRONMENT, "groups": groups, "timing": "predicted", "total_us": 5.0, "unfused_us": 9.0,
        "evidence": {"verified": {"max_abs_err": 1e-6, "tolerance": 1e-4, "reference": "float64"}},
    }  # fmt: skip
    return make_plan(**{**given, **changes})
