"""How one group runs: the unit of search, of the cache and of the log. No search-space files here."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from typing import cast

from autofuse.errors import InvalidSchedule

_ROLE = re.compile(r"^(grid|loop|whole|split)(?:\((\d+)(?:,(\d+))?\))?$")


@dataclass(frozen=True, slots=True, order=True)
class Role:
    """grid(B): tiles of B across programs. loop(B): tiles of B one after the other inside a program. whole: the whole
    axis in the tile, padded to a power of two. split(B,S): tiles of B, shared by S programs that combine: by atomic
    adds where plain float32 sums are all that is stored, else the one that comes last combines the parts of all."""

    kind: str
    block: int = 0
    parts: int = 1

    def __str__(self) -> str:
        match self.kind:
            case "whole":
                return "whole"
            case "split":
                return f"split({self.block},{self.parts})"
            case _:
                return f"{self.kind}({self.block})"

    @staticmethod
    def parse(text: str) -> Role:
        found = _ROLE.match(text)
        if not found or (found[1] == "whole") != (found[2] is None) or (found[1] == "split") != (found[3] is not None):
            raise InvalidSchedule(f"role {text!r}: expected grid(B), loop(B), whole or split(B,S)")
        return Role(found[1], int(found[2] or 0), int(found[3] or 1))


@dataclass(frozen=True, slots=True, order=True)
class Schedule:
    """roles: one a program axis, in loop order (outermost first). Knobs:

    num_warps, num_stages: as Triton's. group: rows of tiles walked together before the next column (grid order; 1 is
    row-major). persistent: programs per multiprocessor of a persistent grid, 0 for one program a tile. flatten: the
    persistent loop and the loop inside are pipelined as one. access: "pointer", "descriptor" (TMA for operands of
    contracts and for stores) or "operands" (TMA for the operands alone: a store then needs no shared memory of its
    own). eviction: "none" or "first" (streamed inputs leave the cache first). maxnreg: register cap, 0 for none.
    sweep: the way of a second pass along a looped axis: "forward" begins at the start again, "reverse" goes back from
    where the pass before it ended, "hold" does so and keeps that last tile in registers.
    """

    roles: tuple[tuple[str, Role], ...]
    num_warps: int = 4
    num_stages: int = 2
    group: int = 1
    persistent: int = 0
    flatten: bool = False
    access: str = "pointer"
    eviction: str = "none"
    maxnreg: int = 0
    sweep: str = "forward"

    def role(self, axis: str) -> Role:
        for name, role in self.roles:
            if name == axis:
                return role
        raise InvalidSchedule(f"no role for axis {axis!r}")

    def to_dict(self) -> dict[str, object]:
        knobs = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "roles"}
        return {"roles": {axis: str(role) for axis, role in self.roles}, **knobs}

    def to_json(self) -> str:
        """Canonical: sorted keys save the roles, whose order is the loop order."""
        return json.dumps(self.to_dict(), separators=(",", ":"))

    @staticmethod
    def from_dict(given: object) -> Schedule:
        """Raises InvalidSchedule, naming the field, on anything that to_dict does not make."""
        known = {f.name: f.type for f in fields(Schedule)}
        data = cast("dict[str, object]", given)
        if not isinstance(given, dict) or set(data) - set(known):
            raise InvalidSchedule(
                f"schedule has unknown fields: {sorted(set(data) - set(known)) if isinstance(given, dict) else data!r}"
            )
        mapped = data.get("roles")
        roles = cast("dict[str, str]", mapped)
        texts = list(cast("dict[str, object]", mapped).values()) if isinstance(mapped, dict) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise InvalidSchedule("schedule.roles must map axis names to roles")
        knobs: dict[str, object] = {}
        for name, kind in known.items():
            if name == "roles" or name not in data:
                continue
            value = data[name]
            if type(value).__name__ != kind or (isinstance(value, int) and not 0 <= value <= 1 << 20):
                raise InvalidSchedule(f"schedule.{name}: {value!r} is not a valid {kind}")
            knobs[name] = value
        return Schedule(tuple((axis, Role.parse(text)) for axis, text in roles.items()), **knobs)  # type: ignore[arg-type]

    def __str__(self) -> str:
        parts = [f"{axis}={role}" for axis, role in self.roles]
        parts += [f"warps={self.num_warps}", f"stages={self.num_stages}"]
        parts += [f"group={self.group}"] * (self.group > 1) + [f"persistent={self.persistent}"] * (self.persistent > 0)
        parts += ["flatten"] * self.flatten
        parts += {"descriptor": ["tma"], "operands": ["tma-operands"]}.get(self.access, [])
        parts += [f"evict={self.eviction}"] * (self.eviction != "none") + [f"maxnreg={self.maxnreg}"] * (
            self.maxnreg > 0
        )
        parts += [f"sweep={self.sweep}"] * (self.sweep != "forward")
        return " ".join(parts)
