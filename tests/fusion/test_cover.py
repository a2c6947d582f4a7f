from __future__ import annotations

import math
import random
import time
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofuse.fusion.cover import Cover, best_cover, group_inputs, k_best, unfused_cover
from autofuse.fusion.enumerate import enumerate_groups
from autofuse.fusion.group import Group, required
from autofuse.ir.graph import Graph
from tests.fusion.graphs import GraphBuilder, crossed, layers, linear_gelu, random_graph, rms_norm
from tests.fusion.test_enumerate import builder_of


def assert_runs(graph: Graph, cover: Cover) -> None:
    """In the order given every group finds what it reads, every output is there, and no group is for nothing."""
    have: set[str] = set()
    for group in cover.groups:
        assert have.issuperset(group_inputs(graph, group)), group
        have.update(group.outputs)
    assert have >= required(graph)


def can_run(graph: Graph, groups: tuple[Group, ...]) -> bool:
    have: set[str] = set()
    left = list(groups)
    while ready := [g for g in left if have.issuperset(group_inputs(graph, g))]:
        have.update(v for g in ready for v in g.outputs)
        left = [g for g in left if g not in ready]
    return not left and have >= required(graph)


def brute_force(graph: Graph, groups: list[Group], costs: list[float]) -> list[tuple[float, frozenset[Group]]]:
    """All minimal covers, cheapest first."""
    found: list[tuple[float, frozenset[Group]]] = []
    for size in range(len(groups) + 1):
        for chosen in combinations(range(len(groups)), size):
            picked = frozenset(groups[i] for i in chosen)
            if any(smaller <= picked for _, smaller in found):
                continue
            if can_run(graph, tuple(picked)):
                found.append((sum(costs[i] for i in chosen), picked))
    return sorted(found, key=lambda item: item[0])


def test_the_cheapest_wins_either_way():
    graph = linear_gelu()
    groups = list(enumerate_groups(graph, lambda _: None).groups)
    size = {g: len(g.ops) for g in groups}
    assert [len(g.ops) for g in best_cover(graph, groups, [1.0 for _ in groups]).groups] == [3]
    split = best_cover(graph, groups, [float(size[g] ** 2) for g in groups])
    assert [g.ops for g in split.groups] == [("mm",), ("biased",), ("act",)]
    assert split.cost == 3.0


def test_infinite_costs_are_never_chosen():
    graph = linear_gelu()
    groups = list(enumerate_groups(graph, lambda _: None).groups)
    costs = [math.inf if len(g.ops) == 3 else 1.0 for g in groups]
    assert {len(g.ops) for g in best_cover(graph, groups, costs).groups} == {1, 2}
    assert best_cover(graph, groups, [math.inf] * len(groups)) is None
    assert k_best(graph, groups, [math.inf if "mm" in g.ops else 1.0 for g in groups], 3) == []


def test_a_cheap_value_is_computed_in_both_groups_where_that_is_cheaper():
    b = GraphBuilder()
    a = b.map("a", b.input("x", 4, 4), fn="exp")
    graph = b.graph(b.sum("y", a), b.mm("z", a, b.input("w", 4, 4)))
    hidden = [Group(("a", "y"), ("y",)), Group(("a", "z"), ("z",))]
    shared = [Group(("a", "y"), ("a", "y")), Group(("z",), ("z",))]
    assert set(best_cover(graph, hidden + shared, [2.0, 2.0, 3.0, 2.0]).groups) == set(hidden)
    assert best_cover(graph, hidden + shared, [2.0, 4.0, 3.0, 2.0]).groups == tuple(shared)


def test_groups_that_wait_for_each_other_are_not_a_cover():
    graph = crossed()
    first, second = Group(("a", "d"), ("a", "d")), Group(("c", "b"), ("b", "c"))
    singles = [Group((name,), (name,)) for name in "acbd"]
    groups = [first, second, *singles]
    cover = best_cover(graph, groups, [1.0, 1.0, 5.0, 5.0, 5.0, 5.0])
    assert_runs(graph, cover)
    assert cover.cost == 7.0  # one of the pair, and a single that breaks the wait
    assert best_cover(graph, groups[:2], [1.0, 1.0]) is None


def test_views_of_inputs_and_returned_inputs_need_no_group():
    b = GraphBuilder()
    x = b.input("x", 4, 4)
    graph = b.graph(x, b.view("v", x, 16), None)
    assert k_best(graph, [], [], 3) == [Cover((), 0.0)]
    assert unfused_cover(graph, []).groups == ()


def test_an_output_seen_through_a_view_is_materialised():
    b = GraphBuilder()
    v = b.view("v", b.map("a", b.input("x", 4, 4), fn="exp"), 16)
    graph = b.graph(v, b.map("y", v, fn="neg"))
    groups = enumerate_groups(graph, lambda _: None).groups
    assert best_cover(graph, groups, [1.0] * len(groups)).groups == (Group(("a", "y"), ("a", "y")),)


