"""Compiling, launching, verifying and timing on a real card."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parents[1] / "measure"))

from graphs import add_graph, chain_graph, sum_rows_graph, tensor  # noqa: E402
from kernels import ADD, HEADER, add_kernel, matmul_kernel, sum_rows_kernel  # noqa: E402

from autofuse.codegen.kernel import Kernel, Parameter  # noqa: E402
from autofuse.ir.graph import AtenCall, Contract, Graph, Op, Ref  # noqa: E402
from autofuse.measure.compile import CompilePool  # noqa: E402
from autofuse.measure.launch import Launcher  # noqa: E402
from autofuse.measure.records import AtenStep, Candidate, TritonStep  # noqa: E402
from autofuse.measure.supervisor import Worker, eager  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


def one(key: str, graph: Graph, kernel: Kernel) -> Candidate:
    return Candidate(key, graph, (TritonStep(kernel),))


@pytest.fixture(scope="module")
def worker():
    with Worker("cuda:0") as worker:
        yield worker


def matmul_graph(m: int, n: int, k: int) -> Graph:
    call = AtenCall("aten.mm.default", (Ref("a"), Ref("b")))
    op = Op("out", call, Contract("a", "b", "mk", "kn", "mn"), ("out",))
    types = {
        "a": tensor(m, k, dtype="bfloat16"),
        "b": tensor(k, n, dtype="bfloat16"),
        "out": tensor(m, n, dtype="bfloat16"),
    }
    return Graph(("a", "b"), (op,), ("out",), types)


def bfloat16_matmul(m: int, n: int, k: int) -> Kernel:
    kernel = matmul_kernel(m, n, k)
    a, b, out = kernel.parameters
    return replace(kernel, parameters=(a, b, replace(out, dtype="bfloat16")))


def test_launcher_writes_the_sum():
    tensors = {name: torch.randn(1000, device="cuda") for name in ("x", "y", "out")}
    Launcher(add_kernel(1000))(tensors)
    assert torch.equal(tensors["out"], tensors["x"] + tensors["y"])


def test_launcher_zeroes_what_atomics_add_to():
    tensors = {"x": torch.randn(7, 100, device="cuda"), "out": torch.full((7,), 99.0, device="cuda")}
    Launcher(sum_rows_kernel(7, 100))(tensors)
    torch.testing.assert_close(tensors["out"], tensors["x"].sum(1))


def test_launcher_refuses_a_misaligned_tensor():
    tensors = {name: torch.randn(1001, device="cuda")[1:] for name in ("x", "y", "out")}
    with pytest.raises(ValueError, match="aligned"):
        Launcher(add_kernel(1000))(tensors)


def test_descriptors_follow_their_tensors():
    launch = Launcher(matmul_kernel(256, 256, 128))
    for _ in range(2):
        tensors = {
            "a": torch.randn(256, 128, device="cuda", dtype=torch.bfloat16),
            "b": torch.randn(128, 256, device="cuda", dtype=torch.bfloat16),
            "out": torch.full((256, 256), float("nan"), device="cuda"),
        }
        launch(tensors)
        torch.testing.assert_close(tensors["out"], tensors["a"].float() @ tensors["b"].float(), rtol=1e-3, atol=1e-3)


def test_worker_reuses_the_pool_binaries(worker, tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOFUSE_CACHE_DIR", str(tmp_path))
    kernel = matmul_kernel(512, 512, 512, (128, 128, 64))
    kernel = replace(kernel, parameters=(*kernel.parameters[:2], replace(kernel.parameters[2], dtype="bfloat16")))
    with CompilePool(torch.cuda.get_device_capability()[0] * 10) as pool:
        assert pool.submit(kernel).result().ok
    binaries = set(tmp_path.rglob("*.cubin"))
    with Worker("cuda:0") as fresh:
        assert fresh.verify(one("k", matmul_graph(512, 512, 512), kernel)).ok
    assert len(binaries) == 1
    assert set(tmp_path.rglob("*.cubin")) == binaries


def test_verify_right_and_wrong(worker):
    graph = matmul_graph(512, 256, 384)
    kernel = bfloat16_matmul(512, 256, 384)
    right = worker.verify(one("k", graph, kernel))
    assert right.ok, right
    assert 1e-4 < right.rms_err < 1e-2
    short = replace(kernel, source=kernel.source.replace("range(0, K, BK)", "range(0, K - BK, BK)"))
    assert worker.verify(one("k", graph, short)).status == "wrong"
    half = replace(kernel, grid=(kernel.grid[0], kernel.grid[1] - 1, 1))
    assert worker.verify(one("k", graph, half)).status == "unwritten"


def test_writes_past_the_end_are_seen(worker):
    past = ADD.replace("total, at < N)", "total, at < N + 4)")
    assert worker.verify(one("k", add_graph(1000), add_kernel(1000, source=past))).status == "out_of_bounds"


@pytest.mark.parametrize("fault", ["illegal", "trap", "hang"])
def test_a_lost_context_costs_one_candidate(fault):
    sources = {
        "illegal": ADD.replace("tl.store(out + at", "tl.store(out + at + 17592186044416"),
        "trap": HEADER
        + ADD[len(HEADER) :].replace(
            "    tl.store",
            '    tl.inline_asm_elementwise("trap; mov.b32 $0, $1;", "=r,r", [at], tl.int32, False, 1)\n    tl.store',
        ),
        "hang": ADD.replace("    tl.store", "    while tl.load(x) < 1e30:\n        tl.debug_barrier()\n    tl.store"),
    }
    graph = add_graph(1000)
    bad = one("bad", graph, add_kernel(1000, source=sources[fault]))
    with Worker("cuda:0", timeout_s=20 if fault == "hang" else 60) as worker:
        assert worker.verify(bad).status == ("timeout" if fault == "hang" else "runtime_error")
        assert worker.verify(one("good", graph, add_kernel(1000))).ok
        assert worker.restarts == 1
        if fault == "illegal":
            times = worker.time([one("good", graph, add_kernel(1000)), bad, eager(graph)])
            assert [record.status for record in times] == ["ok", "runtime_error", "ok"]


def test_times_are_plausible_and_losers_dropped(worker):
    n = 1 << 25
    graph = add_graph(n)
    wide = one("wide", graph, add_kernel(n, 1024))
    narrow = one("narrow", graph, add_kernel(n, 32, num_warps=1))
    fast, again, slow, native = worker.time([wide, replace(wide, key="again"), narrow, eager(graph)])
    assert fast.status == again.status == native.status == "ok"
    assert slow.status == "dropped"
    assert len(slow.samples_us) < len(fast.samples_us)
    # 3 x 128 MiB at 2 to 5 TB/s
    assert 80 < fast.median_us < 200
    assert abs(fast.median_us / again.median_us - 1) < 0.02
    assert fast.confirm_us
    assert fast.clocks is not None
    assert fast.clocks.sm_mhz


def test_times_of_one_kernel_agree_between_calls(worker):
    graph = sum_rows_graph(4096, 4096)
    ratios = [worker.time([eager(graph)])[0].ratio for _ in range(3)]
    assert max(ratios) / min(ratios) < 1.03


def test_l2_is_cold(worker):
    """4 MiB in and out would take under 3 us from L2."""
    n = 1 << 19
    timed = worker.time([one("k", add_graph(n), add_kernel(n, 1024))])[0]
    warm = _warm_us(n)
    assert timed.median_us > 1.2 * warm


def _warm_us(n: int) -> float:
    from autofuse.measure.timing import CudaStopwatch

    tensors = {name: torch.randn(n, device="cuda") for name in ("x", "y", "out")}
    launch = Launcher(add_kernel(n, 1024))
    watch = CudaStopwatch()
    run = watch.prepare(lambda: [launch(tensors) for _ in range(20)])
    return min(watch.sample([run])[0] for _ in range(10)) / 20


def test_plans_of_several_steps(worker):
    graph = chain_graph(512, 512)
    first = replace(
        add_kernel(512 * 512),
        parameters=tuple(Parameter(n, v, "float32") for n, v in (("x", "x"), ("y", "y"), ("out", "total"))),
    )
    plan = Candidate("plan", graph, (TritonStep(first), AtenStep(("out",))))
    assert worker.verify(plan).ok
    mine, native = worker.time_plans([plan, eager(graph)], rounds=10)
    assert mine.ok
    assert native.ok
    assert len(mine.samples_us) == 10


def test_a_script_without_a_main_guard(tmp_path):
    """multiprocessing's spawn would run the script again in each child."""
    script = tmp_path / "script.py"
    here = Path(__file__).parents[1] / "measure"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(here)!r})\nprint('started')\n"
        "from graphs import add_graph\nfrom kernels import add_kernel\n"
        "from autofuse.measure.records import Candidate, TritonStep\n"
        "from autofuse.measure.supervisor import Worker\n"
        "with Worker('cuda:0') as worker:\n"
        "    print(worker.verify(Candidate('k', add_graph(1000), (TritonStep(add_kernel(1000)),))).status)\n"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=root,
        check=False,
        env={**__import__("os").environ, "PYTHONPATH": f"{root}:" + __import__("os").environ.get("PYTHONPATH", "")},
    )
    assert done.stdout.split() == ["started", "ok"], done.stderr
