"""Experiments on recordings: committed tables are those of the committed results, and the replay is fair."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from autofuse.cost.held_out import hold_out
from autofuse.cost.recording import read as read_recording
from autofuse.cost.training import fit
from autofuse.results.experiment import BEGIN, Experiment, markdown, read, with_table
from autofuse.search.strategies import Random
from tests.cost.test_evaluation import marked
from tests.experiments.test_rows import EXPERIMENTS, script

NAMES = ("cost_model_accuracy", "search_efficiency", "unknown_family")


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_has_the_table_of_the_results(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = script(name, monkeypatch), EXPERIMENTS / name
    table = markdown(read(folder / "results.parquet"))
    monkeypatch.setattr("sys.argv", ["run.py", "--table"])
    with pytest.raises(SystemExit):
        run.main()
    assert capsys.readouterr().out == table
    readme = (folder / "README.md").read_text()
    assert BEGIN in readme
    assert with_table(readme, table) == readme


@pytest.mark.parametrize("name", NAMES)
def test_plots_are_there_and_small(name: str) -> None:
    for path in (EXPERIMENTS / name).glob("*.png"):
        assert f"({path.name})" in (EXPERIMENTS / name / "README.md").read_text()
        assert path.stat().st_size < 150 * 1024


# --- unknown kinds ---


def test_an_unseen_kind_is_bound_to_the_backbone_and_judged_beside_what_has_seen_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, experiment = script("unknown_family", monkeypatch), Experiment("cpu")
    held = run.held_out(read_recording(marked()))
    run.put(experiment, held)
    found = {(figure.row, figure.metric): figure for figure in experiment.figures}
    for kind in ("matmuls", "norms"):
        row = f"regret_at_1, {kind}"
        unseen = found[row, run.UNSEEN]
        assert unseen.goal == pytest.approx(1.1 * found[row, "backbone"].value)
        assert found[row, "lost"].value == pytest.approx(unseen.value - found[row, run.SEEN].value)
        row = f"kept_at_5_percent, {kind}"  # of which more is better
        assert found[row, "lost"].value == pytest.approx(found[row, run.SEEN].value - found[row, run.UNSEEN].value)
        assert found[row, run.UNSEEN].goal == 0.98
        problems = run.of_kind(held[run.UNSEEN], kind).problems("model")
        assert found[row, "n"].value == len(problems) < len(held[run.UNSEEN].problems("model"))
    assert found["regret_at_1, all kinds", run.UNSEEN].goal == 0.05


def test_without_the_fallback_nothing_is_outside_and_the_order_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    run, data = script("unknown_family", monkeypatch), read_recording(marked())
    with_it, without = (hold_out(data, "kind_out", learn=learn) for learn in (fit, run.unbounded))
    assert with_it is not None
    assert without is not None
    outside = with_it.before.outside > 0
    assert outside.any()
    assert not without.before.outside.any()
    assert not np.allclose(with_it.before.time_us[outside], without.before.time_us[outside])


# --- replay ---


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return script("search_efficiency", monkeypatch)


def cell(run: ModuleType, times: list[float], status: list[str] | None = None) -> Any:
    count = len(times)
    at = tuple((0, place) for place in range(count))
    return run.Cell(
        "cell", "key", "map", frozenset({"w"}), (), at, tuple(status or ["timed"] * count), np.array(times),
        np.zeros((3, count)),
    )  # fmt: skip


def test_a_replay_counts_what_is_compiled_and_timed_and_ends_at_the_best(run: ModuleType) -> None:
    times = [40.0, float("nan"), 10.0, 20.0, 10.4, float("nan")]
    some = cell(run, times, ["timed", "pruned_resources", "timed", "timed", "timed", "duplicate"])
    strategy = Random(len(times), seed=3)
    order = np.random.default_rng(0).permutation(len(times))
    given = [times[order[position]] for position in Random(len(times), seed=3).ask(1)]
    trace = run.replay(some, None, strategy, order, None)
    assert trace.regret[-1] == 0.0
    assert (np.diff(trace.regret) <= 0).all()
    assert len(trace.regret) <= 4 == some.timed
    assert trace.compiled[-1] >= len(trace.regret)
    if np.isfinite(given[0]):
        assert trace.regret[0] == given[0] / 10.0 - 1
    assert trace.spent[-1] <= 1.0
    assert trace.first(0.05) == int(np.argmax(trace.regret <= 0.05))


def test_a_replay_that_does_not_reach_the_best_is_counted_so(run: ModuleType) -> None:
    trace = run.Trace(np.array([6, 12]), np.array([0.3, 0.2]), np.array([0.1, 0.2]))
    assert trace.first(0.05) is None
    experiment = run.Experiment("cpu")
    run.put(experiment, "row", [trace], goals=True)
    found = {figure.metric: figure for figure in experiment.figures}
    assert found["timed to 5 %"].value == run.LONGEST + 1
    assert found["compiled to 5 %"].value == 13
    assert found["regret at 4"].value == pytest.approx(20.0)
    assert found["GPU time of all over that to 1 %"].value == 1.0
    assert found["GPU time of all over that to 1 %"].met is False
