"""Rules for ATen operators that are not pointwise: views, reductions, contractions, gathers, concatenations."""

from __future__ import annotations

from typing import Any

from autofuse.capture.convert import Rule, Site, register_compute, tensor_type
from autofuse.ir.graph import (
    Apply,
    Arg,
    Concat,
    Contract,
    Expr,
    Form,
    Iota,
    Lit,
    Map,
    Pad,
    Reduce,
    Ref,
    Reshape,
    Strided,
    Symbol,
    Take,
    TensorType,
    contiguous_strides,
)


def _dim(dim: int, rank: int) -> int:
    return dim + rank if dim < 0 else dim


def _dims(dims: Any, rank: int) -> tuple[int, ...]:
    if dims is None or dims == []:
        return tuple(range(rank))
    return tuple(sorted(_dim(d, rank) for d in ([dims] if isinstance(dims, int) else dims)))


# --- views ---


def _reshape(site: Site) -> Form:
    return Reshape(site.ref("self"))


def _strided(
    site: Site, source: list[int | None], starts: dict[int, int] | None = None, steps: dict[int, int] | None = None
) -> Form:
    """`starts` by operand dimension, `steps` by output dimension."""
    operand = site.ref("self")
    rank = len(site.type(operand).shape)
    start = tuple((starts or {}).get(d, 0) for d in range(rank))
    return Strided(operand, tuple(source), start, tuple((steps or {}).get(o, 1) for o in range(len(source))))


def _rank(site: Site) -> int:
    return len(site.type(site.ref("self")).shape)


def _permute(site: Site) -> Form:
    return _strided(site, [_dim(d, _rank(site)) for d in site.args["dims"]])


def _transpose(site: Site) -> Form:
    rank = _rank(site)
    order: list[int | None] = list(range(rank))
    a, b = _dim(site.args["dim0"], rank), _dim(site.args["dim1"], rank)
    order[a], order[b] = b, a
    return _strided(site, order)


def _t(site: Site) -> Form:
    return _strided(site, list(reversed(range(_rank(site)))))


def _expand(site: Site) -> Form:
    shape, out = site.type(site.ref("self")).shape, site.out.shape
    lead = len(out) - len(shape)
    source: list[int | None] = [None] * lead
    source += [d if shape[d] == out[d + lead] else None for d in range(len(shape))]
    return _strided(site, source)


def _slice(site: Site) -> Form:
    shape = site.type(site.ref("self")).shape
    dim = _dim(site.get("dim", 0), len(shape))
    start = site.get("start", 0)
    start = min(max(start + shape[dim] if start < 0 else start, 0), shape[dim])
    return _strided(site, list(range(len(shape))), {dim: start}, {dim: site.get("step", 1)})


def _select(site: Site) -> Form:
    shape = site.type(site.ref("self")).shape
    dim = _dim(site.args["dim"], len(shape))
    return _strided(site, [d for d in range(len(shape)) if d != dim], {dim: _dim(site.args["index"], shape[dim])})


def _flip(site: Site) -> Form:
    shape = site.type(site.ref("self")).shape
    dims = _dims(site.args["dims"], len(shape)) if site.args["dims"] else ()
    return _strided(site, list(range(len(shape))), {d: shape[d] - 1 for d in dims}, dict.fromkeys(dims, -1))


def _split(site: Site) -> Form | None:
    """Each part is a slice of its own."""
    operand = site.ref("self")
    kind = site.type(operand)
    dim = _dim(site.get("dim", 0), len(kind.shape))
    parts: dict[int, str] = {}
    at = 0
    for i, part in enumerate(site.value):
        size = part.shape[dim]
        starts = tuple(at if d == dim else 0 for d in range(len(kind.shape)))
        form = Strided(operand, tuple(range(len(kind.shape))), starts, (1,) * len(kind.shape))
        parts[i] = site.emit(str(i), "aten.slice.Tensor", (Ref(operand), dim, at, at + size), form, tensor_type(part))
        at += size
    site.converter.parts[site.node] = parts
    site.done()
    return None


