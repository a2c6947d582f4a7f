"""The parent's side of a worker: candidates in, records out. A hang, crash or lost CUDA context costs one candidate."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any

from autofuse.codegen.kernel import Kernel
from autofuse.errors import AutofuseError
from autofuse.fusion.library import eager_call, whole_group, with_ops
from autofuse.ir.graph import Graph
from autofuse.ir.serial import graph_to_json
from autofuse.measure.child import Child, ChildDied, ChildHung, Message
from autofuse.measure.decide import Rounds, finalists, losers
from autofuse.measure.paths import child_environment
from autofuse.measure.records import (
    AtenStep,
    Candidate,
    Clocks,
    InductorStep,
    Inputs,
    Timed,
    Verified,
    inputs_to_json,
    steps_to_json,
)

if TYPE_CHECKING:
    import torch

MODULE = "autofuse.measure.worker"
TIMEOUT_S = 60.0
INDUCTOR_TIMEOUT_S = 300.0
"""Of what Inductor compiles first. Expected: 5 to 40 s with cold caches; a guess, on the side of waiting."""
INPUTS = Inputs()
ROUNDS = Rounds()


class Worker:
    """One worker process on `device` ("cuda:0", ... or "cpu": Triton's interpreter), started on first use and again
    after every death. A context manager. Not thread-safe: one search, one worker."""

    def __init__(self, device: str, timeout_s: float = TIMEOUT_S) -> None:
        self.device = device
        self.timeout_s = timeout_s
        self.restarts = 0
        self._child: Child | None = None

    def start(self) -> None:
        """Before its first use: the process takes seconds to start, and this waits for none of them."""
        self._started()

    def describe(self) -> dict[str, Any]:
        """Name, arch, versions of the device as the worker sees it."""
        return self._ask({"do": "describe"}, self.timeout_s)

    def verify(self, candidate: Candidate, inputs: Inputs = INPUTS) -> Verified:
        message = {"do": "verify", **_job(candidate, inputs)}
        answer = self._try(message, self.patience(candidate))
        if "failed" in answer:
            return Verified(candidate.key, answer["failed"], detail=answer["detail"])
        return Verified(**answer["record"])

    def time(self, candidates: Sequence[Candidate], inputs: Inputs = INPUTS, rules: Rounds = ROUNDS) -> list[Timed]:
        """Interleaved rounds of all candidates and the reference kernel; one record each, in the order given.

        Times of one call compare with each other; `ratio` (to the reference kernel) with other calls too.
        """
        race = _Race(self, list(candidates), inputs)
        race.prepare(range(len(candidates)))
        done = 0
        while race.active and done < rules.rounds:
            count = min(rules.screen, rules.rounds - done)
            if not race.run(count, race.active, race.samples):
                continue
            done += count
            race.drop(losers({index: race.samples[index] for index in race.active}, rules.drop_ratio))
        chosen = finalists({index: race.samples[index] for index in race.active}, rules)
        if rules.confirm and chosen:
            race.run(rules.confirm, list(chosen), race.confirmed)
        clocks = self._clocks()
        self._try({"do": "reset"})
        return [race.record(index, clocks) for index in range(len(candidates))]

    def time_plans(self, plans: Sequence[Candidate], inputs: Inputs = INPUTS, rounds: int = 40) -> list[Timed]:
        """As `time`, with nobody dropped: for the last few whole plans, eager (see `eager`) among them."""
        return self.time(plans, inputs, Rounds(rounds=rounds, screen=rounds, confirm=0, drop_ratio=float("inf")))

    def run_kernel(self, kernel: Kernel, tensors: Mapping[str, torch.Tensor]) -> None:
        """One kernel in the interpreter (device "cpu"), tensors updated in place; RuntimeError when it fails."""
        from autofuse.measure.worker import pack, unpack

        packed = {name: pack(tensor) for name, tensor in tensors.items()}
        answer = self._try({"do": "kernel", "kernel": kernel.to_json(), "tensors": packed})
        if answer.get("status") != "ok":
            raise RuntimeError(f"{kernel.name}: {answer['detail']}")
        for name, data in answer["tensors"].items():
            tensors[name].untyped_storage().copy_(unpack(data).untyped_storage())

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def patience(self, candidate: Candidate) -> float:
        """Seconds that it may take to make a candidate ready."""
        slow = any(isinstance(step, InductorStep) for step in candidate.steps)
        return max(self.timeout_s, INDUCTOR_TIMEOUT_S) if slow else self.timeout_s

    def _clocks(self) -> Clocks:
        answer = self._try({"do": "clocks"})
        return Clocks() if "failed" in answer else Clocks(**answer)

    def _try(self, message: Message, timeout_s: float | None = None) -> Message:
        """The answer; {"failed": status, "detail": why} when the worker hung or died. It is gone after that, and after
        an answer that says `broken`: the next request starts another."""
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            answer = self._ask(message, timeout_s)
        except ChildHung:
            self._gone()
            return {"failed": "timeout", "detail": f"no result after {timeout_s:g} s"}
        except ChildDied as death:
            self._gone()
            return {"failed": "crash", "detail": str(death)}
        except BaseException:  # Ctrl-C between question and answer: the pipe is out of step
            self.close()
            raise
        if answer.get("broken"):
            self._gone()
        return answer

    def _ask(self, message: Message, timeout_s: float) -> Message:
        child = self._started()
        try:
            child.wait_ready()
        except (ChildDied, ChildHung) as error:  # no candidate has run yet: no candidate's failure
            raise AutofuseError(f"the worker on {self.device} does not start: {error}") from None
        return child.request(message, timeout_s)

    def _started(self) -> Child:
        if self._child is None:
            self._child = Child(MODULE, ("--device", self.device), self._environment())
            atexit.register(self._child.kill)
        return self._child

    def _environment(self) -> dict[str, str]:
        if self.device == "cpu":
            return child_environment(CUDA_VISIBLE_DEVICES="", TRITON_INTERPRET="1")
        return child_environment()

    def _gone(self) -> None:
        if self._child is not None:
            atexit.unregister(self._child.kill)
        self.close()
        self.restarts += 1


@dataclass
class _Race:
    """The state of one call of `Worker.time`."""

    worker: Worker
    candidates: list[Candidate]
    inputs: Inputs
    samples: dict[int, list[float]] = field(default_factory=dict)
    confirmed: dict[int, list[float]] = field(default_factory=dict)
    reference: dict[int, list[float]] = field(default_factory=dict)
    failed: dict[int, tuple[str, str]] = field(default_factory=dict)
    active: list[int] = field(default_factory=list)
    seed: int = 0

    def prepare(self, indices: Sequence[int]) -> None:
        """Ready each in the worker; a death takes the earlier ones along, so they are made ready again."""
        waiting = list(indices)
        self.active = []
        while waiting:
            index = waiting.pop(0)
            message = {"do": "prepare", "index": index, **_job(self.candidates[index], self.inputs)}
            before = self.worker.restarts
            answer = self.worker._try(message, self.worker.patience(self.candidates[index]))
            status = answer.get("failed") or answer["status"]
            if status == "ok":
                self.active.append(index)
            else:
                self.failed[index] = (status, answer["detail"])
            if self.worker.restarts != before:
                waiting = [*self.active, *waiting]
                self.active = []

    def run(self, count: int, indices: list[int], into: dict[int, list[float]]) -> bool:
        """Rounds of `indices`. False when the worker was lost: then everyone left has been prepared again, and those
        who fail alone are out."""
        self.seed += 1
        message = {"do": "rounds", "active": indices, "count": count, "seed": self.seed}
        answer = self.worker._try(message)
        if answer.get("status") == "ok":
            for index in indices:
                into.setdefault(index, []).extend(answer["samples"][str(index)])
                self.reference.setdefault(index, []).extend(answer["reference"])
            return True
        self._find_culprit(answer)
        return False

    def _find_culprit(self, answer: Message) -> None:
        """Each alone, once; if all pass alone nobody can be blamed, and the race is lost for all."""
        suspects = list(self.active)
        why = (answer.get("failed") or answer["status"], answer["detail"])
        before = len(self.failed)
        for index in suspects:
            self.prepare([index])
            if index in self.failed:
                continue
            alone = self.worker._try({"do": "rounds", "active": [index], "count": 5, "seed": 0})
            if alone.get("status") != "ok":
                self.failed[index] = (alone.get("failed") or alone["status"], alone["detail"])
        if len(self.failed) == before:
            self.failed.update(dict.fromkeys(suspects, why))
        self.prepare([index for index in suspects if index not in self.failed])

    def drop(self, indices: Sequence[int]) -> None:
        if indices:
            self.active = [index for index in self.active if index not in indices]
            self.worker._try({"do": "drop", "indices": list(indices)})

    def record(self, index: int, clocks: Clocks) -> Timed:
        key = self.candidates[index].key
        if index in self.failed:
            status, detail = self.failed[index]
            return Timed(key, status, detail=detail)
        samples = self.samples.get(index, [])
        reference = self.reference.get(index, [])
        confirmed = self.confirmed.get(index, [])
        # Fresh rounds decide where there are any: the best of many first rounds is partly luck.
        value = median(confirmed or samples)
        scale = median(reference[-len(confirmed or samples) :])
        status = "ok" if index in self.active else "dropped"
        return Timed(
            key, status, tuple(samples), tuple(reference), tuple(confirmed), value, value / scale, clocks
        )  # fmt: skip


def _job(candidate: Candidate, inputs: Inputs) -> dict[str, Any]:
    return {
        "key": candidate.key,
        "graph": graph_to_json(candidate.graph),
        "steps": steps_to_json(candidate.steps),
        "ahead": list(candidate.ahead),
        "inputs": inputs_to_json(inputs),
    }


def eager(graph: Graph, key: str = "eager") -> Candidate:
    """What eager runs: the graph's ATen calls one by one, those that capture took apart put together again."""
    group = whole_group(graph)
    ops = eager_call(graph, group).ops if group.ops else graph.ops
    return Candidate(key, with_ops(graph, ops), (AtenStep(tuple(op.name for op in ops)),))


@cache
def _interpreter() -> Worker:
    return Worker("cpu")


_one_at_a_time = threading.Lock()


def run_in_interpreter(kernel: Kernel, tensors: Mapping[str, torch.Tensor]) -> None:
    """Worker.run_kernel by the interpreter of this process, which all its threads share."""
    with _one_at_a_time:
        _interpreter().run_kernel(kernel, tensors)
