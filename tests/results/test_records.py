from __future__ import annotations

import math
from dataclasses import fields

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofuse.errors import ResultsError
from autofuse.results import schema
from autofuse.results.records import Measurement, Run, Samples, config_digest, from_row, to_json, to_row
from tests.results.samples import measurement, run, samples

ARROW = {
    "str": pa.string(),
    "float": pa.float64(),
    "float | None": pa.float64(),
    "int": pa.int64(),
    "int | None": pa.int64(),
    "datetime": pa.timestamp("us", tz="UTC"),
}


@pytest.mark.parametrize(("record", "table"), [(Measurement, schema.CANDIDATES), (Run, schema.RUNS)])
def test_the_record_and_its_table_have_the_same_columns_of_the_same_types(record: type, table: pa.Schema) -> None:
    annotated = {f.name: ARROW[str(f.type)] for f in fields(record)}
    assert annotated == {field.name: field.type for field in table}


def test_samples_become_one_row_a_round() -> None:
    rows = samples().rows()
    assert [set(row) for row in rows] == [set(schema.SAMPLES.names)] * 2
    assert [(row["round"], row["time_us"], row["reference_us"]) for row in rows] == [(0, 10.0, 5.0), (1, 11.5, 5.5)]


def test_samples_need_a_reference_for_every_time_or_for_none() -> None:
    assert Samples("r", "t", "g", "k", "c", "race", (1.0,)).rows()[0]["reference_us"] is None
    with pytest.raises(ResultsError, match="1 times with 2"):
        Samples("r", "t", "g", "k", "c", "race", (1.0,), (1.0, 2.0))


numbers = st.none() | st.floats(allow_nan=False)


@given(
    st.sampled_from(sorted(schema.STATUSES)), st.text(max_size=30), numbers, st.none() | st.integers(-(2**62), 2**62)
)
def test_rows_and_json_give_the_measurement_back(
    status: str, detail: str, time: float | None, regs: int | None
) -> None:
    made = measurement(1, status, detail=detail, time_us=time, n_regs=regs)
    assert from_row(Measurement, to_row(made)) == made
    assert from_row(Measurement, to_json(made)) == made
    schema.canonical(to_json(made))  # is JSON, whatever the floats


def test_not_a_number_survives() -> None:
    found = from_row(Measurement, to_json(measurement(max_abs_err=math.nan)))
    assert found.max_abs_err is not None
    assert math.isnan(found.max_abs_err)


def test_samples_and_runs_give_themselves_back() -> None:
    rounds = samples()
    assert from_row(Samples, to_json(rounds)) == rounds
    over = run(budget_seconds=1.5)
    assert from_row(Run, to_json(over)) == over


@pytest.mark.parametrize(
    ("column", "value", "match"),
    [
        ("n_regs", "many", "measurement.n_regs: 'many'"),
        ("n_regs", 1.5, "measurement.n_regs"),
        ("workload", 3, "measurement.workload"),
        ("propensity", None, "measurement.propensity"),
        ("when", "yesterday", "measurement.when"),
        ("status", "fine", "status 'fine': expected one of"),
        ("timing", "guessed", "timing 'guessed'"),
    ],
)
def test_a_wrong_column_is_named(column: str, value: object, match: str) -> None:
    with pytest.raises(ResultsError, match=match):
        from_row(Measurement, {**to_row(measurement()), column: value})


def test_columns_of_a_later_version_are_left_out_and_missing_ones_are_not() -> None:
    row = to_row(measurement())
    assert from_row(Measurement, {**row, "colour": "red"}) == measurement_of(row)
    del row["graph_key"]
    with pytest.raises(ResultsError, match="graph_key"):
        from_row(Measurement, row)


def measurement_of(row: dict[str, object]) -> Measurement:
    return Measurement(**row)  # type: ignore[arg-type]


def test_a_config_digest_does_not_depend_on_the_order_of_its_keys() -> None:
    assert config_digest("triton", {"a": 1, "b": 2}) == config_digest("triton", {"b": 2, "a": 1})
    assert config_digest("triton", {"a": 1}) != config_digest("aten", {"a": 1})
    swapped = [{"roles": {"m": "grid(16)", "n": "whole"}}, {"roles": {"n": "whole", "m": "grid(16)"}}]
    assert len({config_digest("triton", config) for config in swapped}) == 2, "roles are in loop order"
    assert config_digest("triton", {"a": 1}) != config_digest("triton", {"a": 1}, "online_softmax")


def test_what_is_settled_need_not_be_done_again() -> None:
    settled = {status for status in schema.STATUSES if measurement(0, status).settled}
    assert settled == set(schema.STATUSES) - {"pruned_constraint", "pruned_model", "compiled"}
