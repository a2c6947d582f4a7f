"""Laws of the backbone, and rankings that are known from measurement (FIELD.md)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autofuse.cost.backbone import NEVER, TERMS, estimate
from autofuse.cost.device import TARGETS, resolve
from autofuse.cost.features import Features
from autofuse.cost.resources import by_rule
from tests.cost.programs import MATMUL_KINDS, MATMUL_SPACE, column_sum, features, grid, matmul, pointwise, softmax

H200 = resolve("h200")


def changed(found: Features, **factors: float) -> Features:
    return Features({name: column * factors.get(name, 1.0) for name, column in found.columns.items()})


CASES = {
    "matmul": features(matmul(2048, 4096, 1024), MATMUL_KINDS, **MATMUL_SPACE),
    "softmax": features(
        softmax(4096, 4096), {"m": "grid", "n": "whole"}, **{"block.m": (1, 2, 4), "num_warps": (1, 4, 8, 32)}
    ),
    "column_sum": features(
        column_sum(4096, 4096),
        {"n": "grid", "m": "loop"},
        **{"block.m": (16, 64), "block.n": (64, 256), "num_stages": (1, 2, 4)},
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "name",
    [
        "grouped_read_bytes",
        "compulsory_write_bytes",
        "requested_read_bytes",
        "pass_bytes",
        "atomic_bytes",
        "plain_instructions",
        "special_instructions",
        "tensor16_flops",
        "simt_flops",
        "sector_waste",
        "reductions",
    ],
)
def test_more_work_is_never_faster(case: str, name: str) -> None:
    found = CASES[case]
    rule = by_rule(found, H200)
    less, more = estimate(found, H200, rule).time_us, estimate(changed(found, **{name: 1.7}), H200, rule).time_us
    assert (more >= less * (1 - 1e-9)).all()


@pytest.mark.parametrize("case", CASES)
def test_a_faster_device_is_never_slower(case: str) -> None:
    for name in ("copy_bytes_per_us", "tensor16_flops_per_us", "l2_bytes_per_us"):
        faster = replace(H200, **{name: 1.5 * getattr(H200, name)})
        if name == "copy_bytes_per_us":
            faster = replace(faster, read_bytes_per_us=9e6, write_bytes_per_us=9e6)
        assert (estimate(CASES[case], faster).time_us <= estimate(CASES[case], H200).time_us * (1 + 1e-9)).all()


def test_spills_cost() -> None:
    found = CASES["softmax"]
    rule = by_rule(found, H200)
    spilt = replace(rule, spill_bytes=rule.spill_bytes + 256)
    assert (estimate(found, H200, spilt).time_us > estimate(found, H200, rule).time_us).all()


def test_larger_problems_take_longer() -> None:
    times = [estimate(features(softmax(rows, 4096), {"m": "grid", "n": "whole"}, **{"block.m": (1,)}), H200).time_us[0]
             for rows in (1024, 4096, 16384, 65536)]  # fmt: skip
    assert np.all(np.diff(times) > 0)
    assert times[3] / times[2] == pytest.approx(4, rel=0.1)


def test_time_is_no_less_than_the_roofline() -> None:
    for found in CASES.values():
        result = estimate(found, H200)
        total = found["compulsory_read_bytes"] + found["compulsory_write_bytes"]
        assert (result.time_us >= total / H200.read_bytes_per_us).all()
        assert (result.time_us >= found["tensor16_flops"] / H200.tensor16_flops_per_us).all()


def test_the_measured_best_matmul_tile_ranks_first() -> None:
    columns = grid(**MATMUL_SPACE)
    found = estimate(features(matmul(8192, 8192, 8192), MATMUL_KINDS, **MATMUL_SPACE), H200)
    best = int(found.time_us.argmin())
    tile = {name: int(column[best]) for name, column in columns.items()}
    assert {tile["block.m"], tile["block.n"]} == {128, 256}
    assert (tile["num_warps"], tile["persistent"], tile["flatten"], tile["access"]) == (8, 1, 1, 1)
    assert TERMS[found.binding[best]] == "tensor"
    # Sustained cuBLAS is 690 to 790 TFLOP/s: 1390 to 1590 us.
    assert 1350 < found.time_us[best] < 1650


def test_plain_matmul_is_about_a_tenth_behind() -> None:
    base = {
        "block.m": (128,),
        "block.n": (256,),
        "block.k": (64,),
        "num_warps": (8,),
        "num_stages": (3,),
        "group": (8,),
    }
    program = matmul(8192, 8192, 8192)
    plain = estimate(features(program, MATMUL_KINDS, **base, access=(0,), persistent=(0,)), H200).time_us[0]
    best = estimate(features(program, MATMUL_KINDS, **base, access=(1,), persistent=(1,), flatten=(1,)), H200).time_us[
        0
    ]
    assert 1.05 < plain / best < 1.2


def test_tensor_cores_need_four_warps_and_64_rows() -> None:
    base = {"block.n": (128,), "block.k": (64,), "num_stages": (3,)}
    time = {
        (rows, warps): estimate(features(matmul(8192, 8192, 8192), MATMUL_KINDS, **base,
                                         **{"block.m": (rows,), "num_warps": (warps,)}), H200).time_us[0]
        for rows, warps in ((128, 4), (128, 2), (32, 4))
    }  # fmt: skip
    assert time[128, 2] > 1.3 * time[128, 4]
    assert time[32, 4] > 1.3 * time[128, 4]


def test_accumulators_beyond_255_registers_spill() -> None:
    base = {"block.m": (256,), "block.n": (256,), "block.k": (32,), "num_stages": (2,), "num_warps": (4, 8, 16)}
    found = by_rule(features(matmul(4096, 4096, 4096), MATMUL_KINDS, **base), H200)
    assert found.spill_bytes[0] > found.spill_bytes[1] > 0
    assert (found.registers[:2] == 255).all()


def test_whole_rows_of_65536_spill_at_32_warps_and_not_those_of_16384() -> None:
    wide = by_rule(
        features(softmax(4096, 65536), {"m": "grid", "n": "whole"}, **{"block.m": (1,), "num_warps": (32,)}), H200
    )
    narrow = by_rule(
        features(softmax(4096, 16384), {"m": "grid", "n": "whole"}, **{"block.m": (1,), "num_warps": (8, 32)}), H200
    )
    assert wide.spill_bytes[0] > 0
    assert wide.registers[0] == 64
    assert (narrow.spill_bytes == 0).all()


def test_pipelined_loads_beat_unpipelined_ones_in_a_small_resident_set() -> None:
    found = features(softmax(4096, 65536), {"m": "grid", "n": "loop"},
                     **{"block.m": (1,), "block.n": (8192,), "num_warps": (32,), "num_stages": (1, 4)})  # fmt: skip
    time = estimate(found, H200).time_us
    assert time[1] < 0.8 * time[0]


def test_few_programs_leave_multiprocessors_idle() -> None:
    space = {"block.m": (256, 16), "block.n": (128,), "num_warps": (4,), "num_stages": (2,)}
    found = estimate(features(column_sum(262144, 256), {"n": "grid", "m": "loop"}, **space), H200)
    split = {"block.m": (64,), "block.n": (128,), "parts.m": (128,)}
    shared = estimate(features(column_sum(262144, 256), {"n": "grid", "m": "split"}, **split), H200)
    assert shared.time_us[0] < 0.3 * found.time_us.min()


def test_tanh_binds_a_long_chain() -> None:
    space = {"block.m": (1,), "block.n": (4096,), "num_warps": (8,)}
    kinds = {"m": "grid", "n": "grid"}
    short = estimate(features(pointwise(8192, 16384, 1), kinds, **space), H200)
    long = estimate(features(pointwise(8192, 16384, 9), kinds, **space), H200)
    assert TERMS[short.binding[0]] == "dram"
    assert TERMS[long.binding[0]] in ("special", "fp32")


def test_what_does_not_fit_ranks_last_and_stays_finite() -> None:
    space = {"block.m": (256,), "block.n": (256,), "block.k": (128,), "num_stages": (2, 4)}
    found = estimate(features(matmul(4096, 4096, 4096), MATMUL_KINDS, **space), H200)
    assert found.resources.resident[1] == 0
    assert found.time_us[1] == NEVER


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_gives_finite_times(name: str) -> None:
    target = resolve(name)
    found = estimate(features(matmul(1024, 1024, 1024), MATMUL_KINDS, target, **MATMUL_SPACE), target)
    assert np.isfinite(found.time_us).all()
    assert (found.time_us > 0).all()
