"""Rounds with a worker: compiling beside timing, budgets of trials, interruptions. Pool and worker are fakes that say
what was still being compiled when the worker was called."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from autofuse.capture.trace import capture
from autofuse.capture.workload import load
from autofuse.codegen.kernel import Kernel
from autofuse.cost.device import resolve
from autofuse.cost.model import CostModel
from autofuse.ir.graph import Graph
from autofuse.measure.decide import Rounds
from autofuse.measure.records import Candidate, Compiled, Inputs, Timed, TritonStep, Verified
from autofuse.results.log import RunLog, read
from autofuse.search import rounds
from autofuse.search.context import Context
from autofuse.search.effort import Budget, Effort
from autofuse.search.graph import GraphTuner, Outcome
from autofuse.search.journal import Journal

WORKLOAD = """
import torch
def two(device, rows=512, cols=1024, inner=512):
    fn = lambda x, y, z: (torch.sigmoid(x).sum(-1), torch.relu(y @ z))
    half = dict(device=device, dtype=torch.float16)
    return fn, (torch.randn(rows, cols, **half), torch.randn(rows, inner, **half), torch.randn(inner, cols, **half))
"""
TINY = Effort("tiny", 200, 64, 64, compiled=6, timed=3, rounds=2, timing=Rounds(), seconds=60.0)


class FakePool:
    """Compiles one kernel for each call of the worker, and one when there is nothing to do but to wait for it; all at
    once where `at_once`."""

    def __init__(self, *, backwards: bool = False, at_once: bool = False) -> None:
        self.kernels: list[Kernel] = []
        self.futures: list[Future[Compiled]] = []
        self.backwards = backwards
        self.at_once = at_once

    def submit(self, kernel: Kernel) -> Future[Compiled]:
        future: Future[Compiled] = Future()
        self.kernels.append(kernel)
        self.futures.append(future)
        if self.at_once:
            self.step()
        return future

    def pending(self) -> int:
        return sum(not future.done() for future in self.futures)

    def done(self) -> int:
        return len(self.futures) - self.pending()

    def step(self) -> None:
        left = [item for item in zip(self.kernels, self.futures, strict=True) if not item[1].done()]
        if left:
            kernel, future = left[-1 if self.backwards else 0]
            future.set_result(Compiled(kernel.digest, "ok", 32, binary_sha=kernel.digest))


@dataclass
class FakeWorker:
    """Times are drawn from the source of a kernel. wrong: which candidates are."""

    pool: FakePool
    wrong: Callable[[Candidate], bool] = lambda _candidate: False
    at_race: Callable[[int], None] = lambda _number: None
    verified: list[tuple[Candidate, int]] = field(default_factory=list)
    races: list[tuple[list[Candidate], int]] = field(default_factory=list)

    def verify(self, candidate: Candidate, inputs: Inputs) -> Verified:
        self.verified.append((candidate, self.pool.done()))
        self.pool.step()
        return Verified(candidate.key, "wrong" if self.wrong(candidate) else "ok")

    def time(self, candidates: Sequence[Candidate], inputs: Inputs, rules: Rounds) -> list[Timed]:
        self.races.append((list(candidates), self.pool.pending()))
        self.at_race(len(self.races))
        found: list[Timed] = []
        for candidate in candidates:
            us = 5.0 + zlib.crc32(repr(candidate.steps).encode()) % 1000 / 100
            found.append(Timed(candidate.key, "ok", (us,), (10.0,), (us,), us, us / 10.0))
        return found

    def kernels(self) -> list[str]:
        """Keys of the schedules that were timed, an incumbent's second time not counted."""
        return list(dict.fromkeys(c.key for candidates, _ in self.races for c in candidates if is_kernel(c)))


def is_kernel(candidate: Candidate) -> bool:
    return isinstance(candidate.steps[0], TritonStep)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    file = tmp_path_factory.mktemp("workload") / "w.py"
    file.write_text(WORKLOAD)
    (captured,) = capture(*load(f"{file}:two", {}, "cuda:0", fake=True))
    return captured.graph


