"""Error measures and buffers, in this process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

torch = pytest.importorskip("torch")

from graphs import add_graph, tensor  # noqa: E402

from autofuse.ir.graph import Graph, TensorType  # noqa: E402
from autofuse.measure.inputs import Guarded, draw  # noqa: E402
from autofuse.measure.records import Inputs  # noqa: E402
from autofuse.measure.verify import Difference, difference, tolerances  # noqa: E402


def test_difference_is_relative_and_counts_odd_ones():
    exact = torch.tensor([3.0, 4.0], dtype=torch.float64)
    found = difference(torch.tensor([3.0, 4.5]), exact)
    assert found == Difference(0.1, 0.5, 0)
    assert difference(torch.tensor([float("nan"), 4.0]), exact).mismatched == 1
    assert difference(torch.tensor([float("nan"), 4.0]), exact * torch.tensor([float("nan"), 1])).mismatched == 0


def test_overflow_in_the_storage_dtype_is_right():
    exact = torch.tensor([1e6, 1.0], dtype=torch.float64)
    assert difference(exact.to(torch.float16), exact) == Difference(0.0, 0.0, 0)
    assert difference(torch.tensor([float("-inf"), 1.0], dtype=torch.float16), exact).mismatched == 1


def test_tf32_is_outside_float32_and_bfloat16_noise_inside():
    torch.manual_seed(0)
    exact = torch.randn(4096, dtype=torch.float64)
    eager = difference(exact.float(), exact)
    tf32 = exact * (1 + 3e-4 * torch.randn(4096, dtype=torch.float64))
    assert difference(tf32.float(), exact).rms > tolerances(tf32.float(), exact, eager, True)[0]
    low = exact.bfloat16()
    assert difference(low, exact).rms <= tolerances(low, exact, difference(low, exact), True)[0]


def test_one_wrong_row_of_many_shows_in_the_peak():
    torch.manual_seed(0)
    exact = torch.randn(1 << 20, dtype=torch.float64)
    eager = difference(exact.bfloat16(), exact)
    bad = exact.bfloat16()
    bad[5] = 2.0 + bad[5]
    found = difference(bad, exact)
    rms, peak = tolerances(bad, exact, eager, True)
    assert found.rms < rms
    assert found.peak > peak


def test_integers_are_exact_unless_floats_came_before():
    exact = torch.arange(10000)
    out = exact.clone()
    out[3] += 1
    found = difference(out, exact)
    assert found.rms == 1e-4
    assert found.rms > tolerances(out, exact, Difference(0, 0), inexact=False)[0]
    assert found.rms <= tolerances(out, exact, Difference(0, 0), inexact=True)[0]


def test_guards_see_one_byte():
    kind = TensorType((3, 5), "bfloat16", (8, 1))
    for at in (-1, 3 * 8 - 3):
        guarded = Guarded.make(kind, "cpu", 0xFF)
        assert torch.isnan(guarded.tensor).all()
        guarded.tensor.fill_(1.0)
        assert guarded.intact(kind)
        base = guarded.tensor
        torch.as_strided(base, (1,), (1,), base.storage_offset() + at).fill_(1.0)
        assert not guarded.intact(kind)


def test_draws_follow_types_ranges_and_seed():
    types = {
        "f": TensorType((4, 6), "bfloat16", (1, 4)),
        "i": tensor(1000, dtype="int64"),
        "b": tensor(1000, dtype="bool"),
        "e": TensorType((8, 3), "float32", (0, 1)),
    }
    graph = Graph(tuple(types), (), (), types)
    inputs = Inputs(seed=3, ranges={"i": (10, 20)})
    found, again, other = draw(graph, inputs, "cpu", 0), draw(graph, inputs, "cpu", 0), draw(graph, inputs, "cpu", 1)
    for name, kind in types.items():
        assert found[name].stride() == kind.strides
        assert str(found[name].dtype) == f"torch.{kind.dtype}"
        assert torch.equal(found[name], again[name])
        assert not torch.equal(found[name], other[name])
    assert (int(found["i"].min()), int(found["i"].max())) == (10, 19)
    assert 400 < int(found["b"].sum()) < 600
    assert abs(float(draw(add_graph(10000), inputs, "cpu", 0)["x"].std()) - 1) < 0.05
