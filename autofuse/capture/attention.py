"""`autofuse::sdpa`: scaled dot product attention as one opaque operator on every device."""

from __future__ import annotations

from functools import cache
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
    by_hand.register_fake(lambda query, _key, value, **_options: query.new_empty((*query.shape[:-1], value.shape[-1])))
    operator = torch.library.custom_op("autofuse::sdpa", sdpa, mutates_args=(), schema=schema)
    operator.register_fake(lambda query, key, value, *_args, **_options: _like(query, value))  # noqa: ARG005 (as schema)
    return torch.ops.autofuse.sdpa.default


BY_HAND = "(Tensor query, Tensor key, Tensor value, *, bool is_causal=False, float scale=1.0) -> Tensor"


def _by_hand(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, is_causal: bool = False, scale: float = 1.0
) -> torch.Tensor:
    """softmax(scale * query @ key) @ value of three-dimensional tensors, key transposed, as two bmm would make it. One
    head a batch: SDPA's fused kernels want four dimensions, and then lay their result out as a bmm does."""
    import torch

    heads = (query.unsqueeze(1), key.transpose(-1, -2).unsqueeze(1), value.unsqueeze(1))
    result = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=is_causal, scale=scale)
    return result.squeeze(1).contiguous()


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
