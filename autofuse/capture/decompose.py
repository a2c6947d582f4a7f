"""Which composite ATen operators are taken apart, and which stay whole because a library or one map does them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from autofuse.capture.composite import remembered

WHOLE = ("addmm", "baddbmm", "bmm", "mm", "addmv", "addcmul", "addcdiv", "elu", "gelu", "hardsigmoid", "hardswish",
         "hardtanh", "leaky_relu", "lerp", "mish", "relu6", "silu", "softplus", "threshold", "threshold_backward",
         "masked_fill", "clamp_min", "clamp_max", "rsub", "floor_divide", "mean", "var", "var_mean", "embedding",
         "isnan", "isinf", "isfinite", "square", "arange", "split", "split_with_sizes", "unbind",
         "_scaled_dot_product_flash_attention_for_cpu", "logical_and", "logical_or", "logical_xor",
         "logical_not")  # fmt: skip
APART = ("_softmax", "_log_softmax", "native_layer_norm", "native_group_norm", "_native_batch_norm_legit_no_training",
         "native_batch_norm", "_native_batch_norm_legit", "nll_loss_forward", "nll_loss2d_forward", "_fused_rms_norm",
         "std", "std_mean", "logsumexp", "triu", "tril", "glu", "stack", "rotary", "fill", "addmv",
         "linalg_vector_norm")  # fmt: skip


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """torch's own, which compute half precision in float32 inside as eager kernels do; each marks what it makes."""
    import torch
    from torch._decomp import core_aten_decompositions, get_decompositions

    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    packets = [getattr(torch.ops.aten, name) for name in APART if hasattr(torch.ops.aten, name)]
    table.update(get_decompositions(packets))
    table[torch.ops.aten.repeat.default] = _repeat
    return {op: remembered(op, rule) for op, rule in table.items() if _packet(op) not in WHOLE}


def _repeat(x: Any, repeats: Sequence[int]) -> Any:
    """As views and one copy: each dimension behind one that says which repetition it is."""
    shape = [1] * (len(repeats) - x.dim()) + list(x.shape)
    pairs = list(zip(repeats, shape, strict=True))
    parts = x.reshape([n for _, size in pairs for n in (1, size)]).expand([n for pair in pairs for n in pair])
    return parts.clone().reshape([times * size for times, size in pairs])


def _packet(op: Any) -> str:
    return str(op).split(".")[1] if str(op).startswith("aten.") else str(op)
