"""Time of a kernel from physics alone: roofline terms over waves, latency and what does not overlap. Nothing learned.

memory = pnorm(DRAM, L2, latency, atomics); compute = pnorm(tensor, shared memory, arithmetic, special, spills);
time = launch + pnorm_overlap(memory, compute) + ends that nothing overlaps.
Each term is of the whole kernel, in microseconds; the largest is what binds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.device import Target
from autofuse.cost.features import Features
from autofuse.cost.geometry import Array
from autofuse.cost.resources import Resources, by_rule

TERMS = ("dram", "l2", "latency", "tensor", "smem", "fp32", "special", "spill", "atomic")
"""Names of what may bind."""
MEMORY = ("dram", "l2", "latency", "atomic")
SHARPNESS = 5.0
"""Exponent of the norm that joins terms: overlapping engines do disturb each other (two equal terms: 15 %)."""
LOCKSTEP = 1.5
"""The exponent for memory and compute where one program alone loads, computes and stores in turn: nearly a sum.
Softmax of whole rows of 65536 columns reached 0.74 of its floor that way (FIELD.md)."""
MMA_SHARE = 0.62
"""Of the wgmma rate that mma.sync reaches on Hopper (published microbenchmarks: 62 to 65 %)."""
POINTER_SHARE = 0.93
"""Of the tensor rate left by loads through pointers; with flatten 1.0 (about 10 % between the two, FIELD.md)."""
LOOP_LATENCY_SHARE = 0.8
"""Of the memory latency that a load of a loop has: most hit L2."""
ROUND_US = 0.12
"""A reduction across the warps of a program: two barriers and a trip through shared memory."""
ATOMIC_BYTES_PER_US = 1.2e6
SPILL_REUSE = 2.0
"""Each spilled byte is stored once and loaded once, through L1."""
NEVER = 1e12
"""Time of what cannot run, microseconds: ranks last and stays finite."""


@dataclass(frozen=True)
class Estimate:
    """Arrays, one entry a candidate. binding indexes TERMS."""

    time_us: Array
    dram_bytes: Array
    binding: NDArray[np.int64]
    terms: dict[str, Array]
    resources: Resources


def estimate(features: Features, target: Target, resources: Resources | None = None) -> Estimate:
    """resources: of a head or of the compiler; by rule when not given."""
    have = by_rule(features, target) if resources is None else resources
    slots = np.maximum(have.resident, 1) * target.multiprocessors
    launched = _launched(features, target)
    dram_reads, dram_writes = dram_traffic(features, target, have)
    concurrent = np.minimum(launched, slots)
    terms = {
        "dram": (dram_reads + dram_writes) * _waste(features) / target.bytes_per_us(dram_reads, dram_writes),
        "l2": _l2(features, target, concurrent),
        "latency": _latency(features, target, concurrent),
        **_compute(features, target, have, concurrent),
        "spill": _spill(features, target, have, concurrent),
        "atomic": features["atomic_bytes"] / ATOMIC_BYTES_PER_US,
    }
    stack = np.stack([terms[name] for name in TERMS])
    memory = _join([terms[name] for name in MEMORY], SHARPNESS)
    compute = _join([terms[name] for name in TERMS if name not in MEMORY], SHARPNESS)
    joined = _join([memory, compute], _overlap(features, have))
    time = target.launch_us + joined + _ends(features, target, have, concurrent)
    time = np.where(have.resident > 0, time, NEVER)
    return Estimate(time, dram_reads + dram_writes, stack.argmax(axis=0), terms, have)


def _join(terms: list[Array], sharpness: Array | float) -> Array:
    """A p-norm, scaled so that large numbers do not overflow."""
    stack = np.stack(terms)
    top = np.maximum(stack.max(axis=0), 1e-12)
    return top * ((stack / top) ** sharpness).sum(axis=0) ** (1 / sharpness)


def _overlap(features: Features, resources: Resources) -> Array:
    """Exponent that joins memory and compute: more programs beside each other, or loads ahead of use, overlap better.
    Without reductions, the warps of a program drift apart and overlap too."""
    ahead = np.where(_pipelined(features), features["num_stages"] - 1, 0.0)
    alone = np.where(features["reductions"] > 0, 0.0, features["num_warps"] / 8)
    sets = np.maximum(resources.resident, 1) - 1 + alone
    return np.minimum(LOCKSTEP + 0.7 * sets + 1.5 * ahead, SHARPNESS)


def _pipelined(features: Features) -> NDArray[np.bool_]:
    """Are the loads of the loop made ahead? In a persistent kernel only operands of contracts are (codegen.layout)."""
    looped = (features["loops"] > 0) & (features["trips"] > 1) & (features["num_stages"] > 1)
    return looped & ((features["stage_dot_bytes"] > 0) | (features["persistent"] == 0))


def _launched(features: Features, target: Target) -> Array:
    """Programs of the grid."""
    persistent = features["persistent"]
    several = np.minimum(features["tiles"], persistent * target.multiprocessors)
    return np.where(persistent > 0, several, features["tiles"])


def rounds(features: Features, concurrent: Array) -> Array:
    """Turns that the busiest slot takes. Programs drift apart, so a last partial wave of short programs costs less
    than a whole one; tiles of a contract stay in step."""
    waves = features["tiles"] / np.maximum(concurrent, 1)
    full = np.ceil(waves - 1e-9)
    drift = np.where(features["dot_rows"] > 0, 0.0, 0.5)
    return np.maximum(full - drift * (full - waves), 1.0)


def dram_traffic(features: Features, target: Target, resources: Resources) -> tuple[Array, Array]:
    """(bytes read, bytes written). Later passes of a program come from L2 while all resident programs' rows fit."""
    span = features["pass_span_bytes"] * np.maximum(resources.resident, 1) * target.multiprocessors
    span = np.minimum(span, features["pass_span_bytes"] * features["tiles"])
    room = 0.6 * target.l2_bytes
    missed = np.clip(span / room - 0.5, 0.0, 1.0)
    # Going back, a pass finds first what the pass before it read last, and that much of it always.
    missed = np.where(features["sweep"] > 0, np.clip(1 - room / np.maximum(span, 1), 0.0, missed), missed)
    reads = features["grouped_read_bytes"] + missed * features["pass_bytes"] * (1 - features["turn_share"])
    threads = 32 * features["num_warps"] * features["tiles"]
    # Spills live in L1 and L2; about a tenth of a heavy one's traffic reaches DRAM.
    spilled = 0.1 * resources.spill_bytes * threads
    return reads + spilled, features["compulsory_write_bytes"] + spilled


