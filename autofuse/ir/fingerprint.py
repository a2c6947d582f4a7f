"""Keys that say "the same computation": independent of value and axis names, of origins and of the device."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any, cast

from autofuse.ir import graph as ir
from autofuse.ir.graph import AtenCall, Form, Graph, Ref, Symbol, TensorType
from autofuse.ir.index import Index
from autofuse.ir.program import Program
from autofuse.ir.serial import expr_to_data, scalar_to_data


def graph_key(graph: Graph) -> str:
    """sha256 of the graph with values named by position: types with strides, forms and calls count, what eager would
    have called, for a plan may run that, and which inputs are frozen, for a plan may rely on that."""
    names = {name: f"v{i}" for i, name in enumerate(_values(graph))}
    ops = [[_call(op.call, names), _form(op.form, names), [names[v] for v in op.outputs]] for op in graph.ops]
    position = {op.name: i for i, op in enumerate(graph.ops)}
    calls = [
        [_call(c.op.call, names), [position[o] for o in c.ops], [names.get(v) for v in c.op.outputs]]
        for c in graph.composites
    ]
    found = [
        len(graph.inputs),
        ops,
        [None if v is None else names[v] for v in graph.outputs],
        [[names[v], *_type(graph.types[v])] for v in _values(graph) if v in graph.types],
    ]
    frozen = [i for i, name in enumerate(graph.inputs) if name in graph.frozen]
    return _digest([*found, *([calls] if calls else []), *([{"frozen": frozen}] if frozen else [])])


def program_key(program: Program) -> str:
    """sha256 of the program with values and axes named by first use; origins do not count."""
    namer = _Namer()
    nodes = [[type(node).__name__, *_fields(node, namer)] for node in program.nodes]
    stores = [["Store", *_fields(store, namer)] for store in program.stores]
    axes = sorted([namer.axis(axis.name), axis.size] for axis in program.axes)
    values = [[short, *_type(program.types[name])] for name, short in namer.values.items()]
    folded = [] if program.folded is None else [program_key(program.folded)]
    return _digest([nodes, stores, axes, values, *folded])


class _Namer:
    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.axes: dict[str, str] = {}

    def value(self, name: str) -> str:
        return self.values.setdefault(name, f"v{len(self.values)}")

    def axis(self, name: str) -> str:
        return self.axes.setdefault(name, f"a{len(self.axes)}")

    def index(self, index: Index) -> Any:
        """Terms in an order that no name decides: known axes first, then by coefficient."""
        terms = sorted(index.terms, key=lambda term: (isinstance(term[0], str), self._rank(term[0]), term[1]))
        named = [[var if isinstance(var, int) else self.axis(var), factor] for var, factor in terms]
        return [named, index.const]

    def _rank(self, var: str | int) -> int:
        if isinstance(var, int):
            return var
        known = self.axes.get(var)
        return int(known[1:]) if known else len(self.axes)


def _fields(item: Any, namer: _Namer) -> list[Any]:
    found: list[Any] = []
    for field in dataclasses.fields(item):
        value = getattr(item, field.name)
        match field.name:
            case "value":
                found.append(namer.value(value))
            case "index":
                found.append(namer.index(value) if isinstance(value, Index) else [namer.index(i) for i in value])
            case "axes":
                found.append([namer.axis(a) for a in value])
            case "expr":
                found.append(expr_to_data(value))
            case _:
                found.append(_listed(value))
    return found


def _values(graph: Graph) -> list[str]:
    return [*graph.inputs, *(value for op in graph.ops for value in op.outputs)]


def _type(kind: TensorType) -> list[Any]:
    return [list(kind.shape), kind.dtype, list(kind.strides)]


def _call(call: AtenCall, names: Mapping[str, str]) -> Any:
    kwargs = {name: _argument(value, names) for name, value in call.kwargs}
    return [call.target, [_argument(a, names) for a in call.args], kwargs]


def _argument(argument: ir.Argument, names: Mapping[str, str]) -> Any:
    match argument:
        case Ref(name):
            return {"ref": names[name]}
        case Symbol(kind, name):
            return {"symbol": kind, "name": "" if kind == "device" else name}
        case tuple():
            return [_argument(a, names) for a in argument]
        case _:
            return scalar_to_data(argument)


def _form(form: Form | None, names: Mapping[str, str]) -> Any:
    if form is None:
        return None
    found: list[Any] = [type(form).__name__]
    for field in dataclasses.fields(form):
        value = getattr(form, field.name)
        match field.name:
            case "operand" | "indices" | "left" | "right":
                found.append(names[value])
            case "operands":
                found.append([names[v] for v in value])
            case "expr":
                found.append(expr_to_data(value))
            case _:
                found.append(_listed(value))
    return found


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _listed(value: Any) -> Any:
    return list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else scalar_to_data(value)
