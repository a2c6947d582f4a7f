"""Training, files, and refusal of what does not fit."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autofuse.cost import model as model_file
from autofuse.cost import trees
from autofuse.cost.backbone import estimate
from autofuse.cost.device import resolve
from autofuse.cost.evaluation import evaluate, table
from autofuse.cost.model import CostModel
from autofuse.cost.recording import read
from autofuse.cost.training import train
from autofuse.errors import ModelError
from tests.cost.programs import MATMUL_KINDS, MATMUL_SPACE, features, matmul, recording, softmax

H200 = resolve("h200")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[CostModel, Path]:
    folder = tmp_path_factory.mktemp("model")
    return train(recording(), seed=1, out=folder), folder


def test_without_a_model_the_backbone_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_file, "SHIPPED", ())
    empty = CostModel.load()
    found = features(matmul(1024, 1024, 1024), MATMUL_KINDS, **MATMUL_SPACE)
    assert not empty.trained
    assert "backbone only" in empty.source
    assert (empty.predict(found, H200).time_us == estimate(found, H200).time_us).all()


def test_heads_learn_what_the_rules_miss(trained: tuple[CostModel, Path]) -> None:
    data = read(recording(seed=5))
    with_heads, without = trained[0].predict(data.features, H200), CostModel().predict(data.features, H200)
    truth = data.labels
    assert np.abs(with_heads.regs - truth["n_regs"]).mean() < 0.5 * np.abs(without.regs - truth["n_regs"]).mean()
    fits = truth["time_us"] < 1e5
    errors = [np.abs(np.log(p.time_us[fits] / truth["time_us"][fits])).mean() for p in (with_heads, without)]
    assert errors[0] < 0.5 * errors[1]
    spilled = truth["spill_bytes"] > 0
    assert ((with_heads.spill_probability > 0.5) == spilled).mean() > 0.97


def test_compiled_numbers_take_the_place_of_predicted_ones(trained: tuple[CostModel, Path]) -> None:
    found = features(softmax(4096, 4096), {"m": "grid", "n": "whole"}, **{"block.m": (1,), "num_warps": (4, 8)})
    values = np.array([40.0, 128.0]), np.array([0.0, 64.0]), np.array([16.0, 32.0])
    result = trained[0].predict_compiled(found, H200, *values)
    assert (result.regs == values[0]).all()
    assert (result.spill_bytes == values[1]).all()
    assert result.occupancy.tolist() == [12 * 4 / 64, 2 * 8 / 64]


def test_round_trip(trained: tuple[CostModel, Path]) -> None:
    again = CostModel.load(trained[1])
    found = features(matmul(2048, 2048, 4096), MATMUL_KINDS, **MATMUL_SPACE)
    for name in ("regs", "spill_bytes", "smem", "time_us", "outside"):
        assert (getattr(again.predict(found, H200), name) == getattr(trained[0].predict(found, H200), name)).all()


@pytest.mark.parametrize("rows", [1, 7, trees.FEW, trees.FEW + 1])
def test_few_and_many_rows_score_alike(trained: tuple[CostModel, Path], rows: int) -> None:
    """A row's score must not depend on how many are scored with it: to the last bit, since it ranks."""
    rng = np.random.default_rng(0)
    for forest in trained[0].forests.values():
        used = np.unique(forest.feature[forest.feature >= 0])
        columns = np.zeros((int(forest.feature.max()) + 1, rows), dtype=np.float32)
        for feature in used:  # around its thresholds, so that every test splits the rows
            near = forest.threshold[forest.feature == feature]
            columns[feature] = rng.choice(near, rows) + rng.normal(size=rows).astype(np.float32)
        padded = np.ascontiguousarray(np.tile(columns, trees.FEW + 1))
        assert np.array_equal(forest.predict(columns), forest.predict(padded)[:rows])


def test_training_is_deterministic(trained: tuple[CostModel, Path], tmp_path: Path) -> None:
    train(recording(), seed=1, out=tmp_path)
    for name in ("arrays.npz", "card.json"):
        assert (tmp_path / name).read_bytes() == (trained[1] / name).read_bytes()


