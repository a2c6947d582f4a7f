"""Search spaces as data: what a family's axes and knobs may be on an architecture. Reading the files is spacefile.py.

A file says, for each axis class, which kinds of role it may take (in order of preference) with which blocks, for each
knob its values, and constraints with their reasons. Names that constraints may use, for each class C of the family:
block_C (1 where the class is absent), parts_C, size_C, has_C, role_C ("grid", "loop", "whole", "split" or ""); the
knobs; and FACTS below.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from autofuse.errors import SpaceError
from autofuse.ir.program import Program
from autofuse.schedule.constraints import Expression
from autofuse.schedule.families import CLASSES, Family, classify, next_pow2, role_assignments

if TYPE_CHECKING:
    from autofuse.schedule.spacefile import Fault

KNOBS: dict[str, str] = {
    "num_warps": "number",
    "num_stages": "number",
    "group": "number",
    "persistent": "number",
    "flatten": "bool",
    "access": "text",
    "eviction": "text",
    "maxnreg": "number",
    "sweep": "text",
}
"""Knobs of schedule.Schedule -> their kind in the constraint language."""

TARGET_FACTS = ("arch", "multiprocessors", "registers_per_mp", "smem_per_block")
"""Numbers taken from the target, or from the file's own [target] where no target is given."""

FACTS: dict[str, str] = {
    "threads": "number",  # of a program
    "tile_elements": "number",  # of the largest value in registers
    "acc_elements": "number",  # of all contracts' accumulators together
    "stage_bytes": "number",  # of the operands that one step of the contracts' loops loads
    "programs": "number",  # tiles of the grid, times the parts of a split axis
    "grid_axes": "number",  # grid axes with more than one tile
    "loop_steps": "number",  # of the loop axes together, in one pass
    "passes": "number",  # along the looped axes, one after the other
    "has_loop": "bool",
    "has_split": "bool",
    "itemsize": "number",  # bytes of an element of the largest input (of a contract's left operand)
    "n_loads": "number",
    "n_stores": "number",
    "n_reduces": "number",
    "n_contracts": "number",
    "aligned": "bool",  # contract operands have contiguous rows whose strides are multiples of 16 bytes
    "has_prologue": "bool",  # an operand of a contract is computed, not loaded
    **dict.fromkeys(TARGET_FACTS, "number"),
}

CLASS_NAMES = {"block": "number", "parts": "number", "size": "number", "has": "bool", "role": "text"}


def names_of(family: str) -> dict[str, str]:
    """What the constraints of a family's files may name -> its kind."""
    classes = {f"{stem}_{name}": kind for name in CLASSES[family] for stem, kind in CLASS_NAMES.items()}
    return {**classes, **KNOBS, **FACTS}


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """One kind of role for one class. max: greatest size of an axis that may take it (0: any). default_max: greatest
    size at which it is preferred to the kinds after it."""

    kind: str
    blocks: tuple[int, ...] = ()
    default: int = 0
    parts: tuple[int, ...] = (1,)
    default_parts: int = 1
    max: int = 0
    default_max: int = 0


@dataclass(frozen=True, slots=True)
class Knob:
    name: str
    values: tuple[int | bool | str, ...]
    default: int | bool | str


@dataclass(frozen=True, slots=True)
class Constraint:
    """A candidate must satisfy `expression`; `reason` completes "left out, because ..."."""

    name: str
    expression: Expression
    reason: str


@dataclass(frozen=True)
class Space:
    name: str
    family: str
    arch: int
    classes: dict[str, dict[str, RoleSpec]] = field(hash=False)
    knobs: tuple[Knob, ...]
    constraints: tuple[Constraint, ...]
    target: dict[str, int] = field(hash=False)

    def limits(self) -> dict[str, dict[str, int]]:
        return {
            name: {kind: spec.max or 1 << 62 for kind, spec in kinds.items()} for name, kinds in self.classes.items()
        }

    def assignments(self, program: Program, family: Family | None = None) -> tuple[dict[str, str], ...]:
        """Every legal role-kind vector that this space has blocks for, the default first."""
        family = family or classify(program)
        found = [
            kinds for kinds in role_assignments(program, family, self.limits())
            if all(self._takes(family.classes[axis], kind, program.sizes[axis]) for axis, kind in kinds.items())
        ]  # fmt: skip
        return tuple(sorted(found, key=lambda kinds: self._rank(program, family, kinds)))

    def covers(self, name: str, size: int) -> bool:
        """May an axis of this size be whole? Then a tile that covers it is no choice of another kind."""
        spec = self.classes[name].get("whole")
        return spec is not None and (not spec.max or size <= spec.max)

    def _takes(self, name: str, kind: str, size: int) -> bool:
        spec = self.classes.get(name, {}).get(kind)
        if spec is None:
            return False
        return kind not in ("loop", "split") or not self.covers(name, size) or spec.blocks[0] < next_pow2(size)

    def default_kinds(self, program: Program, family: Family | None = None) -> dict[str, str]:
        found = self.assignments(program, family)
        if not found:
            raise SpaceError(f"space {self.name}: no role assignment fits the program; widen its classes")
        return found[0]

    def _rank(self, program: Program, family: Family, kinds: dict[str, str]) -> tuple[int, ...]:
        """Sum of preference ranks, kinds beyond their default_max ranking after the others."""
        ranks: list[int] = []
        for axis, kind in kinds.items():
            specs = self.classes[family.classes[axis]]
            size = program.sizes[axis]
            beyond = bool(specs[kind].default_max) and size > specs[kind].default_max
            ranks.append(list(specs).index(kind) + len(specs) * beyond)
        return (sum(ranks), *ranks)


def folder() -> Path:
    """Where the shipped files are: inside the wheel's package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "_data" / "search_spaces"
    return inside if inside.is_dir() else package.parent / "search_spaces"


def shipped() -> tuple[Path, ...]:
    return tuple(sorted(folder().glob("*.toml")))


def load(source: str | Path) -> Space:
    """A shipped space by name (`contract_sm90`) or a file by path. Raises SpaceError that lists every fault."""
    from autofuse.schedule import spacefile

    return spacefile.load(Path(source) if Path(source).suffix == ".toml" else folder() / f"{source}.toml")


@cache
def for_family(family: str, arch: int) -> Space:
    """The shipped space of a family for an architecture: its own, else the nearest older, else the oldest. Read once: a
    search asks for it hundreds of times."""
    archs = sorted(
        int(tail) for path in shipped() for stem, _, tail in [path.stem.rpartition("_sm")]
        if stem == family and tail.isdigit()
    )  # fmt: skip
    if not archs:
        raise SpaceError(f"no search space for family {family!r} in {folder()}")
    older = [found for found in archs if found <= arch]
    return load(f"{family}_sm{older[-1] if older else archs[0]}")


def check(paths: Iterable[str | Path]) -> list[Fault]:
    """Every fault of every file."""
    from autofuse.schedule import spacefile

    return spacefile.check([Path(path) for path in paths])
