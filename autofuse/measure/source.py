"""A Kernel as Triton's own objects: the jitted function, its signature, its compile options. Needs no GPU."""

from __future__ import annotations

import linecache
from typing import Any

from autofuse.codegen.kernel import Kernel, Parameter
from autofuse.measure.paths import triton_cache_dir

POINTER = {
    "bool": "*i1", "uint8": "*u8", "int8": "*i8", "int16": "*i16", "int32": "*i32", "int64": "*i64",
    "uint16": "*u16", "uint32": "*u32", "uint64": "*u64", "float16": "*fp16", "bfloat16": "*bf16",
    "float32": "*fp32", "float64": "*fp64", "float8_e4m3fn": "*fp8e4nv", "float8_e5m2": "*fp8e5",
}  # fmt: skip
"""torch dtype name -> Triton's signature of a pointer to it."""

_DIVISIBLE = [["tt.divisibility", 16]]


def load(kernel: Kernel) -> Any:
    """The @triton.jit function that the source defines.

    Triton reads a function's text through `inspect`, which looks into linecache before it looks for a file: so the
    source needs no file on disk. Whether the result is interpreted is decided here, by TRITON_INTERPRET.
    """
    filename = f"<autofuse:{kernel.name}:{kernel.digest}>"
    linecache.cache[filename] = (len(kernel.source), None, kernel.source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": f"autofuse_kernel_{kernel.digest}"}
    exec(compile(kernel.source, filename, "exec"), namespace)  # noqa: S102  (our own generated text, never from disk)
    return namespace[kernel.name]


def signature(kernel: Kernel) -> dict[str, str]:
    return {
        **{parameter.name: _type(parameter) for parameter in kernel.parameters},
        **{name: "constexpr" for name, _ in kernel.constants},
    }


def _type(parameter: Parameter) -> str:
    pointer = POINTER[parameter.dtype]
    return f"tensordesc<{pointer[1:]}{list(parameter.block)}>" if parameter.block else pointer


def ast_source(kernel: Kernel, function: Any) -> Any:
    """As JITFunction makes it for the same arguments: same key in Triton's disk cache."""
    from triton.compiler import ASTSource

    attributes = {
        (position,): _DIVISIBLE
        for position, parameter in enumerate(kernel.parameters)
        if parameter.aligned and not parameter.block
    }
    return ASTSource(function, signature(kernel), dict(kernel.constants), attributes)


def options(kernel: Kernel) -> dict[str, int]:
    chosen = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
    return chosen | ({"maxnreg": kernel.maxnreg} if kernel.maxnreg else {})


def compile_kernel(kernel: Kernel, arch: int) -> Any:
    """Triton's CompiledKernel for compute capability `arch` (90 for Hopper); raises what Triton raises.

    Every process of ours compiles in the same cache and without line info, which is part of the key: what the compile
    pool built, the worker and later the user's process load.
    """
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget

    source = ast_source(kernel, load(kernel))
    with knobs.cache.scope(), knobs.compilation.scope():
        knobs.cache.dir = str(triton_cache_dir())
        knobs.compilation.disable_line_info = True
        return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options(kernel))
