"""Generated kernels against float64, in Triton's interpreter: every case under schedules sampled from its own search
space, so that roles, blocks, rewrites, orders and access kinds are all tried at sizes that fit nothing evenly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from autofuse.codegen import joining
from autofuse.codegen.triton import emit
from autofuse.cost.device import TARGETS
from autofuse.errors import InvalidSchedule
from autofuse.fusion.build import build
from autofuse.fusion.rewrites import variants
from autofuse.ir.graph import Graph, Map, Reduce
from autofuse.ir.program import Program
from autofuse.measure.launch import interpret
from autofuse.schedule.schedule import Role, Schedule
from autofuse.search.pool import subspaces
from tests.codegen import graphs
from tests.codegen.graphs import CASES, Case

H200 = TARGETS["h200"]
PROGRAMS = 400
"""Schedules with more programs than this are skipped: the interpreter is slow."""


def program_of(case: Case) -> Program:
    ops = frozenset(op.name for op in case.graph.ops if not op.is_view)
    return build(case.graph, ops, tuple(v for v in case.graph.outputs if v is not None))


def run(case: Case, program: Program, schedule: Schedule, seed: int, scale: float = 1.0) -> None:
    kernel = emit(program, schedule, "kernel")
    env = graphs.inputs(case, seed, scale)
    expected = case.reference(env)
    for name in program.outputs:
        found = case.graph.types[name]
        dtype = getattr(torch, found.dtype)
        poison = float("nan") if dtype.is_floating_point else -77
        env[name] = torch.full(found.shape, poison, dtype=dtype)
    interpret(kernel, env)
    for name, exact in zip(case.graph.outputs, expected, strict=True):
        assert name is not None
        out = env[name].double()
        if exact.dtype == torch.int64:
            assert torch.equal(env[name], exact), f"{schedule}\n{kernel.source}"
            continue
        error = (out - exact).norm() / exact.norm()
        assert error < 2e-3, f"{schedule}: relative error {error}\n{kernel.source}"


@pytest.mark.parametrize("make", CASES, ids=lambda make: make().name)
def test_sampled_schedules_are_right(make) -> None:
    case = make()
    rng = np.random.default_rng(7)
    tried = 0
    for part in subspaces(program_of(case), H200):
        sampled = part.candidates.sample(40, rng).tolist()
        if not sampled:
            continue
        chosen = [part.candidates.default(), *sampled]
        count = 0
        for index in chosen:
            schedule = part.candidates.schedule(index)
            if emit(part.program, schedule, "k").grid[0] > PROGRAMS or count == 4:
                continue
            count += 1
            run(case, part.program, schedule, seed=index % 5)
        tried += count
    assert tried >= 3


def test_moments_in_one_pass_do_not_cancel() -> None:
    """E[x^2] - E[x]^2 would lose everything here: the mean is a thousand times the deviation."""
    case = graphs.layer_norm(4, 300)
    shifted = Case(case.name, case.graph, case.reference)
    program = variants(program_of(shifted))[("moments",)]
    kernel = emit(program, Schedule((("m", Role("grid", 2)), ("n", Role("loop", 64)))), "kernel")
    env = graphs.inputs(case, 3)
    env["x"] = (1000 + env["x"].float()).half()
    exact = case.reference(env)[0]
    env["y"] = torch.full((4, 300), float("nan"), dtype=torch.float16)
    interpret(kernel, env)
    assert (env["y"].double() - exact).abs().max() < 5e-3


@pytest.mark.parametrize("rows", [[float("-inf")] * 200, [0.0] * 200, [6e4] * 200, [float("nan")] + [1.0] * 199])
def test_online_softmax_at_extremes(rows: list[float]) -> None:
    case = graphs.softmax(2, 200)
    program = variants(program_of(case))[("online",)]
    schedule = Schedule((("m", Role("grid", 1)), ("n", Role("loop", 64))))
    env = {"x": torch.tensor([rows, [0.5] * 200]).half(), "y": torch.zeros(2, 200).half()}
    interpret(emit(program, schedule, "kernel"), env)
    expected = torch.softmax(env["x"].double(), 1)
    assert torch.equal(env["y"].isnan(), expected.isnan())
    torch.testing.assert_close(env["y"].double(), expected, atol=1e-3, rtol=1e-2, equal_nan=True)


def test_a_plain_maximum_keeps_nan() -> None:
    case = graphs.split_heads_norm(2, 2, 32)
    program = program_of(case)
    env = graphs.inputs(case, 1)
    env["x"][0, 3] = float("nan")
    env["y"] = torch.zeros(2, 2, 32).half()
    roles = tuple(
        (axis.name, Role("whole") if axis.name in program.reduced else Role("grid", 1)) for axis in program.axes
    )
    interpret(emit(program, Schedule(roles), "kernel"), env)
    assert env["y"][0, 0].isnan().all()
    assert not env["y"][0, 1].isnan().any()


@pytest.mark.parametrize("sweep", ["reverse", "hold"])
@pytest.mark.parametrize(
    "case",
    [graphs.softmax(3, 1000), graphs.softmax(2, 129), graphs.layer_norm(5, 300), graphs.residual_rms_norm(4, 257),
     graphs.cross_entropy(5, 400), graphs.argmax(6, 130)],
    ids=lambda case: case.name,
)  # fmt: skip
def test_passes_that_turn_back_are_right(case: Case, sweep: str) -> None:
    """Every rewrite, with tiles that do not divide the axis; two tiles and many."""
    for program in variants(program_of(case)).values():
        for block in (32, 64, 128):
            roles = tuple(
                (axis.name, Role("loop", block) if axis.name in program.reduced else Role("grid", 2))
                for axis in program.axes
            )
            run(case, program, Schedule(roles, num_stages=2, sweep=sweep), seed=block)


def test_a_held_tile_is_loaded_once() -> None:
    """Three passes meet at both ends: of 3 x 4 tile loads two are spared, each outside a loop."""
    program = program_of(graphs.softmax(2, 512))
    roles = (("m", Role("grid", 1)), ("n", Role("loop", 128)))
    lines = emit(program, Schedule(roles, sweep="hold"), "kernel").source.splitlines()
    loops = [line.strip() for line in lines if line.strip().startswith("for ")]
    assert loops == [
        "for n_start in tl.range(0, 384, BLOCK_N, num_stages=NUM_STAGES):",
        "for n_turn in tl.range(128, 384, BLOCK_N, num_stages=NUM_STAGES):",
        "for n_start in tl.range(128, 512, BLOCK_N, num_stages=NUM_STAGES):",
    ]
    loads = [line for line in lines if "tl.load" in line]
    assert [line.startswith("    " * 2) for line in loads] == [True, False, True, False, True]


def test_what_depends_on_the_order_goes_forward() -> None:
    """The first of equal maxima is the answer, whichever way the pass before it went."""
    types = {"x": graphs.kind(4, 256), "top": graphs.kind(4, 1, dtype="float32"),
             "d": graphs.kind(4, 256, dtype="float32"), "a": graphs.kind(4, dtype="int64")}  # fmt: skip
    ops = (
        graphs.op("top", Reduce("max", "x", (1,), True, "float32")),
        graphs.op("d", Map(("x", "top"), graphs.call("sub", 0, 1), "float32")),
        graphs.op("a", Reduce("argmax", "d", (1,), False, "float32")),
    )
    case = Case("late_argmax", Graph(("x",), ops, ("a",), types), lambda env: (env["x"].argmax(1),))
    program = program_of(case)
    roles = (("m", Role("grid", 1)), ("k", Role("loop", 64)))
    env = {"x": torch.ones(4, 256).half(), "a": torch.full((4,), -1)}
    kernel = emit(program, Schedule(roles, sweep="reverse"), "kernel")
    assert kernel.source.count("for k_start") == 2
    interpret(kernel, env)
    assert not env["a"].any()


@pytest.mark.parametrize("make", CASES, ids=lambda make: make().name)
def test_passes_are_counted_as_the_loop_tree_has_them(make) -> None:
    """The constraint language's `passes` and the loops that are generated, for every role assignment and rewrite."""
    for part in subspaces(program_of(make()), H200):
        looped = [axis for axis, kind in part.candidates.kinds.items() if kind in ("loop", "split")]
        if len(looped) == 1:
            assert part.candidates.facts.constants["passes"] == part.tree.passes(looped[0])


