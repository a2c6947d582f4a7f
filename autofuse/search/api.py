"""`autofuse.tune`: the search on a function that is at hand, not named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autofuse.capture.frozen import declare, declared
from autofuse.errors import AutofuseError
from autofuse.search.driver import tune as run
from autofuse.search.events import OnEvent, TuneRequest, TuneResult


def tune(
    fn: Callable[..., Any],
    args: Sequence[Any],
    *,
    name: str | None = None,
    target: str = "auto",
    effort: str = "quick",
    budget_seconds: float | None = None,
    memory_limit_mb: float | None = None,
    strategy: str = "model",
    seed: int = 0,
    store: Path | str | None = None,
    results: Path | str | None = None,
    frozen: bool | Sequence[str] | None = None,
    on_event: OnEvent = lambda _event: None,
) -> TuneResult:
    """Tune fn(*args) and store its plan; `autofuse.compile(fn)` then finds it, and so does `torch.compile(fn,
    backend="autofuse")`, which must be told again what is frozen: options={"frozen": ...}.

    args: tensors of the shapes, dtypes, strides and device that fn will be called with; their values are not used.
    memory_limit_mb: what the values between kernels may take at any time, so that no plan keeps, say, logits.
    frozen: weights that never change, as `autofuse.compile` has it, which from then on takes the same for fn.
    Raises AutofuseError for a wrong argument, target, store or function; a search without a plan has status "no_plan".
    """
    label = name or getattr(fn, "__qualname__", type(fn).__qualname__)
    request = TuneRequest(
        (label,), ({},), target, effort, budget_seconds, strategy=strategy, seed=seed, memory_limit_mb=memory_limit_mb,
        store=Path(store) if store is not None else None, results=Path(results) if results is not None else None,
    )  # fmt: skip
    before = declared(fn)
    declare(fn, frozen)
    try:
        return run(request, on_event, {label: (fn, tuple(args))})[0]
    except AutofuseError:
        declare(fn, before if frozen is not None else None)
        raise
