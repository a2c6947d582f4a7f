"""Graphs as JSON text and back, strictly: an unknown field, kind or type is an error, never skipped."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, cast

from autofuse.errors import PlanError
from autofuse.ir import graph as ir
from autofuse.ir.graph import ITEMSIZE, AtenCall, Composite, Expr, Form, Graph, Op, Ref, Symbol, TensorType

VERSION = 3
_FORMS: dict[str, type] = {
    kind.__name__: kind
    for kind in (ir.Map, ir.Reduce, ir.Contract, ir.Reshape, ir.Strided, ir.Take, ir.Concat, ir.Pad, ir.Iota)
}
_STRINGS = frozenset(
    {"fn", "operand", "compute", "left", "right", "left_dims", "right_dims", "out_dims", "indices", "layout"}
)
_INTS = frozenset({"dims", "starts", "steps", "before"})
_SYMBOLS = frozenset({"dtype", "device", "layout", "memory_format"})


def graph_to_json(graph: Graph) -> str:
    """Compact, with sorted keys: equal graphs give equal text."""
    return json.dumps(graph_to_data(graph), sort_keys=True, separators=(",", ":"))


def graph_to_data(graph: Graph) -> dict[str, Any]:
    return {
        "version": VERSION,
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "ops": [op_to_data(op) for op in graph.ops],
        "types": {name: [list(t.shape), t.dtype, list(t.strides)] for name, t in graph.types.items()},
        "composites": [{"op": op_to_data(c.op), "ops": list(c.ops)} for c in graph.composites],
        "frozen": sorted(graph.frozen),
    }


def op_to_data(op: Op) -> dict[str, Any]:
    return {
        "name": op.name,
        "call": call_to_data(op.call),
        "form": None if op.form is None else form_to_data(op.form),
        "outputs": list(op.outputs),
        "origin": op.origin,
    }


def call_to_data(call: AtenCall) -> dict[str, Any]:
    return {
        "target": call.target,
        "args": [_argument_to_data(a) for a in call.args],
        "kwargs": {name: _argument_to_data(a) for name, a in call.kwargs},
    }


def _argument_to_data(argument: ir.Argument) -> Any:
    match argument:
        case Ref(name):
            return {"ref": name}
        case Symbol(kind, name):
            return {"symbol": kind, "name": name}
        case tuple():
            return [_argument_to_data(a) for a in argument]
        case _:
            return scalar_to_data(argument)


def scalar_to_data(value: Any) -> Any:
    """JSON has neither infinities nor NaN."""
    if isinstance(value, float) and not (abs(value) < float("inf")):
        return {"float": repr(value)}
    return value


def form_to_data(form: Form) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": type(form).__name__}
    for field in dataclasses.fields(form):
        value = getattr(form, field.name)
        found[field.name] = expr_to_data(value) if field.name == "expr" else _plain(value)
    return found


def _plain(value: Any) -> Any:
    return [_plain(v) for v in cast("tuple[Any, ...]", value)] if isinstance(value, tuple) else scalar_to_data(value)


def expr_to_data(expr: Expr) -> Any:
    match expr:
        case ir.Arg(index, cast):
            return ["arg", index, cast]
        case ir.Lit(value):
            return ["lit", scalar_to_data(value)]
        case ir.Apply(fn, args):
            return ["apply", fn, *[expr_to_data(a) for a in args]]


# --- back ---


def graph_from_json(text: str) -> Graph:
    """Raises PlanError naming the fault: bad JSON, unknown fields or kinds, undefined or repeated values."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"the graph is no JSON: {error}") from None
    return graph_from_data(data)


def graph_from_data(data: Any) -> Graph:
    _fields(data, {"version", "inputs", "outputs", "ops", "types", "composites", "frozen"}, "graph")
    _require(data["version"] == VERSION, f"graph version {data['version']!r}; this autofuse reads {VERSION}")
    _require(isinstance(data["types"], dict), "types must be an object")
    types = {name: _type(name, item) for name, item in data["types"].items()}
    outputs = tuple(None if o is None else _string(o, "outputs") for o in _list(data["outputs"], "outputs"))
    composites = tuple(_composite(c) for c in _list(data["composites"], "composites"))
    ops = tuple(op_from_data(o) for o in _list(data["ops"], "ops"))
    frozen = frozenset(_strings(data["frozen"], "frozen"))
    graph = Graph(_strings(data["inputs"], "inputs"), ops, outputs, types, composites, frozen)
    _check(graph)
    return graph


def _check(graph: Graph) -> None:
    known = set(graph.inputs)
    _require(len(known) == len(graph.inputs), "inputs repeat a name")
    _require(graph.frozen <= known, "what is frozen is not an input")
    _require(len(graph.by_name) == len(graph.ops), "ops repeat a name")
    for op in graph.ops:
        for name in (*op.inputs, *(ir.operands(op.form) if op.form is not None else ())):
            _require(name in known, f"op {op.name} reads {name!r} before it is defined")
        for name in op.outputs:
            # Two ops may make one value: a library call stands beside the ops that it does the work of.
            _require(name not in graph.inputs, f"op {op.name} redefines the input {name!r}")
            known.add(name)
    for name in graph.outputs:
        _require(name is None or name in known, f"output {name!r} is not defined")
    for name in graph.inputs:
        _require(name in graph.types, f"value {name!r} has no type")
    for op in graph.ops:
        for name in op.outputs if op.form is not None else ():
            _require(name in graph.types, f"value {name!r} has no type")
    taken: set[str] = set()
    for composite in graph.composites:
        name = composite.op.name
        _require(name not in graph.by_name, f"composite {name} has the name of an op")
        _require(all(value in known for value in composite.op.inputs), f"composite {name} reads what is not defined")
        for part in composite.ops:
            _require(part in graph.by_name and part not in taken, f"composite {name} cannot stand for {part!r}")
            taken.add(part)


