"""Where the groups of a plan run, in which order, and which views are looked at in between. Pure: no torch.

A plan that does not fit its graph is refused here, when it is loaded, never when it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from autofuse.codegen.kernel import Kernel
from autofuse.codegen.triton import emit
from autofuse.errors import InvalidSchedule, PlanError
from autofuse.fusion import rewrites
from autofuse.fusion.build import NotFusible
from autofuse.fusion.folding import FOLDED, fold, program_of
from autofuse.fusion.group import Group, kernel_name
from autofuse.fusion.library import library_call
from autofuse.fusion.subgraph import extract, producing
from autofuse.ir.graph import Graph, Op
from autofuse.plans.plan import Plan, PlannedGroup

ONCE = "once"


@dataclass(frozen=True, slots=True)
class Work:
    """One step. kind: triton, aten, inductor or view. reads, writes: values. dead: values that no later step reads and
    that are no outputs. kernel: of a triton step."""

    kind: str
    ops: tuple[Op, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    kernel: Kernel | None = None
    dead: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Arrangement:
    """works: the steps of a call. once: the step that makes what they read of frozen inputs alone; None where that is
    nothing. graph: the plan's, with the ops of `once`."""

    graph: Graph
    works: tuple[Work, ...]
    once: Work | None = None


def group_kernel(graph: Graph, group: PlannedGroup, name: str, multiprocessors: int) -> Kernel:
    """The kernel of a triton group. Raises PlanError when the group, its rewrites or its schedule do not fit."""
    assert group.schedule is not None
    try:
        program = program_of(graph, group.ops, group.outputs)
        if group.rewrites:
            program = rewrites.apply(program, group.rewrites)
        return emit(program, group.schedule, name, multiprocessors)
    except NotFusible as error:
        raise PlanError(f"group {_label(group)}: {error}") from None
    except KeyError:
        raise PlanError(f"group {_label(group)}: rewrites {', '.join(group.rewrites)} do not apply") from None
    except InvalidSchedule as error:
        raise PlanError(f"group {_label(group)}: {error}") from None


def arrange(graph: Graph, plan: Plan, multiprocessors: int) -> Arrangement:
    """The steps that compute all outputs of the graph. Raises PlanError when the plan does not fit."""
    groups = plan.bind(graph).groups
    whole, settled = _settled(graph, groups)
    line = _Line(graph, [_group_work(graph, g, multiprocessors) for g in groups if g.implementation != ONCE], settled)
    for i in line.order():
        line.add_group(i)
    for output in graph.outputs:
        if output is not None:
            line.ensure(output, "an output of the graph")
    works = _with_deaths(line.works, frozenset(o for o in graph.outputs if o is not None))
    read = {value for work in works for value in work.reads}
    return Arrangement(whole, works, _once(whole, tuple(value for value in settled if value in read)))


def _settled(graph: Graph, groups: Sequence[PlannedGroup]) -> tuple[Graph, tuple[str, ...]]:
    """(the graph with what folded programs need done ahead, the values that are computed once)."""
    whole, found = graph, dict[str, None]()
    for group in groups:
        if group.implementation == ONCE:
            stray = next((value for value in group.outputs if value not in graph.settled), None)
            if stray is not None:
                raise PlanError(f"group {_label(group)}: {stray!r} does not follow from frozen inputs alone")
            found |= dict.fromkeys(group.outputs)
        elif FOLDED in group.rewrites:
            folding = fold(extract(graph, group.ops, group.outputs))
            whole = folding.onto(whole)
            found |= dict.fromkeys(folding.values)
    return whole, tuple(found)


def _once(graph: Graph, values: tuple[str, ...]) -> Work | None:
    if not values:
        return None
    ops = producing(graph, values)
    made = {value for op in ops for value in op.outputs}
    reads = tuple(dict.fromkeys(value for op in ops for value in op.inputs if value not in made))
    return Work("aten", ops, reads, values)