@dataclass
class Bench:
    graph: Graph
    folder: Path
    log: RunLog = field(init=False)
    pool: FakePool = field(init=False)
    worker: FakeWorker = field(init=False)

    def run(self, budget: Budget | None = None, pool: FakePool | None = None, log: RunLog | None = None,
            key: str = "this graph", **worker: Any) -> Outcome:  # fmt: skip
        self.log = log or RunLog.create(self.folder)
        self.pool = pool or FakePool()
        self.worker = FakeWorker(self.pool, **worker)
        journal = Journal(self.log, "two", "{}", resolve("h200"), key)
        context = Context(resolve("h200"), CostModel(), TINY, budget or Budget(), journal, self.pool, self.worker,
                          "model")  # type: ignore[arg-type]  # fmt: skip
        with self.log, pytest.MonkeyPatch.context() as patch:
            patch.setattr(rounds, "wait", lambda *_: self.pool.step())
            return GraphTuner(self.graph, context).run()

    def logged(self) -> dict[str, str]:
        """Status of each Triton candidate, by group and digest."""
        found = read(self.log.path).measurements.values()
        return {f"{m.group_key}/{m.config_digest}": m.status for m in found if m.implementation == "triton"}


@pytest.fixture
def bench(graph: Graph, tmp_path: Path) -> Bench:
    return Bench(graph, tmp_path)


# --- overlap ---


def test_candidates_are_verified_while_the_rest_of_their_round_compiles(bench: Bench) -> None:
    outcome = bench.run()
    assert outcome.ended == "done"
    first = [done for candidate, done in bench.worker.verified if is_kernel(candidate)][: TINY.timed]
    assert first == sorted(first)
    assert first[-1] < TINY.compiled, "of the first round's"


def test_library_calls_are_verified_before_anything_has_compiled(bench: Bench) -> None:
    bench.run()
    candidate, done = bench.worker.verified[0]
    assert not is_kernel(candidate)
    assert done == 0


def test_one_search_is_timed_while_the_next_compiles(bench: Bench) -> None:
    bench.run()
    busy = [pending for _, pending in bench.worker.races]
    assert len(busy) > 4
    assert all(pending > 0 for pending in busy[:3]), busy


def test_the_next_round_is_with_the_compilers_before_the_last_race_of_a_turn(bench: Bench) -> None:
    """Each kernel of a turn's last search is in before the search is timed, and so are those of the turn after."""
    handed_in: list[int] = []
    bench.run(pool=FakePool(at_once=True), at_race=lambda _number: handed_in.append(len(bench.pool.kernels)))
    turns = sorted(set(handed_in))
    assert len(turns) > 1, "not all in the first turn"
    raced = [TINY.compiled * (number + 1) for number in range(len(handed_in))]
    first = handed_in.count(turns[0])
    assert raced[first - 1] < turns[0], "the last of the first turn is timed after the second turn began"
    assert handed_in[first] > turns[0]


# --- the same whatever the timing ---


def test_what_is_compiled_and_timed_does_not_depend_on_when_it_came_out(graph: Graph, tmp_path: Path) -> None:
    runs: list[tuple[list[str], list[str], dict[str, str]]] = []
    for name, pool in (("a", FakePool()), ("b", FakePool(backwards=True)), ("c", FakePool(at_once=True))):
        bench = Bench(graph, tmp_path / name)
        bench.run(pool=pool)
        kernels = [kernel.digest for kernel in bench.pool.kernels]
        runs.append((kernels, [sorted(c.key for c in race) for race, _ in bench.worker.races], bench.logged()))
    assert runs[0] == runs[1] == runs[2]


def test_what_is_wrong_keeps_its_place_among_the_chosen(bench: Bench) -> None:
    wrong: set[str] = set()

    def every_other(candidate: Candidate) -> bool:
        if is_kernel(candidate) and zlib.crc32(repr(candidate.steps).encode()) % 2:
            wrong.add(candidate.key)
        return candidate.key in wrong

    bench.run(wrong=every_other)
    assert wrong
    assert not wrong & set(bench.worker.kernels())
    assert list(bench.logged().values()).count("verify_wrong") == len(wrong)


# --- budgets ---


@pytest.mark.parametrize("trials", [0, 1, 4, 7])
def test_trials_bound_what_is_timed_and_a_measured_plan_is_found_all_the_same(bench: Bench, trials: int) -> None:
    budget = Budget(trials=trials)
    outcome = bench.run(budget)
    assert outcome.ended == "budget"
    assert len(bench.worker.kernels()) == trials == budget.used
    assert all(outcome.searches[group].is_measured for cover in outcome.covers for group in cover.groups)
    if not trials:
        assert not bench.pool.kernels


