"""One round of one group: take up candidates, compile them, prune by their real resources, verify, time, learn.

Checkpoint 1 is the order in which candidates are taken up (the cost model before compiling); checkpoint 2 is here,
after compiling: candidates that cannot fit, spill heavily, or are the same binary as another are not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autofuse.cost.device import Target
from autofuse.cost.model import CostModel, Predictions
from autofuse.errors import InvalidSchedule
from autofuse.fusion.group import kernel_name
from autofuse.fusion.library import LibraryCall, with_ops
from autofuse.fusion.subgraph import index_ranges
from autofuse.measure.compile import CompilePool
from autofuse.measure.records import AtenStep, Candidate, Compiled, Inputs, Timed, TritonStep
from autofuse.measure.supervisor import Worker
from autofuse.search.effort import Budget, Effort
from autofuse.search.group import LIBRARY, GroupSearch, Trial
from autofuse.search.journal import Journal
from autofuse.search.pool import score
from autofuse.search.strategies import Outcome, make_strategy

SPILL_LIMIT_BYTES = 512
"""A kernel that spills more than this a thread is not timed. A guess, on the side of timing: up to 344 bytes were among
the timed ones of a softmax over 65536 columns (1.0 to 1.3 times its best); beyond 512 nothing was ever timed."""

VERIFY_STATUS = {"wrong": "verify_wrong", "unwritten": "verify_unwritten", "out_of_bounds": "verify_out_of_bounds"}


@dataclass
class GroupRounds:
    target: Target
    model: CostModel
    effort: Effort
    budget: Budget
    journal: Journal
    compile_pool: CompilePool
    worker: Worker | None
    strategy: str
    seed: int
    progress: Callable[..., None]

    def advance(self, search: GroupSearch) -> None:
        """One round. Marks the search exhausted when its strategy has no more or it has had its rounds."""
        if search.rounds == 0:
            self.open(search)
        search.rounds += 1
        trials = self.take_up(search)
        calls = list(search.library_trials.values()) if search.rounds == 1 and self.worker is not None else []
        try:
            self.compile(search, [trial for trial in trials if trial.kernel is not None])
            if self.worker is not None:
                self.measure(search, self.chosen(search, [trial for trial in trials if trial.kernel is not None]))
        except BaseException:
            self.broken_off(search, trials)
            raise
        finally:
            for trial in (*calls, *trials):
                if trial.status != "kept":
                    self.journal.trial(search, trial)
            self.journal.flush()
        if not trials or search.rounds >= self.effort.rounds or search.pool is None or self.worker is None:
            search.exhausted = True

    def broken_off(self, search: GroupSearch, trials: Sequence[Trial]) -> None:
        """Leaves nothing that a plan could take up uncompiled, or a resumed run could take for finished."""
        for trial in trials:
            if trial.status == "kept":
                del search.trials[trial.position]
            elif trial.status == "verified" and not trial.recalled:
                trial.status = "compiled"

    def open(self, search: GroupSearch) -> None:
        """Score the group's whole pool, and start its strategy; library calls are taken up at once."""
        if search.program is not None:
            rng = np.random.default_rng(self.seed)
            search.pool = score(search.program, self.target, self.model, self.effort.pool, rng)
            search.strategy = make_strategy(self.strategy, search.pool, self.seed)
        for number, (_, predicted) in enumerate(search.libraries):
            trial = search.library_trials[number] = Trial(LIBRARY, number, predicted_us=predicted)
            if self.worker is not None:
                self.journal.recall(search, trial)

    # --- taking up and compiling ---

    def take_up(self, search: GroupSearch) -> list[Trial]:
        if search.pool is None or search.strategy is None or not len(search.pool):
            return []
        found: list[Trial] = []
        room = self.effort.compiled if self.worker is not None else self.budget.room(self.effort.compiled)
        for position in search.strategy.ask(room):
            trial = Trial(position, predicted_us=float(search.pool.predictions.time_us[position]))
            trial.propensity = search.strategy.propensity(position)
            search.trials[position] = trial
            found.append(trial)
            if not self.journal.recall(search, trial):
                self.generate(search, trial)
                continue
            if trial.compiled is not None and trial.compiled.ok:
                search.binaries.setdefault(trial.compiled.binary_sha, position)
            if trial.status == "compiled" and self.worker is not None:
                self.generate(search, trial)  # an earlier run compiled it and did not come to time it
                trial.recalled = False
            else:
                self.tell(search, trial)
        self.learn_resources(search, found)
        return found

    def generate(self, search: GroupSearch, trial: Trial) -> None:
        assert search.pool is not None
        try:
            trial.kernel = search.pool.kernel(trial.position, kernel_name(search.group.ops), self.target)
        except InvalidSchedule as error:
            trial.status, trial.detail = "pruned_constraint", str(error)
            self.tell(search, trial)

    def compile(self, search: GroupSearch, trials: Sequence[Trial]) -> None:
        """Each is written down as soon as it is compiled, for whoever is killed. What the budget has no more time for
        is forgotten, but for one."""
        futures = [
            (trial, self.compile_pool.submit(trial.kernel))
            for trial in trials
            if trial.kernel is not None and trial.compiled is None
        ]
        try:
            for number, (trial, future) in enumerate(futures):
                if number and self.budget.late() and future.cancel():
                    del search.trials[trial.position]
                    trial.kernel = None
                    continue
                self.compiled(search, trial, future.result())
        finally:
            for _, future in futures:
                future.cancel()

    def compiled(self, search: GroupSearch, trial: Trial, compiled: Compiled) -> None:
        trial.compiled = compiled
        if not compiled.ok:
            trial.status, trial.detail = compiled.status, compiled.detail
        elif compiled.smem_bytes > self.target.smem_per_block:
            trial.status = "pruned_resources"
            trial.detail = f"{compiled.smem_bytes} bytes of shared memory, {self.target.smem_per_block} fit"
        elif compiled.spill_bytes > SPILL_LIMIT_BYTES:
            trial.status = "pruned_resources"
            trial.detail = f"{compiled.spill_bytes} bytes spilled a thread"
        elif compiled.binary_sha in search.binaries:
            trial.status, trial.duplicate_of = "duplicate", search.binaries[compiled.binary_sha]
        else:
            trial.status = "compiled"
            search.binaries[compiled.binary_sha] = trial.position
        self.learn_resources(search, [trial])
        self.journal.trial(search, trial)
        self.progress("compiled", status=trial.status, group=search.key)
        if trial.status not in ("compiled", "duplicate"):
            self.tell(search, trial)
        if self.worker is None:
            self.budget.spend(1)

    def learn_resources(self, search: GroupSearch, trials: Sequence[Trial]) -> None:
        """Predict again, with the registers, spills and shared memory that the compiler found."""
        known = [trial for trial in trials if trial.compiled is not None and trial.compiled.ok]
        if not known or search.pool is None:
            return
        rows = np.array([trial.position for trial in known])
        compiled = [trial.compiled for trial in known if trial.compiled is not None]
        again: Predictions = self.model.predict_compiled(
            search.pool.features.take(rows), self.target,
            np.array([c.n_regs for c in compiled], dtype=np.float64),
            np.array([c.spill_bytes for c in compiled], dtype=np.float64),
            np.array([c.smem_bytes for c in compiled], dtype=np.float64),
        )  # fmt: skip
        for number, trial in enumerate(known):
            trial.predicted_us = float(again.time_us[number])
            trial.occupancy = float(again.occupancy[number])
            trial.dram_bytes = float(again.dram_bytes[number])
            trial.binding = again.binding_name(number)

    # --- measuring ---

    def chosen(self, search: GroupSearch, trials: Sequence[Trial]) -> list[Trial]:
        """The best by the second prediction, plus the explorers, plus the library calls on the first round."""
        alive = sorted((t for t in trials if t.status == "compiled"), key=lambda t: t.predicted_us)
        explorers = [t for t in alive if t.propensity < 1.0]
        best = [t for t in alive if t.propensity >= 1.0]
        room = max(self.effort.timed - len(explorers), 1)
        calls = list(search.library_trials.values()) if search.rounds == 1 else []
        return [*calls, *best[:room], *explorers[: self.effort.timed]]

    def measure(self, search: GroupSearch, trials: Sequence[Trial]) -> None:
        assert self.worker is not None
        inputs = Inputs(seed=self.seed, ranges=index_ranges(search.graph))
        ready: list[tuple[Trial, Candidate]] = []
        for trial in trials:
            if trial.recalled:  # a library call that an earlier run timed
                continue
            candidate = candidate_of(search, trial)
            verified = trial.verified = self.worker.verify(candidate, inputs)
            if not verified.ok:
                trial.status = VERIFY_STATUS.get(verified.status, verified.status)
                trial.detail = verified.detail
                self.progress("failed", status=trial.status, group=search.key)
                self.tell(search, trial)
                continue
            trial.status = "verified"
            ready.append((trial, candidate))
        incumbent = next((t for t in search.measured() if t not in trials), None)
        if incumbent is not None:
            if incumbent.kernel is None and not incumbent.is_library:
                self.generate(search, incumbent)
            ready.append((incumbent, candidate_of(search, incumbent)))
        if not ready:
            return
        results = self.worker.time([candidate for _, candidate in ready], inputs, self.effort.timing)
        for (trial, _), timed in zip(ready, results, strict=True):
            self.record_time(search, trial, timed)
        self.budget.spend(len(ready))

    def record_time(self, search: GroupSearch, trial: Trial, timed: Timed) -> None:
        trial.timed = timed
        if not timed.ok:
            trial.status, trial.detail = timed.status, timed.detail
            self.progress("failed", status=timed.status, group=search.key)
        else:
            trial.status, trial.time_us = "timed", self.journal.microseconds(timed)
            self.progress("timed", us=trial.time_us, group=search.key)
        self.tell(search, trial)

    def tell(self, search: GroupSearch, trial: Trial) -> None:
        if search.strategy is not None and not trial.is_library:
            search.strategy.tell(trial.position, Outcome(trial.time_us, trial.status))


def candidate_of(search: GroupSearch, trial: Trial) -> Candidate:
    """What the worker verifies and times for a trial, over the graph of the group alone."""
    if trial.is_library:
        call: LibraryCall = search.calls[trial.library]
        graph = with_ops(search.graph, call.ops)
        return Candidate(f"{search.key[:12]}/{call.name}", graph, (AtenStep(tuple(op.name for op in call.ops)),))
    kernel = trial.kernel
    if kernel is None:
        assert search.pool is not None
        raise ValueError(f"trial {trial.position} has no kernel")
    return Candidate(f"{search.key[:12]}/{trial.position}", search.graph, (TritonStep(kernel),))
