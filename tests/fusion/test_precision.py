"""Which functions are as rough as the hardware's approximation: told by what eager rounds, and right to that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

from autofuse.codegen.triton import emit
from autofuse.ir.program import Program
from autofuse.measure.launch import interpret
from autofuse.schedule.schedule import Role, Schedule
from tests.codegen.test_rewrites import program_of

Function = Callable[[torch.Tensor], torch.Tensor]


def kernel_of(program: Program) -> str:
    return emit(program, Schedule(tuple((a.name, Role("grid", 16)) for a in program.axes)), "kernel").source


def test_gelu_is_right_to_half_precision() -> None:
    """Its tails too, where 1 + erf(x) in float32 has nothing left."""
    x = torch.cat([torch.linspace(-14, 14, 400), torch.tensor([1e-4, -1e-4, 0.0, -0.0, float("inf")])]).half()
    graph, program = program_of(F.gelu, (x,))
    out = torch.full_like(x, float("nan"))
    kernel = emit(program, Schedule(tuple((a.name, Role("grid", 64)) for a in program.axes)), "kernel")
    assert "quick_erfc(" in kernel.source
    interpret(kernel, {graph.inputs[0]: x, program.outputs[0]: out})
    exact = x.double() * 0.5 * torch.special.erfc(-x.double() * 0.5**0.5)
    torch.testing.assert_close(out.double(), exact, rtol=0.6 * 2.0**-10, atol=2.0**-24)


def test_gelu_in_single_precision_is_eagers() -> None:
    _, program = program_of(F.gelu, (torch.randn(4, 40),))
    assert "quick_erfc" not in kernel_of(program)


@pytest.mark.parametrize(
    ("fn", "dtype", "quick"),
    [
        (torch.tanh, torch.bfloat16, True),
        (torch.tanh, torch.float16, True),
        (torch.tanh, torch.float32, False),
        (lambda x: 30.0 * torch.tanh(x.float() / 30.0), torch.bfloat16, True),
        (lambda x: 30.0 * torch.tanh(x.float() / 30.0), torch.float16, False),
        (lambda x: torch.tanh(x.float() * 0.5 + x.float() ** 3), torch.bfloat16, False),
        (lambda x: 1.0 + torch.tanh(x.float()), torch.bfloat16, False),
        (lambda x: 0.5 * torch.tanh(x.float()) + 0.5, torch.bfloat16, False),
        (lambda x: torch.floor(30.0 * torch.tanh(x)), torch.bfloat16, False),
        (lambda x: torch.tanh(x.double()), torch.bfloat16, False),
    ],
    ids=["result in bfloat16", "in float16", "in float32", "of a bfloat16", "of a float16",
         "of a sum", "1 + tanh", "tanh / 2 + 1 / 2", "rounded", "in float64"],
)  # fmt: skip
def test_where_eager_rounds_as_much(fn: Function, dtype: torch.dtype, quick: bool) -> None:
    _, program = program_of(fn, (torch.randn(4, 40).to(dtype),))
    source = kernel_of(program)
    assert ("tanh.approx.f32" in source) == quick
    assert ("quick_tanh(v" in source) == quick


def test_the_result_is_right_to_half_precision() -> None:
    x = torch.cat([torch.linspace(-12, 12, 200), torch.logspace(-7, 0, 56), torch.tensor([float("inf"), 0.0])]).half()
    graph, program = program_of(torch.tanh, (x,))
    out = torch.full_like(x, float("nan"))
    kernel = emit(program, Schedule(tuple((a.name, Role("grid", 64)) for a in program.axes)), "kernel")
    interpret(kernel, {graph.inputs[0]: x, program.outputs[0]: out})
    torch.testing.assert_close(out.double(), torch.tanh(x.double()), rtol=2.0**-10, atol=2.0**-24)


def test_a_division_by_what_a_row_shares_is_exact() -> None:
    """Rounded as float32 division rounds, before a step of a function as well; by nothing, by infinity, of NaN."""
    x = torch.randn(7, 64, generator=torch.Generator().manual_seed(4)) * 10.0 ** torch.arange(-3, 4)[:, None]
    s = torch.tensor([0.37, 3.0, -7e-3, 1e9, 0.0, float("inf"), float("nan")])
    x[1, :3] = torch.tensor([float("inf"), float("nan"), 0.0])
    x[4, 0] = 0.0
    graph, program = program_of(lambda s, x: x / s[:, None], (s, x))
    roles = (Role("grid", 2), Role("loop", 16))
    kernel = emit(program, Schedule(tuple(zip((a.name for a in program.axes), roles, strict=True))), "kernel")
    assert "quotient(" in kernel.source
    out = torch.zeros_like(x)
    interpret(kernel, {**dict(zip(graph.inputs, (s, x), strict=True)), program.outputs[0]: out})
    exact = x / s[:, None]
    assert torch.equal(out.isnan(), exact.isnan())
    units = (out.view(torch.int32) - exact.view(torch.int32)).abs()[~exact.isnan()]
    assert units.max() <= 1, "the interpreter has no fused multiply-add; a GPU has"


def test_round_is_half_to_even_at_any_size() -> None:
    x = torch.cat([torch.arange(-9, 9) * 0.5, torch.tensor([4194303.5, 4194304.5, 8388609.0, 3e9, -3e38, float("inf")]),
                   torch.randn(40) * 1e3])  # fmt: skip
    graph, program = program_of(torch.round, (x,))
    out = torch.full_like(x, float("nan"))
    kernel = emit(program, Schedule(tuple((a.name, Role("grid", 64)) for a in program.axes)), "kernel")
    interpret(kernel, {graph.inputs[0]: x, program.outputs[0]: out})
    assert torch.equal(out, torch.round(x))


def test_floor_division_is_torchs() -> None:
    """Where a quotient rounds up to a whole number, with signs, zeros and infinities."""
    inf = float("inf")
    a = torch.tensor([1.0, 3.0, 5.0, -7.0, 7.0, inf, 0.0, -1.0, 0.5, 2.0**30])
    b = torch.tensor([0.1, 0.1, 0.05, 2.0, -2.0, 2.0, -3.0, 0.0, inf, 3.0])
    graph, program = program_of(lambda a, b: torch.div(a, b, rounding_mode="floor"), (a, b))
    out = torch.full_like(a, -77.0)
    kernel = emit(program, Schedule(tuple((axis.name, Role("grid", 16)) for axis in program.axes)), "kernel")
    interpret(kernel, {**dict(zip(graph.inputs, (a, b), strict=True)), program.outputs[0]: out})
    torch.testing.assert_close(out, torch.div(a, b, rounding_mode="floor"), rtol=0, atol=0, equal_nan=True)
