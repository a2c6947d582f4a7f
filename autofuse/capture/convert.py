"""An AOTAutograd FX graph -> the operator graph. Operators that no rule knows keep their call and have form None."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autofuse.capture import pointwise
from autofuse.capture.aten import NAMESPACES
from autofuse.capture.composite import MARK, Call
from autofuse.capture.frozen import FROZEN
from autofuse.errors import CaptureError
from autofuse.ir.graph import (
    Apply,
    Arg,
    Argument,
    AtenCall,
    Composite,
    Expr,
    Form,
    Graph,
    Lit,
    Map,
    Op,
    Ref,
    Symbol,
    TensorType,
    contiguous_strides,
    refs,
)

if TYPE_CHECKING:
    import torch

Rule = Callable[["Site"], "Form | None"]
"""The form of one call, or None. A rule that emits the whole call as several ops ends with Site.done()."""

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)')


def from_fx(gm: torch.fx.GraphModule) -> Graph:
    """Raises CaptureError where the graph has dynamic shapes, complex literals or tensor constants of many elements."""
    return _Converter(gm).graph()


def host_constants(gm: torch.fx.GraphModule) -> set[Any]:
    """Nodes of numbers that the source writes (`x + torch.tensor(1.5)`, `y[0] = 1`): torch keeps them in host memory, a
    plan fills them in where the inputs are. None in a graph whose inputs or outputs are on several devices."""
    nodes = list(gm.graph.nodes)
    edges = [n for n in nodes if n.op == "placeholder"]
    edges += [n for n in nodes[-1].all_input_nodes if nodes[-1].op == "output"]
    if len({n.meta["val"].device for n in edges if _is_tensor(n.meta.get("val"))}) != 1:
        return set()
    found: set[Any] = set()
    for node in nodes:
        value = node.meta.get("val")
        if not _is_tensor(value) or value.device.type != "cpu" or value.numel() != 1:
            continue
        copied = str(node.target).startswith("aten.lift_fresh") and node.args[0] in found
        if node.op == "get_attr" or copied:
            found.add(node)
    return found


def _number(value: Any, name: str) -> Any:
    """The only element of a constant; under fake tensors' mode, where a capture may run, item() has no value."""
    from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

    if isinstance(value, FakeTensor):
        raise CaptureError(f"{name} is a tensor constant without a value; pass it as an argument or a buffer instead")
    with unset_fake_temporarily():
        return value.item()


class Site:
    """One FX call under conversion: its arguments by schema name, and the means to emit ops."""

    def __init__(self, converter: _Converter, node: torch.fx.Node) -> None:
        self.converter = converter
        self.node = node
        self.target = str(node.target)
        self.packet = self.target.split(".")[1]
        self.args: dict[str, Any] = _bind(node)
        self.value: Any = node.meta.get("val")
        self.operands: list[str] = []
        self.emitted = False

    # --- arguments, as pointwise.Arguments reads them ---

    def get(self, name: str, default: Any = None) -> Any:
        found = self.args.get(name)
        return default if found is None else found

    def ref(self, name: str) -> str:
        return self.converter.ref(self.args[name])

    def type(self, value: str) -> TensorType:
        return self.converter.types[value]

    @property
    def out(self) -> TensorType:
        return tensor_type(self.value)

    @property
    def name(self) -> str:
        return self.node.name

    # --- emission ---

    def emit(
        self,
        suffix: str,
        target: str,
        args: Sequence[Argument],
        form: Form | None,
        kind: TensorType,
        **kwargs: Argument,
    ) -> str:
        """One synthesised op; suffix "" is the node itself. Returns the value's name."""
        name = self.converter.unique(f"{self.name}_{suffix}") if suffix else self.name
        call = AtenCall(target, tuple(args), tuple(kwargs.items()))
        self.converter.add(Op(name, call, form, (name,), origin(self.node)), {name: kind})
        return name

    def done(self, value: str | None = None) -> None:
        """The node is converted; `value` is its result where that is not the node's name."""
        self.emitted = True
        if value is not None:
            self.converter.renamed[self.node] = value


