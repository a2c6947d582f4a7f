"""What the model knows of a candidate before compiling it: physical quantities from the loop tree, an array each.

Vectorised over the candidates of one program and one assignment of role kinds; no per-candidate Python. Units are in
the names; "program" means one tile of the grid, and totals are of the whole kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autofuse.codegen.looptree import Loop, LoopTree, statements_in
from autofuse.cost.device import Target
from autofuse.cost.geometry import Array, Geometry
from autofuse.cost.liveness import Liveness
from autofuse.cost.traffic import traffic
from autofuse.cost.walk import Access, Product, Work, collect
from autofuse.errors import ModelError
from autofuse.ir.program import Program

FEATURE_NAMES: tuple[str, ...] = (
    "num_warps", "num_stages", "group", "persistent", "flatten", "descriptor", "descriptor_store", "evict_first",
    "maxnreg", "sweep",
    "tiles", "padding_waste", "loops", "trips",
    "compulsory_read_bytes", "compulsory_write_bytes", "requested_read_bytes", "grouped_read_bytes", "atomic_bytes",
    "pass_bytes", "pass_span_bytes", "turn_share", "program_read_bytes", "program_write_bytes",
    "inflight_bytes", "stage_dot_bytes", "stage_plain_bytes", "dot_operand_bytes", "scratch_bytes", "store_tile_bytes",
    "row_bytes", "vector_bytes", "sector_waste", "indirect",
    "live_registers", "accumulator_registers", "largest_tile_registers", "pointers", "pointer_registers", "masks",
    "plain_instructions", "special_instructions", "epilogue_instructions", "reductions",
    "tensor16_flops", "tensor8_flops", "simt_flops", "dot_rows", "dot_columns", "dot_depth", "dot_smem_bytes",
    "dot_registers",
)  # fmt: skip
"""Columns of Features, in order; in recordings each has the prefix `f_`."""

FEATURES_VERSION = 2
PREFIX = "f_"


@dataclass(frozen=True)
class Features:
    """One array a name of FEATURE_NAMES, all of the same length."""

    columns: dict[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.columns["tiles"])

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_] | slice) -> Features:
        return Features({name: column[rows] for name, column in self.columns.items()})

    def recording(self) -> dict[str, Array]:
        """Columns as a recording stores them."""
        return {PREFIX + name: column for name, column in self.columns.items()}

    @staticmethod
    def from_recording(columns: Mapping[str, NDArray[np.generic]]) -> Features:
        """Raises ModelError naming what is missing."""
        missing = [name for name in FEATURE_NAMES if PREFIX + name not in columns]
        if missing:
            raise ModelError(f"recording lacks feature columns: {', '.join(PREFIX + m for m in missing)}")
        return Features({name: np.asarray(columns[PREFIX + name], dtype=np.float64) for name in FEATURE_NAMES})

    @staticmethod
    def concat(parts: Sequence[Features]) -> Features:
        return Features({name: np.concatenate([part[name] for part in parts]) for name in FEATURE_NAMES})


def featurize(
    program: Program, tree: LoopTree, columns: Mapping[str, NDArray[np.generic]], target: Target,
    kinds: Mapping[str, str],
) -> Features:  # fmt: skip
    """columns: `block.<axis>` for each axis (those of whole axes are not read), `parts.<axis>` of split ones,
    num_warps, num_stages, group, persistent, flatten, access (0 pointers, 1 descriptors, 2 for operands alone),
    eviction (1 is first), maxnreg, sweep (0 forward, 1 reverse, 2 hold);
    one that is absent has the schedule's default. kinds: axis -> grid, loop, whole or split, in loop order."""
    geometry = Geometry(program, kinds, columns, target)
    for loop in statements_in(tree.body):
        if isinstance(loop, Loop) and kinds[loop.axis] == "loop" and tree.passes(loop.axis) == 1:
            geometry.leave_out(loop.axis, loop.dead, loop.free.cuts if loop.free else ())
    work = collect(program, tree)
    found: dict[str, Array] = {
        "num_warps": geometry.threads / 32, "num_stages": geometry.stages, "group": geometry.column("group"),
        "persistent": geometry.column("persistent"), "flatten": geometry.column("flatten"),
        "descriptor": (geometry.column("access") > 0).astype(np.float64),
        "descriptor_store": (geometry.column("access") == 1).astype(np.float64),
        "evict_first": geometry.column("eviction"), "maxnreg": geometry.column("maxnreg"),
        "sweep": geometry.column("sweep"), "turn_share": _turn_share(geometry, work), "tiles": geometry.tiles,
    }  # fmt: skip
    found |= _shape(geometry, work) | traffic(geometry, work) | _shared(geometry, work) | _access(geometry, work)
    found |= _registers(geometry, program, tree, work) | _instructions(geometry, work) | _products(geometry, work)
    return Features({name: found[name] for name in FEATURE_NAMES})