def test_far_from_the_data_corrections_shrink(trained: tuple[CostModel, Path]) -> None:
    near = features(softmax(4096, 4096), {"m": "grid", "n": "whole"}, **{"block.m": (2,), "num_warps": (4,)})
    far = features(softmax(1 << 20, 200), {"m": "grid", "n": "whole"}, **{"block.m": (64,), "num_warps": (4,)})
    assert trained[0].predict(near, H200).outside[0] == 0
    assert trained[0].predict(far, H200).outside[0] > 0


def damage(folder: Path, change: str) -> None:
    arrays, card = folder / "arrays.npz", folder / "card.json"
    if change == "truncated":
        arrays.write_bytes(arrays.read_bytes()[:-100])
    elif change == "flipped":
        data = bytearray(arrays.read_bytes())
        data[len(data) // 2] ^= 1
        arrays.write_bytes(bytes(data))
    elif change == "missing arrays":
        arrays.unlink()
    elif change == "broken card":
        card.write_text("{")
    elif change == "list card":
        card.write_text("[]")
    else:
        content = json.loads(card.read_text())
        content |= {
            "other features": {"features": ["x"]},
            "other format": {"format": 99},
            "odd heads": {"heads": ["x"]},
        }[change]
        card.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "change",
    [
        "truncated",
        "flipped",
        "missing arrays",
        "broken card",
        "list card",
        "other features",
        "other format",
        "odd heads",
    ],
)
def test_a_damaged_model_is_refused(trained: tuple[CostModel, Path], tmp_path: Path, change: str) -> None:
    trained[0].save(tmp_path)
    damage(tmp_path, change)
    with pytest.raises(ModelError, match="autofuse model train"):
        CostModel.load(tmp_path)


def test_a_poisoned_pickle_is_not_loaded(tmp_path: Path, trained: tuple[CostModel, Path]) -> None:
    import hashlib

    trained[0].save(tmp_path)
    np.savez(tmp_path / "arrays.npz", **{"registers.baseline": np.array([{"a": 1}], dtype=object)})
    card = json.loads((tmp_path / "card.json").read_text())
    card["sha256"] = hashlib.sha256((tmp_path / "arrays.npz").read_bytes()).hexdigest()
    (tmp_path / "card.json").write_text(json.dumps(card))
    with pytest.raises(ModelError, match="cannot be read"):
        CostModel.load(tmp_path)


def test_recordings_name_what_is_wrong(tmp_path: Path) -> None:
    whole = recording(scale=0.1)
    with pytest.raises(ModelError, match="n_regs"):
        read(whole.drop_columns(["n_regs"]))
    with pytest.raises(ModelError, match="h900"):
        train(whole.set_column(whole.schema.get_field_index("target"), "target", pa.array(["h900"] * len(whole))))
    file = tmp_path / "x.parquet"
    pq.write_table(whole, file)
    assert len(read([file])) == len(whole)
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"x\.parquet"):
        read([file])
    with pytest.raises(ModelError, match="at least"):
        train(whole.slice(0, 5))


def test_evaluation_holds_data_out_and_compares_with_baselines() -> None:
    figures = evaluate(recording(scale=0.5))
    found = {(f.split, f.metric, f.model): f.value for f in figures}
    for split in ("random", "shapes_out", "family_out"):
        assert found[split, "regret_at_1", "random"] > found[split, "regret_at_1", "backbone"]
    assert found["random", "registers_mean_error", "model"] < found["random", "registers_mean_error", "backbone"]
    assert "| shapes_out | kendall_tau |" in table(figures)


def test_scoring_with_heads_is_fast_enough(trained: tuple[CostModel, Path]) -> None:
    found = features(matmul(2048, 2048, 4096), MATMUL_KINDS, **MATMUL_SPACE)
    many = found.take(np.tile(np.arange(len(found)), 8))
    best = 1e9
    for _ in range(3):
        start = time.process_time()
        trained[0].predict(many, H200)
        best = min(best, time.process_time() - start)
    assert len(many) / best > 100_000