def test_operands_by_descriptor_and_the_store_by_pointer() -> None:
    case = graphs.linear(64, 64, 96)
    program = program_of(case)
    roles = (("m", Role("grid", 64)), ("n", Role("grid", 32)), ("k", Role("loop", 32)))
    schedule = Schedule(roles, access="operands")
    source = emit(program, schedule, "kernel").source
    assert source.count("_desc") > 0
    assert ".store(" not in source.replace("tl.store(", "")
    run(case, program, schedule, seed=1)


def split_roles(program: Program, axis: str, block: int, parts: int) -> tuple[tuple[str, Role], ...]:
    found: list[tuple[str, Role]] = []
    for a in program.axes:
        loop = Role("loop", 16) if a.name in program.reduced else Role("grid", 16)
        found.append((a.name, Role("split", block, parts) if a.name == axis else loop))
    return tuple(found)


def log_sum_exp(rows: int, columns: int) -> Case:
    """With a half precision output, so that no atomic add can do it; the sum follows the maximum running."""
    types = {
        "x": graphs.kind(rows, columns), "top": graphs.kind(rows, 1, dtype="float32"),
        "e": graphs.kind(rows, columns, dtype="float32"), "s": graphs.kind(rows, 1, dtype="float32"),
        "y": graphs.kind(rows, 1),
    }  # fmt: skip
    ops = (
        graphs.op("top", Reduce("max", "x", (1,), True, "float32")),
        graphs.op("e", Map(("x", "top"), graphs.call("exp", graphs.call("sub", 0, 1)), "float32")),
        graphs.op("s", Reduce("sum", "e", (1,), True, "float32")),
        graphs.op("y", Map(("s", "top"), graphs.call("add", graphs.call("log", 0), 1), "float32")),
    )
    return Case("log_sum_exp", Graph(("x",), ops, ("y",), types),
                lambda env: (torch.logsumexp(env["x"].double(), 1, keepdim=True),))  # fmt: skip


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_the_last_program_combines_the_parts_of_all(parts: int) -> None:
    """A linear with bias and ReLU in half precision, and a log-sum-exp, over axes that no number of parts divides."""
    case = graphs.linear(30, 40, 200)
    program = program_of(case)
    run(case, program, Schedule(split_roles(program, "k", 16, parts)), seed=parts)
    case = log_sum_exp(5, 700)
    program = variants(program_of(case))[("online",)]
    axis = next(iter(program.reduced))
    run(case, program, Schedule(split_roles(program, axis, 32, parts)), seed=parts)