def _unbind(site: Site) -> Form | None:
    operand = site.ref("self")
    rank = len(site.type(operand).shape)
    dim = _dim(site.get("dim", 0), rank)
    parts: dict[int, str] = {}
    for i, part in enumerate(site.value):
        starts = tuple(i if d == dim else 0 for d in range(rank))
        form = Strided(operand, tuple(d for d in range(rank) if d != dim), starts, (1,) * (rank - 1))
        parts[i] = site.emit(str(i), "aten.select.int", (Ref(operand), dim, i), form, tensor_type(part))
    site.converter.parts[site.node] = parts
    site.done()
    return None


def _as_strided(site: Site) -> Form | None:
    """Only where it is a reinterpretation of a contiguous operand."""
    operand = site.ref("self")
    kind, out = site.type(operand), site.out
    whole = kind.numel == out.numel and not site.get("storage_offset", 0)
    plain = kind.strides == contiguous_strides(kind.shape) and out.strides == contiguous_strides(out.shape)
    return Reshape(operand) if whole and plain else None


# --- reductions ---


def _reduce(fn: str) -> Rule:
    def rule(site: Site) -> Form | None:
        operand = site.ref("self")
        kind = site.type(operand)
        if not isinstance(site.value, type(site.node.all_input_nodes[0].meta["val"])):
            return None
        if kind.numel == 0 or not kind.shape:
            return None
        dims = _dims(site.args.get("dim"), len(kind.shape))
        compute = site.out.dtype if fn in ("sum", "prod") else kind.dtype
        compute = "bool" if fn in ("any", "all") else register_compute(compute)
        return Reduce(fn, operand, dims, bool(site.get("keepdim", False)), compute)

    return rule


def _arg(fn: str) -> Rule:
    def rule(site: Site) -> Form | None:
        operand = site.ref("self")
        kind = site.type(operand)
        dim = site.args.get("dim")
        if kind.numel == 0 or not kind.shape or (dim is None and len(kind.shape) != 1):
            return None
        return Reduce(
            fn, operand, _dims(dim, len(kind.shape)), bool(site.get("keepdim", False)), register_compute(kind.dtype)
        )

    return rule


def _extreme(fn: str, arg: str) -> Rule:
    """max and min: of everything one Reduce, along a dimension two ops, between two tensors a map."""

    def rule(site: Site) -> Form | None:
        operand = site.ref("self")
        kind = site.type(operand)
        if kind.numel == 0 or not kind.shape:
            return None
        if site.target.endswith(".default"):
            return _reduce(fn)(site)
        if not site.target.endswith(".dim"):
            return None
        dim, keepdim = _dim(site.args["dim"], len(kind.shape)), bool(site.args["keepdim"])
        compute = register_compute(kind.dtype)
        values, indices = (tensor_type(v) for v in site.value)
        first = site.emit("values", f"aten.a{fn}.default", (Ref(operand), (dim,), keepdim),
                          Reduce(fn, operand, (dim,), keepdim, compute), values)  # fmt: skip
        second = site.emit("indices", f"aten.{arg}.default", (Ref(operand), dim, keepdim),
                           Reduce(arg, operand, (dim,), keepdim, compute), indices)  # fmt: skip
        site.converter.parts[site.node] = {0: first, 1: second}
        site.done()
        return None

    return rule


