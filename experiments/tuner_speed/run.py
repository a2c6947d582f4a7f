"""Is the tuner itself fast enough to be waited for? Times of its own parts on one core; no GPU is needed.

python experiments/tuner_speed/run.py [--out DIR]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from autofuse.capture.trace import capture
from autofuse.capture.workload import load
from autofuse.cost.device import TARGETS
from autofuse.cost.model import CostModel
from autofuse.errors import InvalidSchedule
from autofuse.fusion.build import NotFusible, build
from autofuse.fusion.cover import best_cover, group_inputs
from autofuse.fusion.enumerate import enumerate_groups
from autofuse.fusion.group import Group
from autofuse.ir.fingerprint import graph_key
from autofuse.ir.graph import Graph
from autofuse.ir.program import Program
from autofuse.plans.environment import current_environment
from autofuse.plans.lookup import Lookup
from autofuse.plans.plan import PlannedGroup, make_plan
from autofuse.plans.store import PlanStore
from autofuse.results.experiment import Experiment
from autofuse.schedule.families import classify
from autofuse.search.effort import EFFORTS
from autofuse.search.pool import Subspace, subspaces

TARGET = TARGETS["h200"]
ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = ("bias_gelu", "rotary", "residual_rms_norm", "layer_norm", "softmax", "cross_entropy", "group_norm_silu",
             "column_sum", "row_amax", "linear_bias_gelu", "linear_residual")  # fmt: skip
BATCH = EFFORTS["quick"].pool
"""Candidates scored at once: what a group's search looks at."""
SMALLER = (EFFORTS["quick"].first_look, 2048)
"""Fewer at once, where the cost of a call shows; the first is a subspace's share of the first look at a group."""
PLANS = 100
"""In the store that a new process looks into."""


@dataclass(frozen=True)
class Made:
    """A workload as one program, with its first subspace that has a candidate."""

    name: str
    family: str
    graph: Graph
    part: Subspace


# --- what is timed ---


def best(fn: Callable[[], object], times: int) -> float:
    """Seconds of processor time of the quickest call: the machine may have other work too."""
    found = []
    for _ in range(times):
        start = time.process_time()
        fn()
        found.append(time.process_time() - start)
    return min(found)


def everything(graph: Graph) -> Program:
    bases = dict.fromkeys(graph.base(name) for name in graph.outputs if name is not None)
    return build(graph, frozenset(op.name for op in graph.ops if not op.is_view), tuple(bases))


def made(name: str) -> Made:
    fn, args = load(name, {}, "cuda", fake=True)
    graph = capture(fn, args, fullgraph=True)[0].graph
    program = everything(graph)
    for part in subspaces(program, TARGET):
        if part.candidates.sample(1, np.random.default_rng(0)).size:
            return Made(name, classify(program).name, graph, part)
    raise InvalidSchedule(f"{name}: no candidate")


