"""Runs the exact ATen calls of ops on torch tensors: the reference of every candidate and the library path."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from autofuse.errors import CaptureError
from autofuse.ir.graph import Argument, AtenCall, Op, Ref, Symbol

if TYPE_CHECKING:
    import torch

NAMESPACES = frozenset({"aten", "prims", "autofuse"})
_FLOATING = frozenset({"float16", "bfloat16", "float32", "float64"})


def run(
    ops: Iterable[Op], env: dict[str, torch.Tensor], *, dtype: str | None = None, device: str | None = None
) -> dict[str, torch.Tensor]:
    """Executes `ops` in order; env (value name -> tensor) gains their outputs and is returned.

    `dtype="float64"` is reference execution: floating tensors and floating dtype arguments become that dtype. `device`
    replaces device arguments. Raises CaptureError for a target outside aten, prims and autofuse.
    """
    import torch

    binder = _Binder(env, dtype, device)
    with torch.no_grad():
        for op in ops:
            result = invoke(op.call, binder)
            values = result if isinstance(result, tuple | list) else (result,)
            env.update(zip(op.outputs, values, strict=True))
    return env


def invoke(call: AtenCall, binder: Callable[[Argument], Any]) -> Any:
    target = resolve(call.target)
    return target(*[binder(a) for a in call.args], **{name: binder(a) for name, a in call.kwargs})


@lru_cache(maxsize=4096)
def resolve(target: str) -> Any:
    """The operator behind `namespace.packet.overload`. Raises CaptureError."""
    import torch

    parts = target.split(".")
    if len(parts) != 3 or parts[0] not in NAMESPACES:
        raise CaptureError(f"{target!r} is no operator of {', '.join(sorted(NAMESPACES))}")
    if parts[0] == "autofuse":
        from autofuse.capture import attention

        attention.register()
    found: Any = torch.ops
    for part in parts:
        try:
            found = getattr(found, part)
        except AttributeError:
            raise CaptureError(f"this torch has no operator {target!r}") from None
    if not isinstance(found, torch._ops.OpOverload):
        raise CaptureError(f"{target!r} is no operator")
    return found


def constant(argument: Argument, device: str) -> Any:
    """The Python value of an argument that reads no tensor. Raises CaptureError for a symbol that torch lacks."""
    import torch

    match argument:
        case Symbol("device", _):
            return torch.device(device)
        case Symbol("dtype" | "layout" | "memory_format" as kind, name) if isinstance(
            getattr(torch, name, None), getattr(torch, kind)
        ):
            return getattr(torch, name)
        case Symbol(kind, name):
            raise CaptureError(f"torch.{name} is no {kind}")
        case tuple():
            return [constant(item, device) for item in argument]
        case _:
            return argument


class _Binder:
    def __init__(self, env: dict[str, torch.Tensor], dtype: str | None, device: str | None) -> None:
        self.env, self.dtype, self.device = env, dtype, device

    def __call__(self, argument: Argument) -> Any:
        match argument:
            case Ref(name):
                return self.tensor(name)
            case Symbol():
                return self.symbol(argument)
            case tuple():
                return [self(item) for item in argument]
            case _:
                return argument

    def tensor(self, name: str) -> Any:
        import torch

        value = self.env[name]
        if self.dtype is not None and value.is_floating_point():
            return value.to(getattr(torch, self.dtype))
        return value

    def symbol(self, symbol: Symbol) -> Any:
        if symbol.kind == "dtype" and self.dtype and symbol.name in _FLOATING:
            symbol = Symbol("dtype", self.dtype)
        return constant(symbol, self.device or symbol.name)
