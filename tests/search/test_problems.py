"""Recorded problems built again: the same programs, candidates where they were, the default configuration first."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from autofuse.capture.trace import capture
from autofuse.capture.workload import load
from autofuse.cost.device import resolve
from autofuse.cost.model import CostModel
from autofuse.fusion.build import build
from autofuse.ir.fingerprint import program_key
from autofuse.ir.program import Program
from autofuse.search.pool import score, subspaces
from autofuse.search.problems import annotated, largest_dtype, name_of, places, pool_of, rebuilt, with_kinds

H200 = resolve("h200")
SHAPE = {"rows": 512, "columns": 1024}
TEXT = json.dumps(SHAPE)


@pytest.fixture(scope="module")
def program() -> Program:
    graph = capture(*load("softmax.softmax", SHAPE, "cuda", fake=True))[0].graph
    return build(graph, frozenset(op.name for op in graph.ops if not op.is_view), graph.outputs)


@pytest.fixture(scope="module")
def rows(program: Program) -> pa.Table:
    """Some candidates of the softmax as a recording has them."""
    pool = score(program, H200, CostModel(), 200, np.random.default_rng(0))
    found = [
        {"workload": "softmax", "shape_json": TEXT, "program_key": program_key(program), "target": "h200",
         "config_json": pool.schedule(at).to_json(), "rewrites": ",".join(pool.rewrites(at))}
        for at in range(len(pool))
    ]  # fmt: skip
    return pa.Table.from_pylist(found)


def test_a_program_is_found_again_by_its_key(program: Program) -> None:
    key = program_key(program)
    found = rebuilt([("softmax", TEXT, key), ("softmax", TEXT, "of another version")])
    assert list(found) == [key]
    assert program_key(found[key]) == key


@pytest.mark.parametrize("origin", [("no such workload", TEXT), ("softmax", '{"lines":3}'), ("softmax", '{"rows":0}'),
                                    ("softmax", "no JSON"), ("softmax", "3"), ("", "")])  # fmt: skip
def test_what_no_workload_makes_is_left_out(origin: tuple[str, str], program: Program) -> None:
    assert rebuilt([(*origin, program_key(program))]) == {}


def test_a_recording_does_not_say_which_file_is_run(program: Program, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "w.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    assert rebuilt([(f"{tmp_path / 'w.py'}:f", "{}", program_key(program))]) == {}
    assert not ran.exists()


def test_a_pool_of_recorded_candidates_keeps_their_order(program: Program, rows: pa.Table) -> None:
    parts, order = subspaces(program, H200), np.random.default_rng(1).permutation(len(rows))
    texts = [(rows["config_json"][int(at)].as_py(), rows["rewrites"][int(at)].as_py()) for at in order]
    found = places(parts, [name_of(*text) for text in texts])
    assert None not in found
    pool = pool_of(parts, [place for place in found if place is not None], H200, CostModel())
    made = [(pool.schedule(at).to_json(), ",".join(pool.rewrites(at))) for at in range(len(pool))]
    assert made == texts
    for at in (0, len(pool) // 2, len(pool) - 1):
        alone = pool.subspaces[pool.which[at]].features(pool.index[at : at + 1], H200)
        assert CostModel().predict(alone, H200).time_us[0] == pool.predictions.time_us[at]


def test_schedules_that_are_no_more_have_no_place(program: Program) -> None:
    known = json.loads(name_of_default(program))
    other = json.dumps(known | {"num_warps": 3})
    assert name_of(json.dumps(known | {"a knob of old": 1}), "") is None
    assert name_of("no JSON", "") is None
    assert name_of(None, None) is None
    assert places(subspaces(program, H200), [name_of(other, ""), None]) == [None, None]


def name_of_default(program: Program) -> str:
    candidates = subspaces(program, H200)[0].candidates
    return candidates.schedule(candidates.default()).to_json()


def test_the_default_configuration_comes_first(program: Program, rows: pa.Table) -> None:
    found = annotated(rows)
    steps = found["from_default"].to_numpy()
    assert np.isfinite(steps).all()
    assert found["config_json"][int(np.argmin(steps))].as_py() == name_of_default(program)
    assert set(found["dtype"].to_pylist()) == {"bfloat16"}
    assert set(found["kind"].to_pylist()) == {"softmax"}


def test_unknown_problems_and_candidates_have_no_default(rows: pa.Table) -> None:
    few = rows.slice(0, 3).to_pylist()
    few[1]["config_json"] = '{"roles":{}}'
    few[2]["program_key"] = "of another version"
    found = annotated(pa.Table.from_pylist(few))
    assert found["from_default"].is_null().to_pylist() == [False, True, True]
    assert found["dtype"].is_null().to_pylist() == [False, False, True]
    nameless = rows.drop_columns(["workload"])
    assert annotated(nameless) is nameless


def test_a_kind_is_the_file_of_a_shipped_workload() -> None:
    names = ["attention_causal", "norms.layer_norm", "layer_norm", "own.py:layer_norm", "of no file", None]
    found = with_kinds(pa.table({"workload": pa.array(names, pa.string())}))
    assert found["kind"].to_pylist() == ["attention", "norms", "norms", None, None, None]
    nameless = pa.table({"time_us": [1.0]})
    assert with_kinds(nameless) is nameless


def test_masks_and_indices_are_no_dtype_of_a_problem() -> None:
    graph = capture(*load("cross_entropy", {"rows": 8, "classes": 64}, "cuda", fake=True))[0].graph
    whole = build(graph, frozenset(op.name for op in graph.ops if not op.is_view), graph.outputs)
    assert largest_dtype(whole) == "bfloat16"
