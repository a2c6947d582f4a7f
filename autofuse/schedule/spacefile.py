"""Search-space files: TOML in, Space or every fault with its place out. No candidates here."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from autofuse.errors import SpaceError
from autofuse.schedule.constraints import ConstraintError, parse
from autofuse.schedule.families import CLASSES
from autofuse.schedule.space import KNOBS, TARGET_FACTS, Constraint, Knob, RoleSpec, Space, names_of

KINDS = ("grid", "loop", "whole", "split")
FIELDS = {
    "grid": {"blocks", "default", "max", "default_max"},
    "loop": {"blocks", "default", "max", "default_max"},
    "whole": {"max", "default_max"},
    "split": {"blocks", "default", "parts", "default_parts", "max", "default_max"},
}
TOP = {"family", "arch", "extends", "target", "class", "knobs", "constraint"}
CHOICES: dict[str, tuple[object, ...]] = {
    "flatten": (False, True),
    "access": ("pointer", "descriptor", "operands"),
    "eviction": ("none", "first"),
    "sweep": ("forward", "reverse", "hold"),
}
RANGES = {"num_warps": (1, 32), "num_stages": (1, 16), "group": (1, 64), "persistent": (0, 16), "maxnreg": (0, 255)}
LARGEST_BLOCK = 1 << 20
"""Triton's own limit on the elements of a tile."""


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """line and column are 1-based; 0 where a fault has no place (a file that is not there)."""

    path: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        where = f":{self.line}:{self.column}" if self.line else ""
        return f"{self.path}{where}: {self.message}"


def load(path: Path) -> Space:
    reader = _Reader(path)
    space = reader.space()
    if reader.faults or space is None:
        raise SpaceError("\n".join(str(fault) for fault in sorted(reader.faults)))
    return space


def check(paths: Iterable[Path]) -> list[Fault]:
    found: dict[Fault, None] = {}
    for path in paths:
        reader = _Reader(path)
        reader.space()
        found |= dict.fromkeys(sorted(reader.faults))
    return list(found)


# --- places ---

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*((?:[A-Za-z0-9_.-]+|"[^"]*"|'[^']*')(?:\s*\.\s*[A-Za-z0-9_-]+)*)\s*=""")


class Places:
    """Where each key of a TOML text stands, by its path; the text is searched since tomllib keeps no places."""

    def __init__(self, text: str) -> None:
        self.found: dict[tuple[str, ...], tuple[int, int]] = {}
        self.lines = text.splitlines()
        counters: dict[str, int] = {}
        table: tuple[str, ...] = ()
        for number, line in enumerate(self.lines, 1):
            header = _HEADER.match(line)
            if header:
                name = header[2]
                table = tuple(part.strip().strip("\"'") for part in name.split("."))
                if header[1] == "[[":
                    table = (*table, str(counters.setdefault(name, 0)))
                    counters[name] += 1
                self.found.setdefault(table, (number, line.index("[") + 1))
                continue
            key = _KEY.match(line)
            if key:
                name = tuple(part.strip().strip("\"'") for part in key[1].split("."))
                self.found.setdefault((*table, *name), (number, line.index(key[1]) + 1))

    def of(self, path: tuple[str, ...]) -> tuple[int, int]:
        """Of the key, or of the nearest thing around it."""
        while path:
            if path in self.found:
                line, column = self.found[path]
                return line, column
            path = path[:-1]
        return 1, 1

    def of_text(self, path: tuple[str, ...], line: int, column: int) -> tuple[int, int]:
        """A place inside the string that is a key's value."""
        at, start = self.of(path)
        source = self.lines[at - 1]
        opening = re.compile(r"=\s*(\"\"\"|'''|\"|')").search(source, start - 1)
        if not opening:
            return at, start
        triple = len(opening[1]) == 3
        if triple and opening.end() == len(source.rstrip()):
            at, origin = at + 1, 0
        else:
            origin = opening.end()
        return at + line - 1, (origin if line == 1 else 0) + column


# --- reading ---


