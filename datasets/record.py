"""Records candidates for the cost model: a random sample of the spaces of shipped workloads, on the live GPU, or
(`--target h200`) their registers, spills and shared memory alone on any machine.

python datasets/record.py --out DIR [--seconds 10] [--target auto] WORKLOAD[@dim=N,...] ...

Random proposals, not the model's, so that what it learns from is not what it favours. Leaves the run logs and
`training/*.parquet` (features beside labels, README.md) under DIR.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from autofuse.search.driver import tune
from autofuse.search.events import TuneRequest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="auto")
    parser.add_argument("--workers", type=int, help="compilers at once; one a core without it")
    options = parser.parse_args()
    for spec in options.workloads:
        name, _, dims = spec.partition("@")
        shape = {key: int(value) for key, value in (pair.split("=") for pair in dims.split(",") if pair)}
        request = TuneRequest(
            (name,), (shape,), options.target, strategy="random", seed=options.seed, budget_seconds=options.seconds,
            store=options.out / "store", results=options.out, recordings=Path("none"), workers=options.workers,
        )  # fmt: skip
        result = tune(request)[0]
        print(spec, result.status, result.candidates, flush=True)


if __name__ == "__main__":
    main()