def _turn_share(geometry: Geometry, work: Work) -> Array:
    """Of a further pass, the part that a held tile spares: it is neither loaded nor waited for again."""
    again = {loop[-1] for loop in work.loops if work.loops.count(loop) > 1}
    shares = [1 / geometry.count[axis] for axis in sorted(again)]
    least = np.min(np.stack(shares), axis=0) if shares else np.zeros(geometry.n)
    return np.where(geometry.column("sweep") == 2, least, 0.0)


def _trips(geometry: Geometry, opened: Sequence[str]) -> Array:
    return geometry.product(geometry.trips[a] for a in opened)


def _shape(geometry: Geometry, work: Work) -> dict[str, Array]:
    waste = geometry.product(
        geometry.count[a] * geometry.block[a] / max(size, 1) for a, size in geometry.program.sizes.items()
    )
    inner = [loop for loop in work.loops if not any(other[: len(loop)] == loop != other for other in work.loops)]
    trips = sum((_trips(geometry, loop) for loop in inner), start=np.zeros(geometry.n))
    return {"padding_waste": waste, "loops": geometry.one * len(work.loops), "trips": trips}


def _shared(geometry: Geometry, work: Work) -> dict[str, Array]:
    """A stage is what one turn of the largest innermost loop loads."""
    dot, plain, scratch, out = (np.zeros(geometry.n) for _ in range(4))
    for loop in sorted({load.loop for load in work.loads if load.opened}):
        here = [load for load in work.loads if load.loop == loop]
        dots = sum((_tile_bytes(geometry, x) for x in here if x.contract), start=np.zeros(geometry.n))
        staged = [x for x in here if not x.contract and _large(x)]
        others = sum((_tile_bytes(geometry, x) for x in staged), start=np.zeros(geometry.n))
        dot, plain = np.maximum(dot, dots), np.maximum(plain, others)
    operands = sum((_tile_bytes(geometry, x) for x in work.loads if x.contract), start=np.zeros(geometry.n))
    for found in work.reductions:
        kept = geometry.elements(found.kept)
        across = np.minimum(geometry.threads / 32, geometry.elements(found.axes - found.kept))
        scratch = np.maximum(scratch, 4 * kept * across * (across > 1))
    for store in work.stores:
        out = np.maximum(out, _tile_bytes(geometry, store))
    top = sum((_tile_bytes(geometry, x) for x in work.loads if not x.opened), start=np.zeros(geometry.n))
    inflight = np.where(top > dot + plain, top, dot + plain)
    return {
        "stage_dot_bytes": dot, "stage_plain_bytes": plain, "dot_operand_bytes": operands, "scratch_bytes": scratch,
        "store_tile_bytes": out, "inflight_bytes": inflight,
    }  # fmt: skip


def _large(load: Access) -> bool:
    return bool(load.axes) and not load.indirect


def _tile_bytes(geometry: Geometry, access: Access) -> Array:
    return geometry.elements(access.axes) * access.itemsize


def _access(geometry: Geometry, work: Work) -> dict[str, Array]:
    """Weighted by the bytes that each access moves."""
    total, row, vector, waste = (np.full(geometry.n, 1e-9) for _ in range(4))
    for access in (*work.loads, *work.stores):
        size = access.itemsize
        moved = geometry.elements(access.axes) * _trips(geometry, access.opened) * size
        run = geometry.block[access.contiguous] if access.contiguous else geometry.one
        if access.contiguous:
            run = np.minimum(run, geometry.program.sizes[access.contiguous])
        bytes_in_row = run * size
        per_thread = np.maximum(geometry.elements(access.axes) / geometry.threads, 1.0) * size
        total = total + moved
        row = row + moved * np.minimum(bytes_in_row, 4096)
        vector = vector + moved * np.minimum(np.minimum(bytes_in_row, per_thread), 16)
        waste = waste + moved * np.maximum(32 / np.maximum(bytes_in_row, size), 1.0)
    indirect = any(access.indirect for access in work.loads)
    return {
        "row_bytes": row / total, "vector_bytes": vector / total, "sector_waste": np.maximum(waste / total, 1.0),
        "indirect": geometry.one * indirect,
    }  # fmt: skip


