"""Which inputs of a captured graph are frozen: what the user says of a function, and what capture makes of that."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

from autofuse.errors import UsageError

if TYPE_CHECKING:
    import torch

Frozen = bool | tuple[str, ...]
"""True: every nn.Parameter. Else names: of arguments (`weight`), or of a module's parameters and buffers as
`named_parameters` has them (`norm.weight`). A name that a graph lacks says nothing about it."""

FROZEN = "autofuse_frozen"
"""Key in the meta of an FX placeholder."""
_ATTRIBUTE = "__autofuse_frozen__"
_PART = re.compile(r"\['([^']+)'\]|\.(\w+)")
_HELD = ("_modules", "_parameters", "_buffers")

F = TypeVar("F", bound=Callable[..., Any])


def declare(fn: F, frozen: bool | Sequence[str] | None) -> F:
    """The function, with what tuning and compiling it take for frozen; None leaves that as it is. Raises UsageError."""
    if frozen is not None:
        try:
            setattr(fn, _ATTRIBUTE, checked(frozen))
        except AttributeError:
            name = getattr(fn, "__qualname__", type(fn).__qualname__)
            raise UsageError(f"frozen: {name} takes no attribute; give a module itself, or a Python function") from None
    return fn


def declared(fn: Callable[..., Any]) -> Frozen:
    """Nothing where nothing was declared."""
    return getattr(fn, _ATTRIBUTE, ())


def checked(frozen: object) -> Frozen:
    """Raises UsageError for what is neither a bool nor names."""
    if isinstance(frozen, bool):
        return frozen
    if isinstance(frozen, list | tuple | set | frozenset) and all(isinstance(name, str) for name in frozen):
        return tuple(sorted(frozen))
    raise UsageError(f"frozen={frozen!r}: expected True (every parameter) or a list of names")


def mark(gm: torch.fx.GraphModule, inputs: Sequence[bool]) -> None:
    """Marks the placeholders of an AOT graph, for convert. AOTAutograd hands inputs on one by one; where it made others
    of them (inputs that overlap and are changed in place), none is marked."""
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    if len(placeholders) == len(inputs):
        for node, is_frozen in zip(placeholders, inputs, strict=True):
            node.meta[FROZEN] = is_frozen


def frozen_inputs(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], frozen: Frozen) -> list[bool]:
    """For each input of Dynamo's graph, whether it is frozen."""
    import torch

    if isinstance(frozen, bool):
        return [frozen and isinstance(value, torch.nn.Parameter) for value in example_inputs]
    return [name in frozen for name in input_names(gm)]


def input_names(gm: torch.fx.GraphModule) -> list[str]:
    """Of Dynamo's graph, as the user knows its inputs."""
    return [_name(node) for node in gm.graph.nodes if node.op == "placeholder"]


def unknown(frozen: Frozen, names: Collection[str]) -> str:
    """What is wrong with names that no input has; nothing where there are none."""
    wrong = [] if isinstance(frozen, bool) else [name for name in frozen if name not in names]
    if not wrong:
        return ""
    near = [close for name in wrong for close in get_close_matches(name, sorted(names), 1)]
    there = ", ".join(near or sorted(names)[:12])
    return f"frozen: no tensor that the function computes with is called {', '.join(map(repr, wrong))}; {there}?"


def _name(node: torch.fx.Node) -> str:
    """As the user knows it: `L['self']._modules['norm']._parameters['weight']` is norm.weight, `L['x']` is x."""
    argument = node.meta.get("grapharg")
    source: Any = getattr(argument, "source", None)
    if source is None:
        return node.name
    name: Any = source.name
    text = str(name() if callable(name) else name)  # a method before torch 2.10
    parts = [key or attribute for key, attribute in _PART.findall(text)]
    held = next((i for i, part in enumerate(parts) if part in _HELD), 0)
    return ".".join(part for part in parts[held:] if part not in _HELD)
