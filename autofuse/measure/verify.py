"""Whether a candidate computes what its graph's ATen ops compute: against float64, with eager's own error as measure.

Tolerances, and why: a fused kernel keeps float32 where eager rounds, so it should be at least as near to float64 as
eager is; another order of summation may cost a little. RMS_FACTOR times eager's error allows for that and rejects tf32
in place of float32, a missing tile, a wrong mask. A relative RMS error hides one wrong row among many, so the largest
absolute error is held to PEAK_FACTOR times eager's largest too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from autofuse.ir.graph import Graph, TensorType
from autofuse.measure import inputs as buffers
from autofuse.measure.execute import Env, Runner, run_aten
from autofuse.measure.records import Inputs, Verified

if TYPE_CHECKING:
    import torch

RMS_FACTOR = 3.0
PEAK_FACTOR = 8.0
DRAWS = 2
INTEGER_SLACK = 1e-3
"""Share of integer outputs that may differ from float64 where floats come before them: ties of an argmax over bfloat16
and roundings of a quantisation fall either way."""


@dataclass(frozen=True, slots=True)
class Reference:
    """One draw: pristine inputs, the working copies that candidates see, float64 outputs, and eager's errors."""

    pristine: Env
    working: Env
    exact: Env
    eager: dict[str, Difference]


@dataclass(frozen=True, slots=True)
class Difference:
    """rms: ||out - exact|| / ||exact|| over finite elements (share of unequal elements for integers); peak: largest
    absolute difference; mismatched: NaNs or infinities in other places."""

    rms: float
    peak: float
    mismatched: int = 0


def reference(graph: Graph, inputs: Inputs, device: str, number: int) -> Reference:
    given = buffers.draw(graph, inputs, device, number)
    outputs = [value for value in graph.outputs if value is not None]
    wide: Env = dict(given)
    run_aten(graph.ops, wide, dtype="float64", device=device)
    native: Env = dict(given)
    run_aten(graph.ops, native, device=device)
    exact = {value: _widest(wide[value]) for value in outputs}
    eager = {value: difference(native[value], exact[value]) for value in outputs}
    working = {name: _clone(tensor) for name, tensor in given.items()}
    return Reference(given, working, exact, eager)


def check(key: str, runner: Runner, references: list[Reference]) -> Verified:
    """Run on every draw; the first failing draw decides, else the worst errors are reported."""
    worst = Verified(key, "ok")
    for number, known in enumerate(references):
        verdict = _check_draw(key, runner, known, buffers.POISONS[number % len(buffers.POISONS)])
        if not verdict.ok:
            return verdict
        if verdict.rms_err >= worst.rms_err:
            worst = replace(verdict, max_abs_err=max(verdict.max_abs_err, worst.max_abs_err))
    return worst


def _check_draw(key: str, runner: Runner, known: Reference, poison: int) -> Verified:
    graph = runner.graph
    for name, tensor in known.pristine.items():
        known.working[name].untyped_storage().copy_(tensor.untyped_storage())  # whole: strides may overlap
    guarded: dict[str, buffers.Guarded] = {}

    def allocate(value: str, kind: TensorType) -> torch.Tensor:
        guarded[value] = buffers.Guarded.make(kind, runner.device, poison)
        return guarded[value].tensor

    outputs = runner(runner.ahead(known.working), allocate)
    synchronize(runner.device)
    for value, buffer in guarded.items():
        if not buffer.intact(graph.types[value]):
            return Verified(key, "out_of_bounds", detail=f"wrote outside {value}")
    for name, tensor in known.pristine.items():
        if not _same_bytes(tensor, known.working[name]):
            return Verified(key, "out_of_bounds", detail=f"changed its input {name}")
    verdicts = [
        judge(key, value, graph.types[value], out, known, _inexact(graph), poison if value in guarded else None)
        for value, out in outputs.items()
    ]
    bad = next((verdict for verdict in verdicts if not verdict.ok), None)
    return bad or max(verdicts, key=lambda verdict: verdict.rms_err, default=Verified(key, "ok"))


