"""Bytes between multiprocessors, L2 and DRAM: compulsory, requested, and what a wave in grid order shares."""

from __future__ import annotations

import numpy as np

from autofuse.cost.geometry import Array, Geometry
from autofuse.cost.walk import Access, Work

L2_SHARE = 0.6
"""Part of L2 that data kept for reuse can count on, the rest being passed through by streams. To be fitted."""


def traffic(geometry: Geometry, work: Work) -> dict[str, Array]:
    zero = np.zeros(geometry.n)
    found = dict.fromkeys(("compulsory_write_bytes", "atomic_bytes", "program_write_bytes"), zero)
    found |= _reads(geometry, work)
    for store in work.stores:
        # One store to a value; a value stored twice (never so far) counts twice.
        size = _span(geometry, store) * store.itemsize
        found["compulsory_write_bytes"] = found["compulsory_write_bytes"] + size
        found["program_write_bytes"] = found["program_write_bytes"] + _per_program(geometry, store)
        if store.atomic:
            found["atomic_bytes"] = found["atomic_bytes"] + size * geometry.repeats(store.axes, store.opened)
    return found


def _span(geometry: Geometry, access: Access) -> float:
    """Distinct elements that an access touches over the whole kernel, at most."""
    total = 1.0
    for axis in access.axes:
        total *= geometry.program.sizes[axis]
    return total


def _per_program(geometry: Geometry, access: Access) -> Array:
    elements = geometry.product(np.minimum(geometry.block[a], geometry.program.sizes[a]) for a in access.axes)
    return elements * geometry.product(geometry.trips[a] for a in access.opened) * access.itemsize


def _footprint(geometry: Geometry, value: str, loads: list[Access]) -> float:
    """Distinct bytes of a value that are read: no more than it has, no more than the loads span."""
    kind = geometry.program.types[value]
    real = 1
    for size, stride in zip(kind.shape, kind.strides, strict=True):
        real *= size if stride else 1
    return (
        min(float(real), sum({(x.axes, x.contiguous): _span(geometry, x) for x in loads}.values())) * loads[0].itemsize
    )


def _reads(geometry: Geometry, work: Work) -> dict[str, Array]:
    zero = np.zeros(geometry.n)
    values: dict[str, list[Access]] = {}
    for load in work.loads:
        values.setdefault(load.value, []).append(load)
    prints = {value: _footprint(geometry, value, loads) for value, loads in values.items()}
    requested, passes, own, compulsory, span = zero, zero, zero, zero, zero
    first_request: dict[str, Array] = {}
    for value, loads in values.items():
        every = [_span(geometry, x) * x.itemsize * geometry.repeats(x.axes, x.opened) for x in loads]
        mine = [_per_program(geometry, x) for x in loads]
        first_request[value] = np.maximum.reduce(every)
        requested = requested + sum(every)
        # The same program's later reads of what it read before (further passes): from L2 while they fit there.
        passes = passes + sum(every) - first_request[value]
        own, span = own + sum(mine), span + np.maximum.reduce(mine)
        compulsory = compulsory + prints[value]
    grouped = _grouped(geometry, values, prints, first_request)
    return {
        "compulsory_read_bytes": compulsory, "requested_read_bytes": requested, "grouped_read_bytes": grouped,
        "pass_bytes": passes, "pass_span_bytes": span, "program_read_bytes": own,
    }  # fmt: skip


def _grouped(
    geometry: Geometry, values: dict[str, list[Access]], prints: dict[str, float], requested: dict[str, Array]
) -> Array:
    """DRAM reads of first passes if each wave shares its panels through L2 and waves share nothing but what stays.

    A wave is taken as one program a multiprocessor (two for small ones): its shape decides how many different panels
    it touches. Values that are small beside L2 stay resident across waves.
    """
    concurrent = np.minimum(
        geometry.tiles, geometry.target.multiprocessors * np.clip(8 / (geometry.threads / 32), 1, 8)
    )
    extent = geometry.wave(concurrent)
    waves = geometry.tiles / concurrent
    total = np.zeros(geometry.n)
    room = L2_SHARE * geometry.target.l2_bytes
    for value, loads in values.items():
        load = max(loads, key=lambda x: len(x.axes))
        different = geometry.product(extent[a] for a in geometry.grid if a in load.axes)
        per_wave = different * _per_program(geometry, load)
        shared = np.clip(waves * per_wave, prints[value], np.maximum(requested[value], prints[value]))
        # What all programs walk through between two uses of the value: the value itself, and its rivals' wave share.
        resident = np.clip(1.5 - prints[value] / room, 0.0, 1.0)
        total = total + resident * prints[value] + (1 - resident) * shared
    return total
