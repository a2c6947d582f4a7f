"""Tuning problems of recordings, built again from the shipped workloads: their programs, and what was recorded of them
as a pool that strategies can search. Needs no GPU; only workloads that come with autofuse are run."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from autofuse.capture.trace import capture
from autofuse.capture.workload import kinds, load
from autofuse.cost.device import Target, resolve
from autofuse.cost.features import Features
from autofuse.cost.model import CostModel
from autofuse.cost.recording import FROM_DEFAULT
from autofuse.errors import AutofuseError, InvalidSchedule
from autofuse.fusion.build import NotFusible, build
from autofuse.fusion.enumerate import enumerate_groups
from autofuse.fusion.group import Group
from autofuse.ir.fingerprint import program_key
from autofuse.ir.program import Program
from autofuse.schedule.schedule import Schedule
from autofuse.search.effort import EFFORTS
from autofuse.search.pool import Pool, Subspace, subspaces

if TYPE_CHECKING:
    import pyarrow as pa

Name = tuple[tuple[str, ...], Schedule]
"""Of a candidate: its rewrites and its schedule."""

NEEDED = ("workload", "shape_json", "program_key", "target", "config_json", "rewrites")


def rebuilt(origins: Iterable[tuple[str | None, str | None, str]]) -> dict[str, Program]:
    """Programs by program_key. origins: workload, its shape as JSON, program_key. Left out: what no shipped workload
    makes any more, or this version of autofuse makes otherwise."""
    wanted: dict[tuple[str, str], set[str]] = {}
    for workload, shape, key in origins:
        wanted.setdefault((workload or "", shape or ""), set()).add(key)
    found: dict[str, Program] = {}
    for (workload, shape), keys in wanted.items():
        own_file = ":" in workload  # data is not to say which file is run
        if not own_file and keys - found.keys():
            found |= _programs(workload, shape, keys)
    return found


def _programs(workload: str, shape: str, keys: Collection[str]) -> dict[str, Program]:
    found: dict[str, Program] = {}
    try:
        graphs = [item.graph for item in capture(*load(workload, dict(json.loads(shape)), "cuda", fake=True))]
    except (AutofuseError, ValueError, TypeError):  # no such workload or dim, or no shape at all
        return {}
    for graph in graphs:

        def legal(group: Group, graph: Any = graph) -> str | None:
            try:
                program = build(graph, frozenset(group.ops), group.outputs)
            except NotFusible as reason:
                return str(reason)
            key = program_key(program)
            if key in keys:
                found.setdefault(key, program)
            return None

        enumerate_groups(graph, legal, budget=EFFORTS["quick"].groups)
    return found


def name_of(config_json: str | None, rewrites: str | None) -> Name | None:
    """None for what is no schedule that this autofuse has."""
    try:
        schedule = Schedule.from_dict(json.loads(config_json or ""))
    except (InvalidSchedule, ValueError):
        return None
    return tuple(filter(None, (rewrites or "").split(","))), schedule


def places(parts: Sequence[Subspace], names: Sequence[Name | None]) -> list[tuple[int, int] | None]:
    """Of each candidate its subspace and the index therein; None where the spaces have none such."""
    return [None if name is None else _place(parts, name) for name in names]


def _place(parts: Sequence[Subspace], name: Name) -> tuple[int, int] | None:
    found = ((number, index) for number, part in enumerate(parts) for index in part.indices([name]))
    return next(found, None)


def pool_of(parts: tuple[Subspace, ...], at: Sequence[tuple[int, int]], target: Target, model: CostModel) -> Pool:
    """A pool of exactly these candidates, in the order given: position n is the n-th of `at`, whatever is predicted."""
    which = np.array([number for number, _ in at], dtype=np.int64)
    index = np.array([place for _, place in at], dtype=np.int64)
    order, features = [], []
    for number, part in enumerate(parts):
        here = np.flatnonzero(which == number)
        if len(here):
            order.append(here)
            features.append(part.features(index[here], target))
    back = np.argsort(np.concatenate(order), kind="stable")
    joined = Features.concat(features).take(back)
    return Pool(parts, which, index, joined, model.predict(joined, target), len(at))


# --- what judging a model needs and recordings lack ---


def annotated(table: pa.Table) -> pa.Table:
    """The table with `kind`, `dtype` (of what is largest among inputs and outputs) and `from_default` (place among the
    role assignments, then steps from the default values): null where the problem or the candidate cannot be had again.
    As it is where it does not name its problems (NEEDED).
    """
    import pyarrow as pa

    if not {*NEEDED} <= {*table.column_names}:
        return table
    columns = {name: table.column(name).to_pylist() for name in NEEDED}
    programs = rebuilt(zip(columns["workload"], columns["shape_json"], columns["program_key"], strict=True))
    dtype = [largest_dtype(programs[key]) if key in programs else None for key in columns["program_key"]]
    steps = np.full(len(table), np.nan)
    keys, targets = np.array(columns["program_key"], dtype=object), np.array(columns["target"], dtype=object)
    for key, target in {(k, t) for k, t in zip(keys, targets, strict=True) if k in programs}:
        rows = np.flatnonzero((keys == key) & (targets == target))
        names = [name_of(columns["config_json"][row], columns["rewrites"][row]) for row in rows]
        steps[rows] = from_default(subspaces(programs[key], resolve(target)), names)
    added = {"dtype": pa.array(dtype, pa.string()), FROM_DEFAULT: pa.array(steps, from_pandas=True)}
    for name, column in added.items():
        table = table.append_column(name, column)
    return with_kinds(table)


def with_kinds(table: pa.Table) -> pa.Table:
    """The table with `kind`, the shipped file of each row's workload: null where the workload is not named or not
    shipped. Runs no workload. As it is where it has no such column."""
    import pyarrow as pa

    if "workload" not in table.column_names:
        return table
    kind = kinds()
    found = [kind.get(workload or "") for workload in table.column("workload").to_pylist()]
    return table.append_column("kind", pa.array(found, pa.string()))


INDICES = ("bool", "int32", "int64")
"""Dtypes of masks and of indices."""
SUBSPACE_STEPS = 1e6
"""More than any candidate is away from the defaults of its own subspace: the default roles come first."""


def from_default(parts: Sequence[Subspace], names: Sequence[Name | None]) -> NDArray[np.float64]:
    """The default configuration has the least; NaN for a candidate that the spaces do not have."""
    found = np.full(len(names), np.nan)
    for row, place in enumerate(places(parts, names)):
        if place is not None:
            number, index = place
            found[row] = SUBSPACE_STEPS * number + parts[number].candidates.away(np.array([index]))[0]
    return found


def largest_dtype(program: Program) -> str:
    """Of the input or output with most elements, the first of several; masks and indices only where all are such."""
    kinds = [program.types[value] for value in (*program.inputs, *program.outputs)]
    return max(kinds, key=lambda kind: (kind.dtype not in INDICES, kind.numel)).dtype
