"""The ledger: for each intermediate value of a plan, whether it is fused or materialised, what fusing it saves and
costs, and why. The search driver makes the entries and keeps them in the plan's evidence under "ledger"; here is how
they are judged, stored and shown. The sentence is written from the numbers, never stored beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast

from autofuse.errors import PlanError
from autofuse.plans import strict
from autofuse.results.schema import TIMINGS

if TYPE_CHECKING:
    from rich.table import Table

    from autofuse.ir.graph import Graph, Op

VERDICTS = ("fused", "materialised", "recomputed", "once")
"""once: materialised before the first call, for it follows from frozen inputs alone."""
NOISE = 0.01
"""Two times closer than this are called equal."""


@dataclass(frozen=True, slots=True)
class Side:
    """One way to do it: with the value fused, or with the value materialised. time_us: of all kernels involved,
    predicted or measured. n_regs: the most of any of them, occupancy (0 to 1) the least. n_spills: 32-bit registers."""

    time_us: float | None = None
    predicted_us: float | None = None
    n_regs: int | None = None
    n_spills: int | None = None
    occupancy: float | None = None

    @property
    def best_us(self) -> float | None:
        return self.predicted_us if self.time_us is None else self.time_us


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One intermediate value.

    saved_bytes: what fusing avoids (or would avoid): 2*N*s, once written and once read, more with more readers.
    timing: of both sides' time_us; "predicted" where they have none. obstacle: why it cannot or need not be fused, ""
    where the times decide.
    chosen_by: "time", or what else decided (an output that must exist, a library call that is faster, ...).
    """

    value: str
    dtype: str
    shape: tuple[int, ...]
    producer: str
    consumers: tuple[str, ...]
    verdict: str
    saved_bytes: int
    timing: str = "predicted"
    fused: Side = Side()
    apart: Side = Side()
    obstacle: str = ""
    chosen_by: str = "time"

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS or self.timing not in TIMINGS:
            raise PlanError(f"ledger entry {self.value}: verdict {self.verdict!r}, timing {self.timing!r}")

    @property
    def speedup(self) -> float | None:
        """Time apart over time fused: above 1, fusing wins. Like with like: both measured, else both predicted."""
        pairs = ((self.apart.time_us, self.fused.time_us), (self.apart.predicted_us, self.fused.predicted_us))
        for apart, fused in pairs:
            if apart and fused:
                return apart / fused
        return None

    @property
    def label(self) -> str:
        """What kind of times `speedup` compares."""
        return self.timing if self.fused.time_us and self.apart.time_us else "predicted"

    def reason(self) -> str:
        """The verdict as one sentence with its numbers."""
        if self.obstacle:
            return f"{self.verdict}: {self.obstacle}"
        saves = "saves" if self.verdict != "materialised" else "fusing would save"
        parts = [f"{saves} {si_bytes(self.saved_bytes)}", *self._costs()]
        return f"{self.verdict}: {', '.join(parts)}; {self._times()}"

    def to_dict(self) -> dict[str, Any]:
        """For the plan's evidence, and with `reason` for people's scripts."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        sides = {name: {f.name: getattr(plain[name], f.name) for f in fields(Side)} for name in ("fused", "apart")}
        return {
            **plain,
            **sides,
            "shape": list(self.shape),
            "consumers": list(self.consumers),
            "speedup": self.speedup,
            "reason": self.reason(),
        }

    @staticmethod
    def from_dict(data: object, where: str = "ledger entry") -> LedgerEntry:
        """Raises PlanError, naming the field, on anything that to_dict does not make; `speedup` and `reason` are worked
        out again."""
        given = cast("dict[str, object]", data if isinstance(data, dict) else {})
        missing = [name for name in _ENTRY if name not in given and name not in _OPTIONAL]
        if missing:
            raise PlanError(f"{where}: field {missing[0]!r} is missing; tune again")
        return LedgerEntry(
            **{name: read(given[name], f"{where}.{name}") for name, read in _ENTRY.items() if name in given}
        )

    def _costs(self) -> list[str]:
        found: list[str] = []
        if self.fused.n_regs is not None and self.apart.n_regs is not None:
            found.append(f"{self.fused.n_regs} registers against {self.apart.n_regs}")
        if self.fused.occupancy is not None and self.apart.occupancy is not None:
            found.append(f"occupancy {self.fused.occupancy:.0%} against {self.apart.occupancy:.0%}")
        if self.fused.n_spills:
            found.append(f"{self.fused.n_spills} registers spilled")
        return found

    def _times(self) -> str:
        speedup = self.speedup
        if speedup is None:
            return f"not timed both ways ({self.chosen_by})" if self.chosen_by != "time" else "not timed both ways"
        real = self.label != "predicted"
        fused, apart = (side.time_us if real else side.predicted_us for side in (self.fused, self.apart))
        times = f"{fused:.1f} us fused against {apart:.1f} us apart ({self.label})"
        if abs(speedup - 1) < NOISE:
            return f"{times}, no difference beyond noise"
        faster = "faster" if speedup > 1 else "slower"
        verdict = f"{times}, {max(speedup, 1 / speedup):.2f}x {faster}"
        against = (speedup > 1) == (self.verdict == "materialised")
        if not against:
            return verdict
        other = "the whole plan is better so, or the better way was not valid"
        why = self.chosen_by if self.chosen_by != "time" else other
        return f"{verdict}, yet decided by: {why}"


def _us(data: object, where: str) -> float:
    found = strict.number(data, where)
    if 0 < found < 1e-6:  # no kernel takes less, and a ratio of such times may overflow
        raise PlanError(f"{where}: {found} us is not a time")
    return found


def _text(data: object, where: str) -> str:
    if not isinstance(data, str):
        raise PlanError(f"{where}: expected text")
    return data


def _side(data: object, where: str) -> Side:
    given = strict.record(data, where, dict.fromkeys(_SIDE, lambda value, _: value))
    return Side(**{n: None if given[n] is None else read(given[n], f"{where}.{n}") for n, read in _SIDE.items()})


_SIDE: Mapping[str, Callable[[object, str], Any]] = {
    "time_us": _us, "predicted_us": _us, "n_regs": strict.integer, "n_spills": strict.integer,
    "occupancy": strict.number,
}  # fmt: skip
_ENTRY: Mapping[str, Callable[[object, str], Any]] = {
    "value": _text, "dtype": _text, "shape": lambda v, at: strict.items(v, at, strict.integer), "producer": _text,
    "consumers": lambda v, at: strict.items(v, at, _text), "verdict": _text, "saved_bytes": strict.integer,
    "timing": _text, "fused": _side, "apart": _side, "obstacle": _text, "chosen_by": _text,
}  # fmt: skip
_OPTIONAL = ("timing", "obstacle", "chosen_by")


NO_CODE: Mapping[str, tuple[str, ...]] = {
    "a scan": ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"),
    "a sort": ("sort", "topk", "argsort", "kthvalue", "mode", "median", "searchsorted", "bucketize"),
    "a Fourier transform": ("_fft_r2c", "_fft_c2c", "_fft_c2r"),
    "a convolution": ("convolution", "_convolution", "cudnn_convolution", "convolution_backward"),
}
"""What is left to the library, and the ATen ops that it is made of."""


def library_only(graph: Graph, ops: Iterable[str]) -> str:
    """Why an op among these that autofuse does not generate stays a library call; "" where it generates all."""
    for op in (graph.by_name[name] for name in ops):
        if op.form is None:
            return f"{op.name} ({op.call.target}) stays a library call: {_no_code(graph, op)}"
    return ""


def _no_code(graph: Graph, op: Op) -> str:
    kind = next((kind for kind, packets in NO_CODE.items() if op.call.target.split(".")[1] in packets), "")
    if not kind and any("complex" in graph.types[value].dtype for value in (*op.inputs, *op.outputs)):
        kind = "complex numbers"
    return f"no code is generated for {kind or 'it'}"


WHOLE = {"eager": "eager's own calls", "inductor": "torch.compile's result"}
"""Ways to run a whole graph that need no search, by their name in a plan's evidence."""