class _Converter:
    def __init__(self, gm: torch.fx.GraphModule) -> None:
        self.gm = gm
        self.types: dict[str, TensorType] = {}
        self.ops: list[Op] = []
        self.names = {node.name for node in gm.graph.nodes}
        self.renamed: dict[Any, str] = {}
        self.parts: dict[Any, dict[int, str]] = {}
        self.constants = host_constants(gm)
        self.frozen: list[str] = []
        self.calls: dict[Call, list[str]] = {}
        """What eager would have called -> names of the ops made of it."""

    def graph(self) -> Graph:
        inputs: list[str] = []
        outputs: tuple[str | None, ...] = ()
        for node in self.gm.graph.nodes:
            before = len(self.ops)
            match node.op:
                case "placeholder":
                    inputs.append(node.name)
                    self.placeholder(node)
                case "get_attr":
                    self.constant(node)
                case "call_function":
                    self.call(node)
                case "output":
                    outputs = tuple(None if value is None else self.ref(value) for value in node.args[0])
                case _:
                    raise CaptureError(f"{node.name}: {node.op} has no place in an AOT graph")
            self.came_from(node, [op.name for op in self.ops[before:]])
        graph = _pruned(tuple(inputs), self.ops, outputs, self.types)
        return replace(graph, composites=self.composites(graph), frozen=frozenset(self.frozen))

    def came_from(self, node: Any, made: list[str]) -> None:
        """Ops of one node: of the call that a decomposition took apart, or of the node's own where that became several
        ops."""
        call = node.meta.get(MARK)
        if call is None and len(made) > 1:
            call = Call(node.target, tuple(node.args), dict(node.kwargs), (node,))
        if call is not None:
            self.calls.setdefault(call, []).extend(made)

    def composites(self, graph: Graph) -> tuple[Composite, ...]:
        found = (self.composite(graph, call, [name for name in made if name in graph.by_name])
                 for call, made in self.calls.items())  # fmt: skip
        return tuple(composite for composite in found if composite is not None)

    def composite(self, graph: Graph, call: Call, ops: list[str]) -> Composite | None:
        """None where eager's call is of no use: one op does as much, or the graph lacks an argument or every result."""
        target = str(call.target)
        namespace, packet, *_ = target.split(".")
        if sum(not graph.by_name[name].is_view for name in ops) < 2 or namespace not in NAMESPACES:
            return None
        try:
            args = tuple(self.argument(value) for value in call.args)
            kwargs = tuple((name, self.argument(value)) for name, value in sorted(call.kwargs.items()))
        except CaptureError:
            return None
        used = {value for op in graph.ops if op.name not in ops for value in op.inputs} | set(graph.outputs)
        own = used & {value for name in ops for value in graph.by_name[name].outputs}
        results: list[str] = []
        for i, value in enumerate(self.results(call)):
            here = value in own and value not in results
            results.append(value if here and value is not None else self.unique(f"{ops[-1]}_unused_{i}"))
        op = Op(self.unique(f"{ops[-1]}_{packet}"), AtenCall(target, args, kwargs), None, tuple(results),
                graph.by_name[ops[-1]].origin)  # fmt: skip
        there = own.intersection(results) and all(v in graph.inputs or v in graph.producer for v in op.inputs)
        return Composite(op, tuple(ops)) if there else None

    def results(self, call: Call) -> list[str | None]:
        """Names of the call's results, as far as the graph has them."""
        if len(call.outputs) == 1 and call.outputs[0] in self.parts:
            return list(self.parts[call.outputs[0]].values())
        return [None if node is None else self.ref(node) for node in call.outputs]

    def placeholder(self, node: Any) -> None:
        if not _is_tensor(node.meta.get("val")):
            raise CaptureError(f"input {node.name} is no tensor but {node.meta.get('val')!r}; sizes must be static")
        self.types[node.name] = tensor_type(node.meta["val"])
        if node.meta.get(FROZEN):
            self.frozen.append(node.name)

    @property
    def device(self) -> str:
        """Where the first input is."""
        inputs = [n.meta["val"] for n in self.gm.graph.nodes if n.op == "placeholder"]
        return inputs[0].device.type if inputs else "cpu"

    def constant(self, node: Any) -> None:
        """A tensor written in the source; one of a single element becomes a fill, others have no place in a plan."""
        value: Any = self.gm
        for part in node.target.split("."):
            value = getattr(value, part)
        if not _is_tensor(value) or value.numel() != 1 or value.is_complex():
            raise CaptureError(f"{node.target} is a tensor constant; pass it as an argument or a buffer instead")
        number = _number(value, node.target)
        kind = tensor_type(value)
        device = self.device if node in self.constants else value.device.type
        keywords = (("dtype", Symbol("dtype", kind.dtype)), ("device", Symbol("device", device)))
        form = Map((), Lit(number), kind.dtype)
        self.add(
            Op(node.name, AtenCall("aten.full.default", (kind.shape, number), keywords), form, (node.name,)),
            {node.name: kind},
        )

    def call(self, node: Any) -> None:
        import operator

        if node.target is operator.getitem:
            self.renamed[node] = self.item(node)
            return
        if not hasattr(node.target, "_schema"):
            raise CaptureError(f"{node.name}: {node.target} is no ATen operator; are the sizes static?")
        site = Site(self, node)
        form = self.form(site)
        if site.emitted:
            return
        values = site.value if isinstance(site.value, tuple | list) else (site.value,)
        outputs = (node.name,) if len(values) == 1 and _is_tensor(site.value) else self.part_names(node, len(values))
        kinds = {n: tensor_type(v) for n, v in zip(outputs, values, strict=True) if _is_tensor(v)}
        args, kwargs = self.arguments(node)
        self.add(Op(node.name, AtenCall(site.target, args, kwargs), form, outputs, origin(node)), kinds)

    def form(self, site: Site) -> Form | None:
        from autofuse.capture.structure import RULES

        values = [*site.node.all_input_nodes, site.node]
        tensors: list[Any] = [n.meta.get("val") for n in values if _is_tensor(n.meta.get("val"))]
        if any(t.is_complex() or t.is_quantized or t.is_sparse for t in tensors):
            return None
        devices = {n.meta["val"].device.type for n in values if _is_tensor(n.meta.get("val"))
                   and n not in self.constants}  # fmt: skip
        if len(devices) > 1:
            return None  # a number in host memory: no kernel can read it
        rule = RULES.get(site.packet)
        if rule is not None:
            return rule(site)
        return pointwise_form(site) if _is_tensor(site.value) else None

    def part_names(self, node: Any, count: int) -> tuple[str, ...]:
        names = {i: self.unique(f"{node.name}_{i}") for i in range(count)}
        self.parts[node] = names
        return tuple(names.values())

    def item(self, node: Any) -> str:
        source, index = node.args
        parts = self.parts.get(source)
        if parts is None:
            raise CaptureError(f"{node.name}: {source} has no parts")
        return parts[index]

    def ref(self, node: Any) -> str:
        name: str = node.name
        return self.renamed.get(node, name)

    def unique(self, name: str) -> str:
        candidate, count = name, 1
        while candidate in self.names:
            candidate, count = f"{name}_{count}", count + 1
        self.names.add(candidate)
        return candidate

    def add(self, op: Op, kinds: dict[str, TensorType]) -> None:
        self.ops.append(op)
        self.types.update(kinds)

    def arguments(self, node: Any) -> tuple[tuple[Argument, ...], tuple[tuple[str, Argument], ...]]:
        kwargs = tuple((name, self.argument(value)) for name, value in sorted(node.kwargs.items()))
        return tuple(self.argument(value) for value in node.args), kwargs

    def argument(self, value: Any) -> Argument:
        import torch

        match value:
            case torch.fx.Node():
                if not _is_tensor(value.meta.get("val")):
                    raise CaptureError(f"{value.name} is no tensor; sizes must be static")
                return Ref(self.ref(value))
            case None | bool() | int() | float() | str():
                return value
            case list() | tuple():
                return tuple(self.argument(item) for item in value)
            case torch.dtype() | torch.layout() | torch.memory_format():
                return symbol(value)
            case torch.device():
                return Symbol("device", value.type)
            case _:
                raise CaptureError(f"an argument {value!r} has no place in a graph")


