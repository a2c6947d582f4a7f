"""Graph JSON round trip and canonical keys."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from autofuse.errors import PlanError
from autofuse.ir.fingerprint import graph_key
from autofuse.ir.graph import Apply, Arg, AtenCall, Composite, Graph, Lit, Map, Op, Reduce, Ref, Symbol, TensorType
from autofuse.ir.serial import graph_from_json, graph_to_json


def sample(x: str = "x", m: str = "m", device: str = "cpu", strides: tuple[int, ...] = (8, 1)) -> Graph:
    wide = TensorType((4, 8), "float32", strides)
    small = TensorType((4,), "float32", (1,))
    expr = Apply("maximum", (Arg(0), Lit(float("-inf"))))
    first = Op("a", AtenCall("aten.clamp.default", (Ref(x), float("-inf")), (("device", Symbol("device", device)),)),
               Map((x,), expr, "float32"), ("a",), "here")  # fmt: skip
    second = Op(m, AtenCall("aten.sum.dim_IntList", (Ref("a"), (1,))), Reduce("sum", "a", (1,), False, "float32"), (m,))
    whole = Op("clamped_sum", AtenCall("aten.clamped_sum.default", (Ref(x),)), None, (m, "unused"))
    types = {x: wide, "a": wide, m: small}
    return Graph((x,), (first, second), (m, None), types, (Composite(whole, ("a", m)),))


def test_round_trip() -> None:
    assert graph_from_json(graph_to_json(sample())) == sample()


def test_key_ignores_names_origins_and_device_but_not_strides() -> None:
    moved = sample("input", "other", "cuda")
    assert graph_key(moved) == graph_key(sample())
    plain = replace(sample(), ops=tuple(replace(op, origin="") for op in sample().ops))
    assert graph_key(plain) == graph_key(sample())
    assert graph_key(sample(strides=(1, 4))) != graph_key(sample())


def test_key_counts_composites_but_not_their_names() -> None:
    (whole,) = sample().composites
    other = replace(whole.op, call=AtenCall("aten.other.default", (Ref("x"),)))
    keys = [graph_key(replace(sample(), composites=c)) for c in ((), (whole,), (Composite(other, whole.ops),))]
    assert len(set(keys)) == 3
    renamed = replace(whole.op, name="some", outputs=("m", "nothing"))
    assert graph_key(replace(sample(), composites=(Composite(renamed, whole.ops),))) == graph_key(sample())


def test_what_is_frozen_comes_back_and_counts() -> None:
    frozen = replace(sample(), frozen=frozenset({"x"}))
    assert graph_from_json(graph_to_json(frozen)) == frozen
    assert graph_key(frozen) != graph_key(sample())
    renamed = replace(sample("input", "other"), frozen=frozenset({"input"}))
    assert graph_key(renamed) == graph_key(frozen)


@pytest.mark.parametrize("change", [
    lambda d: d.update(extra=1),
    lambda d: d.update(version=99),
    lambda d: d["ops"][0]["form"].update(kind="Exec"),
    lambda d: d["ops"][0].update(outputs=["x"]),
    lambda d: d["ops"].reverse(),
    lambda d: d["types"].pop("m"),
    lambda d: d.update(outputs=["nowhere"]),
    lambda d: d.pop("composites"),
    lambda d: d.update(frozen=["a"]),
    lambda d: d["composites"][0].update(ops=["nowhere"]),
    lambda d: d["composites"].append(d["composites"][0]),
    lambda d: d["composites"][0]["op"].update(name="a"),
    lambda d: d["composites"][0]["op"]["call"].update(args=[{"ref": "nowhere"}]),
    lambda d: d["composites"][0]["op"].update(form={"kind": "Reshape", "operand": "x"}),
])  # fmt: skip
def test_faults_are_errors(change: object) -> None:
    data = json.loads(graph_to_json(sample()))
    change(data)  # pyright: ignore[reportCallIssue]
    with pytest.raises(PlanError):
        graph_from_json(json.dumps(data))
