"""The tables of the experiments: rows that exist, and floors that are FIELD.md's. Running them takes a GPU."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from autofuse.capture.trace import capture
from autofuse.capture.workload import load, resolve

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """As `python experiments/NAME/run.py` loads it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location(f"experiment_{name}", EXPERIMENTS / name / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["first_plans", "fusion_kinds"])
def test_rows_are_distinct_and_their_workloads_exist(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = script(name, monkeypatch).ROWS
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert resolve(row.workload, row.shape).shape
    assert len({(row.workload, *resolve(row.workload, row.shape).shape.values()) for row in rows}) == len(rows)


def test_rows_are_chosen_by_name_workload_or_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    run = script("fusion_kinds", monkeypatch)

    def names(text: str) -> list[str]:
        return [row.name for row in run.common.chosen(run.ROWS, text, lambda row: (row.kind,))]

    assert names("router 128") == ["router 128"]
    assert names("lora_linear, relu_chain") == ["adapter of rank 16", "two layers of 128"]
    assert names("block") == [row.name for row in run.ROWS if row.kind == "block"]
    assert len(names("")) == len(run.ROWS)
    with pytest.raises(SystemExit, match="no row 'nothing'"):
        names("block,nothing")


@pytest.mark.parametrize(("workload", "dims", "attended", "floor_us"), [
    ("softmax", {"rows": 8192, "columns": 4096}, 1.0, 2 * 8192 * 4096 * 2 / 4.24e6),
    ("cross_entropy", {"rows": 64, "classes": 128256}, 1.0, (64 * 128256 * 2 + 64 * 8 + 64 * 2) / 4.24e6),
    ("embedding_position", {"batch": 2, "tokens": 64, "hidden": 512, "vocabulary": 32000}, 1.0,
     (128 * 8 + 128 * 512 * 2 + 64 * 512 * 2 + 128 * 512 * 2) / 4.24e6),
    ("linear", {"tokens": 8192, "in_features": 4096, "out_features": 4096}, 1.0, 2 * 8192 * 4096 * 4096 / 797e6),
    ("attention_causal", {"batch": 4, "heads": 32, "tokens": 2048, "head_dim": 128}, 0.5,
     2 * 4 * 32 * 2048 * 2048 * 128 / 797e6),
])  # fmt: skip
def test_the_floor_counts_what_must_move_and_be_multiplied(
    workload: str, dims: dict[str, int], attended: float, floor_us: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = script("fusion_kinds", monkeypatch).common
    fn, args = load(workload, dims, "cuda", fake=True)
    assert common.floor_of(capture(fn, args)[0].graph, attended).time_us == pytest.approx(floor_us, rel=1e-6)


def test_sdpa_and_convolutions_count_as_the_matmuls_that_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    common = script("fusion_kinds", monkeypatch).common
    fn, args = load("llama_attention", {"batch": 2, "tokens": 64, "hidden": 32, "heads": 4, "kv_heads": 2})
    linears = 2 * 128 * 32 * (32 + 16 + 16 + 32)
    attention = 2 * 2 * 4 * 64 * 64 * 8  # two products, half of the scores
    assert common.floor_of(capture(fn, args)[0].graph).flops == linears + attention
    fn, args = load("resnet_block", {"batch": 2, "channels": 8, "size": 4, "time": 16, "groups": 4})
    assert common.floor_of(capture(fn, args)[0].graph).flops == 2 * (2 * 2 * 16 * 8 * 8 * 9) + 2 * 2 * 16 * 8
