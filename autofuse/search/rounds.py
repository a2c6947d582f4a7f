"""Rounds of groups: take up candidates, compile them, prune by their real resources, verify, time, learn.

Checkpoint 1 is the order in which candidates are taken up (the cost model before compiling); checkpoint 2 is here,
after compiling: candidates that cannot fit, spill heavily, or are the same binary as another are not timed.

A round begins when its candidates go to the compile pool, and several may have begun: while the one worker verifies and
times what has come out, the pool works on the rest of the round and on the rounds after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field
from math import isinf

import numpy as np

from autofuse.cost.model import Predictions
from autofuse.errors import InvalidSchedule
from autofuse.fusion.folding import FOLDED
from autofuse.fusion.group import kernel_name
from autofuse.fusion.library import LibraryCall, with_ops
from autofuse.fusion.subgraph import index_ranges
from autofuse.measure.records import AtenStep, Candidate, Compiled, Inputs, Timed, TritonStep
from autofuse.measure.supervisor import Worker
from autofuse.search.batch import Batch
from autofuse.search.context import Context
from autofuse.search.effort import Effort
from autofuse.search.group import LIBRARY, GroupSearch, Trial
from autofuse.search.pool import score
from autofuse.search.recorded import TAKEN, adopt, positions
from autofuse.search.strategies import Outcome, make_strategy

SPILL_LIMIT_BYTES = 512
"""A kernel that spills more than this a thread is not timed. A guess, on the side of timing: up to 344 bytes were among
the timed ones of a softmax over 65536 columns (1.0 to 1.3 times its best); beyond 512 nothing was ever timed."""

HOPELESS = 3.0
"""A library call predicted to take this many times the best is not timed: of 305 on an H200 none took less than 0.7 of
what was predicted."""
HOPELESS_KERNELS = 8.0
"""Nor are kernels compiled that are all predicted to take this many times a library call: their predictions are
rougher."""

VERIFIED_AHEAD = 2
"""Rounds that candidates are verified of while the first of them compiles: the worker keeps as many references."""

VERIFY_STATUS = {"wrong": "verify_wrong", "unwritten": "verify_unwritten", "out_of_bounds": "verify_out_of_bounds"}


@dataclass
class GroupRounds:
    """begun: rounds that have begun and not ended, oldest first."""

    context: Context
    begun: list[Batch] = field(default_factory=list)

    # --- from beginning to end ---

    def begin(self, search: GroupSearch) -> None:
        """Takes up a round's candidates and hands them to the compile pool."""
        batch = Batch(search)
        self.begun.append(batch)
        if search.rounds == 0:
            self.open(search)
        batch.calls += self.library_calls(search)
        search.rounds += 1
        self.take_up(batch)
        for trial in batch.trials:
            if trial.kernel is not None and trial.compiled is None:
                batch.waiting[trial.position] = self.context.compile_pool.submit(trial.kernel)

    def finish(self) -> None:
        """Ends the round that began first. Marks its search exhausted when its strategy has no more or it has had its
        rounds."""
        batch = self.begun[0]
        if self.context.worker is None:
            self.compile(batch)
        else:
            self.verify_as_compiled(batch, self.context.worker)
            self.race(batch, self.context.worker)
        search = batch.search
        over = not batch.trials or search.rounds >= self.effort(search).rounds or search.pool is None
        search.exhausted = over or self.context.worker is None
        self.end(batch)

    def break_off(self) -> None:
        """Ends whatever has begun as it stands: what has compiled is kept, what has not is forgotten."""
        for batch in self.begun:
            batch.cancel()
        self.collect()
        while self.begun:
            self.end(self.begun[0])

    def end(self, batch: Batch) -> None:
        self.begun.remove(batch)
        batch.forget()
        for trial in (*batch.calls, *batch.trials):
            if trial.status != "kept":
                self.context.journal.trial(batch.search, trial)
        self.context.journal.flush()
        self.context.budget.spend(batch.used, batch.reserved)

    def open(self, search: GroupSearch) -> None:
        """Score the group's whole pool, and start its strategy."""
        if search.program is not None:
            context = self.context
            rng = np.random.default_rng(context.seed)
            wanted = [one.name for one in search.recorded]
            search.pool = score(search.program, context.target, context.model, context.effort.pool, rng, wanted)
            search.recorded_at = positions(search.pool, search.recorded)
            search.strategy = make_strategy(context.strategy, search.pool, context.seed)

    def library_calls(self, search: GroupSearch) -> list[Trial]:
        """Takes up the library calls that may be as fast as the best kernel so far, by prediction until it is known.
        Returns those to be timed."""
        best = search.cost_us()
        found: list[Trial] = []
        for number, (_, predicted) in enumerate(search.libraries):
            if number in search.library_trials or isinf(predicted) or predicted > HOPELESS * best:
                continue
            trial = search.library_trials[number] = Trial(LIBRARY, number, predicted_us=predicted)
            if self.context.worker is not None:
                self.context.journal.recall(search, trial)
                found.append(trial)
        return found

    def effort(self, search: GroupSearch) -> Effort:
        return self.context.effort.least() if search.minor else self.context.effort

    # --- taking up and compiling ---

    def take_up(self, batch: Batch) -> None:
        search, effort, worker = batch.search, self.effort(batch.search), self.context.worker
        if search.pool is None or search.strategy is None or not len(search.pool):
            return
        if search.pool.predictions.time_us[0] > HOPELESS_KERNELS * search.cost_us():
            return
        batch.reserved = self.context.budget.reserve(effort.compiled if worker is None else effort.timed)
        wanted = batch.reserved if worker is None else effort.compiled if batch.reserved else 0
        taken = [] if search.rounds > 1 else list(search.recorded_at)[: min(TAKEN, wanted)]
        for position in taken:
            search.strategy.tell(position, Outcome(search.recorded_at[position].time_us, "timed"))
        for position in [*taken, *search.strategy.ask(wanted - len(taken))]:
            trial = Trial(position, predicted_us=float(search.pool.predictions.time_us[position]))
            trial.propensity = search.strategy.propensity(position)
            search.trials[position] = trial
            batch.trials.append(trial)
            if not self.context.journal.recall(search, trial):
                self.generate(search, trial)
                continue
            adopt(search, trial)
            if trial.compiled is not None and trial.compiled.ok:
                search.binaries.setdefault(trial.compiled.binary_sha, position)
            if trial.status == "compiled" and worker is not None:
                self.generate(search, trial)  # an earlier run compiled it and did not come to time it
                trial.recalled = False
                batch.fit.append(trial)
            else:
                self.tell(search, trial)
        self.learn_resources(search, batch.trials)

    def generate(self, search: GroupSearch, trial: Trial) -> None:
        assert search.pool is not None
        try:
            trial.kernel = search.pool.kernel(trial.position, kernel_name(search.group.ops), self.context.target)
        except InvalidSchedule as error:
            trial.status, trial.detail = "pruned_constraint", str(error)
            self.tell(search, trial)

    def compile(self, batch: Batch) -> None:
        """In the order in which they were taken up: nothing but the outcome of a compile then decides what follows.
        What the budget has no more time for is forgotten, but for one."""
        for position in list(batch.waiting):
            if self.context.budget.late():
                batch.hurry()
            if position in batch.waiting:
                self.take_in(batch, position)

    def collect(self) -> None:
        """Takes in whatever has come out of the compilers, of all rounds that have begun: for whoever is killed."""
        for batch in self.begun:
            for position in [position for position, future in batch.waiting.items() if future.done()]:
                self.take_in(batch, position)

    def take_in(self, batch: Batch, position: int) -> None:
        """One that has compiled, or will have."""
        compiled = batch.waiting[position].result()
        del batch.waiting[position]
        self.compiled(batch, batch.search.trials[position], compiled)

    def compiled(self, batch: Batch, trial: Trial, compiled: Compiled) -> None:
        search, smem_limit = batch.search, self.context.target.smem_per_block
        trial.compiled = compiled
        if not compiled.ok:
            trial.status, trial.detail = compiled.status, compiled.detail
        elif compiled.smem_bytes > smem_limit:
            trial.status = "pruned_resources"
            trial.detail = f"{compiled.smem_bytes} bytes of shared memory, {smem_limit} fit"
        elif compiled.spill_bytes > SPILL_LIMIT_BYTES:
            trial.status = "pruned_resources"
            trial.detail = f"{compiled.spill_bytes} bytes spilled a thread"
        elif compiled.binary_sha in search.binaries:
            trial.status, trial.duplicate_of = "duplicate", search.binaries[compiled.binary_sha]
        else:
            trial.status = "compiled"
            search.binaries[compiled.binary_sha] = trial.position
            batch.fit.append(trial)
        adopt(search, trial)
        self.learn_resources(search, [trial])
        self.context.journal.trial(search, trial)
        self.context.progress("compiled", status=trial.status, group=search.key)
        if trial.status not in ("compiled", "duplicate"):
            self.tell(search, trial)
        if self.context.worker is None:
            batch.used += 1

    def learn_resources(self, search: GroupSearch, trials: Sequence[Trial]) -> None:
        """Predict again, with the registers, spills and shared memory that the compiler found."""
        known = [trial for trial in trials if trial.compiled is not None and trial.compiled.ok]
        if not known or search.pool is None:
            return
        rows = np.array([trial.position for trial in known])
        compiled = [trial.compiled for trial in known if trial.compiled is not None]
        again: Predictions = self.context.model.predict_compiled(
            search.pool.features.take(rows), self.context.target,
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

    def inputs(self, search: GroupSearch) -> Inputs:
        return Inputs(seed=self.context.seed, ranges=index_ranges(search.graph))

    def verify_as_compiled(self, batch: Batch, worker: Worker) -> None:
        """Verifies what may be timed as it comes out of the compilers, the best first, until the round has compiled.

        What is verified early, and then is not among the chosen, depends on when it came out; what is timed does not.
        """
        budget = self.context.budget
        while True:
            self.collect()
            if budget.late():
                batch.hurry()
            ahead = self.begun[: VERIFIED_AHEAD if batch.waiting else 1]
            todo = ((b.search, trial) for b in ahead if (trial := b.unverified(self.room(b))) is not None)
            found = next(todo, None)
            if found is not None:
                self.verify(*found, worker)
            elif batch.waiting:
                waiting = [future for b in ahead for future in b.waiting.values()]
                wait(waiting, None if budget.late() else budget.left, FIRST_COMPLETED)
            else:
                return

    def room(self, batch: Batch) -> int:
        """Trials of the round; what is known from before has had its place."""
        recalled = sum(trial.recalled and trial.time_us is not None for trial in batch.trials)
        return max(min(self.effort(batch.search).timed - recalled, batch.reserved), 0)

    def verify(self, search: GroupSearch, trial: Trial, worker: Worker) -> None:
        verified = trial.verified = worker.verify(candidate_of(search, trial), self.inputs(search))
        if verified.ok:
            trial.status = "verified"
            return
        trial.status = VERIFY_STATUS.get(verified.status, verified.status)
        trial.detail = verified.detail
        self.context.progress("failed", status=trial.status, group=search.key)
        self.tell(search, trial)

    def race(self, batch: Batch, worker: Worker) -> None:
        """Times all of the round's chosen together, beside the best of the rounds before."""
        search = batch.search
        ready = [trial for trial in batch.chosen(self.room(batch)) if trial.status == "verified"]
        if not ready:
            return
        batch.used = sum(not trial.is_library for trial in ready)
        incumbent = next(iter(search.measured()), None)
        if incumbent is not None:
            if incumbent.kernel is None and not incumbent.is_library:
                self.generate(search, incumbent)
            ready.append(incumbent)
        candidates = [candidate_of(search, trial) for trial in ready]
        results = worker.time(candidates, self.inputs(search), self.context.effort.timing)
        for trial, timed in zip(ready, results, strict=True):
            self.record_time(search, trial, timed)

    def record_time(self, search: GroupSearch, trial: Trial, timed: Timed) -> None:
        trial.timed = timed
        if not timed.ok:
            trial.status, trial.detail = timed.status, timed.detail
            self.context.progress("failed", status=timed.status, group=search.key)
        else:
            trial.status, trial.time_us = "timed", self.context.journal.microseconds(timed)
            self.context.progress("timed", us=trial.time_us, group=search.key)
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
    key = f"{search.key[:12]}/{trial.position}"
    return Candidate(key, search.graph, (TritonStep(kernel),), ahead_of(search, trial))


def ahead_of(search: GroupSearch, trial: Trial) -> tuple[str, ...]:
    """Values of the search's graph that the trial has computed ahead."""
    if trial.is_library or search.pool is None or FOLDED not in search.pool.rewrites(trial.position):
        return ()
    return search.ahead
