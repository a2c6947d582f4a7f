"""Loading workloads. What the shipped ones compute is in test_shipped_workloads.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofuse.capture.trace import capture
from autofuse.capture.workload import load, resolve
from autofuse.errors import WorkloadError
from autofuse.ir.fingerprint import graph_key
from autofuse.ir.graph import Contract


def test_matmuls_stay_contractions() -> None:
    fn, args = load("llama_mlp", {"tokens": 16, "hidden": 32, "inner": 48})
    (found,) = capture(fn, args)
    assert sum(isinstance(op.form, Contract) for op in found.graph.ops) == 3


def test_dims_come_from_the_signature_and_are_overridden() -> None:
    assert resolve("softmax.softmax", {"rows": "64"}).shape == {"rows": 64, "columns": 4096}


def write(folder: Path, text: str) -> str:
    (folder / "mine.py").write_text(text)
    return str(folder / "mine.py")


@pytest.mark.parametrize(("spec", "dims", "message"), [
    ("nothing", {}, "no workload 'nothing'; the .* shipped ones are in datasets/workloads .*softmax"),
    ("sofmax", {}, "no workload 'sofmax'; did you mean softmax.softmax"),
    ("nowhere.py:f", {}, "no workload file"),
    ("softmax.softmax", {"cols": 4}, "it has: rows, columns"),
    ("softmax.softmax", {"rows": "4.5"}, "positive whole number"),
    ("softmax.softmax", {"rows": 0}, "positive whole number"),
])  # fmt: skip
def test_faults_of_the_request(spec: str, dims: dict[str, object], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        load(spec, dims)


@pytest.mark.parametrize(("text", "message"), [
    ("def f(device): raise ValueError('boom')", "raised ValueError: boom"),
    ("def f(device): return 3", "must return"),
    ("def f(device): return (len, [1])", "must return"),
    ("def f(x): return len, ()", "first parameter"),
    ("def f(device, n): return len, ()", "needs a size for: n"),
    ("def g(device): return len, ()", "no function 'f'"),
    ("1 / 0", "cannot be loaded: ZeroDivisionError"),
    ("import sys; sys.exit(3)", "cannot be loaded: SystemExit: 3"),
    ("def f(device): raise SystemExit(5)", "raised SystemExit: 5"),
])  # fmt: skip
def test_faults_of_the_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        load(write(tmp_path, text) + ":f")


MADE = """
import torch
C = torch.arange(7.0)
class Net(torch.nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.a, self.b, self.n = torch.nn.Linear(7, 7), torch.nn.Linear(7, 7), torch.nn.BatchNorm1d(7)
        if tied:
            self.b.weight = self.a.weight
    def forward(self, x):
        return self.n(self.b(self.a(x)))
NET = Net()
def x(device, **options):
    return torch.randn(5, 7, device=device, **options)
def train(device): return Net().to(device), (x(device),)
def half(device): return Net(tied=True).to(device).half().eval(), (x(device).half(),)
def module_of_the_file(device): return NET.to(device).eval(), (x(device),)
def tensor_of_the_file(device):
    c = C.to(device)
    return lambda x: x * c, (x(device),)
def gradient(device): return lambda x: (x * 2).sum(), (x(device, requires_grad=True),)
def closed_gradient(device):
    c = x(device, requires_grad=True)
    return lambda x: (x * c).sum(), (x(device),)
def cpu(device): return lambda x: x + 1, (x("cpu"),)
def mixed(device): return lambda x, y: x + y.sum(), (x(device), x("cpu"))
def closed_mixed(device):
    c = x("cpu")
    return lambda x: x + c, (x(device),)
def global_mixed(device): return lambda x: x + C, (x(device),)
"""


@pytest.mark.parametrize(
    "name", ["train", "half", "module_of_the_file", "tensor_of_the_file", "gradient", "closed_gradient"]
)
def test_what_a_workload_makes_without_a_gpu_is_what_it_makes_with_one(tmp_path: Path, name: str) -> None:
    spec = write(tmp_path, MADE) + f":{name}"
    (real,), (fake,) = capture(*load(spec, device="cpu")), capture(*load(spec, device="cuda", fake=True))
    assert graph_key(real.graph) == graph_key(fake.graph)
    assert {tensor.device.type for tensor in fake.example_inputs} == {"cuda"}


@pytest.mark.parametrize(("name", "where"), [
    ("cpu", "are on cpu;"), ("mixed", "are on cpu and cuda;"), ("closed_mixed", "are on cpu and cuda;"),
    ("global_mixed", "are on cpu and cuda;"),
])  # fmt: skip
def test_tensors_elsewhere_are_refused(tmp_path: Path, name: str, where: str) -> None:
    with pytest.raises(WorkloadError, match=where):
        load(write(tmp_path, MADE) + f":{name}", device="cuda:0", fake=True)
