"""Is the first plan that autofuse finds at least as fast as torch.compile's max-autotune, at full size, on this GPU?

python experiments/first_plans/run.py [--rows softmax,...] [--out DIR] [--seconds 60]

Each row is tuned with `--effort quick`; then the plan (run by the torch.compile backend), eager, torch.compile and
max-autotune-no-cudagraphs are timed in one interleaved run: CUDA-graph replays, cold L2, random order within a round.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a script's own folder is on the path, not the one above

import common
import scripts

from autofuse.results.experiment import Experiment
from autofuse.runtime import counters


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


def main() -> None:
    options = common.arguments(__doc__, Path(__file__).parent, 60.0).parse_args()
    rows = common.chosen(ROWS, options.rows)
    experiment = Experiment(common.device_name(), git_sha=options.git_sha)
    common.run(rows, lambda row, found: one(row, options, found), experiment, options.out)


def one(row: Row, options: argparse.Namespace, experiment: Experiment) -> None:
    result, seconds = common.tuned(row, options.out, options.seconds)
    experiment.add(row.name, "tuning time", seconds, "s", better="lower", goal=60.0)
    if result.plan_id is None:
        print(f"{row.name}: {result.status} {result.detail}", flush=True)
        return
    store = options.out / "store"
    fn, args = common.loaded(row)
    counters.reset()
    error = common.difference(fn, args, store)
    found = common.times(common.contestants(fn, args, store))
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
    scripts.run(main)