def judge(
    key: str, value: str, kind: TensorType, out: torch.Tensor, known: Reference, inexact: bool, poison: int | None
) -> Verified:
    """The verdict on one output; `poison`: what its buffer was filled with."""
    if tuple(out.shape) != kind.shape or str(out.dtype) != f"torch.{kind.dtype}":
        return Verified(key, "wrong", detail=f"{value} is {out.dtype}{list(out.shape)}")
    exact, eager = known.exact[value], known.eager[value]
    found = difference(out, exact)
    rms_limit, peak_limit = tolerances(out, exact, eager, inexact)
    base = Verified(key, "ok", found.peak, found.rms, eager.rms, rms_limit)
    right = found.rms <= rms_limit and found.peak <= peak_limit and found.mismatched <= RMS_FACTOR * eager.mismatched
    if right:
        return base
    left = _still_poisoned(out, poison) if poison is not None else 0
    if left > _still_poisoned(exact.to(out.dtype), poison):
        return replace(base, status="unwritten", detail=f"{value}: {left} of {out.numel()} elements never written")
    return replace(base, status="wrong", detail=_why(value, found, rms_limit, peak_limit))


def _why(value: str, found: Difference, rms_limit: float, peak_limit: float) -> str:
    if found.mismatched:
        return f"{value}: {found.mismatched} NaN or infinite elements differ"
    return f"{value}: rms {found.rms:.3g} (limit {rms_limit:.3g}), peak {found.peak:.3g} (limit {peak_limit:.3g})"


def tolerances(out: torch.Tensor, exact: torch.Tensor, eager: Difference, inexact: bool) -> tuple[float, float]:
    """Limits on (rms, peak) for one output."""
    import torch

    if not (out.dtype.is_floating_point or out.dtype.is_complex):
        slack = INTEGER_SLACK if inexact else 0.0
        return max(RMS_FACTOR * eager.rms, slack), float("inf")
    eps = torch.finfo(out.dtype).eps
    # A single rounding is below eps/2 relative; float32 results are often sums of rounded terms.
    floor = eps * (8.0 if out.dtype.itemsize >= 4 else 1.0)
    finite = exact[torch.isfinite(exact)].abs()
    top = float(finite.max()) if finite.numel() else 0.0
    return max(RMS_FACTOR * eager.rms, floor), PEAK_FACTOR * max(eager.peak, floor * top) + 1e-300


def difference(out: torch.Tensor, exact: torch.Tensor) -> Difference:
    import torch

    if not (out.dtype.is_floating_point or out.dtype.is_complex):
        plain = out.view(torch.uint8) if out.dtype == torch.bool else out
        unequal = plain != exact.to(torch.uint8 if out.dtype == torch.bool else out.dtype)
        gap = (plain.double() - exact.double()).abs()
        count = max(1, out.numel())
        return Difference(float(unequal.sum()) / count, float(gap.max()) if gap.numel() else 0.0)
    wide = torch.complex128 if out.dtype.is_complex else torch.float64
    # Infinities are right where rounding the exact value to this dtype gives the same one.
    a, b = out.to(wide), exact.to(wide)
    rounded = exact.to(out.dtype).to(wide)
    finite = torch.isfinite(a) & torch.isfinite(rounded)
    same = finite | (torch.isnan(a) & torch.isnan(rounded)) | (a == rounded)
    gap = torch.where(finite, (a - b).abs(), 0.0)
    norm = float(torch.linalg.vector_norm(torch.where(finite, b, 0.0)))
    error = float(torch.linalg.vector_norm(gap))
    rms = error / norm if norm > 0 else error
    return Difference(rms, float(gap.max()) if gap.numel() else 0.0, int((~same).sum()))


def _widest(tensor: torch.Tensor) -> torch.Tensor:
    """float64 also where the reference itself ends in a rounding (to float8, say)."""
    return tensor.double() if tensor.is_floating_point() else tensor


def synchronize(device: str) -> None:
    import torch

    if device != "cpu":
        torch.cuda.synchronize()


def _inexact(graph: Graph) -> bool:
    return any("float" in graph.types[name].dtype for name in graph.inputs)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.contiguous().flatten().view(torch.uint8).view(-1, tensor.element_size())


def _still_poisoned(tensor: torch.Tensor, poison: int | None) -> int:
    if poison is None or tensor.numel() == 0:
        return 0
    return int((_bytes(tensor) == poison).all(1).sum())


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.numel() == 0 or bool((_bytes(a) == _bytes(b)).all())


def _clone(tensor: torch.Tensor) -> Any:
    """Same values, same strides (overlapping ones too), own storage."""
    import torch

    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    flat = torch.as_strided(tensor, (size,), (1,), 0).clone()
    return torch.as_strided(flat, tensor.shape, tensor.stride(), tensor.storage_offset())