def block_graph() -> Graph:
    """A transformer block, attention and all, with its residual stream, rotary embedding and a logit head's loss."""
    heads, size, hidden, inner, tokens = 8, 64, 512, 1408, 256

    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x * cos + torch.cat((-x[..., size // 2 :], x[..., : size // 2]), -1) * sin

    def block(x, norms, qkv, out, gate, up, down, cos, sin):
        q, k, v = (
            t.view(1, tokens, heads, size).transpose(1, 2)
            for t in F.linear(F.rms_norm(x, (hidden,), norms[0]), qkv).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + F.linear(mixed.transpose(1, 2).reshape(1, tokens, hidden), out)
        normal = F.rms_norm(x, (hidden,), norms[1])
        x = x + F.linear(F.silu(F.linear(normal, gate)) * F.linear(normal, up), down)
        last = F.layer_norm(x, (hidden,), norms[2], norms[3])
        return x, F.gelu(last, approximate="tanh") * torch.sigmoid(last), F.softmax(last.float(), -1).to(torch.bfloat16)

    with FakeTensorMode():

        def new(*shape: int) -> Tensor:
            return torch.empty(*shape, device="cuda", dtype=torch.bfloat16)

        args = (new(1, tokens, hidden), new(4, hidden), new(3 * hidden, hidden), new(hidden, hidden), new(inner, hidden),  # noqa: E501
                new(inner, hidden), new(hidden, inner), new(tokens, size), new(tokens, size))  # fmt: skip
    return capture(block, args, fullgraph=True)[0].graph


def partition(graph: Graph) -> tuple[int, int]:
    """Enumeration, with each group's program built, and the best cover; groups and kernels of it. Costs are what the
    memory traffic takes at least and 2 us a kernel."""

    def legal(group: Group) -> str | None:
        try:
            build(graph, frozenset(group.ops), group.outputs)
        except NotFusible as reason:
            return str(reason)
        return None

    groups = enumerate_groups(graph, legal, budget=EFFORTS["quick"].groups).groups
    costs = []
    for group in groups:
        touched = {*group.outputs, *group_inputs(graph, group)}
        costs.append(2 + sum(graph.types[value].nbytes for value in touched) / 4e6)
    cover = best_cover(graph, groups, costs)
    assert cover is not None
    return len(groups), len(cover.groups)


def scored(part: Subspace, model: CostModel, rng: np.random.Generator, count: int = BATCH) -> float:
    """Candidates a second: their columns, features and predictions."""
    valid = part.candidates.sample(count, rng)
    indices = np.resize(valid, count)
    return count / best(lambda: model.predict(part.features(indices, TARGET), TARGET), 9)


# --- plans ---


def store_of(graph: Graph, part: Subspace, folder: Path) -> str:
    """A store of PLANS plans; the key of one."""
    program = part.program
    group = PlannedGroup(tuple(op.name for op in graph.ops if not op.is_view), program.outputs, "triton",
                         part.candidates.schedule(part.candidates.default()), part.rewrites, {"n_regs": 32})  # fmt: skip  # noqa: E501
    key = graph_key(graph)
    keys = [key, *(f"{n:064x}" for n in range(1, PLANS))]
    store = PlanStore(folder)
    store.put_all(
        make_plan(graph=graph, graph_key=k, workload="w", shape={}, target="h200", environment=current_environment(),
                  groups=(group,), timing="predicted", total_us=1.0, unfused_us=2.0) for k in keys
    )  # fmt: skip
    store.close()
    return key


COLD = """
import sys, time
from pathlib import Path
from autofuse.plans.environment import current_environment
from autofuse.plans.lookup import Lookup
from autofuse.plans.plan import Plan
from autofuse.plans.store import PlanStore
environment = current_environment()
start = time.perf_counter()
found = Lookup(PlanStore(Path(sys.argv[1])), environment).find(sys.argv[2], "h200")
seconds = time.perf_counter() - start
assert isinstance(found, Plan), found
print(seconds)
"""
IMPORT = "import time\nstart = time.perf_counter()\nimport autofuse\nprint(time.perf_counter() - start)"
VERSIONS = """
import time
from autofuse.plans.environment import current_environment
start = time.perf_counter()
current_environment()
print(time.perf_counter() - start)
"""


def in_new_process(code: str, *arguments: str, times: int = 15) -> list[float]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *arguments]
    run = [subprocess.run(command, check=True, capture_output=True, text=True, env=environment) for _ in range(times)]
    return [float(result.stdout) for result in run]


def warm(folder: Path, key: str) -> float:
    lookup = Lookup(PlanStore(folder), current_environment())
    lookup.find(key, "h200")
    count = 100_000

    def many() -> None:
        for _ in range(count):
            lookup.find(key, "h200")

    return best(many, 5) / count


# --- the experiment ---


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    torch.set_num_threads(1)
    experiment = Experiment(f"cpu: {processor()}, one core")
    workloads = [made(name) for name in WORKLOADS]
    generating_and_scoring(experiment, workloads)
    graph = block_graph()
    ops = sum(not op.is_view for op in graph.ops)
    sizes = partition(graph)
    row = "a transformer block"
    experiment.add(row, "ops", ops, "", better="higher", goal=60)
    experiment.add(row, "groups", sizes[0], "", better="higher")
    experiment.add(row, "kernels of the cover", sizes[1], "", better="lower")
    experiment.add(row, "enumeration and cover", best(lambda: partition(graph), 3), "s", better="lower", goal=2.0)
    os.sched_setaffinity(0, cores)  # new processes are not to wait for this one's core
    lookups(experiment, workloads[2])
    loaded = in_new_process(IMPORT)
    experiment.add("import autofuse, best", "time", 1e3 * min(loaded), "ms", better="lower", goal=150)
    experiment.add("import autofuse, median", "time", 1e3 * median(loaded), "ms", better="lower", goal=150)
    print(experiment.write(options.out))
    for figure in experiment.figures:
        print(f"{figure.row:40} {figure.metric:24} {figure.value:12.5g} {figure.unit:14} {figure.met}")


def generating_and_scoring(experiment: Experiment, workloads: list[Made]) -> None:
    from autofuse.codegen.triton import emit

    model, rng = CostModel.load(), np.random.default_rng(0)
    seconds, rates = [], []
    for item in workloads:
        schedule = item.part.candidates.schedule(item.part.candidates.default())
        seconds.append(best(lambda p=item.part.program, s=schedule: emit(p, s, "kernel"), 20))
        rates.append(scored(item.part, model, rng))
        row = f"{item.name} ({item.family})"
        experiment.add(row, "source", 1e3 * seconds[-1], "ms", better="lower")
        experiment.add(row, "scoring", rates[-1], "candidates/s", better="higher")
    for count in SMALLER:
        rate = median(scored(item.part, model, rng, count) for item in workloads)
        row = f"median, {count} at once"
        experiment.add(row, "scoring", rate, "candidates/s", better="higher", goal=100_000)
    experiment.add("median of these", "source", 1e3 * median(seconds), "ms", better="lower", goal=5.0)
    experiment.add("median of these", "scoring", median(rates), "candidates/s", better="higher", goal=100_000)
    experiment.add("slowest of these", "source", 1e3 * max(seconds), "ms", better="lower", goal=5.0)
    experiment.add("slowest of these", "scoring", min(rates), "candidates/s", better="higher", goal=100_000)


def lookups(experiment: Experiment, item: Made) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        key = store_of(item.graph, item.part, folder)
        experiment.add("plan lookup, warm", "time", 1e3 * warm(folder, key), "ms", better="lower", goal=0.002)
        cold = in_new_process(COLD, str(folder), key)
        experiment.add("plan lookup, new process, best", "time", 1e3 * min(cold), "ms", better="lower", goal=1.0)
        experiment.add("plan lookup, new process, median", "time", 1e3 * median(cold), "ms", better="lower", goal=1.0)
    facts = 1e3 * median(in_new_process(VERSIONS))
    experiment.add("facts of the environment, once a process", "time", facts, "ms", better="lower")


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


if __name__ == "__main__":
    main()
