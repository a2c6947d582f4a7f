"""The worker's stopwatch: one prepared candidate each, replayed in interleaved rounds with a cold L2.

How one sample is taken on a GPU (numbers: experiments/timing_method): the L2 is flushed by *reading* a buffer of more
than twice its size (a write flush leaves dirty lines that the timed kernel pays for), then event, replay of the
candidate's own CUDA graph, event; all enqueued without waiting, so that the flush hides the host's launch. A graph
holds just the candidate's launches, so a plan of five kernels pays its gaps between kernels, as it will in a user's
graph.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from autofuse.measure.execute import Env, Runner

FLUSH_BYTES = 256 << 20
"""H200: 60 MB of L2 (50 MB on an H100, 126 MB on a B200), in two halves that may each hold a copy of a line."""
REFERENCE_ELEMENTS = 16 << 20
"""The reference kernel adds 1 to this many float32: 64 MiB in, 64 MiB out, near 32 us on an H200."""
WARMUPS = 3


class Stopwatch(Protocol):
    """Takes samples of zero-argument prepared callables."""

    def prepare(self, runner: Runner, given: Env) -> Callable[[], object]:
        """Warm up and, on a GPU, capture. Raises what running raises."""
        ...

    def sample(self, runs: Sequence[Callable[[], object]]) -> list[float]:
        """One cold run each, in the order given, in microseconds."""
        ...

    def reference(self) -> Callable[[], object]: ...


class HostStopwatch:
    """For the interpreter: the clock of the host. Right in form, of no worth as a measurement."""

    def prepare(self, runner: Runner, given: Env) -> Callable[[], object]:
        runner(given)
        return lambda: runner(given)

    def sample(self, runs: Sequence[Callable[[], object]]) -> list[float]:
        found: list[float] = []
        for run in runs:
            start = time.perf_counter()
            run()
            found.append((time.perf_counter() - start) * 1e6)
        return found

    def reference(self) -> Callable[[], object]:
        import torch

        x = torch.randn(1 << 16)
        return lambda: torch.add(x, 1.0)


class CudaStopwatch:
    """CUDA-graph replays between events."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()
        self._flushed = torch.randint(0, 2, (FLUSH_BYTES // 4,), dtype=torch.int32, device="cuda")
        self._total = torch.empty((), dtype=torch.int32, device="cuda")
        self._flush = self.capture(lambda: torch.amax(self._flushed, out=self._total))

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        """`work` as the replay of a graph. Graphs share one memory pool: nothing in it outlives a replay."""
        torch = self._torch
        with torch.cuda.stream(self._stream):
            for _ in range(WARMUPS):
                work()
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        for _ in range(WARMUPS):
            graph.replay()
        torch.cuda.synchronize()
        return graph.replay

    def prepare(self, runner: Runner, given: Env) -> Callable[[], object]:
        return self.capture(lambda: runner(given))

    def sample(self, runs: Sequence[Callable[[], object]]) -> list[float]:
        torch = self._torch
        pairs: list[tuple[Any, Any]] = []
        with torch.cuda.stream(self._stream):
            for run in runs:
                before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                self._flush()
                before.record(self._stream)
                run()
                after.record(self._stream)
                pairs.append((before, after))
        self._stream.synchronize()
        return [before.elapsed_time(after) * 1e3 for before, after in pairs]

    def reference(self) -> Callable[[], object]:
        torch = self._torch
        x = torch.randn(REFERENCE_ELEMENTS, device="cuda")
        y = torch.empty_like(x)
        return self.capture(lambda: torch.add(x, 1.0, out=y))


def rounds(
    watch: Stopwatch, runs: dict[int, Callable[[], object]], reference: Callable[[], object], count: int, seed: int
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
