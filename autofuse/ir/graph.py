"""The operator graph of one captured function: ops over values, each with its exact ATen call and, where it is
understood, its form (map, reduce, contract, view, take, concat, iota). Data only: nothing here runs an op."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

Scalar = bool | int | float


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape, dtype (torch's name without prefix) and strides in elements."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]

    @property
    def numel(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def nbytes(self) -> int:
        return self.numel * ITEMSIZE[self.dtype]


ITEMSIZE = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint16": 2, "uint32": 4, "uint64": 8,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex32": 4, "complex64": 8, "complex128": 16,
}  # fmt: skip


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


# --- arguments of ATen calls: a value, a literal, a dtype, the graph's device, or a tuple of them ---


@dataclass(frozen=True, slots=True)
class Ref:
    """A value of the graph, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """A torch constant that JSON has no type for; kind is dtype, device, layout or memory_format."""

    kind: str
    name: str


Argument = Ref | Symbol | Scalar | str | None | tuple["Argument", ...]


@dataclass(frozen=True, slots=True)
class AtenCall:
    """`torch.ops.<target>(*args, **kwargs)`; target as in `aten.add.Tensor`."""

    target: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...] = ()


# --- scalar expressions of a map ---


@dataclass(frozen=True, slots=True)
class Arg:
    """The i-th operand; cast to the map's compute dtype unless `cast` is false (a condition, say)."""

    index: int
    cast: bool = True


@dataclass(frozen=True, slots=True)
class Lit:
    value: Scalar


@dataclass(frozen=True, slots=True)
class Apply:
    """A scalar function of `ir.functions` applied to expressions."""

    fn: str
    args: tuple[Expr, ...]


Expr = Arg | Lit | Apply


# --- forms ---


@dataclass(frozen=True, slots=True)
class Map:
    """A scalar expression of operands that broadcast against each other, right-aligned as in torch.

    Operands (and literals) are taken in `compute`, a dtype name; the result is converted to the op's own dtype.
    """

    operands: tuple[str, ...]
    expr: Expr
    compute: str


@dataclass(frozen=True, slots=True)
class Reduce:
    """fn (sum, max, min, prod, any, all, argmax, argmin) over `dims` (non-negative, sorted) of one operand.

    `compute` is the dtype that the operand is taken in. Argmax and argmin reduce exactly one dimension.
    """

    fn: str
    operand: str
    dims: tuple[int, ...]
    keepdim: bool
    compute: str


@dataclass(frozen=True, slots=True)
class Contract:
    """An einsum of two operands: one letter a dimension; letters absent from `out` are summed in float32."""

    left: str
    right: str
    left_dims: str
    right_dims: str
    out_dims: str


@dataclass(frozen=True, slots=True)
class Reshape:
    """Row-major reinterpretation of the operand's shape (view, flatten, unsqueeze, squeeze)."""

    operand: str


@dataclass(frozen=True, slots=True)
class Strided:
    """out[i0, i1, ...] = operand[...]: operand dimension d is read at `starts[d] + sum(i_o * steps[o])` over the output
    dimensions o with `source[o] == d`; source None is a broadcast dimension. (permute, expand, slice, select, flip,
    diagonal)"""

    operand: str
    source: tuple[int | None, ...]
    starts: tuple[int, ...]
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Take:
    """operand indexed along `dim` by the integer value `indices`.

    layout "select": the dimension is replaced by all dimensions of indices (embedding, index_select, index.Tensor with
    one index). layout "gather": as torch.gather, indices has the output's shape.
    """

    operand: str
    indices: str
    dim: int
    layout: str


@dataclass(frozen=True, slots=True)
class Concat:
    operands: tuple[str, ...]
    dim: int


@dataclass(frozen=True, slots=True)
class Pad:
    """Constant padding: `before[d]` elements of `value` ahead of dimension d (negative crops)."""

    operand: str
    before: tuple[int, ...]
    value: Scalar


@dataclass(frozen=True, slots=True)
class Iota:
    """start + step * i along the only dimension."""

    start: Scalar
    step: Scalar


Form = Map | Reduce | Contract | Reshape | Strided | Take | Concat | Pad | Iota
VIEWS = (Reshape, Strided)
"""Forms that are never code: they fold into the axes or the index expressions of whoever reads them."""


def operands(form: Form) -> tuple[str, ...]:
    """The values that a form reads, in order, repeats included."""
    match form:
        case Map() | Concat():
            return form.operands
        case Contract():
            return (form.left, form.right)
        case Take():
            return (form.operand, form.indices)
        case Iota():
            return ()
        case _:
            return (form.operand,)


@dataclass(frozen=True, slots=True)
class Op:
    """One operator. `outputs` names its values (one, save for multi-output ATen ops); `form` is None when autofuse
    does not generate it, and then only `call` says what it does."""

    name: str
    call: AtenCall
    form: Form | None
    outputs: tuple[str, ...]
    origin: str = ""
    """Where the user wrote it: `file.py:12 in forward: y = x + 1`, as far as known."""

    @property
    def is_view(self) -> bool:
        return isinstance(self.form, VIEWS)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Distinct values read, in order of first use."""
        found: dict[str, None] = {}
        for argument in (*self.call.args, *(value for _, value in self.call.kwargs)):
            for name in refs(argument):
                found[name] = None
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Composite:
    """One call of eager's that the graph has taken apart (a softmax, a norm, an addmm).

    ops: names of the graph's ops that came from it, views included. op: the call itself, which is no op of the graph.
    Those of its outputs that the graph has go by their names there; the others have fresh names and no type.
    """

    op: Op
    ops: tuple[str, ...]


def refs(argument: Argument) -> Iterator[str]:
    if isinstance(argument, Ref):
        yield argument.name
    elif isinstance(argument, tuple):
        for item in argument:
            yield from refs(item)


@dataclass(frozen=True)
class Graph:
    """Functional and topologically sorted. `outputs` may name inputs, repeat values, or be None. `composites` share no
    op. `frozen`: inputs whose numbers the user says never change (weights, in inference)."""

    inputs: tuple[str, ...]
    ops: tuple[Op, ...]
    outputs: tuple[str | None, ...]
    types: dict[str, TensorType] = field(hash=False)
    composites: tuple[Composite, ...] = ()
    frozen: frozenset[str] = frozenset()

    @cached_property
    def by_name(self) -> dict[str, Op]:
        return {op.name: op for op in self.ops}

    @cached_property
    def producer(self) -> dict[str, Op]:
        """The op behind each value that is not an input."""
        return {value: op for op in self.ops for value in op.outputs}

    @cached_property
    def consumers(self) -> dict[str, tuple[Op, ...]]:
        found: dict[str, list[Op]] = {}
        for op in self.ops:
            for value in op.inputs:
                found.setdefault(value, []).append(op)
        return {value: tuple(ops) for value, ops in found.items()}

    @cached_property
    def settled(self) -> frozenset[str]:
        """Values that follow from frozen inputs alone, these among them: what is computed of them once holds for every
        call. Not what an op without a form makes, which may be random, nor what the caller gets and may change."""
        if not self.frozen:
            return frozenset()
        returned = {self.base(value) for value in self.outputs if value is not None}
        found = set(self.frozen)
        for op in self.ops:
            if op.form is not None and found.issuperset(op.inputs) and not returned.intersection(op.outputs):
                found.update(op.outputs)
        return frozenset(found)

    def base(self, value: str) -> str:
        """The materialised value behind `value`: itself, or what its chain of views looks at."""
        op = self.producer.get(value)
        while op is not None and op.is_view:
            value = op.inputs[0]
            op = self.producer.get(value)
        return value
