"""Features against figures worked by hand, and the speed that scoring needs."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from autofuse.capture.trace import capture
from autofuse.codegen.looptree import Loop, build_tree
from autofuse.cost.backbone import estimate
from autofuse.cost.device import resolve
from autofuse.cost.features import FEATURE_NAMES, Features, featurize
from autofuse.cost.instructions import expression_cost
from autofuse.cost.walk import collect
from autofuse.errors import ModelError
from autofuse.fusion.build import build
from autofuse.fusion.rewrites import variants
from autofuse.ir.program import MapNode, ReduceNode
from tests.cost.programs import MATMUL_KINDS, MATMUL_SPACE, column_sum, features, grid, matmul, pointwise, softmax


def test_compulsory_and_requested_bytes_of_a_matmul() -> None:
    m = n = k = 4096
    found = features(matmul(m, n, k), MATMUL_KINDS, **{"block.m": (128,), "block.n": (256,), "block.k": (64,)})
    assert found["compulsory_read_bytes"][0] == 2 * (m * k + k * n)
    assert found["compulsory_write_bytes"][0] == 2 * m * n
    assert found["requested_read_bytes"][0] == 2 * (m * k * (n // 256) + k * n * (m // 128))
    assert found["tiles"][0] == (m // 128) * (n // 256)
    assert found["stage_dot_bytes"][0] == 2 * 64 * (128 + 256)
    assert found["tensor16_flops"][0] == 2 * m * n * k
    assert found["trips"][0] == k // 64


def test_grouped_order_reads_less_than_row_major() -> None:
    space = {"block.m": (128,), "block.n": (256,), "block.k": (64,), "num_warps": (8,), "group": (1, 4, 8, 16)}
    found = features(matmul(8192, 8192, 8192), MATMUL_KINDS, **space)["grouped_read_bytes"]
    assert found[0] == pytest.approx(2.3e9, rel=0.15)  # COST_MODEL.md: 2.3 GB at G=1, 1.1 GB at G=16
    assert found[3] == pytest.approx(1.1e9, rel=0.15)
    assert (np.diff(found) <= 0).all()


def test_padding_counts_as_work_but_not_as_bytes() -> None:
    found = features(pointwise(1000, 1000), {"m": "grid", "n": "whole"}, **{"block.m": (1,)})
    assert found["padding_waste"][0] == 1024 / 1000
    assert found["compulsory_read_bytes"][0] == 2 * (1000 * 1000 + 1000)


def test_passes_of_a_looped_softmax_are_requested_again() -> None:
    whole = features(softmax(64, 4096), {"m": "grid", "n": "whole"}, **{"block.m": (1,)})
    looped = features(softmax(64, 4096), {"m": "grid", "n": "loop"}, **{"block.m": (1,), "block.n": (1024,)})
    assert whole["pass_bytes"][0] == 0
    assert looped["pass_bytes"][0] == 2 * whole["compulsory_read_bytes"][0]  # max, sum, write: three passes
    assert looped["compulsory_read_bytes"][0] == whole["compulsory_read_bytes"][0]


def test_split_reduction_pays_for_its_atomics() -> None:
    kinds, blocks = {"n": "grid", "m": "split"}, {"block.n": (64,), "block.m": (64,), "parts.m": (1, 4, 16)}
    found = features(column_sum(4096, 1024), kinds, **blocks)
    assert found["atomic_bytes"].tolist() == [4 * 1024 * parts for parts in (1, 4, 16)]
    assert found["tiles"].tolist() == [16, 64, 256]


def test_live_registers_follow_tile_over_threads() -> None:
    space = {"block.m": (1,), "num_warps": (4, 8, 16)}
    found = features(softmax(64, 16384), {"m": "grid", "n": "whole"}, **space)["live_registers"]
    # One float32 tile is live at a time: 16384 / threads, and two scalars.
    assert np.allclose(found, 16384 / np.array([128, 256, 512]), atol=2)


def test_accumulators_are_held_through_the_loop() -> None:
    space = {"block.m": (128,), "block.n": (256,), "block.k": (64,), "num_warps": (8,)}
    found = features(matmul(4096, 4096, 4096), MATMUL_KINDS, **space)
    assert found["accumulator_registers"][0] == 128 * 256 / 256
    assert found["live_registers"][0] >= 128


def test_an_element_wise_chain_needs_no_second_tile() -> None:
    one, many = (
        features(pointwise(512, 4096, depth), {"m": "grid", "n": "grid"}, **{"block.m": (4,), "block.n": (1024,)})
        for depth in (1, 6)
    )
    assert many["live_registers"][0] == one["live_registers"][0]
    assert many["special_instructions"][0] > 5 * 512 * 4096


def test_all_features_are_finite_and_named() -> None:
    for program, kinds, space in (
        (matmul(777, 1001, 100), MATMUL_KINDS, MATMUL_SPACE),
        (softmax(1, 1), {"m": "grid", "n": "whole"}, {"block.m": (1, 8), "num_warps": (1, 32)}),
        (column_sum(7, 4097), {"m": "loop", "n": "grid"}, {"block.m": (1, 8), "block.n": (1, 512)}),
    ):
        found = features(program, kinds, **space)
        assert tuple(found.columns) == FEATURE_NAMES
        assert all(np.isfinite(found[name]).all() and (found[name] >= 0).all() for name in FEATURE_NAMES)


def test_recording_round_trip() -> None:
    found = features(matmul(512, 512, 512), MATMUL_KINDS, **{"block.m": (64, 128), "block.n": (64,), "block.k": (32,)})
    again = Features.from_recording(found.recording())
    assert all((again[name] == found[name]).all() for name in FEATURE_NAMES)
    broken = found.recording()
    del broken["f_tiles"]
    with pytest.raises(ModelError, match="f_tiles"):
        Features.from_recording(broken)


def test_a_hundred_thousand_candidates_a_second() -> None:
    program, target = matmul(8192, 8192, 8192, epilogue=True), resolve("h200")
    tree = build_tree(program, MATMUL_KINDS)
    columns = {name: np.tile(column, 11) for name, column in grid(**MATMUL_SPACE).items()}
    n = len(columns["num_warps"])
    best = 1e9
    for _ in range(3):
        start = time.process_time()
        estimate(featurize(program, tree, columns, target, MATMUL_KINDS), target)
        best = min(best, time.process_time() - start)
    assert n / best > 100_000


def test_an_exponential_that_follows_a_maximum_is_a_multiply_add_and_one_exp2() -> None:
    args = (torch.randn(64, 4096), torch.randn(4096, 32))
    graph = capture(lambda x, v: torch.softmax(x * 0.5, -1) @ v, args)[0].graph
    program = build(graph, frozenset(op.name for op in graph.ops), tuple(v for v in graph.outputs if v is not None))
    online = variants(program)["deferred", "online"]
    for kind, instructions in (("loop", 1), ("whole", 4)):  # sub, mul and the two of an exp where it is not followed
        work = collect(online, build_tree(online, {"m": "grid", "n": "whole", "k": kind}))
        (power,) = (item for item in work.arithmetic if item.axes == {"m", "k"} and item.special)
        assert (power.plain, power.special) == (instructions + 0.5, 1.0), "half of one widens the loaded score"


@pytest.mark.parametrize("window", [0, 300])
def test_tiles_that_a_mask_leaves_out_are_no_work(window: int) -> None:
    """Against the tiles of a causal (or windowed) attention, counted one by one; the program is captured."""
    keys, rows, columns = 1024, 64, 32

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        at = torch.arange(keys)
        hidden = at[None] > at[:, None]
        if window:
            hidden = hidden | (at[:, None] - at[None] >= window)
        return torch.softmax((q @ k.T).masked_fill(hidden, float("-inf")).float(), -1).to(q.dtype) @ v

    args = tuple(torch.randn(keys, size).half() for size in (64, 64, 128))
    graph = capture(attend, args)[0].graph
    whole = build(graph, frozenset(op.name for op in graph.ops), tuple(v for v in graph.outputs if v is not None))
    program = variants(whole)["deferred", "online"]
    (summed,) = (node.axes[0] for node in program.nodes if isinstance(node, ReduceNode) and node.fn == "max")
    (row,) = (a for a in program.free[program.stores[0].node] if program.sizes[a] == keys)
    kinds = {a: "loop" if a == summed else "grid" if a == row else "whole" for a in program.sizes}
    found = features(program, kinds, **{f"block.{row}": (rows,), f"block.{summed}": (columns,)})
    query, key = np.arange(keys)[:, None], np.arange(keys)
    seen = (key <= query) & ((query - key < window) if window else True)
    tiles = seen.reshape(keys // rows, rows, keys // columns, columns).any(axis=(1, 3))
    assert found["trips"][0] == pytest.approx(tiles.sum(1).mean(), rel=1e-9)
    flops = 2 * rows * columns * (64 + 128) * tiles.sum()
    assert found["tensor16_flops"][0] == pytest.approx(flops, rel=1e-9)
    tree = build_tree(program, kinds)
    (loop,) = (statement for statement in tree.body if isinstance(statement, Loop))
    assert loop.free is not None
    body = tuple(replace(s, free=None) if s is loop else s for s in tree.body)
    columns_of = {f"block.{row}": np.array([rows]), f"block.{summed}": np.array([columns])}
    tested = featurize(program, replace(tree, body=body), columns_of, resolve("h200"), kinds)
    free = seen.reshape(keys // rows, rows, keys // columns, columns).all(axis=(1, 3))
    tests = sum(
        expression_cost(node.expr)[0]
        for number in (*loop.free.plain, *loop.free.idle)
        if isinstance(node := program.nodes[number], MapNode)
    )
    spared = tested["plain_instructions"][0] - found["plain_instructions"][0]
    assert spared == pytest.approx(tests * rows * columns * free.sum(), rel=1e-9)
