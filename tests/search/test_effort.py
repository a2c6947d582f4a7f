"""Budgets: never more than was given, whoever shares it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autofuse.search.effort import Budget, effort_of


def test_what_is_reserved_is_not_given_twice() -> None:
    budget = Budget(trials=10)
    assert (budget.reserve(8), budget.reserve(8), budget.reserve(8)) == (8, 2, 0)
    budget.spend(3, reserved=8)
    assert budget.room(100) == 5
    assert Budget().reserve(8) == 8


@given(trials=st.integers(0, 40), wants=st.lists(st.integers(0, 20), min_size=1, max_size=8))
def test_shares_add_up_to_the_whole_at_most(trials: int, wants: list[int]) -> None:
    run = Budget(trials=trials)
    for done, want in enumerate(wants):
        part = run.part(len(wants) - done, seconds=60.0)
        part.spend(part.room(want))
        run.spend(part.used)
    assert run.used <= trials
    assert run.used == trials or any(want < -(-trials // len(wants)) for want in wants), "nothing is kept back"


def test_a_part_has_the_seconds_that_are_left_or_its_own() -> None:
    assert Budget().part(3, seconds=60.0).seconds == 60.0
    left = Budget(seconds=100.0).part(3, seconds=60.0).seconds
    assert left is not None
    assert 90 < left <= 100
    assert Budget(seconds=0.0).late()
    assert not Budget().late()


def test_a_short_budget_takes_smaller_rounds() -> None:
    """As many candidates in all; nothing changes where half of the usual time is there, or no limit."""
    quick = effort_of("quick")
    assert quick.within(None) is quick
    assert quick.within(30.0) is quick
    for seconds, by in ((20.0, 2), (8.0, 4)):
        short = quick.within(seconds)
        assert (short.compiled * by, short.timed * by) == (quick.compiled, quick.timed)
        assert short.rounds == quick.rounds * by
        assert short.pool == quick.pool
    assert quick.within(40.0, ops=64) == quick.within(8.0)
    assert quick.within(40.0, ops=5) is quick
