"""Scaled dot product attention as opaque operators, on every device: `autofuse::sdpa` for where the user calls it,
`autofuse::attention` for what is written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@cache
def register() -> Any:
    """Registers the operator once; returns it. The output is laid out as the query (dense, its order of dimensions),
    which is what FlashAttention and cuDNN return for the usual (batch, tokens, heads, dim) projections."""
    import torch

    def sdpa(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        result = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        wanted = _like(query, value)
        return result if result.stride() == wanted.stride() else wanted.copy_(result)

    sdpa.__annotations__ = {
        **dict.fromkeys(("query", "key", "value", "return"), torch.Tensor),
        "attn_mask": torch.Tensor | None,
        "dropout_p": float, "is_causal": bool, "scale": float | None, "enable_gqa": bool,
    }  # fmt: skip
    schema = (
        "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, "
        "bool is_causal=False, float? scale=None, bool enable_gqa=False) -> Tensor"
    )
    by_hand = torch.library.custom_op("autofuse::attention", _by_hand, mutates_args=(), schema=BY_HAND)
    by_hand.register_fake(
        lambda query, _key, value, *_terms, **_options: query.new_empty(
            (query.shape[:-2].numel(), query.shape[-2], value.shape[-1])
        )
    )
    operator = torch.library.custom_op("autofuse::sdpa", sdpa, mutates_args=(), schema=schema)
    operator.register_fake(lambda query, key, value, *_args, **_options: _like(query, value))  # noqa: ARG005 (as schema)
    return torch.ops.autofuse.sdpa.default


BY_HAND = (
    "(Tensor query, Tensor key, Tensor value, Tensor[] biases, Tensor[] hidden, Tensor[] seen, *, int[] heads, "
    "float[] factors=[], bool is_causal=False, bool all_seen=False, bool transposed=False, float scale=1.0) -> Tensor"
)


def _by_hand(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    biases: Sequence[torch.Tensor],
    hidden: Sequence[torch.Tensor],
    seen: Sequence[torch.Tensor],
    *,
    heads: Sequence[int],
    factors: Sequence[float] = (),
    is_causal: bool = False,
    all_seen: bool = False,
    transposed: bool = False,
    scale: float = 1.0,
) -> torch.Tensor:
    """softmax(scale * query @ key^T + masks) @ value as matmuls and a softmax would make it, of shape [prod(heads),
    queries, columns of value], contiguous.

    query: [..., queries, dim], its leading dimensions prod(heads) in all. key: [..., keys, dim] or, `transposed`,
    [..., dim, keys]; value: [..., keys, columns]; of these the leading dimensions may be a whole number of times fewer:
    each matrix then serves so many heads in succession. Masks as of `mask_of`; all_seen: they are known to leave no row
    hidden. Of other rows that nothing is left of, or with a bias that is NaN or +inf, the result is NaN, as a softmax
    makes it; SDPA has zeros or NaN there, by backend. Scores that are themselves infinite or NaN and hidden may differ.
    """
    import torch

    batch = heads[0]
    q, k, v = (_in_heads(one, batch) for one in (query, key.transpose(-1, -2) if transposed else key, value))
    mask = mask_of(biases, hidden, seen, factors, heads, query.dtype)
    gone = None
    if mask is not None and not all_seen:
        best = best_of(mask)
        gone = hidden_rows(best)
        mask = _within_range(mask, best)
    result = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, mask, is_causal=is_causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    if gone is not None:
        result = result.masked_fill_(gone, float("nan"))
    return result.reshape(-1, *result.shape[-2:]).contiguous()


def _in_heads(tensor: torch.Tensor, batch: int) -> torch.Tensor:
    """[batch, heads, rows, columns]; fused kernels want rows without gaps."""
    found = tensor.reshape(batch, -1, *tensor.shape[-2:])
    return found if found.stride(-1) == 1 else found.contiguous()


def mask_of(
    biases: Sequence[torch.Tensor],
    hidden: Sequence[torch.Tensor],
    seen: Sequence[torch.Tensor],
    factors: Sequence[float],
    heads: Sequence[int],
    dtype: torch.dtype,
) -> torch.Tensor | None:
    """SDPA's attn_mask, four-dimensional: where a score is seen as bool, or what is added to it as `dtype`.

    biases (each counts `factors` times), hidden and seen (bool: where a score is, or is not, taken out) broadcast
    against [*heads, queries, keys] from the right, or have all prod(heads) matrices in any leading shape.
    """
    import torch

    visible: torch.Tensor | None = None
    for test, tells in (*((one, False) for one in hidden), *((one, True) for one in seen)):
        shown = _over_heads(test if tells else ~test, heads)
        visible = shown if visible is None else visible & shown
    total: torch.Tensor | None = None
    for bias, factor in zip(biases, factors, strict=True):
        added = _over_heads(bias if factor == 1 else bias * factor, heads)
        total = added if total is None else total + added
    if total is None:
        return visible
    total = total.to(dtype)
    return total if visible is None else torch.where(visible, total, float("-inf"))


def _over_heads(term: torch.Tensor, heads: Sequence[int]) -> torch.Tensor:
    shape = (*(1,) * (2 - term.dim()), *term.shape)
    lead, area = shape[:-2], shape[-2:]
    if prod(lead) == prod(heads):
        return term.reshape(heads[0], -1, *area)
    lead = (1,) * (len(heads) - len(lead)) + lead
    rest = lead[1:] if all(n == 1 for n in lead[1:]) else tuple(heads[1:])
    return term.reshape(*lead, *area).expand(lead[0], *rest, *area).reshape(lead[0], -1, *area)


def best_of(mask: torch.Tensor) -> torch.Tensor:
    """Of each row [..., queries, 1] of an attn_mask: whether anything is seen, or the largest number."""
    return (mask.any if mask.dtype.itemsize == 1 else mask.amax)(-1, keepdim=True)


def hidden_rows(best: torch.Tensor) -> torch.Tensor:
    """Where a softmax is left with nothing: all is hidden, or a bias is NaN or +inf. best: as of `best_of`."""
    import torch

    return ~(best if best.dtype == torch.bool else torch.isfinite(best))


def _within_range(mask: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
    """The mask, its rows with nothing above half the lowest number of the dtype lifted to that.

    Kernels count in powers of two, which overflow at 0.69 of the range: pytorch/pytorch#110213 is about NaN from such a
    row, where a softmax gives every value the same weight. Any score is lost beside either number.
    """
    import torch

    if mask.dtype in (torch.bool, torch.float16):  # in the kernels' float32 there is room for all of float16
        return mask
    low = torch.finfo(mask.dtype).min / 2
    return mask - (best.clamp(max=low) - low)


def _like(query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    import torch

    if value.shape[-1] == query.shape[-1]:
        return torch.empty_like(query)
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


def replace(gm: torch.fx.GraphModule) -> None:
    """Puts the operator where a Dynamo graph calls F.scaled_dot_product_attention without dropout."""
    import torch

    operator = register()
    changed = False
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target is not torch.nn.functional.scaled_dot_product_attention:
            continue
        dropout = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)
        if dropout == 0:
            node.target = operator
            changed = True
    if changed:
        gm.recompile()
