"""Against figures of NVIDIA's occupancy calculator (cuda_occupancy.h), worked by hand where a comment says so."""

from __future__ import annotations

import numpy as np
import pytest

from autofuse.cost.device import resolve
from autofuse.cost.occupancy import occupancy, resident_programs


@pytest.mark.parametrize(
    ("target", "registers", "warps", "smem", "programs"),
    [
        ("h200", 32, 8, 0, 8),  # 64 warps
        ("h200", 33, 8, 0, 6),  # 40 registers a thread after rounding: 12 warps a quarter, 48 in all
        ("h200", 64, 8, 0, 4),
        ("h200", 65, 8, 0, 3),  # 72: 7 warps a quarter, 28 in all
        ("h200", 128, 4, 0, 4),
        ("h200", 168, 12, 0, 1),  # 3 warps a quarter
        ("h200", 255, 8, 0, 1),
        ("h200", 255, 4, 0, 2),
        ("h200", 16, 1, 0, 32),  # limit of programs
        ("h200", 32, 4, 227 * 1024, 1),
        ("h200", 32, 4, 113 * 1024, 2),  # (113 + 1) * 2 = 228 KB
        ("h200", 32, 4, 113 * 1024 + 1, 1),
        ("h200", 32, 4, 227 * 1024 + 1, 0),
        ("h200", 64, 32, 0, 1),
        ("h200", 65, 32, 0, 0),  # 1024 threads of 72 registers do not fit
        ("a100", 32, 4, 81 * 1024, 2),  # 164 KB, 1 KB reserved a program
        ("a100", 32, 4, 82 * 1024, 1),
        ("a100", 32, 4, 163 * 1024 + 1, 0),
    ],
)
def test_resident_programs(target: str, registers: int, warps: int, smem: int, programs: int) -> None:
    assert int(resident_programs(resolve(target), registers, warps, smem)) == programs


def test_vectorised_as_one_by_one() -> None:
    generator = np.random.default_rng(0)
    registers, warps = generator.integers(16, 256, 500), 2 ** generator.integers(0, 6, 500)
    smem = generator.integers(0, 240000, 500)
    target = resolve("h200")
    together = resident_programs(target, registers, warps, smem)
    apart = [int(resident_programs(target, r, w, s)) for r, w, s in zip(registers, warps, smem, strict=True)]
    assert together.tolist() == apart


def test_never_more_with_more_resources() -> None:
    target = resolve("h200")
    by_registers = resident_programs(target, np.arange(1, 256), 4, 0)
    by_smem = resident_programs(target, 32, 4, np.arange(0, 233000, 97))
    assert (np.diff(by_registers) <= 0).all()
    assert (np.diff(by_smem) <= 0).all()


def test_occupancy_is_a_share_of_warps() -> None:
    assert float(occupancy(resolve("h200"), 128, 4, 0)) == 16 / 64
