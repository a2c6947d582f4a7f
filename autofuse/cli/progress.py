"""A tuning run's events for people: a live line on a terminal, nothing but warnings elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from autofuse.cli.output import note
from autofuse.search.events import Event, Note, Progress, RunStarted, TuneResult, WorkloadFinished, WorkloadStarted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status


class ProgressView:
    """Call it with each event. finished: the results so far, for when the run does not come to its end."""

    def __init__(self, terminal: bool | None = None) -> None:
        self.finished: list[TuneResult] = []
        self.log: str | None = None
        self.started: RunStarted | None = None
        self.present = ""
        self.timing = "predicted"
        self._console: Console | None = None
        self._status: Status | None = None
        if sys.stderr.isatty() if terminal is None else terminal:
            from rich.console import Console

            self._console = Console(stderr=True, highlight=False)

    def __enter__(self) -> ProgressView:
        if self._console is not None:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self.started = event
                self.log = str(event.log) if event.log else None
                if event.reused:
                    self._say(f"resuming: {event.reused} measurements are taken over")
            case WorkloadStarted():
                self.timing = event.timing
                self.present = title(event, self.started.plans if self.started else 0)
                self._update(self.present)
            case Progress():
                self._update(f"{self.present}  {line(event, self.timing, self.started)}")
            case Note():
                if event.level == "warning":
                    note(f"warning: {event.text}") if self._console is None else self._say(f"warning: {event.text}")
                else:
                    self._say(event.text)
            case WorkloadFinished():
                self.finished.append(event.result)
                self._say(summary(event.result))

    def _update(self, text: str) -> None:
        if self._status is not None:
            from rich.text import Text

            self._status.update(Text(text))

    def _say(self, text: str) -> None:
        if self._console is not None:
            self._console.print(text, markup=False, soft_wrap=True)


def title(event: WorkloadStarted, plans: int) -> str:
    number = f"[{event.number}/{plans}] " if plans > 1 else ""
    return f"{number}{event.workload}{shape_text(event.shape)} for {event.target}"


def shape_text(shape: object) -> str:
    dims = dict(shape) if shape else {}  # type: ignore[call-overload]
    return f" ({', '.join(f'{name}={value}' for name, value in dims.items())})" if dims else ""


def line(event: Progress, timing: str, run: RunStarted | None) -> str:
    """done/failed by class, best so far against eager, elapsed against budget."""
    counts = event.counts
    parts = [event.stage, f"{counts.compiled} compiled, {counts.verified} right, {counts.timed} timed of {counts.kept}"]
    if event.failures:
        parts.append("failed: " + ", ".join(f"{count} {status}" for status, count in sorted(event.failures.items())))
    if event.best_us is not None:
        against = ""
        if event.eager_us and event.best_us > 0:
            against = f" ({event.eager_us / event.best_us:.2f}x against unfused)"
        parts.append(f"best {event.best_us:.1f} us {timing}{against}")
    budget = run.budget_seconds if run else None
    parts.append(f"{event.elapsed_seconds:.0f} s" + (f" of {budget:.0f}" if budget is not None else ""))
    return " | ".join(parts)


def summary(result: TuneResult) -> str:
    name = f"{result.workload}{shape_text(result.shape)}"
    if result.total_us is None:
        return f"{name}: {result.status}{': ' + result.detail if result.detail else ''}"
    if result.status == "done" and not result.groups:
        return f"{name}: nothing to tune{': ' + result.detail if result.detail else ''}"
    against = ""
    if result.unfused_us and result.total_us:
        against = f", {result.unfused_us / result.total_us:.2f}x against unfused"
        if result.unfused_timing not in ("", result.timing):
            against += f" ({result.unfused_timing})"
    early = {
        "budget": " (budget ended; the best so far is kept)",
        "interrupted": " (interrupted; the best so far is kept, --resume goes on)",
    }.get(result.status, "")
    return f"{name}: {result.total_us:.1f} us {result.timing}{against}, {result.seconds:.1f} s{early}"
