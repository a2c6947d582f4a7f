"""Rules against kernels that the generator made and Triton 3.6 compiled for sm_90: exact shared memory, near
registers."""

from __future__ import annotations

import pytest

from autofuse.cost.device import resolve
from autofuse.cost.resources import by_rule
from tests.cost.programs import MATMUL_KINDS, column_sum, features, matmul, pointwise, softmax

H200 = resolve("h200")

# (rows, columns, depth), warps, stages, persistent, descriptor, registers, spilled bytes, shared memory.
MATMULS = [
    ((256, 128, 128), 8, 3, 0, 0, 216, 0, 294912),
    ((128, 256, 128), 8, 3, 0, 0, 162, 0, 294912),
    ((128, 64, 32), 4, 2, 0, 0, 90, 0, 24576),
    ((128, 64, 64), 8, 4, 0, 1, 58, 0, 98336),
    ((256, 32, 64), 4, 3, 0, 1, 90, 0, 110616),
    ((64, 32, 128), 4, 4, 0, 0, 44, 0, 98304),
    ((256, 64, 64), 8, 2, 1, 1, 90, 0, 114704),
    ((64, 64, 32), 4, 4, 1, 1, 58, 0, 40992),
    ((32, 256, 32), 4, 4, 1, 1, 96, 0, 71704),
    ((32, 64, 128), 8, 2, 1, 0, 58, 0, 24576),
    ((32, 256, 32), 4, 1, 0, 1, 124, 0, 16392),
    ((256, 32, 128), 4, 1, 1, 1, 90, 0, 73736),
    ((128, 256, 32), 4, 1, 0, 1, 255, 1024, 65536),
    ((256, 256, 32), 4, 2, 0, 1, 255, 2640, 131072),
]


@pytest.mark.parametrize("case", MATMULS, ids=str)
def test_matmuls(case: tuple) -> None:
    (rows, columns, depth), warps, stages, persistent, described, registers, spilled, smem = case
    space = {"block.m": (rows,), "block.n": (columns,), "block.k": (depth,), "num_warps": (warps,)}
    space |= {"num_stages": (stages,), "persistent": (persistent,), "access": (described,)}
    found = by_rule(features(matmul(2048, 2048, 2048), MATMUL_KINDS, **space), H200)
    assert found.smem_bytes[0] == smem
    assert abs(found.registers[0] - registers) <= 48
    assert found.spill_bytes[0] == pytest.approx(spilled, rel=0.15)


@pytest.mark.parametrize(("block", "stages", "smem"), [((1, 1024), 3, 4096), ((4, 1024), 1, 64), ((1, 4096), 3, 16384),
                                                       ((4, 4096), 4, 98304)])  # fmt: skip
def test_looped_softmax(block: tuple[int, int], stages: int, smem: int) -> None:
    space = {"block.m": (block[0],), "block.n": (block[1],), "num_warps": (4,), "num_stages": (stages,)}
    found = by_rule(features(softmax(4096, 32768), {"m": "grid", "n": "loop"}, **space), H200)
    assert found.smem_bytes[0] == smem


@pytest.mark.parametrize(
    ("block", "warps", "stages", "registers", "smem"),
    [
        ((64, 256), 4, 4, 157, 98304),
        ((16, 256), 4, 4, 56, 24576),
        ((64, 64), 4, 2, 56, 8192),
        ((64, 256), 8, 2, 97, 32768),
    ],
)
def test_column_sum(block: tuple[int, int], warps: int, stages: int, registers: int, smem: int) -> None:
    space = {"block.m": (block[0],), "block.n": (block[1],), "num_warps": (warps,), "num_stages": (stages,)}
    found = by_rule(features(column_sum(4096, 4096), {"m": "loop", "n": "grid"}, **space), H200)
    assert found.smem_bytes[0] == smem
    assert abs(found.registers[0] - registers) <= 70


@pytest.mark.parametrize(
    ("block", "warps", "stages", "persistent", "smem"),
    [(1024, 4, 2, 8, 4096), (512, 2, 4, 4, 6144), (2048, 8, 3, 2, 16384)],
)
def test_persistent_maps_pipeline_their_tiles(block: int, warps: int, stages: int, persistent: int, smem: int) -> None:
    space = {"block.m": (1,), "block.n": (block,), "num_warps": (warps,), "num_stages": (stages,)}
    found = by_rule(
        features(pointwise(8192, 4096), {"m": "grid", "n": "grid"}, persistent=(persistent,), **space), H200
    )
    assert found.smem_bytes[0] == smem


@pytest.mark.parametrize(
    ("tile", "warps", "stages", "flatten", "smem"),
    [
        ((128, 256, 64), 8, 3, 1, 180248),
        ((128, 256, 64), 16, 3, 1, 213016),
        ((128, 128, 64), 4, 4, 1, 139296),
        ((256, 128, 64), 8, 3, 1, 180248),
        ((128, 256, 64), 8, 3, 0, 147480),
    ],
)
def test_a_flattened_product_is_stored_beside_the_next_ones_loads(
    tile: tuple[int, int, int], warps: int, stages: int, flatten: int, smem: int
) -> None:
    """Operands by descriptor, the result through pointers."""
    blocks = {f"block.{axis}": (size,) for axis, size in zip("mnk", tile, strict=True)}
    space = {"num_warps": (warps,), "num_stages": (stages,), "persistent": (1,), "flatten": (flatten,), "access": (2,)}
    found = by_rule(features(matmul(2048, 2048, 2048), MATMUL_KINDS, **blocks, **space), H200)
    assert found.smem_bytes[0] == smem
