"""The worker's stopwatch: every prepared candidate in interleaved rounds, each time with a cold L2.

How one sample is taken on a GPU: each candidate has one CUDA graph of [flush, event, candidate's launches, event]. The
flush *reads* a buffer of several times the L2 (a write flush leaves dirty lines that the timed kernel pays for) and
takes 70 us, so the host is always ahead and the candidate starts from a busy stream. A round replays every graph once
and waits once. A plan of five kernels pays its gaps between kernels, as it will in a user's graph.

Measured on an H200 (torch 2.11, driver 580; median [10 %, 90 %] of 50 samples, us), against events recorded by the host
around the replay, and against one graph of 10 x (flush, kernel) less one of 10 x flush:

| kernel (float32 add, bytes each) | events in graph   | events from host   | difference of graphs |
|----------------------------------|-------------------|--------------------|----------------------|
| one element                      |  3.5 [3.5, 3.7]   |  3.6 [3.4, 4.2]    |  1.8 [1.3, 2.1]      |
| 1 MiB                            |  4.7 [4.7, 4.9]   |  5.3 [5.1, 5.8]    |  3.1 [2.7, 3.5]      |
| 4 MiB                            |  6.6 [6.5, 6.8]   |  7.2 [6.9, 7.7]    |  6.0 [5.7, 6.7]      |
| 64 MiB                           | 46.4 [46.0, 47.8] | 47.2 [46.5, 48.3]  | 50.1 [49.8, 50.5]    |

Events in the graph spread least. The difference charges a kernel for writing back its dirty lines during the next
flush and spreads twice as much where it matters, under 10 us. What events in a graph cost by themselves (a graph with
nothing between them) is measured once and taken off.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

FLUSH_BYTES = 256 << 20
"""H200: 60 MB of L2 (50 MB on an H100, 126 MB on a B200), in two halves that may each hold a copy of a line."""
REFERENCE_ELEMENTS = 16 << 20
"""The reference kernel adds 1 to this many float32: 64 MiB in, 64 MiB out, near 32 us on an H200."""
WARMUPS = 3


class Stopwatch(Protocol):
    """Takes cold samples of prepared work."""

    def prepare(self, work: Callable[[], object]) -> Any:
        """Warm up and, on a GPU, capture. Raises what running raises."""
        ...

    def sample(self, prepared: Sequence[Any]) -> list[float]:
        """One cold run each, in the order given, in microseconds; each may appear once."""
        ...

    def reference(self) -> Any:
        """The fixed reference kernel, prepared."""
        ...


class HostStopwatch:
    """For the interpreter: the clock of the host. Right in form, of no worth as a measurement."""

    def prepare(self, work: Callable[[], object]) -> Any:
        work()
        return work

    def sample(self, prepared: Sequence[Any]) -> list[float]:
        found: list[float] = []
        for work in prepared:
            start = time.perf_counter()
            work()
            found.append((time.perf_counter() - start) * 1e6)
        return found

    def reference(self) -> Any:
        import torch

        x = torch.randn(1 << 16)
        return lambda: torch.add(x, 1.0)


@dataclass(slots=True)
class Captured:
    """A graph with its two events, and the work, whose tensors and loaded modules must outlive the graph."""

    graph: Any
    before: Any
    after: Any
    work: Callable[[], object]


class CudaStopwatch:
    """Replays of CUDA graphs with events inside. Graphs share one memory pool: nothing in it outlives a replay."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()
        self._flushed = torch.randint(0, 2, (FLUSH_BYTES // 4,), dtype=torch.int32, device="cuda")
        self._total = torch.empty((), dtype=torch.int32, device="cuda")
        self.overhead_us = 0.0
        nothing = self.prepare(lambda: None)
        self.overhead_us = median([self.sample([nothing])[0] for _ in range(20)])

    def prepare(self, work: Callable[[], object]) -> Captured:
        torch = self._torch
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            for _ in range(WARMUPS):
                self._flush()
                work()
        self._stream.synchronize()
        # external: an event *node*, recorded at each replay, whose times can be read afterwards.
        before, after = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            self._flush()
            before.record(self._stream)
            work()
            after.record(self._stream)
        captured = Captured(graph, before, after, work)
        for _ in range(WARMUPS):
            self.sample([captured])
        return captured

    def sample(self, prepared: Sequence[Captured]) -> list[float]:
        with self._torch.cuda.stream(self._stream):
            for captured in prepared:
                captured.graph.replay()
        self._stream.synchronize()
        return [
            max(captured.before.elapsed_time(captured.after) * 1e3 - self.overhead_us, 0.01) for captured in prepared
        ]

    def reference(self) -> Captured:
        torch = self._torch
        x = torch.randn(REFERENCE_ELEMENTS, device="cuda")
        y = torch.empty_like(x)
        return self.prepare(lambda: torch.add(x, 1.0, out=y))

    def _flush(self) -> None:
        self._torch.amax(self._flushed, out=self._total)


def rounds(
    watch: Stopwatch, runs: dict[int, Any], reference: Any, count: int, seed: int
) -> tuple[dict[int, list[float]], list[float]]:
    """`count` rounds; in each, every run and the reference once, in a random order of its own."""
    order = random.Random(seed)
    samples: dict[int, list[float]] = {index: [] for index in runs}
    references: list[float] = []
    slots: list[int | None] = [*runs, None]
    for _ in range(count):
        order.shuffle(slots)
        taken = watch.sample([reference if slot is None else runs[slot] for slot in slots])
        for slot, value in zip(slots, taken, strict=True):
            (references if slot is None else samples[slot]).append(value)
    return samples, references
