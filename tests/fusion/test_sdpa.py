"""Attention written by hand as SDPA's call: the same numbers, and only where it is the same function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from autofuse.capture import attention
from autofuse.capture.aten import run
from autofuse.capture.convert import from_fx
from autofuse.capture.trace import aot_backend, capture
from autofuse.fusion.library import LibraryCall, fused_calls, library_call, whole_group, with_ops
from autofuse.ir.graph import Graph, Op
from autofuse.ir.serial import graph_from_json, graph_to_json
from autofuse.measure.execute import resolve
from datasets.workloads import attention as workloads

Function = Callable[..., Any]
Tensors = tuple[torch.Tensor, ...]
NAME = "autofuse.attention"
HIDDEN = -math.inf
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


# --- running what was recognised ---


def call_of(graph: Graph) -> LibraryCall | None:
    return next((call for call in fused_calls(graph, whole_group(graph)) if call.name == NAME), None)


def recognised(fn: Function, args: Sequence[torch.Tensor]) -> Op | None:
    """The call alone."""
    call = call_of(capture(fn, args)[0].graph)
    if call is None:
        return None
    (found,) = [op for op in call.ops if op.call.target.startswith(NAME)]
    return found


def outputs(fn: Function, args: Sequence[torch.Tensor]) -> torch.Tensor:
    """What fn makes where its attention runs as the call."""

    def compiler(gm: torch.fx.GraphModule, _examples: Sequence[Any]) -> Function:
        graph = from_fx(gm)
        call = call_of(graph)
        assert call is not None
        text = graph_to_json(with_ops(graph, call.ops))
        assert graph_to_json(graph_from_json(text)) == text

        def compiled(*given: torch.Tensor) -> list[torch.Tensor]:
            env = dict(zip(graph.inputs, given, strict=True))
            run(call.ops, env)
            for name in graph.outputs:
                resolve(graph, env, str(name))
            return [env[str(name)] for name in graph.outputs]

        return compiled

    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(fn, backend=aot_backend(compiler), dynamic=False)(*args)


def wide(args: Sequence[torch.Tensor]) -> Tensors:
    return tuple(arg.double() if arg.is_floating_point() else arg for arg in args)


def check(fn: Function, args: Sequence[torch.Tensor]) -> torch.Tensor:
    """The call against fn in float64: near, and NaN in the same places. Returns what the call made."""
    exact, found, eager = fn(*wide(args)), outputs(fn, args), fn(*args)
    assert found.dtype == eager.dtype
    assert found.shape == exact.shape
    assert torch.equal(found.isnan(), exact.isnan())
    apart = (found.double() - exact).nan_to_num()
    worst = max(3 * (eager.double() - exact).nan_to_num().norm(), TOLERANCE[found.dtype] * exact.nan_to_num().norm())
    assert apart.norm() <= worst
    return found


# --- functions ---


def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q @ k.transpose(-1, -2)


def weighted(masked: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(masked, -1).to(v.dtype) @ v


def positions(q: torch.Tensor, k: torch.Tensor) -> Tensors:
    return torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])[None, :]


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return weighted(scores(q, k) * 0.3, v)


def in_float32(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The softmax in float32, as careful code has it."""
    return weighted((scores(q, k) / math.sqrt(q.shape[-1])).float(), v)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    row, column = positions(q, k)
    return weighted((scores(q, k) * 0.3).masked_fill(column > row, HIDDEN), v)


