"""Devices as numbers: limits that occupancy is exact under, and ceilings that times are measured against.

Ceilings of named targets are what such cards reach, not data-sheet peaks; `with_ceilings` puts a device's own, measured
ones in their place. Imports torch only to look at a live GPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from autofuse.errors import ModelError, UnknownTarget


@dataclass(frozen=True, slots=True)
class Target:
    """One device. Rates are per microsecond for the whole device unless the name says otherwise; flops count a
    multiply-add as two."""

    name: str
    arch: int
    multiprocessors: int
    smem_per_mp: int
    smem_per_block: int
    l2_bytes: int
    clock_mhz: float
    copy_bytes_per_us: float
    """Bytes read plus written of a long copy."""
    read_bytes_per_us: float
    write_bytes_per_us: float
    tensor16_flops_per_us: float
    """bfloat16 and float16, accumulated in float32."""
    tensor8_flops_per_us: float
    """float8; 0 where the device has none (then it runs at the 16-bit rate)."""
    tf32_flops_per_us: float
    l2_bytes_per_us: float
    launch_us: float
    """A kernel with nothing to do, inside a CUDA graph."""
    registers_per_mp: int = 65536
    max_warps_per_mp: int = 64
    max_blocks_per_mp: int = 32
    fp32_per_clock_mp: int = 128
    special_per_clock_mp: int = 16
    smem_bytes_per_clock_mp: int = 128
    memory_latency_us: float = 0.75
    """A load that misses L2, on a busy device."""
    measured: bool = False
    """Ceilings were measured on this very device."""
    live: int | None = None
    """CUDA index of the GPU that this is, if it is one."""

    @property
    def fp32_instructions_per_us(self) -> float:
        return self.multiprocessors * self.fp32_per_clock_mp * self.clock_mhz

    @property
    def fp32_flops_per_us(self) -> float:
        return 2 * self.fp32_instructions_per_us

    @property
    def special_per_us(self) -> float:
        return self.multiprocessors * self.special_per_clock_mp * self.clock_mhz

    @property
    def smem_bytes_per_us(self) -> float:
        return self.multiprocessors * self.smem_bytes_per_clock_mp * self.clock_mhz

    @property
    def wgmma(self) -> bool:
        """Hopper and later multiply from shared memory, in groups of four warps and 64 rows."""
        return self.arch >= 90

    def bytes_per_us(self, reads: Any, writes: Any) -> Any:
        """Ceiling at a mix of reads and writes (arrays or numbers): time-weighted between read, copy and write."""
        total = reads + writes
        share = writes / (total + (total == 0))
        low = self.read_bytes_per_us + (self.copy_bytes_per_us - self.read_bytes_per_us) * 2 * share
        high = self.copy_bytes_per_us + (self.write_bytes_per_us - self.copy_bytes_per_us) * (2 * share - 1)
        below = share <= 0.5
        return low * below + high * (1 - below)


TARGETS: dict[str, Target] = {
    # Copy and bf16 rates: measured on an H200 (COST_MODEL.md: 4.2 to 4.3 TB/s; 797 TFLOP/s is the best seen).
    "h200": Target(
        "h200", 90, 132, 233472, 232448, 50 << 20, 1830.0, 4.24e6, 4.5e6, 4.0e6, 797e6, 1450e6, 400e6, 12.0e6, 2.2
    ),
    "h100": Target(
        "h100", 90, 132, 233472, 232448, 50 << 20, 1755.0, 2.95e6, 3.1e6, 2.8e6, 760e6, 1400e6, 390e6, 11.5e6, 2.2
    ),
    "a100": Target(
        "a100", 80, 108, 167936, 166912, 40 << 20, 1410.0, 1.72e6, 1.8e6, 1.65e6, 270e6, 0.0, 130e6, 5.5e6, 2.5
    ),
    # Not measured by us: nine tenths of the data sheet.
    "b200": Target(
        "b200", 100, 148, 233472, 232448, 126 << 20, 1850.0, 7.0e6, 7.3e6, 6.6e6, 1900e6, 3600e6, 950e6, 18.0e6, 2.2
    ),
}

CEILINGS = (
    "copy_bytes_per_us", "read_bytes_per_us", "write_bytes_per_us", "tensor16_flops_per_us", "tensor8_flops_per_us",
    "tf32_flops_per_us", "l2_bytes_per_us", "launch_us", "clock_mhz", "memory_latency_us",
)  # fmt: skip
"""What `measured` ceilings may replace."""


def resolve(name: str = "auto", ceilings: Path | None = None) -> Target:
    """A target by name, "cuda:N", or "auto" for the live GPU. ceilings: a file that `save_ceilings` wrote.

    Raises UnknownTarget, naming the known ones, ModelError on a bad ceilings file.
    """
    found = _live(name) if name == "auto" or name.startswith("cuda") else TARGETS.get(name.lower())
    if found is None:
        raise UnknownTarget(f"unknown target {name!r}; known: auto, cuda:N, {', '.join(TARGETS)}")
    return found if ceilings is None or not ceilings.exists() else with_ceilings(found, load_ceilings(ceilings))


def with_ceilings(target: Target, measured: Mapping[str, float]) -> Target:
    unknown = sorted(set(measured) - set(CEILINGS))
    if unknown:
        raise ModelError(
            f"ceilings of {target.name}: unknown quantities {', '.join(unknown)}; known: {', '.join(CEILINGS)}"
        )
    return replace(target, measured=True, **dict(measured))


def save_ceilings(path: Path, device: str, measured: Mapping[str, float]) -> None:
    path.write_text(json.dumps({"device": device, "ceilings": dict(measured)}, indent=1, sort_keys=True) + "\n")


def load_ceilings(path: Path) -> dict[str, float]:
    """Raises ModelError naming the file on anything but positive finite numbers of known quantities."""
    try:
        data = json.loads(path.read_text())
        found = {str(k): float(v) for k, v in data["ceilings"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"ceilings file {path} is not readable ({error}); delete it to measure again") from error
    bad = sorted(k for k, v in found.items() if k not in CEILINGS or not 0 < v < float("inf"))
    if bad:
        raise ModelError(f"ceilings file {path}: bad values for {', '.join(bad)}; delete it to measure again")
    return found


def _index(name: str) -> int:
    _, _, number = name.partition(":")
    if name not in ("cuda", f"cuda:{number}") or (number and not number.isdecimal()):
        raise UnknownTarget(f"unknown target {name!r}: a live GPU is cuda:N; known names: {', '.join(TARGETS)}")
    return int(number or 0)


def _live(name: str) -> Target:
    """name: auto or cuda:N."""
    import torch

    index = 0 if name == "auto" else _index(name)

    if not torch.cuda.is_available():
        asked = f"no GPU {name} here" if name.startswith("cuda") else "no GPU here"
        raise UnknownTarget(f"{asked}: name a target to predict for, one of {', '.join(TARGETS)} (--target h200)")
    count = torch.cuda.device_count()
    if index >= count:
        live = ", ".join(f"cuda:{i}" for i in range(count))
        raise UnknownTarget(f"no GPU {name} here: this machine has {live}, or name a target (--target h200)")
    return from_properties(torch.cuda.get_device_properties(index), index)


def from_properties(facts: Any, index: int | None = None) -> Target:
    """A Target from CUDA device properties: limits are the device's own, ceilings those of the nearest known card."""
    arch = facts.major * 10 + facts.minor
    named = [t for key, t in TARGETS.items() if key.upper() in facts.name.upper()]
    near = named[0] if named else min(TARGETS.values(), key=lambda t: (abs(t.arch - arch), t.name))
    scale = facts.multi_processor_count / near.multiprocessors
    rates = ("tensor16_flops_per_us", "tensor8_flops_per_us", "tf32_flops_per_us", "l2_bytes_per_us")
    smem = int(getattr(facts, "shared_memory_per_multiprocessor", near.smem_per_mp))
    return replace(
        near,
        name=near.name if named else facts.name.lower().replace(" ", "-"),
        arch=arch,
        multiprocessors=facts.multi_processor_count,
        smem_per_mp=smem,
        smem_per_block=int(getattr(facts, "shared_memory_per_block_optin", smem - 1024)),
        l2_bytes=int(getattr(facts, "L2_cache_size", near.l2_bytes)),
        registers_per_mp=int(getattr(facts, "regs_per_multiprocessor", near.registers_per_mp)),
        max_warps_per_mp=int(getattr(facts, "max_threads_per_multi_processor", 32 * near.max_warps_per_mp)) // 32,
        live=index,
        **({} if named else {rate: getattr(near, rate) * scale for rate in rates}),
    )


def describe(target: Target) -> dict[str, object]:
    """Every fact, for `autofuse doctor`."""
    return {f.name: getattr(target, f.name) for f in fields(target)}
