"""Facts of a cubin: registers, stack, shared memory, a hash of its machine code. Reads ELF and cuobjdump's report."""

from __future__ import annotations

import hashlib
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_TOOL_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Resources:
    registers: int
    stack_bytes: int
    shared_bytes: int
    local_bytes: int


def resources(cubin: bytes) -> Resources:
    """By the cuobjdump in Triton's own package. Raises RuntimeError when it reports nothing."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        report = subprocess.run(
            [str(tool), "--dump-resource-usage", file.name],
            capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False,
        )  # fmt: skip
    found = _USAGE.search(report.stdout)
    if not found:
        raise RuntimeError(f"cuobjdump gave no resource usage: {report.stderr.strip()[:200]}")
    registers, stack, shared, local = (int(number) for number in found.groups())
    return Resources(registers, stack, shared, local)


def code(cubin: bytes) -> bytes:
    """The contents of every .text section: names, debug info and symbols are not part of it."""
    return b"".join(data for name, data in sections(cubin) if name.startswith(b".text"))


def launch_sha(cubin: bytes, geometry: tuple[int, ...]) -> str:
    """Equal for two kernels that do the same thing on the card: machine code, constant tables and launch geometry."""
    digest = hashlib.sha256(repr(geometry).encode())
    for name, data in sections(cubin):
        if name.startswith((b".text", b".nv.constant", b".nv.global")):
            digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def sections(elf: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(name, contents) of each section of a 64-bit little-endian ELF file; ValueError for anything else."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + size * i) for i in range(count)]
    strings = elf[headers[names][4] : headers[names][4] + headers[names][5]]
    for name, kind, _flags, _address, offset, length in headers:
        label = strings[name : strings.index(b"\0", name)]
        yield label, b"" if kind == 8 else elf[offset : offset + length]  # 8: NOBITS, no contents in the file