def test_enough_trials_are_no_limit(graph: Graph, tmp_path: Path) -> None:
    free, bound = Bench(graph, tmp_path / "a"), Bench(graph, tmp_path / "b")
    budget = Budget(trials=1000)
    assert [free.run().ended, bound.run(budget).ended] == ["done", "done"]
    assert free.worker.kernels() == bound.worker.kernels()
    assert budget.used == len(bound.worker.kernels()), "what was reserved and not used is given back"


def test_time_that_is_up_ends_the_round_and_no_more(bench: Bench) -> None:
    budget = Budget(seconds=1e9)

    def up(_number: int) -> None:
        budget.seconds = 0.0

    outcome = bench.run(budget, at_race=up)
    assert outcome.ended == "budget"
    assert len(bench.worker.races) == 1
    assert bench.pool.pending() == 0, "cancelled, or compiled"
    assert all(trial.status != "kept" for search in outcome.searches.values() for trial in search.trials.values())


def test_time_that_is_up_while_a_round_compiles_takes_the_rest_back(bench: Bench) -> None:
    budget = Budget(seconds=1e9)

    def up(candidate: Candidate) -> bool:
        if is_kernel(candidate):
            budget.seconds = 0.0
        return False

    outcome = bench.run(budget, wrong=up)
    assert outcome.ended == "budget"
    compiled = [future for future in bench.pool.futures if not future.cancelled()]
    assert len(compiled) < TINY.compiled
    assert 1 <= len(bench.worker.kernels()) <= len(compiled)


# --- interruptions ---


def test_ctrl_c_in_a_race_keeps_what_has_compiled_and_what_was_timed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = RunLog.flush

    def meanwhile(log: RunLog) -> None:
        flush(log)
        bench.pool.step()  # compilers do not stop while the rounds are brought to their ends

    def interrupt(number: int) -> None:
        if number == 2:
            monkeypatch.setattr(RunLog, "flush", meanwhile)
            raise KeyboardInterrupt

    outcome = bench.run(at_race=interrupt)
    assert outcome.ended == "interrupted"
    logged = bench.logged()
    done = {k.digest for k, f in zip(bench.pool.kernels, bench.pool.futures, strict=True) if not f.cancelled()}
    assert {m.binary_sha for m in read(bench.log.path).measurements.values() if m.binary_sha} == done
    assert any(future.cancelled() for future in bench.pool.futures)
    first, _ = bench.worker.races[0]
    assert list(logged.values()).count("timed") == sum(is_kernel(c) for c in first)
    assert set(logged.values()) <= {"timed", "compiled", "dropped"}, "nothing that a resumed run takes for finished"
    for search in outcome.searches.values():
        assert all(trial.status in ("timed", "compiled") for trial in search.trials.values())


def test_an_interrupted_run_goes_on_to_where_it_would_have_come(graph: Graph, tmp_path: Path) -> None:
    first, whole = Bench(graph, tmp_path), Bench(graph, tmp_path / "whole")
    whole.run()

    def interrupt(number: int) -> None:
        if number == 3:
            raise KeyboardInterrupt

    first.run(at_race=interrupt)
    timed = {name for name, status in first.logged().items() if status == "timed"}
    assert timed
    known = {m.binary_sha for m in read(first.log.path).measurements.values() if m.binary_sha}
    again = Bench(graph, tmp_path)
    again.run(log=RunLog.resume(first.log.path))
    assert not {kernel.digest for kernel in again.pool.kernels} & known, "nothing is compiled twice"
    assert again.logged() == whole.logged()


def test_a_group_that_was_timed_for_another_graph_is_not_timed_again(graph: Graph, tmp_path: Path) -> None:
    first, second = Bench(graph, tmp_path), Bench(graph, tmp_path)
    once = first.run()
    twice = second.run(log=RunLog.resume(first.log.path), key="another graph")
    assert first.worker.kernels()
    assert not second.worker.races
    assert not second.pool.kernels
    assert twice.covers == once.covers
    assert {m.graph_key for m in read(second.log.path).measurements.values()} == {"this graph"}


def test_numbers_that_were_wrong_in_another_graph_are_checked_again(graph: Graph, tmp_path: Path) -> None:
    first, second = Bench(graph, tmp_path), Bench(graph, tmp_path)
    first.run(wrong=is_kernel)
    assert not first.worker.kernels()
    second.run(log=RunLog.resume(first.log.path), key="another graph")
    tried = [{c.key for c, _ in bench.worker.verified if is_kernel(c)} for bench in (first, second)]
    assert tried[0] & tried[1]
