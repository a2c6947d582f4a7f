"""A killable process that answers JSON requests one at a time. Nothing here knows what the requests mean.

Started as a program of its own (`python -m module`), never by multiprocessing's spawn, which would run the user's
script again. It leads a session of its own, so that killing its process group takes ptxas and other grandchildren
along and Ctrl-C in the terminal reaches the parent alone.

Frames are a 4-byte little-endian length and that many bytes of UTF-8 JSON, over stdin and a private copy of stdout: in
the child, file descriptor 1 becomes stderr, which is a file that the parent reads back, so C++ may print what it likes.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

Message = dict[str, Any]
START_TIMEOUT_S = 180.0
"""Importing torch on a busy two-core machine has been seen to take most of a minute."""
_HEADER = struct.Struct("<I")
_STDERR_LIMIT = 64_000


class ChildDied(Exception):
    """The process ended without answering: exit status and the end of its stderr."""


class ChildHung(Exception):
    """No answer in time."""


class Child:
    """One process, started at once; `request` waits for its answer. Not thread-safe, save for `kill`."""

    def __init__(self, module: str, arguments: tuple[str, ...] = (), env: Mapping[str, str] | None = None) -> None:
        self._stderr = tempfile.TemporaryFile("a+b")  # noqa: SIM115  (lives as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=dict(os.environ if env is None else env),
            start_new_session=True,
            bufsize=0,
        )
        self._ready = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Raises ChildDied or ChildHung; the child says so once its imports are done."""
        if not self._ready:
            self._receive(time.monotonic() + timeout_s)
            self._ready = True

    def request(self, message: Message, timeout_s: float) -> Message:
        """Send and wait. Raises ChildDied, ChildHung; the child is of no use after either."""
        self.wait_ready()
        with contextlib.suppress(OSError):
            os.ftruncate(self._stderr.fileno(), 0)
        data = json.dumps(message).encode()
        try:
            assert self._process.stdin is not None
            _write_all(self._process.stdin.fileno(), _HEADER.pack(len(data)) + data)
        except OSError:
            raise self._death() from None
        return self._receive(time.monotonic() + timeout_s)

    def stderr(self) -> str:
        """What it wrote since the last request began (its end, when long)."""
        size = os.fstat(self._stderr.fileno()).st_size
        start = max(0, size - _STDERR_LIMIT)
        return os.pread(self._stderr.fileno(), size - start, start).decode(errors="replace")

    def kill(self) -> None:
        """The whole process group, at once; safe to repeat."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        else:
            # The leader is gone but its group may live on (a ptxas that outlived a crash).
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _receive(self, deadline: float) -> Message:
        (length,) = _HEADER.unpack(self._read(_HEADER.size, deadline))
        return json.loads(self._read(length, deadline))

    def _read(self, count: int, deadline: float) -> bytes:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        parts = bytearray()
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        while len(parts) < count:
            left = deadline - time.monotonic()
            if left <= 0 or not poller.poll(left * 1000):
                raise ChildHung
            chunk = os.read(fd, count - len(parts))
            if not chunk:
                raise self._death()
            parts += chunk
        return bytes(parts)

    def _death(self) -> ChildDied:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.returncode
        if code is None:
            how = "closed its pipe"
        elif code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        else:
            how = f"exited with status {code}"
        last = [line for line in self.stderr().splitlines() if line.strip()]
        return ChildDied(f"{how}: {last[-1].strip()[:300]}" if last else how)


def serve(handle: Callable[[Message], Message], prepare: Callable[[], None] = lambda: None) -> None:
    """The child's side: answer until stdin closes. `prepare` (imports) runs before the child says that it is ready.

    An exception out of `handle` is a bug: it ends the process with its traceback, and the parent records a crash.
    """
    answers = os.dup(1)
    os.set_inheritable(answers, False)
    os.dup2(2, 1)
    requests = os.dup(0)
    os.set_inheritable(requests, False)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a candidate's crash is expected; its core dump is not
    threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()
    prepare()
    _send(answers, {"ready": True})
    while True:
        header = _read_exactly(requests, _HEADER.size)
        if header is None:
            return
        body = _read_exactly(requests, _HEADER.unpack(header)[0])
        if body is None:
            return
        _send(answers, handle(json.loads(body)))


def _watch_parent(parent: int) -> None:
    """A parent that was killed outright cannot clean up: leave, and take the group along."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _send(fd: int, message: Message) -> None:
    data = json.dumps(message).encode()
    _write_all(fd, _HEADER.pack(len(data)) + data)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _read_exactly(fd: int, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        chunk = os.read(fd, count - len(parts))
        if not chunk:
            return None
        parts += chunk
    return bytes(parts)
