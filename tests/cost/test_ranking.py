"""What the shipped model would try first: the ten best candidates of a problem of each kind, for an H200, as they were
when somebody last looked. A change of the model, the features or the search spaces shows there as a diff that a person
can judge. After such a change, renew it and look at `git diff`:

    AUTOFUSE_GOLDEN=renew python -m pytest tests/cost/test_ranking.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from autofuse.capture.trace import capture
from autofuse.capture.workload import load, resolve
from autofuse.cost.device import TARGETS
from autofuse.cost.model import CostModel
from autofuse.fusion.build import build
from autofuse.fusion.library import whole_group
from autofuse.search.pool import Pool, score

FILE = Path(__file__).parent / "rankings.json"
H200 = TARGETS["h200"]
PROBLEMS = (
    "rotary", "softmax", "cross_entropy", "layer_norm", "group_norm_silu", "column_sum", "linear_bias_gelu",
    "linear_head_norm", "gated_mlp_up", "lora_linear", "int8_linear", "skinny_linear", "attention_causal",
)  # fmt: skip
BEST, DRAWN = 10, 1024
CLOSE = 2e-3
"""Relative difference of two predictions that says nothing: other processors add up in another order."""


def pool_of(workload: str) -> Pool:
    """The whole function as one kernel."""
    fn, args = load(workload, dict(resolve(workload, {}).shape), "cuda", fake=True)
    graph = capture(fn, args)[0].graph
    group = whole_group(graph)
    program = build(graph, frozenset(group.ops), group.outputs)
    return score(program, H200, CostModel.load(), DRAWN, np.random.default_rng(0))


def named(pool: Pool, position: int) -> str:
    return " ".join((str(pool.schedule(position)), *pool.rewrites(position)))


@pytest.mark.parametrize("workload", PROBLEMS)
def test_the_ten_best_are_those_that_were(workload: str) -> None:
    pool = pool_of(workload)
    found = {named(pool, i): float(pool.predictions.time_us[i]) for i in range(len(pool))}
    golden: dict[str, dict[str, float]] = json.loads(FILE.read_text()) if FILE.is_file() else {}
    if os.environ.get("AUTOFUSE_GOLDEN") == "renew":
        golden[workload] = {name: float(f"{us:.5g}") for name, us in list(found.items())[:BEST]}
        FILE.write_text(json.dumps({name: golden[name] for name in PROBLEMS if name in golden}, indent=1) + "\n")
    best = golden[workload]
    missing = [name for name in best if name not in found]
    assert not missing, "the space or the way it is drawn from has changed: renew, and look at what is first now"
    assert {name: found[name] for name in best} == pytest.approx(best, rel=CLOSE)
    last = max(best.values())
    assert [name for name, us in found.items() if us < last * (1 - CLOSE) and name not in best] == []
