from __future__ import annotations

from autofuse.fusion.coarsen import as_group, coarsen
from autofuse.fusion.enumerate import enumerate_groups
from autofuse.fusion.group import GraphMasks, Group
from autofuse.ir.graph import Arg, AtenCall, Graph, Map, Ref
from tests.fusion.graphs import GraphBuilder, linear_gelu, rms_norm


def atoms_of(graph: Graph, legal=lambda _: None) -> set[tuple[str, ...]]:
    masks = GraphMasks(graph)
    return {masks.names(mask) for mask in coarsen(masks, legal).masks}


def test_chains_of_maps_are_one_atom_up_to_the_reduction():
    b = GraphBuilder()
    y = b.map("c", b.map("b", b.map("a", b.input("x", 4, 8), fn="exp"), fn="neg"), b.input("z", 4, 8))
    assert atoms_of(b.graph(b.sum("s", y))) == {("a", "b", "c", "s")}


def test_a_value_with_two_readers_is_a_choice():
    assert atoms_of(rms_norm()) == {("h",), ("square", "total"), ("scale",), ("scaled", "y")}


def test_what_reads_or_feeds_a_matmul_is_a_choice():
    assert atoms_of(linear_gelu()) == {("mm",), ("biased",), ("act",)}
    b = GraphBuilder()
    mm = b.mm("mm", b.map("pre", b.input("x", 4, 4), fn="exp"), b.input("w", 4, 4))
    assert atoms_of(b.graph(mm)) == {("pre",), ("mm",)}


def test_an_output_or_a_broadcast_value_stays_apart():
    b = GraphBuilder()
    a = b.map("a", b.input("x", 4, 4), fn="exp")
    small = b.map("small", b.input("w", 4), fn="exp")
    assert atoms_of(b.graph(a, b.map("y", a, small))) == {("a",), ("small",), ("y",)}


def test_a_view_between_two_maps_changes_nothing():
    b = GraphBuilder()
    v = b.view("v", b.map("a", b.input("x", 4, 4), fn="exp"), 16)
    assert atoms_of(b.graph(b.map("y", v, fn="neg"))) == {("a", "y")}


def test_an_output_seen_through_a_view_stays_apart():
    b = GraphBuilder()
    a = b.map("a", b.input("x", 4, 4), fn="exp")
    assert atoms_of(b.graph(b.view("v", a, 16), b.map("y", a, fn="neg"))) == {("a",), ("y",)}


def test_a_refused_atom_falls_apart():
    b = GraphBuilder()
    y = b.map("y", b.map("a", b.input("x", 4, 4), fn="exp"), fn="neg")
    assert atoms_of(b.graph(y), lambda group: "no" if len(group.ops) > 1 else None) == {("a",), ("y",)}


def test_ops_without_operands_go_with_each_reader():
    b = GraphBuilder()
    offset = b.map("offset", b.iota("i", 4), fn="neg")
    y = b.map("y", b.input("x", 4, 4), offset)
    z = b.map("z", b.sum("s", y), offset, fn="mul")
    graph = b.graph(y, z)
    masks = GraphMasks(graph)
    atoms = coarsen(masks, lambda _: None)
    assert masks.names(atoms.free) == ("i", "offset")
    assert {masks.names(mask) for mask in atoms.masks} == {("y",), ("s",), ("z",)}
    assert as_group(masks, masks.mask(["y"]), atoms.free) == Group(("i", "offset", "y"), ("y",))
    assert as_group(masks, masks.mask(["s"]), atoms.free) == Group(("s",), ("s",))


def test_opaque_ops_are_in_no_atom():
    b = GraphBuilder()
    y = b.map("y", b.opaque("sorted", b.map("a", b.input("x", 4, 4), fn="exp")), fn="neg")
    assert atoms_of(b.graph(y)) == {("a",), ("y",)}


def widened(*shape: int, dtype: str = "float32") -> GraphBuilder:
    """y = wide(x) * rsqrt(sum(wide(x))), a norm's shape."""
    b = GraphBuilder()
    x = b.input("x", *shape, dtype="bfloat16")
    call = AtenCall("aten._to_copy.default", (Ref(x),))
    wide = b.op("wide", Map((x,), Arg(0), "float32"), shape, call, dtype)
    b.map("y", wide, b.map("factor", b.sum("s", wide), fn="rsqrt"), fn="mul")
    return b


def test_a_widened_input_goes_with_each_reader():
    assert atoms_of(widened(4, 8).graph("y")) == {("s",), ("factor",), ("y",)}
    assert ("wide",) in atoms_of(widened(4, 8, dtype="bfloat16").graph("y")), "as wide as before: a choice"
    groups = enumerate_groups(widened(4, 8).graph("y"), lambda _: None).groups
    # Without the sum between: both read x, and no value as large as x is materialised.
    assert {Group(("wide", "s", "factor"), ("factor",)), Group(("wide", "y"), ("y",))} <= set(groups)
    assert Group(("wide", "s", "factor", "y"), ("y",)) in groups


def test_two_readers_of_a_widened_input_are_neighbours():
    b = GraphBuilder()
    x = b.input("x", 4, 8, dtype="bfloat16")
    wide = b.op("wide", Map((x,), Arg(0), "float32"), (4, 8), AtenCall("aten._to_copy.default", (Ref(x),)))
    graph = b.graph(b.sum("a", wide), b.map("b", wide, fn="exp"))
    assert Group(("wide", "a", "b"), ("a", "b")) in enumerate_groups(graph, lambda _: None).groups