def _composite(data: Any) -> Composite:
    _fields(data, {"op", "ops"}, "composite")
    op = op_from_data(data["op"])
    _require(op.form is None, f"composite {op.name} has a form")
    return Composite(op, _strings(data["ops"], "ops of a composite"))


def op_from_data(data: Any) -> Op:
    _fields(data, {"name", "call", "form", "outputs", "origin"}, "op")
    form = None if data["form"] is None else form_from_data(data["form"])
    return Op(_string(data["name"], "op name"), call_from_data(data["call"]), form,
              _strings(data["outputs"], "op outputs"), _string(data["origin"], "origin"))  # fmt: skip


def call_from_data(data: Any) -> AtenCall:
    _fields(data, {"target", "args", "kwargs"}, "call")
    _require(isinstance(data["kwargs"], dict), "kwargs must be an object")
    kwargs = tuple((name, _argument(value)) for name, value in data["kwargs"].items())
    return AtenCall(_string(data["target"], "target"), tuple(_argument(a) for a in _list(data["args"], "args")), kwargs)


def _argument(data: Any) -> ir.Argument:
    match data:
        case None | str():
            return data
        case list():
            return tuple(_argument(item) for item in cast("list[Any]", data))
        case {"ref": str(name), **rest} if not rest:
            return Ref(name)
        case {"symbol": str(kind), "name": str(name), **rest} if not rest and kind in _SYMBOLS:
            return Symbol(kind, name)
        case _:
            return _scalar(data)


def _scalar(data: Any) -> ir.Scalar:
    match data:
        case bool() | int() | float():
            return data
        case {"float": "inf" | "-inf" | "nan" as text, **rest} if not rest:
            return float(text)
        case _:
            raise PlanError(f"{data!r} is no scalar")


def form_from_data(data: Any) -> Form:
    fields = cast("dict[str, Any]", data)
    _require(isinstance(data, dict) and fields.get("kind") in _FORMS, f"{fields!r} is no form")
    kind = _FORMS[fields["kind"]]
    names = [field.name for field in dataclasses.fields(kind)]
    _fields(fields, {"kind", *names}, fields["kind"])
    return kind(**{name: _field(name, fields[name]) for name in names})


def _field(name: str, value: Any) -> Any:
    if name == "expr":
        return expr_from_data(value)
    if name == "operands":
        return _strings(value, name)
    if name == "source":
        return tuple(None if v is None else _integer(v, name) for v in _list(value, name))
    if name in _INTS:
        return tuple(_integer(v, name) for v in _list(value, name))
    if name in _STRINGS:
        return _string(value, name)
    if name == "keepdim":
        _require(isinstance(value, bool), "keepdim must be true or false")
        return value
    return _integer(value, name) if name == "dim" else _scalar(value)


def expr_from_data(data: Any) -> Expr:
    match data:
        case ["arg", int(index), bool(cast)]:
            return ir.Arg(index, cast)
        case ["lit", value]:
            return ir.Lit(_scalar(value))
        case ["apply", str(fn), *args]:
            return ir.Apply(fn, tuple(expr_from_data(a) for a in args))
        case _:
            raise PlanError(f"{data!r} is no expression")


def _type(name: str, data: Any) -> TensorType:
    match data:
        case [list(), str(dtype), list()] if dtype in ITEMSIZE:
            shape, _, strides = cast("tuple[list[Any], str, list[Any]]", data)
            if len(shape) == len(strides):
                sizes, steps = (tuple(_integer(n, name) for n in part) for part in (shape, strides))
                return TensorType(sizes, dtype, steps)
        case _:
            pass
    raise PlanError(f"{data!r} is no type of {name}")


def _fields(data: Any, wanted: set[str], what: str) -> None:
    _require(isinstance(data, dict), f"a {what} must be an object, not {data!r}")
    odd = sorted(set(data) ^ wanted)
    _require(not odd, f"a {what} has missing or unknown fields: {', '.join(odd)}")


def _require(test: bool, message: str) -> None:
    if not test:
        raise PlanError(message)


def _string(value: Any, what: str) -> str:
    _require(isinstance(value, str), f"{what} must be text, not {value!r}")
    return value


def _integer(value: Any, what: str) -> int:
    _require(isinstance(value, int) and not isinstance(value, bool), f"{what} must be whole, not {value!r}")
    return value


def _list(value: Any, what: str) -> list[Any]:
    _require(isinstance(value, list), f"{what} must be a list, not {value!r}")
    return value


def _strings(value: Any, what: str) -> tuple[str, ...]:
    return tuple(_string(v, what) for v in _list(value, what))