def race(evidence: Mapping[str, Any], total_us: float) -> tuple[str, ...]:
    """How a plan did against what needs no search, in a line, and a second one where such a way is the plan. Empty
    where nothing was timed."""
    found = evidence.get("failures")
    failures = cast("Mapping[str, Any]", found if isinstance(found, dict) else {})
    parts: list[str] = []
    for key, name in (("eager", "eager"), ("inductor", "torch.compile")):
        time = evidence.get(f"{key}_us")
        if isinstance(time, int | float):
            parts.append(f"{name} {time:.1f} us")
        elif key in failures:
            parts.append(f"{name} failed ({failures[key]})")
    if not parts:
        return ()
    lines = [", ".join([*parts, f"plan {total_us:.1f} us"])]
    whole, searched = evidence.get("whole"), evidence.get("searched_us")
    if isinstance(whole, str) and whole in WHOLE:
        best = f"; the ledger is of the best searched plan, {searched:.1f} us" if isinstance(searched, float) else ""
        lines.append(f"the whole graph runs {WHOLE[whole]}{best}")
    return tuple(lines)


def si_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def to_list(entries: Iterable[LedgerEntry]) -> list[dict[str, Any]]:
    return [entry.to_dict() for entry in entries]


def from_list(data: object) -> tuple[LedgerEntry, ...]:
    if not isinstance(data, list | tuple):
        raise PlanError("the plan's ledger is not a list of entries; tune again")
    return tuple(LedgerEntry.from_dict(item, f"ledger[{i}]") for i, item in enumerate(cast("Sequence[object]", data)))


def ledger_table(entries: Sequence[LedgerEntry], title: str = "ledger") -> Table:
    """For a terminal, 80 columns included: one value a row, the sentence with its numbers beside it."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_lines=False)
    for column in ("value", "type", "verdict"):
        table.add_column(column, overflow="fold")
    for entry in entries:
        table.add_row(entry.value, f"{entry.dtype} {'x'.join(map(str, entry.shape)) or 'scalar'}", entry.reason())
    return table
