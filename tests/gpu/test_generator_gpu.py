"""Generated kernels on the GPU against float64: the same cases and sampled schedules as in the interpreter, in float16
as it is and in bfloat16, descriptors and persistent grids included; and a tuned plan through torch.compile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from autofuse.codegen.triton import emit
from autofuse.cost.device import resolve
from autofuse.ir.graph import Graph, TensorType
from autofuse.measure.launch import Launcher
from autofuse.schedule.schedule import Role, Schedule
from autofuse.search.pool import subspaces
from tests.codegen import graphs
from tests.codegen.graphs import CASES, Case
from tests.codegen.test_generator import program_of
from tests.codegen.test_rewrites import program_of as program_of_function

pytestmark = pytest.mark.gpu

LARGER = (
    lambda: graphs.softmax(130, 5000),
    lambda: graphs.layer_norm(65, 4097),
    lambda: graphs.linear(300, 257, 513),
    lambda: graphs.linear(512, 512, 512),
    lambda: graphs.chain(257, 128, 64, 96),
    lambda: graphs.column_sum(5000, 300),
    lambda: graphs.cross_entropy(33, 9999),
)


KNOWN_WRONG = tuple(
    f"m=grid({rows}) n=grid({columns}) k=whole l=whole warps=4" for rows in (64, 128) for columns in (16, 32)
)
"""Schedules that the ptxas 12.8.93 inside Triton 3.6 compiles wrong, of a matmul chain (error 1.08 of the norm). In its
SASS the shared-memory descriptor of the second wgmma is made from the register of n_start (UIADD3 UR4, UR6, 0x40)
instead of that of the base (UR8); ptxas 13.0 compiles the same PTX right. Nothing but running tells."""


def in_bfloat16(case: Case) -> Case:
    types = {
        name: TensorType(k.shape, "bfloat16" if k.dtype == "float16" else k.dtype, k.strides)
        for name, k in case.graph.types.items()
    }
    return replace(case, graph=Graph(case.graph.inputs, case.graph.ops, case.graph.outputs, types))


def check(case: Case, schedules: int) -> int:
    rng = np.random.default_rng(11)
    env = {name: tensor.cuda() for name, tensor in graphs.inputs(case, 5).items()}
    expected = case.reference(env)
    limit = 1.2e-2 if "bfloat16" in {k.dtype for k in case.graph.types.values()} else 2e-3
    tried = 0
    wrong: list[str] = []
    for part in subspaces(program_of(case), resolve("h200")):
        sampled = part.candidates.sample(schedules, rng).tolist()
        chosen = [part.candidates.default(), *sampled] if sampled else []
        for index in chosen:
            schedule = part.candidates.schedule(index)
            if any(known in str(schedule) for known in KNOWN_WRONG):
                continue  # not only wrong: some of them read out of bounds, and the CUDA context is lost
            kernel = emit(part.program, schedule, "kernel")
            for name in part.program.outputs:
                found = case.graph.types[name]
                dtype = getattr(torch, found.dtype)
                poison = float("nan") if dtype.is_floating_point else -77
                env[name] = torch.full(found.shape, poison, dtype=dtype, device="cuda")
            try:
                launch = Launcher(kernel)
            except Exception as error:  # what does not compile or fit is the search's to record
                assert type(error).__name__ in ("OutOfResources", "PTXASError", "RuntimeError"), repr(error)[:200]  # noqa: PT017
                continue
            launch(env)
            tried += 1
            for name, exact in zip(case.graph.outputs, expected, strict=True):
                assert name is not None
                integer = exact.dtype == torch.int64
                error = float((env[name].double() - exact.double()).norm() / exact.double().norm())
                if not (torch.equal(env[name], exact) if integer else error < limit):
                    wrong.append(f"{name} {part.rewrites} {schedule}: {error}")
    assert not wrong, "\n".join(wrong)
    return tried


@pytest.mark.parametrize("make", [*CASES, *LARGER], ids=lambda make: make().name)
def test_float16(make) -> None:
    assert check(make(), 3) >= 3


@pytest.mark.parametrize("make", LARGER, ids=lambda make: make().name)
def test_bfloat16(make) -> None:
    assert check(in_bfloat16(make()), 3) >= 3


def test_a_kernel_that_the_compiler_got_wrong_is_caught() -> None:
    """Verification says what a direct comparison says, of a schedule in KNOWN_WRONG and of its right neighbour."""
    from autofuse.capture.trace import capture
    from autofuse.fusion.build import build
    from autofuse.measure.records import Candidate, TritonStep
    from autofuse.measure.supervisor import Worker
    from autofuse.schedule.schedule import Role, Schedule

    args = tuple(torch.randn(*shape, device="cuda").half() for shape in ((257, 96), (96, 128), (128, 64)))
    graph = capture(lambda x, w1, w2: torch.relu(x @ w1) @ w2, args)[0].graph
    program = build(graph, frozenset(op.name for op in graph.ops), tuple(v for v in graph.outputs if v is not None))
    out = torch.empty(257, 64, device="cuda").half()
    env = {**dict(zip(graph.inputs, args, strict=True)), str(graph.outputs[0]): out}
    x, w1, w2 = (tensor.double() for tensor in args)
    exact = torch.relu(x @ w1) @ w2
    with Worker("cuda:0") as worker:
        for columns in (32, 64):
            roles = tuple(
                (a.name, Role("grid", 64 if a.name == "m" else columns) if a.name in "mn" else Role("whole"))
                for a in program.axes
            )
            schedule = Schedule(roles, num_warps=4, num_stages=1, group=8, access="descriptor")
            kernel = emit(program, schedule, "kernel")
            Launcher(kernel)(env)
            right = float((out.double() - exact).norm() / exact.norm()) < 2e-3
            verdict = worker.verify(Candidate(str(columns), graph, (TritonStep(kernel),)))
            assert verdict.ok == right, verdict
            assert right or columns == 32


def test_a_plan_is_tuned_and_runs_through_torch_compile(tmp_path: Path) -> None:
    import autofuse
    from autofuse.runtime import counters

    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.nn.functional.silu(x) * 2
        return torch.nn.functional.rms_norm(h, (1000,), w), h

    args = (torch.randn(777, 1000, device="cuda").half(), torch.randn(1000, device="cuda").half())
    result = autofuse.tune(fn, args, store=tmp_path, budget_seconds=20)
    assert result.timing == "measured"
    assert result.total_us is not None
    assert result.unfused_us is not None
    assert result.total_us < result.unfused_us
    counters.reset()
    with torch.no_grad():
        out = autofuse.compile(fn, store=tmp_path, on_miss="error")(*args)
        expected = fn(*(a.double() for a in args))
    assert counters.counts().hits == 1
    for mine, exact in zip(out, expected, strict=True):
        assert (mine.double() - exact).norm() / exact.norm() < 2e-3


def test_the_approximate_tanh_is_right_to_half_precision() -> None:
    """fusion.precision relies on a relative error of 2^-11, to which float16 adds as much."""
    x = torch.cat([torch.linspace(-12, 12, 4000), torch.logspace(-4, 0, 96), torch.tensor([float("inf")])]).half()
    graph, program = program_of_function(torch.tanh, (x,))
    roles = tuple((axis.name, Role("grid", 256)) for axis in program.axes)
    kernel = emit(program, Schedule(roles), "kernel")
    assert "tanh.approx.f32" in kernel.source
    env = {graph.inputs[0]: x.cuda(), program.outputs[0]: torch.full_like(x, float("nan")).cuda()}
    Launcher(kernel)(env)
    found = env[program.outputs[0]].double().cpu()
    torch.testing.assert_close(found, torch.tanh(x.double()), rtol=1.05 * 2.0**-10, atol=2.0**-24)
