"""What capture says that operators do (their forms) against what they do: every function is captured, each of its ops
alone and all of them together are generated, run in Triton's interpreter and compared with float64 and with eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch._subclasses.fake_tensor import FakeTensorMode

from autofuse.capture import aten
from autofuse.capture.convert import from_fx
from autofuse.capture.trace import aot_backend, capture
from autofuse.codegen.kernel import Kernel
from autofuse.codegen.triton import emit
from autofuse.cost.device import TARGETS
from autofuse.errors import CaptureError
from autofuse.fusion.build import build
from autofuse.fusion.subgraph import extract
from autofuse.ir.fingerprint import graph_key
from autofuse.ir.graph import Graph
from autofuse.measure.launch import interpret
from autofuse.search.pool import subspaces

H200 = TARGETS["h200"]
PROGRAMS = 300
"""Schedules with more programs than this are skipped: the interpreter is slow."""
half, single = torch.float16, torch.float32


@dataclass(frozen=True)
class Case:
    """opaque: operators that are known to have no form. whole: can all ops be one kernel?"""

    name: str
    fn: Callable[..., Any]
    args: Callable[[], tuple[Any, ...]]
    opaque: frozenset[str] = field(default_factory=frozenset[str])
    whole: bool = True


CASES: list[Case] = []


def case(name: str, fn: Callable[..., Any], *args: Any, **options: Any) -> None:
    """args: tensors' shapes (float32), (shape, dtype), or functions that make a tensor."""
    CASES.append(Case(name, fn, lambda: tuple(made(a) for a in args), **options))


def made(spec: Any) -> Any:
    if callable(spec):
        return spec()
    shape, dtype = spec if isinstance(spec, tuple) and spec and isinstance(spec[0], tuple) else (spec, single)
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(0, 2, shape).bool() if dtype == torch.bool else torch.randint(-9, 10, shape).to(dtype)


def positive(*shape: int, dtype: torch.dtype = single) -> Callable[[], torch.Tensor]:
    return lambda: (torch.rand(shape) + 0.1).to(dtype)


