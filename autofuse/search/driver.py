"""A whole tuning run: workloads and shapes -> plans in the store, every measurement in the results folder."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from autofuse.capture.trace import capture
from autofuse.capture.workload import Workload, load
from autofuse.capture.workload import resolve as resolve_workload
from autofuse.cost.device import Target, resolve
from autofuse.cost.model import CostModel
from autofuse.errors import CaptureError, NothingToTune, NoValidPlan, PlanError, WorkloadError
from autofuse.ir.fingerprint import graph_key
from autofuse.ir.graph import Graph
from autofuse.measure.compile import CompilePool
from autofuse.measure.supervisor import Worker
from autofuse.plans.environment import current_environment
from autofuse.plans.plan import Plan
from autofuse.plans.store import PlanStore
from autofuse.results.log import RunLog, resumable
from autofuse.results.parquet import compact, write
from autofuse.results.recordings import Recordings
from autofuse.results.recordings import folder as recordings_folder
from autofuse.results.records import Run
from autofuse.results.schema import canonical
from autofuse.search import events
from autofuse.search.context import Context
from autofuse.search.effort import Budget, effort_of
from autofuse.search.events import Counts, OnEvent, Progress, TuneRequest, TuneResult, Verification
from autofuse.search.finish import Chosen, choose
from autofuse.search.graph import GraphTuner, Outcome
from autofuse.search.group import GroupSearch
from autofuse.search.journal import Journal
from autofuse.search.report import dry_result, merge, plan_of, result_of
from autofuse.search.rounds import VERIFY_STATUS
from autofuse.search.small import check_small
from autofuse.settings import settings

CHECKS = 4
"""Plans whose numbers are checked in the interpreter, at a few seconds each, before a workload is given up."""

Function = tuple[Callable[..., Any], tuple[Any, ...]]


def tune(
    request: TuneRequest, on_event: OnEvent = lambda _event: None, functions: Mapping[str, Function] | None = None
) -> list[TuneResult]:
    """One result a workload and shape, in order. functions: workloads that are at hand under the names of the
    request. A wrong workload is a "failed" result; what is wrong with the run as a whole (target, store, results
    folder) raises an AutofuseError before anything is done."""
    target = resolve(request.target)
    effort_of(request.effort)
    with ExitStack() as stack:
        run = stack.enter_context(_Run.open(request, target, on_event))
        run.functions = functions or {}
        return run.all()


class _Run:
    def __init__(
        self, request: TuneRequest, target: Target, on_event: OnEvent, log: RunLog, folder: Path, store: PlanStore
    ) -> None:
        self.request = request
        self.target = target
        self.on_event = on_event
        self.log = log
        self.folder = folder
        self.store = store
        self.model = CostModel.load()
        self.effort = effort_of(request.effort)
        self.budget = Budget(request.budget_seconds, request.budget_trials)
        self.functions: Mapping[str, Function] = {}
        self.recordings: Recordings | None = None
        self.training: list[dict[str, Any]] = []
        self.jobs = [(spec, dict(shape)) for spec in request.workloads for shape in request.shapes]
        self.timing = "measured" if target.live is not None else "predicted"

    @staticmethod
    @contextmanager
    def open(request: TuneRequest, target: Target, on_event: OnEvent) -> Iterator[_Run]:
        places = settings()
        store = PlanStore(request.store or places.store_dir)
        folder = request.results or store.folder / "results"
        store.list()  # what is wrong with the store is said now, not after an hour of search
        if not request.dry_run:
            store.put_all(())
        recordings = None
        if target.live is None and not request.dry_run:
            recordings = Recordings(recordings_folder(request.recordings), target.name)
            recordings.check()
        environment = current_environment(device=target.live)
        earlier, why = None, ""
        if request.resume:
            earlier, why = resumable(folder, request.identity(), environment)
        log = RunLog.resume(earlier) if earlier else RunLog.create(folder, request.identity(), environment=environment)
        run = _Run(request, target, on_event, log, folder, store)
        run.recordings = recordings
        reused = len(log.state.measured(target.name))
        on_event(events.RunStarted(log.run_id, log.path, len(run.jobs), request.budget_seconds, reused))
        if request.resume and earlier is None:
            on_event(events.Note(f"nothing to resume: {why}; starting a new run"))
        if not run.model.trained:
            on_event(events.Note(f"cost model: {run.model.source}"))
        try:
            yield run
        finally:
            log.close()
            store.close()

    def all(self) -> list[TuneResult]:
        cores = len(os.sched_getaffinity(0))  # those this process may use, not those of the host
        workers = self.request.workers or max(1, cores - (1 if self.target.live is not None else 0))
        results: list[TuneResult] = []
        with ExitStack() as stack:
            pool = stack.enter_context(CompilePool(self.target.arch, workers))
            worker = None
            if self.target.live is not None:
                worker = stack.enter_context(Worker(f"cuda:{self.target.live}"))
                if not self.request.dry_run:
                    worker.start()
            for number, (spec, dims) in enumerate(self.jobs, 1):
                results.append(self.one(number, spec, dims, pool, worker))
                if results[-1].status == events.INTERRUPTED:
                    break
        ended = results[-1].status if results else events.DONE
        statuses = {result.status for result in results}
        self.log.end(
            ended if ended == events.INTERRUPTED else events.BUDGET if events.BUDGET in statuses else events.DONE
        )
        compact(self.log.path, self.folder)
        self.write_training()
        return results

    def one(
        self, number: int, spec: str, dims: Mapping[str, int], pool: CompilePool, worker: Worker | None
    ) -> TuneResult:
        started = time.perf_counter()
        self.on_event(events.WorkloadStarted(number, spec, dims, self.target.name, self.timing))
        try:
            result = self.search(number, spec, dims, pool, worker)
        except NothingToTune as error:
            result = replace(self.nothing(spec, dims, events.DONE, str(error)), total_us=0.0, unfused_us=0.0)
        except (WorkloadError, CaptureError, PlanError) as error:  # the last: a name or number that no plan may hold
            result = self.nothing(spec, dims, events.FAILED, str(error))
        except NoValidPlan as error:
            result = self.nothing(spec, dims, events.NO_PLAN, str(error))
        except KeyboardInterrupt:
            result = self.nothing(spec, dims, events.INTERRUPTED, "what was measured is kept, --resume goes on")
        result = replace(result, seconds=time.perf_counter() - started)
        self.log.record(self.row(result))
        self.on_event(events.WorkloadFinished(result))
        return result

    def nothing(self, spec: str, dims: Mapping[str, int], status: str, detail: str) -> TuneResult:
        return TuneResult(
            spec,
            dict(dims),
            self.target.name,
            self.timing,
            None,
            None,
            None,
            (),
            Counts(),
            Verification(),
            0.0,
            str(self.store.path),
            status,
            detail,
        )

    def search(
        self, number: int, spec: str, dims: Mapping[str, int], pool: CompilePool, worker: Worker | None
    ) -> TuneResult:
        workload, (fn, args) = self.workload(spec, dims)
        captured = capture(fn, args)
        parts: list[TuneResult] = []
        for left, item in zip(range(len(captured), 0, -1), captured, strict=True):
            budget = self.budget.part(left + len(self.jobs) - number, self.effort.seconds)
            parts.append(self.graph(workload.name, dict(workload.shape), item.graph, spec, budget, pool, worker))
        return merge(parts)

    def workload(self, spec: str, dims: Mapping[str, int]) -> tuple[Workload, Function]:
        if spec in self.functions:
            return Workload(spec, dict(dims)), self.functions[spec]
        live = self.target.live
        return resolve_workload(spec, dims), load(spec, dims, f"cuda:{live or 0}", fake=live is None)

    def graph(
        self,
        name: str,
        shape: dict[str, int],
        graph: Graph,
        spec: str,
        budget: Budget,
        pool: CompilePool,
        worker: Worker | None,
    ) -> TuneResult:
        journal = Journal(self.log, name, canonical(shape), self.target, graph_key(graph))
        effort = self.effort if worker is None else self.effort.within(budget.seconds, len(graph.ops))
        tuner = GraphTuner(graph, Context(
            self.target, self.model, effort, budget, journal, pool, worker, self.request.strategy,
            self.request.seed, _Watch(self.on_event, budget), self.recordings,
            None if (limit := self.request.memory_limit_mb) is None else round(limit * 1e6),
        ))  # fmt: skip
        if self.request.dry_run:
            return dry_result(tuner, name, shape, self.target)
        try:
            outcome = tuner.run()
        finally:
            self.budget.spend(budget.used)
        if worker is not None:
            chosen = choose(outcome, self.target, worker, self.request.seed)
        else:
            chosen = self.choose_unmeasured(spec, shape, tuner, outcome)
        self.training += journal.training.values()
        plan = plan_of(outcome, chosen, name, shape, self.target, current_environment(device=self.target.live))
        self.keep(plan)
        self.log.append("plan", plan=plan.to_dict())
        return result_of(outcome, chosen, plan, str(self.store.path))

    def keep(self, plan: Plan) -> None:
        """Stores the plan; one that was made under a limit of memory in any case, since it need not be the faster."""
        earlier = None
        with suppress(PlanError):  # a malformed one gives way
            earlier = self.store.get(plan.graph_key, plan.target, plan.environment)
        if not self.store.put(plan, anyway=self.request.memory_limit_mb is not None):
            self.note(f"a better plan of this graph is stored already: {plan.plan_id} is not kept")
        elif earlier is not None and _limit(earlier) != _limit(plan):
            self.note(f"{plan.plan_id}, made {_limit(plan)}, replaces {earlier.plan_id}, made {_limit(earlier)}")

    def choose_unmeasured(self, spec: str, shape: Mapping[str, int], tuner: GraphTuner, outcome: Outcome) -> Chosen:
        """The best predicted plan whose numbers are right in the interpreter. Raises NoValidPlan."""
        why = ""
        for _ in range(CHECKS):
            chosen = choose(outcome, self.target, None, self.request.seed)
            chosen = check_small(spec, shape, outcome.graph, chosen, outcome, self.target, self.request.seed, self.note)
            verified = chosen.verified
            if verified is None or verified.ok:
                return chosen
            why = f"{verified.status} {verified.detail}"
            self.note(f"a plan is wrong in the interpreter and is passed over: {why}")
            for group, trial in chosen.trials.items():  # which of them is to blame is not known
                if not trial.is_library:
                    trial.status, trial.detail = VERIFY_STATUS[verified.status], verified.detail
                    trial.verified, trial.recalled = verified, False
                    trial.time_us, trial.recording = None, ""
                    tuner.context.journal.trial(outcome.searches[group], trial)
            outcome.covers = tuner.covers(list(tuner.searches), GroupSearch.settled_us)
        calls = {group: outcome.searches[group].library() for group in outcome.unfused.groups}
        cost = sum(trial.predicted_us for trial in calls.values())
        chosen = Chosen(outcome.unfused, calls, cost, cost, None, None, None)
        chosen = check_small(spec, shape, outcome.graph, chosen, outcome, self.target, self.request.seed, self.note)
        if chosen.verified is None or chosen.verified.ok:
            return chosen
        raise NoValidPlan(f"{CHECKS} plans gave wrong results in the interpreter, the last: {why}")

    def note(self, text: str) -> None:
        self.on_event(events.Note(text, "warning"))

    def row(self, result: TuneResult) -> Run:
        counts = result.candidates
        return Run(
            self.log.run_id,
            result.workload,
            canonical(dict(result.shape)),
            self.target.name,
            result.status,
            timing=result.timing,
            plan_id=result.plan_id or "",
            strategy=self.request.strategy,
            effort=self.request.effort,
            seed=self.request.seed,
            budget_seconds=self.request.budget_seconds,
            seconds=result.seconds,
            total_us=result.total_us,
            unfused_us=result.unfused_us,
            enumerated=counts.enumerated,
            kept=counts.kept,
            compiled=counts.compiled,
            verified=counts.verified,
            timed=counts.timed,
            failed=counts.failed,
            max_abs_err=result.verified.max_abs_err,
            tolerance=result.verified.tolerance,
            host=platform.node(),
            versions_json=canonical(current_environment()),
            config_json=canonical(self.request.identity()),
        )

    def write_training(self) -> None:
        """Features beside labels: what `autofuse model train` reads."""
        if self.training:
            import pyarrow as pa

            write(pa.Table.from_pylist(self.training), self.folder / "training" / f"{self.log.run_id}.parquet")


def _limit(plan: Plan) -> str:
    limit = plan.evidence.get("memory_limit_mb")
    return "without a limit of memory" if limit is None else f"within {limit:g} MB"


class _Watch:
    """Turns the search's own progress into events for whoever looks on."""

    def __init__(self, on_event: OnEvent, budget: Budget) -> None:
        self.on_event = on_event
        self.budget = budget
        self.counts: dict[str, int] = dict.fromkeys(
            ("enumerated", "kept", "compiled", "verified", "timed", "failed"), 0
        )
        self.failures: dict[str, int] = {}
        self.best_us: float | None = None
        self.eager_us: float | None = None

    def __call__(self, kind: str, facts: Mapping[str, Any]) -> None:
        match kind:
            case "enumerated":
                self.counts["enumerated"] += int(facts["candidates"])
                self.eager_us = facts["unfused_us"]
            case "compiled":
                self.counts["kept"] += 1
                self.counts["compiled"] += facts["status"] in ("compiled", "duplicate", "pruned_resources")
                if str(facts["status"]).startswith("compile_"):
                    self.fail(str(facts["status"]))
            case "failed":
                self.fail(str(facts["status"]))
            case "timed":
                self.counts["timed"] += 1
            case "round":
                self.best_us = facts["best_us"]
        self.on_event(
            Progress(kind, Counts(**self.counts), dict(self.failures), self.best_us, self.eager_us, self.budget.elapsed)
        )

    def fail(self, status: str) -> None:
        self.counts["failed"] += 1
        self.failures[status] = self.failures.get(status, 0) + 1


__all__ = ["Chosen", "Outcome", "tune"]