def _registers(geometry: Geometry, program: Program, tree: LoopTree, work: Work) -> dict[str, Array]:
    live, sums = Liveness(program, tree).registers(geometry)
    largest = np.zeros(geometry.n)
    for axes in set(program.free):
        largest = np.maximum(largest, geometry.elements(axes) / geometry.threads)
    addresses, pointers = np.zeros(geometry.n), np.zeros(geometry.n)
    for access in (*work.loads, *work.stores):
        described = (geometry.column("access") > 0) * (access.described and access.contract)
        vector = np.maximum(16 / access.itemsize, 1)
        words = np.minimum(2 * geometry.elements(access.axes) / geometry.threads / vector, 64)
        addresses = np.maximum(addresses, words * (1 - described))
        pointers = pointers + (1 - described)
    held = [geometry.elements(x.axes) * x.itemsize / 4 / geometry.threads for x in work.loads if x.opened]
    live = live + np.where(_turn_share(geometry, work) > 0, np.max(np.stack(held), axis=0), 0.0) if held else live
    masks = np.zeros(geometry.n)
    for axis, size in program.sizes.items():
        masks = masks + (geometry.count[axis] * geometry.block[axis] != size)
    return {
        "live_registers": live, "accumulator_registers": sums, "largest_tile_registers": largest,
        "pointers": pointers, "pointer_registers": addresses, "masks": masks,
    }  # fmt: skip


def _instructions(geometry: Geometry, work: Work) -> dict[str, Array]:
    """Totals; those outside every loop (an epilogue does not overlap the loop) again a program."""
    plain, special, after = (np.zeros(geometry.n) for _ in range(3))
    for item in work.arithmetic:
        elements = geometry.elements(item.axes) * _trips(geometry, item.opened)
        # A tile smaller than the program's threads is computed by all of them.
        elements = np.maximum(elements, geometry.threads / 4 * _trips(geometry, item.opened))
        elements = elements * geometry.cut[item.cut] if item.cut else elements
        plain, special = plain + elements * item.plain, special + elements * item.special
        if not item.opened:
            after = after + elements * (item.plain + 8 * item.special)
    for access in (*work.loads, *work.stores):
        # Conversion to and from 16 bits, addresses, the access itself: an element's share at full vectors.
        share = 0.25 if access.contract else 1.0
        plain = plain + geometry.elements(access.axes) * _trips(geometry, access.opened) * share
    barriers = sum((_trips(geometry, found.opened) for found in work.reductions), start=np.zeros(geometry.n))
    for found in work.reductions:
        plain = plain + geometry.elements(found.axes) * _trips(geometry, found.opened)
    return {
        "plain_instructions": plain * geometry.tiles, "special_instructions": special * geometry.tiles,
        "epilogue_instructions": after, "reductions": barriers,
    }  # fmt: skip


def _products(geometry: Geometry, work: Work) -> dict[str, Array]:
    zero = np.zeros(geometry.n)
    found: dict[str, Array] = dict.fromkeys(
        ("tensor16_flops", "tensor8_flops", "simt_flops", "dot_smem_bytes", "dot_registers"), zero
    )
    shape: dict[str, Array] = dict.fromkeys(("dot_rows", "dot_columns", "dot_depth"), zero)
    most = zero
    for product in work.products:
        sides = [geometry.elements(axes) for axes in (product.rows, product.columns, product.summed)]
        flops = 2 * sides[0] * sides[1] * sides[2] * geometry.elements(product.batch)
        flops = flops * _trips(geometry, product.opened) * geometry.tiles
        dot = _is_dot(geometry, product, sides)
        kind = "tensor8_flops" if product.dtype.startswith("float8") else "tensor16_flops"
        found[kind] = found[kind] + flops * dot
        found["simt_flops"] = found["simt_flops"] + flops * (1 - dot)
        groups = np.maximum(geometry.threads / 128, 1.0)
        read = (sides[0] + groups * sides[1]) * sides[2] * product.itemsize
        read = read * _trips(geometry, product.opened) * geometry.tiles
        found["dot_smem_bytes"] = found["dot_smem_bytes"] + read * dot
        mapped = product.in_registers * sides[0] * sides[2] / geometry.threads
        found["dot_registers"] = found["dot_registers"] + mapped * dot
        larger = flops > most
        for name, side in zip(shape, sides, strict=True):
            shape[name] = np.where(larger, side, shape[name])
        most = np.maximum(most, flops)
    return found | shape


def _is_dot(geometry: Geometry, product: Product, sides: Sequence[Array]) -> Array:
    """Do tensor cores run it? As the generator decides: K of at least 16, rows and columns; float32 stays exact."""
    if product.dtype not in ("bfloat16", "float16") and not product.dtype.startswith("float8"):
        return np.zeros(geometry.n)
    fits = (sides[2] >= 16) & (sides[0] > 1) & (sides[1] > 1)
    for axis in product.batch:
        fits &= geometry.block[axis] == 1
    return fits.astype(np.float64)