def below(limit: int, *shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(0, limit, shape)


def transposed(*shape: int, dtype: torch.dtype = single) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(shape).to(dtype).t()


def strided(*shape: int, dtype: torch.dtype = single) -> Callable[[], torch.Tensor]:
    """Every second element of a larger tensor."""
    return lambda: torch.randn([2 * n for n in shape]).to(dtype)[tuple(slice(None, None, 2) for _ in shape)]


# --- pointwise ---

case(
    "arithmetic",
    lambda x, y: (x + y, x - 2 * y, x * y, x / y, -x, torch.add(x, y, alpha=3), 1 - x, torch.rsub(x, y, alpha=2)),
    (7, 33),
    positive(7, 33),
)
case(
    "arithmetic in half",
    lambda x, y: (x + y, x * 0.1 - y, x / y, 2.5 - x),
    ((7, 33), half),
    positive(1, 33, dtype=half),
)
case("exponentials", lambda x: (x.exp(), torch.exp2(x), torch.expm1(x), x.sigmoid(), x.tanh()), (5, 41))
case("logarithms", lambda x: (x.log(), x.log2(), x.log1p(), x.sqrt(), x.rsqrt(), x.reciprocal(), x.log10()),
     positive(5, 41))  # fmt: skip
case("trigonometry", lambda x: (x.sin(), x.cos(), x.tan(), torch.erf(x), torch.deg2rad(x)), (5, 41))
case("rounding", lambda x: (x.floor(), x.ceil(), x.round(), x.trunc(), x.abs(), x.sign(), x.square()),
     lambda: torch.cat([torch.randn(40) * 3, torch.tensor([0.5, 1.5, 2.5, -0.5, 0.0])]))  # fmt: skip
case(
    "relu family",
    lambda x: (
        F.relu(x),
        F.relu6(x),
        F.leaky_relu(x, 0.1),
        F.elu(x),
        F.hardtanh(x),
        F.hardsigmoid(x),
        F.hardswish(x),
        F.threshold(x, 0.3, 7.0),
    ),
    lambda: torch.linspace(-5, 8, 123),
)
case("smooth activations", lambda x: (F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.softplus(x), F.mish(x),
                                      F.selu(x), F.celu(x, 0.7), F.logsigmoid(x), F.softsign(x), F.tanhshrink(x)),
     lambda: torch.linspace(-6, 25, 123))  # fmt: skip
case(
    "activations in half",
    lambda x: (F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.glu(x, -1), x.tanh()),
    ((4, 66), half),
)
case(
    "powers",
    lambda x, y: (x**2, x**3, x**0.5, x**-1, x**-0.5, x**1.7, x**y, 2.0**y, torch.pow(x, -2), y**5, y**-3, y**-2.5),
    positive(3, 50),
    (3, 50),
)
case(
    "limits",
    lambda x, y: (
        x.clamp(-0.5, 0.5),
        x.clamp(min=0.1),
        x.clamp(max=0.2),
        torch.maximum(x, y),
        torch.fmin(x, y),
        torch.clamp(x, y, y + 1),
    ),
    lambda: torch.cat([torch.randn(60), torch.tensor([float("nan"), 1.0])]),
    lambda: torch.cat([torch.randn(61), torch.tensor([float("nan")])]),
)
case(
    "interpolation",
    lambda x, y, z: (
        torch.lerp(x, y, 0.3),
        torch.lerp(x, y, z),
        torch.addcmul(x, y, z, value=2),
        torch.addcdiv(x, y, z, value=-1),
    ),
    (5, 9),
    (5, 9),
    positive(5, 9),
)
case(
    "comparisons",
    lambda x, y: (x == y, x != y, x < y, x <= 0, x > 0.5, x >= y, torch.isnan(x), torch.isinf(x), torch.isfinite(x)),
    lambda: torch.tensor([1.0, 2.0, float("nan"), float("inf"), -float("inf"), 0.0, 3.0]),
    lambda: torch.tensor([1.0, 3.0, float("nan"), float("inf"), 0.0, -0.0, 3.5]),
)
case(
    "logic",
    lambda a, b, x: (
        a & b,
        a | b,
        a ^ b,
        ~a,
        torch.logical_and(x, a),
        torch.logical_or(x, b),
        torch.logical_not(x),
        torch.logical_xor(x, a),
    ),
    ((77,), torch.bool),
    ((77,), torch.bool),
    lambda: torch.randint(0, 2, (77,)).float(),
)
case(
    "integer maths",
    lambda a, b: (
        a + b,
        a * 3 - b,
        a // 4,
        a % 5,
        torch.div(a, 4, rounding_mode="trunc"),
        torch.fmod(a, 5),
        a & b,
        a | 6,
        a ^ b,
        ~a,
        abs(a),
        a.clamp(-2, 3),
        torch.maximum(a, b),
        a.sign(),
        -a,
        a**5,
    ),
    ((7, 11), torch.int64),
    ((7, 11), torch.int64),
)
case("small integers", lambda a, b: (a + b, a * 2, a // 3, a << 1, a >> 1, a / 2, a * 0.5, a > b, a + 1.5),
     ((7, 11), torch.int32), ((7, 11), torch.int32))  # fmt: skip
case(
    "float division",
    lambda x, y: (
        torch.floor_divide(x, y),
        x // y,
        x % y,
        torch.fmod(x, y),
        torch.div(x, y, rounding_mode="trunc"),
        x % 0.7,
    ),
    lambda: torch.randn(5, 31) * 4,
    lambda: torch.randn(5, 31).sign() * (torch.rand(5, 31) + 0.3),
)
case(
    "conversions",
    lambda x, a, b: (
        x.half(),
        x.double(),
        x.int(),
        x.long(),
        x.bool(),
        a.float(),
        a.half(),
        a.to(torch.int8),
        b.float(),
        b.long() * 2,
        x.half() + x,
        a + x,
        b * x,
        b + a,
        x.to(torch.uint8),
    ),
    lambda: torch.rand(9, 13) * 7,
    ((9, 13), torch.int64),
    ((9, 13), torch.bool),
)
case(
    "choices",
    lambda x, m, y: (
        torch.where(m, x, y),
        torch.where(x > 0, x, 0.0),
        x.masked_fill(m, -1e9),
        torch.where(m, 1.0, 2.0),
        x.masked_fill(~m, float("-inf")),
        torch.where(m, x, y.half()),
    ),
    (6, 21),
    ((6, 1), torch.bool),
    (6, 21),
)
case(
    "fills",
    lambda x: (
        torch.zeros_like(x) + x,
        torch.full((3, 5), 2.0) * x,
        x + torch.arange(5),
        torch.ones(3, 1, dtype=half) + x,
        torch.arange(3.0)[:, None] * x,
    ),
    (3, 5),
)

# --- operands that lie in other ways ---

case(
    "not contiguous",
    lambda x, y, z: x * y + z,
    transposed(33, 9),
    strided(9, 33),
    lambda: torch.randn(33).expand(9, 33),
)
case("odd sizes", lambda x, y: (F.gelu(x) + y, x.sum(-1)), (3, 1000), (1000,))
case("one element", lambda x, y: x * y + 1, (1,), (1, 1))
case("scalars", lambda x, y: (x * y, y.sum() * x), (), (17,))
case("one long row", lambda x: (x * 2, x.sum()), (4097,))

# --- views ---

case("transposes", lambda x, y: (x.t() + y, x.transpose(0, 1).contiguous() * 2, y.permute(1, 0) * x), (7, 12), (12, 7))
case(
    "slices",
    lambda x: (
        x[:, 3:9] * 2,
        x[1:, ::2] + 1,
        x[:, -4:].exp(),
        x[..., 0] + 1,
        x[2] * 3,
        x[:, None, 5:6] * x[:, :, None],
    ),
    (7, 12),
)
case(
    "rotate half", lambda x, c, s: x * c + torch.cat([-x[..., 32:], x[..., :32]], -1) * s, (2, 3, 64), (3, 64), (3, 64)
)
case(
    "expand and flip",
    lambda x, y: (x.expand(5, 7) * y, x.flip(1) + y, y.flip(0, 1) * 2, y.flip(0).sum(1)),
    (1, 7),
    (5, 7),
)
case(
    "reshapes",
    lambda x, y: (
        x.view(24, 5) + y,
        x.reshape(-1) * 2,
        x.flatten(1).sum(1),
        x.unsqueeze(1).squeeze(0) + 1,
        x.view(4, 30).t() * 3,
    ),
    (4, 6, 5),
    (24, 5),
)
case(
    "cat and stack",
    lambda x, y: (torch.cat([x, y, x * 2], 1), torch.stack([x, x + 1], 1), torch.cat([x.sum(0, keepdim=True), x])),
    (4, 9),
    (4, 5),
)
case("pad", lambda x: (F.pad(x, (1, 2)), F.pad(x * 2, (0, 3, 2, 1), value=1.5), F.pad(x, (-1, 2)).exp()), (5, 8))
case("roll", lambda x: (x.roll(2, 1) + x, torch.roll(x, (1, -3), (0, 1)) * 2), (5, 8))
case(
    "split",
    lambda x: (x.split([3, 5, 4], 1)[1] * 2, x.chunk(3, 1)[2] + x.chunk(3, 1)[0], x.unbind(0)[1] * x.unbind(0)[2]),
    (4, 12),
)
case("triangles", lambda x: (x.tril() + 1, x.triu(1) * 2), (9, 9))
case("repeat", lambda x: (x.repeat(2, 3) * 2, x.repeat_interleave(3, 1) + 1), (4, 5))
case("diagonal", lambda x: x.diagonal() * 2, (6, 8), opaque=frozenset({"aten.diagonal.default"}))

# --- reductions ---

case(
    "sums",
    lambda x: (
        x.sum(),
        x.sum(1),
        x.sum(0, keepdim=True),
        x.sum((0, 2)),
        x.mean(),
        x.mean(-1),
        x.mean((1, 2), keepdim=True),
    ),
    (5, 7, 9),
)
case("sums in half", lambda x: (x.sum(-1), x.mean(-1), x.sum(-1, dtype=single), x.amax(0)), ((5, 77), half))
case(
    "extremes",
    lambda x: (
        x.amax(1),
        x.amin((0, 1)),
        x.max(),
        x.min(),
        *x.max(1),
        *x.min(0),
        x.argmax(1),
        x.argmin(0, keepdim=True),
    ),
    (6, 45),
)
case(
    "any, all, prod",
    lambda x, m: (m.any(1), m.all(), (x > 1).any(), m.all(0), x.prod(1), m.sum(1), (x > 0).sum(0)),
    (6, 45),
    ((6, 45), torch.bool),
)
case("integer reductions", lambda a: (a.sum(1), a.amax(0), a.max(), a.argmin(1), a.prod(0)), ((6, 9), torch.int32))
case(
    "variance",
    lambda x: (x.var(1), x.std(1, keepdim=True), *torch.var_mean(x, 0, correction=0), x.var((0, 1)), torch.std(x)),
    (6, 45),
)
case("variance in half", lambda x: (x.var(1), *torch.var_mean(x, 1, keepdim=True)), ((6, 45), half))
case(
    "norms of vectors",
    lambda x: (
        x.norm(dim=1),
        torch.linalg.vector_norm(x, 2, dim=1, keepdim=True),
        F.normalize(x, dim=1),
        torch.logsumexp(x, 1),
        x.norm(p=1, dim=0),
    ),
    (6, 45),
)
case("sum of a slice and a transpose", lambda x: (x[:, 1:-1].sum(1), x.t().mean(1), (x.t() * 2).amax(0)), (6, 45))

# --- softmax, losses, norms ---

case("softmax", lambda x: (F.softmax(x, -1), F.log_softmax(x, 0)), (7, 50))
case(
    "softmax in half",
    lambda x: (F.softmax(x, -1), F.log_softmax(x, -1), F.softmax(x, -1, dtype=single)),
    ((7, 50), half),
)
case("masked softmax", lambda x, m: F.softmax((x * 0.3).masked_fill(m, float("-inf")), -1),
     (5, 33), lambda: torch.arange(33).expand(5, 33) > torch.arange(5)[:, None] + 3)  # fmt: skip


def targets() -> torch.Tensor:
    found = torch.randint(0, 50, (7,))
    found[2] = -100
    return found


case("cross entropy", F.cross_entropy, (7, 50), targets)
case(
    "cross entropy, sum and none",
    lambda x, t: (F.cross_entropy(x, t, reduction="sum"), F.cross_entropy(x, t, reduction="none")),
    (7, 50),
    targets,
)
case(
    "cross entropy, its options",
    lambda x, t: (F.cross_entropy(x, t, label_smoothing=0.1), F.cross_entropy(x, t, ignore_index=3), F.nll_loss(x, t)),
    ((7, 50), half),
    lambda: targets().clamp(min=0),
    whole=False,
)
case(
    "losses",
    lambda x, y: (
        F.mse_loss(x, y),
        F.l1_loss(x, y, reduction="sum"),
        F.smooth_l1_loss(x, y, reduction="none"),
        F.binary_cross_entropy_with_logits(x, y.sigmoid()),
        F.huber_loss(x, y),
        F.kl_div(x, y.softmax(1), reduction="batchmean"),
    ),
    (5, 20),
    (5, 20),
)
case("layer norm", lambda x, w, b: F.layer_norm(x, (33,), w, b), (2, 5, 33), (33,), (33,))
case(
    "layer norm in half",
    lambda x, w: (F.layer_norm(x, (3, 22), w), F.layer_norm(x, (22,))),
    ((5, 3, 22), half),
    ((3, 22), half),
)
case("rms norm", lambda x, w: F.rms_norm(x, (70,), w, 1e-6), ((5, 70), half), ((70,), half))
case(
    "rms norm by hand",
    lambda x, r, w: (h := x + r, h * torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + 1e-6).half() * w),
    ((5, 70), half),
    ((5, 70), half),
    ((70,), half),
)
case("group norm", lambda x, w, b: F.silu(F.group_norm(x, 3, w, b)), (2, 6, 4, 5), (6,), (6,))
case("instance norm", F.instance_norm, (2, 3, 4, 5))
case(
    "batch norm", lambda x, m, v, w, b: F.relu(F.batch_norm(x, m, v, w, b)), (2, 6, 4, 5), (6,), positive(6), (6,), (6,)
)

# --- contractions ---

case("linear", lambda x, w, b: (F.linear(x, w), F.gelu(F.linear(x, w, b))), (3, 5, 24), (40, 24), (40,), whole=False)
case(
    "linear in half",
    lambda x, w, b, r: F.linear(F.silu(x), w, b) + r,
    ((19, 48), half),
    ((33, 48), half),
    ((33,), half),
    ((19, 33), half),
)
case("matmul and its transposes", lambda a, b: (a @ b, (b.t() @ a.t()).relu()), (17, 24), transposed(20, 24))
case("bmm", lambda a, b: torch.bmm(a, b.transpose(1, 2)) * 0.5, (3, 17, 24), (3, 20, 24))
case("addmm", lambda c, a, b: torch.addmm(c, a, b, beta=0.5), (20,), (17, 24), (24, 20))
case("addmm, alpha", lambda c, a, b: torch.addmm(c, a, b, alpha=0.5), (17, 20), (17, 24), (24, 20))
case(
    "addmm, both factors",
    lambda c, a, b: torch.addmm(c, a, b, beta=2, alpha=0.5),
    (17, 20),
    (17, 24),
    (24, 20),
    opaque=frozenset({"aten.addmm.default"}),
)
case(
    "addmm that ignores its first",
    lambda c, a, b: torch.addmm(c, a, b, beta=0).relu(),
    lambda: torch.full((20,), float("nan")),
    (17, 24),
    (24, 20),
)
case("baddbmm", lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5), (3, 17, 20), (3, 17, 24), (3, 24, 20))
case("mv and dot", lambda a, v, w: (a @ v, v @ w, torch.outer(v, w) * 2), (17, 24), (24,), (24,))
case("einsum", lambda q, k: torch.einsum("bihd,bjhd->bhij", q, k) * 0.1, (2, 17, 3, 16), (2, 19, 3, 16))
case("matmul with many dimensions", lambda a, b: torch.matmul(a, b) + 1, (2, 3, 17, 16), (16, 20))