class _Moments:
    """Emits means and centred second moments as ops in float32 (float64 stays)."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.operand = site.ref("self")
        self.kind = site.type(self.operand)
        self.dims = _dims(site.args.get("dim"), len(self.kind.shape))
        self.compute = "float64" if self.kind.dtype == "float64" else "float32"
        self.count = 1
        for d in self.dims:
            self.count *= self.kind.shape[d]

    @property
    def usable(self) -> bool:
        return self.kind.numel > 0 and bool(self.kind.shape) and self.kind.dtype.startswith(("float", "bfloat"))

    def small(self, keepdim: bool) -> TensorType:
        sizes = [1 if d in self.dims else n for d, n in enumerate(self.kind.shape) if keepdim or d not in self.dims]
        return TensorType(tuple(sizes), self.compute, contiguous_strides(tuple(sizes)))

    def sum(self, suffix: str, operand: str, keepdim: bool) -> str:
        form = Reduce("sum", operand, self.dims, keepdim, self.compute)
        args = (Ref(operand), self.dims, keepdim)
        dtype = Symbol("dtype", self.compute)
        return self.site.emit(suffix, "aten.sum.dim_IntList", args, form, self.small(keepdim), dtype=dtype)

    def scale(self, suffix: str, operand: str, factor: float, kind: TensorType) -> str:
        form = Map((operand,), Apply("mul", (Arg(0), Lit(factor))), self.compute)
        return self.site.emit(suffix, "aten.mul.Scalar", (Ref(operand), factor), form, kind)

    def finish(self, suffix: str, operand: str, factor: float, keepdim: bool, kind: TensorType) -> str:
        """operand * factor in the dtype of `kind`, rounded once."""
        if kind.dtype == self.compute:
            return self.scale(suffix, operand, factor, self.small(keepdim))
        wide = self.scale(f"{suffix}_wide" if suffix else "wide", operand, factor, self.small(keepdim))
        form = Map((wide,), Arg(0), self.compute)
        return self.site.emit(
            suffix, "prims.convert_element_type.default", (Ref(wide), Symbol("dtype", kind.dtype)), form, kind
        )

    def variance(self) -> tuple[str, str]:
        """(centred second moment summed, mean with kept dimensions), two passes: E[x^2] - E[x]^2 cancels."""
        mean = self.scale("mean", self.sum("sum", self.operand, True), 1.0 / self.count, self.small(True))
        full = TensorType(self.kind.shape, self.compute, self.kind.strides)
        sub = Map((self.operand, mean), Apply("sub", (Arg(0), Arg(1))), self.compute)
        centred = self.site.emit("centred", "aten.sub.Tensor", (Ref(self.operand), Ref(mean)), sub, full)
        product = Map((centred,), Apply("mul", (Arg(0), Arg(0))), self.compute)
        square = self.site.emit("square", "aten.mul.Tensor", (Ref(centred), Ref(centred)), product, full)
        return self.sum("total", square, bool(self.site.get("keepdim", False))), mean


def _mean(site: Site) -> Form | None:
    moments = _Moments(site)
    if not moments.usable:
        return None
    keepdim = bool(site.get("keepdim", False))
    total = moments.sum("sum", moments.operand, keepdim)
    site.done(moments.finish("", total, 1.0 / moments.count, keepdim, site.out))
    return None


def _correction(site: Site) -> float:
    if "correction" in site.args:
        return float(1 if site.args["correction"] is None else site.args["correction"])
    return float(bool(site.get("unbiased", True)))


def _var(site: Site) -> Form | None:
    moments = _Moments(site)
    divisor = moments.count - _correction(site)
    if not moments.usable or divisor <= 0:
        return None
    total, _ = moments.variance()
    site.done(moments.finish("", total, 1.0 / divisor, bool(site.get("keepdim", False)), site.out))
    return None


def _var_mean(site: Site) -> Form | None:
    moments = _Moments(site)
    divisor = moments.count - _correction(site)
    if not moments.usable or divisor <= 0:
        return None
    keepdim = bool(site.get("keepdim", False))
    total, mean = moments.variance()
    variance_type, mean_type = (tensor_type(v) for v in site.value)
    variance = moments.finish("var", total, 1.0 / divisor, keepdim, variance_type)
    if mean_type.dtype != moments.compute:
        wide = TensorType(moments.small(True).shape, mean_type.dtype, moments.small(True).strides)
        dtype = Symbol("dtype", mean_type.dtype)
        mean = site.emit(
            "narrow", "prims.convert_element_type.default", (Ref(mean), dtype), Map((mean,), Arg(0), "float32"), wide
        )
    if not keepdim:
        mean = site.emit("squeezed", "aten.view.default", (Ref(mean), mean_type.shape), Reshape(mean), mean_type)
    site.converter.parts[site.node] = {0: variance, 1: mean}
    site.done()
    return None


# --- contractions ---


def _contract(left: str, right: str, letters: tuple[str, str, str]) -> Rule:
    def rule(site: Site) -> Form | None:
        a, b = site.ref(left), site.ref(right)
        if not site.out.dtype.startswith(("float", "bfloat")):
            return None
        return Contract(a, b, *letters)

    return rule


def _biased(target: str, left: str, right: str, letters: tuple[str, str, str]) -> Rule:
    """addmm and the like: the product, then the sum; fusion puts the library's one call together again."""

    def rule(site: Site) -> Form | None:
        alpha, beta = site.get("alpha", 1), site.get("beta", 1)
        if not site.out.dtype.startswith(("float", "bfloat")) or (alpha != 1 and beta != 1):
            return None  # with both factors the sum is no one call of aten.add
        a, b, bias, out = site.ref(left), site.ref(right), site.ref("self"), site.out
        kind = TensorType(out.shape, out.dtype, contiguous_strides(out.shape))
        product = site.emit("", target, (Ref(a), Ref(b)), Contract(a, b, *letters), kind)
        if beta == 0:  # then torch does not look at the first operand, NaN or not
            site.done()
            return None
        first, second, factor = (bias, product, alpha) if alpha != 1 else (product, bias, beta)
        term: Expr = Arg(1) if factor == 1 else Apply("mul", (Arg(1), Lit(factor)))
        options = {} if factor == 1 else {"alpha": factor}
        form = Map((first, second), Apply("add", (Arg(0), term)), register_compute(out.dtype))
        site.done(site.emit("bias", "aten.add.Tensor", (Ref(first), Ref(second)), form, out, **options))
        return None

    return rule


