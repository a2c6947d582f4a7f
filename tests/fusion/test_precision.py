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
