"""Records to test with."""

from __future__ import annotations

from typing import Any

from autofuse.results.records import Measurement, Run, Samples, config_digest
from autofuse.results.schema import canonical


def measurement(number: int = 0, status: str = "timed", **more: Any) -> Measurement:
    config = {"roles": {"m": "grid(16)"}, "num_warps": 2**number}
    return Measurement(
        **{
            "run_id": "r1",
            "workload": "bias_gelu",
            "shape_json": canonical({"rows": 4097}),
            "target": "h200",
            "graph_key": "graph",
            "group_key": f"group{number % 2}",
            "group_name": "add_gelu",
            "group_ops": "add,gelu",
            "implementation": "triton",
            "config_json": canonical(config),
            "config_digest": config_digest("triton", config),
            "status": status,
            **more,
        }
    )


def samples(number: int = 0) -> Samples:
    key = measurement(number)
    return Samples("r1", "h200", *key.key, "race", (10.0, 11.5), (5.0, 5.5))


def run(**more: Any) -> Run:
    return Run(**{"run_id": "r1", "workload": "bias_gelu", "shape_json": canonical({"rows": 4097}), "target": "h200",
                  "status": "done", "total_us": 3.5, "enumerated": 7} | more)  # fmt: skip
