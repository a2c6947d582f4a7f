"""Loading workloads. What the shipped ones compute is in test_shipped_workloads.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofuse.capture.trace import capture
from autofuse.capture.workload import load, resolve
from autofuse.errors import WorkloadError
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
    ("nothing", {}, "no workload 'nothing'"),
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
])  # fmt: skip
def test_faults_of_the_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        load(write(tmp_path, text) + ":f")
