"""Experiments on recordings: committed tables are those of the committed results, and the replay is fair."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from autofuse.results.experiment import BEGIN, markdown, read, with_table
from autofuse.search.strategies import Random
from tests.experiments.test_rows import EXPERIMENTS, script

NAMES = ("cost_model_accuracy", "search_efficiency")


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