def causal_where(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    row, column = positions(q, k)
    return weighted(torch.where(row >= column, scores(q, k) * 0.3, HIDDEN), v)


def causal_tril(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    seen = torch.ones(q.shape[-2], k.shape[-2]).tril()
    return weighted((scores(q, k) * 0.3).masked_fill(seen == 0, HIDDEN), v)


def causal_lowest(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """As GPT-2 has it: the lowest number instead of -inf."""
    row, column = positions(q, k)
    found = scores(q, k) * 0.3
    return weighted(torch.where(row >= column, found, torch.finfo(found.dtype).min), v)


def last_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal, where the queries are the last tokens of all."""
    row, column = positions(q, k)
    return weighted(scores(q, k).masked_fill(column > row + (k.shape[-2] - q.shape[-2]), HIDDEN), v)


def window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    row, column = positions(q, k)
    return weighted(scores(q, k).masked_fill((column > row) | (row - column >= 3), HIDDEN), v)


def flipped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Looks causal, but counts backwards."""
    row, column = positions(q, k)
    return weighted(scores(q, k).masked_fill((column > row).flip(0), HIDDEN), v)


def turned_mask(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Looks causal, but sees what comes."""
    row, column = positions(q, k)
    return weighted(scores(q, k).masked_fill((column > row).T, HIDDEN), v)


def first_key(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The first row of a causal mask, for all queries."""
    return weighted(scores(q, k).masked_fill(torch.arange(k.shape[-2]) >= 1, HIDDEN), v)


def strict(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Hides the diagonal too: nothing is left of the first row."""
    row, column = positions(q, k)
    return weighted(scores(q, k).masked_fill(column >= row, HIDDEN), v)


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return weighted(scores(q, k).masked_fill(hidden, HIDDEN), v)


def biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return weighted(scores(q, k) * 0.3 + bias, v)


def bias_then_scale(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return weighted((scores(q, k) - bias) * 0.25, v)


def causal_and_bias(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    row, column = positions(q, k)
    return weighted((scores(q, k) * 0.3 + 2 * bias).masked_fill(column > row, HIDDEN), v)


def causal_and_mask(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    row, column = positions(q, k)
    return weighted((scores(q, k) * 0.3).masked_fill(column > row, HIDDEN).masked_fill(hidden, HIDDEN), v)


def alibi(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    row, column = positions(q, k)
    return weighted(scores(q, k) * 0.3 + slopes[:, None, None] * (column - row), v)


def inputs(queries: int = 9, keys: int = 9, dtype: torch.dtype = torch.float32) -> Tensors:
    torch.manual_seed(1)
    shapes = ((2, 3, queries, 8), (2, 3, keys, 8), (2, 3, keys, 5))
    return tuple(torch.randn(*shape).to(dtype) for shape in shapes)


SIZES = pytest.mark.parametrize(("queries", "keys"), [(7, 11), (1, 33), (40, 6)])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])


def each(*fns: Function) -> Any:
    return pytest.mark.parametrize("fn", fns, ids=lambda fn: fn.__name__)


# --- the same numbers ---


@each(plain, in_float32)
@SIZES
@DTYPES
def test_without_a_mask(fn: Function, queries: int, keys: int, dtype: torch.dtype) -> None:
    args = inputs(queries, keys, dtype)
    check(fn, args)
    call = call_of(capture(fn, args)[0].graph)
    assert call is not None
    assert len([op for op in call.ops if not op.is_view]) == 1


@each(causal, causal_where, causal_tril, causal_lowest)
@DTYPES
def test_a_causal_mask_is_a_flag_and_its_ops_go(fn: Function, dtype: torch.dtype) -> None:
    args = inputs(12, 12, dtype)
    check(fn, args)
    call = call_of(capture(fn, args)[0].graph)
    assert call is not None
    (made,) = [op for op in call.ops if not op.is_view]
    assert dict(made.call.kwargs)["is_causal"] is True


@pytest.mark.parametrize(
    ("fn", "queries"),
    [
        (window, 4),
        (window, 11),
        (last_queries, 4),
        (last_queries, 10),
        (flipped, 11),
        (turned_mask, 11),
        (first_key, 11),
    ],
    ids=str,
)
@DTYPES
def test_a_mask_of_positions_that_hides_no_row(fn: Function, queries: int, dtype: torch.dtype) -> None:
    args = inputs(queries, 11, dtype)
    check(fn, args)
    made = recognised(fn, args)
    assert made is not None
    assert "is_causal" not in dict(made.call.kwargs)
    assert dict(made.call.kwargs)["all_seen"] is True


@DTYPES
def test_a_row_that_positions_hide_is_nan(dtype: torch.dtype) -> None:
    assert check(strict, inputs(9, 9, dtype))[:, :, 0].isnan().all()


@each(masked, causal_and_mask)
@pytest.mark.parametrize("shape", [(9, 9), (1, 9), (2, 1, 1, 9), (1, 3, 9, 1), (2, 3, 9, 9)], ids=str)
@DTYPES
def test_a_mask_from_outside(fn: Function, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    hidden = torch.rand(shape) < 0.4
    hidden[..., 0, :] = True
    check(fn, (*inputs(9, 9, dtype), hidden))


@each(biased, bias_then_scale, causal_and_bias)
@pytest.mark.parametrize("shape", [(9, 9), (9,), (2, 1, 1, 9), (1, 3, 9, 1), (2, 3, 9, 9)], ids=str)
@DTYPES
def test_a_bias_from_outside(fn: Function, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    bias = torch.randn(shape).to(dtype)
    check(fn, (*inputs(9, 9, dtype), bias))


@pytest.mark.parametrize("low", ["-inf", "lowest", "-10000"])
@DTYPES
def test_a_bias_that_hides_keys_and_a_row(low: str, dtype: torch.dtype) -> None:
    """A number as low as it gets gives every value the same weight where it is all that a row has: no NaN."""
    number = {"-inf": HIDDEN, "lowest": torch.finfo(dtype).min, "-10000": -10000.0}[low]
    bias = torch.where(torch.rand(9, 9) < 0.4, number, 0.0).to(dtype)
    bias[3] = number
    assert check(biased, (*inputs(9, 9, dtype), bias))[:, :, 3].isnan().any() == (low == "-inf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_that_count_in_powers_of_two_do_not_overflow(dtype: torch.dtype) -> None:
    """pytorch/pytorch#110213, which no CPU kernel shows."""
    low = torch.finfo(dtype).min
    mask = torch.tensor([[[[low, low, HIDDEN], [low, 1.5, HIDDEN], [0.0, -3.0, 2.0]]]]).to(dtype)
    lifted = attention._within_range(mask, attention.best_of(mask))
    assert (lifted.float() * math.log2(math.e)).amax(-1).isfinite().all()
    assert torch.equal(lifted.float().softmax(-1), mask.float().softmax(-1))
    assert torch.equal(lifted[..., 1:, :], mask[..., 1:, :])


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_bias_that_is_no_number(number: float) -> None:
    bias = torch.zeros(9, 9)
    bias[2, 4] = number
    assert check(biased, (*inputs(), bias))[:, :, 2].isnan().all()


@DTYPES
def test_a_bias_that_half_precision_would_round_is_left_alone(dtype: torch.dtype) -> None:
    """SDPA takes it in the queries' dtype: of 1500 times a slope little is left in bfloat16."""
    args = (*inputs(9, 13, dtype), torch.tensor([0.5, 0.25, 0.1]))
    if dtype == torch.float32:
        check(alibi, args)
    else:
        assert recognised(alibi, args) is None


@pytest.mark.parametrize(("factor", "exact"), [(0.25, True), (0.3, False), (4.0, False)])
def test_a_bias_times_what_half_precision_would_round_is_left_alone(factor: float, exact: bool) -> None:
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.softmax((scores(q, k).float() + bias) * factor, -1).to(v.dtype) @ v

    args = (*inputs(9, 13, torch.float16), torch.randn(9, 13).half())
    assert (recognised(fn, args) is not None) == exact


def test_scores_of_three_dimensions_with_masks_of_four() -> None:
    """Bloom's: a bias while heads and batch are one dimension, a mask when they are two."""

    def bloom(q: Any, k: Any, v: Any, bias: Any, hidden: Any) -> Any:
        flat = 0.5 * bias + 0.25 * (q.flatten(0, 1) @ k.flatten(0, 1).transpose(1, 2))
        return weighted(flat.view(2, 3, 9, 9).masked_fill(hidden, HIDDEN), v)

    check(bloom, (*inputs(), torch.randn(6, 1, 9), torch.rand(2, 1, 9, 9) < 0.3))


def test_a_bias_over_dimensions_that_are_one_later_is_left_alone() -> None:
    """[2, 1] of groups of heads does not broadcast against [2, 6] of batch and heads."""

    def by_groups(q: Any, k: Any, v: Any, bias: Any) -> Any:
        found = scores(q, k).view(2, 2, 3, 9, 9) + bias
        return weighted(found.view(2, 6, 9, 9), v)

    args = tuple(torch.randn(2, 6, 9, 8) for _ in range(3))
    assert recognised(by_groups, (*args, torch.randn(2, 1, 9, 9))) is None
    check(by_groups, (*args, torch.randn(9)))


def test_two_attentions_share_a_mask() -> None:
    def twice(q: Any, k: Any, v: Any, hidden: Any) -> Any:
        row, column = positions(q, k)
        found = scores(q, k).masked_fill(hidden | (column > row), HIDDEN)
        again = scores(q, found @ k).masked_fill(hidden | (column > row), HIDDEN)
        return weighted(again, v)

    assert recognised(twice, (*inputs(), torch.zeros(9, 9, dtype=torch.bool))) is not None


# --- operands ---


def heads_apart(tokens: torch.Tensor, heads: int) -> torch.Tensor:
    batch, count, width = tokens.shape
    return tokens.view(batch, count, heads, width // heads).transpose(1, 2)


def test_heads_are_read_where_they_lie() -> None:
    """Projections are [batch, tokens, heads * dim]: a matmul wants copies, SDPA does not."""

    def projected(q: Any, k: Any, v: Any) -> Any:
        return weighted(scores(heads_apart(q, 2), heads_apart(k, 2)) * 0.3, heads_apart(v, 2))

    args = tuple(torch.randn(2, n, 16) for n in (5, 7, 7))
    check(projected, args)
    call = call_of(capture(projected, args)[0].graph)
    assert call is not None
    assert [op.call.target for op in call.ops if not op.is_view] == ["autofuse.attention.default"]


def repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    batch, heads, tokens, dim = x.shape
    return x[:, :, None].expand(batch, heads, times, tokens, dim).reshape(batch, heads * times, tokens, dim)


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return causal(q, repeated(k, 3), repeated(v, 3))


def by_repeat_interleave(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return causal(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1))


def one_for_all(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return causal(q, k[:, :1].expand(2, 6, 9, 8), v[:, :1].expand(2, 6, 9, 8))


def keys_alone(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return causal(q, repeated(k, 3), v.repeat(1, 3, 1, 1))


@pytest.mark.parametrize(
    ("fn", "heads"), [(grouped, 2), (by_repeat_interleave, 2), (one_for_all, 1), (keys_alone, 6)], ids=str
)
@DTYPES
def test_grouped_heads(fn: Function, heads: int, dtype: torch.dtype) -> None:
    args = tuple(torch.randn(2, n, 9, 8).to(dtype) for n in (6, 2, 2))
    check(fn, args)
    graph = capture(fn, args)[0].graph
    made = recognised(fn, args)
    assert made is not None
    assert {graph.types[name].numel for name in made.inputs[1:]} == {2 * heads * 9 * 8}


# --- the shipped workloads ---

SMALL: dict[str, dict[str, int]] = {
    "attention_causal": {"batch": 2, "heads": 2, "tokens": 13, "head_dim": 8},
    "attention_float16": {"batch": 2, "heads": 2, "tokens": 13, "head_dim": 8},
    "attention_masked": {"batch": 2, "heads": 3, "tokens": 17, "head_dim": 8},
    "attention_alibi": {"batch": 2, "heads": 4, "tokens": 19, "head_dim": 16},
    "attention_window": {"batch": 1, "heads": 2, "tokens": 23, "head_dim": 8, "window": 5},
    "attention_grouped": {"batch": 2, "heads": 6, "kv_heads": 2, "tokens": 11, "head_dim": 8},
    "attention_decode": {"batch": 3, "heads": 6, "kv_heads": 2, "keys": 37, "head_dim": 8},
}


@pytest.mark.parametrize("name", SMALL)
@DTYPES
def test_the_workloads_that_sdpa_can_express(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    fn, args = getattr(workloads, name)("cpu", **SMALL[name])
    args = [arg.to(dtype) if arg.dtype in (torch.bfloat16, torch.float16) else arg for arg in args]
    if name == "attention_alibi" and dtype != torch.float32:  # its float32 bias would be rounded
        assert recognised(fn, args) is None
    else:
        check(fn, args)


def test_a_sequence_that_has_filled_nothing_decodes_to_nan() -> None:
    fn, (q, k, v, lengths) = workloads.attention_decode("cpu", **SMALL["attention_decode"])
    lengths[1] = 0
    assert check(fn, (q, k, v, lengths))[1].isnan().all()


def test_a_soft_cap_is_beyond_it() -> None:
    fn, args = workloads.attention_bias_softcap("cpu", batch=1, heads=2, tokens=9, head_dim=8)
    assert recognised(fn, args) is None


def test_the_plan_finds_the_call_by_its_name() -> None:
    graph = capture(masked, (*inputs(), torch.zeros(9, 9, dtype=torch.bool)))[0].graph
    assert library_call(graph, whole_group(graph), NAME) == call_of(graph)


# --- other functions ---


def turned(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores(q, k).transpose(-1, -2), -1) @ v


def over_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores(q, k), -2) @ v


def shifted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return weighted(scores(q, k) * 0.3 + 1.0, v)


def negative(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return weighted(scores(q, k) * -0.3, v)


def doubled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    found = scores(q, k)
    return weighted(found + found, v)


def gated(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    found = scores(q, k)
    return weighted(found + torch.sigmoid(found), v)


def from_the_bias(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    row, column = positions(q, k)
    return weighted((row - column) - scores(q, k), v)


def filled_with_a_number(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A score may be less than that."""
    row, column = positions(q, k)
    return weighted(scores(q, k).masked_fill(column > row, -100.0), v)


def hidden_by_the_lowest(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The mean of all values in the first row."""
    row, column = positions(q, k)
    return weighted(scores(q, k).masked_fill(column >= row, torch.finfo(q.dtype).min), v)


@each(
    turned, over_queries, shifted, negative, doubled, gated, from_the_bias, filled_with_a_number, hidden_by_the_lowest
)
def test_what_is_another_function_is_left_alone(fn: Function) -> None:
    assert recognised(fn, inputs()) is None


def test_a_factor_a_head_is_left_alone() -> None:
    def heads_scaled(q: Any, k: Any, v: Any, factor: Any) -> Any:
        return weighted(scores(q, k) * factor, v)

    assert recognised(heads_scaled, (*inputs(), torch.rand(3, 1, 1))) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_finer_bias_from_outside_is_not_rounded(dtype: torch.dtype) -> None:
    def careful(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return weighted(scores(q, k).float() + bias, v)

    assert recognised(careful, (*inputs(9, 9, dtype), torch.randn(9, 9))) is None


def test_weights_that_are_wanted_too_are_not_thrown_away() -> None:
    def both(q: Any, k: Any, v: Any) -> Tensors:
        weights = torch.softmax(scores(q, k), -1)
        return weights @ v, weights

    assert recognised(both, inputs(7, 11)) is None


def test_a_large_mask_of_positions_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autofuse.fusion.sdpa_masks.LARGEST", 50)
    made = recognised(window, inputs())
    assert made is not None
    assert dict(made.call.kwargs)["all_seen"] is False
    check(window, inputs())
    made = recognised(causal, inputs())
    assert made is not None
    assert dict(made.call.kwargs)["is_causal"] is True
