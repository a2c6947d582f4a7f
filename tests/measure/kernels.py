"""Small hand-written kernels for the tests of this folder."""

from __future__ import annotations

from autofuse.codegen.kernel import Kernel, Parameter

HEADER = "import triton\nimport triton.language as tl\n\n\n"

ADD = (
    HEADER
    + """@triton.jit
def add(x, y, out, N: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + at, at < N).to(tl.float32) + tl.load(y + at, at < N).to(tl.float32)
    tl.store(out + at, total, at < N)
"""
)


def add_kernel(
    n: int,
    block: int = 128,
    *,
    dtype: str = "float32",
    source: str = ADD,
    num_warps: int = 4,
    programs: int | None = None,
) -> Kernel:
    """out = x + y over n elements."""
    return Kernel(
        name="add",
        source=source,
        parameters=tuple(Parameter(name, name, dtype) for name in ("x", "y", "out")),
        constants=(("N", n), ("BLOCK", block)),
        grid=(programs or -(-n // block), 1, 1),
        num_warps=num_warps,
        num_stages=2,
    )


MATMUL = (
    HEADER
    + """@triton.jit
def matmul(a, b, out, K: tl.constexpr, N: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row = tl.program_id(0) * BM
    column = tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        total = tl.dot(a.load([row, k]), b.load([k, column]), total)
    rows = row + tl.arange(0, BM)
    columns = column + tl.arange(0, BN)
    tl.store(out + rows[:, None] * N + columns[None, :], total)
"""
)


def matmul_kernel(m: int, n: int, k: int, block: tuple[int, int, int] = (128, 64, 64)) -> Kernel:
    """out (float32) = a @ b, bfloat16 operands by descriptor."""
    bm, bn, bk = block
    return Kernel(
        name="matmul",
        source=MATMUL,
        parameters=(
            Parameter("a", "a", "bfloat16", (bm, bk), (m, k), (k, 1)),
            Parameter("b", "b", "bfloat16", (bk, bn), (k, n), (n, 1)),
            Parameter("out", "out", "float32"),
        ),
        constants=(("K", k), ("N", n), ("BM", bm), ("BN", bn), ("BK", bk)),
        grid=(m // bm, n // bn, 1),
        num_warps=4,
        num_stages=3,
    )


SUM_ROWS = (
    HEADER
    + """@triton.jit
def sum_rows(x, out, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * N + at, at < N, 0.0).to(tl.float32)
    tl.atomic_add(out + row, tl.sum(values, 0))
"""
)


def sum_rows_kernel(m: int, n: int) -> Kernel:
    """out[m] (float32) += the sum of row m of x; out must be zeroed."""
    return Kernel(
        name="sum_rows",
        source=SUM_ROWS,
        parameters=(Parameter("x", "x", "float32"), Parameter("out", "out", "float32")),
        constants=(("N", n), ("BLOCK", max(16, 1 << (n - 1).bit_length()))),
        grid=(m, 1, 1),
        num_warps=4,
        num_stages=2,
        zeroed=("out",),
    )
