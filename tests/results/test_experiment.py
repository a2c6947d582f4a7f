from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autofuse.errors import ResultsError
from autofuse.results import experiment
from autofuse.results.experiment import BEGIN, END, Experiment
from autofuse.results.schema import FIGURES


def made() -> Experiment:
    found = Experiment("NVIDIA H200")
    found.add("softmax 65536", "speedup", 1.72, "x", goal=1.6, better="higher")
    found.add("softmax 65536", "tuning", 71.0, "s", goal=60, better="lower")
    found.add("layer norm", "speedup", 1.0, "x", goal=1.0, better="higher")
    found.add("layer norm", "candidates", 512, "", better="higher")
    return found


def test_a_figure_a_line_and_a_missed_goal_stays(tmp_path: Path) -> None:
    path = made().write(tmp_path)
    assert path == tmp_path / "results.parquet"
    table = pq.ParquetFile(path).read()
    assert table.schema.equals(FIGURES)
    assert table["met"].to_pylist() == [True, False, True, None]
    assert table["goal"].to_pylist() == [1.6, 60.0, 1.0, None]
    assert "python" in json.loads(table["versions"][0].as_py())
    assert experiment.read(path) == made_again(path)


def made_again(path: Path) -> list[experiment.Figure]:
    found = experiment.read(path)
    return [
        experiment.Figure(f.row, f.metric, f.value, f.unit, f.goal, f.better, f.device, f.versions, f.git_sha, f.when)
        for f in found
    ]


@pytest.mark.parametrize(
    ("value", "better", "goal", "match"),
    [
        (1.0, "bigger", None, "better is 'bigger'"),
        (float("nan"), "higher", None, "must be finite"),
        (1.0, "higher", float("inf"), "must be finite"),
    ],
)
def test_a_wrong_figure_is_refused(value: float, better: str, goal: float | None, match: str) -> None:
    with pytest.raises(ResultsError, match=match):
        Experiment("cpu").add("row", "metric", value, "us", better=better, goal=goal)


def test_the_same_figure_twice_and_none_at_all_are_refused(tmp_path: Path) -> None:
    found = made()
    with pytest.raises(ResultsError, match="there already"):
        found.add("layer norm", "speedup", 2.0, "x", better="higher")
    with pytest.raises(ResultsError, match="without figures"):
        Experiment("cpu").write(tmp_path)
    with pytest.raises(ResultsError, match="device must be named"):
        Experiment("").add("row", "metric", 1, "", better="higher")


def test_a_file_that_claims_a_goal_it_missed_is_refused(tmp_path: Path) -> None:
    path = made().write(tmp_path)
    table = pq.ParquetFile(path).read()
    lie = pa.array([True, True, True, None], pa.bool_())
    pq.write_table(table.set_column(FIGURES.get_field_index("met"), "met", lie), path)
    with pytest.raises(ResultsError, match="met is True, the numbers say False"):
        experiment.read(path)
    pq.write_table(table.drop_columns(["unit"]), path)
    with pytest.raises(ResultsError, match="expected"):
        experiment.read(path)


def test_the_readme_gets_the_table_between_its_markers(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"# Title\n\n{BEGIN}\nold\n{END}\nafter\n")
    made().write(tmp_path)
    text = readme.read_text()
    assert text.startswith("# Title\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "|  | speedup (x) | tuning (s) | candidates |" in text
    assert "| softmax 65536 | 1.72 | 71 (missed: at most 60) |  |" in text
    with pytest.raises(ResultsError, match="put <!-- results"):
        experiment.with_table("no markers", "table")


def test_outside_a_checkout_there_is_no_sha(tmp_path: Path) -> None:
    assert experiment.git_sha(tmp_path) == ""
