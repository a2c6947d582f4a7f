"""What eager would have called: each decomposition leaves, on the nodes that it makes, the call that it takes apart.

Decompositions run while the graph is traced, so the trace itself says which nodes came from which call; nothing has to
be recognised afterwards, and the graph is the one that it would be without this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any

MARK = "autofuse_call"
"""Key in `node.meta` of a decomposed node: its Call."""
_inside: ContextVar[bool] = ContextVar("autofuse_inside_a_decomposition", default=False)


@dataclass(frozen=True, eq=False)
class Call:
    """One ATen call with FX nodes for its tensors. outputs: the node of each result, None where it is no tensor."""

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[Any, ...]


def remembered(target: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition `rule` of `target`, which marks what it makes. Of nested ones the outermost call counts: it is
    what eager runs. Calls that write to an operand or draw random numbers leave no mark: they are no library's to
    repeat."""
    import torch
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    random = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable or random:
        return rule

    @wraps(rule)
    def run(*args: Any, **kwargs: Any) -> Any:
        mode: Any = get_proxy_mode()
        if mode is None or _inside.get():
            return rule(*args, **kwargs)
        graph = mode.tracer.graph
        last = next(iter(reversed(graph.nodes)), None)
        token = _inside.set(True)
        try:
            result = rule(*args, **kwargs)
        finally:
            _inside.reset(token)
        if result is not NotImplemented:
            _mark(mode.tracer, target, args, kwargs, result, last)
        return result

    return run


def _mark(tracer: Any, target: Any, args: Any, kwargs: Any, result: Any, last: Any) -> None:
    made: list[Any] = []
    for node in reversed(tracer.graph.nodes):
        if node is last:
            break
        made.append(node)
    try:
        given, named = _as_nodes(tracer, tuple(args)), _as_nodes(tracer, dict(kwargs))
    except KeyError:  # a tensor that is no value of the graph
        return
    results = result if isinstance(result, tuple | list) else (result,)
    call = Call(target, given, named, tuple(_node(tracer, value) for value in results))
    for node in made:
        node.meta[MARK] = call


def _as_nodes(tracer: Any, value: Any) -> Any:
    """Raises KeyError for a tensor that the tracer does not know."""
    import torch

    match value:
        case torch.Tensor():
            node = _node(tracer, value)
            if node is None:
                raise KeyError
            return node
        case tuple() | list():
            return tuple(_as_nodes(tracer, item) for item in value)
        case dict():
            return {name: _as_nodes(tracer, item) for name, item in value.items()}
        case _:
            return value


def _node(tracer: Any, value: Any) -> Any:
    import torch
    from torch.fx.experimental.proxy_tensor import get_proxy_slot

    slot: Any = get_proxy_slot(value, tracer, None) if isinstance(value, torch.Tensor) else None
    return None if slot is None else slot.proxy.node
