"""Registers, spilled bytes and shared memory by rule, from features alone: what the learned heads start from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autofuse.cost.device import Target
from autofuse.cost.features import Features
from autofuse.cost.geometry import Array
from autofuse.cost.occupancy import resident_programs

MOST_REGISTERS = 255
BASE_REGISTERS = 20.0
"""Program id, loop counters, barriers, constants."""


@dataclass(frozen=True)
class Resources:
    """registers a thread; spill_bytes stored and loaded again a thread; smem_bytes a program; resident programs on a
    multiprocessor (0: does not fit)."""

    registers: Array
    spill_bytes: Array
    smem_bytes: Array
    resident: Array


def by_rule(features: Features, target: Target) -> Resources:
    wanted = wanted_registers(features)
    limit = register_limit(features, target)
    spills = spilled_bytes(wanted, limit, features["accumulator_registers"])
    return with_values(features, target, np.minimum(wanted, limit), spills, smem_rule(features, target))


def with_values(features: Features, target: Target, registers: Array, spill_bytes: Array, smem_bytes: Array) -> Resources:
    """From given numbers: a head's, or the compiler's own."""
    resident = resident_programs(target, np.ceil(registers), features["num_warps"], np.ceil(smem_bytes))
    return Resources(registers, spill_bytes, smem_bytes, resident.astype(np.float64))


def wanted_registers(features: Features) -> Array:
    """What a thread would hold if there were no limit."""
    addresses = 2 * features["pointers"] + 0.5 * features["pointer_registers"] + features["masks"]
    return BASE_REGISTERS + features["live_registers"] + addresses + features["dot_registers"]


def register_limit(features: Features, target: Target) -> Array:
    """255, or fewer where all threads of a program must fit in one multiprocessor, or maxnreg says so."""
    threads = 32 * features["num_warps"]
    room = np.floor(target.registers_per_mp / threads / 8) * 8
    limit = np.minimum(room, MOST_REGISTERS)
    cap = features["maxnreg"]
    return np.where(cap > 0, np.minimum(limit, np.maximum(cap, 24)), limit)


def spilled_bytes(wanted: Array, limit: Array, fixed: Array) -> Array:
    """Of each thread: what does not fit goes to local memory once. By reordering, the compiler finds room for about a
    quarter of what is not `fixed` (an accumulator of a contract cannot be put off)."""
    slack = 0.25 * np.maximum(wanted - fixed - BASE_REGISTERS, 0.0)
    return 4 * np.maximum(wanted - slack - limit, 0.0)


def smem_rule(features: Features, target: Target) -> Array:
    """Buffers of the pipelined loop, or the largest of scratch and the tile of the epilogue, whichever is more."""
    stages = features["num_stages"]
    looped = features["loops"] > 0
    buffers = np.where(looped & (stages > 1), stages if target.wgmma else np.maximum(stages - 1, 1), 1.0)
    plain = np.where(looped & (stages > 1) & (features["persistent"] == 0), buffers, 0.0) * features["stage_plain_bytes"]
    pipelined = np.where(looped, buffers, 0.0) * features["stage_dot_bytes"] + plain
    outside = np.where(looped, 0.0, features["dot_operand_bytes"])
    held = features["descriptor"] * features["store_tile_bytes"] * (features["dot_rows"] > 0)
    return np.maximum(pipelined + outside, features["scratch_bytes"]) + held
