"""A pool of killable compiler processes. One kernel's crash, hang or error is a value; nothing here needs a GPU.

concurrent.futures' own pool breaks on one crash, and others leave ptxas running after a timeout: so each process here
is a session of its own, killed as a group and started again.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, as_completed
from types import TracebackType

from autofuse.codegen.kernel import Kernel
from autofuse.measure.child import Child, ChildDied, ChildHung
from autofuse.measure.compiler import first_line
from autofuse.measure.paths import child_environment
from autofuse.measure.records import Compiled

MODULE = "autofuse.measure.compiler"
_Job = tuple[Kernel, "Future[Compiled]"]


class CompilePool:
    """`workers` processes that compile for compute capability `target_arch` (90: Hopper). A context manager: leaving
    it, also by Ctrl-C, kills the processes and cancels what has not begun."""

    def __init__(self, target_arch: int, workers: int = 1, timeout_s: float = 120.0) -> None:
        self.target_arch = target_arch
        self.timeout_s = timeout_s
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._children: dict[int, Child] = {}
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"autofuse-compile-{number}", daemon=True)
            for number in range(max(1, workers))
        ]
        for thread in self._threads:
            thread.start()
        # Interpreter exit without close(): daemon threads stop, and the children must not stay.
        weakref.finalize(self, _kill_all, self._children)

    def submit(self, kernel: Kernel) -> Future[Compiled]:
        if self._closed:
            raise RuntimeError("the compile pool is closed")
        future: Future[Compiled] = Future()
        self._jobs.put((kernel, future))
        return future

    def map(self, kernels: Iterable[Kernel]) -> Iterator[Compiled]:
        """Results as they come, not in order: `digest` says whose each is."""
        for future in as_completed([self.submit(kernel) for kernel in kernels]):
            yield future.result()

    def pids(self) -> tuple[int, ...]:
        with self._lock:
            return tuple(child.pid for child in self._children.values())

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    job[1].cancel()
        with self._lock:
            for child in self._children.values():
                child.kill()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(timeout=10)

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _work(self, number: int) -> None:
        while (job := self._jobs.get()) is not None:
            kernel, future = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = self._compile(number, kernel)
            except Exception as error:  # noqa: BLE001  (a bug of ours: hand it to whoever waits, keep the thread)
                future.set_exception(error)
            else:
                future.set_result(result)
        self._drop(number)

    def _compile(self, number: int, kernel: Kernel) -> Compiled:
        start = time.perf_counter()
        try:
            child = self._child(number)
            answer = child.request({"kernel": kernel.to_json(), "arch": self.target_arch}, self.timeout_s)
        except ChildHung:
            self._drop(number)
            status, detail = "compile_timeout", f"no result after {self.timeout_s:g} s"
        except ChildDied as death:
            self._drop(number)
            status, detail = "compile_crash", str(death)
        else:
            if answer["status"] != "ok":
                # MLIR prints the reason to the file descriptor; the exception often says only "PassManager failed".
                printed = first_line(child.stderr())
                if printed and printed not in answer["detail"]:
                    answer["detail"] = f"{answer['detail']}; {printed}"
            return Compiled(**answer)
        return Compiled(kernel.digest, status, seconds=time.perf_counter() - start, detail=detail)

    def _child(self, number: int) -> Child:
        with self._lock:
            if self._closed:
                raise ChildDied("the pool was closed")
            if number not in self._children:
                self._children[number] = Child(MODULE, env=child_environment(CUDA_VISIBLE_DEVICES=""))
            return self._children[number]

    def _drop(self, number: int) -> None:
        with self._lock:
            child = self._children.pop(number, None)
        if child is not None:
            child.close()


def _kill_all(children: dict[int, Child]) -> None:
    for child in list(children.values()):
        child.kill()
