"""Time of an ATen call as PyTorch runs it on a device: what a generated kernel has to beat. Estimates from types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import ceil, prod

from autofuse.cost.device import Target
from autofuse.ir.graph import ITEMSIZE, Contract, Op, TensorType, refs

MATMULS = ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "_scaled_mm")
ATTENTION = ("scaled_dot_product", "autofuse.sdpa", "autofuse.attention")
POINTWISE_SHARE = 0.88
"""Of the copy rate that eager's vectorised elementwise kernels reach."""
REDUCTION_SHARE = 0.75
STRIDED_SHARE = 0.5
"""Of calls that read along rows shorter than a sector (transposed inputs)."""
NORM_SHARE = 0.55
"""Softmax and norms of ATen (softmax: 0.29 to 0.52, layer norm: 0.55 of the floor; FIELD.md)."""
NORMS = ("softmax", "norm", "cross_entropy", "nll_loss")
PICKS = "nll_loss"
SECTOR_BYTES = 32
CUBLAS_TILES = ((128, 256), (256, 128), (128, 128), (128, 64), (64, 64))
CUBLAS_SHARE = 0.93
"""Of the matmul ceiling that cuBLAS holds in a sustained run (690 to 790 of 797 TFLOP/s, COST_MODEL.md)."""
ATTENTION_SHARE = {True: 0.58, False: 0.55}
"""Of the matmul ceiling that SDPA reaches, causal or not (cuDNN: 477 and 445 TFLOP/s, FIELD.md)."""

MASK_PASSES = {(True, True): (2, 1), (True, False): (3, 4), (False, True): (2, 2), (False, False): (6, 7)}
"""(tests alone, known to hide no row) -> (times that a mask of attention written by hand is read or written, launches
around SDPA), counted in capture/attention.py."""


@dataclass(frozen=True, slots=True)
class LibraryTime:
    time_us: float
    dram_bytes: float
    binding: str


def op_time(op: Op, types: Mapping[str, TensorType], target: Target) -> LibraryTime:
    """One call. A view costs nothing."""
    if op.is_view:
        return LibraryTime(0.0, 0.0, "none")
    name = op.call.target.split(".")[1] if "." in op.call.target else op.call.target
    reads = float(sum(_touched(types[v]) for v in op.inputs if v in types))
    if name.startswith(PICKS):  # an element a row of the first argument, each in a sector of its own
        log_probs, *rest = (types[v] for v in op.inputs if v in types)
        rows = log_probs.numel // max(log_probs.shape[min(1, len(log_probs.shape) - 1)], 1)
        reads = float(rows * SECTOR_BYTES + sum(_touched(kind) for kind in rest))
    writes = float(sum(types[v].nbytes for v in op.outputs if v in types))
    if isinstance(op.form, Contract) or name in MATMULS:
        shape = matmul_shape(op, types)
        if shape is not None:
            dtype = types[op.outputs[0]].dtype
            return matmul_time(*shape, _operand_dtype(op, types, dtype), reads, writes, target)
    if any(word in op.call.target for word in ATTENTION):
        return _attention(op, types, reads, writes, target)
    return _streamed(op, name, types, reads, writes, target)


def calls_time(ops: Iterable[Op], types: Mapping[str, TensorType], target: Target) -> LibraryTime:
    """Several calls one after the other, as an unfused group runs them."""
    found = [op_time(op, types, target) for op in ops]
    worst = max(found, key=lambda one: one.time_us, default=LibraryTime(0.0, 0.0, "none"))
    return LibraryTime(sum(one.time_us for one in found), sum(one.dram_bytes for one in found), worst.binding)


def matmul_time(
    batch: int, m: int, n: int, k: int, dtype: str, reads: float, writes: float, target: Target
) -> LibraryTime:
    """The best of cuBLAS's usual tiles: waves of whole tiles at the measured rate, or bytes, whichever is more."""
    if min(batch, m, n) == 0:
        return LibraryTime(0.0, 0.0, "none")
    rate = _matmul_rate(dtype, target) * CUBLAS_SHARE
    dram = (reads + writes) / float(target.bytes_per_us(reads, writes)) / 0.92
    compute = min(_tiles_time(batch, m, n, k, tile, rate, target) for tile in CUBLAS_TILES)
    joined = (dram**5 + compute**5) ** 0.2
    return LibraryTime(target.launch_us + 1.5 + joined, reads + writes, "dram" if dram > compute else "tensor")


