"""Small graphs written by hand, each with a float64 reference: what the generator is tested on without capture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from autofuse.ir.graph import (
    Apply,
    Arg,
    AtenCall,
    Concat,
    Contract,
    Form,
    Graph,
    Iota,
    Lit,
    Map,
    Op,
    Pad,
    Reduce,
    Ref,
    Reshape,
    Strided,
    Take,
    TensorType,
    contiguous_strides,
    operands,
)

Env = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    name: str
    graph: Graph
    reference: Callable[[Env], tuple[torch.Tensor, ...]]


def kind(*shape: int, dtype: str = "float16", strides: tuple[int, ...] | None = None) -> TensorType:
    return TensorType(shape, dtype, strides or contiguous_strides(shape))


def op(name: str, form: Form) -> Op:
    refs = tuple(Ref(value) for value in dict.fromkeys(operands(form)))
    return Op(name, AtenCall("aten.hand_written.default", refs), form, (name,), f"test.py: {name}")


def call(fn: str, *args: object) -> Apply:
    return Apply(fn, tuple(Arg(a) if isinstance(a, int) and not isinstance(a, bool) else a for a in args))  # type: ignore[misc]


def softmax(rows: int, columns: int) -> Case:
    types = {
        "x": kind(rows, columns), "top": kind(rows, 1, dtype="float32"), "e": kind(rows, columns, dtype="float32"),
        "total": kind(rows, 1, dtype="float32"), "y": kind(rows, columns),
    }  # fmt: skip
    ops = (
        op("top", Reduce("max", "x", (1,), True, "float32")),
        op("e", Map(("x", "top"), call("exp", call("sub", 0, 1)), "float32")),
        op("total", Reduce("sum", "e", (1,), True, "float32")),
        op("y", Map(("e", "total"), call("div", 0, 1), "float32")),
    )
    return Case("softmax", Graph(("x",), ops, ("y",), types), lambda env: (torch.softmax(env["x"].double(), 1),))


def layer_norm(rows: int, columns: int) -> Case:
    f32 = {"dtype": "float32"}
    types = {
        "x": kind(rows, columns),
        "w": kind(columns),
        "s": kind(rows, 1, **f32),
        "mean": kind(rows, 1, **f32),
        "d": kind(rows, columns, **f32),
        "q": kind(rows, columns, **f32),
        "v": kind(rows, 1, **f32),
        "y": kind(rows, columns),
    }
    scale = call("rsqrt", call("add", call("mul", 1, Lit(1.0 / columns)), Lit(1e-5)))
    ops = (
        op("s", Reduce("sum", "x", (1,), True, "float32")),
        op("mean", Map(("s",), call("mul", 0, Lit(1.0 / columns)), "float32")),
        op("d", Map(("x", "mean"), call("sub", 0, 1), "float32")),
        op("q", Map(("d",), call("mul", 0, 0), "float32")),
        op("v", Reduce("sum", "q", (1,), True, "float32")),
        op("y", Map(("d", "v", "w"), call("mul", call("mul", 0, scale), 2), "float32")),
    )

    def reference(env: Env) -> tuple[torch.Tensor, ...]:
        return (torch.nn.functional.layer_norm(env["x"].double(), (columns,), env["w"].double()),)

    return Case("layer_norm", Graph(("x", "w"), ops, ("y",), types), reference)


def residual_rms_norm(rows: int, columns: int) -> Case:
    """Two outputs, one of them also an intermediate."""
    types = {
        "x": kind(rows, columns), "r": kind(rows, columns), "w": kind(columns), "h": kind(rows, columns),
        "q": kind(rows, columns, dtype="float32"), "s": kind(rows, 1, dtype="float32"), "y": kind(rows, columns),
    }  # fmt: skip
    scale = call("rsqrt", call("add", call("mul", 1, Lit(1.0 / columns)), Lit(1e-5)))
    ops = (
        op("h", Map(("x", "r"), call("add", 0, 1), "float32")),
        op("q", Map(("h",), call("mul", 0, 0), "float32")),
        op("s", Reduce("sum", "q", (1,), True, "float32")),
        op("y", Map(("h", "s", "w"), call("mul", call("mul", 0, scale), 2), "float32")),
    )

    def reference(env: Env) -> tuple[torch.Tensor, ...]:
        h = env["x"].double() + env["r"].double()
        return h, h * torch.rsqrt((h * h).mean(1, keepdim=True) + 1e-5) * env["w"].double()

    return Case("residual_rms_norm", Graph(("x", "r", "w"), ops, ("h", "y"), types), reference)


def linear(rows: int, columns: int, depth: int) -> Case:
    types = {
        "x": kind(rows, depth), "w": kind(columns, depth), "wt": kind(depth, columns, strides=(1, depth)),
        "b": kind(columns), "mm": kind(rows, columns), "y": kind(rows, columns),
    }  # fmt: skip
    ops = (
        op("wt", Strided("w", (1, 0), (0, 0), (1, 1))),
        op("mm", Contract("x", "wt", "mk", "kn", "mn")),
        op("y", Map(("mm", "b"), call("relu", call("add", 0, 1)), "float32")),
    )

    def reference(env: Env) -> tuple[torch.Tensor, ...]:
        return (torch.relu(env["x"].double() @ env["w"].double().T + env["b"].double()),)

    return Case("linear", Graph(("x", "w", "b"), ops, ("y",), types), reference)


def chain(rows: int, inner: int, columns: int, depth: int) -> Case:
    types = {
        "x": kind(rows, depth), "w1": kind(depth, inner), "w2": kind(inner, columns), "a": kind(rows, inner),
        "h": kind(rows, inner), "y": kind(rows, columns),
    }  # fmt: skip
    ops = (
        op("a", Contract("x", "w1", "mk", "kn", "mn")),
        op("h", Map(("a",), call("relu", 0), "float32")),
        op("y", Contract("h", "w2", "mk", "kn", "mn")),
    )

    def reference(env: Env) -> tuple[torch.Tensor, ...]:
        return (torch.relu(env["x"].double() @ env["w1"].double()) @ env["w2"].double(),)

    return Case("chain", Graph(("x", "w1", "w2"), ops, ("y",), types), reference)


def column_sum(rows: int, columns: int) -> Case:
    types = {"x": kind(rows, columns), "y": kind(columns, dtype="float32")}
    ops = (op("y", Reduce("sum", "x", (0,), False, "float32")),)
    return Case("column_sum", Graph(("x",), ops, ("y",), types), lambda env: (env["x"].double().sum(0),))


def rotary(tokens: int, heads: int, width: int) -> Case:
    """Slices, negation, concatenation and a broadcast over heads."""
    half = width // 2
    types = {
        "x": kind(tokens, heads, width),
        "c": kind(tokens, width),
        "cb": kind(tokens, 1, width),
        "lo": kind(tokens, heads, half, strides=(heads * width, width, 1)),
        "hi": kind(tokens, heads, half, strides=(heads * width, width, 1)),
        "neg": kind(tokens, heads, half),
        "rot": kind(tokens, heads, width),
        "y": kind(tokens, heads, width),
    }
    same = (0, 1, 2)
    ops = (
        op("lo", Strided("x", same, (0, 0, 0), (1, 1, 1))),
        op("hi", Strided("x", same, (0, 0, half), (1, 1, 1))),
        op("neg", Map(("hi",), call("neg", 0), "float32")),
        op("rot", Concat(("neg", "lo"), 2)),
        op("cb", Reshape("c")),
        op("y", Map(("x", "rot", "cb"), call("add", call("mul", 0, 2), 1), "float32")),
    )

    def reference(env: Env) -> tuple[torch.Tensor, ...]:
        x, c = env["x"].double(), env["c"].double()[:, None]
        return (x * c + torch.cat([-x[..., half:], x[..., :half]], -1),)

    return Case("rotary", Graph(("x", "c"), ops, ("y",), types), reference)


def cross_entropy(rows: int, classes: int) -> Case:
    f32 = {"dtype": "float32"}
    types = {
        "x": kind(rows, classes), "t": kind(rows, dtype="int64"), "t2": kind(rows, 1, dtype="int64"),
        "top": kind(rows, 1, **f32), "e": kind(rows, classes, **f32), "s": kind(rows, 1, **f32),
        "picked": kind(rows, 1), "y": kind(rows, 1, **f32),
    }  # fmt: skip
    ops = (
        op("top", Reduce("max", "x", (1,), True, "float32")),
        op("e", Map(("x", "top"), call("exp", call("sub", 0, 1)), "float32")),
        op("s", Reduce("sum", "e", (1,), True, "float32")),
        op("t2", Reshape("t")),
        op("picked", Take("x", "t2", 1, "gather")),
        op("y", Map(("picked", "top", "s"), call("sub", call("add", 1, call("log", 2)), 0), "float32")),
    )

    def reference(env: Env) -> tuple[torch.Tensor, ...]:
        return (torch.nn.functional.cross_entropy(env["x"].double(), env["t"], reduction="none")[:, None],)

    return Case("cross_entropy", Graph(("x", "t"), ops, ("y",), types), reference)


def split_heads_norm(tokens: int, heads: int, width: int) -> Case:
    """A view cuts an axis in two; the sum runs over one part."""
    f32 = {"dtype": "float32"}
    types = {
        "x": kind(tokens, heads * width), "g": kind(tokens, heads * width), "a": kind(tokens, heads * width, **f32),
        "v": kind(tokens, heads, width, **f32), "s": kind(tokens, heads, 1, **f32), "y": kind(tokens, heads, width),
    }  # fmt: skip
    ops = (
        op("a", Map(("x", "g"), call("mul", 0, 1), "float32")),
        op("v", Reshape("a")),
        op("s", Reduce("max", "v", (2,), True, "float32")),
        op("y", Map(("v", "s"), call("sub", 0, 1), "float32")),
    )

    def reference(env: Env) -> tuple[torch.Tensor, ...]:
        v = (env["x"].double() * env["g"].double()).reshape(tokens, heads, width)
        return (v - v.amax(2, keepdim=True),)

    return Case("split_heads_norm", Graph(("x", "g"), ops, ("y",), types), reference)


def argmax(rows: int, columns: int) -> Case:
    types = {"x": kind(rows, columns), "y": kind(rows, dtype="int64")}
    ops = (op("y", Reduce("argmax", "x", (1,), False, "float32")),)
    return Case("argmax", Graph(("x",), ops, ("y",), types), lambda env: (env["x"].argmax(1),))


def padded_embedding(tokens: int, words: int, width: int) -> Case:
    types = {
        "i": kind(tokens, dtype="int64"), "table": kind(words, width), "e": kind(tokens, width),
        "p": kind(tokens + 3, width), "pos": kind(tokens + 3, dtype="int64"), "pc": kind(tokens + 3, 1, dtype="int64"),
        "y": kind(tokens + 3, width),
    }  # fmt: skip
    ops = (
        op("e", Take("table", "i", 0, "select")),
        op("p", Pad("e", (2, 0), 1.5)),
        op("pos", Iota(0, 1)),
        op("pc", Reshape("pos")),
        op("y", Map(("p", "pc"), call("add", 0, 1), "float32")),
    )

    def reference(env: Env) -> tuple[torch.Tensor, ...]:
        p = torch.nn.functional.pad(env["table"].double()[env["i"]], (0, 0, 2, 1), value=1.5)
        return (p + torch.arange(tokens + 3, device=p.device)[:, None],)

    return Case("padded_embedding", Graph(("i", "table"), ops, ("y",), types), reference)


CASES: tuple[Callable[[], Case], ...] = (
    lambda: softmax(13, 200),
    lambda: softmax(3, 1000),
    lambda: layer_norm(7, 300),
    lambda: residual_rms_norm(6, 257),
    lambda: linear(70, 40, 96),
    lambda: linear(1, 33, 65),
    lambda: chain(40, 32, 16, 24),
    lambda: column_sum(130, 70),
    lambda: rotary(9, 3, 16),
    lambda: cross_entropy(5, 400),
    lambda: split_heads_norm(11, 4, 32),
    lambda: argmax(9, 130),
    lambda: padded_embedding(9, 17, 40),
)


def inputs(case: Case, seed: int, scale: float = 1.0) -> Env:
    generator = torch.Generator().manual_seed(seed)
    env: Env = {}
    for name in case.graph.inputs:
        found = case.graph.types[name]
        if found.dtype == "int64":
            high = 17 if case.name == "padded_embedding" else 400
            env[name] = torch.randint(0, high, found.shape, generator=generator)
        else:
            env[name] = (torch.randn(found.shape, generator=generator) * scale).to(getattr(torch, found.dtype))
    return env