# --- gathers, concatenations, positions ---


def _embedding(site: Site) -> Form:
    return Take(site.ref("weight"), site.ref("indices"), 0, "select")


def _index_select(site: Site) -> Form:
    return Take(site.ref("self"), site.ref("index"), _dim(site.args["dim"], _rank(site)), "select")


def _gather(site: Site) -> Form | None:
    if not _rank(site):
        return None
    return Take(site.ref("self"), site.ref("index"), _dim(site.args["dim"], _rank(site)), "gather")


def _index(site: Site) -> Form | None:
    chosen = [(d, node) for d, node in enumerate(site.args["indices"]) if node is not None]
    if len(chosen) != 1 or chosen[0][1].meta["val"].dtype not in _integers():
        return None
    dim, node = chosen[0]
    return Take(site.ref("self"), site.converter.ref(node), dim, "select")


def _integers() -> tuple[Any, ...]:
    import torch

    return (torch.int32, torch.int64)


def _cat(site: Site) -> Form | None:
    nodes = site.args["tensors"]
    values = [node.meta["val"] for node in nodes]
    if any(v.dtype != site.value.dtype or v.numel() == 0 or v.dim() != site.value.dim() for v in values):
        return None
    return Concat(tuple(site.converter.ref(node) for node in nodes), _dim(site.get("dim", 0), site.value.dim()))


def _pad(site: Site) -> Form:
    pad = site.args["pad"]
    before = [0] * _rank(site)
    for i in range(len(pad) // 2):
        before[-1 - i] = pad[2 * i]
    return Pad(site.ref("self"), tuple(before), site.get("value", 0))


def _arange(site: Site) -> Form:
    return Iota(site.get("start", 0), site.get("step", 1))


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "alias", "detach", "flatten"), _reshape
    ),
    "permute": _permute, "transpose": _transpose, "t": _t, "expand": _expand, "slice": _slice, "select": _select,
    "as_strided": _as_strided, "flip": _flip, "split": _split, "split_with_sizes": _split, "chunk": _split,
    "unbind": _unbind,
    "sum": _reduce("sum"), "prod": _reduce("prod"), "amax": _reduce("max"), "amin": _reduce("min"),
    "any": _reduce("any"), "all": _reduce("all"), "argmax": _arg("argmax"), "argmin": _arg("argmin"),
    "max": _extreme("max", "argmax"), "min": _extreme("min", "argmin"),
    "mean": _mean, "var": _var, "var_mean": _var_mean,
    "mm": _contract("self", "mat2", ("mk", "kn", "mn")), "bmm": _contract("self", "mat2", ("bmk", "bkn", "bmn")),
    "mv": _contract("self", "vec", ("mk", "k", "m")), "dot": _contract("self", "tensor", ("k", "k", "")),
    "addmm": _biased("aten.mm.default", "mat1", "mat2", ("mk", "kn", "mn")),
    "baddbmm": _biased("aten.bmm.default", "batch1", "batch2", ("bmk", "bkn", "bmn")),
    "embedding": _embedding, "index_select": _index_select, "gather": _gather, "index": _index, "cat": _cat,
    "constant_pad_nd": _pad, "arange": _arange, "iota": _arange,
}  # fmt: skip