def test_the_unfused_plan_is_one_group_an_op():
    graph = rms_norm()
    groups = enumerate_groups(graph, lambda _: None).groups
    cover = unfused_cover(graph, groups, [2.0] * len(groups))
    assert [g.ops for g in cover.groups] == [(op.name,) for op in graph.ops]
    assert cover.cost == 12.0
    assert math.isnan(unfused_cover(graph, groups).cost)
    assert_runs(graph, cover)


def test_groups_that_cost_nothing_are_left_out_when_nothing_needs_them():
    graph = linear_gelu()
    groups = list(enumerate_groups(graph, lambda _: None).groups)
    for cover in k_best(graph, groups, [0.0] * len(groups), 4):
        for left_out in cover.groups:
            assert not can_run(graph, tuple(g for g in cover.groups if g != left_out))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.booleans())
def test_k_best_are_the_k_best(seed, count, integers):
    """Against all subsets of at most twelve groups."""
    rng = random.Random(seed)
    graph = random_graph(rng, count)
    every = list(enumerate_groups(graph, lambda _: None).groups)
    groups = every if len(every) <= 12 else sorted(rng.sample(every, 12), key=every.index)
    costs = [float(rng.randint(1, 4)) if integers else rng.uniform(0.5, 5.0) for _ in groups]
    expected = brute_force(graph, groups, costs)
    found = k_best(graph, groups, costs, 4)
    assert [cover.cost for cover in found] == pytest.approx([cost for cost, _ in expected[:4]])
    assert len({frozenset(cover.groups) for cover in found}) == len(found)
    minimal = {chosen for _, chosen in expected}
    for cover in found:
        assert frozenset(cover.groups) in minimal
        assert cover.cost == pytest.approx(sum(costs[groups.index(g)] for g in cover.groups))
        assert_runs(graph, cover)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(4, 16))
def test_larger_graphs_have_covers_that_run_and_beat_the_unfused_plan(seed, count):
    rng = random.Random(seed)
    graph = random_graph(rng, count)
    groups = enumerate_groups(graph, lambda _: None, budget=150).groups
    costs = [rng.uniform(1.0, 2.0) * len(group.ops) ** 0.7 for group in groups]
    found = k_best(graph, groups, costs, 3)
    unfused = unfused_cover(graph, groups, costs)
    assert_runs(graph, unfused)
    assert found[0].cost <= unfused.cost + 1e-9
    assert [cover.cost for cover in found] == sorted(cover.cost for cover in found)
    assert len({frozenset(cover.groups) for cover in found}) == len(found)
    for cover in found:
        assert_runs(graph, cover)


def test_a_graph_of_65_ops_is_enumerated_and_covered_within_the_time():
    import scipy.optimize
    import scipy.sparse  # noqa: F401  loading SciPy is not the search's time

    graph = layers(5)
    start = time.process_time()
    groups = enumerate_groups(graph, builder_of(graph), budget=400).groups
    cover = best_cover(graph, groups, [3.0 + cost_of(graph, group) for group in groups])
    seconds = time.process_time() - start
    assert_runs(graph, cover)
    assert len(cover.groups) < 40
    assert seconds < 2.0


def cost_of(graph: Graph, group: Group) -> float:
    """Bytes over 4 TB/s; more than one matmul in a kernel costs as much again."""
    inside = {v for name in group.ops for v in graph.by_name[name].outputs}
    read = {graph.base(v) for name in group.ops for v in graph.by_name[name].inputs} - inside
    matmuls = sum(name.endswith(("gate", "up", "down")) for name in group.ops)
    return sum(graph.types[v].nbytes for v in read | set(group.outputs)) / 4e6 * (1 + (matmuls > 1))


def test_what_follows_from_frozen_inputs_needs_no_other_group():
    """w -> a -> b -> y: once, b is computed from w on, so that a need not be kept."""
    b = GraphBuilder()
    end = b.map("b", b.map("a", b.input("w", 4, 4), fn="exp"), fn="log")
    graph = replace(b.graph(b.map("y", b.input("x", 4, 4), end)), frozen=frozenset({"w"}))
    groups = [Group(("a",), ("a",)), Group(("b",), ("b",)), Group(("y",), ("y",)), Group(("a", "b", "y"), ("y",))]
    chosen = best_cover(graph, groups, [0.0, 0.0, 3.0, 4.0])
    assert chosen is not None
    assert (chosen.groups, chosen.cost) == ((groups[1], groups[2]), 3.0)
    fused = best_cover(graph, groups, [0.0, 0.0, 5.0, 4.0])
    assert fused is not None
    assert fused.groups == (groups[3],)
    calls = best_cover(replace(graph, frozen=frozenset()), groups, [1.0, 1.0, 3.0, 9.0])
    assert calls is not None
    assert calls.groups == tuple(groups[:3])
