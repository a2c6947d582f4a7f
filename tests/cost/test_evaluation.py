"""How the model is judged: metrics by hand, what each split leaves out, and intervals that hold what they promise."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

from autofuse.cost.evaluation import COLUMNS, evaluate, figures, table
from autofuse.cost.held_out import RANKERS, SPLITS, HeldOut, hold_out
from autofuse.cost.metrics import coverage, geometric, half_widths, random_regret, random_tried, recall, regret, tried
from autofuse.cost.model import CostModel
from autofuse.cost.recording import Recording, read
from autofuse.cost.training import fit
from tests.cost.programs import recording


def marked(scale: float = 0.3) -> pa.Table:
    """The recording with what only judging reads: two functions, which share a problem, two dtypes,
    two kinds, and defaults."""
    found = recording(scale=scale)
    families, keys = found.column("family").to_pylist(), found.column("program_key").to_pylist()
    shared = max(keys)
    half = np.arange(len(found)) % 2 == 0
    workload = [
        f"of {f}" if k != shared or odd else "of contract" for f, k, odd in zip(families, keys, half, strict=True)
    ]
    columns = {
        "workload": workload,
        "dtype": ["bfloat16" if family == "contract" else "float32" for family in families],
        "kind": ["matmuls" if family == "contract" else "norms" for family in families],
        "from_default": np.arange(len(found), dtype=np.float64),
    }
    for name, column in columns.items():
        found = found.append_column(name, pa.array(column))
    return found


# --- metrics ---


def test_metrics_of_a_ranking_that_can_be_counted_by_hand() -> None:
    time = np.array([10.0, 10.1, 10.4, 20.0])
    score = np.array([3.0, 2.0, 4.0, 1.0])  # tries 20, 10.1, 10, 10.4
    assert regret(score, time, 1) == 1.0
    assert regret(score, time, 2) == pytest.approx(0.01)
    assert tried(score, time) == 2
    assert tried(score, time, near=0.0) == 3
    assert [recall(score, time, share) for share in (0.25, 0.5, 0.75, 1.0)] == [0.0, 0.5, 1.0, 1.0]
    assert geometric([1.0, 0.0]) == pytest.approx(np.sqrt(2) - 1)


def test_expectations_of_drawing_are_the_means_over_all_orders() -> None:
    time = np.array([1.0, 1.04, 3.0, 2.0, 5.0])
    orders = [np.array(order, dtype=float) for order in itertools.permutations(range(5))]
    assert random_tried(time) == pytest.approx(np.mean([tried(order, time) for order in orders]))
    for k in (1, 2, 5):
        assert random_regret(time, k) == pytest.approx(np.mean([regret(order, time, k) for order in orders]))


def test_intervals_hold_what_they_promise_on_exchangeable_errors() -> None:
    rng = np.random.default_rng(0)
    error, fold = rng.standard_t(4, 20_000), rng.integers(0, 5, 20_000)
    halves = []
    for level in (0.5, 0.8, 0.95):
        share, half = coverage(error, fold, level)
        assert share == pytest.approx(level, abs=0.01)
        halves.append(half)
    assert halves == sorted(halves)


def test_an_interval_is_made_of_other_folds_alone() -> None:
    """The fold with great errors does not widen its own interval, which then holds none of them."""
    error, fold = np.array([1.0] * 50 + [9.0] * 50), np.repeat([0, 1], 50)
    assert half_widths(error, fold, 0.9).tolist() == [9.0] * 50 + [1.0] * 50
    assert coverage(error, fold, 0.9) == (0.5, 5.0)
    assert np.isnan(coverage(error, np.zeros(100, dtype=int), 0.9)).all()


# --- splits ---


@pytest.mark.parametrize("split", SPLITS)
def test_no_model_has_seen_what_it_is_judged_on(split: str) -> None:
    data, key, seen = read(marked()), SPLITS[split], []

    def spied(some: Recording, seed: int) -> CostModel:
        seen.append(some)
        return fit(some, seed)

    held = hold_out(data, split, learn=spied)
    assert held is not None
    assert len(seen) == len(np.unique(held.fold)) > 1
    rows = set(map(tuple, np.stack(list(data.features.columns.values()), axis=1)))
    assert len(held.recording) > 0.9 * len(rows)
    for number, some in zip(np.unique(held.fold), seen, strict=True):
        judged = held.recording.take(held.fold == number)
        if key is not None:
            assert not {*judged.keys[key]} & {*some.keys[key]}
            assert not {*judged.keys["program_key"]} & {*some.keys["program_key"]}
        assert len(some) < len(data)


@pytest.mark.parametrize(("split", "folds", "expected"), [("random", 3, 3), ("shapes_out", 3, 3), ("kind_out", 1, 2)])
def test_what_there_is_little_of_is_held_out_one_by_one_whatever_the_folds(
    split: str, folds: int, expected: int
) -> None:
    held = hold_out(read(marked()), split, folds=folds)
    assert held is not None
    assert len(np.unique(held.fold)) == expected


def test_what_a_recording_does_not_say_cannot_be_held_out() -> None:
    plain = read(recording(scale=0.2))
    assert hold_out(plain, "workload_out") is None
    assert hold_out(plain, "dtype_out") is None
    assert hold_out(plain, "kind_out") is None
    assert np.isnan(plain.labels["from_default"]).all()
    assert plain.sha256 == read(marked(0.2)).sha256  # a model's card names the same data with and without


def test_candidates_of_unknown_dtype_are_neither_judged_nor_learned_from() -> None:
    given = marked()
    column = given.column("dtype").to_pylist()
    known = given.set_column(given.schema.get_field_index("dtype"), "dtype", pa.array([None] * 50 + column[50:]))
    held = hold_out(read(known), "dtype_out")
    assert held is not None
    assert len(held.recording) == len(given) - 50


def test_rows_of_a_split_keep_their_predictions(held: HeldOut) -> None:
    contract = np.flatnonzero(held.recording.keys["family"] == "contract")
    some = held.take(contract)
    assert set(some.recording.keys["family"]) == {"contract"}
    for ranker in RANKERS:
        assert (some.scores(ranker) == held.scores(ranker)[contract]).all()
    assert (some.fold == held.fold[contract]).all()
    assert 0 < len(some.problems("model")) < len(held.problems("model"))


# --- figures ---


@pytest.fixture(scope="module")
def held() -> HeldOut:
    found = hold_out(read(marked()), "random")
    assert found is not None
    return found


def test_figures_of_all_rankers(held: HeldOut) -> None:
    found = {(figure.metric, figure.model): figure.value for figure in figures(held)}
    for metric in ("regret_at_1", "regret_at_8", "tried_to_5_percent", "recall_at_25_percent", "kendall_tau"):
        assert {model for name, model in found if name == metric} == set(COLUMNS)
    assert found["kendall_tau", "oracle"] == pytest.approx(1.0)
    assert found["regret_at_1", "oracle"] == 0.0
    assert found["tried_to_5_percent", "oracle"] == 1.0
    assert found["regret_at_1", "oracle"] <= found["regret_at_1", "model"] < found["regret_at_1", "random"]
    text = table(list(figures(held)))
    assert "| random | kendall_tau |" in text
    assert text.splitlines()[0] == f"| split | metric | {' | '.join(COLUMNS)} | better | n |"


def test_occupancy_is_right_where_the_resources_are(held: HeldOut) -> None:
    """The compiler's own registers and shared memory give it exactly; the rule's shared memory is right here."""
    value = {(f.metric, f.model): f.value for f in figures(held)}
    assert value["smem_exact", "backbone"] == 1.0
    right = held.backbone.regs == held.recording.labels["n_regs"]
    assert (held.backbone.occupancy[right] == held.after.occupancy[right]).all()
    assert value["occupancy_exact", "backbone"] >= right.mean()


def test_equal_scores_are_as_good_as_drawn() -> None:
    """A ranker that knows nothing must not profit from the order of the rows, here best first."""
    given = marked()
    order = np.argsort(given.column("time_us").to_numpy(), kind="stable")
    given = given.take(pa.array(order))
    given = given.set_column(
        given.schema.get_field_index("from_default"), "from_default", pa.array(np.zeros(len(order)))
    )
    found = hold_out(read(given), "random")
    assert found is not None
    value = {(f.metric, f.model): f.value for f in figures(found)}
    assert value["regret_at_1", "default"] > 0.1  # 0 in the order of the rows


def test_evaluation_has_every_split_that_the_data_can_make() -> None:
    assert {figure.split for figure in evaluate(marked(0.2))} == set(SPLITS)
    assert {figure.split for figure in evaluate(recording(scale=0.2))} == {"random", "shapes_out", "family_out"}
