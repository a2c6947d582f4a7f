"""`python -m autofuse.measure.compiler`: compiles one kernel a request, on a machine that need not have a GPU."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from typing import Any

from autofuse.codegen.kernel import Kernel
from autofuse.measure.child import Message, serve
from autofuse.measure.records import Compiled

_LOCATION = re.compile(r"^(?:loc\([^)]*\)|\S+:\d+:\d+):\s*")
_NOISE = ("Traceback", "File ", "^", "~", "#", "module {", "//", "note:", "The above", "During handling")


def compile_one(kernel: Kernel, arch: int) -> Compiled:
    start = time.perf_counter()
    try:
        compiled = _compile(kernel, arch)
    except Exception as error:  # noqa: BLE001  whatever Triton raises for a kernel is that kernel's failure
        seconds = time.perf_counter() - start
        return Compiled(kernel.digest, "compile_error", seconds=seconds, detail=describe(error))
    return Compiled(kernel.digest, "ok", seconds=time.perf_counter() - start, **compiled)


def _compile(kernel: Kernel, arch: int) -> dict[str, Any]:
    from autofuse.measure.binary import code, launch_sha, resources
    from autofuse.measure.source import compile_kernel

    made = compile_kernel(kernel, arch)
    cubin: bytes = made.asm["cubin"]
    found = resources(cubin)
    spilled = found.stack_bytes + found.local_bytes
    return {
        "n_regs": found.registers,
        "n_spills": spilled // 4,
        "spill_bytes": spilled,
        # Triton passes its whole use as dynamic shared memory; sm_90 reserves 1 KiB more in every block, which
        # cuobjdump reports as SHARED and the occupancy rules count apart.
        "smem_bytes": int(made.metadata.shared),
        "binary_sha": launch_sha(cubin, (*kernel.grid, kernel.num_warps, int(made.metadata.shared))),
        "code_bytes": len(code(cubin)),
        "uses_wgmma": "wgmma.mma_async" in made.asm["ptx"],
    }


def describe(error: BaseException) -> str:
    """Kind and the first meaningful line: Triton wraps the reason in source listings and carets."""
    cause = error.__cause__ if error.__cause__ is not None and not str(error).strip() else error
    text = str(cause)
    # CompilationError shows the offending source first and the reason last.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if type(cause).__name__.endswith("CompilationError") and len(lines) > 1:
        after = next((i for i, line in enumerate(lines) if set(line) <= {"^", " "}), None)
        lines = lines[after + 1 :] or lines[-1:] if after is not None else lines
    return f"{type(cause).__name__}: {first_line(chr(10).join(lines))}"


def first_line(text: str) -> str:
    """The first line that says something: error lines of MLIR or ptxas before others, places and dumps never."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    wanted = [line for line in lines if re.match(r"ptxas.*\b(error|fatal)\b", line)]
    wanted += [line for line in lines if re.search(r"\b(error|fatal|assert\w*)\b", line, re.IGNORECASE)]
    for line in (*wanted, *lines):
        if not line.startswith(_NOISE):
            return _LOCATION.sub("", line)[:300]
    return ""


def _handle(message: Message) -> Message:
    return asdict(compile_one(Kernel.from_json(message["kernel"]), message["arch"]))


def _prepare() -> None:
    import triton  # seconds, and not to be charged to the first kernel
    import triton.compiler  # noqa: F401


if __name__ == "__main__":
    serve(_handle, _prepare)
