"""Candidates as numbers: round trips, columns, validity, defaults, sampling, and the counts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from autofuse.errors import InvalidSchedule
from autofuse.fusion.rewrites import variants
from autofuse.ir.program import Program
from autofuse.schedule.counting import count
from autofuse.schedule.families import classify
from autofuse.schedule.sampling import Candidates
from autofuse.schedule.schedule import Role, Schedule
from autofuse.schedule.space import Knob, for_family
from tests.schedule.programs import ALL, attention, column_sum, cross_entropy, flat, gated, matmul, matvec, softmax


def candidates(program: Program, arch: int = 90, **kinds: str) -> Candidates:
    space = for_family(classify(program).name, arch)
    return Candidates(space, program, kinds or space.default_kinds(program))


@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize("name", ALL)
def test_default_is_valid_everywhere(name: str, arch: int) -> None:
    found = candidates(ALL[name](), arch)
    index = found.default()
    assert found.valid([index]).all()
    assert found.index(found.schedule(index)) == index
    assert Schedule.from_dict(found.schedule(index).to_dict()) == found.schedule(index)


def test_best_known_points_are_the_defaults() -> None:
    found = candidates(matmul())
    assert str(found.schedule(found.default())) == (
        "m=grid(128) n=grid(256) k=loop(64) warps=8 stages=3 group=8 persistent=1 flatten tma"
    )
    found = candidates(cross_entropy())
    assert str(found.schedule(found.default())) == "m=grid(1) n=loop(4096) warps=4 stages=3"
    found = candidates(softmax())
    assert str(found.schedule(found.default())) == "m=grid(1) n=whole warps=4 stages=1"


def test_known_good_points_are_inside() -> None:
    """On the other side of the device: split rows, online attention, split sums."""
    found = candidates(ALL["layer_norm_backward"]())
    roles = (("m", Role("split", 1, 132)), ("n", Role("whole")))
    assert found.valid([found.index(Schedule(roles, num_warps=8, num_stages=2))]).all()
    found = candidates(attention())
    whole = Role("whole")
    roles = (("b", Role("grid", 1)), ("m", Role("grid", 128)), ("e", whole), ("n", Role("loop", 128)), ("d", whole))
    assert found.valid([found.index(Schedule(roles, num_warps=8, num_stages=2))]).all()
    # One query or token: a step of a row of weights a program, enough bytes in flight.
    found = candidates(matvec())
    assert found.valid([found.index(Schedule((("n", Role("grid", 8)), ("k", Role("loop", 1024))), 4, 3))]).all()


def test_columns_agree_with_schedules() -> None:
    for program in (matmul(), column_sum(), softmax(n=1000)):
        found = candidates(program)
        at = np.random.default_rng(0).integers(0, found.size, 50)
        columns = found.columns(at)
        for row, index in enumerate(at.tolist()):
            schedule = found.schedule(index)
            for axis, role in schedule.roles:
                size = 1 << (program.sizes[axis] - 1).bit_length()
                assert columns[axis][row] == (size if role.kind == "whole" else role.block)
                if role.kind == "split":
                    assert columns[f"{axis}.parts"][row] == role.parts
            assert columns["num_warps"][row] == schedule.num_warps
            assert columns["access"][row] == schedule.access
            assert found.decode(found.settings(index)) == index == found.index(schedule)


def test_indices_are_one_to_one() -> None:
    found = candidates(flat())
    assert len({found.schedule(index) for index in range(found.size)}) == found.size


def test_validity_by_hand() -> None:
    """The constraints of the file against the same rules written as plain Python, for every raw candidate."""
    program = matmul(m=4096, n=4096, k=1024)
    found = candidates(program)
    for index in np.random.default_rng(1).integers(0, found.size, 400).tolist():
        s = found.schedule(index)
        m, n, k = (s.role(axis).block for axis in "mnk")
        threads, stage = 32 * s.num_warps, (m * k + k * n) * 2
        tile, tiles = max(m * n, m * k, k * n), -(-4096 // m) * -(-4096 // n)
        steps = 1024 // k
        good = tile <= 65536 and m * n <= 256 * threads and tile <= 256 * threads and tile >= threads
        good &= s.num_stages * stage <= 232448 and 32 <= k * 2 <= 256 and m >= 64
        good &= s.num_warps <= 4 or tile >= 8192
        good &= s.num_warps >= 4 or tile <= 4096
        good &= s.num_stages <= 2 or steps >= s.num_stages - 1 or s.persistent > 0
        good &= s.persistent == 0 or tiles > 132 * s.persistent
        good &= not s.flatten or s.persistent > 0
        good &= s.persistent * s.num_stages * stage <= 232448 and s.persistent * threads <= 2048
        good &= s.access == "pointer" or max(m, n, k) <= 256
        good &= m * n + 26 * threads <= 65536
        assert bool(found.valid([index])[0]) == good, s


def test_descriptors_need_aligned_rows() -> None:
    even = candidates(matmul(k=4096))
    assert "descriptor" in even.columns(even.every)["access"]
    odd = candidates(matmul(k=4097))
    assert set(odd.columns(odd.every)["access"]) == {"pointer"}


def test_blocks_stop_at_the_axis() -> None:
    found = candidates(matmul(m=70, n=7, k=16), m="grid", n="grid", k="loop")
    assert found.encode["m"] == (16, 32, 64, 128)
    assert found.encode["n"] == (16,)


def test_small_problems_are_not_persistent() -> None:
    found = candidates(matmul(m=256, n=256, k=256))
    chosen = found.schedule(found.default())
    assert chosen.persistent == 0
    assert not chosen.flatten


def test_target_facts_count() -> None:
    @dataclass(frozen=True)
    class Small:
        arch: int = 90
        multiprocessors: int = 132
        registers_per_mp: int = 65536
        smem_per_block: int = 65536

    program = matmul()
    space = for_family("contract", 90)
    kinds = space.default_kinds(program)
    small = Candidates(space, program, kinds, Small())
    assert 0 < small.every.size < Candidates(space, program, kinds).every.size


def test_sample_is_distinct_valid_and_repeatable() -> None:
    found = candidates(matmul())
    drawn = found.sample(200, np.random.default_rng(3))
    assert len(set(drawn.tolist())) == 200
    assert found.valid(drawn).all()
    assert (drawn == found.sample(200, np.random.default_rng(3))).all()
    few = candidates(flat(n=100))
    assert sorted(few.sample(10**6, np.random.default_rng(0)).tolist()) == few.every.tolist()


def test_a_large_space_is_drawn_from_without_walking_through_it() -> None:
    space = for_family("contract", 90)
    wide = replace(space, knobs=tuple(
        Knob("maxnreg", tuple(range(256)), 0) if k.name == "maxnreg" else Knob("group", tuple(range(1, 65)), 8)
        if k.name == "group" else k for k in space.knobs
    ))  # fmt: skip
    program = matmul()
    found = Candidates(wide, program, wide.default_kinds(program))
    assert found.size > 1 << 26
    drawn = found.sample(100, np.random.default_rng(0))
    assert len(set(drawn.tolist())) == 100
    assert found.valid(drawn).all()
    assert found.valid([found.default()]).all()
    first = next(found.chunks())
    assert found.valid(first).all()


def test_neighbours_differ_in_one_choice() -> None:
    found = candidates(gated())
    start = found.default()
    here = found.settings(start)
    moves = found.neighbours(start).tolist()
    assert moves
    assert found.valid(moves).all()
    for move in moves:
        there = found.settings(move)
        changed = [name for name in here if here[name] != there[name]]
        assert len(changed) == 1
        values = found.encode[changed[0]]
        if not isinstance(values[0], bool | str):
            assert abs(values.index(here[changed[0]]) - values.index(there[changed[0]])) == 1
    assert any(start in found.neighbours(move) for move in moves)


def test_wrong_use_is_named() -> None:
    space = for_family("map", 90)
    with pytest.raises(InvalidSchedule, match="is for map programs"):
        Candidates(space, matmul(), {"m": "grid", "n": "grid", "k": "loop"})
    with pytest.raises(InvalidSchedule, match="kinds name axes"):
        Candidates(space, flat(), {"m": "grid"})
    with pytest.raises(InvalidSchedule, match="no split role"):
        Candidates(space, flat(), {"n": "split"})
    found = candidates(flat())
    with pytest.raises(InvalidSchedule, match="num_warps: 3"):
        found.decode({**found.settings(0), "num_warps": 3})
    with pytest.raises(InvalidSchedule):
        found.schedule(found.size)


@pytest.mark.parametrize("name", ["softmax", "chain", "layer_norm_backward", "scalar"])
def test_count_adds_up(name: str) -> None:
    program = ALL[name]()
    space = for_family(classify(program).name, 90)
    table = count(space, program)
    found = [Candidates(space, program, kinds) for kinds in space.assignments(program)]
    masks = [one.valid(np.arange(one.size)) for one in found]
    assert all((np.flatnonzero(mask) == one.every).all() for mask, one in zip(masks, found, strict=True))
    assert table.total == sum(mask.size for mask in masks)
    assert table.left == sum(int(mask.sum()) for mask in masks) == table.rows[-1].left
    assert table.total - sum(row.removed for row in table.rows) == table.left
    assert all(row.alone >= row.removed for row in table.rows)
    assert table.rows[0].alone == table.rows[0].removed
    assert [left for *_, left in table.assignments] == [int(mask.sum()) for mask in masks]


@pytest.mark.parametrize("sizes", [(2, 2, 2), (7, 7, 7), (7, 4097, 33), (4097, 7, 1000), (3, 262144, 4097)])
def test_odd_sizes_have_candidates(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    programs = [
        softmax(m, n),
        ALL["rms_norm"](m, n),
        column_sum(n, m),
        ALL["layer_norm_backward"](m, n),
        matmul(m, n, k),
        ALL["broadcast"](m, n),
        ALL["transpose"](m, n),
        ALL["sibling_stores"](m, n),
        flat(n),
        matvec(n, k),
        gated(m, n, k),
        ALL["chain"](m, k, n, 7),
        attention(2, m, n, 7),
        ALL["linear_cross_entropy"](m, n, k),
        ALL["head_norm"](m, 3, 7, k),
        ALL["low_rank"](m, n, k, 3),
        ALL["total"](n),
    ]
    for program in programs:
        space = for_family(classify(program).name, 90)
        usable = [kinds for kinds in space.assignments(program) if Candidates(space, program, kinds).every.size]
        assert usable, program
        assert usable[0] == space.default_kinds(program), program


def test_what_a_product_begins_at_needs_no_room_beside_it() -> None:
    """Two products of one tile: both accumulators at once, or one after the other."""
    program = ALL["low_rank"](4096, 4096, 4096, 16)
    seeded = variants(program)["seeded",]
    space = for_family("contract", 90)
    blocks = {"m": 128, "n": 256, "num_warps": 8}

    def fits(one: Program) -> bool:
        kinds = {axis.name: {"m": "grid", "n": "grid", "k": "loop"}.get(axis.name, "whole") for axis in one.axes}
        found = Candidates(space, one, kinds)
        columns = found.columns(found.every)
        return bool(np.logical_and.reduce([columns[name] == value for name, value in blocks.items()]).any())

    assert fits(seeded)
    assert not fits(program)
