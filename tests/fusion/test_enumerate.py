from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofuse.fusion.build import NotFusible, build
from autofuse.fusion.coarsen import coarsen
from autofuse.fusion.enumerate import enumerate_groups
from autofuse.fusion.group import GraphMasks, Group, bits
from autofuse.ir.graph import Contract, Graph
from tests.fusion.graphs import GraphBuilder, layers, linear_gelu, random_graph, rms_norm


def anything(_: Group) -> None:
    return None


def test_norm_is_found_whole_and_with_the_residual_computed_again():
    found = set(enumerate_groups(rms_norm(), anything).groups)
    every = ("h", "square", "total", "scale", "scaled", "y")
    assert Group(every, ("h", "y")) in found
    assert Group(every, ("y",)) in found
    assert all(Group((name,), (name,)) in found for name in every)


def test_matmul_may_keep_or_share_its_epilogue():
    found = {group.ops for group in enumerate_groups(linear_gelu(), anything).groups}
    assert found == {("mm",), ("biased",), ("act",), ("mm", "biased"), ("biased", "act"), ("mm", "biased", "act")}


def test_a_matmul_is_never_computed_twice():
    b = GraphBuilder()
    mm = b.mm("mm", b.input("x", 4, 4), b.input("w", 4, 4))
    graph = b.graph(b.map("y", mm, fn="exp"), b.map("z", mm, fn="neg"))
    for group in enumerate_groups(graph, anything).groups:
        assert "mm" not in group.ops or "mm" in group.outputs or {"y", "z"} <= set(group.ops)


def test_a_shared_map_may_be_hidden_in_both_readers():
    b = GraphBuilder()
    a = b.map("a", b.input("x", 4, 4), fn="exp")
    graph = b.graph(b.sum("y", a), b.mm("z", a, b.input("w", 4, 4)))
    found = set(enumerate_groups(graph, anything).groups)
    assert {Group(("a", "y"), ("y",)), Group(("a", "z"), ("z",)), Group(("a", "y"), ("a", "y"))} <= found


def test_opaque_ops_stand_alone_and_are_not_shown():
    b = GraphBuilder()
    y = b.map("y", b.opaque("sorted", b.map("a", b.input("x", 4, 4), fn="exp")), fn="neg")
    shown: list[Group] = []
    found = enumerate_groups(b.graph(y), shown.append)
    assert {group.ops for group in found.groups} == {("a",), ("sorted",), ("y",)}
    assert all("sorted" not in group.ops for group in shown)


def test_refusals_are_counted_by_reason_and_do_not_grow():
    found = enumerate_groups(linear_gelu(), lambda g: "biased: too bad" if len(g.ops) == 2 else None)
    assert found.refused == {"too bad": 2}
    assert max(len(group.ops) for group in found.groups if group.ops[0] != "mm") == 1


def test_one_library_call_keeps_a_group_that_cannot_be_generated():
    found = enumerate_groups(linear_gelu(), lambda g: "no" if len(g.ops) > 1 else None)
    assert Group(("mm", "biased"), ("biased",)) in found.groups
    assert Group(("biased", "act"), ("act",)) not in found.groups


def test_limits_are_named():
    found = enumerate_groups(layers(1), anything, max_contracts=1)
    assert found.refused["more than 1 matmuls"] > 0
    assert all(sum(name.endswith(("gate", "up", "down")) for name in g.ops) <= 1 for g in found.groups)
    found = enumerate_groups(layers(1), anything, max_ops=4)
    assert max(len(group.ops) for group in found.groups) <= 4
    assert found.refused["more than 4 ops"] > 0


def test_matmuls_that_share_an_input_only_horizontally():
    b = GraphBuilder()
    x = b.input("x", 4, 4)
    graph = b.graph(b.mm("q", x, b.input("wq", 4, 4)), b.mm("k", x, b.input("wk", 4, 8)))
    both = Group(("q", "k"), ("q", "k"))
    assert both not in enumerate_groups(graph, anything).groups
    assert both in enumerate_groups(graph, anything, horizontal=True).groups


@pytest.mark.parametrize("budget", [0, 10, 60])
def test_the_budget_is_kept_and_told(budget):
    found = enumerate_groups(layers(3), anything, budget=budget)
    singles = len(GraphMasks(layers(3)).ops)
    atoms = len(coarsen(GraphMasks(layers(3)), anything).masks)
    assert found.truncated
    assert {g.ops for g in found.groups} >= {(op.name,) for op in layers(3).ops}
    assert len(found.groups) <= singles + atoms + budget + 5


def test_every_layer_gets_its_turn_under_a_small_budget():
    found = enumerate_groups(layers(4), anything, budget=150)
    for i in range(4):
        assert any(len(g.ops) >= 5 and all(name.startswith(f"l{i}_") for name in g.ops) for g in found.groups)


def test_without_truncation_every_convex_connected_set_is_found():
    for seed in range(30):
        graph = random_graph(random.Random(seed), 9)
        found = enumerate_groups(graph, anything, budget=10**6, max_contracts=99)
        assert not found.truncated
        masks = GraphMasks(graph)
        atoms = coarsen(masks, anything)
        expected = set()
        for size in range(2, len(atoms.masks) + 1):
            for chosen in combinations(atoms.masks, size):
                ops = sum(chosen)
                if masks.is_convex(ops) and connected(masks, ops):
                    expected.add(ops)
        free = atoms.free
        got = {masks.mask(g.ops) & ~free for g in found.groups}
        assert expected <= got, seed


def connected(masks: GraphMasks, ops: int) -> bool:
    reached = ops & -ops
    while True:
        more = reached
        for i in bits(reached):
            more |= (masks.parents[i] | masks.children[i]) & ops
        if more == reached:
            return reached == ops
        reached = more


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 14))
def test_groups_are_sound(seed, count):
    graph = random_graph(random.Random(seed), count)
    masks = GraphMasks(graph)
    free = coarsen(masks, anything).free
    found = enumerate_groups(graph, anything, budget=300)
    assert len(set(found.groups)) == len(found.groups)
    position = {op.name: i for i, op in enumerate(graph.ops)}
    for group in found.groups:
        assert group.outputs
        assert list(group.ops) == sorted(group.ops, key=position.__getitem__)
        ops = masks.mask(group.ops)
        if len(group.ops) > 1:
            assert all(masks.ops[i].form is not None for i in bits(ops))
            assert masks.is_convex(ops & ~free)
            assert connected(masks, ops)
        alive = 0
        for value in group.outputs:
            maker = masks.made_by[value]
            assert ops >> maker & 1
            alive |= 1 << maker | masks.ancestors[maker] & ops
        assert alive == ops, "an op of the group feeds none of its outputs"
        for value in set(masks.exposed(ops & ~free)) - set(group.outputs):
            maker = masks.made_by[value]
            cone = (masks.ancestors[maker] | 1 << maker) & ops
            assert not any(isinstance(masks.ops[i].form, Contract) for i in bits(cone)), "a matmul is computed again"


def builder_of(graph: Graph):
    def legal(group: Group) -> str | None:
        try:
            build(graph, frozenset(group.ops), group.outputs)
        except NotFusible as reason:
            return str(reason)
        return None

    return legal


def test_what_is_kept_can_be_built():
    graph = layers(1)
    legal = builder_of(graph)
    found = enumerate_groups(graph, legal)
    assert sum(len(group.ops) > 1 for group in found.groups) > 20
    for group in found.groups:
        assert legal(group) is None