# --- gathers ---

case("embedding", lambda i, w: F.embedding(i, w) * 2 + 1, below(11, 3, 5), (11, 20))
case(
    "gather",
    lambda x, i, j: (x.gather(1, i) * 2, x.index_select(0, j) + 1, x[j] * 3, x[:, j % 9] + 1),
    (6, 9),
    below(9, 6, 4),
    below(6, 13),
)
case("negative indices", lambda x, j: x[j] * 2, (6, 9), lambda: torch.tensor([-1, 0, -6, 5]))
case("take along", lambda x, i: torch.take_along_dim(x, i, 1).softmax(1), (6, 9), below(9, 6, 4))
case("one hot", lambda t: (F.one_hot(t, 7) * 2, (t[:, None] == torch.arange(7)).float()), below(7, 9))
case("cumulative", lambda x: x.cumsum(1) * 2, (4, 30), opaque=frozenset({"aten.cumsum.default"}))


# --- the test ---


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_forms_do_what_the_operators_do(case: Case) -> None:
    torch.manual_seed(3)
    args = case.args()
    with torch.no_grad():
        eager = case.fn(*args)
    eager = eager if isinstance(eager, tuple) else (eager,)
    graph, env = captured(case.fn, args)
    assert {op.call.target for op in graph.ops if op.form is None} == case.opaque
    aten.run(graph.ops, env)
    for output, expected in zip(graph.outputs, eager, strict=True):
        assert output is not None
        close(env[output], expected, f"{output}: the graph's calls")
    for op in graph.ops:
        if op.form is not None and not op.is_view:
            check(graph, (op.name,), op.outputs, env)
    if case.whole and not case.opaque:
        everything = tuple(op.name for op in graph.ops if not op.is_view)
        bases = dict.fromkeys(graph.base(name) for name in graph.outputs if name is not None)
        check(graph, everything, tuple(name for name in bases if name in graph.producer), env)


