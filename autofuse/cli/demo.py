"""`make demo`: two functions tuned for a GPU that need not be there, explained, looked up by the run-time path, and
checked against eager. Ends with a non-zero exit code when any of it does not hold.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from autofuse.cli import output

WORKLOADS = """
from __future__ import annotations

import torch
import torch.nn.functional as F


def residual_rms_norm(device, rows=64, features=256):
    def step(x, residual, weight):
        hidden = x + residual
        return F.rms_norm(hidden, (hidden.shape[-1],), weight), hidden

    make = lambda *shape: torch.randn(*shape, device=device, dtype=torch.float16)
    return step, (make(rows, features), make(rows, features), make(features))


def linear_bias_gelu(device, rows=64, inside=128, outside=256):
    def step(x, weight, bias):
        return F.gelu(F.linear(x, weight, bias))

    make = lambda *shape: torch.randn(*shape, device=device, dtype=torch.float16)
    return step, (make(rows, inside), make(outside, inside), make(outside))
"""
NAMES = ("residual_rms_norm", "linear_bias_gelu")
BIG = {
    "residual_rms_norm": {"rows": 8192, "features": 4096},
    "linear_bias_gelu": {"rows": 8192, "inside": 4096, "outside": 4096},
}
"""Shapes worth a GPU; the defaults above are what Triton's interpreter runs in seconds."""
TOLERANCE = 2e-2
"""Relative to the output's RMS, float16: eager rounds each step, the plan once."""


@output.command
def demo(folder: Path, target: str) -> None:
    from autofuse.cli import explain, tune
    from autofuse.plans.store import PlanStore
    from autofuse.search.events import TuneRequest

    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "workloads.py"
    file.write_text(WORKLOADS.lstrip())
    store = folder / "store"
    started = time.perf_counter()
    for name in NAMES:
        for shape in (BIG[name], {}):
            request = TuneRequest(
                (f"{file}:{name}",), (shape,), target, budget_seconds=45, store=store, results=folder / "results"
            )
            results, code = tune.run(request)
            if code not in (0, 4):
                raise SystemExit(code)
            tune.report(results)
        explain.show(explain.find(PlanStore(store), f"{file}:{name}", BIG[name]))
    for name in NAMES:
        check(file, name, store, target)
    print(f"demo: done in {time.perf_counter() - started:.0f} s; plans are in {store}")


def check(file: Path, name: str, store: Path, target: str) -> None:
    """Runs the stored plan of the small shape and compares it with eager."""
    import torch

    from autofuse.capture.trace import capture
    from autofuse.capture.workload import load
    from autofuse.errors import PlanError
    from autofuse.ir.fingerprint import graph_key
    from autofuse.plans import Lookup, Miss, PlanStore, current_environment
    from autofuse.runtime.executor import Executor

    live = torch.cuda.is_available()
    device = "cuda" if live else "cpu"
    torch.manual_seed(0)
    function, arguments = load(f"{file}:{name}", {}, device)
    (captured,) = capture(function, arguments)
    plan = Lookup(PlanStore(store), current_environment(device=0 if live else None)).find(
        graph_key(captured.graph), target
    )
    if isinstance(plan, Miss):
        raise PlanError(f"{name}: the plan was not found again: {plan.reason}")
    kind = "cuda" if live else "interpreter"
    found = Executor(captured.graph, plan.bind(captured.graph), kind=kind, device=device)(*arguments)
    wanted = function(*arguments)
    for number, (got, right) in enumerate(zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True)):
        error = (got.float() - right.float()).pow(2).mean().sqrt() / right.float().pow(2).mean().sqrt()
        print(f"{name}, output {number}: relative error against eager {error:.2e} ({kind}, plan {plan.plan_id})")
        if not error <= TOLERANCE:
            raise PlanError(f"{name}, output {number}: relative error {error:.2e} is more than {TOLERANCE}")


def main() -> None:
    import typer

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".demo"))
    parser.add_argument("--target", default="h200")
    given = parser.parse_args()
    try:
        demo(given.folder, given.target)
    except typer.Exit as end:
        raise SystemExit(end.exit_code) from None


if __name__ == "__main__":
    main()
