"""Classes of axes and legal role kinds, on programs written by hand."""

from __future__ import annotations

import pytest

from autofuse.codegen.looptree import Join, build_tree
from autofuse.schedule.families import added_by_atomics, classify, legal_kinds, loop_order, role_assignments
from autofuse.schedule.space import for_family
from tests.schedule.programs import ALL, Builder, attention, chain, column_sum, layer_norm_backward, matmul, softmax

CLASSES = {
    "softmax": {"m": "kept", "n": "reduced_inner"},
    "rms_norm": {"m": "kept", "n": "reduced_inner"},
    "column_sum": {"m": "kept_inner", "k": "reduced_outer"},
    "total": {"k": "reduced_inner"},
    "layer_norm_backward": {"m": "reduced_rows", "n": "reduced_inner"},
    "group_norm": {"b": "rest", "g": "kept", "c": "reduced_rows", "s": "reduced_inner"},
    "broadcast": {"m": "outer", "n": "inner"},
    "transpose": {"m": "cross", "n": "inner_cross"},
    "sibling_stores": {"m": "outer", "n": "partial"},
    "flat": {"n": "inner"},
    "scalar": {},
    "matmul": {"m": "m", "n": "n", "k": "k"},
    "matvec": {"n": "n_vector", "k": "k_vector"},
    "gated": {"m": "m", "n": "n", "k": "k"},
    "chain": {"m": "m", "p": "n", "n": "k", "k": "inner"},
    "attention": {"b": "batch", "m": "m", "e": "n", "n": "k", "d": "inner"},
    "linear_cross_entropy": {"m": "m", "n": "n", "k": "k"},
    "head_norm": {"m": "m", "h": "n_outer", "c": "n", "k": "k"},
    "low_rank": {"m": "m", "n": "n", "k": "k", "r": "inner"},
}


@pytest.mark.parametrize("name", CLASSES)
def test_classes(name: str) -> None:
    assert classify(ALL[name]()).classes == CLASSES[name]


def test_names_do_not_matter() -> None:
    b = Builder(k=64, m=128, n=256)  # rows are called k, columns m, the summed axis n
    b.store("y", "km", b.contract(b.load("x", "kn"), b.load("w", "nm"), "n"))
    assert classify(b.program()).classes == {"k": "m", "m": "n", "n": "k"}


def test_atomics_need_a_plain_float32_sum() -> None:
    assert added_by_atomics(column_sum(), "k")
    assert not added_by_atomics(column_sum(dtype="bfloat16"), "k")
    assert not added_by_atomics(softmax(), "n")
    assert added_by_atomics(matmul(out="float32", bias=False), "k")
    assert not added_by_atomics(matmul(out="float32"), "k")  # its result is read by the epilogue
    assert not added_by_atomics(matmul(bias=False), "k")
    maximum = Builder(m=64, k=1024)
    maximum.store("y", "m", maximum.reduce("max", maximum.load("x", "km"), "k"), "float32")
    assert not added_by_atomics(maximum.program(), "k")
    b = Builder(m=64, k=1024)
    b.store("y", "m", b.reduce("sum", b.load("x", "km"), "k"), "float32")
    b.store("z", "m", b.map("exp", b.load("v", "m")))  # every program would store it
    assert not added_by_atomics(b.program(), "k")
    assert "split" in legal_kinds(b.program())["k"]  # but the one that comes last may


def test_parts_are_joined_only_where_they_meet_once() -> None:
    assert "split" in legal_kinds(column_sum(dtype="bfloat16"))["k"]
    assert "split" in legal_kinds(matmul())["k"]
    assert "split" not in legal_kinds(softmax())["n"]  # stored along it, after the sum
    b = Builder(m=64, k=1024)
    x = b.load("x", "km")
    b.store("y", "m", b.reduce("sum", b.map("sub", x, b.reduce("max", x, "k")), "k"))
    assert "split" not in legal_kinds(b.program())["k"]  # the sum waits for the maximum
    split = [k for k in role_assignments(chain(), classify(chain())) if "split" in k.values()]
    assert split
    for kinds in split:  # n outside of the loop over k; never k inside of the loop over n
        assert kinds["n"] == "split"
        assert sum(isinstance(s, Join) for s in build_tree(chain(), kinds, list(kinds)).body) == 1


def test_grid_needs_the_axis_in_every_store() -> None:
    kinds = legal_kinds(ALL["sibling_stores"]())
    assert "grid" in kinds["m"]
    assert "grid" not in kinds["n"]
    assert all("grid" not in found for found in legal_kinds(layer_norm_backward()).values())


def test_split_of_rows_in_layer_norm_backward() -> None:
    program = layer_norm_backward()
    found = role_assignments(program, classify(program))
    assert {"m": "split", "n": "whole"} in found
    assert all(kinds["n"] != "split" for kinds in found)


def test_loop_order() -> None:
    for program in (chain(), attention()):
        order = loop_order(program, classify(program))
        outer, inner = ("n", "k") if "k" in order else ("n", "d")
        assert order.index("m") < order.index(outer) < order.index(inner)


def test_whole_is_bounded_by_the_tile() -> None:
    kinds = {kinds["n"] for kinds in role_assignments(softmax(n=65536), classify(softmax(n=65536)))}
    assert kinds == {"whole", "loop"}
    kinds = {kinds["n"] for kinds in role_assignments(softmax(n=65537), classify(softmax(n=65537)))}
    assert kinds == {"loop"}
    wide = ALL["group_norm"]()
    for found in role_assignments(wide, classify(wide), {"rest": {"grid": 1 << 40}, "kept": {"whole": 1 << 40},
                                  "reduced_rows": {"whole": 64, "loop": 64},
                                  "reduced_inner": {"whole": 65536, "loop": 65536}}):  # fmt: skip
        assert not (found["g"] == found["c"] == found["s"] == "whole")  # 32 x 16 x 4096 elements


@pytest.mark.parametrize("name", ALL)
def test_every_assignment_makes_a_loop_tree(name: str) -> None:
    program = ALL[name]()
    family = classify(program)
    found = role_assignments(program, family)
    assert found
    legal = legal_kinds(program)
    for kinds in (*found, *for_family(family.name, 90).assignments(program)):
        assert tuple(kinds) == loop_order(program, family)
        assert all(kind in legal[axis] for axis, kind in kinds.items())
        assert list(kinds.values()).count("split") <= 1
        build_tree(program, kinds, list(kinds))
