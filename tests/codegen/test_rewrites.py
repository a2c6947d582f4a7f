"""Rewrites of captured functions against float64 in Triton's interpreter, at odd sizes and extreme values; and where
they are declined."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

from autofuse.capture.trace import capture
from autofuse.codegen.looptree import build_tree
from autofuse.codegen.triton import emit
from autofuse.cost.device import resolve
from autofuse.fusion.build import build
from autofuse.fusion.rewrites import variants
from autofuse.ir.graph import Graph
from autofuse.ir.program import ContractNode, Load, Program
from autofuse.measure.launch import interpret
from autofuse.schedule.schedule import Role, Schedule
from autofuse.search.pool import subspaces

Function = Callable[..., torch.Tensor]


def program_of(fn: Function, args: tuple[torch.Tensor, ...]) -> tuple[Graph, Program]:
    graph = capture(fn, args)[0].graph
    return graph, build(graph, frozenset(op.name for op in graph.ops), tuple(v for v in graph.outputs if v is not None))


def roles(program: Program, loop: int, grid: int = 16) -> tuple[tuple[str, Role], ...]:
    """Everything summed in a loop, save for what an inner product sums: that is whole."""
    last = [n for n in program.nodes if isinstance(n, ContractNode)][-1:]
    looped = {a for n in last for a in n.axes} or set(program.reduced)
    found: list[tuple[str, Role]] = []
    for axis in program.axes:
        role = Role("loop", loop) if axis.name in looped else Role("whole") if axis.name in program.reduced else None
        found.append((axis.name, role or Role("grid", grid)))
    return tuple(found)


def run(fn: Function, args: tuple[torch.Tensor, ...], names: tuple[str, ...], loop: int = 16) -> torch.Tensor:
    graph, program = program_of(fn, args)
    changed = variants(program)[names]
    kernel = emit(changed, Schedule(roles(changed, loop), num_stages=2), "kernel")
    out = fn(*args)
    env = {name: arg for name in graph.inputs for arg in args if matches(graph, name, arg)}
    assert len({id(arg) for arg in env.values()}) == len(args), "two inputs of one shape"
    (name,) = program.outputs
    env[name] = torch.full_like(out, float("nan"))
    interpret(kernel, env)
    return env[name]


def matches(graph: Graph, name: str, arg: torch.Tensor) -> bool:
    kind = graph.types[name]
    return kind.shape == tuple(arg.shape) and kind.dtype == str(arg.dtype).removeprefix("torch.")


def close(mine: torch.Tensor, exact: torch.Tensor, limit: float = 3e-3) -> None:
    assert torch.equal(mine.isnan(), exact.isnan())
    mine, exact = mine.double().nan_to_num(0.0), exact.nan_to_num(0.0)
    assert float((mine - exact).norm()) <= limit * max(float(exact.norm()), 1e-6)


def half(*shape: int, scale: float = 1.0, seed: int = 0) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).half()


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax((q @ k.T).float() * 0.25, -1).to(q.dtype) @ v


def norm_linear(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.linear(F.rms_norm(x, (x.shape[-1],), g, 1e-6), w)


@pytest.mark.parametrize("keys", [2, 7, 16, 33, 100])
def test_attention_in_one_loop(keys: int) -> None:
    args = (half(19, 16), half(keys, 16, seed=1), half(keys, 24, seed=2))
    close(run(attention, args, ("deferred", "online")), attention(*(a.double() for a in args)))


def test_one_loop_is_one_pass_over_the_keys() -> None:
    args = (half(32, 16), half(64, 16), half(64, 24))
    _, program = program_of(attention, args)
    passes: dict[tuple[str, ...], int] = {}
    for names, changed in variants(program).items():
        axis = [n for n in changed.nodes if isinstance(n, ContractNode)][-1].axes[0]
        kinds = {name: role.kind for name, role in roles(changed, 16)}
        passes[names] = build_tree(changed, kinds).passes(axis)
    assert passes == {(): 3, ("deferred",): 2, ("online",): 2, ("deferred", "online"): 1}


@pytest.mark.parametrize("value", [0.0, 40.0, -40.0, float("inf"), float("nan")])
def test_attention_at_extremes(value: float) -> None:
    """A query that makes all scores equal, very large, or not a number, beside ordinary ones."""
    q, k, v = half(5, 16), half(40, 16, seed=1).abs(), half(40, 24, seed=2)
    q[2] = value
    close(run(attention, (q, k, v), ("deferred", "online")), attention(q.double(), k.double(), v.double()), 1e-2)


def test_a_row_that_is_masked_out_is_not_a_number() -> None:
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax((q @ k.T).float() + mask, -1).to(q.dtype) @ v

    mask = torch.zeros(5, 40)
    mask[1] = float("-inf")
    mask[3, 7:] = float("-inf")
    args = (half(5, 16), half(40, 16, seed=1), half(40, 24, seed=2), mask)
    close(run(fn, args, ("deferred", "online")), fn(*(a.double() for a in args)))


@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 16, 16), (7, 100, 33), (40, 64, 17)])
def test_a_norm_and_the_product_after_it_in_one_loop(rows: int, depth: int, columns: int) -> None:
    """In float32, where the operand keeps its column scale; in float16 see test_rewrite_properties."""
    halves = (half(rows, depth, scale=3.0), half(depth, seed=1), half(columns, depth, seed=2))
    args = tuple(a.float() for a in halves)
    close(run(norm_linear, args, ("deferred",), 32), norm_linear(*(a.double() for a in args)))


def test_an_operand_that_was_only_scaled_is_multiplied_as_it_is() -> None:
    _, program = program_of(lambda x, c, w: (x * c[:, None]) @ w, (half(7, 32), half(7), half(32, 9)))
    changed = variants(program)[("deferred",)]
    (product,) = [n for n in changed.nodes if isinstance(n, ContractNode)]
    assert all(isinstance(changed.nodes[side], Load) for side in (product.left, product.right))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, c, w: (x + c[:, None]) @ w,
        lambda x, c, w: (c[:, None] / x) @ w,
        lambda x, c, w: torch.exp(x * c[:, None]) @ w,
        lambda x, c, w: (x * w[:, 0]) @ w + c[:, None],
    ],
    ids=["sum", "divisor", "inside a function", "varies along the summed axis"],
)
def test_what_is_no_factor_stays(fn: Function) -> None:
    _, program = program_of(fn, (half(7, 32), half(7), half(32, 9)))
    assert ("deferred",) not in variants(program)


def test_axes_that_would_nest_in_themselves_stay_apart() -> None:
    """The residual is read along the columns that are stored and along those that its norm sums: one axis of both would
    put the product's loop inside of itself."""

    def fn(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return x + F.linear(F.silu(F.linear(F.rms_norm(x, (48,)), w)), u)

    args = (half(9, 48), half(64, 48, scale=0.2, seed=1), half(48, 64, scale=0.2, seed=2))
    _, program = program_of(fn, args)
    assert sorted(axis.size for axis in program.axes) == [9, 48, 48, 64]
    close(run(fn, args, ()), fn(*(a.double() for a in args)))


def log_sum_exp(x: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(x, 1)


@pytest.mark.parametrize(
    "row", [[0.0] * 70, [6e4] * 70, [float("-inf")] * 70, [1.0] * 40 + [float("inf")] * 30, [float("inf")] + [1.0] * 69,
            [float("nan")] + [1.0] * 69, [float("-inf")] * 69 + [3.0]],
    ids=["equal", "large", "empty", "infinite late", "infinite first", "nan", "one"],
)  # fmt: skip
@pytest.mark.parametrize("parts", [1, 3])
def test_log_sum_exp_in_one_loop(row: list[float], parts: int) -> None:
    """torch's guard against an infinite maximum included, in one program and shared by three."""
    x = torch.stack([torch.tensor(row), half(70).float()]).half()
    graph, program = program_of(log_sum_exp, (x,))
    changed = variants(program)[("online",)]
    role = Role("loop", 16) if parts == 1 else Role("split", 16, parts)
    axes = tuple((a.name, role if a.name in program.reduced else Role("grid", 1)) for a in program.axes)
    out = torch.full((2,), -7.0).half()
    interpret(emit(changed, Schedule(axes), "kernel"), {graph.inputs[0]: x, program.outputs[0]: out})
    torch.testing.assert_close(out.double(), log_sum_exp(x.double()), rtol=2e-3, atol=2e-3, equal_nan=True)


def positions(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(q.shape[0])[:, None], torch.arange(k.shape[0])[None, :]


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    i, j = positions(q, k)
    return torch.softmax((q @ k.T).float().masked_fill(j > i, float("-inf")) * 0.25, -1).to(q.dtype) @ v


def shifted_causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The last query sees all keys: of some rows nothing is left where there are more queries than keys."""
    i, j = positions(q, k)
    seen = i + (k.shape[0] - q.shape[0]) >= j
    return torch.softmax(torch.where(seen, (q @ k.T).float(), float("-inf")), -1).to(q.dtype) @ v


def window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    i, j = positions(q, k)
    hidden = (j > i) | (i - j >= 21)
    return torch.softmax((q @ k.T).float().masked_fill(hidden, float("-inf")), -1).to(q.dtype) @ v


@pytest.mark.parametrize("fn", [causal, shifted_causal, window], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize(("queries", "keys"), [(70, 71), (33, 100), (100, 33)])
@pytest.mark.parametrize(
    "names", [("deferred", "online"), ("deferred",), ()], ids=lambda names: "+".join(names) or "plain"
)
def test_tiles_that_are_masked_out_are_left_out(fn: Function, queries: int, keys: int, names: tuple[str, ...]) -> None:
    args = (half(queries, 16), half(keys, 16, seed=1), half(keys, 24, seed=2))
    close(run(fn, args, names), fn(*(a.double() for a in args)))


def source_of(fn: Function, names: tuple[str, ...] = ("deferred", "online"), keys: int = 256, **knobs: int) -> str:
    args = (half(256, 16), half(keys, 16, seed=1), half(keys, 24, seed=2))
    _, program = program_of(fn, args)
    changed = variants(program)[names]
    return emit(changed, Schedule(roles(changed, 32, 64), num_stages=2, **knobs), "kernel").source


def loop_of(fn: Function, names: tuple[str, ...] = ("deferred", "online"), keys: int = 256) -> list[str]:
    """Of each loop its header; of loops that take an axis in several stretches, in place of these, what they take."""
    lines = [line.strip() for line in source_of(fn, names, keys).splitlines()]
    loops = [line for line in lines if line.startswith("for ") and "_cut" not in line and "_free" not in line]
    ends = dict(line.split(" = ", 1) for line in lines if line.startswith(("k_low = ", "k_high = ")))
    return loops + ([f"tl.range({ends.get('k_low', '0')}, {ends['k_high']}, BLOCK_K, "] if ends else [])


def test_the_loop_ends_where_the_mask_does() -> None:
    (line,) = loop_of(causal)
    assert "tl.minimum(SIZE_K, tl.maximum(0, 64 + m_start))" in line
    (line,) = loop_of(shifted_causal)
    assert "tl.minimum(SIZE_K, tl.maximum(0, 64 + m_start))" in line
    (line,) = loop_of(window)
    assert "tl.maximum(0, (-20 + m_start) // BLOCK_K * BLOCK_K)" in line
    assert "64 + m_start" in line


def stretches(source: str) -> list[tuple[str, bool]]:
    """(header, is anything tested?) of each loop."""
    _, *bodies = source.split("    for k_start in ")
    return [(body.splitlines()[0], 'float("-inf")' in body) for body in bodies]


def test_the_mask_is_tested_where_it_cuts_a_tile() -> None:
    (free, tested), (cut, tested_too) = stretches(source_of(causal))
    assert free.startswith("tl.range(0, k_cut, ")
    assert cut.startswith("tl.range(k_cut, k_high, ")
    assert (tested, tested_too) == (False, True)
    assert "k_cut = tl.maximum(0, tl.minimum(k_high, (1 + m_start) // BLOCK_K * BLOCK_K))" in source_of(causal)
    found = stretches(source_of(window, keys=250))
    assert [tested for _, tested in found] == [True, False, True]
    whole = source_of(window, keys=250).split("    for k_start in ")[2]
    assert "k_mask" not in whole


def loaded_too(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Whether a key is hidden hangs on its value too, so that no tile is free."""
    i, j = positions(q, k)
    hidden = (j > i) | (k[:, 0] > 1.5)
    return torch.softmax((q @ k.T).float().masked_fill(hidden, float("-inf")), -1).to(q.dtype) @ v


def every_other(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    i, j = positions(q, k)
    return torch.softmax((q @ k.T).float().masked_fill((i + j) % 2 == 1, float("-inf")), -1).to(q.dtype) @ v


def test_a_mask_that_no_tile_is_known_to_be_free_of_is_tested_in_all() -> None:
    args = (half(70, 16), half(71, 16, seed=1), half(71, 24, seed=2))
    for fn in (loaded_too, every_other):
        ((_, tested),) = stretches(source_of(fn))
        assert tested
        close(run(fn, args, ("deferred", "online")), fn(*(a.double() for a in args)))
    flat = source_of(causal, persistent=1, flatten=True)
    assert len(stretches(flat)) == 1, "the compiler flattens around one loop only"


def triangular(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A choice between an operand and 0, in the loop of a plain product."""
    return torch.tril(x) @ w


@pytest.mark.parametrize("size", [64, 70])
def test_a_triangular_operand_is_tested_on_the_diagonal(size: int) -> None:
    args = (half(size, size), half(size, 24, seed=1))
    close(run(triangular, args, ()), triangular(*(a.double() for a in args)))
    _, program = program_of(triangular, args)
    source = emit(program, Schedule(roles(program, 16)), "kernel").source
    assert ["tl.where" in body for body in source.split("    for k_start in ")[1:]] == [False, True]


def test_a_mask_that_is_added_or_not_of_positions_leaves_the_loop_whole() -> None:
    def finite(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        i, j = positions(q, k)
        return torch.softmax((q @ k.T).float().masked_fill(j > i, -1e4), -1).to(q.dtype) @ v

    def product(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        i, j = positions(q, k)
        return (q @ k.T).float().masked_fill(j > i, float("-inf")).amax(-1, keepdim=True) + ((q @ k.T) @ v).float()

    assert "SIZE_K, 32, " in loop_of(finite)[0].replace("BLOCK_K", "32")
    for line in loop_of(product, ()):
        assert "tl.minimum" not in line or "maximum" in line


# --- factors that leave a maximum ---


def body_of(source: str) -> str:
    return source.split("    for k_start in ")[1]


@pytest.mark.parametrize("factor", [0.25, 0.03, 37.0])
@pytest.mark.parametrize("masked_first", [True, False])
def test_scores_are_not_multiplied_by_their_factor(factor: float, masked_first: bool) -> None:
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        i, j = positions(q, k)
        scores = (q @ k.T).float()
        if masked_first:
            scores = scores.masked_fill(j > i + 30, float("-inf")) * factor
        else:
            scores = (scores / (1 / factor)).masked_fill(j > i + 30, float("-inf"))
        return torch.softmax(scores, -1).to(q.dtype) @ v

    body = body_of(source_of(fn))
    assert f"* {factor}" not in body
    assert body.count("tl.exp2(") == 2, "of the scores, and of what brings one maximum to the next"
    args = (half(70, 16), half(71, 16, seed=1), half(71, 24, seed=2))
    close(run(fn, args, ("deferred", "online")), fn(*(a.double() for a in args)), 1e-2 if factor > 1 else 3e-3)


@pytest.mark.parametrize("factor", [-0.25, 0.0, 1e-5, 1e5])
def test_a_factor_that_is_no_factor_of_the_maximum_stays(factor: float) -> None:
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax((q @ k.T).float() * factor, -1).to(q.dtype) @ v

    assert f"* {factor}" in body_of(source_of(fn)).replace("(", "").replace(")", "")
    args = (half(20, 16), half(71, 16, seed=1), half(71, 24, seed=2))
    close(run(fn, args, ("deferred", "online")), fn(*(a.double() for a in args)), 1e-2)


def test_other_readers_of_a_maximum_and_of_scores_get_them_whole() -> None:
    def fn(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.T).float() * 0.25
        top = scores.amax(-1, keepdim=True)
        return torch.exp(scores - top).sum(-1, keepdim=True).log() + top + (scores * scores).sum(-1, keepdim=True)

    args = (half(20, 16), half(71, 16, seed=1))
    close(run(fn, args, ("online",)), fn(*(a.double() for a in args)))


@pytest.mark.parametrize(
    ("fn", "folded"),
    [
        (lambda x, v: torch.softmax(x, -1) @ v, True),
        (lambda x, v: torch.softmax(x, -1), False),
        (lambda x, v: torch.log_softmax(x, -1)[:, :1], False),
        (lambda x, v: torch.exp(x - x.amax(-1, keepdim=True)).sum(-1) + x.amax(-1), False),
    ],
    ids=["quotients", "written by a second pass", "with a logarithm", "with the maximum"],
)
def test_a_rounded_shift_is_for_quotients_alone(fn: Function, folded: bool) -> None:
    """Large scores, of which the shift is rounded by up to 0.03 (in float32 on a GPU): elsewhere that would show."""
    args = (3e5 + torch.randn(9, 64).float(), half(64, 24, seed=1).float())
    _, program = program_of(fn, args)
    names = ("deferred", "online") if folded else ("online",)
    source = emit(variants(program)[names], Schedule(roles(program, 16)), "kernel").source
    assert ("shift" in source) == folded


def two_rates(x: torch.Tensor) -> torch.Tensor:
    """Sums of two factors cannot follow one maximum by one scale."""
    below = x.float() - x.float().amax(-1, keepdim=True)
    return torch.exp(below).sum(-1) + torch.exp(below * 0.5).sum(-1)


def test_exponentials_of_several_factors() -> None:
    x = half(5, 71, scale=3.0)
    _, program = program_of(two_rates, (x,))
    for names in variants(program):
        close(run(two_rates, (x,), names), two_rates(x.double()))


@pytest.mark.parametrize("size", [1.0, 1e3, 1e5, 1e7, 3e8, 1e12, 3.3e38])
def test_scores_of_any_size(size: float) -> None:
    """In float32, rows that rise, fall, are equal, and are as low as float32 goes (a mask of torch.finfo's minimum):
    that r * m is rounded shows in no quotient, and overflows nothing."""
    steps = torch.tensor([0.0, 1.0, 2.0, 3.0]).repeat_interleave(16) * max(size * 2.0**-23, 1.0)
    x = torch.stack([size + steps, size - steps, torch.full((64,), size), torch.full((64,), -size), -size - steps])
    x = x.clamp(-3.4e38, 3.4e38)

    def fn(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1) @ v

    args = (x, torch.eye(64)[:, ::4].contiguous())
    mine, exact = run(fn, args, ("deferred", "online")), fn(*(a.double() for a in args))
    limit = min(1e-6 + size * 2.0**-22, 0.2)  # the interpreter's multiply-add rounds twice
    assert float((mine.double() - exact).abs().max()) <= limit * float(exact.max())


# --- products that begin at what they are added to ---


def adapter(x: torch.Tensor, w: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w) + 2.0 * F.linear(F.linear(x, down), up)


def residual(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return r.float().mul(0.5) + F.linear(x, w).float()


@pytest.mark.parametrize(("rows", "depth", "columns"), [(2, 16, 17), (7, 100, 33), (40, 64, 48)])
@pytest.mark.parametrize("fn", [adapter, residual])
def test_a_product_begins_at_what_it_is_added_to(fn: Function, rows: int, depth: int, columns: int) -> None:
    args = [half(rows, depth), half(columns, depth, seed=1)]
    args += [half(8, depth, seed=2), half(columns, 8, seed=3)] if fn is adapter else [half(rows, columns, seed=2)]
    close(run(fn, tuple(args), ("seeded",), 32), fn(*(a.double() for a in args)))


def test_what_a_product_begins_at_may_be_infinite_or_no_number() -> None:
    start = half(7, 33, seed=2)
    start[0, 0], start[1, 1], start[2, 2] = float("inf"), float("-inf"), float("nan")
    args = (half(7, 100), half(33, 100, seed=1), start)
    mine, exact = run(residual, args, ("seeded",), 32), residual(*(a.double() for a in args))
    assert torch.equal(mine.isinf(), exact.isinf())
    close(mine.masked_fill(exact.isinf(), 0), exact.masked_fill(exact.isinf(), 0))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w, r: F.linear(x, w) * r,
        lambda x, w, r: F.linear(x, w) + r[0],
        lambda x, w, r: F.linear(x, w) + F.linear(x, w).sigmoid() * r,
        lambda x, w, r: ((y := F.linear(x, w)) + r, y),
        lambda x, w, r: ((y := F.linear(x, w)) + r) * y.sum(-1, keepdim=True),
    ],
    ids=["a product", "a vector", "of the product itself", "kept", "read twice"],
)
def test_what_does_not_begin_elsewhere(fn: Function) -> None:
    _, program = program_of(fn, (half(7, 32), half(9, 32, seed=1), half(7, 9, seed=2)))
    assert ("seeded",) not in variants(program)


def test_programs_that_share_a_sum_begin_at_0() -> None:
    """What is added once must not be added by each of them."""
    _, program = program_of(residual, (half(40, 256), half(48, 256, seed=1), half(40, 48, seed=2)))
    parts = subspaces(program, resolve("h200"))
    seeded = [part.candidates.kinds for part in parts if part.rewrites == ("seeded",)]
    assert seeded
    assert any("split" in part.candidates.kinds.values() for part in parts)
    assert not any("split" in kinds.values() for kinds in seeded)


# --- divisions by a number ---


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.floor(x / 41.0) * 0.5,
        lambda x: torch.trunc(x / 41.0),
        lambda x: torch.round(x / 14.0),
        lambda x: (x / 41.0).long().float(),
        lambda x: torch.where(x / 41.0 == 1, 1.0, 0.0),
        lambda x: torch.floor((x / 41.0).abs() + 0.0),
    ],
    ids=["floor", "trunc", "round", "an integer", "a comparison", "further on"],
)
def test_a_quotient_that_decides_over_a_step_is_a_division(fn: Function) -> None:
    """41 * (1 / 41) is less than 1."""
    x = torch.arange(200.0)
    assert torch.equal(run(fn, (x,), ()), fn(x))


def test_a_quotient_that_decides_over_nothing_is_a_product() -> None:
    _, program = program_of(lambda x: torch.exp(x / 41.0), (torch.arange(200.0),))
    assert "*" in emit(program, Schedule(roles(program, 16)), "kernel").source.split("# div")[1].split("\n")[1]
    x = torch.arange(200.0)
    close(run(lambda x: torch.exp(x / 41.0), (x,), ()), torch.exp(x.double() / 41.0), 1e-6)
