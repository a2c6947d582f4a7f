"""What autofuse does not generate (scan, sort, Fourier transform, convolution, complex and sparse numbers): it stays a
library call with fused kernels around it, the numbers are eager's, and `autofuse explain` names it and says why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import autofuse
from autofuse.capture.trace import capture
from autofuse.capture.workload import load
from autofuse.cli.main import app
from autofuse.errors import CaptureError
from autofuse.runtime import backend, counters
from autofuse.search.driver import tune
from autofuse.search.events import TuneRequest, TuneResult

WORKLOADS = """
import torch
import torch.nn.functional as F

def tensors(device, dtype, *shape):
    return tuple(torch.randn(*shape, dtype=dtype, device=device) for _ in range(2))

def chain(x, y):
    return torch.relu(x * y) - 1

def scan(device, rows=8, cols=64):
    return lambda x, y: chain(torch.cumsum(chain(x, y), -1), y), tensors(device, torch.float16, rows, cols)

def sort(device, rows=8, cols=64):
    return lambda x, y: chain(torch.sort(chain(x, y), -1).values, y), tensors(device, torch.float16, rows, cols)

def fourier(device, rows=8, cols=64):
    def fn(x, y):
        return chain(torch.fft.irfft(torch.fft.rfft(chain(x, y)), n=cols), y)
    return fn, tensors(device, torch.float32, rows, cols)

def convolution(device, batch=2, channels=8, size=6):
    def fn(x, w, b):
        inner = F.conv2d(F.silu(x + b[:, None, None]), w, padding=1)
        return F.silu(inner + b[:, None, None])
    shapes = (batch, channels, size, size), (channels, channels, 3, 3), (channels,)
    return fn, tuple(torch.randn(*shape, dtype=torch.float16, device=device) for shape in shapes)

def numbers(device, rows=8, cols=64):
    return lambda x, y: chain((torch.complex(chain(x, y), chain(y, x)) * torch.complex(y, x)).real, y), \\
        tensors(device, torch.float32, rows, cols)

def alone(device, rows=8, cols=64):
    return lambda x: torch.cumsum(x, -1), (torch.randn(rows, cols, dtype=torch.float16, device=device),)
"""
LIBRARY: Mapping[str, tuple[tuple[str, ...], str]] = {
    "scan": (("cumsum",), "cumsum (aten.cumsum.default) stays a library call: no code is generated for a scan"),
    "sort": (("sort",), "sort (aten.sort.default) stays a library call: no code is generated for a sort"),
    "fourier": (
        ("_fft_r2c", "_fft_c2r"),
        "_fft_r2c (aten._fft_r2c.default) stays a library call: no code is generated for a Fourier transform",
    ),
    "convolution": (
        ("convolution",),
        "convolution (aten.convolution.default) stays a library call: no code is generated for a convolution",
    ),
    "numbers": (
        ("complex_1", "complex_2", "mul_2", "view_as_real"),
        "mul_2 (aten.mul.Tensor) stays a library call: no code is generated for complex numbers",
    ),
    "alone": (("cumsum",), "cumsum (aten.cumsum.default) stays a library call: no code is generated for a scan"),
}
"""Workload -> what of it is no kernel of ours, and what explain says of one of these ops."""
CHAINS = frozenset({("mul", "relu", "sub"), ("mul_1", "relu_1", "sub_1")})
FUSED: Mapping[str, frozenset[tuple[str, ...]]] = {
    **dict.fromkeys(("scan", "sort", "fourier", "numbers"), CHAINS),
    "convolution": frozenset({("add", "silu"), ("add_1", "silu_1")}),
    "alone": frozenset(),
}
Tuned = tuple[Path, Mapping[str, TuneResult]]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """Two trials a workload are enough: the chains before and after are one kernel."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "w.py").write_text(WORKLOADS)
    specs = tuple(f"{folder}/w.py:{name}" for name in LIBRARY)
    found = tune(TuneRequest(specs, target="h200", budget_trials=2 * len(specs), store=folder))
    return folder, dict(zip(LIBRARY, found, strict=True))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()  # pyright: ignore[reportPrivateUsage]
    counters.reset()
    backend._lookups.clear()  # pyright: ignore[reportPrivateUsage]
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", LIBRARY)
def test_the_op_is_a_library_call_and_what_is_around_it_is_fused(tuned: Tuned, name: str) -> None:
    result = tuned[1][name]
    assert result.plan_id, result.detail
    ways = {group.ops: group.implementation for group in result.groups}
    for op in LIBRARY[name][0]:
        assert ways[op,] == "aten", ways
    assert FUSED[name] <= {ops for ops, way in ways.items() if way == "triton"}, ways


