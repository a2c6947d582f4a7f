"""Factors that move onto frozen weights: numbers against float64 in Triton's interpreter, and where they stay."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

from autofuse.capture.frozen import declare
from autofuse.capture.trace import capture
from autofuse.codegen.triton import emit
from autofuse.fusion.folding import fold, program_of
from autofuse.fusion.rewrites import variants
from autofuse.fusion.subgraph import producing
from autofuse.ir.graph import Graph
from autofuse.ir.program import ContractNode, Load, Program
from autofuse.measure.execute import run_aten
from autofuse.measure.launch import interpret
from autofuse.schedule.schedule import Role, Schedule

Function = Callable[..., torch.Tensor]


def half(*shape: int, scale: float = 1.0, seed: int = 0) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).half()


def graph_of(fn: Function, args: tuple[torch.Tensor, ...], frozen: tuple[str, ...] = ("s", "w")) -> Graph:
    return capture(declare(fn, frozen), args)[0].graph


def whole(graph: Graph) -> Program:
    ops = [op.name for op in graph.ops if not op.is_view]
    return program_of(graph, ops, tuple(value for value in graph.outputs if value is not None))


def folded(fn: Function, args: tuple[torch.Tensor, ...], block: int = 16) -> torch.Tensor:
    """What the folded kernel computes, with its weights made ahead."""
    graph = graph_of(fn, args)
    program = variants(whole(graph))["folded",]
    env = dict(zip(graph.inputs, in_order(fn, graph, args), strict=True))
    folding = fold(graph)
    extended = folding.onto(graph)
    run_aten(producing(extended, folding.values), made := dict(env))
    env |= {value: made[value] for value in folding.values}
    roles = [(axis.name, Role("loop" if axis.name in program.reduced else "grid", block)) for axis in program.axes]
    (out,) = program.outputs
    env[out] = torch.full(graph.types[out].shape, math.nan, dtype=args[0].dtype)
    interpret(emit(program, Schedule(tuple(roles), num_stages=2), "kernel"), env)
    for op in graph.ops:  # the output may be a view of what is stored
        if op.is_view and op.inputs[0] in env:
            run_aten((op,), env)
    return env[str(graph.outputs[0])]


def in_order(fn: Function, graph: Graph, args: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Dynamo's inputs are in the order of first use: found by what is alike in type, and told apart by their use."""
    found = [a for name in graph.inputs for a in args
             if graph.types[name].shape == tuple(a.shape) and graph.types[name].strides == a.stride()]  # fmt: skip
    assert len(found) == len(args) == len(inspect.signature(fn).parameters), "two inputs of one shape"
    return found


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def norm_linear(x: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.linear(F.rms_norm(x, (x.shape[-1],), s, 1e-6), w)


def scaled(x: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * s) @ w


def divided(x: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A factor a row after the column's, and a divisor that stays with the row."""
    return ((x.float() * s) / x.float().abs().amax(-1, keepdim=True)).half() @ w


def twice(x: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * s * s.abs()) @ w


def on_the_left(x: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return w @ (s[:, None] * x)


CASES: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "norm": (norm_linear, (half(19, 48), half(48, seed=1), half(33, 48, seed=2))),
    "norm of a batch": (norm_linear, (half(3, 7, 40), half(40, seed=1), half(33, 40, seed=2))),
    "plain": (scaled, (half(19, 48), half(48, seed=1), half(48, 33, seed=2))),
    "divided": (divided, (half(19, 48), half(48, seed=1), half(48, 33, seed=2))),
    "two factors": (twice, (half(19, 48), half(48, seed=1), half(48, 33, seed=2))),
    "on the left": (on_the_left, (half(48, 19), half(48, seed=1), half(33, 48, seed=2))),
}


@pytest.mark.parametrize("name", CASES)
def test_a_factor_moves_onto_the_weight(name: str) -> None:
    fn, args = CASES[name]
    exact = fn(*(a.double() for a in args)) if name != "divided" else _divided_exact(*args)
    assert error(folded(fn, args), exact) <= 3 * max(error(fn(*args), exact), 2.0**-10)


def _divided_exact(x: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x, s, w = x.double(), s.double(), w.double()
    return (x * s / x.abs().amax(-1, keepdim=True)) @ w


@pytest.mark.parametrize("name", CASES)
def test_the_operand_is_multiplied_as_it_was_loaded(name: str) -> None:
    program = variants(whole(graph_of(*CASES[name])))["folded",]
    (product,) = [node for node in program.nodes if isinstance(node, ContractNode)]
    assert all(isinstance(program.nodes[side], Load) for side in (product.left, product.right))
    assert not {"arg1_1", "arg2_1"} <= set(program.inputs)


@pytest.mark.parametrize("scale", [1e-4, 3e3])
def test_scales_of_any_size_fit_in_float16(scale: float) -> None:
    """s * w alone would be subnormal, or infinite."""
    x, s, w = half(9, 64), half(64, seed=1, scale=scale), half(64, 17, seed=2, scale=30.0 if scale > 1 else 1e-2)
    x = x if scale < 1 else x * 1e-3
    exact = scaled(x.double(), s.double(), w.double())
    assert exact.abs().max() < 65504
    assert error(folded(scaled, (x, s, w)), exact) <= 3 * max(error(scaled(x, s, w), exact), 2.0**-10)


def test_an_outlier_of_the_operand_where_the_scale_is_small() -> None:
    """x times the largest scale is beyond float16; the kernel never forms it there."""
    x, s, w = half(9, 64), half(64, seed=1), half(64, 17, seed=2)
    x[:, 5], s[5], s[6] = 6e4, 1e-3, 100.0
    exact = scaled(x.double(), s.double(), w.double())
    assert error(folded(scaled, (x, s, w)), exact) <= 3 * max(error(scaled(x, s, w), exact), 2.0**-10)


def test_scales_that_are_all_zero() -> None:
    args = (half(9, 64), torch.zeros(64).half(), half(64, 17, seed=2))
    assert torch.equal(folded(scaled, args), torch.zeros(9, 17).half())


def test_what_also_reads_the_scaled_operand_reads_the_same() -> None:
    """Only the product's own copy of the chain changes."""

    def both(x: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * s
        return y, y @ w

    args = (half(9, 32), half(32, seed=1), half(32, 17, seed=2))
    graph = graph_of(both, args)  # pyright: ignore[reportArgumentType]
    folding = fold(graph)
    assert len(folding.pairs) == 1
    env = dict(zip(graph.inputs, args, strict=True))
    run_aten(producing(folding.onto(graph), folding.values), env)
    run_aten(folding.graph.ops, env)
    first, second = (env[str(value)] for value in folding.graph.outputs)
    assert torch.equal(first, args[0] * args[1])
    exact = scaled(*(a.double() for a in args))
    assert error(second, exact) <= 3 * error(scaled(*args), exact)


# --- where it is declined ---


def biased(x: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * s + 1) @ w


def bent(x: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * s) @ w


def squared(x: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * s
    return (y * y) @ w


def rounded(x: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * s).to(torch.int8).to(x.dtype) @ w


def below(x: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x / (1 + x * s)) @ w


X, S, W = half(19, 48), half(48, seed=1), half(48, 33, seed=2)


@pytest.mark.parametrize(("fn", "args", "frozen"), [
    (scaled, (X, S, W), ("w",)),
    (scaled, (X, S, W), ("s",)),
    (scaled, (X, S, W), ()),
    (scaled, (X, half(19, 1, seed=1), W), ("s", "w")),
    (scaled, (X, half(19, 48, seed=1), W), ("s", "w")),
    (scaled, (X, half(1, seed=1), W), ("s", "w")),
    (scaled, (half(2, 19, 48), S, W.expand(2, 48, 33)), ("s", "w")),
    (biased, (X, S, W), ("s", "w")),
    (bent, (X, S, W), ("s", "w")),
    (squared, (X, S, W), ("s", "w")),
    (rounded, (X, S, W), ("s", "w")),
    (below, (X, S, W), ("s", "w")),
])  # fmt: skip
def test_a_factor_stays(fn: Function, args: tuple[torch.Tensor, ...], frozen: tuple[str, ...]) -> None:
    graph = graph_of(fn, args, frozen)
    assert fold(graph).pairs == ()
    assert whole(graph).folded is None


def test_what_was_not_float16_before_stays_in_float16() -> None:
    """As deferral has it: exp(x) may be beyond float16 where exp(x) * s is not."""

    def grown(x: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (torch.exp(x.float()) * s).to(x.dtype) @ w

    assert whole(graph_of(grown, (X, S, W))).folded is None
    wide = (X.bfloat16(), S.bfloat16(), W.bfloat16())
    assert whole(graph_of(grown, wide)).folded is not None


# --- settled values ---


def test_settled_are_values_of_frozen_inputs_that_no_caller_gets() -> None:
    def fn(x: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = s * 2
        drawn = torch.bernoulli(s.abs().clamp(max=1))
        return given.view(-1, 1), x * torch.exp(s) + drawn * given + w[None]

    graph = graph_of(fn, (X, S, half(48, seed=2)))  # pyright: ignore[reportArgumentType]
    settled = {op.call.target.split(".")[1] for op in graph.ops if op.outputs[0] in graph.settled}
    assert {"exp", "abs", "clamp"} <= settled
    assert not settled & {"bernoulli", "add"}
    (given,) = [op for op in graph.ops if op.call.target == "aten.mul.Tensor" and 2 in op.call.args]
    assert given.outputs[0] not in graph.settled, "the caller may change what it gets"
    assert replace(graph, frozen=frozenset()).settled == frozenset()