def captured(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Graph, dict[str, torch.Tensor]]:
    """As trace.capture, with the values of the graph's inputs (Dynamo orders them by first use)."""
    found: list[tuple[Graph, dict[str, torch.Tensor]]] = []

    def record(gm: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        graph = from_fx(gm)

        def run(*values: torch.Tensor) -> Any:
            found.append((graph, dict(zip(graph.inputs, values, strict=True))))
            return gm(*values)

        return run

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(fn, backend=aot_backend(record), fullgraph=True, dynamic=False)(*args)
    assert len(found) == 1
    return found[0]


def check(graph: Graph, ops: tuple[str, ...], outputs: tuple[str, ...], env: dict[str, torch.Tensor]) -> None:
    """The group's kernels under default schedules against float64."""
    alone = extract(graph, ops, outputs)
    inputs = {name: laid(graph, name, env[name]) for name in alone.inputs}
    exact = aten.run(alone.ops, dict(inputs), dtype="float64")
    program = build(graph, frozenset(ops), outputs)
    seen = 0
    for part in subspaces(program, H200):
        if not part.candidates.sample(1, np.random.default_rng(0)).size:
            continue
        kernel = emit(part.program, part.candidates.schedule(part.candidates.default()), "kernel")
        if kernel.grid[0] <= PROGRAMS and seen < 2:
            seen += 1
            launch(graph, kernel, outputs, inputs, exact)
    assert seen, f"{ops}: no schedule"


def launch(
    graph: Graph,
    kernel: Kernel,
    outputs: tuple[str, ...],
    inputs: dict[str, torch.Tensor],
    exact: dict[str, torch.Tensor],
) -> None:
    env = dict(inputs)
    for name in outputs:
        dtype = getattr(torch, graph.types[name].dtype)
        poison = torch.full(graph.types[name].shape, float("nan") if dtype.is_floating_point else 1, dtype=dtype)
        env[name] = laid(graph, name, poison)
    try:
        interpret(kernel, env)
    except Exception as error:
        raise AssertionError(f"{error}\n{kernel.source}") from error
    for name in outputs:
        close(env[name], exact[name], f"{name}\n{kernel.source}")


def laid(graph: Graph, name: str, value: torch.Tensor) -> torch.Tensor:
    """The value with the strides that the graph says."""
    kind = graph.types[name]
    assert tuple(value.shape) == kind.shape, name
    assert str(value.dtype) == f"torch.{kind.dtype}", name
    if tuple(value.stride()) == kind.strides:
        return value
    return torch.empty_strided(kind.shape, kind.strides, dtype=value.dtype).copy_(value)


def close(found: torch.Tensor, exact: torch.Tensor, what: str) -> None:
    if not found.dtype.is_floating_point:
        assert torch.equal(found, exact.to(found.dtype)), what
        return
    tolerance = {half: 3e-3, single: 2e-5, torch.float64: 1e-9}[found.dtype]
    torch.testing.assert_close(
        found.double(), exact.double(), rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m: f"{m}\n{what}"
    )


def assigned(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[0] = 1.0
    y[y > 0] = 0.0
    return y


def changed(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x + 1


def constant(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x + torch.tensor(1.5)


def batch_norm(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x = x.float()  # half's statistics are half in host memory and single on a GPU
    return F.batch_norm(x, torch.zeros_like(x[0]), torch.ones_like(x[0]), training=True).relu()


KNOWN_OPAQUE = {
    f"aten.{name}" for name in ("index.Tensor", "index_put.default", "_native_batch_norm_legit_functional.default")
}
WITHOUT_CUDA: dict[str, Callable[..., Any]] = {
    "slices": lambda x, i: (x[..., 3:9] * 2, x[:, ::2] + 1, x[2:] * 2, x[-4:, :-1] * 2),
    "slices that keep all": lambda x, i: (x[:] * 2, x[...] * 2, x[:, 0:64] * 2, x[0:100] * 2),
    "numbers and new dimensions": lambda x, i: (
        x[1] * 2,
        x[-1, None, 3:-1] * 2,
        x[:, None] * x[:, :, None],
        x[..., None, 1:] * 2,
    ),
    "tensors": lambda x, i: (x[i] * 2, x[:, i] * 2, x[i, i] * 2, x[None, :, i] * 2),
    "rotate half": lambda x, i: torch.cat([-x[..., 32:], x[..., :32]], -1),
    "not": lambda x, i: x.masked_fill(~(x > 0), 0.0),
    "contiguous": lambda x, i: (x * 2).t().contiguous() + 1,
    "assigned": assigned,
    "an input changed": changed,
    "running statistics": batch_norm,
    "a constant": constant,
}


@pytest.mark.parametrize("name", WITHOUT_CUDA)
def test_a_fake_cuda_tensor_is_used_as_any_other(name: str) -> None:
    """Tuning without CUDA must find the graph that a GPU's run time finds."""
    keys = []
    for device in ("cpu", "cuda"):
        with FakeTensorMode():
            args = torch.empty(8, 64, device=device, dtype=half), torch.empty(3, device=device, dtype=torch.int64)
        (found,) = capture(WITHOUT_CUDA[name], args, fullgraph=True)
        keys.append(graph_key(found.graph))
        assert not {op.call.target for op in found.graph.ops if op.form is None} - KNOWN_OPAQUE
    assert keys[0] == keys[1]


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="torch has a device guard for CUDA")
def test_what_a_torch_without_cuda_cannot_capture_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeTensorMode():
        args = (torch.empty(4, 4, device="cuda"),)
    with pytest.raises(CaptureError, match="needs a GPU host"):
        capture(lambda x: x.nonzero(), args)
    monkeypatch.setattr("autofuse.capture.device_guard._registry", lambda: None)
    with pytest.raises(CaptureError, match="needs a GPU build of torch or a GPU host"):
        capture(lambda x: x[0] * 2, args)


def test_the_reason_of_a_failed_capture_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(gm: torch.fx.GraphModule) -> Graph:
        raise ValueError("this is why")

    def ends(x: torch.Tensor) -> torch.Tensor:
        raise SystemExit(5)

    with pytest.raises(CaptureError, match=r"SystemExit\(5\)"):
        capture(ends, (torch.ones(3),))
    monkeypatch.setattr("autofuse.capture.trace.from_fx", fails)
    with pytest.raises(CaptureError, match="ValueError: this is why"):
        capture(lambda x: x + 1, (torch.ones(3),))


def test_real_and_fake_arguments_give_one_graph() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(F.linear(x, w), (20,))

    real = torch.randn(6, 9), torch.randn(20, 9)
    with FakeTensorMode() as mode:
        fake = tuple(mode.from_tensor(t) for t in real)
    (a,), (b,) = capture(fn, real), capture(fn, fake)
    assert graph_key(a.graph) == graph_key(b.graph)
    assert [tuple(t.shape) for t in b.example_inputs] == [tuple(t.shape) for t in a.example_inputs]
