"""Registers, spilled bytes and shared memory by rule, from features alone: what the learned heads start from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autofuse.cost.device import Target
from autofuse.cost.features import Features
from autofuse.cost.geometry import Array
from autofuse.cost.occupancy import resident_programs

MOST_REGISTERS = 255
BASE_REGISTERS = 16.0
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


def with_values(
    features: Features, target: Target, registers: Array, spill_bytes: Array, smem_bytes: Array
) -> Resources:
    """From given numbers: a head's, or the compiler's own."""
    resident = resident_programs(target, np.ceil(registers), features["num_warps"], np.ceil(smem_bytes))
    return Resources(registers, spill_bytes, smem_bytes, resident.astype(np.float64))


def wanted_registers(features: Features) -> Array:
    """What a thread would hold if there were no limit."""
    share = np.where(features["dot_rows"] > 0, 0.75, 0.25)
    addresses = 2 * features["pointers"] + share * features["pointer_registers"] + features["masks"]
    return BASE_REGISTERS + features["live_registers"] + addresses + features["dot_registers"]


def register_limit(features: Features, target: Target) -> Array:
    """255, or fewer where all threads of a program must fit in one multiprocessor, or maxnreg says so."""
    threads = 32 * features["num_warps"]
    room = np.floor(target.registers_per_mp / threads / 8) * 8
    limit = np.minimum(room, MOST_REGISTERS)
    cap = features["maxnreg"]
    return np.where(cap > 0, np.minimum(limit, np.maximum(cap, 24)), limit)


def spilled_bytes(wanted: Array, limit: Array, fixed: Array) -> Array:
    """Of each thread. Once something must go, more than the excess goes; an accumulator of a contract (`fixed`) that
    fills the file goes whole. Fitted to compiled kernels (Triton 3.6, sm_90): 256 accumulators spill 1016 bytes, 512
    spill 2640; whole rows of 65536 spill 376, 328 and 144 at 8, 16 and 32 warps."""
    excess = wanted - limit
    some = np.where(excess > 0, 4 * (2 * excess + 0.2 * limit), 0.0)
    whole = np.where(fixed > limit - BASE_REGISTERS, 4 * (fixed + 0.6 * np.maximum(fixed - limit, 0.0)), 0.0)
    return np.maximum(some, whole)


def smem_rule(features: Features, target: Target) -> Array:
    """Buffers of the pipelined loop, or scratch of a reduction, or the tile that is stored on its way through shared
    memory, whichever is most (their lives do not overlap; in a persistent kernel the next tile's loads meet the last
    one's store by descriptor, and where its loops are flattened, any store).

    As compiled by Triton 3.6 for sm_90: wgmma holds `num_stages` buffers, since it reads them while the next load
    runs; mma.sync and plain loads copy to registers first and hold one fewer; a barrier of 8 bytes for each buffer
    that a descriptor fills; without stages, mma.sync holds one operand at a time. Without a loop of its own a
    persistent kernel pipelines the loads of its tiles. A product's tile is stored through pointers in the order of
    addresses, for which 16 warps exchange all of it and fewer warps a part at a time. An operand that is loaded before
    the loop (queries of attention) stays for wgmma to read, and makes room for the tile that is stored.
    """
    stages, dot = features["num_stages"], features["stage_dot_bytes"]
    looped, persistent = (features["loops"] > 0) & (stages > 1), (features["persistent"] > 0) & (stages > 1)
    wgmma = target.wgmma & (features["dot_rows"] >= 64) & (features["num_warps"] >= 4)
    described = features["descriptor"] * (features["dot_rows"] > 0)
    longer = np.maximum(features["dot_rows"], features["dot_columns"])
    operand = longer / np.maximum(features["dot_rows"] + features["dot_columns"], 1)
    buffers = np.where(looped, np.where(wgmma, stages, stages - 1), np.where(wgmma, 1.0, operand))
    # Through pointers, flattening leaves only the left operand pipelined (seen in the binary).
    rows = features["dot_rows"] / np.maximum(features["dot_rows"] + features["dot_columns"], 1)
    flattened = persistent & looped & (features["flatten"] > 0)
    halved = flattened & (features["descriptor"] == 0)
    buffers = np.where(halved, np.where(wgmma, stages, stages - 1) * rows + 1 - rows, buffers)
    tiles = np.where(persistent & (features["loops"] == 0) & (dot == 0), features["inflight_bytes"], 0.0)
    plain = np.where(looped, stages - 1, 0.0) * features["stage_plain_bytes"] + (stages - 1) * tiles
    loop = buffers * dot + plain + np.where(dot > 0, 0.0, operand * features["dot_operand_bytes"])
    barriers = 8 * described * np.where(looped, np.where(wgmma, stages, stages - 1), 1.0)
    by_descriptor = features["descriptor_store"] * described * features["store_tile_bytes"]
    share = np.where((dot > 0) & (features["descriptor_store"] == 0), np.minimum(features["num_warps"] / 16, 1.0), 0.0)
    exchanged = share * features["store_tile_bytes"]
    meets = persistent & looped
    once = (features["loops"] == 1) & (dot > 0) & (stages > 1) & wgmma
    kept = np.where(once, np.maximum(features["dot_operand_bytes"] - dot, 0.0), 0.0)
    beside = np.maximum(by_descriptor, kept)
    held = np.where(meets, loop + barriers + beside, np.maximum(loop + barriers + kept, by_descriptor))
    held = np.where(flattened, held + exchanged, np.maximum(held, exchanged))
    return np.maximum(held, features["scratch_bytes"])
