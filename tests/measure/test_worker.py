"""Verifying and timing in the interpreter, with faults planted: each costs one candidate."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

torch = pytest.importorskip("torch")

from graphs import add_graph, chain_graph, sum_rows_graph  # noqa: E402
from kernels import ADD, HEADER, add_kernel, sum_rows_kernel  # noqa: E402

from autofuse.codegen.kernel import Kernel, Parameter  # noqa: E402
from autofuse.errors import AutofuseError  # noqa: E402
from autofuse.ir.graph import AtenCall, Graph, TensorType  # noqa: E402
from autofuse.measure.decide import Rounds  # noqa: E402
from autofuse.measure.launch import interpret  # noqa: E402
from autofuse.measure.records import (  # noqa: E402
    AtenStep,
    Candidate,
    InductorStep,
    Inputs,
    TritonStep,
    steps_from_json,
    steps_to_json,
)
from autofuse.measure.supervisor import Worker, eager  # noqa: E402

pytestmark = pytest.mark.timeout(240)
N = 1000
GRAPH = add_graph(10, 100)
EXIT = "import os\nos._exit(3)\n"
SEGFAULT = "import ctypes\nctypes.string_at(0)\n"
HANG = "import time\ntime.sleep(300)\n"


def one(kernel: Kernel, graph: Graph = GRAPH, key: str = "k") -> Candidate:
    return Candidate(key, graph, (TritonStep(kernel),))


def with_source(source: str) -> Candidate:
    return one(add_kernel(N, source=source), key=source[:20])


@pytest.fixture(scope="module")
def worker():
    with Worker("cpu", timeout_s=90) as worker:
        yield worker


def test_a_right_kernel_passes(worker):
    found = worker.verify(one(add_kernel(N)))
    assert found.ok, found
    assert 0 < found.rms_err <= found.tolerance < 1e-5
    assert found.eager_err > 0


def test_float16_in_float32_registers(worker):
    found = worker.verify(one(add_kernel(N, dtype="float16"), add_graph(N, dtype="float16")))
    assert found.ok, found
    assert 1e-5 < found.rms_err < 1e-3


@pytest.mark.parametrize(
    ("source", "status"),
    [
        (ADD.replace("+ tl.load(y", "- tl.load(y"), "wrong"),
        # One element of a thousand a little off: the peak tells, the RMS would not need to.
        (ADD.replace("total, at < N)", "total + tl.where(at == 7, 1e-3, 0.0), at < N)"), "wrong"),
        (ADD.replace("total, at < N)", "total, at < N - 1)"), "unwritten"),
        (ADD.replace("total, at < N)", "total, at < N + 1)"), "out_of_bounds"),
        (ADD.replace("tl.store(out + at, total, at < N)", "tl.store(out + at - 1, total, at < N)"), "out_of_bounds"),
        (ADD + "    tl.store(x + at, total, at < N)\n", "out_of_bounds"),
        (ADD.replace("tl.store(", "tl.stroe("), "runtime_error"),
        (EXIT, "crash"),
        (SEGFAULT, "crash"),
    ],
)
def test_planted_faults(worker, source, status):
    found = worker.verify(with_source(source))
    assert found.status == status, found
    assert found.detail
    assert worker.verify(one(add_kernel(N))).ok


def test_nan_is_never_right(worker):
    bad = ADD.replace("total, at < N)", "total + float('nan'), at < N)")
    assert worker.verify(with_source(bad)).status in ("wrong", "unwritten")


def test_a_hang_times_out_and_the_next_runs():
    with Worker("cpu", timeout_s=4) as worker:
        worker.describe()
        assert worker.verify(with_source(HANG)).status == "timeout"
        worker.timeout_s = 90
        assert worker.verify(one(add_kernel(N))).ok
        assert worker.restarts == 1


def test_zeroed_outputs_are_zeroed_not_poisoned(worker):
    kernel = sum_rows_kernel(5, 100)
    graph = sum_rows_graph(5, 100)
    assert worker.verify(one(kernel, graph)).ok
    assert worker.verify(one(replace(kernel, zeroed=()), graph)).status in ("wrong", "unwritten")


def two_steps() -> Candidate:
    parameters = tuple(Parameter(name, value, "float32") for name, value in (("x", "x"), ("y", "y"), ("out", "total")))
    first = replace(add_kernel(200), parameters=parameters)
    return Candidate("plan", chain_graph(4, 50), (TritonStep(first), AtenStep(("out",))))


def test_a_plan_of_kernel_view_and_library_call(worker):
    plan = two_steps()
    assert worker.verify(plan).ok
    assert worker.verify(eager(plan.graph)).ok
    missing = worker.verify(Candidate("plan", plan.graph, plan.steps[:1]))
    assert (missing.status, "out" in missing.detail) == ("runtime_error", True)


def test_a_reference_that_does_not_run_is_not_the_candidates_fault(worker):
    op = replace(GRAPH.ops[0], call=AtenCall("aten.no_such_op.default", GRAPH.ops[0].call.args))
    graph = Graph(GRAPH.inputs, (op,), GRAPH.outputs, GRAPH.types)
    assert worker.verify(one(add_kernel(N), graph)).status == "reference_error"


def test_odd_strides_and_fresh_draws(worker):
    kind = TensorType((100, 10), "float32", (1, 100))
    graph = Graph(GRAPH.inputs, GRAPH.ops, GRAPH.outputs, dict.fromkeys(("x", "y", "out"), kind))
    first, second = (worker.verify(one(add_kernel(N), graph), Inputs(seed=seed)) for seed in (1, 2))
    assert first.ok, first
    assert second.ok, second
    assert first.max_abs_err != second.max_abs_err or first.rms_err != second.rms_err


def test_timing_outlives_a_crash_and_keeps_the_order(worker):
    rules = Rounds(screen=3, rounds=6, confirm=2)
    slow = ADD.replace("    at =", "    for _ in range(1, 100):\n        tl.load(x)\n    at =")
    candidates = [
        one(add_kernel(N), key="a"),
        with_source(EXIT),
        one(add_kernel(N, source=slow), key="slow"),
        eager(GRAPH),
    ]
    times = worker.time(candidates, rules=rules)
    assert [record.key for record in times] == ["a", EXIT[:20], "slow", "eager"]
    assert times[1].status == "crash"
    # The interpreter takes milliseconds where ATen takes microseconds: everything else is dropped at the first screen.
    assert [times[i].status for i in (0, 2, 3)] == ["dropped", "dropped", "ok"]
    assert len(times[0].samples_us) == 3
    assert len(times[3].samples_us) == 6
    assert len(times[3].confirm_us) == 2
    assert times[3].ratio > 0
    assert times[2].median_us > times[0].median_us > times[3].median_us


def test_a_crash_in_the_rounds_is_found(tmp_path):
    """It passes the warm-up and dies later: each is tried alone then."""
    count = tmp_path / "count"
    late = (
        "import os, pathlib\n"
        f"path = pathlib.Path({str(count)!r})\nruns = int(path.read_text()) + 1 if path.exists() else 1\n"
        "path.write_text(str(runs))\nif runs > 3:\n    os._exit(5)\n"
    )
    with Worker("cpu", timeout_s=90) as worker:
        rules = Rounds(screen=2, rounds=4, confirm=0, drop_ratio=float("inf"))
        times = worker.time([one(add_kernel(N), key="a"), with_source(late + ADD), eager(GRAPH)], rules=rules)
    assert [record.status for record in times] == ["ok", "crash", "ok"]
    assert len(times[0].samples_us) == 4


def test_whole_plans_are_timed_in_the_same_rounds(worker):
    plan = two_steps()
    times = worker.time_plans([plan, eager(plan.graph)], rounds=3)
    assert [len(record.samples_us) for record in times] == [3, 3]
    assert times[0].reference_us == times[1].reference_us


@pytest.mark.timeout(280)
def test_what_inductor_makes_of_a_graph(worker):
    graph = two_steps().graph
    step = InductorStep(("total", "flat", "out"), ("total", "out"))
    assert steps_from_json(steps_to_json((step,))) == (step,)
    verdict = worker.verify(Candidate("inductor", graph, (step,)))
    assert verdict.ok, verdict
    short = worker.verify(Candidate("inductor", graph, (InductorStep(("total",), ("total",)),)))
    assert (short.status, "out" in short.detail) == ("runtime_error", True)
    (timed,) = worker.time_plans([Candidate("inductor", graph, (step,))], rounds=2)
    assert timed.ok


def test_interpret_writes_in_place():
    x, y = torch.randn(N), torch.randn(N)
    out = torch.zeros(2 * N)[::2]
    strided = HEADER + ADD[len(HEADER) :].replace("out + at", "out + 2 * at")
    interpret(add_kernel(N, source=strided), {"x": x, "y": y, "out": out})
    assert torch.equal(out, x + y)
    with pytest.raises(RuntimeError, match="stroe"):
        interpret(add_kernel(N, source=ADD.replace("tl.store(", "tl.stroe(")), {"x": x, "y": y, "out": out})


def test_threads_share_the_interpreter():
    """One worker, asked by one thread at a time: answers must not reach the wrong one."""
    tensors = [{"x": torch.full((N,), float(i)), "y": torch.randn(N), "out": torch.zeros(N)} for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda given: interpret(add_kernel(N), given), tensors))
    for given in tensors:
        assert torch.equal(given["out"], given["x"] + given["y"])


def test_a_worker_that_cannot_start_blames_no_candidate():
    with Worker("cuda:99", timeout_s=90) as worker, pytest.raises(AutofuseError, match="does not start"):
        worker.verify(one(add_kernel(N)))


def test_what_is_computed_ahead_is_there_and_is_no_step(worker):
    ahead = Candidate("ahead", chain_graph(4, 6), (AtenStep(("out",)),), ahead=("total",))
    assert worker.verify(ahead).ok
    assert not worker.verify(replace(ahead, ahead=())).ok
    (timed,) = worker.time([ahead], rules=Rounds(rounds=2, screen=2, confirm=0))
    assert timed.ok