def symbol(value: Any) -> Symbol:
    kind = {"dtype": "dtype", "layout": "layout", "memory_format": "memory_format"}[type(value).__name__]
    return Symbol(kind, str(value).removeprefix("torch."))


def tensor_type(value: Any) -> TensorType:
    shape = tuple(value.shape)
    if not all(isinstance(size, int) for size in shape):
        raise CaptureError(f"sizes must be static, not {shape}")
    strides = contiguous_strides(shape) if value.is_sparse else tuple(value.stride())
    return TensorType(shape, str(value.dtype).removeprefix("torch."), strides)


def register_compute(dtype: str) -> str:
    """The dtype that torch computes a pointwise operator on `dtype` in."""
    return "float32" if dtype in ("float16", "bfloat16") or dtype.startswith("float8") else dtype


def pointwise_form(site: Site) -> Form | None:
    if site.packet in pointwise.COPIES:
        source = site.ref(pointwise.COPIES[site.packet])
        return Map((source,), Arg(0), register_compute(site.type(source).dtype))
    if site.packet in pointwise.FILLS:
        fill = pointwise.FILLS[site.packet]
        value = site.args[fill] if isinstance(fill, str) else fill
        return Map((), Lit(value), register_compute(site.out.dtype)) if isinstance(value, bool | int | float) else None
    rule = pointwise.POINTWISE.get(site.packet)
    if rule is None or not _is_tensor(site.value):
        return None
    reader = _Reader(site)
    expr = rule(reader)
    power = site.packet == "pow" and isinstance(expr, Apply) and expr.fn in ("pow", "exp2")
    if power and "float" not in site.out.dtype:
        return None  # exp2 and log2 do not give exact integers
    compute = promoted(reader.tensors, reader.scalars) if site.packet in pointwise.COMPARES else site.out.dtype
    return Map(tuple(reader.operands), expr, register_compute(compute))


