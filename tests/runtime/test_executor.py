"""The executor against eager: aliasing, views, strides, order, lifetimes, and plans that do not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from autofuse.errors import PlanError
from autofuse.ir.graph import (
    Apply,
    Arg,
    AtenCall,
    Composite,
    Graph,
    Map,
    Op,
    Ref,
    Reshape,
    Strided,
    TensorType,
    contiguous_strides,
)
from autofuse.measure import inductor
from autofuse.measure.execute import restride
from autofuse.plans.plan import Plan, PlannedGroup, make_plan
from autofuse.runtime.executor import Executor, aligned, placement
from autofuse.schedule.schedule import Role, Schedule


def kind(*shape: int, dtype: str = "float32", strides: tuple[int, ...] | None = None) -> TensorType:
    return TensorType(shape, dtype, contiguous_strides(shape) if strides is None else strides)


def op(name: str, target: str, *args: Any, form: Any = None, outputs: tuple[str, ...] = ()) -> Op:
    return Op(name, AtenCall(f"aten.{target}", args), form, outputs or (name,))


def exp(name: str, operand: str) -> Op:
    return op(name, "exp.default", Ref(operand), form=Map((operand,), Apply("exp", (Arg(0),)), "float32"))


def add(name: str, left: str, right: str) -> Op:
    return op(
        name, "add.Tensor", Ref(left), Ref(right), form=Map((left, right), Apply("add", (Arg(0), Arg(1))), "float32")
    )


def transpose(name: str, operand: str) -> Op:
    return op(name, "permute.default", Ref(operand), (1, 0), form=Strided(operand, (1, 0), (0, 0), (1, 1)))


def flip(name: str, operand: str, size: int) -> Op:
    return op(name, "flip.default", Ref(operand), (0,), form=Strided(operand, (0, 1), (size - 1, 0), (-1, 1)))


def view(name: str, operand: str, *shape: int) -> Op:
    return op(name, "view.default", Ref(operand), shape, form=Reshape(operand))


def plan_of(graph: Graph, *groups: PlannedGroup) -> Plan:
    return make_plan(
        graph=graph, graph_key="ab" * 32, workload="test", shape={}, target="h200", environment={}, groups=groups,
        timing="predicted", total_us=1.0, unfused_us=1.0,
    )  # fmt: skip


def aten(*ops: str, outputs: tuple[str, ...] | None = None) -> PlannedGroup:
    return PlannedGroup(ops, ops[-1:] if outputs is None else outputs, "aten")


def execute(graph: Graph, *groups: PlannedGroup) -> Executor:
    return Executor(graph, plan_of(graph, *groups), kind="interpreter")


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def test_outputs_that_alias_inputs_repeat_are_views_or_none(x: torch.Tensor) -> None:
    ops = (transpose("t", "x"), exp("e", "x"), view("v", "e", 24))
    types = {"x": kind(4, 6), "t": kind(6, 4, strides=(1, 6)), "e": kind(4, 6), "v": kind(24), "s": kind()}
    graph = Graph(("x", "s"), ops, ("x", "t", None, "e", "e", "v", "s"), types)
    scalar = torch.tensor(2.0)
    same, turned, nothing, first, second, flat, back = execute(graph, aten("e"))(x, scalar)
    assert same is x
    assert nothing is None
    assert first is second
    assert back is scalar
    assert turned.data_ptr() == x.data_ptr()
    assert turned.stride() == (1, 6)
    assert torch.equal(turned, x.T)
    assert flat.data_ptr() == first.data_ptr()
    assert torch.equal(flat, x.exp().flatten())


def test_a_graph_of_nothing_but_inputs(x: torch.Tensor) -> None:
    graph = Graph(("x",), (), ("x", None), {"x": kind(4, 6)})
    assert execute(graph)(x)[0] is x


def test_groups_run_in_the_order_of_their_needs(x: torch.Tensor) -> None:
    ops = (exp("a", "x"), transpose("t", "a"), exp("b", "t"), add("c", "b", "t"))
    types = {"x": kind(4, 6), "a": kind(4, 6), **dict.fromkeys("tbc", kind(6, 4, strides=(1, 6)))}
    graph = Graph(("x",), ops, ("c",), types)
    runner = execute(graph, aten("c"), aten("b"), aten("a"))
    assert [work.ops[0].name for work in runner.works] == ["a", "t", "b", "c"]
    expected = x.exp().T.exp() + x.exp().T
    (result,) = runner(x)
    assert torch.equal(result, expected)
    assert result.stride() == expected.stride()


def test_values_are_dropped_after_their_last_use(x: torch.Tensor) -> None:
    ops = (exp("a", "x"), exp("b", "a"), exp("c", "b"))
    graph = Graph(("x",), ops, ("c",), dict.fromkeys("xabc", kind(4, 6)))
    works = execute(graph, aten("a"), aten("b"), aten("c")).works
    assert [work.dead for work in works] == [("x",), ("a",), ("b",)]
    (result,) = execute(graph, aten("a", "b", "c"))(x)  # within one library group too
    assert torch.equal(result, x.exp().exp().exp())


def test_one_op_may_run_in_two_groups(x: torch.Tensor) -> None:
    ops = (exp("a", "x"), exp("b", "a"), add("c", "a", "x"))
    graph = Graph(("x",), ops, ("b", "c"), dict.fromkeys("xabc", kind(4, 6)))
    b, c = execute(graph, aten("a", "b"), aten("a", "c"))(x)
    assert torch.equal(b, x.exp().exp())
    assert torch.equal(c, x.exp() + x)


def test_views_inside_a_library_group_need_no_naming(x: torch.Tensor) -> None:
    ops = (exp("a", "x"), view("v", "a", 24), exp("b", "v"))
    graph = Graph(("x",), ops, ("b",), {"x": kind(4, 6), "a": kind(4, 6), "v": kind(24), "b": kind(24)})
    assert torch.equal(execute(graph, aten("a", "b"))(x)[0], x.exp().flatten().exp())


def test_a_flip_is_a_copy_not_a_place(x: torch.Tensor) -> None:
    graph = Graph(("x",), (flip("f", "x", 4),), ("f",), dict.fromkeys("xf", kind(4, 6)))
    assert placement(graph, graph.ops[0]) is None
    assert torch.equal(execute(graph)(x)[0], x.flip(0))


def test_ops_of_several_outputs_and_lists(x: torch.Tensor) -> None:
    ops = (
        op("m", "max.dim", Ref("x"), 1, outputs=("top", "where")),
        op("s", "split.Tensor", Ref("x"), 3, 1, outputs=("left", "right")),
        op("c", "cat.default", (Ref("right"), Ref("left")), 1),
    )
    types = {"x": kind(4, 6), "top": kind(4), "where": kind(4, dtype="int64"), "c": kind(4, 6)}
    types |= dict.fromkeys(("left", "right"), kind(4, 3, strides=(6, 1)))
    graph = Graph(("x",), ops, ("where", "c", "left"), types)
    where, swapped, left = execute(
        graph, aten("m", outputs=("where",)), aten("s", outputs=("left", "right")), aten("c")
    )(x)
    assert torch.equal(where, x.max(1).indices)
    assert torch.equal(swapped, torch.cat((x[:, 3:], x[:, :3]), 1))
    assert left.data_ptr() == x.data_ptr()


def test_library_results_get_the_strides_of_the_graph(x: torch.Tensor) -> None:
    graph = Graph(("x",), (exp("a", "x"),), ("a",), {"x": kind(4, 6), "a": kind(4, 6, strides=(1, 4))})
    (result,) = execute(graph, aten("a"))(x)
    assert result.stride() == (1, 4)
    assert torch.equal(result, x.exp())


def test_no_gradient_is_recorded(x: torch.Tensor) -> None:
    graph = Graph(("x",), (exp("a", "x"),), ("a",), dict.fromkeys("xa", kind(4, 6)))
    (result,) = execute(graph, aten("a"))(x.requires_grad_())
    assert not result.requires_grad
    assert torch.is_grad_enabled()


PLACES = [
    ((4, 6), lambda t: t.view(2, 2, 3, 2)),
    ((4, 6), lambda t: t.view(24)),
    ((4, 1, 6), lambda t: t.view(4, 6, 1)),
    ((1, 1), lambda t: t.view(1)),
    ((4, 6), lambda t: t.view(8, 3)),
]


@pytest.mark.parametrize(("shape", "look"), PLACES)
def test_reshapes_lie_where_torch_says(shape: tuple[int, ...], look: Any) -> None:
    base = torch.randn(shape)
    wanted = look(base)
    ops = (view("v", "x", *wanted.shape),)
    graph = Graph(("x",), ops, ("v",), {"x": kind(*shape), "v": kind(*wanted.shape, strides=wanted.stride())})
    assert placement(graph, ops[0]) == (tuple(wanted.shape), wanted.stride(), 0)
    (result,) = execute(graph)(base)
    assert result.data_ptr() == base.data_ptr()
    assert torch.equal(result, wanted)


def test_slices_of_slices_keep_their_offset(x: torch.Tensor) -> None:
    outer = x[1:, 1:]  # an input that starts inside its storage
    form = Strided("x", (0, 1), (1, 2), (1, 2))
    ops = (op("s", "slice.Tensor", Ref("x"), 0, 1, form=form),)
    wanted = outer[1:, 2::2]
    types = {"x": kind(3, 5, strides=(6, 1)), "s": kind(*wanted.shape, strides=wanted.stride())}
    (result,) = execute(Graph(("x",), ops, ("s",), types))(outer)
    assert torch.equal(result, wanted)
    assert result.data_ptr() == wanted.data_ptr()


def test_a_transposed_reshape_that_copies_is_no_place() -> None:
    types = {"x": kind(4, 6, strides=(1, 4)), "v": kind(24)}
    graph = Graph(("x",), (op("v", "reshape.default", Ref("x"), (24,), form=Reshape("x")),), ("v",), types)
    assert placement(graph, graph.ops[0]) is None
    x = torch.randn(6, 4).T
    assert torch.equal(execute(graph)(x)[0], x.reshape(24))


def test_aligned_copies_keep_values_and_overlaps() -> None:
    base = torch.randn(64)
    start = next(i for i in range(1, 5) if base[i:].data_ptr() % 16)
    odd = base[start : start + 12].view(3, 4).unsqueeze(1).expand(3, 5, 4)
    even = aligned(odd)
    assert even.data_ptr() % 16 == 0
    assert even.stride() == odd.stride()
    assert torch.equal(even, odd)
    assert aligned(even) is even


def test_restride_leaves_single_elements_alone() -> None:
    tensor = torch.randn(1, 5)
    assert restride(tensor, (99, 1)) is tensor
    assert restride(torch.randn(0, 3), (1, 1)).numel() == 0


# --- plans that do not fit ---


def three() -> Graph:
    return Graph(("x",), (exp("a", "x"), exp("b", "a"), exp("c", "b")), ("c",), dict.fromkeys("xabc", kind(4, 6)))


SCHEDULE = Schedule((("m", Role("grid", 32)), ("n", Role("whole"))))


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ((), "computes nothing for 'c', which an output"),
        ((aten("a"), aten("c")), "computes nothing for 'b', which group 1"),
        ((aten("a", "b", outputs=("a",)), aten("c")), "computes nothing for 'b'"),
        ((aten("b", "c", outputs=("c",)),), "computes nothing for 'a'"),
        ((PlannedGroup(("a",), ("b",), "aten"), aten("c")), "none of its ops makes 'b'"),
        ((PlannedGroup(("a", "b", "c"), ("c",), "triton", SCHEDULE, ("online",)),), "rewrites online do not apply"),
        ((PlannedGroup(("a", "b", "c"), ("c",), "triton", Schedule((("zz", Role("whole")),))),), "zz|role for axis"),
    ],
)
def test_plans_that_do_not_fit_are_refused_at_load(groups: tuple[PlannedGroup, ...], message: str) -> None:
    graph = three()
    with pytest.raises(PlanError, match=message):
        Executor(graph, plan_of(graph, *groups), kind="interpreter")


def test_once_is_for_what_follows_from_frozen_inputs_alone(x: torch.Tensor) -> None:
    ops = (exp("a", "w"), view("v", "a", 4, 6), exp("b", "v"), add("c", "x", "b"))
    types = {"x": kind(4, 6), "w": kind(24), "a": kind(24), **dict.fromkeys("vbc", kind(4, 6))}
    graph = Graph(("x", "w"), ops, ("c",), types, frozen=frozenset("w"))
    groups = (PlannedGroup(("a",), ("a",), "once"), PlannedGroup(("b",), ("b",), "once"), aten("c"))
    runner = execute(graph, *groups)
    assert [work.ops[-1].name for work in runner.works] == ["c"]
    w = torch.randn(24)
    for _ in range(2):
        assert torch.equal(runner(x, w)[0], x + w.exp().view(4, 6).exp())
        w.mul_(0.5)
    with pytest.raises(PlanError, match="'a' does not follow from frozen inputs alone"):
        execute(replace(graph, frozen=frozenset("x")), *groups)
    with pytest.raises(PlanError, match="rewrites folded do not apply"):
        execute(graph, PlannedGroup(("a", "b", "c"), ("c",), "triton", SCHEDULE, ("folded",)))


def test_groups_that_need_each_other_are_refused() -> None:
    ops = (exp("a", "x"), exp("b", "a"), exp("c", "a"), add("d", "b", "c"), exp("e", "b"))
    graph = Graph(("x",), ops, ("d", "e"), dict.fromkeys("xabcde", kind(4, 6)))
    groups = (aten("a", "d", outputs=("a", "d")), aten("b"), aten("c"), aten("e"))
    with pytest.raises(PlanError, match="need each other"):
        execute(graph, *groups)


def test_unknown_ops_implementations_and_executors() -> None:
    graph = three()
    plan = plan_of(graph, aten("a", "b", "c"))
    other = replace(graph, ops=tuple(exp(n, m) for n, m in (("p", "x"), ("q", "p"))), outputs=("q",))
    with pytest.raises(PlanError, match="3 ops"):
        Executor(other, plan, kind="interpreter")
    stray = replace(plan, groups=(aten("nowhere"),))
    with pytest.raises(PlanError, match="no op 'nowhere'"):
        Executor(graph, stray, kind="interpreter")
    with pytest.raises(PlanError, match="not one of triton, aten, inductor"):
        PlannedGroup(("a",), ("a",), "shell")
    with pytest.raises(PlanError, match="executor 'tpu'"):
        Executor(graph, plan, kind="tpu")


def test_an_operator_that_torch_lacks_is_refused_at_load() -> None:
    for target in ("aten.no_such_op.default", "os.system.default", "aten.add"):
        lone = Op("a", AtenCall(target, (Ref("x"),)), None, ("a",))
        graph = Graph(("x",), (lone,), ("a",), dict.fromkeys("xa", kind(4)))
        with pytest.raises(PlanError, match="operator"):
            execute(graph, aten("a"))


def test_a_plan_runs_on_the_same_graph_under_other_names(x: torch.Tensor) -> None:
    graph = three()
    ops = (exp("p", "y"), exp("q", "p"), exp("r", "q"))
    renamed = Graph(("y",), ops, ("r",), dict.fromkeys("ypqr", kind(4, 6)))
    plan = plan_of(graph, aten("a", "b"), aten("c"))
    assert torch.equal(Executor(renamed, plan, kind="interpreter")(x)[0], x.exp().exp().exp())


# --- generated kernels, interpreted ---


def test_a_generated_kernel_agrees_with_eager(x: torch.Tensor) -> None:
    ops = (exp("a", "x"), transpose("t", "x"), exp("b", "t"), add("c", "b", "y"))
    types = {"x": kind(4, 6), "y": kind(4), "a": kind(4, 6), "t": kind(6, 4, strides=(1, 6))}
    types |= dict.fromkeys("bc", kind(6, 4, strides=(1, 6)))
    graph = Graph(("x", "y"), ops, ("c", "a"), types)
    schedule = Schedule((("m", Role("grid", 4)), ("n", Role("grid", 4))))
    group = PlannedGroup(("b", "c"), ("c",), "triton", schedule)
    y = torch.randn(4)
    c, a = execute(graph, group, aten("a"))(x, y)
    expected = x.T.exp() + y
    torch.testing.assert_close(c, expected)
    assert c.stride() == (1, 6)
    assert torch.equal(a, x.exp())


@pytest.mark.timeout(280)
def test_a_group_of_inductor(x: torch.Tensor) -> None:
    graph = three()
    group = PlannedGroup(("a", "b"), ("b",), "inductor")
    runner = execute(graph, group, aten("c"))
    for _ in range(2):
        torch.testing.assert_close(runner(x)[0], x.exp().exp().exp())


def test_a_group_that_inductor_refuses_runs_all_the_same(
    x: torch.Tensor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("no compiler\nat all")

    monkeypatch.setattr(inductor, "_compiled", refuse)
    runner = execute(three(), PlannedGroup(("a", "b", "c"), ("c",), "inductor"))
    for _ in range(2):
        assert torch.equal(runner(x)[0], x.exp().exp().exp())
    (said,) = [record.getMessage() for record in caplog.records if record.name == "autofuse.runtime"]
    assert said == "Inductor fails on a planned group (RuntimeError: no compiler): running ATen calls"


# --- calls that capture took apart ---


def taken_apart(*, strides: tuple[int, ...] = (6, 1)) -> Graph:
    """exp as two ops, which eager would do in one call, and a view of its result."""
    half = op("half", "mul.Scalar", Ref("x"), 0.5, form=Map(("x",), Apply("mul", (Arg(0), Arg(0))), "float32"))
    ops = (half, exp("a", "half"), view("v", "a", 24), exp("b", "v"))
    types = {"x": kind(4, 6), "half": kind(4, 6), "a": kind(4, 6, strides=strides), "v": kind(24), "b": kind(24)}
    return Graph(("x",), ops, ("b",), types, (Composite(op("a_sinh", "sinh.default", Ref("x"), outputs=("a",)),
                                                        ("half", "a")),))  # fmt: skip


def test_a_plan_runs_the_call_that_it_names(x: torch.Tensor) -> None:
    """The call is another function than its parts, so that it shows which of the two ran."""
    whole = ("half", "a", "b")
    for implementation in ("aten", "inductor"):
        named = PlannedGroup(whole, ("b",), implementation, None, ("aten.sinh",))
        torch.testing.assert_close(execute(taken_apart(), named)(x)[0], x.sinh().flatten().exp())
        own = PlannedGroup(whole, ("b",), implementation)
        torch.testing.assert_close(execute(taken_apart(), own)(x)[0], (0.5 * x).exp().flatten().exp())


def test_a_call_inside_a_group_gets_the_strides_that_its_readers_count_on() -> None:
    graph = taken_apart()
    group = PlannedGroup(("half", "a", "b"), ("b",), "aten", None, ("aten.sinh",))
    turned = torch.randn(6, 4).t()  # sinh keeps these strides, and a view of its result would fail
    assert torch.equal(execute(graph, group)(turned)[0], turned.sinh().flatten().exp())


@pytest.mark.parametrize("implementation", ["aten", "inductor"])
@pytest.mark.parametrize(("ops", "outputs", "name"), [
    (("half", "a", "b"), ("b",), "aten.cosh"),
    (("a", "b"), ("b",), "aten.sinh"),  # without all its parts
    (("half", "a", "b"), ("half", "b"), "aten.sinh"),  # with a value that the call does not give
    (("half", "a", "b"), ("b",), "eager"),
])  # fmt: skip
def test_a_call_that_the_group_has_not_is_refused(
    implementation: str, ops: tuple[str, ...], outputs: tuple[str, ...], name: str
) -> None:
    with pytest.raises(PlanError, match=f"no library call '{name}'"):
        execute(taken_apart(), PlannedGroup(ops, outputs, implementation, None, (name,)))


@pytest.mark.parametrize("implementation", ["aten", "inductor"])
def test_hostile_groups_of_calls_are_refused(implementation: str) -> None:
    with pytest.raises(PlanError, match="names one library call"):
        PlannedGroup(("a",), ("a",), implementation, None, ("aten.sinh", "aten.cosh"))
    with pytest.raises(PlanError, match="schedule belongs to triton"):
        PlannedGroup(("a",), ("a",), implementation, SCHEDULE)
    with pytest.raises(PlanError, match="not a dotted name"):
        plan_of(three(), PlannedGroup(("a", "b", "c"), ("c",), implementation, None, ("__import__('os')",)))
