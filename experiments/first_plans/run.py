"""Is the first plan that autofuse finds at least as fast as torch.compile's max-autotune, at full size, on this GPU?

python experiments/first_plans/run.py [--rows softmax,...] [--out DIR] [--seconds 60]

Each row is tuned with `--effort quick`; then the plan (run by the torch.compile backend), eager, torch.compile and
max-autotune-no-cudagraphs are timed in one interleaved run: CUDA-graph replays, cold L2, random order within a round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from autofuse.capture.workload import load, resolve
from autofuse.measure.timing import CudaStopwatch, rounds
from autofuse.results.experiment import Experiment
from autofuse.runtime import counters
from autofuse.runtime.backend import compile as autofuse_compile
from autofuse.search.driver import tune
from autofuse.search.events import TuneRequest

ROUNDS = 60


@dataclass(frozen=True)
class Row:
    """goal: least speed against max-autotune."""

    name: str
    workload: str
    shape: dict[str, int]
    goal: float = 1.0


ROWS = (
    Row("bias + GELU", "bias_gelu", {}),
    Row("SwiGLU", "swiglu", {}),
    Row("residual + RMS norm", "residual_rms_norm", {}),
    Row("layer norm", "layer_norm", {}),
    Row("softmax 4096", "softmax", {"rows": 8192, "columns": 4096}, 1.6),
    Row("softmax 65536", "softmax", {"rows": 4096, "columns": 65536}, 1.6),
    Row("cross entropy 128k", "cross_entropy", {}, 1.6),
    Row("column sum", "column_sum", {}),
    Row("linear + bias + GELU", "linear_bias_gelu", {}, 1.08),
    Row("linear + residual", "linear_residual", {}),
    Row("rotary embedding", "rotary", {}),
    Row("group norm + SiLU", "group_norm_silu", {}),
)


class Bare:
    """What the stopwatch prepares: a function on its arguments, as measure.execute.Runner is."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.fn, self.args = fn, args

    def __call__(self) -> Any:
        with torch.no_grad():
            return self.fn(*self.args)


def contestants(fn: Any, args: tuple[Any, ...], store: Path) -> dict[str, Callable[[], Any]]:
    fast = {"mode": "max-autotune-no-cudagraphs"}
    return {
        "autofuse": Bare(autofuse_compile(fn, store=store, on_miss="error"), args),
        "eager": Bare(fn, args),
        "default": Bare(torch.compile(fn), args),
        "max-autotune": Bare(torch.compile(fn, **fast), args),
    }


def times(fn: Any, args: tuple[Any, ...], store: Path) -> dict[str, float]:
    watch = CudaStopwatch()
    names, runs = [], {}
    for name, call in contestants(fn, args, store).items():
        for _ in range(2):
            call()
        torch.cuda.synchronize()
        runs[len(names)] = watch.prepare(call)
        names.append(name)
    samples, _ = rounds(watch, runs, watch.reference(), ROUNDS, seed=1)
    return {name: median(samples[index]) for index, name in enumerate(names)}


def difference(fn: Any, args: tuple[Any, ...], store: Path) -> float:
    """Largest difference of the plan's outputs from eager's, relative to their RMS."""
    with torch.no_grad():
        mine, theirs = autofuse_compile(fn, store=store, on_miss="error")(*args), fn(*args)
    pairs = zip(mine, theirs, strict=True) if isinstance(mine, tuple) else [(mine, theirs)]
    return max(float((a.double() - b.double()).abs().max() / b.double().square().mean().sqrt()) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    wanted = [
        r
        for r in ROWS
        if not options.rows or r.workload in options.rows.split(",") or r.name in options.rows.split(",")
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    store = options.out / "store"
    experiment = Experiment(torch.cuda.get_device_name())
    for row in wanted:
        try:
            one(row, store, options, experiment)
        except Exception as error:  # one row's failure is a line of the report, not the end of it
            if not experiment.figures:
                raise
            print(f"{row.name}: failed: {type(error).__name__}: {error}", flush=True)
        experiment.write(options.out)


def one(row: Row, store: Path, options: argparse.Namespace, experiment: Experiment) -> None:
    torch._dynamo.reset()
    started = time.perf_counter()
    request = TuneRequest(
        (row.workload,), (row.shape,), store=store, results=options.out / "runs", budget_seconds=options.seconds
    )
    result = tune(request)[0]
    seconds = time.perf_counter() - started
    experiment.add(row.name, "tuning time", seconds, "s", better="lower", goal=60.0)
    if result.plan_id is None:
        print(f"{row.name}: {result.status} {result.detail}", flush=True)
        return
    shape = dict(resolve(row.workload, row.shape).shape)
    fn, args = load(row.workload, shape, "cuda")
    counters.reset()
    error = difference(fn, args, store)
    found = times(fn, args, store)
    mine = found["autofuse"]
    for name, value in found.items():
        experiment.add(row.name, f"{name} time", value, "us", better="lower")
    experiment.add(row.name, "against max-autotune", found["max-autotune"] / mine, "x", better="higher", goal=row.goal)
    experiment.add(row.name, "against default", found["default"] / mine, "x", better="higher", goal=1.0)
    experiment.add(row.name, "against eager", found["eager"] / mine, "x", better="higher", goal=1.0)
    experiment.add(row.name, "kernels", float(len(result.groups)), "", better="lower")
    experiment.add(row.name, "error against eager", error, "of RMS", better="lower")
    experiment.add(row.name, "candidates timed", float(result.candidates.timed), "", better="lower")
    experiment.add(row.name, "candidates failed", float(result.candidates.failed), "", better="lower")
    kinds = ", ".join(f"{g.name}: {g.implementation}" for g in result.groups)
    print(
        f"{row.name}: {mine:.1f} us, max-autotune {found['max-autotune']:.1f} ({found['max-autotune'] / mine:.2f}x), "
        f"default {found['default']:.1f}, eager {found['eager']:.1f}; "
        f"tuned in {seconds:.0f} s; error {error:.2g}; {kinds}; "
        f"{counters.counts()}", flush=True,
    )  # fmt: skip
    for group in result.groups:
        print(
            f"    {group.name} {dict(group.config)} regs {group.n_regs} "
            f"predicted {group.predicted_us} measured {group.measured_us}",
            flush=True,
        )


if __name__ == "__main__":
    main()
