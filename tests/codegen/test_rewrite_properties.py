"""Laws of the rewrites, against float64 in Triton's interpreter: random sizes, tiles that do not fit them, and rows
that are all equal, empty (-inf), very large, rising from tile to tile, or hold inf or NaN. And where each rewrite is
declined: there the program has no such variant, and computes what it should without.

Rows are drawn by kind, so that ordinary ones beside an odd one show that it harms none of them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autofuse.codegen.triton import emit
from autofuse.fusion.rewrites import variants
from autofuse.schedule.schedule import Role, Schedule
from tests.codegen.test_rewrites import attention, close, half, loop_of, positions, program_of, run

Function = Callable[..., torch.Tensor]
Laws = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
INF, NAN = float("inf"), float("nan")

ROWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "ordinary": lambda x: x,
    "equal": lambda x: torch.full_like(x, 3.0),
    "empty": lambda x: torch.full_like(x, -INF),
    "large": lambda x: x.sign() * 6e4,
    "rising": lambda x: torch.arange(len(x)) * 0.5 - 20,
    "falling": lambda x: 20 - torch.arange(len(x)) * 0.5,
    "one of many": lambda x: torch.where(torch.arange(len(x)) == len(x) - 1, 3.0, -INF),
    "infinite": lambda x: torch.where(torch.arange(len(x)) == len(x) // 2, INF, x),
    "not a number": lambda x: torch.where(torch.arange(len(x)) == len(x) // 2, NAN, x),
}
FINITE = ("ordinary", "equal", "large", "rising", "falling")


@st.composite
def matrices(draw: st.DrawFn, kinds: tuple[str, ...] = tuple(ROWS)) -> torch.Tensor:
    """A few rows, each of a kind."""
    names = draw(st.lists(st.sampled_from(kinds), min_size=2, max_size=5))
    width = draw(st.integers(2, 150))
    plain = half(len(names), width, scale=draw(st.sampled_from([0.1, 1.0, 8.0])), seed=draw(st.integers(0, 99))).float()
    return torch.stack([ROWS[name](row) for name, row in zip(names, plain, strict=True)]).half()


BLOCKS = st.sampled_from([1, 16, 64])


def exact(fn: Function, *args: torch.Tensor) -> torch.Tensor:
    return fn(*(arg.double() for arg in args))


def rows_close(mine: torch.Tensor, wanted: torch.Tensor, limit: float = 3e-3) -> None:
    """Each row by itself, so that a large one hides no small one; inf where inf is due."""
    for row, right in zip(mine.reshape(len(mine), -1), wanted.reshape(len(wanted), -1), strict=True):
        assert torch.equal(row.isinf(), right.isinf())
        close(row.nan_to_num(NAN, 0, 0), right.nan_to_num(NAN, 0, 0), limit)


# --- online softmax and the guard of log-sum-exp ---


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.float(), -1).to(x.dtype)


def weighted(x: torch.Tensor) -> torch.Tensor:
    """Two sums that follow one maximum."""
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return (e * x.sigmoid()).sum(-1) / e.sum(-1)


def log_sum_exp(x: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(x, -1)


def guarded_by_a_choice(x: torch.Tensor) -> torch.Tensor:
    m = x.amax(-1, keepdim=True)
    safe = torch.where(m.abs() == INF, 0.0, m)
    return torch.log(torch.exp(x - safe).sum(-1)) + safe[:, 0]


@pytest.mark.parametrize("fn", [softmax, weighted, log_sum_exp, guarded_by_a_choice], ids=lambda fn: fn.__name__)
@Laws
@given(x=matrices(), block=BLOCKS)
def test_online(fn: Function, x: torch.Tensor, block: int) -> None:
    rows_close(run(fn, (x,), ("online",), block), exact(fn, x), 5e-3)


def other_shift(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x - x.sigmoid().amax(-1, keepdim=True)).sum(-1)


def shift_of_all(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x - x.amax()).sum(-1)


def least(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x - x.amin(-1, keepdim=True) - 4).sum(-1)


def squared(x: torch.Tensor) -> torch.Tensor:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return (e * e).sum(-1)


def and_one(x: torch.Tensor) -> torch.Tensor:
    return (torch.exp(x - x.amax(-1, keepdim=True)) + 1).sum(-1)


def times_the_maximum(x: torch.Tensor) -> torch.Tensor:
    m = x.amax(-1, keepdim=True)
    return (torch.exp(x - m) * m).sum(-1)


def guarded_by_one(x: torch.Tensor) -> torch.Tensor:
    m = x.amax(-1, keepdim=True)
    return torch.exp(x - m.masked_fill(m.abs() == INF, 1.0)).sum(-1)


def guarded_by_another(x: torch.Tensor) -> torch.Tensor:
    m = x.amax(-1, keepdim=True)
    return torch.exp(x - m.masked_fill(x.amin(-1, keepdim=True).abs() == INF, 0.0)).sum(-1)


NOT_ONLINE = (other_shift, shift_of_all, least, squared, and_one, times_the_maximum, guarded_by_one, guarded_by_another)


@pytest.mark.parametrize("fn", NOT_ONLINE, ids=lambda fn: fn.__name__)
def test_online_is_declined(fn: Function) -> None:
    x = half(5, 70)
    _, program = program_of(fn, (x,))
    assert [names for names in variants(program) if "online" in names] == []
    rows_close(run(fn, (x,), (), 16), exact(fn, x))


# --- terms that leave a sum ---


def sum_of_log_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(x.float(), -1).sum(-1)


def smoothed(x: torch.Tensor) -> torch.Tensor:
    """As label smoothing has it, written out with one shift for both."""
    f = x.float()
    m = f.amax(-1, keepdim=True)
    return (f - (m + torch.log(torch.exp(f - m).sum(-1, keepdim=True)))).sum(-1) * -0.1 - f.amin(-1)


@pytest.mark.parametrize("fn", [sum_of_log_softmax, smoothed], ids=lambda fn: fn.__name__)
@Laws
@given(x=matrices(), block=BLOCKS)
def test_apart(fn: Function, x: torch.Tensor, block: int) -> None:
    rows_close(run(fn, (x,), ("apart", "online"), block), exact(fn, x), 5e-3)


def test_terms_that_are_apart_leave_one_pass() -> None:
    _, program = program_of(sum_of_log_softmax, (half(5, 70),))
    passes: dict[tuple[str, ...], int] = {}
    for names, found in variants(program).items():
        schedule = Schedule(tuple((a.name, Role("loop", 32) if a.name in found.reduced else Role("grid", 1))
                                  for a in found.axes))  # fmt: skip
        passes[names] = emit(found, schedule, "kernel").source.count("in tl.range")
    assert passes == {(): 3, ("apart",): 2, ("online",): 2, ("apart", "online"): 1}


def less_the_mean(x: torch.Tensor) -> torch.Tensor:
    f = x.float()
    return (f - f.mean(-1, keepdim=True)).sum(-1)


def less_the_maximum_of_all(x: torch.Tensor) -> torch.Tensor:
    return (x.float() - x.float().amax()).sum(-1)


def less_the_logarithm_of_another_sum(x: torch.Tensor) -> torch.Tensor:
    f = x.float()
    return (f - torch.log(f.sigmoid().sum(-1, keepdim=True))).sum(-1)


def scaled_difference(x: torch.Tensor) -> torch.Tensor:
    return (torch.log_softmax(x.float(), -1) * x).sum(-1)


NOT_APART = (less_the_mean, less_the_maximum_of_all, less_the_logarithm_of_another_sum, scaled_difference)


@pytest.mark.parametrize("fn", NOT_APART, ids=lambda fn: fn.__name__)
def test_apart_is_declined(fn: Function) -> None:
    _, program = program_of(fn, (half(5, 70),))
    assert [names for names in variants(program) if "apart" in names] == []


def test_apart_is_declined_in_single_precision() -> None:
    """What all x have in common would be lost there."""
    _, program = program_of(sum_of_log_softmax, (torch.randn(5, 70),))
    assert [names for names in variants(program) if "apart" in names] == []


# --- moments ---


def layer_norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[1:])


def variance(x: torch.Tensor) -> torch.Tensor:
    return torch.var(x.float(), -1)


@pytest.mark.parametrize("fn", [layer_norm, variance], ids=lambda fn: fn.__name__)
@Laws
@given(x=matrices(("ordinary", "equal", "rising", "falling", "infinite", "not a number", "large")), block=BLOCKS)
def test_moments(fn: Function, x: torch.Tensor, block: int) -> None:
    rows_close(run(fn, (x,), ("moments",), block), exact(fn, x))


def around_half_the_mean(x: torch.Tensor) -> torch.Tensor:
    return ((x - 0.5 * x.mean(-1, keepdim=True)) ** 2).sum(-1)


def around_the_sum_over_another_count(x: torch.Tensor) -> torch.Tensor:
    return ((x - x.sum(-1, keepdim=True) * 0.02) ** 2).sum(-1)


def around_the_mean_of_all(x: torch.Tensor) -> torch.Tensor:
    return ((x - x.mean()) ** 2).sum(-1)


def around_the_mean_of_another(x: torch.Tensor) -> torch.Tensor:
    return ((x - x.sigmoid().mean(-1, keepdim=True)) ** 2).sum(-1)


def around_the_largest(x: torch.Tensor) -> torch.Tensor:
    return ((x - x.amax(-1, keepdim=True)) ** 2).sum(-1)


def third_moment(x: torch.Tensor) -> torch.Tensor:
    return ((x - x.mean(-1, keepdim=True)) ** 3).sum(-1)


def fourth_moment(x: torch.Tensor) -> torch.Tensor:
    return ((x - x.mean(-1, keepdim=True)).square() ** 2).sum(-1)


def covariance(x: torch.Tensor) -> torch.Tensor:
    y = torch.tanh(x)
    return ((x - x.mean(-1, keepdim=True)) * (y - y.mean(-1, keepdim=True))).sum(-1)


def largest_deviation(x: torch.Tensor) -> torch.Tensor:
    return ((x - x.mean(-1, keepdim=True)) ** 2).amax(-1)


NO_MOMENTS = (around_half_the_mean, around_the_sum_over_another_count, around_the_mean_of_all,
              around_the_mean_of_another, around_the_largest, third_moment, fourth_moment, covariance,
              largest_deviation)  # fmt: skip


@pytest.mark.parametrize("fn", NO_MOMENTS, ids=lambda fn: fn.__name__)
def test_moments_are_declined(fn: Function) -> None:
    x = half(5, 70)

    def wide(x: torch.Tensor) -> torch.Tensor:
        return fn(x.float())

    _, program = program_of(wide, (x,))
    assert [names for names in variants(program) if "moments" in names] == []
    rows_close(run(wide, (x,), (), 16)[:, None], exact(wide, x)[:, None], 1e-2)


# --- deferral ---


def norm_linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.linear(F.rms_norm(x, (x.shape[-1],), None, 1e-6), w)


def scaled(x: torch.Tensor, c: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * c.abs()[:, None]) @ w


@Laws
@given(x=matrices(("ordinary", "equal", "large", "rising", "empty", "infinite", "not a number")), block=BLOCKS,
       columns=st.integers(6, 40))  # fmt: skip
def test_a_norm_in_one_loop_with_its_product(x: torch.Tensor, block: int, columns: int) -> None:
    """Fewer rows than columns, so that the inputs differ in shape."""
    args = (x, half(columns, x.shape[1], seed=2))
    rows_close(run(norm_linear, args, ("deferred",), block), exact(norm_linear, *args), 5e-3)


@pytest.mark.parametrize(("dtype", "stays"), [("float16", True), ("bfloat16", False), ("float32", False)])
def test_a_product_that_may_not_fit_float16_keeps_its_factor(dtype: str, stays: bool) -> None:
    """Eager's operand is x * g / rms(x), of the size of g; without its factor it is x * g, which may pass 65504."""

    def fn(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(F.rms_norm(x, (x.shape[-1],), g, 1e-6), w)

    args = tuple(torch.randn(*shape).to(getattr(torch, dtype)) for shape in ((3, 64), (64,), (32, 64)))
    _, program = program_of(fn, args)
    assert (("deferred",) not in variants(program)) == stays


@Laws
@given(x=matrices(("ordinary", "equal", "rising", "empty", "infinite", "not a number")), block=BLOCKS)
def test_a_row_factor_after_its_product(x: torch.Tensor, block: int) -> None:
    factors = torch.tensor([0.5, NAN, 1e-3, 2.0, 0.0])[: len(x)].half()
    args = (x, factors, half(x.shape[1], 23, seed=2))
    rows_close(run(scaled, args, ("deferred",), block), exact(scaled, *args), 5e-3)


def test_an_infinite_row_factor_after_its_product() -> None:
    """inf * sum is inf where the sum of inf * x is inf - inf: no number either way, and other rows are as they were."""
    args = (half(3, 40), torch.tensor([1.0, INF, 2.0]).half(), half(40, 23, seed=2))
    mine, wanted = run(scaled, args, ("deferred",)), exact(scaled, *args)
    assert not mine[1].isfinite().any()
    assert not wanted[1].isfinite().any()
    rows_close(mine[::2], wanted[::2])


# --- loop ends at masks ---


def masked_attention(hidden: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Function:
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.T).float().masked_fill(hidden(*positions(q, k)), -INF)
        return torch.softmax(scores, -1).to(q.dtype) @ v

    return fn


@Laws
@given(
    queries=st.integers(2, 70), keys=st.integers(2, 70), shift=st.integers(-40, 40), width=st.integers(1, 50),
    loop=st.sampled_from([16, 32]), names=st.sampled_from([("deferred", "online"), ("online",), ()]),
    odd=st.sampled_from([0.0, 40.0, NAN]),
)  # fmt: skip
def test_masked_tiles(
    queries: int, keys: int, shift: int, width: int, loop: int, names: tuple[str, ...], odd: float
) -> None:
    """A band of any width anywhere: rows of which nothing is left included, and one query that is equal to all keys,
    very large or not a number."""
    fn = masked_attention(lambda i, j: (j > i + shift) | (i + shift - j >= width))
    q = half(queries + (queries == keys), 16)
    q[queries // 2] = odd
    args = (q, half(keys, 16, seed=1).abs(), half(keys, 24, seed=2))
    rows_close(run(fn, args, names, loop), exact(fn, *args), 1e-2)


def reversed_sign(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """-inf becomes inf."""
    i, j = positions(q, k)
    return torch.softmax((q @ k.T).float().masked_fill(j > i + 64, -INF) * -0.5, -1).to(q.dtype) @ v


def biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """What is added could be inf."""
    i, j = positions(q, k)
    scores = (q @ k.T).float()
    return torch.softmax(scores.masked_fill(j > i, -INF) + scores * 0.5, -1).to(q.dtype) @ v


def clamped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    i, j = positions(q, k)
    return torch.softmax((q @ k.T).float().masked_fill(j > i, -INF).clamp(min=-30.0), -1).to(q.dtype) @ v


def other_mask_for_the_sum(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The maximum and the exponentials leave out tiles that the last sum needs."""
    i, j = positions(q, k)
    scores = (q @ k.T).float()
    masked = scores.masked_fill(j > i, -INF)
    e = torch.exp(masked - masked.amax(-1, keepdim=True))
    return (e.to(q.dtype) @ v).float() + torch.exp(-scores.abs()).sum(-1, keepdim=True)


def every_third(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    i, j = positions(q, k)
    return torch.softmax((q @ k.T).float().masked_fill((i + j) % 3 == 1, -INF), -1).to(q.dtype) @ v


def two_at_a_time(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    i, j = positions(q, k)
    return torch.softmax((q @ k.T).float().masked_fill(2 * j > i, -INF), -1).to(q.dtype) @ v


def either(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Hidden where both hold: neither alone hides a tile."""
    i, j = positions(q, k)
    return torch.softmax((q @ k.T).float().masked_fill((j > i) & (j > 100), -INF), -1).to(q.dtype) @ v


WHOLE = (reversed_sign, biased, clamped, other_mask_for_the_sum, every_third, two_at_a_time, either)


@pytest.mark.parametrize("fn", WHOLE, ids=lambda fn: fn.__name__)
def test_the_loop_is_whole(fn: Function) -> None:
    names = ("deferred", "online") if fn is not other_mask_for_the_sum else ("online",)
    for line in loop_of(fn, names):
        assert "tl.range(0, SIZE_" in line, line
    args = (half(70, 16), half(130, 16, seed=1), half(130, 24, seed=2))
    rows_close(run(fn, args, names), exact(fn, *args), 1e-2)


def test_attention_without_a_mask_is_whole() -> None:
    assert all("tl.range(0, SIZE_" in line for line in loop_of(attention))