@pytest.mark.parametrize("kind", ["one", "loop", "whole", "split"])
@pytest.mark.parametrize("fn", ["argmax", "argmin"])
def test_the_first_of_the_best_is_taken_and_nan_is_the_best(fn: str, kind: str) -> None:
    """As torch: rows with ties in several tiles, with NaN early and late, of infinities alone, and of one value."""
    case = graphs.argmax(6, 130)
    graph = Graph(("x",), (graphs.op("y", Reduce(fn, "x", (1,), False, "float32")),), ("y",), case.graph.types)
    program = program_of(Case(fn, graph, case.reference))
    x = torch.randn(6, 130, generator=torch.Generator().manual_seed(3)).half()
    x[0, [40, 77, 129]], x[0, [41, 78, 128]] = 9.0, -9.0
    x[1, [3, 90]], x[2, [120, 126]] = float("nan"), float("nan")
    x[3], x[4] = float("-inf"), float("inf")
    x[5] = 1.5
    env = {"x": x, "y": torch.full((6,), -77)}
    inner = {"whole": Role("whole"), "loop": Role("loop", 32), "split": Role("split", 16, 4), "one": Role("loop", 1)}
    roles = tuple((a.name, inner[kind] if a.name in program.reduced else Role("grid", 2)) for a in program.axes)
    kernel = emit(program, Schedule(roles), "kernel")
    interpret(kernel, env)
    assert env["y"].tolist() == getattr(x, fn)(1).tolist(), kernel.source


