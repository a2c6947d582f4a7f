"""Resident programs per multiprocessor from registers, warps and shared memory: exact, vectorised."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autofuse.cost.device import Target

REGISTER_UNIT = 256
"""Registers are given to a warp in units of 256, that is 8 a thread (CUDA occupancy calculator, sm_70 and later)."""
SUBPARTITIONS = 4
"""A multiprocessor's registers lie in four files; a warp's registers come from one of them."""
SMEM_UNIT = 128
SMEM_RESERVED = 1024
"""Shared memory that the system keeps per program (sm_80 and later)."""


def resident_programs(
    target: Target, registers: ArrayLike, num_warps: ArrayLike, smem_bytes: ArrayLike
) -> NDArray[np.int64]:
    """Programs resident on one multiprocessor; 0 where one does not fit at all."""
    warps = np.asarray(num_warps, dtype=np.int64)
    regs = np.maximum(np.asarray(registers, dtype=np.int64), 1)
    smem = np.asarray(smem_bytes, dtype=np.int64)
    per_warp = _up(regs * 32, REGISTER_UNIT)
    fitting = target.registers_per_mp // SUBPARTITIONS // per_warp * SUBPARTITIONS
    by_registers = np.where(regs > 255, 0, fitting // warps)
    by_smem = target.smem_per_mp // (_up(smem, SMEM_UNIT) + SMEM_RESERVED)
    by_smem = np.where(smem > target.smem_per_block, 0, by_smem)
    by_warps = target.max_warps_per_mp // warps
    return np.minimum(np.minimum(by_registers, by_smem), np.minimum(by_warps, target.max_blocks_per_mp))


def occupancy(target: Target, registers: ArrayLike, num_warps: ArrayLike, smem_bytes: ArrayLike) -> NDArray[np.float64]:
    """Resident warps as a share of the most that a multiprocessor holds."""
    programs = resident_programs(target, registers, num_warps, smem_bytes)
    return programs * np.asarray(num_warps, dtype=np.int64) / target.max_warps_per_mp


def _up(value: NDArray[np.int64], unit: int) -> NDArray[np.int64]:
    return -(-value // unit) * unit
