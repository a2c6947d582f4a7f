"""Every shipped workload: its shapes, what capture leaves to the library, and that its numbers mean what it says."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from autofuse.capture.trace import capture
from autofuse.capture.workload import folder, list_workloads, load, resolve

SHIPPED = [w.name for w in list_workloads()]
SHAPES: dict[str, dict[str, dict[str, int]]] = {
    f"{file}.{name}": shapes
    for file, table in tomllib.loads((folder() / "shapes.toml").read_text()).items()
    for name, shapes in table.items()
}
OPAQUE = {
    "blocks.llama_attention": {"autofuse.sdpa.default": 1},
    "blocks.vit_block": {"autofuse.sdpa.default": 1},
    "blocks.resnet_block": {"aten.convolution.default": 2},
}
"""What stays a library call."""
TINY = {
    "batch": 2, "tokens": 9, "rows": 9, "columns": 37, "classes": 37, "keys": 19, "hidden": 32, "inner": 48,
    "in_features": 32, "out_features": 64, "features": 16, "channels": 8, "size": 5, "groups": 4, "group": 8,
    "heads": 4, "kv_heads": 2, "head_dim": 8, "experts": 8, "rank": 4, "block": 16, "window": 3, "width": 32,
    "kv_width": 8, "vocabulary": 50, "sources": 30, "time": 16,
}  # fmt: skip


def tiny(name: str, device: str = "cpu") -> tuple[Callable[..., Any], tuple[Any, ...]]:
    torch.manual_seed(0)
    return load(name, {dim: TINY[dim] for dim in resolve(name).shape}, device)


def run(name: str) -> tuple[torch.Tensor, ...]:
    fn, args = tiny(name)
    with torch.no_grad():
        found = fn(*args)
    return found if isinstance(found, tuple) else (found,)


def test_every_workload_has_a_small_a_typical_and_a_large_shape() -> None:
    assert sorted(SHAPES) == SHIPPED
    for name, shapes in SHAPES.items():
        assert shapes["typical"] == {}, name
        resolved = {label: resolve(name, dims).shape for label, dims in shapes.items()}
        assert len({tuple(shape.values()) for shape in resolved.values()}) == len(shapes) >= 3, name
        volume = {label: math.prod(shape.values()) for label, shape in resolved.items()}
        assert volume["small"] < volume["typical"] <= volume["large"], name


@pytest.mark.parametrize(("name", "label"), [(name, label) for name, shapes in SHAPES.items() for label in shapes])
def test_each_shape_is_captured_whole_and_understood(name: str, label: str) -> None:
    fn, args = load(name, SHAPES[name][label], "cuda:0", fake=True)
    (found,) = capture(fn, args, fullgraph=True)
    assert found.graph.outputs
    assert all(tensor.device.type == "cuda" for tensor in found.example_inputs)
    assert Counter(op.call.target for op in found.graph.ops if op.form is None) == OPAQUE.get(name, {})


@pytest.mark.parametrize("name", SHIPPED)
def test_numbers_are_finite(name: str) -> None:
    for value in run(name):
        assert value.numel()
        assert torch.isfinite(value.float()).all()


# --- that a workload computes what its name says ---


def close(mine: torch.Tensor, theirs: torch.Tensor, tolerance: float = 0.02) -> None:
    """Largest difference, as a part of the expected values' RMS."""
    wanted = theirs.double()
    assert mine.shape == wanted.shape
    assert float((mine.double() - wanted).abs().max() / wanted.square().mean().sqrt()) < tolerance


def test_layer_norm_backward_is_autograds() -> None:
    fn, (x, grad, mean, rstd, weight) = tiny("norms.layer_norm_backward")
    inputs = [t.double().requires_grad_() for t in (x, weight, torch.zeros_like(weight))]
    out = F.layer_norm(inputs[0], (x.shape[-1],), inputs[1], inputs[2], 1e-5)
    for mine, theirs in zip(
        fn(x, grad, mean, rstd, weight), torch.autograd.grad(out, inputs, grad.double()), strict=True
    ):
        close(mine, theirs, 0.05)


def _causal(rows: int, columns: int) -> torch.Tensor:
    return torch.ones(rows, columns, dtype=torch.bool).tril()