def test_an_argmax_of_few_long_rows_may_be_split() -> None:
    found = [part.candidates.kinds for part in subspaces(program_of(graphs.argmax(4, 100000)), H200)]
    assert any("split" in kinds.values() for kinds in found)


def test_parts_that_must_meet_twice_are_refused() -> None:
    """Without the online rewrite the sum needs the finished maximum; a softmax is stored along the axis."""
    for case in (log_sum_exp(5, 700), graphs.softmax(5, 700)):
        program = program_of(case)
        axis = next(iter(program.reduced))
        with pytest.raises(InvalidSchedule):
            emit(program, Schedule(split_roles(program, axis, 32, 4)), "kernel")
        assert all(part.candidates.kinds[axis] != "split" or part.rewrites for part in subspaces(program, H200))


def test_scratch_is_the_kernels_own() -> None:
    """A part a program and one count a tile; neither is a value of the program."""
    case = graphs.linear(30, 40, 200)
    program = program_of(case)
    kernel = emit(program, Schedule(split_roles(program, "k", 16, 4)), "kernel")
    own = {p.name: p.scratch for p in kernel.parameters if p.scratch}
    assert own == {"arrivals": 2 * 3, next(n for n in own if n != "arrivals"): 2 * 3 * 4 * 16 * 16}
    assert set(kernel.values) == {"x", "w", "b", "y"}


@pytest.mark.parametrize("most", [1 << 17, 8])
def test_rows_are_stored_while_their_column_sums_are_shared(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """A norm's backward in small: rows out along the split axis, half precision column sums over it; the parts read by
    the last program, and (beyond `most`) added up by atomics, which leave zeros for the next launch."""
    monkeypatch.setattr(joining, "MOST_PARTS", most)
    types = {
        "x": graphs.kind(50, 24), "g": graphs.kind(24), "d": graphs.kind(50, 24), "y": graphs.kind(50, 24),
        "s": graphs.kind(24, dtype="float32"), "w": graphs.kind(24),
    }  # fmt: skip
    ops = (
        graphs.op("d", Map(("x", "g"), graphs.call("mul", 0, 1), "float32")),
        graphs.op("y", Map(("d",), graphs.call("add", 0, 0), "float32")),
        graphs.op("s", Reduce("sum", "d", (0,), False, "float32")),
        graphs.op("w", Map(("s",), graphs.call("mul", 0, 0), "float32")),
    )

    def reference(env: graphs.Env) -> tuple[torch.Tensor, ...]:
        d = env["x"].double() * env["g"].double()
        return 2 * d, d.sum(0) ** 2

    case = Case("rows_and_columns", Graph(("x", "g"), ops, ("y", "w"), types), reference)
    program = program_of(case)
    shared = next(iter(program.reduced))
    axes = tuple((a.name, Role("split", 4, 3) if a.name == shared else Role("whole")) for a in program.axes)
    assert any(part.candidates.kinds[shared] == "split" for part in subspaces(program, H200))
    run(case, program, Schedule(axes), seed=1)
    assert ("atomic_add(parts" in emit(program, Schedule(axes), "k").source) == (most == 8)
