from __future__ import annotations

import json
from io import StringIO

import pytest
from rich.console import Console

from autofuse.errors import PlanError
from autofuse.results.explain import LedgerEntry, Side, from_list, ledger_table, si_bytes, to_list


def entry(**more: object) -> LedgerEntry:
    made: dict[str, object] = {
        "value": "hidden",
        "dtype": "bfloat16",
        "shape": (4096, 4096),
        "producer": "mm",
        "consumers": ("gelu",),
        "verdict": "fused",
        "saved_bytes": 67_108_864,
        "fused": Side(predicted_us=31.0, n_regs=96, occupancy=0.62),
        "apart": Side(predicted_us=45.0, n_regs=40, occupancy=1.0),
        **more,
    }
    return LedgerEntry(**made)  # type: ignore[arg-type]


def test_the_sentence_has_the_bytes_the_cost_and_the_times() -> None:
    assert entry().reason() == (
        "fused: saves 67.1 MB, 96 registers against 40, occupancy 62% against 100%; "
        "31.0 us fused against 45.0 us apart (predicted), 1.45x faster"
    )


def test_a_losing_fusion_says_what_it_would_have_cost() -> None:
    found = entry(
        verdict="materialised",
        timing="measured",
        fused=Side(time_us=52.0, predicted_us=30.0, n_regs=255, n_spills=12, occupancy=0.12),
        apart=Side(time_us=44.0, predicted_us=45.0, n_regs=128, occupancy=0.25),
    )
    assert found.speedup == pytest.approx(44 / 52)
    assert found.reason() == (
        "materialised: fusing would save 67.1 MB, 255 registers against 128, occupancy 12% against 25%, "
        "12 registers spilled; 52.0 us fused against 44.0 us apart (measured), 1.18x slower"
    )


def test_measured_is_never_compared_with_predicted() -> None:
    found = entry(timing="measured", fused=Side(time_us=20.0, predicted_us=30.0), apart=Side(predicted_us=45.0))
    assert (found.speedup, found.label) == (1.5, "predicted")
    assert "30.0 us fused against 45.0 us apart (predicted)" in found.reason()
    alone = entry(timing="measured", fused=Side(time_us=20.0), apart=Side(predicted_us=45.0))
    assert alone.speedup is None
    assert alone.reason().endswith("not timed both ways")


def test_a_verdict_against_the_numbers_admits_it() -> None:
    against = entry(verdict="materialised", chosen_by="the library call is faster in the whole plan")
    assert against.reason().endswith("1.45x faster, yet decided by: the library call is faster in the whole plan")
    assert "yet" not in entry(fused=Side(predicted_us=45.1)).reason(), "a tie is nobody's win"
    assert "yet decided" in entry(fused=Side(predicted_us=60.0)).reason()


def test_what_cannot_be_fused_says_why() -> None:
    assert entry(verdict="materialised", obstacle="an output of the graph").reason() == (
        "materialised: an output of the graph"
    )


def test_the_ledger_goes_through_the_plans_evidence() -> None:
    made = (entry(), entry(value="other", verdict="recomputed", consumers=("a", "b")))
    assert from_list(json.loads(json.dumps(to_list(made)))) == made


@pytest.mark.parametrize(
    "data", ["text", [{"value": "x"}], [{**entry().to_dict(), "verdict": "maybe"}], [{**entry().to_dict(), "fused": 3}]]
)
def test_a_malformed_ledger_is_a_plan_error(data: object) -> None:
    with pytest.raises(PlanError, match="ledger"):
        from_list(data)


def test_the_table_labels_each_time() -> None:
    both = entry(timing="measured", fused=Side(time_us=20.0), apart=Side(time_us=45.0))
    guessed = entry(timing="measured", fused=Side(time_us=20.0, predicted_us=21.0), apart=Side(predicted_us=45.0))
    measured, predicted = ("20.0 us", "45.0 us", "(measured)"), ("21.0 us", "45.0 us", "(predicted)")
    for found, words in ((both, measured), (guessed, predicted)):
        out = StringIO()
        Console(file=out, width=200).print(ledger_table([found]))
        assert all(word in out.getvalue() for word in (*words, "67.1 MB"))


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_500_000, "2.5 MB"), (3e12, "3000.0 GB")]
)
def test_bytes(count: float, text: str) -> None:
    assert si_bytes(count) == text