class _Reader:
    """One file with what it extends. Faults of a base file are named under the base's own path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.faults: list[Fault] = []
        self.places: dict[str, Places] = {}
        self.family = ""
        self.touched: set[tuple[str, ...]] = set()
        """Paths of faults: what is wrong there is not missing too."""
        self.broken = False
        """A layer could not be read, so that nothing can be said to be missing."""

    def fault(self, file: Path, path: tuple[str, ...], message: str) -> None:
        places = self.places.get(str(file))
        self.touched.add(path)
        line, column = places.of(path) if places else (0, 0)
        self.faults.append(Fault(str(file), line, column, message))

    def read(self, file: Path, seen: tuple[Path, ...]) -> list[tuple[Path, dict[str, object]]]:
        """The file's tables, after those of what it extends."""
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            self.broken = True
            self.faults.append(Fault(str(file), 0, 0, f"cannot be read: {reason}"))
            return []
        self.places[str(file)] = Places(text)
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            place = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
            line, column = (int(place[1]), int(place[2])) if place else (len(text.splitlines()) or 1, 1)
            self.broken = True
            self.faults.append(Fault(str(file), line, column, f"not TOML: {str(error).split(' (at ')[0]}"))
            return []
        except RecursionError:
            self.broken = True
            self.faults.append(Fault(str(file), 0, 0, "not a search space: nested too deeply"))
            return []
        base = data.get("extends")
        if base is None:
            return [(file, data)]
        if not isinstance(base, str) or not re.fullmatch(r"[A-Za-z0-9_]+", base):
            self.broken = True
            self.fault(file, ("extends",), "extends must be the name of a file beside this one, without .toml")
            return [(file, data)]
        parent = file.with_name(f"{base}.toml")
        if parent.resolve() in seen or parent.resolve() == file.resolve():
            self.broken = True
            self.fault(file, ("extends",), f"extends {base!r}, which extends this file")
            return [(file, data)]
        if not parent.is_file():
            self.broken = True
            self.fault(file, ("extends",), f"extends {base!r}: no {parent.name} beside this file")
            return [(file, data)]
        return [*self.read(parent, (*seen, file.resolve())), (file, data)]

    def space(self) -> Space | None:
        layers = self.read(self.path, ())
        if not layers:
            return None
        family, arch = self.head(layers)
        if family not in CLASSES:
            return None
        self.family = family
        classes: dict[str, dict[str, RoleSpec]] = {}
        knobs: dict[str, Knob] = {}
        constraints: dict[str, Constraint] = {}
        target: dict[str, int] = {}
        for file, data in layers:
            for key in sorted(set(data) - TOP):
                self.fault(file, (key,), f"unknown key {key!r}; known: {', '.join(sorted(TOP))}")
            self.classes(file, data, classes)
            self.knobs(file, data, knobs)
            self.constraints(file, data, constraints)
            self.target(file, data, target)
        self.complete(classes, knobs, target)
        target["arch"] = arch
        order = tuple(knobs[name] for name in KNOBS if name in knobs)
        return Space(self.path.stem, family, arch, classes, order, tuple(constraints.values()), target)

    def head(self, layers: list[tuple[Path, dict[str, object]]]) -> tuple[str, int]:
        family, arch = "", 0
        for file, data in layers:
            if "family" in data:
                if isinstance(data["family"], str) and data["family"] in CLASSES:
                    family = str(data["family"])
                else:
                    self.fault(file, ("family",), f"family must be one of {', '.join(CLASSES)}")
            if "arch" in data:
                found = data["arch"]
                if isinstance(found, int) and not isinstance(found, bool) and 50 <= found <= 200:
                    arch = found
                else:
                    self.fault(file, ("arch",), "arch must be a compute capability as a number, such as 90")
        last = layers[-1][0]
        if not family and not any("family" in data for _, data in layers):
            self.fault(last, (), "family is missing")
        if not arch and not any("arch" in data for _, data in layers):
            self.fault(last, (), "arch is missing")
        return family, arch

    def table(self, file: Path, data: Mapping[str, object], path: tuple[str, ...]) -> dict[str, object]:
        found = data.get(path[-1], {})
        if isinstance(found, dict):
            return cast("dict[str, object]", found)
        self.fault(file, path, f"{'.'.join(path)} must be a table")
        return {}

    # --- classes ---

    def classes(self, file: Path, data: dict[str, object], into: dict[str, dict[str, RoleSpec]]) -> None:
        for name in self.table(file, data, ("class",)):
            path = ("class", name)
            kinds = self.table(file, self.table(file, data, ("class",)), path)
            if name not in CLASSES[self.family]:
                known = ", ".join(CLASSES[self.family])
                self.fault(file, path, f"family {self.family} has no class {name!r}; it has {known}")
                continue
            for kind in kinds:
                if kind not in KINDS:
                    self.fault(file, (*path, kind), f"unknown role {kind!r}; known: {', '.join(KINDS)}")
                    continue
                spec = self.role(file, kind, self.table(file, kinds, (*path, kind)), (*path, kind))
                if spec is not None:
                    into.setdefault(name, {})[kind] = spec

    def role(self, file: Path, kind: str, table: dict[str, object], path: tuple[str, ...]) -> RoleSpec | None:
        before = len(self.faults)
        for key in table:
            if key not in FIELDS[kind]:
                known = ", ".join(sorted(FIELDS[kind]))
                self.fault(file, (*path, key), f"a {kind} role has no {key!r}; it has {known}")
        found: dict[str, object] = {}
        for names in (("blocks", "default"), ("parts", "default_parts")):
            if names[0] in FIELDS[kind]:
                self.choices(file, table, path, names, found)
        for key in ("max", "default_max"):
            if key in table:
                value = table[key]
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    self.fault(file, (*path, key), f"{key} must be a positive number")
                found[key] = value
        return RoleSpec(kind, **found) if len(self.faults) == before else None  # type: ignore[arg-type]

    def choices(
        self,
        file: Path,
        table: dict[str, object],
        path: tuple[str, ...],
        names: tuple[str, str],
        into: dict[str, object],
    ) -> None:
        """The list called names[0] with its default, called names[1]."""
        values, default = names
        given = table.get(values)
        if not isinstance(given, list) or not given:
            self.fault(file, (*path, values) if values in table else path, f"{values} must be a list of numbers")
            return
        given = cast("list[object]", given)
        for value in given:
            if not is_size(value, power=values == "blocks"):
                wanted = "power of two" if values == "blocks" else "number"
                self.fault(file, (*path, values), f"{values}: {value!r} is no {wanted} from 1 to {LARGEST_BLOCK}")
                return
        numbers = cast("list[int]", given)
        if numbers != sorted(set(numbers)):
            self.fault(file, (*path, values), f"{values} must ascend without repeats")
        if default not in table:
            self.fault(file, path, f"{default} is missing")
        elif table[default] not in given or isinstance(table[default], bool):
            self.fault(file, (*path, default), f"{default} {table[default]!r} is none of {values}")
        into |= {values: tuple(numbers), default: table.get(default)}

    # --- knobs, target ---

    def knobs(self, file: Path, data: dict[str, object], into: dict[str, Knob]) -> None:
        tables = self.table(file, data, ("knobs",))
        for name in tables:
            path = ("knobs", name)
            if name not in KNOBS:
                self.fault(file, path, f"unknown knob {name!r}; known: {', '.join(KNOBS)}")
                continue
            table = self.table(file, tables, path)
            before = len(self.faults)
            for key in sorted(set(table) - {"values", "default"}):
                self.fault(file, (*path, key), f"a knob has no {key!r}; it has values and default")
            values, default = table.get("values"), table.get("default")
            if not isinstance(values, list) or not values:
                self.fault(file, path, f"{name}.values must be a list that is not empty")
                continue
            values = cast("list[int | bool | str]", values)
            for value in values:
                problem = knob_problem(name, value)
                if problem:
                    self.fault(file, path, f"{name}: {value!r} {problem}")
            if len(self.faults) > before:
                continue
            if len({(type(value), value) for value in values}) != len(values):
                self.fault(file, path, f"{name}.values repeats a value")
            elif name in RANGES and values != sorted(values):
                self.fault(file, path, f"{name}.values must ascend")
            if not any(type(value) is type(default) and value == default for value in values):
                self.fault(file, path, f"{name}.default {default!r} is none of its values")
            if len(self.faults) == before:
                into[name] = Knob(name, tuple(values), default)  # type: ignore[arg-type]

    def target(self, file: Path, data: dict[str, object], into: dict[str, int]) -> None:
        for name, value in self.table(file, data, ("target",)).items():
            if name not in TARGET_FACTS or name == "arch":
                known = ", ".join(fact for fact in TARGET_FACTS if fact != "arch")
                self.fault(file, ("target", name), f"unknown fact {name!r}; known: {known}")
            elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
                self.fault(file, ("target", name), f"{name} must be a positive number")
            else:
                into[name] = value

    def complete(self, classes: dict[str, dict[str, RoleSpec]], knobs: dict[str, Knob], target: dict[str, int]) -> None:
        """What must be there once all layers are read."""
        if self.broken:
            return
        wanted = [("class", name, f"class {name!r} is missing") for name in CLASSES[self.family] if name not in classes]
        wanted += [("knobs", name, f"knob {name!r} is missing") for name in KNOBS if name not in knobs]
        wanted += [("target", n, f"target.{n} is missing") for n in TARGET_FACTS if n not in target and n != "arch"]
        known = {part for path in self.touched for part in (path[:2], path)}
        for table, name, message in wanted:
            if not known & {(table, name), (table,)}:
                self.fault(self.path, (table,), message)

    # --- constraints ---

    def constraints(self, file: Path, data: dict[str, object], into: dict[str, Constraint]) -> None:
        """A constraint replaces one of the same name in what the file extends."""
        tables = data.get("constraint", [])
        if not isinstance(tables, list):
            self.fault(file, ("constraint",), "constraints are written as [[constraint]]")
            return
        names = names_of(self.family)
        mine: set[str] = set()
        for number, item in enumerate(cast("list[object]", tables)):
            path = ("constraint", str(number))
            if not isinstance(item, dict):
                self.fault(file, path, "a constraint must be a table")
                continue
            table = cast("dict[str, object]", item)
            before = len(self.faults)
            for key in sorted(set(table) - {"name", "expr", "reason"}):
                self.fault(file, (*path, key), f"a constraint has no {key!r}; it has name, expr and reason")
            for key in ("name", "expr", "reason"):
                if not isinstance(table.get(key), str) or not str(table[key]).strip():
                    self.fault(file, (*path, key), f"constraint {key} must be a text that is not empty")
            name, text, reason = (str(table.get(key, "")) for key in ("name", "expr", "reason"))
            if name in mine:
                self.fault(file, (*path, "name"), f"a second constraint is called {name!r}")
            if isinstance(table.get("expr"), str) and text.strip():
                try:
                    expression = parse(text, names)
                except ConstraintError as error:
                    places = self.places[str(file)]
                    line, column = places.of_text((*path, "expr"), error.line, error.column)
                    self.faults.append(Fault(str(file), line, column, str(error)))
                    continue
                if len(self.faults) == before:
                    mine.add(name)
                    into[name] = Constraint(name, expression, reason)


def is_size(value: object, power: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_BLOCK:
        return False
    return not (power and value & (value - 1))


def knob_problem(name: str, value: object) -> str:
    """Why a knob cannot have a value, or nothing."""
    if name in CHOICES:
        good = any(type(value) is type(choice) and value == choice for choice in CHOICES[name])
        return "" if good else f"is none of {', '.join(str(choice) for choice in CHOICES[name])}"
    low, high = RANGES[name]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        return f"is no number from {low} to {high}"
    if name == "num_warps" and value & (value - 1):
        return "is no power of two"
    return ""
