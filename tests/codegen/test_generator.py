"""Generated kernels against float64, in Triton's interpreter: every case under schedules sampled from its own search
space, so that roles, blocks, rewrites, orders and access kinds are all tried at sizes that fit nothing evenly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from autofuse.codegen.triton import emit
from autofuse.cost.device import TARGETS
from autofuse.fusion.build import build
from autofuse.fusion.rewrites import variants
from autofuse.ir.program import Program
from autofuse.measure.launch import interpret
from autofuse.schedule.schedule import Role, Schedule
from autofuse.search.pool import subspaces
from tests.codegen import graphs
from tests.codegen.graphs import CASES, Case

H200 = TARGETS["h200"]
PROGRAMS = 400
"""Schedules with more programs than this are skipped: the interpreter is slow."""


def program_of(case: Case) -> Program:
    ops = frozenset(op.name for op in case.graph.ops if not op.is_view)
    return build(case.graph, ops, tuple(v for v in case.graph.outputs if v is not None))


def run(case: Case, program: Program, schedule: Schedule, seed: int, scale: float = 1.0) -> None:
    kernel = emit(program, schedule, "kernel")
    env = graphs.inputs(case, seed, scale)
    expected = case.reference(env)
    for name in program.outputs:
        found = case.graph.types[name]
        dtype = getattr(torch, found.dtype)
        poison = float("nan") if dtype.is_floating_point else -77
        env[name] = torch.full(found.shape, poison, dtype=dtype)
    interpret(kernel, env)
    for name, exact in zip(case.graph.outputs, expected, strict=True):
        assert name is not None
        out = env[name].double()
        if exact.dtype == torch.int64:
            assert torch.equal(env[name], exact), f"{schedule}\n{kernel.source}"
            continue
        error = (out - exact).norm() / exact.norm()
        assert error < 2e-3, f"{schedule}: relative error {error}\n{kernel.source}"


@pytest.mark.parametrize("make", CASES, ids=lambda make: make().name)
def test_sampled_schedules_are_right(make) -> None:
    case = make()
    rng = np.random.default_rng(7)
    tried = 0
    for part in subspaces(program_of(case), H200):
        chosen = [part.candidates.default(), *part.candidates.sample(40, rng).tolist()]
        count = 0
        for index in chosen:
            schedule = part.candidates.schedule(index)
            if emit(part.program, schedule, "k").grid[0] > PROGRAMS or count == 4:
                continue
            count += 1
            run(case, part.program, schedule, seed=index % 5)
        tried += count
    assert tried >= 3


def test_moments_in_one_pass_do_not_cancel() -> None:
    """E[x^2] - E[x]^2 would lose everything here: the mean is a thousand times the deviation."""
    case = graphs.layer_norm(4, 300)
    shifted = Case(case.name, case.graph, case.reference)
    program = variants(program_of(shifted))[("moments",)]
    kernel = emit(program, Schedule((("m", Role("grid", 2)), ("n", Role("loop", 64)))), "kernel")
    env = graphs.inputs(case, 3)
    env["x"] = (1000 + env["x"].float()).half()
    exact = case.reference(env)[0]
    env["y"] = torch.full((4, 300), float("nan"), dtype=torch.float16)
    interpret(kernel, env)
    assert (env["y"].double() - exact).abs().max() < 5e-3


@pytest.mark.parametrize("rows", [[float("-inf")] * 200, [0.0] * 200, [6e4] * 200, [float("nan")] + [1.0] * 199])
def test_online_softmax_at_extremes(rows: list[float]) -> None:
    case = graphs.softmax(2, 200)
    program = variants(program_of(case))[("online",)]
    schedule = Schedule((("m", Role("grid", 1)), ("n", Role("loop", 64))))
    env = {"x": torch.tensor([rows, [0.5] * 200]).half(), "y": torch.zeros(2, 200).half()}
    interpret(emit(program, schedule, "kernel"), env)
    expected = torch.softmax(env["x"].double(), 1)
    assert torch.equal(env["y"].isnan(), expected.isnan())
    torch.testing.assert_close(env["y"].double(), expected, atol=1e-3, rtol=1e-2, equal_nan=True)


def test_a_plain_maximum_keeps_nan() -> None:
    case = graphs.split_heads_norm(2, 2, 32)
    program = program_of(case)
    env = graphs.inputs(case, 1)
    env["x"][0, 3] = float("nan")
    env["y"] = torch.zeros(2, 2, 32).half()
    roles = tuple(
        (axis.name, Role("whole") if axis.name in program.reduced else Role("grid", 1)) for axis in program.axes
    )
    interpret(emit(program, Schedule(roles), "kernel"), env)
    assert env["y"][0, 0].isnan().all()
    assert not env["y"][0, 1].isnan().any()