def _label(group: PlannedGroup) -> str:
    text = "+".join(group.ops)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _group_work(graph: Graph, group: PlannedGroup, multiprocessors: int) -> Work:
    named = set(group.ops)
    missing = sorted(named - graph.by_name.keys())
    if missing:
        raise PlanError(f"group {_label(group)}: the graph has no op {missing[0]!r}")
    for value in group.outputs:
        producer = graph.producer.get(value)
        if producer is None or producer.name not in named:
            raise PlanError(f"group {_label(group)}: none of its ops makes {value!r}")
    ops = tuple(op for op in graph.ops if op.name in named)
    if group.implementation == "triton":
        kernel = group_kernel(graph, group, kernel_name(group.ops), multiprocessors)
        reads = tuple(value for value in kernel.values if value not in group.outputs)
        return Work("triton", ops, reads, group.outputs, kernel)
    # A library group must hold the views between its ops, for it runs them op by op.
    ops = _library_ops(graph, group) if group.rewrites else _with_inner_views(graph, ops)
    made = {value for op in ops for value in op.outputs}
    reads = tuple(dict.fromkeys(value for op in ops for value in op.inputs if value not in made))
    return Work(group.implementation, ops, reads, group.outputs)


def _library_ops(graph: Graph, group: PlannedGroup) -> tuple[Op, ...]:
    """The calls that the plan names: one that does the work of several ops (addmm), or the ops' own."""
    try:
        return library_call(graph, Group(group.ops, group.outputs), group.rewrites[0]).ops
    except KeyError:
        raise PlanError(f"group {_label(group)}: there is no library call {group.rewrites[0]!r} for it") from None


def _with_inner_views(graph: Graph, ops: tuple[Op, ...]) -> tuple[Op, ...]:
    wanted = {op.name for op in ops}
    made = {value for op in ops for value in op.outputs}
    for op in ops:
        for value in op.inputs:
            chain: list[str] = []
            producer = graph.producer.get(value)
            while producer is not None and producer.is_view and producer.name not in wanted:
                chain.append(producer.name)
                value = producer.inputs[0]
                producer = graph.producer.get(value)
            if value in made:
                wanted.update(chain)
    return tuple(op for op in graph.ops if op.name in wanted)


@dataclass
class _Line:
    """The steps so far, and which values exist after them. settled: those that exist before."""

    graph: Graph
    groups: Sequence[Work]
    settled: Sequence[str] = ()
    works: list[Work] = field(default_factory=list)
    there: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.given = {*self.graph.inputs, *self.settled}
        self.there.update(self.given)
        self.maker = {value: i for i, work in enumerate(self.groups) for value in work.writes}

    def origin(self, value: str, reader: str) -> int | None:
        """The group that makes the tensor behind a value; None for what no group has to make."""
        while value not in self.maker:
            if value in self.given:
                return None
            op = self.graph.producer.get(value)
            if op is None or not op.is_view:
                raise PlanError(f"the plan computes nothing for {value!r}, which {reader} needs")
            value = op.inputs[0]
        return self.maker[value]

    def order(self) -> Iterable[int]:
        """Groups after those that they read from, else as planned."""
        done: dict[int, bool] = {}
        found: list[int] = []
        for first in range(len(self.groups)):
            stack = [first]
            while stack:
                top = stack[-1]
                if done.get(top):
                    stack.pop()
                    continue
                reader = f"group {top}"
                waiting = {i for value in self.groups[top].reads if (i := self.origin(value, reader)) is not None}
                waiting = {i for i in waiting - {top} if not done.get(i)}
                if not waiting:
                    done[top] = True
                    found.append(stack.pop())
                    continue
                if any(i in done for i in waiting):  # begun and not done: we came from there
                    raise PlanError("the groups of the plan need each other's results")
                done[top] = False
                stack.append(min(waiting))
        return found

    def add_group(self, position: int) -> None:
        work = self.groups[position]
        for value in work.reads:
            self.ensure(value, f"group {position}")
        self.works.append(work)
        self.there.update(work.writes)

    def ensure(self, value: str, reader: str) -> None:
        """Adds the steps that look at a value through its views."""
        self.origin(value, reader)
        chain: list[Op] = []
        while value not in self.there:
            op = self.graph.producer.get(value)
            if op is None or not op.is_view:
                raise PlanError(f"{value!r} is needed by {reader} before it is computed")
            chain.append(op)
            value = op.inputs[0]
        for op in reversed(chain):
            self.works.append(Work("view", (op,), op.inputs, op.outputs))
            self.there.update(op.outputs)


def _with_deaths(works: Sequence[Work], outputs: frozenset[str]) -> tuple[Work, ...]:
    seen = set(outputs)
    found: list[Work] = []
    for work in reversed(works):
        dead = tuple(v for v in dict.fromkeys((*work.reads, *work.writes)) if v not in seen)
        seen.update(dead)
        found.append(Work(work.kind, work.ops, work.reads, work.writes, work.kernel, dead))
    return tuple(reversed(found))
