"""What the generator hands on: Triton source plus everything needed to compile and launch it. Data only."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Parameter:
    """One run-time argument of a kernel, in order: a pointer to a value, or a host-built tensor descriptor of it.

    value: the program's name of the value. dtype: torch's name. block: tile shape of a descriptor, () for a pointer.
    shape, strides: the 2-d or 3-d view that a descriptor is built on (elements), () for a pointer; the last stride is
    1. aligned: the pointer may be assumed 16-byte aligned (checked at launch). scratch: elements of a buffer of the
    kernel's own (value is its name), zero before the first launch, 0 for a value of the program.
    """

    name: str
    value: str
    dtype: str
    block: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    aligned: bool = True
    scratch: int = 0


@dataclass(frozen=True, slots=True)
class Kernel:
    """A generated kernel: `source` defines one @triton.jit function called `name` whose parameters are `parameters`
    followed by the constexprs in `constants`. zeroed: outputs that must hold zeros before the launch (atomics)."""

    name: str
    source: str
    parameters: tuple[Parameter, ...]
    constants: tuple[tuple[str, int], ...]
    grid: tuple[int, int, int]
    num_warps: int
    num_stages: int
    maxnreg: int = 0
    zeroed: tuple[str, ...] = ()

    @property
    def values(self) -> tuple[str, ...]:
        """What it reads and writes, its own scratch left out."""
        return tuple(dict.fromkeys(parameter.value for parameter in self.parameters if not parameter.scratch))

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Kernel:
        data = json.loads(text)
        data["parameters"] = tuple(Parameter(**_tuples(p)) for p in data["parameters"])
        data["constants"] = tuple((name, value) for name, value in data["constants"])
        data["grid"] = tuple(data["grid"])
        data["zeroed"] = tuple(data["zeroed"])
        return Kernel(**data)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