def _attention_references() -> dict[str, Callable[..., torch.Tensor]]:
    def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        gqa = q.shape[1] != k.shape[1]
        mask = mask.double() if mask is not None and mask.dtype != torch.bool else mask
        return F.scaled_dot_product_attention(q.double(), k.double(), v.double(), mask, enable_gqa=gqa)

    def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return sdpa(q, k, v, _causal(q.shape[-2], k.shape[-2]))

    def alibi(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        at = torch.arange(q.shape[-2])
        bias = slopes.double()[:, None, None] * (at[None] - at[:, None])
        return sdpa(q, k, v, bias.masked_fill(~_causal(len(at), len(at)), -math.inf))

    def window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen = _causal(q.shape[-2], k.shape[-2])
        return sdpa(q, k, v, seen & seen.triu(1 - TINY["window"]))

    def softcap(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        scores = q.double() @ k.double().mT / q.shape[-1] ** 0.5
        return torch.softmax(30 * torch.tanh(scores / 30) + bias.double(), -1) @ v.double()

    def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        seen = torch.arange(k.shape[-2]) < lengths[:, None, None, None]
        return sdpa(q.unsqueeze(2), k, v, seen).squeeze(2)

    return {
        "causal": causal, "grouped": causal, "float16": sdpa, "masked": sdpa, "alibi": alibi, "window": window,
        "bias_softcap": softcap, "decode": decode,
    }  # fmt: skip


@pytest.mark.parametrize("kind", _attention_references())
def test_attention_by_hand_is_sdpas(kind: str) -> None:
    fn, args = tiny(f"attention.attention_{kind}")
    close(fn(*args), _attention_references()[kind](*args), 0.06)


def test_int4_weights_are_neighbours_in_a_byte() -> None:
    fn, (x, packed, scale) = tiny("quantised.int4_linear")
    weight = torch.empty(packed.shape[0], 2 * packed.shape[1], dtype=torch.float64)
    weight[:, 0::2] = (packed & 15).double() - 8
    weight[:, 1::2] = (packed >> 4).double() - 8
    weight *= scale.double().repeat_interleave(TINY["group"], dim=1)
    close(fn(x, packed, scale), x.double() @ weight.T, 0.05)


@pytest.mark.parametrize(("name", "limit"), [("fp8_row", 0.07), ("fp8_block", 0.07), ("int8_row", 0.006)])
def test_quantised_norms_come_back(name: str, limit: float) -> None:
    """Half a step: 1/16 of the value in float8_e4m3fn, 1/254 of the largest in int8."""
    fn, (x, weight) = tiny(f"quantised.rms_norm_{name}")
    quantised, scale = fn(x, weight)
    wide = x.double()
    normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.double()
    parts = normal.view(*normal.shape[:1], scale.shape[-1], -1)
    back = quantised.double().view(parts.shape) * scale.double().unsqueeze(-1)
    reach = parts.abs() + 1e-2 if "fp8" in name else parts.abs().amax(-1, keepdim=True)
    assert ((back - parts).abs() <= limit * reach).all()
    assert scale.double().amax() < parts.abs().max()


def test_cross_entropy_variants_leave_padding_out() -> None:
    fn, (logits, target) = tiny("softmax.cross_entropy_z_loss")
    counts = target != -100
    assert not counts.all()
    log_z = torch.logsumexp(logits.double(), -1)
    plain = F.cross_entropy(logits.double(), target, reduction="none")
    close(fn(logits, target), torch.where(counts, plain + 1e-4 * log_z.square(), 0.0), 1e-4)
    fn, (logits, target) = tiny("softmax.cross_entropy_ignore")
    close(fn(logits, target), F.cross_entropy(logits.double()[counts], target[counts]))


def test_dropped_elements_add_nothing() -> None:
    fn, (x, weight, bias, keep, residual) = tiny("epilogues.linear_dropout_residual")
    stream, dropped = fn(x, weight, bias, keep, residual)
    assert torch.equal(dropped != 0, keep)
    assert torch.equal(stream[~keep], residual[~keep])


def test_token_shift_sees_the_token_before() -> None:
    fn, (x, _) = tiny("pointwise.token_shift")
    before = torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), 1)
    assert torch.equal(fn(x, torch.zeros(x.shape[-1], dtype=x.dtype)), before)
    assert torch.equal(fn(x, torch.ones(x.shape[-1], dtype=x.dtype)), x)