def _waste(features: Features) -> Array:
    """Rows shorter than a sector move whole sectors, though neighbours find part of them in L2."""
    return 1 + 0.5 * (features["sector_waste"] - 1)


def _busy(concurrent: Array, target: Target) -> Array:
    """Share of multiprocessors with any work."""
    return np.minimum(concurrent / target.multiprocessors, 1.0)


def _l2(features: Features, target: Target, concurrent: Array) -> Array:
    spared = features["pass_bytes"] * features["turn_share"]
    moved = features["requested_read_bytes"] - spared + features["compulsory_write_bytes"]
    return moved * features["sector_waste"] / (target.l2_bytes_per_us * _busy(concurrent, target) ** 0.5)


def _latency(features: Features, target: Target, concurrent: Array) -> Array:
    """Little's law: each slot goes through its loads in turns of one latency, overlapped by stages where pipelined."""
    looped = (features["loops"] > 0) & (features["trips"] > 1)
    ahead = np.where(_pipelined(features), np.maximum(features["num_stages"] - 1, 1), 1.0)
    turns = np.where(looped, np.ceil(features["trips"]) / ahead, 0.0) + 1.0
    # A thread has only so many loads under way: large tiles go in several rounds of about 64 bytes times 8.
    per_thread = features["inflight_bytes"] / (32 * features["num_warps"])
    turns = turns * np.maximum(per_thread / 512, 1.0) ** 0.5
    narrow = np.maximum(4 / np.maximum(features["vector_bytes"], 1), 1.0)
    own = target.memory_latency_us * (turns * narrow + 0.5 + features["indirect"]) + ROUND_US * features["reductions"]
    overlap = np.where((features["flatten"] > 0) & (features["persistent"] > 0), 0.7, 1.0)
    return own * overlap * rounds(features, concurrent)


def _compute(features: Features, target: Target, resources: Resources, concurrent: Array) -> dict[str, Array]:
    """Tensor cores, shared memory and arithmetic: a multiprocessor's rate, stretched by the tail and by idle ones."""
    stretch = _stretch(features, target, concurrent)
    warps = np.maximum(resources.resident, 1) * features["num_warps"]
    issue = np.minimum(warps / 12, 1.0)
    plain = features["plain_instructions"] + 0.5 * features["simt_flops"]
    rate8 = target.tensor8_flops_per_us or target.tensor16_flops_per_us
    flops = features["tensor16_flops"] / target.tensor16_flops_per_us + features["tensor8_flops"] / rate8
    return {
        "tensor": flops / _tensor_share(features, target, resources) * stretch,
        "smem": features["dot_smem_bytes"] / target.smem_bytes_per_us * stretch,
        "fp32": plain / target.fp32_instructions_per_us / issue * stretch,
        "special": features["special_instructions"] / target.special_per_us / np.minimum(warps / 8, 1.0) * stretch,
    }