class _Reader:
    """pointwise.Arguments over one call."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.operands: list[str] = []
        self.tensors: list[Any] = []
        self.scalars: list[Any] = []

    def __call__(self, name: str) -> Expr:
        return self.read(name, cast=True)

    def condition(self, name: str) -> Expr:
        return self.read(name, cast=False)

    def value(self, name: str) -> object:
        return self.site.args.get(name)

    def read(self, name: str, *, cast: bool) -> Expr:
        value = self.site.args[name]
        if not hasattr(value, "meta"):
            if not isinstance(value, bool | int | float):
                raise CaptureError(f"{self.site.name}: {name}={value!r} is no real number")
            self.scalars.append(value)
            return Lit(value)
        operand = self.site.converter.ref(value)
        if operand not in self.operands:
            self.operands.append(operand)
        if cast:
            self.tensors.append(value.meta["val"])
        return Arg(self.operands.index(operand), cast)


def promoted(tensors: Sequence[Any], scalars: Sequence[Any]) -> str:
    """The dtype in which torch compares these."""
    from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    return str(elementwise_dtypes(*tensors, *scalars, type_promotion_kind=kind)[0]).removeprefix("torch.")


def origin(node: Any) -> str:
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return ""
    path, line, function, text = frames[-1]
    return f"{path.rsplit('/', 1)[-1]}:{line} in {function}: {text.strip()}"


def _bind(node: Any) -> dict[str, Any]:
    bound: dict[str, Any] = {}
    for position, argument in enumerate(node.target._schema.arguments):
        if position < len(node.args):
            bound[argument.name] = node.args[position]
        elif argument.name in node.kwargs:
            bound[argument.name] = node.kwargs[argument.name]
        else:
            bound[argument.name] = argument.default_value if argument.has_default_value() else None
    return bound


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _pruned(
    inputs: tuple[str, ...], ops: list[Op], outputs: tuple[str | None, ...], types: dict[str, TensorType]
) -> Graph:
    """Without ops that no output needs."""
    needed = {value for value in outputs if value is not None}
    kept: list[Op] = []
    for op in reversed(ops):
        if needed.intersection(op.outputs):
            kept.append(op)
            for argument in (*op.call.args, *(value for _, value in op.call.kwargs)):
                needed.update(refs(argument))
    kept.reverse()
    present = {*inputs, *(value for op in kept for value in op.outputs)}
    return Graph(inputs, tuple(kept), outputs, {name: kind for name, kind in types.items() if name in present})
