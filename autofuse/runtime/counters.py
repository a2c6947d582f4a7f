"""How often plans were found, and why not. Counts compilations (one a graph and shape), not calls."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Counts:
    """misses: by kind (absent, target, environment, malformed, store, unfit, error, training, dynamic, device)."""

    hits: int
    misses: dict[str, int]

    @property
    def total(self) -> int:
        return self.hits + sum(self.misses.values())


@dataclass
class _Counters:
    hits: int = 0
    misses: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)


_counters = _Counters()


def count_hit() -> None:
    with _counters.lock:
        _counters.hits += 1


def count_miss(kind: str) -> None:
    with _counters.lock:
        _counters.misses[kind] += 1


def counts() -> Counts:
    with _counters.lock:
        return Counts(_counters.hits, dict(_counters.misses))


def reset() -> None:
    with _counters.lock:
        _counters.hits = 0
        _counters.misses.clear()