def _stretch(features: Features, target: Target, concurrent: Array) -> Array:
    """Work of the busiest multiprocessor over the average one's, an idle one counting."""
    per_mp = features["tiles"] / target.multiprocessors
    full = np.maximum(np.ceil(per_mp - 1e-9), 1.0)
    drift = np.where(features["dot_rows"] > 0, 0.0, 0.5)
    busiest = np.where(per_mp <= 1, 1.0, full - drift * (full - per_mp))
    slots = rounds(features, concurrent) * np.maximum(concurrent, 1) / np.maximum(features["tiles"], 1)
    return np.maximum(busiest / per_mp, np.where(features["dot_rows"] > 0, slots, 1.0))


def _tensor_share(features: Features, target: Target, resources: Resources) -> Array:
    """Of the tensor rate that the loop of this tile can reach. One turn of the loop takes `turn` cycles at full rate;
    beside it stand instructions to issue and, as far as stages and other programs do not hide it, a load's latency."""
    rows, columns, depth = features["dot_rows"], features["dot_columns"], features["dot_depth"]
    warps, resident = features["num_warps"], np.maximum(resources.resident, 1)
    turn = 2 * np.maximum(rows * columns * depth, 1.0) * target.multiprocessors * target.clock_mhz
    turn = turn / target.tensor16_flops_per_us
    described = features["descriptor"] > 0
    issue = np.where(described, 40.0, 60.0 + 0.004 * (rows + columns) * depth * 4 / warps)
    latency = LOOP_LATENCY_SHARE * target.memory_latency_us * target.clock_mhz
    # Wgmma of one turn is still reading its buffers when the next loads start: of the stages, about 1.4 do not help.
    ahead = np.maximum(features["num_stages"] - 1.4, 0.0)
    staged = np.maximum(turn + issue, latency / np.maximum(ahead, 0.6))
    halved = (features["persistent"] > 0) & (features["flatten"] > 0) & ~described  # resources.smem_rule
    single = np.where((features["num_stages"] > 1) & ~halved, staged, turn + issue + latency)
    share = resident * turn / np.maximum(resident * turn + issue, single)
    if target.wgmma:
        share = share * np.where((rows >= 64) & (warps >= 4), 1.0, MMA_SHARE)
        # One group of four warps can hold 64 rows of 256 columns; it feeds less well with fewer than 128 columns.
        share = share * np.where(columns < 128, 0.9, 1.0) * np.where(columns < 64, 0.8, 1.0)
    # Accumulators that spill bar the asynchronous instruction.
    share = share * np.where(resources.spill_bytes > 64, 0.3, 1.0)
    return share * np.where(described, 1.0, POINTER_SHARE)


def _spill(features: Features, target: Target, resources: Resources, concurrent: Array) -> Array:
    """Through L1 at its 64 bytes a clock, in every turn of the loop."""
    moved = resources.spill_bytes * SPILL_REUSE * 32 * features["num_warps"] * features["tiles"]
    moved = moved * np.maximum(np.ceil(features["trips"]), 1.0)
    return moved / (0.5 * target.smem_bytes_per_us) * _stretch(features, target, concurrent)


def _ends(features: Features, target: Target, resources: Resources, concurrent: Array) -> Array:
    """Filling the pipeline and the epilogue of a tile, as far as nothing else runs meanwhile."""
    threads = 32 * features["num_warps"]
    fill = target.memory_latency_us * (features["dot_rows"] > 0)
    instructions = features["epilogue_instructions"] / np.minimum(threads, target.fp32_per_clock_mp) / target.clock_mhz
    share = target.copy_bytes_per_us / np.maximum(concurrent, target.multiprocessors)
    drain = features["program_write_bytes"] / share * (features["dot_rows"] > 0)
    hidden = np.where((features["persistent"] > 0) & (features["flatten"] > 0), 0.75, 0.0)
    hidden = 1 - (1 - hidden) * np.where(resources.resident >= 2, 0.4, 1.0)
    each = (fill + instructions * (features["dot_rows"] > 0) + drain) * (1 - hidden)
    return each * rounds(features, concurrent)