def _tiles_time(batch: int, m: int, n: int, k: int, tile: tuple[int, int], rate: float, target: Target) -> float:
    rows, columns = tile
    tiles = batch * ceil(m / rows) * ceil(n / columns)
    # Small grids are split along K by the library, in parts of at least 512.
    parts = max(1, min(target.multiprocessors // max(tiles, 1), k // 512))
    waves = ceil(tiles * parts / target.multiprocessors)
    share = {32768: 1.0, 16384: 0.92, 8192: 0.78, 4096: 0.6}[rows * columns]
    return waves * 2 * rows * columns * k / parts / (rate / target.multiprocessors * share)


def _matmul_rate(dtype: str, target: Target) -> float:
    if dtype.startswith("float8"):
        return target.tensor8_flops_per_us or target.tensor16_flops_per_us
    if dtype in ("bfloat16", "float16"):
        return target.tensor16_flops_per_us
    # float32 stays exact unless the user allows TF32.
    return 0.8 * target.fp32_flops_per_us


def matmul_shape(op: Op, types: Mapping[str, TensorType]) -> tuple[int, int, int, int] | None:
    """(batch, m, n, k) of a contract or of one of ATen's matmuls, or None where it is none."""
    if isinstance(op.form, Contract):
        form = op.form
        sizes = dict(zip(form.left_dims, types[form.left].shape, strict=True))
        sizes |= dict(zip(form.right_dims, types[form.right].shape, strict=True))
        left, right, out = set(form.left_dims), set(form.right_dims), set(form.out_dims)

        def size(letters: set[str]) -> int:
            return prod(sizes[x] for x in letters)

        return (
            size(left & right & out),
            size((left - right) & out),
            size((right - left) & out),
            size((left | right) - out),
        )
    tensors = [types[v] for v in op.inputs if v in types and len(types[v].shape) >= 2]
    if len(tensors) < 2 or not op.outputs or len(types[op.outputs[0]].shape) < 2:
        return None
    out = types[op.outputs[0]].shape
    first = tensors[-2].shape
    return prod(out[:-2]), out[-2], out[-1], first[-1]


def _operand_dtype(op: Op, types: Mapping[str, TensorType], default: str) -> str:
    found = [types[v].dtype for v in op.inputs if v in types and len(types[v].shape) >= 2]
    return found[-1] if found else default


def _attention(op: Op, types: Mapping[str, TensorType], reads: float, writes: float, target: Target) -> LibraryTime:
    """SDPA itself, and around an attention written by hand what capture/attention.py does: the mask is put together in
    the queries' dtype and read over, and hidden rows are filled in."""
    query, key, value, *_ = (*(types.get(v) for argument in op.call.args[:3] for v in refs(argument)), None, None, None)
    if query is None or key is None or value is None or min(len(one.shape) for one in (query, key, value)) < 2:
        return _streamed(op, "attention", types, reads, writes, target)
    options = dict(op.call.kwargs)
    causal = any(argument is True for argument in op.call.args) or options.get("is_causal") is True
    keys = value.shape[-2]  # the keys may come transposed
    flops = 2 * prod(query.shape[:-1]) * keys * (query.shape[-1] + value.shape[-1]) * (0.5 if causal else 1.0)
    compute = flops / (_matmul_rate(types[op.outputs[0]].dtype, target) * ATTENTION_SHARE[causal])
    dram = (reads + writes) / float(target.bytes_per_us(reads, writes)) / 0.9
    found = LibraryTime(
        target.launch_us + 2 + max(dram, compute), reads + writes, "tensor" if compute > dram else "dram"
    )
    masks = [types[v] for argument in op.call.args[3:] for v in refs(argument) if v in types]
    if not masks or not op.call.target.startswith("autofuse.attention"):
        return found
    return _with_mask(found, masks, types[op.outputs[0]], options.get("all_seen") is True, target)


def _with_mask(
    found: LibraryTime, terms: Sequence[TensorType], out: TensorType, all_seen: bool, target: Target
) -> LibraryTime:
    sizes = (max(dims) for dims in zip_longest(*(one.shape[::-1] for one in terms), fillvalue=1))
    tests = all(one.dtype == "bool" for one in terms)
    passes, launches = MASK_PASSES[tests, all_seen]
    mask_bytes = prod(sizes) * ITEMSIZE["bool" if tests else out.dtype]
    moved = float(mask_bytes * passes + (0 if all_seen else 2 * out.nbytes))
    more = launches * target.launch_us + moved / float(target.bytes_per_us(moved / 2, moved / 2)) / POINTWISE_SHARE
    return LibraryTime(found.time_us + more, found.dram_bytes + moved, found.binding)


def _streamed(
    op: Op, name: str, types: Mapping[str, TensorType], reads: float, writes: float, target: Target
) -> LibraryTime:
    """Pointwise ops, reductions and norms: their bytes at the share of the ceiling that ATen's kernels reach."""
    numel = sum(types[v].numel for v in op.outputs if v in types)
    inputs = sum(types[v].numel for v in op.inputs if v in types)
    share = POINTWISE_SHARE if numel * 2 > inputs else REDUCTION_SHARE
    if any(word in name for word in NORMS):
        share = NORM_SHARE
    if any(_transposed(types[v]) for argument in op.call.args for v in refs(argument) if v in types):
        share = min(share, STRIDED_SHARE)
    dram = (reads + writes) / float(target.bytes_per_us(reads, writes)) / share
    return LibraryTime(target.launch_us + dram, reads + writes, "dram" if dram > target.launch_us else "launch")


def _touched(kind: TensorType) -> int:
    """Distinct bytes read of an operand: broadcast dimensions are read once."""
    total = ITEMSIZE[kind.dtype]
    for size, stride in zip(kind.shape, kind.strides, strict=True):
        total *= size if stride or not size else 1
    return total


def _transposed(kind: TensorType) -> bool:
    if len(kind.shape) < 2 or kind.numel < 4096:
        return False
    dense = [stride for size, stride in zip(kind.shape, kind.strides, strict=True) if size > 1 and stride]
    return bool(dense) and dense[-1] != 1