@pytest.mark.parametrize("name", LIBRARY)
def test_the_plan_computes_what_eager_does(tuned: Tuned, name: str) -> None:
    folder, _ = tuned
    torch.manual_seed(3)
    fn, args = load(f"{folder}/w.py:{name}", {}, "cpu")
    compiled = autofuse.compile(fn, target="h200", store=folder, executor="interpreter", on_miss="error")
    found, wanted = compiled(*args), fn(*args)
    assert counters.counts().hits == 1
    assert (found.shape, found.dtype, found.stride()) == (wanted.shape, wanted.dtype, wanted.stride())
    torch.testing.assert_close(found, wanted, rtol=4e-3, atol=4e-3 * float(wanted.abs().max()))


@pytest.mark.parametrize("name", LIBRARY)
def test_explain_names_the_op_and_says_why(tuned: Tuned, name: str) -> None:
    folder, _ = tuned
    ops, sentence = LIBRARY[name]
    asked = ["explain", f"{folder}/w.py:{name}", "--store", str(folder)]
    text = CliRunner().invoke(app, asked).stdout
    assert f"    {sentence}\n" in text, "beside the group"
    told = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    groups = {tuple(group["ops"]): group for group in told["groups"]}
    for group, facts in groups.items():
        assert facts.get("library", "").startswith(f"{group[0]} (aten.") == (group[0] in ops)
    reasons = {entry["value"]: entry["reason"] for entry in told["ledger"]}
    if name != "alone":
        assert f"materialised: {sentence}" in reasons.values(), "what it reads or makes cannot be fused"
        for value, reason in reasons.items():
            assert f"{value}: {reason}" in text


def sparse(at: torch.Tensor, values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    matrix = torch.sparse_coo_tensor(at, torch.relu(values * 2) - 1, (len(values), len(values)), check_invariants=False)
    return torch.relu(torch.sparse.mm(matrix, x * 2 + 1)) - 1


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin")
def test_torch_compile_keeps_sparse_tensors_out_of_what_is_captured(tmp_path: Path) -> None:
    """The graph ends where a sparse tensor comes in: what is before is fused, and the rest is eager's own."""
    args = (torch.arange(16).repeat(2, 1), torch.randn(16), torch.randn(16, 8))
    (captured,) = capture(sparse, args)
    assert [op.name for op in captured.graph.ops] == ["mul", "relu", "sub"]
    request = TuneRequest(("sparse",), target="h200", budget_trials=2, store=tmp_path)
    (result,) = tune(request, functions={"sparse": (sparse, args)})
    assert [(g.ops, g.implementation) for g in result.groups] == [(("mul", "relu", "sub"), "triton")]
    compiled = autofuse.compile(sparse, target="h200", store=tmp_path, executor="interpreter", on_miss="error")
    torch.testing.assert_close(compiled(*args), sparse(*args))
    assert counters.counts().hits == 1


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin")
@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="a torch with CUDA makes fake sparse tensors")
def test_sparse_tensors_without_cuda_are_refused_in_one_line() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        args = (torch.empty(2, 16, device="cuda", dtype=torch.int64), torch.empty(16, device="cuda"),
                torch.empty(16, 8, device="cuda"))  # fmt: skip
    with pytest.raises(CaptureError, match="needs a GPU build of torch or a GPU host"):
        capture(sparse, args)
