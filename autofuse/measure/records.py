"""What measuring takes and gives: candidates as steps over a graph, and one record for each thing done to one.

Data only. A candidate's failure is a `status` here, never an exception.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from autofuse.codegen.kernel import Kernel
from autofuse.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class TritonStep:
    """One launch; each parameter's value is a value of the graph."""

    kernel: Kernel


@dataclass(frozen=True, slots=True)
class AtenStep:
    """These ops of the graph, in order, by their exact ATen calls."""

    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InductorStep:
    """What Inductor makes of these ops of the graph; `outputs` are the values that it gives."""

    ops: tuple[str, ...]
    outputs: tuple[str, ...]


Step = TritonStep | AtenStep | InductorStep


@dataclass(frozen=True)
class Candidate:
    """Steps that together produce every output of `graph` from its inputs: one group's kernel, a library call, or a
    whole plan. `key` is the caller's name for it. `ahead`: values that follow from the graph's frozen inputs alone and
    are computed, by their ops' ATen calls, before the steps and off the clock."""

    key: str
    graph: Graph = field(hash=False)
    steps: tuple[Step, ...]
    ahead: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Inputs:
    """How random inputs are drawn: normal floats (times `scale`), coin-flip bools, integers in `ranges[value]` =
    [low, high), 0 to 2 where no range is given."""

    seed: int = 0
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Compiled:
    """status: ok | compile_error | compile_timeout | compile_crash.

    spill_bytes: stack frame plus local memory of a thread; n_spills: the same in 32-bit registers.
    smem_bytes: dynamic plus static shared memory of a block. binary_sha: of the machine code alone, so that two
    sources that became one program compare equal. detail: the first meaningful line of a failure.
    """

    digest: str
    status: str
    n_regs: int = 0
    n_spills: int = 0
    spill_bytes: int = 0
    smem_bytes: int = 0
    binary_sha: str = ""
    code_bytes: int = 0
    uses_wgmma: bool = False
    seconds: float = 0.0
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.status == "ok"


@dataclass(frozen=True, slots=True)
class Verified:
    """status: ok | wrong | unwritten | out_of_bounds | runtime_error | crash | timeout | reference_error
    (the graph's own ops do not run there: nobody's fault).

    Errors are of the worst output of the worst draw: `rms_err` is ||out - ref|| / ||ref|| against float64; `eager_err`
    is eager's own; `tolerance` is what rms_err was held to.
    """

    key: str
    status: str
    max_abs_err: float = 0.0
    rms_err: float = 0.0
    eager_err: float = 0.0
    tolerance: float = 0.0
    seconds: float = 0.0
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.status == "ok"


@dataclass(frozen=True, slots=True)
class Timed:
    """status: ok | dropped (a loser, stopped early; its samples stand) | runtime_error | crash | timeout.

    samples_us: one a round, cold L2. reference_us: the fixed reference kernel in the same rounds, so that
    log(sample / reference) compares across sessions. confirm_us: fresh rounds of the finalists only.
    """

    key: str
    status: str
    samples_us: tuple[float, ...] = ()
    reference_us: tuple[float, ...] = ()
    confirm_us: tuple[float, ...] = ()
    median_us: float = 0.0
    ratio: float = 0.0
    clocks: Clocks | None = None
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.status in ("ok", "dropped")


@dataclass(frozen=True, slots=True)
class Clocks:
    """The card while it was timed; None where the driver does not say. throttle: NVML's reason bits, idle removed."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle: int | None = None


def steps_to_json(steps: tuple[Step, ...]) -> list[dict[str, object]]:
    return [_step_to_json(step) for step in steps]


def _step_to_json(step: Step) -> dict[str, object]:
    match step:
        case TritonStep():
            return {"kind": "triton", "kernel": json.loads(step.kernel.to_json())}
        case AtenStep():
            return {"kind": "aten", "ops": list(step.ops)}
        case InductorStep():
            return {"kind": "inductor", "ops": list(step.ops), "outputs": list(step.outputs)}


def steps_from_json(data: list[dict[str, object]]) -> tuple[Step, ...]:
    """Raises ValueError on an unknown kind."""
    found: list[Step] = []
    for item in data:
        match item["kind"]:
            case "triton":
                found.append(TritonStep(Kernel.from_json(json.dumps(item["kernel"]))))
            case "aten":
                found.append(AtenStep(tuple(item["ops"])))  # type: ignore[arg-type]
            case "inductor":
                found.append(InductorStep(tuple(item["ops"]), tuple(item["outputs"])))  # type: ignore[arg-type]
            case other:
                raise ValueError(f"unknown kind of step: {other!r}")
    return tuple(found)


def inputs_to_json(inputs: Inputs) -> dict[str, object]:
    return asdict(inputs)


def inputs_from_json(data: dict[str, object]) -> Inputs:
    ranges = {name: (low, high) for name, (low, high) in data["ranges"].items()}  # type: ignore[attr-defined]
    return Inputs(int(data["seed"]), ranges, float(data["scale"]))  # type: ignore[arg-type]
